"""What batches make due: runs that go on equal runs that begin anew (S12, rule 7)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from tests.dynamic.logged import Logged, drawn_batch

BIG = 1 << 20


@fg.gather(into="came", combine="sum")
def from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return (d.y[u] * 3 + 1) % 1009


@fg.gather(into="came", combine="sum", along="out")
def from_targets(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return (d.y[u] * 5 + 2) % 1009


@fg.gather(into="came", combine="sum", along="both")
def from_both(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.z[u] + 1


@fg.gather(into="came", combine="sum")
def by_weight(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e] * (d.y[u] + 1) % 1009


@fg.gather(into="came", combine="sum")
def by_degree(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.out_degree[u]


@fg.gather(into="came", combine="max", first=True)
def any_source(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return 1


@fg.gather(into="none", combine="max")
def none(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return 0


@fg.vertex
def take(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = (d.came[v] + v) % 1009
    d.y_next[v] = found
    return found != d.y[v]


@fg.vertex
def take_degree(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = d.in_degree[v] * 7 + d.out_degree[v]
    d.y_next[v] = found
    return found != d.y[v]


@fg.vertex
def take_counts(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    found = d.vertex_count * 100 + d.edge_count
    d.y_next[v] = found
    return found != d.y[v]


@fg.reduce(into="total", combine="sum")
def add_degrees(f, v, d):  # type: ignore[no-untyped-def]
    return d.in_degree[v] * v


@fg.vertex
def take_total(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.y_next[v] = d.total[0] + v
    return d.total[0] + v != d.y[v]


@fg.gather(into="low", combine="min", sources="active")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.y[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.y_next[v] = min(d.y[v], d.low[v])
    return d.low[v] < d.y[v]


@fg.edge
def lower(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return fg.atomic.min(d.y, v, d.y[u] + d.out_degree[v] * 0) > d.y[u]


@fg.edge
def show_degree(f, u, v, e, d):  # type: ignore[no-untyped-def]
    fg.atomic.max(d.y, u, d.in_degree[v])
    return False


@fg.triangle
def mark(u, v, w, e_uv, e_uw, e_vw, d):  # type: ignore[no-untyped-def]
    fg.atomic.max(d.y, u, 1)
    fg.atomic.max(d.y, v, 1)
    fg.atomic.max(d.y, w, 1)


#: Name -> foldmap, and the batches for which its results do not depend on the past.
PROGRAMS: dict[str, tuple[Any, str]] = {
    "in": (fg.foldmap(from_sources, take), "acyclic"),
    "out": (fg.foldmap(from_targets, take), "acyclic"),
    "both": (fg.foldmap(from_both, take), "any"),
    "first": (fg.foldmap(any_source, take), "any"),
    "weights": (fg.foldmap(by_weight, take), "acyclic"),
    "far degrees": (fg.foldmap(by_degree, take), "any"),
    "own degrees": (fg.vertexmap(take_degree), "any"),
    "counts": (fg.vertexmap(take_counts), "any"),
    "reduce": (fg.foldmap(add_degrees, take_total), "any"),
    "active": (fg.foldmap(lowest, adopt), "grows"),
    "edges": (fg.edgemap(lower), "grows"),
    "degrees at edges": (fg.edgemap(show_degree), "grows"),
    "triangles": (fg.trianglemap(mark), "simple"),
}
#: Those whose values begin as numbers of vertices, and not as 0.
DESCENDING = {"active", "edges"}
IN_PLACE = {"edges", "degrees at edges", "triangles"}
pytestmark = pytest.mark.filterwarnings("ignore::featgraph.StaleSourcesWarning")


def first_values(name: str, ids: Any) -> Any:
    """Return the values with which vertices begin."""
    return np.asarray(ids, np.int64) * (7919 if name in DESCENDING else 0) % 10007


def make_state(name: str, graph: fg.Graph) -> fg.State:
    """Return a State with values that depend on ids alone."""
    ids = np.arange(graph.vertex_count)
    y = first_values(name, ids)
    return fg.State(
        graph,
        y=fg.vertex_property(y, iterated=name not in IN_PLACE, fill=BIG),
        z=fg.vertex_property(ids % 1 + 3, fill=3),
        runs=fg.vertex_property(np.zeros(len(ids), np.int64)),
        w=weights_of(graph),
    )


def weights_of(graph: fg.Graph) -> Any:
    return fg.edge_property(graph.weights_as("int64"), copy=False)


def bind_weights(state: fg.State) -> None:
    """Have a State read the weights that its graph has now, as a column would."""
    if state.residency is not None:
        state.residency.leave()
    made = fg.State(state.graph, w=weights_of(state.graph))
    state._columns["w"] = made._columns["w"]


def drawn_graph(rng: np.random.Generator, kind: str) -> Logged:
    directed = kind != "simple" and bool(kind == "acyclic" or rng.random() < 0.7)
    graph = Logged(int(rng.choice([1, 20, 40])), directed=directed)
    for _ in range(3):
        graph.apply(**drawn_batch(rng, graph, kind))
    return graph


def go_on(name: str, state: fg.State, **options: Any) -> Any:
    """Go on with what batches have made due."""
    born = np.flatnonzero(state["y"] >= BIG)
    if PROGRAMS[name][1] in {"grows", "simple"}:
        state.put("y", born, first_values(name, born))
    bind_weights(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.ConvergenceWarning)
        return fg.iterate(PROGRAMS[name][0], state, target="cpu", **options)


def begin_anew(name: str, graph: Logged) -> Any:
    state = make_state(name, graph.fresh())
    fg.iterate(PROGRAMS[name][0], state, target="cpu")
    return state["y"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_that_go_on_equal_those_that_begin_anew(name: str) -> None:
    check_going_on(name)


def check_going_on(name: str, count: int = 100) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kind = PROGRAMS[name][1]
        graph = drawn_graph(rng, kind)
        state = make_state(name, graph)
        go_on(name, state)
        for _ in range(count // 4):
            for _ in range(int(rng.choice([1, 1, 3]))):
                graph.apply(**drawn_batch(rng, graph, kind))
            go_on(name, state)
            np.testing.assert_array_equal(state["y"], begin_anew(name, graph))
