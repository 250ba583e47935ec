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
from featgraph.algorithms.sgd import epoch_of_sources
from tests.algorithms.test_sgd import graph_of
from tests.programs.exclusive import descend

ARRAYS = ("user_factors", "item_factors", "user_biases", "item_biases", "mean",
          "limits")  # fmt: skip


def some_ratings(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    full = rng.integers(1, 6, (19, 12)) * (rng.random((19, 12)) < 0.4)
    full[7] = 0
    return sparse.csr_matrix(full.astype(float))


def fitted(**more: Any) -> MatrixFactorization:
    own = {"factors": 3, "rate": 0.03, "epochs": 8, "target": "cpu"} | more
    return MatrixFactorization(**own).fit(some_ratings())


def scores_of(model: MatrixFactorization) -> Any:
    biases = model.user_biases[:, None] + model.item_biases
    return model.mean + biases + model.user_factors @ model.item_factors.T


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


def of_one_side(model: MatrixFactorization, rows: Any, what: str) -> tuple[Any, Any]:
    """Return factors and biases of rows after the epochs of NumPy, as given."""
    given, count = rows.tocoo(), rows.shape[0]
    other = {"user": "item", "item": "user"}[what]
    x = np.r_[np.zeros((count, model.factors)), getattr(model, f"{other}_factors")]
    b = np.r_[np.zeros(count), getattr(model, f"{other}_biases")]
    own = {"least": 0.0} if model.nonnegative else {}
    has_biases = not model.nonnegative and model.biases is not False
    for t in range(model.epochs):
        edges = zip(given.row, count + given.col, given.data, strict=True)
        step = model.rate / (1 + model.decay * t), model.regularization
        descend(edges, x, b, model.mean, *step, ends=1, has_biases=has_biases, **own)
    return x[:count], b[:count]


@pytest.mark.parametrize(
    "more",
    [{}, {"biases": False, "decay": 0.2}, {"nonnegative": True, "shuffle": 3}],
    ids=str,
)
def test_one_side_is_found_from_its_rows(more: dict[str, Any]) -> None:
    """By epochs from zeros, in which the other side is held."""
    model = fitted(dtype=np.float64, regularization=0.1, **more)
    of_users, of_items = some_ratings(5)[:6], some_ratings(6)[:, :5].T.tocsr()
    of_users.data[::3] *= -1  # so that some of what is nonnegative is projected
    x, b = of_one_side(model, of_users, "user")
    assert model.nonnegative == bool((x == 0).any())
    found = model._solved(of_users)
    expected = np.c_[x, b + model.mean, np.ones(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    ids, scores = model.recommend(0, of_users[:1], recalculate_user=True, N=3)
    all_scores = found[0] @ model._in_products()[1].T
    np.testing.assert_allclose(scores, all_scores[ids])
    assert -5 < model.score(of_users) < 0

    y, c = of_one_side(model, of_items, "item")
    ids, cosines = model.similar_items(
        [0, 0, 0, 0, 0], N=2, item_users=of_items, recalculate_item=True
    )
    ends = y[3], model.item_factors[ids[3, 0]]
    expected = ends[0] @ ends[1] / np.prod(np.linalg.norm(ends, axis=1))
    np.testing.assert_allclose(cosines[3, 0], expected, rtol=1e-10)

    before = {name: np.array(getattr(model, name)) for name in ARRAYS}
    model.partial_fit_items([2, 12, 13, 14, 16], of_items)
    for name, own in (("item_factors", y), ("item_biases", c)):
        now = getattr(model, name)
        np.testing.assert_allclose(
            now[[2, 12, 13, 14, 16]], own, rtol=1e-10, atol=1e-12
        )
        assert len(now) == 17
        assert not now[15].any()
        np.testing.assert_array_equal(now[3:12], before[name][3:12])
    for name in ("user_factors", "user_biases", "mean", "limits"):
        assert np.array_equal(getattr(model, name), before[name])
    model.partial_fit_users([7, 20], sparse.csr_matrix((2, 17)))
    assert model.user_biases.shape == (21,)
    assert not model.user_factors[7].any()
    assert model.predict(20, 16).shape == (1,)
    with pytest.raises(fg.GraphInputError, match="do not fit"):
        model.partial_fit_users([1], of_users)
    with pytest.raises(fg.GraphInputError, match="item_users is needed"):
        model.similar_items(0, recalculate_item=True)


def test_one_side_runs_by_rows() -> None:
    graph = fg.Graph.from_edges([0, 1], [2, 3], weights=[1.0, 2.0], sides=(2, 2))
    state = fg.State(
        graph, x=fg.vertex_property(np.ones((4, 3), np.float32)),
        bias=fg.vertex_property(0.0), rating=fg.edge_property(graph.weights),
        mean=1.5, rate=0.1, rate_of_biases=1.0, ridge=0.1, smallest=-np.inf,
    )  # fmt: skip
    explained = epoch_of_sources.explain(state, target="cpu")
    assert "rows: edges conflict at one end alone" in explained


def test_a_fit_of_one_side_that_diverges_is_named() -> None:
    model = fitted().set_params(rate=1e3, epochs=60)
    with pytest.raises(fg.DivergenceError, match="rate=1000"):
        model.partial_fit_users([0], some_ratings()[:1])
    assert np.isfinite(model.user_factors).all()


@pytest.mark.parametrize(
    "more",
    [{}, {"biases": False, "dtype": np.float64}, {"nonnegative": True}],
    ids=str,
)
def test_a_partial_fit_goes_on(more: dict[str, Any]) -> None:
    """The same ratings twice are as many epochs as both fits have."""
    whole, parts = fitted(epochs=8, **more), fitted(epochs=3, **more)
    assert parts.set_params(epochs=5).partial_fit(some_ratings()) is parts
    for name in ARRAYS:
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    first = MatrixFactorization(3, 0.03, epochs=8, target="cpu", **more)
    first.partial_fit(some_ratings())  # of what was not fitted: a fit
    assert np.array_equal(first.item_factors, whole.item_factors)


def test_a_partial_fit_takes_new_users_and_items() -> None:
    model, rng = fitted(), np.random.default_rng(3)
    old = {name: np.array(getattr(model, name)) for name in ARRAYS}
    # Of the old ones, user 2 and item 4; user 7 had no ratings; two new ones each.
    users, items = np.array([2, 7, 20, 20, 7, 2]), np.array([4, 4, 4, 13, 13, 13])
    values = rng.integers(1, 5, 6) + 2.0
    more = sparse.coo_matrix((values, (users, items)), shape=(21, 14))
    model.set_params(epochs=4, shuffle=None, schedule="serial").partial_fit(more)
    assert (model.user_factors.shape, model.item_biases.shape) == ((21, 3), (14,))
    begun = sgd_factorization(more, factors=3, epochs=0, target="cpu")
    x = np.concatenate((begun.user_factors, begun.item_factors)).astype(float)
    b = np.zeros(35)
    for start, count, side in ((0, 19, "user"), (21, 12, "item")):
        known = old[f"{side}_factors"].any(axis=1)
        x[start : start + count][known] = old[f"{side}_factors"][known]
        b[start : start + count] = old[f"{side}_biases"]
    edges = [*zip(users, 21 + items, values, strict=True)]
    descend(4 * edges, x, b, old["mean"], 0.03, 0.05)
    x[19], b[19] = 0, 0  # new, and without ratings
    found = np.r_[model.user_factors, model.item_factors]
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-6)
    biases = np.r_[model.user_biases, model.item_biases]
    np.testing.assert_allclose(biases, b, rtol=1e-4, atol=1e-6)
    assert np.array_equal(model.user_factors[3:7], old["user_factors"][3:7])
    assert model.mean == old["mean"]
    assert model.limits.tolist() == [1, max(5, values.max())]
    before = {name: np.array(getattr(model, name)) for name in ARRAYS}
    for few in (sparse.csr_matrix([[5.0, 4.0]]), some_ratings()):
        with pytest.raises(fg.GraphInputError, match="fewer users or items"):
            model.partial_fit(few)
    with pytest.raises(fg.GraphInputError, match="sparse matrix"):
        model.partial_fit(np.ones((2, 2)))
    for name in ARRAYS:
        assert np.array_equal(getattr(model, name), before[name])


def test_the_best_epoch_of_held_out_ratings_is_kept() -> None:
    ratings, held = some_ratings(), some_ratings(9)
    own = {"factors": 5, "rate": 0.1, "regularization": 0.0, "target": "cpu"}
    model = MatrixFactorization(**own, epochs=40).fit(ratings, validation=held)
    errors = model.result_.validation_rmse
    best = model.result_.best_epoch
    assert errors.size == 40
    assert 1 <= best < 40
    assert errors[best - 1] == errors.min()
    at_best = MatrixFactorization(**own, epochs=best).fit(ratings)
    for name in ARRAYS:
        assert np.array_equal(getattr(model, name), getattr(at_best, name)), name
    entries = held.tocoo()
    miss = at_best.set_params(clip=False).predict(entries.row, entries.col)
    expected = np.sqrt(np.mean((miss - entries.data) ** 2))
    np.testing.assert_allclose(errors.min(), expected, rtol=1e-5)
    patient = MatrixFactorization(**own, epochs=40, patience=2, history=True)
    patient.fit(ratings, validation=held)
    assert patient.result_.supersteps == best + 2
    assert patient.result_.training_rmse.size == best + 2
    assert np.array_equal(patient.user_factors, model.user_factors)
    # Goes on, where the best epoch is counted anew.
    patient.partial_fit(ratings, validation=held)
    assert patient.result_.validation_rmse.size <= 40
    with pytest.raises(fg.GraphInputError, match="could stop falling"):
        patient.fit(ratings)


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
    graph = graph_of(some_ratings().tocoo())
    model = MatrixFactorization(3, 0.03, epochs=8, target="cpu").fit(graph)
    assert np.array_equal(model.user_factors, fitted().user_factors)
    assert model.limits.tolist() == [1, 5]
