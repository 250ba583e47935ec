"""Factorisation by gradient descent against NumPy, and against the laws it obeys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import als, gradient_factorization
from featgraph.algorithms.gradient_factorization import verify_gradient_factorization


def some_ratings(seed: int, users: int = 23, items: int = 17) -> Any:
    rng = np.random.default_rng(seed)
    full = rng.normal(2, 2, (users, items)) * (rng.random((users, items)) < 0.3)
    full[3], full[:, 5] = 0, 0
    return sparse.csr_matrix(full)


def steps_of_numpy(
    ratings: Any, x: Any, y: Any, iterations: int, rate: float, ridge: float
) -> tuple[Any, Any]:
    """Go on row by row, each along the gradient of its own ratings."""
    full = ratings.toarray()
    mask = full != 0
    for _ in range(iterations):
        for rows, held, r, given_ in ((x, y, full, mask), (y, x, full.T, mask.T)):
            for i in np.flatnonzero(given_.any(axis=1)):
                others = held[given_[i]]
                own = ridge * len(others)
                slope = (r[i][given_[i]] - others @ rows[i]) @ others - own * rows[i]
                rows[i] += rate * slope / ((others**2).sum() + own)
    return x, y


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.3, 1.0, 2.0]),
    ridge=st.sampled_from([0.0, 0.05, 2.0]),
)
def test_steps_are_those_of_numpy_and_the_error_falls(
    seed: int, rate: float, ridge: float
) -> None:
    ratings, rng = some_ratings(seed), np.random.default_rng(seed)
    begin = [rng.normal(size=(count, 3)) for count in ratings.shape]
    for side, rows in enumerate(begin):  # as those without ratings are left
        rows[ratings.getnnz(axis=1 - side) == 0] = 0
    result = gradient_factorization(
        ratings, factors=3, rate=rate, regularization=ridge, iterations=3,
        initial=tuple(begin), history=True, dtype=np.float64, target="cpu",
    )  # fmt: skip
    verify_gradient_factorization(
        ratings, result.user_factors, result.item_factors, regularization=ridge,
        errors=result.residuals, rtol=1e-10,
    )  # fmt: skip
    x, y = steps_of_numpy(ratings, *begin, 3, rate, ridge)
    np.testing.assert_allclose(result.user_factors, x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.item_factors, y, rtol=1e-9, atol=1e-12)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [1, 33])
def test_single_precision_ends_near_exact_solutions(target: str, k: int) -> None:
    ratings = some_ratings(1)
    options: dict[str, Any] = {"factors": k, "regularization": 0.3, "target": target}
    found = gradient_factorization(ratings, iterations=400, history=True, **options)
    verify_gradient_factorization(
        ratings, found.user_factors, found.item_factors, regularization=0.3,
        errors=found.residuals,
    )  # fmt: skip
    exact = als(ratings, iterations=100, history=True, **options)
    assert found.residuals[-1] <= 1.02 * exact.residuals[-1]
    assert found.supersteps == 800


def test_tolerance_ends_the_run() -> None:
    ratings = some_ratings(3)
    options: dict[str, Any] = {"factors": 4, "iterations": 500, "target": "cpu"}
    result = gradient_factorization(ratings, tolerance=1e-3, **options)
    assert result.converged
    assert 4 < result.supersteps < 1000
    last = result.residuals[[-3, -1]]
    assert last[0] - last[1] <= 1e-3 * last[0]


def test_a_verifier_finds_what_is_wrong() -> None:
    ratings = some_ratings(2)
    found = gradient_factorization(
        ratings, factors=2, iterations=5, history=True, target="cpu"
    )
    x, y, errors = found.user_factors, found.item_factors, found.residuals
    verify_gradient_factorization(ratings, x, y, errors=errors)
    moved = x.copy()
    moved[3] = 1
    for wrong in (
        {"user_factors": moved},
        {"item_factors": 2 * y},
        {"errors": errors[::-1]},
        {"errors": np.append(errors[:1] / 2, errors)},
    ):
        with pytest.raises(AssertionError):
            verify_gradient_factorization(
                ratings,
                **{"user_factors": x, "item_factors": y, "errors": errors} | wrong,
            )


@pytest.mark.parametrize("factorise", [als, gradient_factorization])
def test_ratings_may_be_a_graph(factorise: Any) -> None:
    ratings = some_ratings(4)
    options: dict[str, Any] = {"factors": 3, "iterations": 2, "target": "cpu"}
    graph = fg.Graph.from_biadjacency(ratings)
    expected = factorise(ratings, **options).factors
    np.testing.assert_array_equal(factorise(graph, **options).factors, expected)

    one_way = fg.Graph.from_edges([0, 1], [2, 2], weights=[1.0, 2.0], sides=(2, 1))
    for wrong, what in (
        (one_way, "directed"),
        (fg.Graph.from_edges([0], [1], weights=[1.0], directed=False), "no sides"),
        (fg.Graph.from_edges([0], [1], directed=False, sides=(1, 1)), "weights"),
    ):
        with pytest.raises(fg.GraphInputError, match=what):
            factorise(wrong, **options)
    endless = fg.Graph.from_edges(
        [0, 1], [2, 3], weights=[1.0, np.inf], directed=False, sides=(2, 2)
    )
    with pytest.raises(fg.GraphInputError, match=r"user 1: a rating is not finite"):
        factorise(endless, **options)


@pytest.mark.parametrize("rate", [0.0, -1.0, 2.5, np.nan])
def test_a_rate_that_may_diverge_is_refused(rate: float) -> None:
    with pytest.raises(fg.GraphInputError, match="rate out of range"):
        gradient_factorization(some_ratings(0), rate=rate)


def test_all_items_are_not_few_of_what_users_gather_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is kept for patches where all of a side has moved, be it small."""
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_A_VERTEX", 0)
    ratings = some_ratings(2, users=90, items=7)
    result = gradient_factorization(ratings, factors=2, iterations=2, target="cpu")
    assert result.run.aggregates == ["recomputed"] * 4
