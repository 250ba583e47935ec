"""Eigenvector centrality against networkx and NumPy."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.eigenvector_centrality import (
    eigenvector_centrality,
    verify_eigenvector_centrality,
)
from tests.algorithms.dense import dense
from tests.strategies import examples, graphs, seeds

#: Whether there are weights, and options; each is a kernel.
CASES: list[tuple[bool, dict[str, Any]]] = [
    (False, {}),
    (True, {"direction": "push"}),
]


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@examples(12, 1000)
@given(graphs(max_edges=100), st.sampled_from(CASES), seeds)
def test_supersteps_are_those_of_networkx(
    target: str, graph: fg.Graph, case: tuple[bool, dict[str, Any]], seed: int
) -> None:
    (weighted, options), rng = case, np.random.default_rng(seed)
    weights = rng.integers(0, 3, graph.given_edge_count) + 0.0 if weighted else None
    matrix = dense(
        graph, np.ones(graph.given_edge_count) if weights is None else weights
    )
    peer = nx.DiGraph()
    peer.add_nodes_from(range(len(matrix)))
    for v, u in zip(*np.nonzero(matrix), strict=True):
        peer.add_edge(int(u), int(v), weight=matrix[v, u])
    start = rng.random(len(matrix)) + 0.1
    result = eigenvector_centrality(
        graph, weights=weights, nstart=start, shift=1, target=target, **options
    )
    arguments = {"nstart": dict(enumerate(start)), "weight": "weight"}
    if not result.converged:
        with pytest.raises(nx.PowerIterationFailedConvergence):
            nx.eigenvector_centrality(peer, 100, **arguments)
        return
    theirs = nx.eigenvector_centrality(peer, result.supersteps, **arguments)
    assert result.centralities == pytest.approx(
        [theirs[v] for v in range(len(matrix))], abs=1e-12
    )
    if result.supersteps > 1:
        with pytest.raises(nx.PowerIterationFailedConvergence):
            nx.eigenvector_centrality(peer, result.supersteps - 1, **arguments)


def test_it_is_the_eigenvector_of_the_largest_eigenvalue(
    target: str, rng: np.random.Generator
) -> None:
    source, destination = rng.integers(0, 40, (2, 300))
    graph = fg.Graph.from_edges(source, destination, vertex_count=40, directed=False)
    result = eigenvector_centrality(graph, tol=1e-14, target=target)
    values, vectors = np.linalg.eigh(dense(graph, np.ones(300)))
    assert result.eigenvalue == pytest.approx(values[-1], rel=1e-12)
    assert result.centralities == pytest.approx(np.abs(vectors[:, -1]), abs=1e-10)
    verify_eigenvector_centrality(graph, result.centralities, tol=1e-13)


@pytest.mark.parametrize("directed", [False, True])
def test_the_scale_of_the_weights_plays_no_part(directed: bool, target: str) -> None:
    rng = np.random.default_rng(3)
    ends = rng.integers(0, 12, (2, 60))
    graph = fg.Graph.from_edges(*ends, vertex_count=12, directed=directed)
    weights = rng.integers(0, 4, 60).astype(float)
    values, vectors = np.linalg.eig(dense(graph, weights))
    first = int(np.argmax(values.real))
    right = np.abs(vectors[:, first].real)
    supersteps = set()
    # Powers of two: the scale is not even seen in the rounding.
    for scale in (1.0, 2.0**-27, 2.0**27, 2.0**-600, 2.0**600):
        result = eigenvector_centrality(graph, weights=scale * weights, target=target)
        assert result.converged
        assert result.centralities == pytest.approx(right, abs=1e-4)
        assert result.eigenvalue == pytest.approx(scale * values[first].real, rel=1e-4)
        verify_eigenvector_centrality(
            graph, result.centralities, weights=scale * weights
        )
        supersteps.add(result.supersteps)
        with pytest.raises(AssertionError, match="one more superstep"):
            verify_eigenvector_centrality(
                graph, np.full(12, 12**-0.5), weights=scale * weights
            )
    assert len(supersteps) == 1


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize(
    ("ends", "more", "eigenvalue"),
    [
        (([0], [0]), {"weights": [2.0]}, 2.0),
        (([], []), {"vertex_count": 1}, 0.0),
        (([], []), {"weights": [], "vertex_count": 2}, 0.0),
        (([0], [0]), {"vertex_count": 3, "nstart": [1, 0, 0]}, 1.0),
        (([0], [0]), {"vertex_count": 3, "nstart": [9, 0, 0]}, 1.0),
        (([0, 1, 2], [1, 2, 0]), {"max_supersteps": 1, "directed": False}, 2.0),
        (([0, 1, 2], [1, 2, 0]), {"max_supersteps": 0, "directed": False}, np.nan),
    ],
)
def test_the_eigenvalue_of_short_runs(
    ends: Any, more: dict[str, Any], eigenvalue: float, target: str
) -> None:
    of_graph = {k: more[k] for k in ("vertex_count", "directed") if k in more}
    graph = fg.Graph.from_edges(*ends, **of_graph)
    options = {k: v for k, v in more.items() if k not in of_graph}
    result = eigenvector_centrality(graph, target=target, **options)
    assert result.eigenvalue == pytest.approx(eigenvalue, abs=1e-12, nan_ok=True)


def test_it_settles_on_bipartite_graphs(target: str) -> None:
    star = fg.Graph.from_edges([0] * 16, np.arange(1, 17), directed=False)
    result = eigenvector_centrality(star, tol=1e-12, target=target)
    assert result.converged
    assert result.eigenvalue == pytest.approx(4)
    assert result.centralities == pytest.approx([0.5**0.5] + [0.125 * 2**0.5] * 16)


def test_a_run_that_does_not_settle_is_warned_of(target: str) -> None:
    path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3])  # no cycle: lambda is zero
    with pytest.warns(fg.ConvergenceWarning, match="100 supersteps"):
        result = eigenvector_centrality(path, target=target)
    assert not result.converged
    with pytest.raises(AssertionError, match="one more superstep moves it"):
        verify_eigenvector_centrality(path, result.centralities)


def test_the_verifier_sees_what_is_wrong() -> None:
    star = fg.Graph.from_edges([0] * 4, np.arange(1, 5), directed=False)
    x = np.array([0.5**0.5] + [0.125**0.5] * 4)
    verify_eigenvector_centrality(star, x)
    with pytest.raises(AssertionError, match="length"):
        verify_eigenvector_centrality(star, 2 * x)
    with pytest.raises(AssertionError, match="vertex 2: a negative"):
        verify_eigenvector_centrality(star, x * [1, 1, -1, 1, 1])
    with pytest.raises(AssertionError, match="one more superstep"):
        verify_eigenvector_centrality(star, x[[1, 0, 2, 3, 4]])


def test_bad_input_is_refused() -> None:
    edge = fg.Graph.from_edges([0], [1])
    for bad in (
        {"tol": 0.0},
        {"shift": 0.0},
        {"nstart": [0, 0]},
        {"nstart": [1, -1]},
        {"nstart": [[1, 1], [1, 1]]},
        {"weights": [-1.0]},
    ):
        with pytest.raises(fg.GraphInputError):
            eigenvector_centrality(edge, **bad)  # type: ignore[arg-type]
