"""Calls that raise on several ranks: on each rank, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks
from tests.ordered import OrderedSchedule, added

WHOLE = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u]


@fg.gather(into="out", combine="min", along="out")
def lowest_out(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def adopt(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v]


@fg.vertex
def ask(f, v, d):
    return fg.atomic.min(d.least, d.x[v], v) > v


@fg.edge
def turn(f, u, v, e, d):
    d.load[e] = d.x[u] + fg.is_twin(e)
    return True


@fg.edge
def tell_back(f, u, v, e, d):
    fg.atomic.add(d.load, fg.reverse(e), 1)
    return True


step = fg.foldmap(lowest, adopt)


def make(graph: fg.Graph) -> fg.State:
    return fg.State(
        graph,
        x=fg.vertex_property(np.arange(4), iterated=True),
        least=fg.vertex_property(9),
        load=fg.edge_property(0),
    )


REFUSED: dict[str, tuple[Callable[[fg.State], Any], str]] = {
    "atomics": (fg.vertexmap(ask), "in ask: the old value of least is used"),
    "touch": (lambda s: s.touch("load"), "values on two ranks"),
    "ends": (lambda s: s.graph.sources, "no rank has sources"),
    "rows": (lambda s: s.graph.in_edges, "no rank has in_edges"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, message = REFUSED[name]

    def on_a_rank(engine: Any) -> None:
        state = make(fg.distribute(WHOLE, cuts=[0, 2, 4]))
        with pytest.raises(fg.FeatGraphError, match=message):
            call(state)
        assert state["x"].tolist() == [0, 1, 2, 3]
        step(state)  # it is as usable as before
        assert state["x"].tolist() == [0, 0, 1, 2]

    run_ranks(2, on_a_rank)


def test_out_edges_that_were_left_out() -> None:
    def on_a_rank(engine: Any) -> None:
        state = make(fg.distribute(WHOLE, cuts=[0, 2, 4], along="in"))
        with pytest.raises(fg.PlanError, match='along="both"'):
            fg.foldmap(lowest_out)(state)
        fg.foldmap(lowest_out)(make(fg.distribute(WHOLE, cuts=[0, 2, 4])))

    run_ranks(2, on_a_rank)


def test_twins_that_were_left_out() -> None:
    whole = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], directed=False)
    step = fg.edgemap(turn)

    def on_a_rank(engine: Any) -> None:
        for along in ("in", "both"):
            graph = fg.distribute(whole, cuts=[0, 2, 4], along=along)
            load = fg.edge_property(0, per_direction=True)
            state = fg.State(graph, x=fg.vertex_property(np.arange(4)), load=load)
            if along == "in":
                with pytest.raises(fg.PlanError, match='along="both"'):
                    fg.edgemap(tell_back)(state)
                with pytest.raises(fg.PlanError, match='along="both"'):
                    step(state)
                assert state["load"].tolist() == [0] * 8
        step(state)
        assert state["load"].tolist() == [0, 1, 2, 3, 2, 3, 4, 1]

    run_ranks(2, on_a_rank)


@fg.triangle
def ask_first(u, v, w, e_uv, e_uw, e_vw, d):
    if fg.atomic.min(d.least, w, u) > u:
        fg.atomic.add(d.many, w, 1)


@fg.triangle
def differ(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.min(d.least, w, 1)
    fg.atomic.max(d.least, u, 1)


@fg.triangle
def count(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.many, w, 1)


@pytest.mark.parametrize(
    ("function", "ends", "options", "message"),
    [
        (ask_first, ([0, 1], [1, 2]), {}, "in ask_first: the old value of least"),
        (differ, ([0, 1], [1, 2]), {}, "in differ: two atomic operations"),
        (count, ([0, 1], [1, 2]), {"along": "in"}, 'along="both"'),
        (count, ([0, 2, 3, 1], [1, 3, 2, 2]), {}, "the edge between 2 and 3"),
    ],
)
def test_triangles_that_are_refused(
    function: Any, ends: Any, options: Any, message: str
) -> None:
    whole = fg.Graph.from_edges(*ends, vertex_count=4, directed=False)
    step = fg.trianglemap(function)

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole, cuts=[0, 2, 4], **options)
        values = dict.fromkeys(("least", "many"), fg.vertex_property(9))
        state = fg.State(graph, **values)
        with pytest.raises(fg.FeatGraphError, match=message):
            step(state, target="cpu")
        assert state["many"].tolist() == [9] * 4

    run_ranks(2, on_a_rank)


def test_different_graphs_are_refused_on_all_ranks() -> None:
    def on_a_rank(engine: Any) -> None:
        other = fg.Graph.from_edges([0, 1, 2, engine.rank], [1, 2, 3, 0])
        with pytest.raises(fg.GraphInputError, match="different graphs"):
            fg.distribute(other, cuts=[0, 2, 4])

    run_ranks(2, on_a_rank)


def _x(values: Any, **more: Any) -> dict[str, Any]:
    return {"x": fg.vertex_property(values, iterated=True, **more)}


#: Argument -> a State, or a call on one, that differs between ranks.
DIFFERENT: dict[str, Callable[[fg.Graph, int], Any]] = {
    "a = 1": lambda graph, rank: fg.State(graph, a=1 + rank, **_x(0)),
    "x = 2": lambda graph, rank: fg.State(graph, **_x(2 + rank)),
    r"x = \[5, ... 8\]": lambda graph, rank: fg.State(
        graph, **_x([5 + rank, 6, 7, 8 + rank])
    ),
    r"x = \[0.5, ... 0.5\]": lambda graph, rank: fg.State(
        graph, **_x(np.array([0.5, rank, 2.0, 0.5]))
    ),
    r"x = -1 at \[1\] with \[9\]": lambda graph, rank: fg.State(
        graph, **_x(-1, at=[1 + rank], entries=[9])
    ),
    r"b = \[1, 2\]": lambda graph, rank: fg.State(graph, b=[1, 2 + rank], **_x(0)),
    r"an active set = \[2\]": lambda graph, rank: _called(graph, active_in=[2 + rank]),
    "a = 4": lambda graph, rank: _assigned(graph, "a", 4 + rank),
}


def _called(graph: fg.Graph, **options: Any) -> fg.State:
    state = fg.State(graph, **_x(0))
    fg.foldmap(lowest, adopt)(state, target="cpu", **options)
    return state


def _assigned(graph: fg.Graph, name: str, value: Any) -> fg.State:
    state = fg.State(graph, a=0, **_x(0))
    state[name] = value
    return state


@pytest.mark.parametrize("given", DIFFERENT)
def test_different_values_are_refused_on_all_ranks(given: str) -> None:
    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(WHOLE, cuts=[0, 2, 4])
        assert DIFFERENT[given](graph, 0)["x"].size == 4  # alike
        with pytest.raises(fg.RankMismatchError, match="different values") as caught:
            DIFFERENT[given](graph, engine.rank)["x"]
        assert re.search(f"rank 0: {given}", str(caught.value))

    run_ranks(2, on_a_rank)


def test_what_is_rounded_differently_is_alike() -> None:
    def on_a_rank(engine: Any) -> list[float]:
        graph = fg.distribute(WHOLE, cuts=[0, 2, 4])
        x = np.array([0.1, 0.2, 0.3, np.nan]) * (1 + 1e-9 * engine.rank)
        state = fg.State(graph, a=1 / 3 + 1e-9 * engine.rank, **_x(x))
        return state["x"].round(6).tolist()

    first, second = run_ranks(2, on_a_rank)
    np.testing.assert_equal(first, second)


def test_one_rank_has_the_graph_itself() -> None:
    assert fg.distribute(WHOLE) is WHOLE
    assert run_ranks(1, lambda _: fg.distribute(WHOLE) is WHOLE) == [True]


def test_only_rows_that_changed_cross_a_link() -> None:
    """A wave along a path: a superstep sends at most a row, and its place."""
    count = 64 * 32
    path = fg.Graph.from_edges(np.arange(count - 1), np.arange(1, count))

    def on_a_rank(engine: Any) -> list[int]:
        graph = fg.distribute(path, cuts=[0, count // 2, count])
        values = np.arange(count)[::-1].copy()
        values[0] = -1
        state = fg.State(graph, x=fg.vertex_property(values, iterated=True))
        step(state)
        before = engine.traffic.copy()
        fg.iterate(step, state, active=[0], max_supersteps=10)
        return (engine.traffic - before).sent.tolist()

    [[_, there], [back, _]] = run_ranks(2, on_a_rank)
    # A count of 8 bytes each superstep, one more set of all vertices and its count.
    assert there <= back + 8 + 1
    assert back < 40 * 8


@fg.edge(exclusive=True)
def share(f, u, v, e, d):
    a = d.x[u]
    b = d.x[v]
    d.x[u] = b
    d.x[v] = a
    return True


def test_exclusive_functions_are_refused() -> None:
    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(WHOLE, cuts=[0, 2, 4])
        state = fg.State(graph, x=fg.vertex_property(np.arange(4)))
        for schedule in ("auto", "serial", "levels", "edge_locked", "ticketed"):
            with pytest.raises(fg.PlanError, match="both ends of an edge") as caught:
                fg.foldmap(share)(state, schedule=schedule)
            error = caught.value
            assert "share" in str(error.where)
            assert error.fix == "run it on a graph that is not distributed"
        assert state["x"].tolist() == [0, 1, 2, 3]

    run_ranks(2, on_a_rank)


def test_schedules_that_prepare_arrays_are_refused() -> None:
    def on_a_rank(engine: Any) -> None:
        state = make(fg.distribute(WHOLE, cuts=[0, 2, 4]))
        with pytest.raises(fg.PlanError, match="for a whole graph") as caught:
            step(state, target="cpu", schedule="ordered")
        error = caught.value
        assert "lowest" in error.where
        assert "'ordered' on several ranks" in error.got
        assert error.expected == "a graph that is not distributed"
        assert "schedule=" in error.fix
        assert state["x"].tolist() == [0, 1, 2, 3]
        step(state, target="cpu")
        assert state["x"].tolist() == [0, 0, 1, 2]

    with added(OrderedSchedule()):
        run_ranks(2, on_a_rank)
