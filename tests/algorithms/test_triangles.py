"""Triangle counts, clustering and trusses against networkx and SciPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from featgraph.algorithms._verify import triangles_of
from featgraph.algorithms.clustering import clustering, verify_clustering
from featgraph.algorithms.k_truss import k_truss, verify_k_truss
from featgraph.algorithms.triangle_count import triangle_count, verify_triangle_count
from tests.reference.test_triangles import simple_graphs

ALGORITHMS = (triangle_count, clustering, k_truss)


def peer_of(graph: fg.Graph) -> nx.Graph:
    made = nx.Graph()
    made.add_nodes_from(range(graph.vertex_count))
    made.add_edges_from(
        zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    )
    return made


def without_loops(graph: fg.Graph) -> fg.Graph:
    apart = graph.sources != graph.targets
    ends = graph.sources[apart], graph.targets[apart]
    return fg.Graph.from_edges(*ends, vertex_count=graph.vertex_count, directed=False)


def random_graph(rng: np.random.Generator, count: int, mean: float) -> fg.Graph:
    """Ends drawn so that some vertices have many edges."""
    ends = (count * rng.random((2, int(count * mean / 2))) ** 3).astype(int)
    return fg.Graph.from_edges(
        *ends, vertex_count=count, directed=False, duplicates="first"
    )


@settings(max_examples=20)
@given(simple_graphs())
def test_counts_and_coefficients_are_those_of_networkx(
    target: str, graph: fg.Graph
) -> None:
    peer, order = peer_of(graph), range(graph.vertex_count)
    result = triangle_count(graph, target=target)
    counts = nx.triangles(peer)
    assert result.triangles.tolist() == [counts[v] for v in order]
    assert result.total == sum(counts.values()) // 3
    assert result.converged
    assert result.supersteps == 1
    verify_triangle_count(graph, result.triangles)
    found = clustering(graph, target=target)
    coefficients = nx.clustering(peer)
    assert found.coefficients.tolist() == [coefficients[v] for v in order]
    assert found.average == pytest.approx(nx.average_clustering(peer), rel=1e-12)
    assert found.transitivity == pytest.approx(nx.transitivity(peer), rel=1e-12)
    assert found.triangles.tolist() == result.triangles.tolist()
    verify_clustering(graph, found.coefficients)


@settings(max_examples=20)
@given(simple_graphs(most=20))
def test_trusses_are_those_of_networkx(target: str, graph: fg.Graph) -> None:
    graph = without_loops(graph)
    result = k_truss(graph, target=target)
    verify_k_truss(graph, result.trussness)
    assert result.converged
    peer = peer_of(graph)
    ends = np.stack([graph.sources, graph.targets], axis=1)
    for k in range(2, result.k + 2):
        expected = {frozenset(e) for e in nx.k_truss(peer, k).edges}
        inside = ends[result.trussness >= k].tolist()
        assert {frozenset(e) for e in inside} == expected
    if graph.given_edge_count:
        assert result.edges.size > 0
        again = k_truss(graph, result.k, target=target)
        assert again.edges.tolist() == result.edges.tolist()


def test_larger_graphs_against_sparse_products(
    target: str, rng: np.random.Generator
) -> None:
    graph = random_graph(rng, 3000, 60)
    A = without_loops(graph).to_scipy()
    A.data[:] = 1
    paths = (A @ A).multiply(A)
    expected = np.asarray(paths.sum(axis=1)).ravel().astype(np.int64) // 2
    result = triangle_count(graph, target=target)
    assert result.triangles.tolist() == expected.tolist()
    assert result.total > 100_000
    found = clustering(graph, dtype=np.float32, target=target)
    assert found.coefficients.dtype == np.float32
    verify_clustering(graph, found.coefficients)


def test_trusses_of_a_larger_graph(target: str, rng: np.random.Generator) -> None:
    graph = without_loops(random_graph(rng, 600, 30))
    result = k_truss(graph, target=target)
    assert result.k > 6
    verify_k_truss(graph, result.trussness)


def test_both_directions_fall_with_the_edge(target: str) -> None:
    """A strip of 59 triangles: the outer edges have one, and all fall for k = 3."""
    first = np.arange(60)
    sources = np.concatenate([first, first[:-1]])
    ends = sources, np.concatenate([first + 1, first[:-1] + 2])
    result = k_truss(fg.Graph.from_edges(*ends, directed=False), target=target)
    assert set(result.trussness.tolist()) == {3}
    assert result.supersteps <= 5


def test_counts_of_people(target: str, data_dir: Path) -> None:
    graph = fg.read_edge_list(data_dir / "small" / "facebook_combined.txt.gz")
    graph = fg.Graph.from_edges(
        graph.sources, graph.targets, vertex_count=graph.vertex_count, directed=False
    )
    result = clustering(graph, target=target)
    # Published with the data: triangles, and the average coefficient.
    assert result.triangles.sum() == 3 * 1_612_010
    assert result.average == pytest.approx(0.6055, abs=5e-5)
    verify_clustering(graph, result.coefficients)
    trusses = k_truss(graph, target=target)
    verify_k_truss(graph, trusses.trussness)


def test_verifiers_see_what_is_wrong() -> None:
    lollipop = nx.lollipop_graph(5, 3)
    graph = fg.Graph.from_edges(*np.array(lollipop.edges).T, directed=False)
    counts = np.array([6] * 5 + [0] * 3)
    verify_triangle_count(graph, counts)
    for vertex, wrong in ((0, 5), (4, 7), (7, 1)):
        other = counts.copy()
        other[vertex] = wrong
        with pytest.raises(AssertionError, match=f"vertex {vertex}: part of"):
            verify_triangle_count(graph, other)
    coefficients = np.array([1.0] * 4 + [0.6] + [0.0] * 3)
    verify_clustering(graph, coefficients)
    for vertex, value, message in (
        (0, 1.1, "out"),
        (4, 0.61, "other"),
        (6, 0.1, "other"),
    ):
        other = coefficients.copy()
        other[vertex] = value
        with pytest.raises(AssertionError, match=f"vertex {vertex}: .*{message}"):
            verify_clustering(graph, other)
    trussness = np.where(np.array(lollipop.edges).max(axis=1) < 5, 5, 2)
    verify_k_truss(graph, trussness)
    for edge, value, message in ((0, 6, "few"), (10, 1, "less than 2"), (11, 3, "few")):
        other = trussness.copy()
        other[edge] = value
        with pytest.raises(AssertionError, match=f"edge {edge}: .*{message}"):
            verify_k_truss(graph, other)
    with pytest.raises(AssertionError, match="edge 0: it belongs to a truss of larger"):
        verify_k_truss(graph, np.minimum(trussness, 4))


def test_the_list_of_triangles_is_that_of_networkx(rng: np.random.Generator) -> None:
    graph = random_graph(rng, 60, 12)
    vertices, edges = triangles_of(graph)
    found = {frozenset(map(int, corners)) for corners in vertices}
    cliques = nx.enumerate_all_cliques(peer_of(without_loops(graph)))
    assert found == {frozenset(c) for c in cliques if len(c) == 3}
    assert len(vertices) == len(found)
    ends = np.stack([graph.sources[edges], graph.targets[edges]], axis=2)
    for corners, pairs in zip(vertices, ends, strict=True):
        assert set(pairs.ravel().tolist()) == set(corners.tolist())
        assert len({frozenset(p) for p in pairs.tolist()}) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bad_graphs_are_refused_with_the_fix(algorithm: Any) -> None:
    directed = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    with pytest.raises(fg.GraphInputError, match="directed=False"):
        algorithm(directed)
    doubled = fg.Graph.from_edges([0, 1], [1, 0], directed=False)
    with pytest.raises(fg.GraphInputError, match='duplicates="first"'):
        algorithm(doubled)


def test_k_truss_refuses_loops_and_negative_k() -> None:
    loop = fg.Graph.from_edges([0, 1], [1, 1], directed=False)
    with pytest.raises(fg.GraphInputError, match=r"edge 1: (.|\n)*vertex 1 to itself"):
        k_truss(loop)
    with pytest.raises(fg.GraphInputError, match="k out of range"):
        k_truss(without_loops(loop), -1)


def test_a_limit_leaves_lower_bounds(target: str) -> None:
    clique = nx.complete_graph(6)
    graph = fg.Graph.from_edges(*np.array(clique.edges).T, directed=False)
    with pytest.warns(fg.ConvergenceWarning):
        result = k_truss(graph, max_supersteps=1, target=target)
    assert not result.converged
    assert (result.trussness <= 6).all()
