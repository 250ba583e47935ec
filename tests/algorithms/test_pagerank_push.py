"""PageRank by pushing against the linear system, networkx and `pagerank`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.pagerank_push import pagerank_push, verify_pagerank_push
from tests.algorithms.dense import dense
from tests.strategies import graphs, seeds

Array = npt.NDArray[Any]


def solution(matrix: Array, personal: Array, alpha: float) -> Array:
    """Return PageRank (V, k), where a surfer without out-edges jumps."""
    out = matrix.sum(axis=0)
    moves = matrix / np.where(out == 0, 1, out)
    y = np.linalg.solve(np.eye(len(matrix)) - alpha * moves, personal)
    return np.asarray(y / y.sum(axis=0))


@given(graphs(max_edges=100), st.sampled_from([1, 4]), st.floats(0.0, 0.95), seeds)
def test_the_error_is_within_its_bound(
    target: str, graph: fg.Graph, k: int, alpha: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count, weights = graph.vertex_count, None
    personal = rng.integers(0, 3, (count, k)) + 0.0
    personal[rng.integers(0, count)] += 1
    if k > 1:
        # A third of them zero: vertices with edges can be dangling, too.
        weights = rng.integers(0, 3, graph.given_edge_count) + 0.0
    given_values: dict[str, Any] = {
        "alpha": alpha, "weights": weights, "epsilon": 10.0 ** -rng.integers(3, 8),
        "personalization": personal,
    }  # fmt: skip
    result = pagerank_push(graph, target=target, **given_values)
    verify_pagerank_push(graph, result, **given_values)
    matrix = dense(graph, np.ones(graph.given_edge_count) if k == 1 else weights)
    expected = solution(matrix, personal / personal.sum(axis=0), alpha)
    off = np.abs(result.ranks - expected).sum(axis=0)
    assert (off <= result.error_bound + 1e-12).all()
    assert (
        result.error_bound * result.mass <= 2 * count * given_values["epsilon"]
    ).all()
    if (matrix.sum(axis=0) > 0).all():
        # Nothing is lost, so what ranks lack is exactly what remains.
        missing = result.remaining.sum(axis=0)
        assert result.mass + missing == pytest.approx(np.ones(k), abs=1e-12)
        assert (result.ranks * result.mass <= expected + 1e-12).all()


def test_few_seeds_touch_few_vertices(target: str) -> None:
    path = fg.Graph.from_edges(np.arange(9999), np.arange(1, 10000), directed=False)
    personal = np.zeros(10000)
    personal[5000] = 1
    result = pagerank_push(path, personalization=personal, epsilon=1e-4, target=target)
    touched = np.flatnonzero(result.ranks)
    assert touched.min() > 4900
    assert touched.max() < 5100
    assert max(result.run.active_counts) < 200
    verify_pagerank_push(path, result, personalization=personal, epsilon=1e-4)


def test_ranks_are_those_of_networkx(target: str) -> None:
    peer = nx.les_miserables_graph()
    names = {name: number for number, name in enumerate(peer)}
    edges = [(names[u], names[v], w) for u, v, w in peer.edges(data="weight")]
    ends = np.array(edges)
    graph = fg.Graph.from_edges(ends[:, 0], ends[:, 1], directed=False)
    result = pagerank_push(
        graph, weights=ends[:, 2], epsilon=1e-9, history=True, target=target
    )
    theirs = nx.pagerank(peer, tol=1e-12)
    assert result.ranks == pytest.approx([theirs[n] for n in names], abs=1e-7)
    assert (np.diff(result.residuals) < 0).all()
    assert result.residuals[-1] == pytest.approx(result.remaining.sum())


def test_the_bound_holds_at_a_limit(target: str) -> None:
    ring = fg.Graph.from_edges(np.arange(20), (np.arange(20) + 1) % 20)
    seed = np.eye(20)[3]
    with pytest.warns(fg.ConvergenceWarning):
        result = pagerank_push(
            ring, personalization=seed, max_supersteps=4, target=target
        )
    expected = solution(dense(ring, np.ones(20)), seed[:, None], 0.85)[:, 0]
    off = np.abs(result.ranks - expected).sum()
    assert result.remaining.sum() == pytest.approx(0.85**4)
    assert 0.5 * result.error_bound * result.mass <= off <= result.error_bound


def test_the_verifier_sees_what_is_wrong() -> None:
    ring = fg.Graph.from_edges(np.arange(20), (np.arange(20) + 1) % 20)
    right = pagerank_push(ring, personalization=np.eye(20)[3])
    changes: list[tuple[dict[str, Any], str]] = [
        ({"ranks": np.roll(right.ranks, 1)}, "vertex 3: rank went astray"),
        ({"ranks": 2 * right.ranks}, "do not sum to one"),
        ({"mass": 1.001 * right.mass}, "rank went astray"),
        ({"remaining": right.remaining + 1e-5}, "more than epsilon"),
        ({"remaining": right.remaining - 1e-5}, "a negative residual"),
        ({"remaining": np.zeros(20)}, "rank went astray"),
    ]
    verify_pagerank_push(ring, right, personalization=np.eye(20)[3])
    for change, message in changes:
        with pytest.raises(AssertionError, match=message):
            verify_pagerank_push(
                ring, replace(right, **change), personalization=np.eye(20)[3]
            )


def test_bad_input_is_refused() -> None:
    edge = fg.Graph.from_edges([0], [1])
    for bad in (
        {"alpha": 1.0},
        {"epsilon": 0.0},
        {"personalization": [0, 0]},
        {"weights": [-1.0]},
        {"weights": [1.0, 2.0]},
    ):
        with pytest.raises(fg.GraphInputError):
            pagerank_push(edge, **bad)  # type: ignore[arg-type]
    with pytest.raises(fg.GraphInputError, match=r"epsilon of 0\.005 or less"):
        pagerank_push(edge, epsilon=0.5)
