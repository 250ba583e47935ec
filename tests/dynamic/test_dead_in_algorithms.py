"""Every algorithm on a graph with dead vertices, and on the graph without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import getattr_static
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms as al
from featgraph.runtime.loops import worklist
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
from tests.dynamic.doubles import emptied, spread
from tests.dynamic.reached import verify

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")

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


@pytest.mark.drawn(11)
@pytest.mark.parametrize("name", CALLS)
def test_dead_vertices_change_no_answer(name: str) -> None:
    found = check_dead(name, "cpu")
    if name not in MORE:
        claimed = (put(value, emptied) for value in CASES[name].claimed(found))
        verify(name, options_of(name, emptied), *claimed)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", ["bfs", "sssp", "sswp", "k_core"])
def test_loops_over_few_vertices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklist, "SMALLEST_GRAPH", 0)
    monkeypatch.setattr(worklist, "MOST_EDGES", 1)
    check_dead(name, "cpu")
