"""HITS against networkx and singular vectors, and its verifier."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

import featgraph as fg
from featgraph.algorithms.hits import hits, verify_hits
from tests.strategies import examples, graphs, seeds

Array = npt.NDArray[Any]
TOL = 1e-10


def dense(graph: fg.Graph, weights: Array) -> Array:
    """Return the adjacency, [u, v] for u -> v; parallel edges add up."""
    matrix = np.zeros((graph.vertex_count, graph.vertex_count))
    np.add.at(matrix, (graph.sources, graph.targets), weights)
    if not graph.directed:
        back = graph.sources != graph.targets
        np.add.at(matrix, (graph.targets[back], graph.sources[back]), weights[back])
    return matrix


@examples(8, 15)
@given(graphs(max_edges=100), seeds)
def test_numpy_iterates_the_same(target: str, graph: fg.Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 5, graph.given_edge_count) / 4
    start = rng.uniform(0.5, 1, graph.vertex_count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        found = hits(
            graph, weights=weights, nstart=start, tol=TOL, max_iter=7, target=target
        )
    matrix, hub = dense(graph, weights), start / start.sum()
    authority = np.zeros(graph.vertex_count)
    for residual in found.residuals:
        authority = matrix.T @ hub
        authority /= max(authority.sum(), 1e-300)
        before, hub = hub, matrix @ authority
        hub /= max(hub.sum(), 1e-300)
        np.testing.assert_allclose(residual, abs(hub - before).sum(), atol=1e-12)
    assert 1 <= found.residuals.size <= 7
    assert found.supersteps == found.residuals.size
    assert found.converged == (found.residuals[-1] < TOL or not matrix.any())
    np.testing.assert_allclose(found.hubs, hub, atol=1e-13)
    np.testing.assert_allclose(found.authorities, authority, atol=1e-13)


@pytest.mark.parametrize("weight", [None, "weight"])
def test_networkx_rates_the_same(
    weight: str | None, target: str, rng: np.random.Generator
) -> None:
    network = nx.gnp_random_graph(70, 0.1, seed=3, directed=True)
    for u, v in network.edges:
        network[u][v]["weight"] = float(rng.integers(1, 9)) if weight else 1.0
    graph = fg.Graph.from_networkx(network, weight=weight)
    found = hits(graph, tol=TOL, target=target)
    assert found.converged
    verify_hits(graph, found.hubs, found.authorities, tol=TOL)
    for expected, ours in zip(
        nx.hits(network, tol=1e-12), (found.hubs, found.authorities), strict=True
    ):
        np.testing.assert_allclose(ours, [expected[v] for v in range(70)], atol=1e-8)


def test_single_precision(target: str, data_dir: Path) -> None:
    graph = fg.read_graph(data_dir / "small" / "facebook_combined.txt.gz")
    found = hits(graph, tol=1e-5, dtype=np.float32, target=target)
    assert found.converged
    assert found.hubs.dtype == found.authorities.dtype == np.float32
    verify_hits(graph, found.hubs, found.authorities, tol=1e-5)
    exact = hits(graph, tol=TOL, target=target)
    assert np.abs(found.hubs - exact.hubs).sum() < 1e-3


def test_without_edges(target: str) -> None:
    graph = fg.Graph.from_edges([], [], vertex_count=3)
    found = hits(graph, target=target)
    assert found.converged
    assert not found.hubs.any()
    assert not found.authorities.any()
    verify_hits(graph, found.hubs, found.authorities)


def test_the_verifier_finds_faults() -> None:
    graph = fg.Graph.from_edges([0, 0, 1, 3], [2, 1, 2, 2])
    found = hits(graph, target="cpu")
    hub, authority = found.hubs, found.authorities
    verify_hits(graph, hub, authority)
    for broken, message in (
        ((hub - [0, 0, 1e-3, -1e-3], authority), "vertex 2: a negative hub"),
        ((hub * 1.01, authority), "the hub ratings sum to"),
        ((hub, authority[::-1]), "vertex 0: the hub is not what"),
        ((np.array([0, 0.5, 0, 0.5]), np.array([0, 0, 1.0, 0])), "vertex 0: the hub"),
    ):
        with pytest.raises(AssertionError, match=message):
            verify_hits(graph, *broken)
    authority = np.array([0, 0.25, 0.75, 0])
    early = np.array([1.0, 0.75, 0, 0.75]) / 2.5
    with pytest.raises(AssertionError, match="another iteration moves"):
        verify_hits(graph, early, authority)


def test_bad_input() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    for options, says in (
        ({"tol": 0.0}, "tol out of range"),
        ({"max_iter": -1}, "max_iter out of range"),
        ({"nstart": [1.0, -1.0, 1.0]}, "not negative"),
        ({"nstart": np.ones((3, 2))}, "one value for each vertex"),
        ({"weights": [1.0]}, "one weight per given edge"),
    ):
        with pytest.raises(fg.GraphInputError, match=says):
            hits(graph, target="cpu", **options)  # type: ignore[arg-type]
    with pytest.warns(fg.ConvergenceWarning):
        assert not hits(graph, max_iter=0, target="cpu").converged
