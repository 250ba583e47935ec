"""Strong components against networkx and SciPy, and their verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from scipy.sparse import csgraph

import featgraph as fg
from featgraph.algorithms import strong_components as module
from featgraph.algorithms.strong_components import (
    strongly_connected_components,
    verify_strongly_connected_components,
)
from tests.strategies import graphs, seeds

Array = npt.NDArray[Any]


def scipys(graph: fg.Graph) -> Array:
    """Return the smallest vertex of each vertex's component."""
    labels = csgraph.connected_components(graph.to_scipy(), connection="strong")[1]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


@given(graphs(max_edges=200))
def test_scipy_finds_the_same(target: str, graph: fg.Graph) -> None:
    expected = scipys(graph)
    found = strongly_connected_components(graph, target=target)
    assert found.labels.dtype == np.int32
    assert np.array_equal(found.labels, expected)
    assert found.count == np.unique(expected).size
    verify_strongly_connected_components(graph, found.labels)


def test_networkx_finds_the_same(target: str, rng: np.random.Generator) -> None:
    network = nx.MultiDiGraph()
    network.add_nodes_from(range(200))
    network.add_edges_from(rng.integers(0, 190, (330, 2)).tolist())
    network.add_edges_from([(7, 7), (7, 7)])
    graph = fg.Graph.from_networkx(network)
    found = strongly_connected_components(graph, target=target)
    for component in nx.strongly_connected_components(network):
        assert set(found.labels[sorted(component)]) == {min(component)}


def rings(sizes: list[int], rng: np.random.Generator) -> fg.Graph:
    """Return rings in a row, each pointing to the next, numbered in any order."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    sources = np.arange(ends[-1])
    targets = sources + 1
    targets[ends - 1] = starts
    sources = np.concatenate([sources, starts[:-1]])
    targets = np.concatenate([targets, starts[1:]])
    names = rng.permutation(ends[-1])
    return fg.Graph.from_edges(names[sources], names[targets])


def test_rings_in_a_row_take_all_three_ways(
    target: str, rng: np.random.Generator
) -> None:
    """Trimmed vertices before and behind; one ring by its pivot; others by colour.

    Of several rings and vertices between them, each numbering makes other ones roots.
    """
    for _ in range(8):
        graph = rings([1, 1, 9, 4, 1, 6, 30, 5, 1, 7, 1, 4, 1], rng)
        found = strongly_connected_components(graph, target=target)
        assert found.count == 13
        assert found.rounds > 0
        assert np.array_equal(found.labels, scipys(graph))
        verify_strongly_connected_components(graph, found.labels)


def test_without_cycles_all_is_trimmed(target: str) -> None:
    ends = np.arange(50)
    graph = fg.Graph.from_edges(ends, ends + 1)
    found = strongly_connected_components(graph, target=target)
    assert found.labels.tolist() == list(range(51))
    assert (found.rounds, found.count) == (0, 51)
    # One end after the other: a superstep has the edges of one vertex.
    assert found.supersteps <= 52


@pytest.mark.parametrize("smallest", [1, 2**15])
@pytest.mark.parametrize("sweeps", [1, 8])
def test_what_is_left_goes_on_as_a_graph_of_its_own(
    target: str,
    smallest: int,
    sweeps: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of parts, with loops and repeated edges, and the rest of a spread."""
    monkeypatch.setattr(module, "SMALLEST", smallest)
    monkeypatch.setattr(module, "FEWER", 0.9)
    monkeypatch.setattr(module, "SWEEPS", sweeps)
    made: list[fg.Graph] = []
    build = module._Part.__init__

    def built(part: Any, graph: fg.Graph, *rest: Any) -> None:
        made.append(graph)
        build(part, graph, *rest)

    monkeypatch.setattr(module._Part, "__init__", built)
    for _ in range(4):
        graph = rings([1, 9, 40, 5, 3, 1, 3, 25, 4, 1, 1, 2, 7, 60, 2, 2], rng)
        loops = rng.integers(0, graph.vertex_count, 9)
        graph = fg.Graph.from_edges(
            np.concatenate([graph.sources, loops, graph.sources[::7]]),
            np.concatenate([graph.targets, loops, graph.targets[::7]]),
        )
        found = strongly_connected_components(graph, target=target)
        assert np.array_equal(found.labels, scipys(graph))
        verify_strongly_connected_components(graph, found.labels)
    assert (len(made) > 8) == (smallest == 1)  # two smaller ones or more of each


@settings(max_examples=10)
@given(graphs(max_edges=60), seeds)
def test_the_verifier_finds_faults(graph: fg.Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = strongly_connected_components(graph, target="cpu").labels
    verify_strongly_connected_components(graph, labels)
    v = int(rng.integers(graph.vertex_count))
    for wrong in (graph.vertex_count, -1, (labels[v] + 1) % (graph.vertex_count + 1)):
        broken = labels.copy()
        broken[v] = wrong
        with pytest.raises(AssertionError):
            verify_strongly_connected_components(graph, broken)


def test_the_verifier_names_what_is_wrong() -> None:
    graph = fg.Graph.from_edges([0, 1, 2, 3, 1], [1, 0, 3, 2, 2])
    for labels, says in (
        ([0, 0, 2, 3], "vertex 2: its component reaches one that reaches it"),
        ([0, 1, 2, 2], "vertex 0: its component reaches one that reaches it"),
        ([0, 0, 0, 0], "vertex 2: the vertex that its label names is not reached"),
        ([0, 0, 2, 0], "vertex 3: the vertex that its label names does not reach"),
        ([1, 1, 2, 2], "vertex 0: the label is no smaller vertex"),
    ):
        with pytest.raises(AssertionError, match=says):
            verify_strongly_connected_components(graph, np.array(labels))


def test_a_real_network(target: str, data_dir: Path) -> None:
    given_graph = fg.read_graph(data_dir / "small" / "facebook_combined.txt.gz")
    graph = fg.Graph.from_edges(given_graph.sources, given_graph.targets)
    found = strongly_connected_components(graph, target=target)
    assert np.array_equal(found.labels, scipys(graph))
