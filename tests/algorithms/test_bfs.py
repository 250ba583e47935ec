"""Breadth-first search against networkx and SciPy, and its verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csgraph

import featgraph as fg
from featgraph.algorithms.bfs import bfs, verify_bfs
from tests.strategies import OPTION_SETS, examples, graphs, seeds

Array = npt.NDArray[Any]


def levels_of(graph: fg.Graph, sources: Array) -> Array:
    """Return (V, k): edges from each source, -1 where there is no path."""
    matrix = graph.to_scipy()
    matrix.data = np.ones(matrix.data.shape)  # weights, and how many edges, are nothing
    found = csgraph.dijkstra(matrix, unweighted=True, indices=sources).T
    return np.where(np.isfinite(found), found, -1).astype(np.int32)


#: One search, or three of them under all options.
CASES = [(1, {}), *((3, options) for options in OPTION_SETS)]


@examples(12, 1000)
@given(graphs(max_edges=100), st.sampled_from(CASES), st.booleans(), seeds)
def test_levels_are_distances_in_edges(
    target: str, graph: fg.Graph, case: tuple[int, Any], together: bool, seed: int
) -> None:
    k, options = case
    sources = np.random.default_rng(seed).integers(0, graph.vertex_count, k)
    expected = levels_of(graph, sources)
    if together:
        far = np.where(expected < 0, np.iinfo(np.int32).max, expected).min(axis=1)
        expected = np.where((expected >= 0).any(axis=1), far, -1)
    result = bfs(graph, sources, together=together, target=target, **options)
    assert result.converged
    assert np.array_equal(result.levels, expected)
    verify_bfs(graph, sources, result.levels, result.parents, together=together)


@given(graphs(max_edges=100), st.integers(0, 4), seeds)
def test_a_search_ends_at_its_depth(
    target: str, graph: fg.Graph, depth: int, seed: int
) -> None:
    source = int(np.random.default_rng(seed).integers(graph.vertex_count))
    expected = levels_of(graph, np.array([source]))[:, 0]
    expected[expected > depth] = -1
    result = bfs(graph, source, max_depth=depth, target=target)
    assert result.supersteps <= depth
    assert np.array_equal(result.levels, expected)
    verify_bfs(graph, source, result.levels, result.parents, max_depth=depth)


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.Graph, nx.MultiDiGraph])
def test_networkx_gives_the_same(
    kind: Any, target: str, rng: np.random.Generator
) -> None:
    network = kind()
    network.add_nodes_from(range(65))
    network.add_edges_from(rng.integers(0, 60, (110, 2)).tolist())
    network.add_edge(3, 3)
    graph = fg.Graph.from_networkx(network)
    for source in (0, 3, 64):
        result = bfs(graph, source, target=target)
        theirs = nx.single_source_shortest_path_length(network, source)
        assert {v: x for v, x in enumerate(result.levels.tolist()) if x >= 0} == theirs
        expected = dict.fromkeys(range(65), -1) | {source: source}
        near = nx.single_source_shortest_path_length(network, source)
        for v in near.keys() - {source}:
            ends = network.predecessors(v) if network.is_directed() else network[v]
            expected[v] = min(u for u in ends if near.get(u, -2) == near[v] - 1)
        same = bfs(graph, source, deterministic=True, target=target)
        assert dict(enumerate(same.parents.tolist())) == expected


def test_only_what_was_reached_last_is_looked_at(target: str) -> None:
    ends = np.arange(99)
    path = fg.Graph.from_edges(ends, ends + 1, directed=False)
    result = bfs(path, 0, target=target)
    assert result.run.active_counts == [1] * 99 + [0]
    assert result.levels.tolist() == list(range(100))


def test_a_real_network_is_searched_as_with_scipy(target: str, data_dir: Path) -> None:
    graph = fg.read_graph(data_dir / "small" / "facebook_combined.txt.gz")
    sources = np.array([0, 107, 3437])
    result = bfs(graph, sources, target=target)
    assert np.array_equal(result.levels, levels_of(graph, sources))
    verify_bfs(graph, sources, result.levels, result.parents)


BAD = {
    "beyond": ({"sources": 4}, r"sources\[0\]"),
    "negative": ({"sources": [0, -1]}, r"sources\[1\]"),
    "real": ({"sources": [0.0]}, "float64"),
    "none": ({"sources": []}, r"shape \(0,\)"),
    "matrix": ({"sources": [[0]]}, r"shape \(1, 1\)"),
    "depth": ({"sources": 0, "max_depth": -1}, "max_depth"),
    "depth real": ({"sources": 0, "max_depth": 1.5}, "max_depth"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    is_of_another_kind = isinstance(options.get("max_depth"), float)
    kind = fg.ArgumentError if is_of_another_kind else fg.GraphInputError
    with pytest.raises(kind, match=expected):
        bfs(fg.Graph.from_edges([0, 1, 2], [1, 2, 3]), **options)


def _plant(level: dict[int, int], parent: dict[int, int]) -> Any:
    return level, parent


#: On 0 -> 1 -> 2, 0 -> 3 -> 2, 4 alone: what is changed, and what is said.
FAULTS = {
    "further": (_plant({2: 3}, {}), "vertex 2: an edge leads here"),
    "lost": (_plant({2: -1}, {2: -1}), "vertex 2: an edge leads here"),
    "nearer": (_plant({2: 1}, {}), "vertex 2: no edge leads here from its"),
    "a source more": (_plant({4: 0}, {4: 4}), "vertex 4: level 0"),
    "no source": (_plant({0: -1}, {}), "vertex 0: level 0"),
    "strange level": (_plant({4: -7}, {}), "vertex 4: no level"),
    "no edge": (_plant({}, {2: 0}), "vertex 2: no edge leads here from its"),
    "orphan": (_plant({}, {2: -1}), "vertex 2: no edge leads here from its"),
    "parent of no vertex": (_plant({}, {4: 0}), "vertex 4: has a predecessor"),
    "own": (_plant({}, {0: -1}), "vertex 0: a source"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    (levels, parents), expected = FAULTS[fault]
    graph = fg.Graph.from_edges([0, 1, 0, 3], [1, 2, 3, 2], vertex_count=5)
    found = bfs(graph, 0, target="cpu")
    verify_bfs(graph, 0, found.levels, found.parents)
    found.levels[list(levels)] = list(levels.values())
    found.parents[list(parents)] = list(parents.values())
    with pytest.raises(AssertionError, match=expected):
        verify_bfs(graph, 0, found.levels, found.parents)


def test_verifier_checks_the_depth() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    found = bfs(graph, 0, target="cpu")
    with pytest.raises(AssertionError, match="vertex 2: beyond the depth"):
        verify_bfs(graph, 0, found.levels, found.parents, max_depth=1)
