"""Connected components against networkx and SciPy, and their verifier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from scipy.sparse import csgraph

import featgraph as fg
from featgraph.algorithms.connected_components import (
    climb_all,
    connected_components,
    verify_connected_components,
)
from tests.strategies import graphs, seeds

Array = npt.NDArray[Any]
MODULE = sys.modules["featgraph.algorithms.connected_components"]
METHODS = ("link", "propagate", "auto")


def smallest(labels: Array) -> Array:
    """Return labels of components as the smallest vertex of each."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


def scipys(graph: fg.Graph) -> Array:
    matrix = graph.to_scipy()
    return smallest(csgraph.connected_components(matrix, connection="weak")[1])


@pytest.mark.parametrize("method", METHODS)
@given(graphs(max_edges=200))
def test_scipy_finds_the_same(target: str, method: str, graph: fg.Graph) -> None:
    expected = scipys(graph)
    found = connected_components(graph, method=method, target=target)
    assert found.converged
    assert found.labels.dtype == np.int32
    assert np.array_equal(found.labels, expected)
    assert found.count == np.unique(expected).size
    verify_connected_components(graph, found.labels)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiDiGraph])
def test_networkx_finds_the_same(
    kind: Any, method: str, target: str, rng: np.random.Generator
) -> None:
    network = kind()
    network.add_nodes_from(range(200))
    network.add_edges_from(rng.integers(0, 190, (130, 2)).tolist())
    network.add_edges_from([(7, 7), (7, 7)])
    graph = fg.Graph.from_networkx(network)
    found = connected_components(graph, method=method, target=target)
    search = nx.weakly_connected_components
    if not network.is_directed():
        search = nx.connected_components
    for component in search(network):
        assert set(found.labels[sorted(component)]) == {min(component)}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("directed", [True, False])
def test_shapes_that_take_long(
    directed: bool, target: str, rng: np.random.Generator
) -> None:
    """Paths up, down and in any order; stars about the largest; many chunks, threads.

    One thread joins what another one is just moving: each is run several times.
    """
    count = 40_000
    up, mixed = np.arange(count - 1), rng.permutation(count)
    for sources, targets in (
        (up, up + 1),
        (up[::-1] + 1, up[::-1]),
        (mixed[:-1], mixed[1:]),
        (np.full(count - 1, count - 1), up),
        tuple(rng.integers(0, count, (2, count))),
    ):
        graph = fg.Graph.from_edges(
            sources, targets, vertex_count=count, directed=directed
        )
        expected = scipys(graph)
        for _ in range(3):
            found = connected_components(graph, method="link", target=target)
            assert found.supersteps == 2
            assert np.array_equal(found.labels, expected)
    verify_connected_components(graph, found.labels)


def test_one_vertex_climbs_a_whole_chain(target: str) -> None:
    """Alone: in ascending order on one thread, a step each would do for all."""
    graph = fg.Graph.from_edges([], [], vertex_count=100)
    chain = np.maximum(np.arange(-1, 99), 0).astype(np.int32)
    state = fg.State(graph, label=fg.vertex_property(chain))
    climb_all.on([99])(state, target=target)
    above = state["label"]
    assert above[99] == 0
    assert (above <= chain).all()
    assert (above[1:] < np.arange(1, 100)).all()


@settings(max_examples=10)
@given(graphs(max_edges=60), seeds)
def test_the_verifier_finds_faults(graph: fg.Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = connected_components(graph, target="cpu").labels
    verify_connected_components(graph, labels)
    v = int(rng.integers(graph.vertex_count))
    for wrong in (graph.vertex_count, -1, (labels[v] + 1) % (graph.vertex_count + 1)):
        broken = labels.copy()
        broken[v] = wrong
        with pytest.raises(AssertionError):
            verify_connected_components(graph, broken)
    with pytest.raises(AssertionError, match="shape"):
        verify_connected_components(graph, labels[1:])


def test_the_verifier_names_what_is_wrong() -> None:
    graph = fg.Graph.from_edges([0, 2, 5], [1, 3, 4], vertex_count=6)
    for labels, message in (
        ([0, 0, 2, 2, 5, 5], "vertex 4: the label is no smaller vertex"),
        ([0, 0, 0, 2, 4, 4], "vertex 3: the vertex of the label has another one"),
        ([0, 0, 2, 3, 4, 4], "vertex 3: a neighbor has another label"),
        ([0, 0, 0, 0, 4, 4], "vertex 2: the vertex that its label names does not"),
    ):
        with pytest.raises(AssertionError, match=message):
            verify_connected_components(graph, labels)


def test_without_atomics(target: str) -> None:
    graph = fg.Graph.from_edges([3, 1, 4], [1, 2, 5])
    found = connected_components(graph, deterministic=True, target=target)
    assert found.labels.tolist() == [0, 1, 1, 1, 4, 4]
    assert found.run.directions[0] == "pull"
    with pytest.raises(fg.PlanError):
        connected_components(graph, method="link", deterministic=True, target=target)
    with pytest.raises(fg.GraphInputError, match="unknown method"):
        connected_components(graph, method="fast")


def test_a_real_network(target: str, data_dir: Path) -> None:
    graph = fg.read_graph(data_dir / "small" / "facebook_combined.txt.gz")
    found = connected_components(graph, target=target)
    assert np.array_equal(found.labels, scipys(graph))
    verify_connected_components(graph, found.labels)


@pytest.mark.parametrize("threads", [1, 1 << 30])
def test_few_threads_leave_most_edges_out(
    threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "MANY_THREADS", threads)
    for count in (1, 300, 4000):  # from edges apart to one large component
        ends = rng.integers(0, 3000, (2, count))
        for directed in (False, True):
            graph = fg.Graph.from_edges(*ends, vertex_count=3000, directed=directed)
            found = connected_components(graph, target="cpu")
            assert np.array_equal(found.labels, scipys(graph))
            assert found.count == np.unique(found.labels).size
            assert (found.supersteps > 0) == (threads == 1 or directed)
            assert (found.run.target, found.converged) == ("cpu", True)
