"""Katz centrality against the linear system and networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.katz_centrality import (
    katz_centrality,
    verify_katz_centrality,
)
from tests.algorithms.dense import dense
from tests.strategies import graphs, seeds

Array = npt.NDArray[Any]


def spectral_radius(matrix: Array) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


@pytest.fixture
def star() -> fg.Graph:
    return fg.Graph.from_edges([0] * 9, np.arange(1, 10), directed=False)


#: Columns, and options; each is a kernel.
CASES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (4, {"folding": False}),
    (4, {"direction": "push"}),
]


@given(graphs(max_edges=100), st.sampled_from(CASES), seeds)
def test_it_solves_the_linear_system(
    target: str, graph: fg.Graph, case: tuple[int, dict[str, Any]], seed: int
) -> None:
    (k, options), rng = case, np.random.default_rng(seed)
    weights, beta = None, 0.5
    matrix = dense(graph, np.ones(graph.given_edge_count))
    if k > 1:
        weights = rng.integers(0, 3, graph.given_edge_count).astype(np.float64)
        matrix = dense(graph, weights)
        beta = rng.normal(size=(graph.vertex_count, k))
    # All sums of rows bound the radius: walks shrink from the first edge on.
    alpha = 0.5 / max(1.0, matrix.sum(axis=1).max())
    result = katz_centrality(
        graph,
        alpha=alpha,
        beta=beta,
        weights=weights,
        tol=1e-12,
        normalized=False,
        target=target,
        **options,
    )
    base = (
        np.broadcast_to(beta, (len(matrix), k)) if k > 1 else np.full(len(matrix), beta)
    )
    expected = np.linalg.solve(np.eye(len(matrix)) - alpha * matrix, base)
    assert np.abs(result.centralities - expected).max() <= 4e-12 * len(matrix)
    assert result.converged
    verify_katz_centrality(
        graph, result.centralities, alpha=alpha, beta=beta, weights=weights, tol=1e-12
    )


@given(graphs(max_edges=100))
def test_it_takes_as_many_steps_as_networkx(target: str, graph: fg.Graph) -> None:
    matrix = dense(graph, np.ones(graph.given_edge_count))
    alpha = 0.8 / max(1.0, spectral_radius(matrix))
    assume(graph.given_edge_count > 0)
    peer = nx.DiGraph()
    peer.add_nodes_from(range(graph.vertex_count))
    for v, u in zip(*np.nonzero(matrix), strict=True):
        peer.add_edge(int(u), int(v), weight=matrix[v, u])
    result = katz_centrality(graph, alpha=alpha, target=target)
    theirs = nx.katz_centrality(
        peer, alpha, max_iter=result.supersteps, weight="weight"
    )
    assert result.centralities == pytest.approx(
        [theirs[v] for v in range(len(matrix))], abs=1e-12
    )
    if result.supersteps > 1:
        with pytest.raises(nx.PowerIterationFailedConvergence):
            nx.katz_centrality(
                peer, alpha, max_iter=result.supersteps - 1, weight="weight"
            )


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize("excess", [1.0, 1.01, 3.0, 1e6])
def test_an_alpha_that_is_too_large_is_named(
    excess: float, target: str, star: fg.Graph
) -> None:
    with pytest.raises(fg.DivergenceError) as caught:
        katz_centrality(star, alpha=excess / 3, target=target)  # lambda is sqrt(9)
    assert "alpha below 0.3333, such as 0.3" in str(caught.value)
    assert "lambda about 3" in str(caught.value)


def test_walks_on_a_graph_without_cycles_end(target: str) -> None:
    # lambda is zero, however fast walks multiply before they end.
    fans = fg.Graph.from_edges([0] * 20 + [1] * 20, [1] * 20 + [2] * 20)
    result = katz_centrality(fans, alpha=5.0, normalized=False, target=target)
    assert result.converged
    assert result.centralities.tolist() == [1.0, 101.0, 10101.0]


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_rounding_is_not_taken_for_growth(target: str, star: fg.Graph) -> None:
    with np.errstate(under="ignore"):
        result = katz_centrality(
            star, alpha=0.1, tol=1e-30, max_supersteps=100, target=target
        )
    # It has come to a standstill but for the last digits, or altogether.
    assert result.residuals[-1] < 1e-12


def test_the_verifier_sees_what_is_wrong(star: fg.Graph) -> None:
    x = katz_centrality(star, tol=1e-10, normalized=False).centralities
    verify_katz_centrality(star, x)
    with pytest.raises(AssertionError, match="column 0: one more superstep"):
        verify_katz_centrality(star, x + 1e-3)
    with pytest.raises(AssertionError, match="vertex 3: less than beta"):
        verify_katz_centrality(star, np.where(np.arange(10) == 3, 0.9, x))


def test_scale_and_errors(target: str, star: fg.Graph) -> None:
    x = katz_centrality(star, beta=np.arange(10.0), target=target).centralities
    assert np.linalg.norm(x) == pytest.approx(1)
    for bad in ({"alpha": 0.0}, {"tol": 0.0}, {"beta": np.ones(3)}, {"beta": np.nan}):
        with pytest.raises(fg.GraphInputError):
            katz_centrality(star, **bad)  # type: ignore[arg-type]


def test_the_scale_of_beta_plays_no_part(target: str) -> None:
    rng = np.random.default_rng(3)
    ends = rng.integers(0, 12, (2, 40))
    graph = fg.Graph.from_edges(*ends, vertex_count=12)
    beta = rng.random(12)
    # Powers of two, which round nothing; columns of other scales beside each other.
    scales = np.array([1.0, 2.0**-27, 2.0**27, 2.0**-300])
    options: dict[str, Any] = {"alpha": 0.1, "normalized": False, "target": target}
    one = katz_centrality(graph, beta=beta, **options)
    for scale in scales:
        found = katz_centrality(graph, beta=scale * beta, **options)
        assert found.supersteps == one.supersteps
        assert found.centralities.tolist() == (scale * one.centralities).tolist()
        verify_katz_centrality(graph, found.centralities, beta=scale * beta)
        with pytest.raises(AssertionError, match="one more superstep"):
            verify_katz_centrality(graph, scale * beta, beta=scale * beta)
    together = katz_centrality(graph, beta=beta[:, None] * scales, **options)
    assert together.centralities.T.tolist() == [
        (scale * one.centralities).tolist() for scale in scales
    ]
    nothing = katz_centrality(graph, beta=0.0, target=target)
    assert nothing.converged
    assert not nothing.centralities.any()
