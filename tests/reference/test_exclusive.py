"""Exclusive edge functions (S11): the interpreter, and what both refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from tests.programs.exclusive import mix, mix_targets, state_of


@fg.vertex
def is_even(f, v, d):
    return v % 2 == 0


def run(step: Any, graph: fg.Graph, **options: Any) -> Any:
    state = state_of(graph, 1)
    state["w"] = np.arange(graph.given_edge_count)
    given = reference.from_state(state)
    return reference.superstep(step.program, *given, record_order="turn", **options)


LOOPED = fg.Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 2])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_runs_edges_in_the_given_order(order: list[int]) -> None:
    out = run(fg.foldmap(mix), LOOPED, order=order)
    x, turns = state_of(LOOPED, 1)["x"][:, 0].tolist(), [0, 0, 0]
    ends, expected = [(0, 1), (1, 2), (2, 0), (2, 2)], np.empty((4, 2), np.int32)
    for row in order:
        u, v = ends[row]
        expected[row] = turns[u], turns[v]
        for end in {u, v}:
            turns[end] += 1
        a, b = x[u], x[v]
        x[u] = 31 * a + b + row
        x[v] = (17 * a) ^ b
    assert out.values["x"][:, 0].tolist() == x
    assert out.values["turn"].tolist() == expected.tolist()
    assert out.values["runs"].tolist() == [1, 1, 1, 1]


def test_makes_both_ends_due() -> None:
    out = run(fg.foldmap(mix), fg.Graph.from_edges([0, 2, 4, 4], [1, 3, 5, 2]))
    due = out.active_out.vertices.tolist()
    assert due == [2, 3, 4, 5]  # edges 0 and 3 return False


def test_vertex_functions_filter_sources() -> None:
    out = run(fg.foldmap(is_even, mix), LOOPED)
    assert out.values["runs"].tolist() == [1, 0, 1, 1]
    assert out.values["turn"].tolist() == [[0, 0], [-1, -1], [0, 1], [1, 1]]


def test_runs_both_directions_of_an_undirected_edge() -> None:
    graph = fg.Graph.from_edges([0, 1, 1], [1, 1, 2], directed=False)
    out = run(fg.foldmap(mix), graph, order=[3, 0, 1, 2, 5])
    assert out.values["runs"].tolist() == [1, 1, 1, 1, 1, 1]
    turns = out.values["turn"].tolist()
    assert turns[3] == [0, 0]
    assert turns[0] == [1, 1]
    assert turns[1] == [2, 2]


@pytest.mark.parametrize("sides", [(2, 2), None])
def test_conflicts_are_at_the_ends_that_it_writes(sides: Any) -> None:
    graph = fg.Graph.from_edges([0, 1], [3, 3], vertex_count=4, sides=sides)
    out = run(fg.foldmap(mix_targets), graph)
    assert out.values["turn"].tolist() == [[-1, 0], [-1, 1]]
    assert out.values["n"][3] == 5 * 5 * state_of(graph, 1)["n"][3] + 1


def test_an_order_has_each_edge_of_the_domain_once() -> None:
    for order in ([0, 1, 2], [0, 1, 2, 2, 3]):
        with pytest.raises(ValueError, match="order has"):
            run(fg.foldmap(mix), LOOPED, order=order)


@fg.edge(exclusive=True)
def add_weight(f, u, v, e, d):
    d.n[u] = 3 * d.n[u] + d.c[e]
    return True


def test_functions_of_no_feature_read_values_of_edges() -> None:
    graph = fg.Graph.from_edges([0, 1, 0], [1, 2, 2])
    state = fg.State(graph, n=fg.vertex_property(1), c=fg.edge_property([5, 6, 7]))
    fg.edgemap(add_weight)(state, target="cpu")
    assert state["n"].tolist() == [31, 9, 1]


# Refusals, by the folder and the interpreter or by one of them


@fg.edge(exclusive=True)
def write_next(f, u, v, e, d):
    d.z_next[u] = 1
    return True


@fg.edge(exclusive=True)
def write_shared(f, u, v, e, d):
    d.w[e] = 1
    return True


@fg.edge(exclusive=True)
def write_elsewhere(f, u, v, e, d):
    d.n[(u + 1) % 3] = 1
    return True


@fg.edge(exclusive=True)
def read_elsewhere(f, u, v, e, d):
    d.n[u] = d.n[(u + 1) % 3]
    return True


@fg.edge(exclusive=True)
def read_twin(f, u, v, e, d):
    d.runs[e] = d.runs[fg.reverse(e)] + 1
    return True


@fg.edge(exclusive=True)
def read_late(f, u, v, e, d):
    d.n[u] = d.n[u] + 1
    d.runs[e] = d.n[v]
    return True


@fg.edge(exclusive=True)
def read_in_a_loop(f, u, v, e, d):
    for n in range(2):
        d.n[u] = d.n[v] + n
    return True


@fg.edge(exclusive=True)
def update(f, u, v, e, d):
    d.n[u] = 1
    fg.atomic.add(d.n, v, 1)
    return True


@fg.edge(exclusive=True)
def other_feature(f, u, v, e, d):
    d.x[u, f] = d.x[v, 0]
    return True


REFUSED = {
    write_next: "an exclusive function writes in place",
    write_shared: "has one value for both directions",
    write_elsewhere: "an edge function writes only at u and v",
    read_elsewhere: "written in place and read elsewhere",
    read_twin: "written in place and read elsewhere",
    read_late: "is read behind a write to it",
    read_in_a_loop: "is read behind a write to it",
    update: "written in place and updated atomically",
    other_feature: "read at another feature",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.name)
def test_the_folder_refuses(function: Any) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    state = state_of(graph, 4, z=fg.vertex_property([1, 2, 3], iterated=True))
    before = {name: state[name] for name in state}
    with pytest.raises(fg.UserFunctionError, match=REFUSED[function]) as caught:
        fg.foldmap(function)(state, target="cpu")
    error = caught.value
    assert error.where
    assert error.fix
    assert function.name in str(error)
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values)


@pytest.mark.parametrize(
    "function", [write_next, write_shared, write_elsewhere, read_late, read_in_a_loop]
)
def test_the_interpreter_refuses(function: Any) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    state = state_of(graph, 4, z=fg.vertex_property([1, 2, 3], iterated=True))
    with pytest.raises(fg.UserFunctionError):
        reference.superstep(fg.foldmap(function).program, *reference.from_state(state))


@fg.edge
def also(f, u, v, e, d):
    return True


@fg.triangle
def corners(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.n, u, 1)


@pytest.mark.parametrize("other", [also, corners, mix_targets])
def test_is_alone_on_edges(other: Any) -> None:
    for functions in ((mix, other), (other, mix)):
        with pytest.raises(fg.UserFunctionError, match="the only one on edges"):
            fg.foldmap(*functions)


# Options and graphs that do not fit


SIDES = fg.Graph.from_edges([0, 0, 1], [2, 3, 3], sides=(2, 2))
OPTIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "asynchronous": (mix, {"asynchronous": True}, "runs once on each edge"),
    "dense": (mix, {"change_driven": False}, "writes runs in place"),
    "near_far": (mix, {"near_far": fg.NearFar("n")}, "is an edge function"),
    "not repeatable": (
        mix, {"deterministic": True, "schedule": "edge_locked"}, "not repeatable",
    ),
    "no vertex again": (
        mix, {"deterministic": True, "schedule": "node_locked"}, "not repeatable",
    ),
    "hubs of another": (mix, {"schedule": "node_locked", "hubs": 3}, "does not belong"),
    "too few hubs": (mix, {"schedule": "hybrid", "hubs": 0}, "hubs cannot be 0"),
    "racy and a schedule": (mix, {"racy": True, "schedule": "serial"}, "no order"),
    "racy and repeatable": (mix, {"racy": True, "deterministic": True}, "no order"),
    "racy and recorded": (mix, {"racy": True, "record_order": "turn"}, "no order"),
    "rows": (mix, {"schedule": "rows"}, "the rows of one end"),
    "of triangles": (mix, {"schedule": "mark"}, "does not run exclusive"),
    "of another": (mix, {"schedule": "levels", "parts": 3}, "parts does not belong"),
    "too few": (mix, {"schedule": "blocks", "parts": 0}, "parts cannot be 0"),
    "a seed": (mix, {"shuffle": -1}, "shuffle cannot be -1"),
    "a record": (mix, {"record_order": "x"}, "an edge property of its own"),
    "no such record": (mix, {"record_order": "none"}, "the State does not have"),
    "without one": (is_even, {"schedule": "serial"}, "has no exclusive function"),
    "a seed without": (is_even, {"shuffle": 3}, "has no exclusive function"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit(name: str) -> None:
    function, options, message = OPTIONS[name]
    state = state_of(SIDES, 1)
    before = {name: state[name] for name in state}
    step = fg.foldmap(function)
    with pytest.raises(fg.PlanError, match=message) as caught:
        fg.iterate(step, state, target="cpu", max_supersteps=1, **options)
    assert caught.value.where
    for name_, values in before.items():
        np.testing.assert_array_equal(state[name_], values)


@pytest.mark.parametrize(
    ("graph", "got"),
    [
        (fg.Graph.from_edges([0, 1], [1, 2]), "a graph without two sides"),
        (fg.Graph.from_edges([0, 2], [2, 1], sides=(2, 1)), "edge 1, which leads"),
        (
            fg.Graph.from_edges([0, 1], [2, 2], sides=(2, 1), directed=False),
            "a graph without two sides",
        ),
    ],
)
def test_schedules_of_two_sides_refuse_other_graphs(graph: fg.Graph, got: str) -> None:
    names = "blocks diagonal block_diagonal subgraph_matching node_locked hybrid"
    for schedule in names.split():
        with pytest.raises(fg.PlanError, match="from the first of two sides") as caught:
            fg.foldmap(mix)(state_of(graph, 1), target="cpu", schedule=schedule)
        assert got in str(caught.value)
        assert caught.value.fix


def test_ranks_are_refused() -> None:
    function = fg.foldmap(mix).fold(state_of(SIDES, 1), target="cpu")
    refused = function.plan.facts.not_shared
    assert refused is not None
    assert "both ends" in refused.why
    assert refused.fix


@fg.edge(exclusive=True)
def learn(f, u, v, e, d):
    p = d.x[u, f]
    q = d.x[v, f]
    miss = d.rating[e] - fg.dot(p, q)
    d.x[u, f] = p + d.rate * miss * q
    d.x[v, f] = q + d.rate * miss * p
    return True


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_prefetches_take_each_sector_of_a_row(dtype: str) -> None:
    graph = fg.Graph.from_edges([0, 1], [2, 3], sides=(2, 2))
    x = fg.vertex_property(np.ones((4, 16), dtype))
    state = fg.State(graph, x=x, rating=fg.edge_property(np.ones(2, dtype)), rate=0.1)
    text = fg.foldmap(learn).fold(state, target="cuda", schedule="blocks").source
    places = set()
    call = r"ask_for\(d.x, int64\(u\) \* 16( \+ 4)?, (\d+)\)"
    for first, count in re.findall(call, text):
        begin = 4 * bool(first)
        places |= set(range(begin, begin + int(count), 8))
    item = np.dtype(dtype).itemsize
    assert {place * item // 32 for place in places} == set(range(16 * item // 32))
