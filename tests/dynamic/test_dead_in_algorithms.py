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
HELD = np.where(np.arange(V) % 20 == 0, np.arange(V) * 1.0, np.nan)
HELD[-2:] = 1
FIRST = np.where(np.arange(V) < 5, 0.5, np.nan)[:, None]

#: Answers that are vertices.
VERTICES = {"parents", "predecessors", "sources", "vertices"}
#: What answers have for dead vertices, if not 0.
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

    @property
    def arcs(self) -> fg.Graph:
        return self.graph(directed=True)

    @property
    def edges(self) -> fg.Graph:
        return self.graph(directed=False)

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


Call = Callable[..., Any]
CALLS: dict[str, Call] = {
    "belief_propagation": lambda s, **o: al.belief_propagation(
        s.edges, s.put(UNARY), ALIKE, damping=0.3, **o
    ),
    "betweenness_centrality": lambda s, **o: al.betweenness_centrality(s.arcs, **o),
    "betweenness_centrality ends": lambda s, **o: al.betweenness_centrality(
        s.edges, weights=WEIGHTS, endpoints=True, **o
    ),
    "betweenness_centrality some": lambda s, **o: al.betweenness_centrality(
        s.edges, sources=s.vertices(3, 1, 8), **o
    ),
    "betweenness_centrality drawn": lambda s, **o: al.betweenness_centrality(
        s.arcs, samples=7, seed=3, normalized=False, **o
    ),
    "bfs": lambda s, **o: al.bfs(s.arcs, s.vertices(0, 3), **o),
    "circuit_simulation": lambda s, **o: al.circuit_simulation(
        s.edges, s.put(HELD), **o
    ),
    "closeness_centrality": lambda s, **o: al.closeness_centrality(s.arcs, **o),
    "closeness_centrality weights": lambda s, **o: al.closeness_centrality(
        s.edges, weights=WEIGHTS, **o
    ),
    "closeness_centrality harmonic": lambda s, **o: al.closeness_centrality(
        s.arcs, s.vertices(1, 4, 9), batch=2, **o
    ),
    "clustering": lambda s, **o: al.clustering(s.edges, **o),
    "connected_components": lambda s, **o: al.connected_components(
        s.arcs, method="propagate", **o
    ),
    "connected_components link": lambda s, **o: al.connected_components(
        s.edges, method="link", **o
    ),
    "eigenvector_centrality": lambda s, **o: al.eigenvector_centrality(s.edges, **o),
    "heat_simulation": lambda s, **o: al.heat_simulation(
        s.edges, s.put(UNARY), dt=0.01, **o
    ),
    "hits": lambda s, **o: al.hits(s.arcs, max_iter=20, **o),
    "k_core": lambda s, **o: al.k_core(s.edges, **o),
    "k_truss": lambda s, **o: al.k_truss(s.edges, **o),
    "katz_centrality": lambda s, **o: al.katz_centrality(s.arcs, alpha=0.01, **o),
    "label_propagation": lambda s, **o: al.label_propagation(
        s.edges, s.put(SEEDS), class_count=3, **o
    ),
    "label_set_propagation": lambda s, **o: al.label_set_propagation(
        s.edges, s.put(np.stack([SEEDS, SEEDS[::-1]], axis=1)), class_count=3, **o
    ),
    "multi_manifold_ranking": lambda s, **o: al.multi_manifold_ranking(
        s.edges, s.put(np.eye(V)[0]), weights=TWO, **o
    ),
    "multimodal_learning": lambda s, **o: al.multimodal_learning(
        s.edges, s.put(np.eye(3)[SEEDS] * (SEEDS >= 0)[:, None]), weights=TWO, **o
    ),
    "neural_network": lambda s, **o: al.neural_network(
        s.arcs, s.put(FIRST), weights=WEIGHTS / 5, bias=0.1, **o
    ),
    "pagerank": lambda s, **o: al.pagerank(s.arcs, **o),
    "pagerank seeds": lambda s, **o: al.pagerank(
        s.arcs, personalization=s.put(UNARY), dangling="renormalize", **o
    ),
    "pagerank_push": lambda s, **o: al.pagerank_push(
        s.edges, personalization=s.put(UNARY), epsilon=1e-4, **o
    ),
    "pagerank_push uniform": lambda s, **o: al.pagerank_push(
        s.arcs, epsilon=1e-4, **o
    ),
    "sssp": lambda s, **o: al.sssp(s.arcs, s.vertices(0, 7), weights=WEIGHTS, **o),
    "sswp": lambda s, **o: al.sswp(s.arcs, s.vertices(0), weights=WEIGHTS, **o),
    "strongly_connected_components": lambda s, **o: (
        al.strongly_connected_components(s.arcs, **o)
    ),
    "triangle_count": lambda s, **o: al.triangle_count(s.edges, **o),
}  # fmt: skip
#: What matrices are factorised, and factor graphs, have no dead vertices.
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
    found = CALLS[name](Side(make), target=target)
    wanted = CALLS[name](Side(), target=target)
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


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", CALLS)
def test_dead_vertices_change_no_answer(name: str) -> None:
    found = check_dead(name, "cpu")
    short = name.split()[0]
    if name in CLAIMS:
        verify = getattr(sys.modules[getattr(al, short).__module__], f"verify_{short}")
        CLAIMS[name](verify, Side(emptied), found)


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
    found = CALLS[name](Side(emptied), target="cpu", **options)
    wanted = CALLS[name](Side(), target="cpu", **options)
    is_vertex = name == "connected_components"
    check_same(found.labels[LIVING], wanted.labels, name, is_vertex=is_vertex)


#: What the verifiers are given.
CLAIMS: dict[str, Call] = {
    "belief_propagation": lambda f, s, r: f(
        s.edges, s.put(UNARY), ALIKE, r, damping=0.3
    ),
    "betweenness_centrality": lambda f, s, r: f(s.arcs, r.centralities),
    "bfs": lambda f, s, r: f(s.arcs, s.vertices(0, 3), r.levels, r.parents),
    "circuit_simulation": lambda f, s, r: f(s.edges, r.voltages, s.put(HELD)),
    "closeness_centrality": lambda f, s, r: f(s.arcs, r),
    "clustering": lambda f, s, r: f(s.edges, r.coefficients),
    "connected_components": lambda f, s, r: f(s.arcs, r.labels),
    "connected_components link": lambda f, s, r: f(s.edges, r.labels),
    "eigenvector_centrality": lambda f, s, r: f(s.edges, r.centralities),
    "heat_simulation": lambda f, s, r: f(s.edges, r, s.put(UNARY)),
    "hits": lambda f, s, r: f(s.arcs, r.hubs, r.authorities, tol=1e-2),
    "k_core": lambda f, s, r: f(s.edges, r.core_numbers),
    "k_truss": lambda f, s, r: f(s.edges, r.trussness),
    "label_propagation": lambda f, s, r: f(
        s.edges, s.put(SEEDS), r.distributions, class_count=3
    ),
    "label_set_propagation": lambda f, s, r: f(
        s.edges,
        s.put(np.stack([SEEDS, SEEDS[::-1]], axis=1)),
        r.distributions,
        class_count=3,
    ),
    "multi_manifold_ranking": lambda f, s, r: f(
        s.edges, s.put(np.eye(V)[0]), r.scores, weights=TWO
    ),
    "multimodal_learning": lambda f, s, r: f(
        s.edges, s.put(np.eye(3)[SEEDS] * (SEEDS >= 0)[:, None]), r.values, weights=TWO
    ),
    "neural_network": lambda f, s, r: f(
        s.arcs, r.outputs, s.put(FIRST), weights=WEIGHTS / 5, bias=0.1
    ),
    "pagerank": lambda f, s, r: f(s.arcs, r.ranks),
    "pagerank_push uniform": lambda f, s, r: f(s.arcs, r, epsilon=1e-4),
    "sssp": lambda f, s, r: f(
        s.arcs, s.vertices(0, 7), r.distances, r.predecessors, weights=WEIGHTS
    ),
    "sswp": lambda f, s, r: f(
        s.arcs, s.vertices(0), r.widths, r.predecessors, weights=WEIGHTS
    ),
    "strongly_connected_components": lambda f, s, r: f(s.arcs, r.labels),
    "triangle_count": lambda f, s, r: f(s.edges, r.triangles),
}
