"""Every algorithm on a graph with dead vertices, and on the graph without them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import getattr_static
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms as al
from featgraph.runtime.loops import worklist
from tests.dynamic.doubles import emptied, spread

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
#: Vertices that are living, among so many ids; edges that are drawn.
V, IDS, E = 45, 101, 110

DRAWN = np.random.default_rng(4)
#: The id of each vertex: 0 is dead, and so is the last one.
LIVING = np.sort(DRAWN.choice(np.arange(1, IDS - 1), V, replace=False))
ABOVE = np.triu_indices(V - 2, 1)  # the last two have no edges
PAIRS = DRAWN.permutation(len(ABOVE[0]))[:E]
ENDS = np.stack([ABOVE[0][PAIRS], ABOVE[1][PAIRS]])
ENDS[:, ::3] = ENDS[::-1, ::3]
WEIGHTS = DRAWN.integers(1, 6, E).astype(float)
TWO = DRAWN.integers(1, 5, (E, 2)).astype(float)
UNARY = DRAWN.random((V, 2)) + 1
ALIKE = np.array([[2.0, 1.0], [1.0, 2.0]])
SEEDS = np.where(np.arange(V) % 9 == 0, np.arange(V) % 3, -1)
ONE_HOT = np.eye(3)[SEEDS] * (SEEDS >= 0)[:, None]
HELD = np.where(np.arange(V) % 20 == 0, np.arange(V) * 1.0, np.nan)
HELD[-2:] = 1
FIRST = np.where(np.arange(V) < 5, 0.5, np.nan)[:, None]

#: Answers that are vertices.
VERTICES = {"parents", "predecessors", "sources", "vertices"}
#: Values of answers at dead vertices, if not 0.
FILLS = {
    ("bfs", "levels"): -1,
    ("bfs", "parents"): -1,
    ("sssp", "distances"): np.inf,
    ("sssp", "predecessors"): -1,
    ("sswp", "widths"): -np.inf,
    ("sswp", "predecessors"): -1,
    ("connected_components", "labels"): -1,
    ("strongly_connected_components", "labels"): -1,
    ("label_propagation", "labels"): -1,
    ("label_set_propagation", "labels"): -1,
}


class Side:
    """A graph and what is given for it: without dead vertices, or with them.

    Parameters
    ----------
    make : callable or None
        Makes the graph with dead vertices.
    """

    def __init__(self, make: Callable[..., fg.Graph] | None = None) -> None:
        self.make = make
        self.is_spread = make is not None
        self.ids = LIVING if self.is_spread else np.arange(V)

    def graph(self, *, directed: bool) -> fg.Graph:
        made = fg.Graph.from_edges(
            *ENDS, weights=WEIGHTS, vertex_count=V, directed=directed
        )
        return made if self.make is None else self.make(made, self.ids, IDS)

    def put(self, values: Any) -> Any:
        """Return values by id; dead vertices have some that would do harm."""
        if not self.is_spread:
            return values
        made = np.full((IDS, *values.shape[1:]), -9, values.dtype)
        made[::2] = np.inf if values.dtype.kind == "f" else 7
        made[self.ids] = values
        return made

    def vertices(self, *some: int) -> Any:
        return self.ids[list(some)]


#: Name -> edges or arcs, what else an algorithm is given, and what its verifier is:
#: answers ("." for the result) behind the other arguments, or in front of them.
CALLS: dict[str, tuple[str, Callable[[Side], Any], str]] = {
    "belief_propagation": (
        "edges", lambda s: ((s.put(UNARY), ALIKE), {"damping": 0.3}), "behind ."),
    "betweenness_centrality": ("arcs", lambda s: ((), {}), "behind centralities"),
    "betweenness_centrality ends": (
        "edges", lambda s: ((), {"weights": WEIGHTS, "endpoints": True}), ""),
    "betweenness_centrality some": (
        "edges", lambda s: ((), {"sources": s.vertices(3, 1, 8)}), ""),
    "betweenness_centrality drawn": (
        "arcs", lambda s: ((), {"samples": 7, "seed": 3, "normalized": False}), ""),
    "bfs": ("arcs", lambda s: ((s.vertices(0, 3),), {}), "behind levels parents"),
    "circuit_simulation": ("edges", lambda s: ((s.put(HELD),), {}), "before voltages"),
    "closeness_centrality": ("arcs", lambda s: ((), {}), "behind ."),
    "closeness_centrality weights": ("edges", lambda s: ((), {"weights": WEIGHTS}), ""),
    "closeness_centrality harmonic": (
        "arcs", lambda s: ((s.vertices(1, 4, 9),), {"batch": 2}), ""),
    "clustering": ("edges", lambda s: ((), {}), "behind coefficients"),
    "connected_components": (
        "arcs", lambda s: ((), {"method": "propagate"}), "behind labels"),
    "connected_components link": (
        "edges", lambda s: ((), {"method": "link"}), "behind labels"),
    "eigenvector_centrality": ("edges", lambda s: ((), {}), "behind centralities"),
    "heat_simulation": ("edges", lambda s: ((s.put(UNARY),), {"dt": 0.01}), "before ."),
    "hits": ("arcs", lambda s: ((), {"max_iter": 20}), "behind hubs authorities"),
    "k_core": ("edges", lambda s: ((), {}), "behind core_numbers"),
    "k_truss": ("edges", lambda s: ((), {}), "behind trussness"),
    "katz_centrality": ("arcs", lambda s: ((), {"alpha": 0.01}), ""),
    "label_propagation": (
        "edges", lambda s: ((s.put(SEEDS),), {"class_count": 3}),
        "behind distributions"),
    "label_set_propagation": (
        "edges",
        lambda s: ((s.put(np.stack([SEEDS, SEEDS[::-1]], 1)),), {"class_count": 3}),
        "behind distributions"),
    "multi_manifold_ranking": (
        "edges", lambda s: ((s.put(np.eye(V)[0]),), {"weights": TWO}), "behind scores"),
    "multimodal_learning": (
        "edges", lambda s: ((s.put(ONE_HOT),), {"weights": TWO}), "behind values"),
    "neural_network": (
        "arcs", lambda s: ((s.put(FIRST),), {"weights": WEIGHTS / 5, "bias": 0.1}),
        "before outputs"),
    "pagerank": ("arcs", lambda s: ((), {}), "behind ranks"),
    "pagerank seeds": (
        "arcs", lambda s: (
            (), {"personalization": s.put(UNARY), "dangling": "renormalize"}), ""),
    "pagerank_push": (
        "edges", lambda s: (
            (), {"personalization": s.put(UNARY), "epsilon": 1e-4}), ""),
    "pagerank_push uniform": ("arcs", lambda s: ((), {"epsilon": 1e-4}), "behind ."),
    "sssp": (
        "arcs", lambda s: ((s.vertices(0, 7),), {"weights": WEIGHTS}),
        "behind distances predecessors"),
    "sswp": (
        "arcs", lambda s: ((s.vertices(0),), {"weights": WEIGHTS}),
        "behind widths predecessors"),
    "strongly_connected_components": ("arcs", lambda s: ((), {}), "behind labels"),
    "triangle_count": ("edges", lambda s: ((), {}), "behind triangles"),
}  # fmt: skip


def call(name: str, side: Side, **options: Any) -> Any:
    """Run an algorithm on one of both graphs."""
    kind, find, _ = CALLS[name]
    args, given = find(side)
    run = getattr(al, name.split()[0])
    return run(side.graph(directed=kind == "arcs"), *args, **given | options)


def check_claims(name: str, side: Side, found: Any) -> None:
    """Have the verifier look at an answer, if it takes what the call was given."""
    kind, find, claimed = CALLS[name]
    if not claimed:
        return
    place, *names = claimed.split()
    args, given = find(side)
    answers = [found if each == "." else getattr(found, each) for each in names]
    args = [*args, *answers] if place == "behind" else [*answers, *args]
    short = name.split()[0]
    verify = getattr(sys.modules[getattr(al, short).__module__], f"verify_{short}")
    given |= {"tol": 1e-2} if name == "hits" else {}
    shared = inspect.signature(verify).parameters.keys() & given.keys()
    graph = side.graph(directed=kind == "arcs")
    verify(graph, *args, **{option: given[option] for option in shared})


#: Algorithms of matrices and factor graphs, which have no dead vertices.
WITHOUT = {
    "als", "factor_propagation", "gradient_factorization", "sgd_factorization",
}  # fmt: skip


def test_every_algorithm_has_a_call() -> None:
    public = {n for n in al.__all__ if inspect.isfunction(getattr(al, n))}
    assert {name.split()[0] for name in CALLS} | WITHOUT == public


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
    found = call(name, Side(make), target=target)
    wanted = call(name, Side(), target=target)
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
    check_claims(name, Side(emptied), found)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", ["bfs", "sssp", "sswp", "k_core"])
def test_loops_over_few_vertices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklist, "SMALLEST_GRAPH", 0)
    monkeypatch.setattr(worklist, "MOST_EDGES", 1)
    check_dead(name, "cpu")


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("label_propagation", {"change_driven": True}),
        ("connected_components", {"asynchronous": True}),
        ("connected_components", {"change_driven": True}),
    ],
)
def test_options_of_runs(name: str, options: dict[str, Any]) -> None:
    found = call(name, Side(emptied), target="cpu", **options)
    wanted = call(name, Side(), target="cpu", **options)
    is_vertex = name == "connected_components"
    check_same(found.labels[LIVING], wanted.labels, name, is_vertex=is_vertex)
