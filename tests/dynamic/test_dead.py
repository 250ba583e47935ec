"""Dead vertices: they are in no set, no reduce, and nothing counts them (S12).

Every algorithm runs on a graph with dead vertices, and on the graph without them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from inspect import getattr_static
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms as al
from featgraph.graph.views.view import VertexSet
from featgraph.networkx import NetworkXGraph
from featgraph.program import given
from featgraph.program.active import pack_mask
from featgraph.runtime.loops import worklist
from featgraph.runtime.memory import graph_arrays
from tests.algorithms.test_smoke import (
    ARCS,
    CASES,
    GRAPH,
    HELD,
    LABELS,
    LENGTHS,
    SOURCES,
    TARGETS,
    UNARY,
    E,
    V,
)
from tests.dynamic.reached import emptied, spread, verify, with_dead

may_end_early = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
IDS, DRAWN = 101, np.random.default_rng(4)
#: The id of each living vertex: 0 is dead, and so is the last one.
LIVING = np.sort(DRAWN.choice(np.arange(1, IDS - 1), V, replace=False))
#: Living vertices without edges, and the edges that are left.
ALONE = [11, 21]
LEFT = ~np.isin([SOURCES, TARGETS], ALONE).any(axis=0)
ENDS = np.stack([SOURCES, TARGETS])[:, LEFT]
ENDS[:, ::3] = ENDS[::-1, ::3]
WEIGHTS = DRAWN.integers(1, 6, E)[LEFT].astype(float)

#: Answers that are vertices.
VERTICES = {"parents", "predecessors", "sources", "vertices"}
#: Values of answers at dead vertices, if not 0.
FILLS = {
    ("bfs", "levels"): -1, ("bfs", "parents"): -1,
    ("sssp", "distances"): np.inf, ("sssp", "predecessors"): -1,
    ("sswp", "widths"): -np.inf, ("sswp", "predecessors"): -1,
    ("connected_components", "labels"): -1,
    ("strongly_connected_components", "labels"): -1,
    ("label_propagation", "labels"): -1, ("label_set_propagation", "labels"): -1,
}  # fmt: skip
#: Algorithm and variant -> arguments and options, of other cases than the smallest.
MORE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "betweenness_centrality ends": ((GRAPH,), {"weights": LENGTHS, "endpoints": True}),
    "betweenness_centrality some": ((GRAPH,), {"sources": [3, 1, 8]}),
    "betweenness_centrality drawn": (
        (ARCS,), {"samples": 7, "seed": 3, "normalized": False}),
    "bfs two": ((ARCS, [0, 3]), {}),
    "closeness_centrality weights": ((GRAPH,), {"weights": LENGTHS}),
    "closeness_centrality harmonic": ((ARCS, [1, 4, 9]), {"batch": 2}),
    "connected_components propagate": ((ARCS,), {"method": "propagate"}),
    "connected_components link": ((GRAPH,), {"method": "link"}),
    "connected_components asynchronous": ((GRAPH,), {"asynchronous": True}),
    "connected_components driven": ((ARCS,), {"change_driven": True}),
    "label_propagation driven": ((GRAPH, LABELS), {"change_driven": True}),
    "neural_network bias": ((ARCS, HELD), {"weights": LENGTHS / 9, "bias": 0.1}),
    "pagerank seeds": (
        (ARCS,), {"personalization": UNARY, "dangling": "renormalize"}),
    "pagerank_push seeds": ((GRAPH,), {"personalization": UNARY, "epsilon": 1e-4}),
    "pagerank_push uniform": ((ARCS,), {"epsilon": 1e-4}),
    "sssp two": ((ARCS, [0, 7]), {}),
}  # fmt: skip
CALLS = MORE | {
    name: (case.given, case.options) for name, case in CASES.items()
    if any(isinstance(value, fg.Graph) for value in case.given)
}  # fmt: skip

Make = Callable[..., fg.Graph] | None


def put(value: Any, make: Make) -> Any:
    """Return an argument for the graph, with dead vertices if `make` makes those.

    They have values that would do harm.
    """
    if isinstance(value, fg.Graph):
        graph = fg.Graph.from_edges(
            *ENDS, weights=WEIGHTS, vertex_count=V, directed=value.directed
        )
        return graph if make is None else make(graph, LIVING, IDS)
    if isinstance(value, int | list):
        return value if make is None else LIVING[value]
    if np.shape(value)[:1] == (E,):
        return value[LEFT]
    if np.shape(value)[:1] != (V,):
        return value
    value = value.copy()
    value[ALONE] = np.nan_to_num(value[ALONE])  # no edge leads to another value
    if make is None:
        return value
    made = np.full((IDS, *value.shape[1:]), -9, value.dtype)
    made[::2] = np.inf if value.dtype.kind == "f" else 7
    made[LIVING] = value
    return made


def options_of(name: str, make: Make) -> dict[str, Any]:
    is_mapped = (list, np.ndarray)
    return {
        key: put(value, make) if isinstance(value, is_mapped) else value
        for key, value in CALLS[name][1].items()
    }


def call(name: str, make: Make, **options: Any) -> Any:
    """Run an algorithm on one of both graphs."""
    run = getattr(al, name.split()[0])
    args = (put(value, make) for value in CALLS[name][0])
    return run(*args, **options_of(name, make) | options)


def check_same(found: Any, wanted: Any, name: str, *, is_vertex: bool) -> None:
    """Compare an answer, or what else a result has, with the ids mapped."""
    if isinstance(wanted, np.ndarray | float | int | np.generic):
        wanted = np.asarray(wanted)
        assert np.shape(found) == wanted.shape, name
        if is_vertex:
            wanted = np.where(wanted < 0, wanted, LIVING[np.maximum(wanted, 0)])
        if wanted.dtype.kind == "f":
            # Reduces are rounded in another order; residuals are differences.
            eps = 200 * float(np.finfo(wanted.dtype).eps)
            eps = 1e-3 if name == "residuals" else eps
            np.testing.assert_allclose(found, wanted, eps, eps, err_msg=name)
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=name)


def check_dead(name: str, target: str) -> Any:
    """Run an algorithm on both graphs; return the result with dead vertices."""
    make = emptied if target == "cpu" else spread
    found = call(name, make, target=target)
    wanted = call(name, None, target=target)
    assert found.converged == wanted.converged
    for field in fields(wanted):
        if field.name in {"run", "vertex_names"}:
            continue
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        declared = getattr_static(type(wanted), field.name, None)
        if getattr(declared, "is_per_vertex", False):
            assert len(ours) == IDS, field.name
            is_dead = np.ones(IDS, np.bool_)
            is_dead[LIVING] = False
            fill = FILLS.get((name.split()[0], field.name), 0)
            np.testing.assert_array_equal(ours[is_dead], fill, err_msg=field.name)
            ours = ours[LIVING]
        is_label = field.name == "labels" and "components" in name
        is_vertex = is_label or field.name in VERTICES
        check_same(ours, theirs, field.name, is_vertex=is_vertex)
    return found


@may_end_early
@pytest.mark.drawn(11)
@pytest.mark.parametrize("name", CALLS)
def test_dead_vertices_change_no_answer(name: str) -> None:
    found = check_dead(name, "cpu")
    if name not in MORE:
        claimed = (put(value, emptied) for value in CASES[name].claimed(found))
        verify(name, options_of(name, emptied), *claimed)


@may_end_early
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", ["bfs", "sssp", "sswp", "k_core"])
def test_loops_over_few_vertices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklist, "SMALLEST_GRAPH", 0)
    monkeypatch.setattr(worklist, "MOST_EDGES", 1)
    check_dead(name, "cpu")


# -- sets, reduces and States


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.vertex
def count_all(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v] = d.living_count * 100 + d.vertex_count
    return True


@fg.reduce(into="total", combine="sum")
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v]


@fg.reduce(into="number", combine="sum")
def count(f, v, d):  # type: ignore[no-untyped-def]
    return 1


counted = fg.foldmap(count_all, add_up, count)


def path() -> fg.Graph:
    """Return 0 - 2 - 3 - 5 of 70 ids, of which 9 and 66 are living, too."""
    graph = fg.Graph.from_edges([0, 2, 3], [2, 3, 5], vertex_count=70, directed=False)
    living = np.zeros(70, np.bool_)
    living[[0, 2, 3, 5, 9, 66]] = True
    return with_dead(graph, living)


def test_counts_reduces_and_commits_are_over_the_living() -> None:
    graph = path()
    assert (graph.vertex_count, graph.living_count) == (70, 6)
    assert fg.Graph.from_edges([0], [1]).living_count == 2
    assert len(fg.ActiveSet(graph, "all")) == 6
    state = fg.State(graph, x=fg.vertex_property(np.full(70, 5)))
    assert state["x"].sum() == 30
    passed = counted(state, target="cpu")
    assert passed.vertices.tolist() == [0, 2, 3, 5, 9, 66]
    x = np.where(graph.living, 670, 0)
    np.testing.assert_array_equal(state["x"], x)
    assert state["total"].tolist() == [x.sum()]
    assert state["number"].tolist() == [6]
    given = np.ones(70, np.bool_)
    assert len(counted(state, active_in=given, target="cpu")) == 6
    some = counted.on([1, 2, 9])
    assert some(state, target="cpu").vertices.tolist() == [2, 9]
    assert state["number"].tolist() == [2]


def grid(count: int = 40) -> fg.DynamicGraph:
    """Return a path with both directions, of so many vertices."""
    first = np.arange(count - 1)
    return fg.DynamicGraph.from_edges(first, first + 1, directed=False, target="cpu")


@fg.vertex
def grow(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.x[v, f] + 1
    return True


@fg.reduce(into="total", combine="sum")
def sum_of_next(f, v, d):  # type: ignore[no-untyped-def]
    return d.x_next[v, f]


@fg.reduce(into="least", combine="min")
def least_living(f, v, d):  # type: ignore[no-untyped-def]
    return v


growing = fg.foldmap(grow, sum_of_next, least_living)


def check_deaths() -> None:
    """Both buffers of a State have `fill` where vertices have died."""
    graph = grid()
    x = np.repeat(np.arange(40)[:, None], 2, axis=1)
    state = fg.State(
        graph, x=fg.vertex_property(x, iterated=True, dtype=np.int64, fill=[-7, -8])
    )
    expected, dead = x.copy(), np.zeros(40, np.bool_)
    for ids in ([], [3, 33], [0, 38]):
        graph.delete_vertices(ids)
        dead[ids], expected[ids] = True, (-7, -8)
        for _ in range(3):
            passed = growing(state, target="cpu")
            expected[~dead] += 1
            np.testing.assert_array_equal(passed.mask, ~dead)
            np.testing.assert_array_equal(state["x"], expected)
            np.testing.assert_array_equal(np.asarray(state.view("x")), expected)
            total = expected[~dead].sum(axis=0)
            np.testing.assert_array_equal(state["total"], total)
        assert state["least"].tolist() == [np.argmin(dead)]
    state["x"] = np.ones((40, 2), np.int64)
    assert state["x"].sum() == 36 * 2 - 4 * 15
    born = graph.insert_vertices(3).vertices  # ids come in the order of deletion
    assert born.tolist() == [3, 33, 0]
    growing(state, target="cpu")
    assert state["x"][[3, 33, 0, 38]].tolist() == [[-6, -7]] * 3 + [[-7, -8]]


def test_what_on_has_left_out_of_the_dead() -> None:
    graph = grid()
    state = fg.State(graph, x=fg.vertex_property(np.zeros(40)))
    some = counted.on(np.arange(10))
    assert len(some(state, target="cpu")) == 10
    graph.delete_vertices([4, 20])
    assert len(some(state, target="cpu")) == 9
    assert state["number"].tolist() == [9]
    assert fg.ActiveSet(graph, [3, 4, 20]).vertices.tolist() == [3]


@pytest.mark.filterwarnings("ignore::featgraph.StaleSourcesWarning")
def test_a_run_goes_on_where_vertices_die_within() -> None:
    graph = grid()
    label = np.arange(40, dtype=np.int32)
    state = fg.State(graph, label=fg.vertex_property(label, iterated=True, fill=-1))

    def kill(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 5:
            graph.delete_vertices([20])

    ran = fg.iterate(fg.foldmap(lowest, adopt), state, callback=kill, target="cpu")
    assert ran.converged
    expected = np.zeros(40)
    expected[20], expected[21:] = -1, 16  # 21 has heard of 16 by then
    np.testing.assert_array_equal(state["label"], expected)


def test_no_vertex_lives() -> None:
    graph = grid(5)
    graph.delete_vertices(np.arange(5))
    state = fg.State(graph, x=fg.vertex_property(1.0, iterated=True, shape=(1,)))
    ran = fg.iterate(growing, state, target="cpu", max_supersteps=9)
    assert ran.converged
    assert sum(ran.active_counts) == 0
    assert state["x"].ravel().tolist() == [0.0] * 5
    for verb in (al.pagerank, al.connected_components):
        found = verb(graph, target="cpu")
        assert found.converged


def test_networkx_gets_no_dead_vertices() -> None:
    graph = grid(6)
    graph.delete_vertices([2])
    for made in (graph.to_networkx(), NetworkXGraph.from_graph(graph)):
        assert list(made) == [0, 1, 3, 4, 5]


def test_dead_vertices_are_refused() -> None:
    graph = path()
    state = fg.State(graph, x=fg.vertex_property(np.zeros(70)))
    with pytest.raises(fg.GraphInputError, match="the vertex was deleted"):
        state.put("x", [3, 4], 1.0)
    with pytest.raises(fg.GraphInputError, match=r"sources\[1\]: the vertex was del"):
        al.bfs(graph, [3, 4], target="cpu")


@pytest.mark.parametrize("fault", ["", "stale", "everyone", "states"])
def test_a_state_follows_deaths(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a planted fault is caught."""
    if fault == "stale":
        has_none = property(lambda _: False, lambda *_: None)
        monkeypatch.setattr(VertexSet, "has_dead", has_none)
    elif fault == "everyone":
        monkeypatch.setattr(
            graph_arrays, "pack_mask", lambda mask: pack_mask(np.ones_like(mask))
        )
    elif fault:
        monkeypatch.setattr(given, "_without_dead", lambda living, values, fill: values)
    with pytest.raises(AssertionError) if fault else nullcontext():
        check_deaths()
