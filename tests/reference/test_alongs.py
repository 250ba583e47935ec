"""Gathers along out-edges and both: the interpreter against NumPy, and their plans."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from featgraph import reference
from tests.bank import BY_NAME
from tests.strategies import graphs, seeds

ALONGS = ("in", "out", "both")


def gathers(along: str) -> Any:
    """Return gathers along some edges, with temporaries named by it."""

    @fg.gather(into=f"sum_{along}", combine="sum", along=along)
    def add(f, u, v, e, d):
        return d.weight[e] * d.x[u] - d.x[v]

    @fg.gather(into=f"least_{along}", combine="argmin", along=along)
    def least(f, u, v, e, d):
        return d.x[u] // 8

    return add, least


GATHERS = {along: gathers(along) for along in ALONGS}


def edges_along(graph: fg.Graph, along: str) -> tuple[Any, Any, Any]:
    """Return u, v and the given edge of all that gathers combine over."""
    u, v, number = graph.sources, graph.targets, np.arange(graph.given_edge_count)
    loop = u == v
    if along == "in" and graph.directed:
        return u, v, number
    if along == "out" and graph.directed:
        return v, u, number
    ends = (u, v[~loop]), (v, u[~loop]), (number, number[~loop])
    return tuple(np.concatenate(parts) for parts in ends)  # type: ignore[return-value]


@pytest.mark.parametrize("along", ALONGS)
@given(graphs(max_edges=60), seeds)
def test_the_interpreter_equals_numpy(along: str, graph: fg.Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-20, 20, graph.vertex_count)
    weight = rng.integers(-9, 9, graph.given_edge_count)
    state = fg.State(graph, x=fg.vertex_property(x), weight=fg.edge_property(weight))
    program = fg.foldmap(*GATHERS[along]).program
    outcome = reference.superstep(program, *reference.from_state(state))
    u, v, number = edges_along(graph, along)
    expected = np.zeros_like(x)
    np.add.at(expected, v, weight[number] * x[u] - x[v])
    assert outcome.temporaries[f"sum_{along}"].tolist() == expected.tolist()
    first = [
        min(((x[a] // 8, a) for a in u[v == w].tolist()), default=(0, -1))[1]
        for w in range(graph.vertex_count)
    ]
    assert outcome.temporaries[f"least_{along}_source"].tolist() == first
    degree = np.bincount(v, minlength=graph.vertex_count)
    assert (outcome.degree >= degree).all()


@given(graphs(max_edges=60), seeds)
def test_what_is_due(graph: fg.Graph, seed: int) -> None:
    """A, and the vertices for which a gather from it filled something."""
    rng = np.random.default_rng(seed)
    active = rng.random(graph.vertex_count) < 0.2
    x = np.zeros(graph.vertex_count, np.int64)

    @fg.vertex
    def stamp(f, v, d):
        d.ran[v] = True
        return False

    for alongs in (("out",), ("both",), ("in", "out")):
        functions = [GATHERS[along][1] for along in alongs]
        state = fg.State(
            graph, x=fg.vertex_property(x), ran=fg.vertex_property(x.astype(bool))
        )
        program = fg.foldmap(*functions, stamp).program
        outcome = reference.superstep(
            program, *reference.from_state(state), active=active
        )
        due = active.copy()
        for along in alongs:
            u, v, _ = edges_along(graph, along)
            due[v[active[u]]] = True
        np.testing.assert_array_equal(outcome.values["ran"], due)


def test_two_ways_make_due(target: str) -> None:
    """Along in-edges and out-edges, in two kernels that must agree on what is due."""
    step = fg.foldmap(GATHERS["in"][1], GATHERS["out"][1], note_both)

    @settings(max_examples=40)
    @given(graphs(max_edges=60, directed=True), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 99, graph.vertex_count)
        state = fg.State(
            graph,
            x=fg.vertex_property(x),
            near=fg.vertex_property(np.full((graph.vertex_count,), -2, np.int32)),
        )
        active = rng.random(graph.vertex_count) < 0.2
        given_state = reference.from_state(state)
        outcome = reference.superstep(step.program, *given_state, active=active)
        committed = step(state, active_in=active, target=target)
        assert committed == outcome.active_out
        np.testing.assert_array_equal(state["near"], outcome.values["near"])

    agrees()


@given(graphs(max_edges=60), seeds)
def test_weak_components_are_those_of_networkx(graph: fg.Graph, seed: int) -> None:
    rng, program = np.random.default_rng(seed), BY_NAME["along_both"]
    state = fg.State(graph, **program.make_state(graph, 1, rng))
    numbers = state["comp"][:, 0]
    step = program.foldmaps[0].program
    run = reference.iterate(step, *reference.from_state(state))
    other = nx.MultiDiGraph()
    other.add_nodes_from(range(graph.vertex_count))
    other.add_edges_from(
        zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    )
    for component in nx.weakly_connected_components(other):
        found = run.values["comp"][sorted(component), 0]
        assert set(found.tolist()) == {numbers[sorted(component)].min()}


@fg.vertex
def note_both(f, v, d):
    d.near[v] = d.least_in_source[v] * 100 + d.least_out_source[v]
    return True


# Plans


@fg.vertex
def keep(f, v, d):
    d.x_next[v] = d.sum_in[v] + d.sum_out[v]
    return True


@fg.vertex
def keep_both(f, v, d):
    d.x_next[v] = d.sum_both[v]
    return True


@fg.edge
def send(f, u, v, e, d):
    d.message_next[e] = d.x[u]
    return True


@fg.gather(into="sent", combine="sum", along="out")
def sum_of_sent(f, u, v, e, d):
    return d.message_next[e]


@fg.vertex
def keep_sent(f, v, d):
    d.x_next[v] = d.sent[v]
    return True


def state_on(graph: fg.Graph) -> fg.State:
    return fg.State(
        graph,
        x=fg.vertex_property(np.zeros(graph.vertex_count, np.int64), iterated=True),
        weight=fg.edge_property(1),
        message=fg.edge_property(0, iterated=True, per_direction=not graph.directed),
    )


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_a_kernel_goes_through_the_rows_of_one_along(on: str) -> None:
    step = fg.foldmap(GATHERS["in"][0], GATHERS["out"][0], keep)
    directed, undirected = (
        fg.Graph.from_edges([0, 1], [1, 2], directed=d) for d in (True, False)
    )
    kernel = step.fold(state_on(directed), target=on)
    assert [p.along for p in kernel.plan.phases] == ["in", "out"]
    text = kernel.explain()
    assert "add_b gathers along out-edges, add along in-edges" in text
    assert "gathers from it, along in- and out-edges" in text
    # The same neighbors: one pass.
    kernel = step.fold(state_on(undirected), target=on)
    assert [p.along for p in kernel.plan.phases] == ["in"]
    assert "out_" not in "".join(kernel.entries[0].arguments)


@pytest.mark.parametrize("directed", [True, False])
def test_edges_are_looked_up_only_where_read(directed: bool) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=directed)
    for function, last, finds in (
        (GATHERS["both"][0], keep_both, True),
        (BY_NAME["along_both"].foldmaps[0].program.functions[0], None, False),
    ):
        functions = [function] if last is None else [function, last]
        values = {"comp": fg.vertex_property(np.zeros((3, 1), np.int32))}
        state = state_on(graph) if last is not None else fg.State(graph, **values)
        arguments = (
            fg.foldmap(*functions).fold(state, target="cpu").entries[0].arguments
        )
        assert ("incident_edges" in arguments) == (directed and finds)
        assert ("incident_offsets" in arguments) == directed


@pytest.mark.parametrize("on", ["cpu", "cuda"])
@pytest.mark.parametrize("directed", [True, False])
def test_edge_functions_stay_apart_from_gathers_along_out(
    directed: bool, on: str
) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=directed)
    step = fg.foldmap(send, sum_of_sent, keep_sent)
    kernel = step.fold(state_on(graph), target=on)
    assert [p.kind.name for p in kernel.plan.phases] == ["edge", "vertex"]
    assert "sum_of_sent gathers along out-edges" in kernel.explain()


def test_what_edge_functions_wrote_is_gathered_along_out(target: str) -> None:
    """Edges that were not run on keep what they had, also behind a swap."""
    step = fg.foldmap(send, sum_of_sent, keep_sent)

    @settings(max_examples=20)
    @given(graphs(max_edges=40), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        state = state_on(graph)
        state["x"] = rng.integers(0, 9, graph.vertex_count)
        for _ in range(3):
            active = rng.random(graph.vertex_count) < 0.4
            given_state = reference.from_state(state)
            outcome = reference.superstep(step.program, *given_state, active=active)
            committed = step(state, active_in=active, target=target)
            assert committed == outcome.active_out
            for name in ("x", "message"):
                np.testing.assert_array_equal(state[name], outcome.values[name])

    agrees()


@fg.gather(into="flow", combine="sum", along="out")
def flow_out(f, u, v, e, d):
    return d.weight[e] * d.x[u]


@fg.gather(into="low", combine="min", along="both")
def low_around(f, u, v, e, d):
    return d.x[u] + d.x[v]


@fg.vertex
def keep_flow(f, v, d):
    d.x_next[v] = d.flow[v] - min(d.low[v], 99)
    return d.flow[v] % 2 == 0


def test_pushed_along_other_edges(target: str) -> None:
    step = fg.foldmap(flow_out, low_around, keep_flow)

    @settings(max_examples=40)
    @given(graphs(max_edges=60), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 9, graph.vertex_count).astype(np.int32)
        weight = rng.integers(-3, 4, graph.given_edge_count).astype(np.int32)
        state = fg.State(
            graph,
            x=fg.vertex_property(x, iterated=True),
            weight=fg.edge_property(weight),
        )
        active = rng.random(graph.vertex_count) < 0.4
        given_state = reference.from_state(state)
        outcome = reference.superstep(step.program, *given_state, active=active)
        committed = step(state, active_in=active, target=target, direction="push")
        assert committed == outcome.active_out
        np.testing.assert_array_equal(state["x"], outcome.values["x"])

    agrees()
    kernel = step.fold(
        fg.State(
            fg.Graph.from_edges([0], [1]),
            x=fg.vertex_property(np.zeros(2, np.int32), iterated=True),
            weight=fg.edge_property(np.zeros(1, np.int32)),
        ),
        target="cpu",
        direction="push",
    )
    pushed = kernel.plan.phases[:2]
    assert [(p.kind.name, p.along) for p in pushed] == [
        ("push", "out"),
        ("push", "both"),
    ]
    assert "in_sources" in kernel.entries[0].arguments
