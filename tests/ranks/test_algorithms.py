"""Algorithms on several ranks, unchanged: by their verifiers, and as on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms as al
from featgraph.algorithms.bfs import verify_bfs
from featgraph.algorithms.clustering import verify_clustering
from featgraph.algorithms.connected_components import verify_connected_components
from featgraph.algorithms.eigenvector_centrality import verify_eigenvector_centrality
from featgraph.algorithms.hits import verify_hits
from featgraph.algorithms.k_truss import verify_k_truss
from featgraph.algorithms.pagerank import verify_pagerank
from featgraph.algorithms.sssp import verify_sssp
from featgraph.algorithms.triangle_count import verify_triangle_count
from featgraph.distributed import run_ranks

V, E = 203, 900
LABELS = np.where(np.arange(V) % 10 == 0, np.arange(V) % 3, -1)


@dataclass(frozen=True)
class Case:
    """An algorithm, and what of its result is compared.

    Attributes
    ----------
    reads : tuple of str
        Answers.
    verify : callable
        Takes the whole graph and these.
    directed : tuple of bool
        For which graphs it runs on ranks.
    is_simple : bool
        Whether these have no loops and no parallel edges.
    """

    run: Callable[..., Any]
    reads: tuple[str, ...]
    verify: Callable[..., None]
    directed: tuple[bool, ...] = (False, True)
    is_simple: bool = False


CASES = {
    "components": Case(partial(al.connected_components, method="propagate"),
                       ("labels", "count"),
                       lambda g, *a: verify_connected_components(g, a[0])),
    "bfs": Case(partial(al.bfs, sources=[3, 7]), ("levels", "parents"),
                lambda g, *a: verify_bfs(g, [3, 7], *a)),
    "sssp": Case(partial(al.sssp, sources=5), ("distances", "predecessors"),
                 lambda g, *a: verify_sssp(g, 5, *a)),
    "pagerank": Case(partial(al.pagerank, weights=None), ("ranks",),
                     verify_pagerank),
    "betweenness": Case(partial(al.betweenness_centrality, sources=[0, 3]),
                        ("centralities",), lambda g, *a: None),
    "eigenvector": Case(al.eigenvector_centrality, ("centralities",),
                        lambda g, *a: verify_eigenvector_centrality(g, *a)),
    "hits": Case(al.hits, ("hubs", "authorities"), verify_hits),
    "label_propagation": Case(partial(al.label_propagation, labels=LABELS),
                              ("distributions", "labels"), lambda g, *a: None),
    "triangles": Case(al.triangle_count, ("triangles",),
                      verify_triangle_count, (False,), is_simple=True),
    "clustering": Case(al.clustering, ("coefficients",),
                       verify_clustering, (False,), is_simple=True),
    "trusses": Case(al.k_truss, ("trussness", "edges"),
                    lambda g, *a: verify_k_truss(g, a[0]), (False,), is_simple=True),
}  # fmt: skip


def make_graph(directed: bool, is_simple: bool = False) -> fg.Graph:
    rng = np.random.default_rng(0)
    sources, targets = rng.integers(0, V, (2, E))
    if is_simple:
        ends = np.sort([sources, targets], axis=0)
        sources, targets = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    weights = rng.random(sources.size) + 0.125
    return fg.Graph.from_edges(
        sources, targets, vertex_count=V, directed=directed, weights=weights
    )


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("name", "directed"), [(n, d) for n, case in CASES.items() for d in case.directed]
)
def test_an_algorithm_runs_on_ranks(target: str, name: str, directed: bool) -> None:
    case = CASES[name]
    whole = make_graph(directed, case.is_simple)

    def answers(graph: fg.Graph) -> list[Any]:
        result = case.run(graph, target=target)
        return [result.supersteps, *(getattr(result, name) for name in case.reads)]

    alone = answers(whole)
    # On a GPU pushed sums have other bits each time, and residuals with them.
    most, rtol = (0, 1e-6) if target == "cpu" else (1, 1e-4)
    for ranks in (2, 3):
        for found in run_ranks(ranks, lambda _: answers(fg.distribute(whole))):
            assert abs(found[0] - alone[0]) <= most
            for one, other in zip(found[1:], alone[1:], strict=True):
                np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)
            case.verify(whole, *found[1:])


def test_components_choose_what_runs_on_ranks() -> None:
    whole = make_graph(directed=True)
    alone = al.connected_components(whole)

    def on_a_rank(engine: Any) -> None:
        found = al.connected_components(fg.distribute(whole))
        assert found.count == alone.count
        assert np.array_equal(found.labels, alone.labels)

    run_ranks(2, on_a_rank)


def test_ranks_agree_whether_a_vertex_dangles() -> None:
    path = fg.Graph.from_edges(np.arange(63), np.arange(1, 64))  # the last one does
    alone = al.pagerank(path, target="cpu").ranks

    def on_a_rank(engine: Any) -> list[Any]:
        graph = fg.distribute(path, cuts=[0, 32, 64])
        return [al.pagerank(graph, target="cpu").ranks for _ in range(2)]

    for first, again in run_ranks(2, on_a_rank):
        np.testing.assert_array_equal(first, alone)
        np.testing.assert_array_equal(again, alone)
