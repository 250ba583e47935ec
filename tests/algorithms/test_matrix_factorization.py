"""The estimator around stochastic gradient descent: queries, biases, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import featgraph as fg
from featgraph.algorithms import (
    AlternatingLeastSquares,
    MatrixFactorization,
    sgd_factorization,
)

ARRAYS = (
    "user_factors",
    "item_factors",
    "user_biases",
    "item_biases",
    "mean",
    "limits",
)


def some_ratings(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    full = rng.integers(1, 6, (19, 12)) * (rng.random((19, 12)) < 0.4)
    full[7] = 0
    return sparse.csr_matrix(full.astype(float))


def fitted(**more: Any) -> MatrixFactorization:
    own = {"factors": 3, "rate": 0.03, "epochs": 8, "target": "cpu"} | more
    return MatrixFactorization(**own).fit(some_ratings())


def scores_of(model: MatrixFactorization) -> Any:
    return (
        model.mean
        + model.user_biases[:, None]
        + model.item_biases
        + model.user_factors @ model.item_factors.T
    )


def test_it_fits_as_the_function_does() -> None:
    model = fitted(decay=0.1, shuffle=5, schedule="levels", history=True)
    found = sgd_factorization(
        some_ratings(), factors=3, rate=0.03, epochs=8, decay=0.1, shuffle=5,
        schedule="levels", target="cpu",
    )  # fmt: skip
    assert np.array_equal(model.user_factors, found.user_factors)
    assert np.array_equal(model.item_factors, found.item_factors)
    biases = np.concatenate((model.user_biases, model.item_biases))
    assert np.array_equal(biases, found.biases)
    assert model.mean == found.mean
    assert model.result_.training_rmse.size == 8
    assert not model.user_biases[7]


@pytest.mark.parametrize(
    "more", [{}, {"biases": False}, {"nonnegative": True}], ids=str
)
def test_queries(more: dict[str, Any]) -> None:
    model, ratings = fitted(**more), some_ratings()
    scores = scores_of(model)
    users, items = ratings.nonzero()
    clipped = np.clip(scores[users, items], 1, 5)
    np.testing.assert_allclose(model.predict(users, items), clipped, rtol=1e-5)
    model.set_params(clip=False)
    np.testing.assert_allclose(
        model.predict(users, items), scores[users, items], rtol=1e-5
    )
    ids, best = model.recommend([2, 4], ratings[[2, 4]], N=12)
    left = np.where(ratings[[2, 4]].toarray() > 0, -np.inf, scores[[2, 4]])
    assert np.array_equal(best == -np.inf, ids == -1)
    np.testing.assert_allclose(best, -np.sort(-left), rtol=1e-5)
    chosen, _ = model.recommend(3, items=[1, 5], filter_already_liked_items=False)
    assert set(chosen[:2]) == {1, 5}
    # Biases take no part in similarities.
    y = model.item_factors / np.linalg.norm(model.item_factors, axis=1)[:, None]
    ids, cosines = model.similar_items(2, N=4)
    np.testing.assert_allclose(cosines, -np.sort(-(y @ y[2]))[:4], rtol=1e-4, atol=1e-6)
    assert ids[0] == 2
    assert model.similar_users(3)[0][0] == 3


def test_predictions_are_clipped() -> None:
    model = fitted()
    model.item_biases = model.item_biases + np.float32(50)
    assert (model.predict(np.arange(19), 3) == 5).all()
    assert model.set_params(clip=False).predict(0, 3)[0] > 40


@pytest.mark.parametrize("biases", [None, False])
def test_users_are_found_from_their_rows(biases: bool | None) -> None:
    """Their factors and bias are the minimum of the error that epochs lower."""
    model = fitted(biases=biases, regularization=0.1, dtype=np.float64)
    rows, k = some_ratings(5)[:6], 3 + (biases is None)
    found = model._solved(rows)
    y = np.c_[model.item_factors, np.ones(12)][:, :k]
    for row, own in zip(rows, found, strict=True):
        at = row.indices
        wanted = row.data - model.mean - model.item_biases[at]
        system = y[at].T @ y[at] + 0.1 * at.size * np.eye(k)
        expected = np.zeros(5)
        expected[:k] = np.linalg.solve(system, y[at].T @ wanted)
        expected[3:] += model.mean, 1
        np.testing.assert_allclose(own, expected, rtol=1e-8, atol=1e-10)
    ids, scores = model.recommend(0, rows[:1], recalculate_user=True, N=3)
    all_scores = found[0] @ model._in_products()[1].T
    np.testing.assert_allclose(scores, all_scores[ids])
    assert -5 < model.score(rows) < 0
    with pytest.raises(fg.GraphInputError, match="nonnegative"):
        fitted(nonnegative=True).recommend(0, rows[:1], recalculate_user=True)


def test_it_is_an_estimator() -> None:
    model = MatrixFactorization(4, nonnegative=True, shuffle=None)
    parameters = model.get_params()
    assert parameters["factors"] == 4
    assert parameters["shuffle"] is None
    assert clone(model).get_params() == parameters
    assert repr(model).startswith("MatrixFactorization(factors=4")
    with pytest.raises(fg.FeatGraphError, match="not fitted"):
        model.predict(0, 0)
    search = GridSearchCV(
        MatrixFactorization(2, epochs=3, target="cpu"), {"rate": [1e-3, 0.03]}, cv=2
    )
    assert -5 < search.fit(some_ratings()).best_score_ < 0
    model.set_params(biases=True)
    with pytest.raises(fg.GraphInputError, match="a bias may be negative"):
        model.fit(some_ratings())


@pytest.mark.parametrize(
    "more", [{}, {"nonnegative": True, "dtype": np.float64}], ids=str
)
def test_it_is_saved(tmp_path: Path, more: dict[str, Any]) -> None:
    model, path = fitted(**more), tmp_path / "model.npz"
    model.save(path)
    again = MatrixFactorization.load(path)
    for name in ARRAYS:
        assert np.array_equal(getattr(again, name), getattr(model, name)), name
    own, kept = model.get_params(), again.get_params()
    assert np.dtype(own.pop("dtype")) == np.dtype(kept.pop("dtype"))
    assert own == kept
    assert np.array_equal(again.predict(3, 4), model.predict(3, 4))
    with pytest.raises(fg.FileFormatError, match="another version or kind"):
        AlternatingLeastSquares.load(path)
    for name in ARRAYS:
        damaged = dict(fg.read_arrays(path))
        damaged[name] = np.append(damaged[name], 1.0)
        fg.write_arrays(tmp_path / "damaged.npz", damaged)
        with pytest.raises(fg.FileFormatError, match="do not fit the parameters"):
            MatrixFactorization.load(tmp_path / "damaged.npz")
        del damaged[name]
        fg.write_arrays(tmp_path / "damaged.npz", damaged)
        with pytest.raises(fg.FileFormatError, match="not a saved model"):
            MatrixFactorization.load(tmp_path / "damaged.npz")


def test_ratings_may_be_a_graph() -> None:
    ratings = some_ratings().tocoo()
    graph = fg.Graph.from_edges(
        ratings.row, 19 + ratings.col, weights=ratings.data, sides=ratings.shape
    )
    model = MatrixFactorization(3, 0.03, epochs=8, target="cpu").fit(graph)
    assert np.array_equal(model.user_factors, fitted().user_factors)
    assert model.limits.tolist() == [1, 5]
