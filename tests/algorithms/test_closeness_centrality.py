"""Closeness centrality against networkx and distances edge by edge."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.closeness_centrality import (
    closeness_centrality,
    verify_closeness_centrality,
)
from featgraph.graph.generators import rmat
from tests.strategies import examples, graphs, seeds


def with_lengths(graph: fg.Graph, lengths: np.ndarray) -> nx.Graph:
    """Return networkx's graph; of edges that repeat the shortest counts."""
    made = nx.MultiDiGraph() if graph.directed else nx.MultiGraph()
    made.add_nodes_from(range(graph.vertex_count))
    ends = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    for (u, v), length in zip(ends, lengths.tolist(), strict=True):
        made.add_edge(u, v, length=length)
    return made


@examples(8, 15)
@given(graphs(max_edges=100), st.booleans(), st.booleans(), seeds)
def test_it_is_that_of_networkx(
    target: str, graph: fg.Graph, improved: bool, is_weighted: bool, seed: int
) -> None:
    """Loops, repeated edges, both kinds of graphs, lengths with many equal sums."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, graph.given_edge_count) * (0.5 if seed % 2 else 0.1)
    weights = lengths if is_weighted else None
    found = closeness_centrality(
        graph, weights=weights, wf_improved=improved, target=target
    )
    verify_closeness_centrality(graph, found, weights=weights, wf_improved=improved)
    theirs = nx.closeness_centrality(
        with_lengths(graph, lengths),
        distance="length" if is_weighted else None,
        wf_improved=improved,
    )
    assert found.centralities == pytest.approx(list(theirs.values()), rel=1e-12)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_batches_and_options_do_not_show(
    target: str, direction: str, is_weighted: bool, rng: np.random.Generator
) -> None:
    graph = rmat(7, 3, seed=2)
    weights = rng.integers(1, 9, graph.given_edge_count) / 4 if is_weighted else None
    some = rng.permutation(graph.vertex_count)[:11]
    every = closeness_centrality(graph, weights=weights, target=target)
    found = closeness_centrality(
        graph, some, weights=weights, batch=4, target=target, direction=direction
    )
    assert found.vertices.tolist() == some.tolist()
    assert found.centralities.tolist() == every.centralities[some].tolist()
    verify_closeness_centrality(graph, found, weights=weights)
    assert found.supersteps == len(found.run.active_counts)


def test_distances_are_those_to_a_vertex(target: str) -> None:
    chain = fg.Graph.from_edges([0, 1], [1, 2])
    found = closeness_centrality(chain, target=target)
    assert found.reaching.tolist() == [0, 1, 2]
    assert found.distances.tolist() == [0, 1, 3]
    assert found.centralities.tolist() == [0, 1 / 2, 2 / 3]


@pytest.mark.parametrize("lengths", [[1e16, 0.5, 1.0], [0.5, 1e16, 1e-310]])
def test_lengths_lost_in_rounding_are_only_rounded(
    lengths: list[float], target: str
) -> None:
    """No path is counted twice, and no vertex is left out, as sums are compared."""
    path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    found = closeness_centrality(path, weights=lengths, target=target)
    verify_closeness_centrality(path, found, weights=lengths)
    places = np.cumsum([0, *lengths])
    apart = np.abs(places[:, None] - places).sum(axis=1)
    assert found.centralities == pytest.approx(3 / apart, rel=1e-12)


def test_the_verifier_sees_what_is_wrong() -> None:
    chain = fg.Graph.from_edges([0, 1, 3], [1, 2, 1])
    found = closeness_centrality(chain)
    verify_closeness_centrality(chain, found)
    for name, message in (
        ("reaching", "vertex 1: another number"),
        ("distances", "vertex 1: another sum"),
        ("centralities", "vertex 1: another closeness"),
    ):
        wrong = getattr(found, name) * np.array([1, 2, 1, 1])
        with pytest.raises(AssertionError, match=message):
            verify_closeness_centrality(chain, replace(found, **{name: wrong}))


def test_bad_input_is_refused() -> None:
    chain = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])
    for arguments, message in (
        ({"vertices": [0, 4]}, r"vertices\[1\]"),
        ({"vertices": []}, "vertices are integer ids"),
        ({"vertices": 1}, "vertices are integer ids"),
        ({"batch": 0}, "batch out of range"),
        ({"weights": [1, -1, 1]}, "edge 1, 1 -> 2"),
        ({"weights": [1]}, "one weight per given edge"),
    ):
        with pytest.raises(fg.GraphInputError, match=message):
            closeness_centrality(chain, **arguments)
