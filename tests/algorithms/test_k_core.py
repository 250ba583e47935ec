"""Core numbers against networkx, and against the definition."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg
from featgraph.algorithms.k_core import k_core, verify_k_core
from tests.strategies import graphs


def simple(graph: fg.Graph) -> nx.Graph:
    """Return networkx's graph, which has no multi-edges."""
    made = nx.DiGraph() if graph.directed else nx.Graph()
    made.add_nodes_from(range(graph.vertex_count))
    made.add_edges_from(
        (int(u), int(v))
        for u, v in zip(graph.sources, graph.targets, strict=True)
        if u != v
    )
    return made


def from_networkx(made: nx.Graph) -> fg.Graph:
    ends = np.array(list(made.edges), np.int64).reshape(-1, 2).T
    return fg.Graph.from_edges(
        *ends, vertex_count=len(made), directed=made.is_directed()
    )


@given(graphs())
def test_core_numbers_are_those_of_networkx(target: str, graph: fg.Graph) -> None:
    peer = simple(graph)
    graph = from_networkx(peer)
    result = k_core(graph, target=target)
    verify_k_core(graph, result.core_numbers)
    numbers = nx.core_number(peer)
    assert result.core_numbers.tolist() == [numbers[v] for v in range(len(peer))]
    assert result.vertices.tolist() == sorted(nx.k_core(peer).nodes)
    assert result.converged
    assert result.k == max(numbers.values())


@given(graphs())
def test_multi_edges_count_as_many(target: str, graph: fg.Graph) -> None:
    apart = graph.sources != graph.targets
    graph = fg.Graph.from_edges(
        graph.sources[apart],
        graph.targets[apart],
        vertex_count=graph.vertex_count,
        directed=graph.directed,
    )
    result = k_core(graph, 2, target=target)
    verify_k_core(graph, result.core_numbers)
    assert result.vertices.tolist() == np.flatnonzero(result.core_numbers > 1).tolist()


def test_a_path_falls_from_its_ends(target: str) -> None:
    path = from_networkx(nx.path_graph(101))
    result = k_core(path, target=target)
    assert result.core_numbers.tolist() == [1] * 101
    assert 51 <= result.supersteps <= 54
    # A vertex that loses a neighbor is due at once, and no other: two each round.
    assert result.run.active_counts == [2] * 49 + [1, 0]


def test_the_verifier_sees_numbers_that_are_too_large_or_too_small() -> None:
    lollipop = from_networkx(nx.lollipop_graph(5, 3))
    right = np.array([4] * 5 + [1] * 3)
    verify_k_core(lollipop, right)
    for vertex, number in ((0, 3), (5, 2), (7, 0)):
        wrong = right.copy()
        wrong[vertex] = number
        with pytest.raises(AssertionError, match="vertex"):
            verify_k_core(lollipop, wrong)
    with pytest.raises(AssertionError, match="vertex 0: it belongs to a core of"):
        verify_k_core(lollipop, np.minimum(right, 3))


def test_a_limit_leaves_lower_bounds(target: str) -> None:
    path = from_networkx(nx.path_graph(100))
    with pytest.warns(fg.ConvergenceWarning):
        result = k_core(path, max_supersteps=10, target=target)
    assert not result.converged
    assert result.core_numbers.tolist() == [1] * 100


def test_bad_input_is_refused() -> None:
    loop = fg.Graph.from_edges([0, 1], [1, 1], directed=False)
    with pytest.raises(fg.GraphInputError, match=r"edge 1: (.|\n)*a vertex to itself"):
        k_core(loop)
    with pytest.raises(fg.GraphInputError, match="k out of range"):
        k_core(fg.Graph.from_edges([0], [1]), -1)


def test_core_numbers_of_people(target: str, data_dir: Path) -> None:
    graph = fg.read_edge_list(data_dir / "small" / "facebook_combined.txt.gz")
    graph = fg.Graph.from_edges(
        graph.sources, graph.targets, vertex_count=graph.vertex_count, directed=False
    )
    result = k_core(graph, target=target)
    verify_k_core(graph, result.core_numbers)
    assert result.k == 115
