"""Alternating least squares against NumPy in float64, and against the laws it obeys."""

from __future__ import annotations

import gc
import inspect
import os
import weakref
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import AlternatingLeastSquares, _ratings
from featgraph.algorithms._ratings import checked_options
from featgraph.algorithms.als import als, solve_side, verify_als
from featgraph.algorithms.ranking_metrics import (
    ranking_metrics,
    rmse,
    train_test_split,
)

#: Each pair is a kernel to compile: a few of each, on both sides of a panel of rows.
SOLVERS = [
    ("cholesky", 1),
    ("cholesky", 8),
    ("cholesky", 64),
    ("cg", 64),
]


def some_ratings(
    seed: int, users: int = 23, items: int = 17, share: float = 0.3
) -> Any:
    rng = np.random.default_rng(seed)
    full = rng.integers(1, 6, (users, items)) * (rng.random((users, items)) < share)
    full[3] = 0
    full[:, 5] = 0
    return sparse.csr_matrix(full.astype(np.float64))


def objective(
    ratings: Any,
    x: Any,
    y: Any,
    *,
    regularization: float,
    weighted_regularization: bool,
    implicit: bool,
    alpha: float,
) -> float:
    """Evaluate the error pair by pair."""
    full = ratings.toarray()
    x, y = x.astype(np.float64), y.astype(np.float64)
    given_ = full != 0
    predicted = x @ y.T
    if implicit:
        confidence = np.where(given_, np.abs(alpha * full), 1.0)
        error = (confidence * ((full > 0) - predicted) ** 2).sum()
    else:
        error = ((full - predicted)[given_] ** 2).sum()
    weighted = weighted_regularization
    counts = [given_.sum(axis=axis) if weighted else 1.0 for axis in (1, 0)]
    penalty = ((x**2).sum(1) * counts[0]).sum() + ((y**2).sum(1) * counts[1]).sum()
    return float(error + regularization * penalty)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("solver", "k"), SOLVERS)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 10**6),
    implicit=st.booleans(),
    weighted=st.booleans(),
    alpha=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_every_row_is_its_minimum_and_the_error_falls(
    solver: str, k: int, seed: int, implicit: bool, weighted: bool, alpha: float
) -> None:
    ratings = some_ratings(seed)
    if implicit:
        ratings.data[::7] *= -1  # dislikes of that confidence
    model: dict[str, Any] = {
        "regularization": 0.3,
        "weighted_regularization": weighted,
        "implicit": implicit,
        "alpha": alpha,
    }
    result = als(
        ratings, factors=k, solver=solver, iterations=4, history=True,
        dtype=np.float64, target="cpu", **model,
    )  # fmt: skip
    users, items = result.user_factors, result.item_factors
    verify_als(
        ratings, users, items, errors=result.residuals,
        margin=1e-9 if solver == "cholesky" else 0.5, **model,
    )  # fmt: skip
    error = objective(ratings, users, items, **model)
    np.testing.assert_allclose(result.residuals[-1], error, rtol=1e-9)
    if not implicit:
        expected = rmse(ratings, users, items)
        np.testing.assert_allclose(result.training_rmse[-1], expected, rtol=1e-7)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("k", [2, 33])
def test_single_precision_agrees_with_numpy(
    target: str, k: int, implicit: bool
) -> None:
    ratings = some_ratings(1)
    result = als(
        ratings, factors=k, regularization=0.1, implicit=implicit, iterations=3,
        history=True, solver="cholesky", target=target,
    )  # fmt: skip
    verify_als(
        ratings, result.user_factors, result.item_factors, regularization=0.1,
        implicit=implicit, errors=result.residuals, margin=2e-3,
    )  # fmt: skip


def test_conjugate_gradients_end_where_cholesky_does() -> None:
    ratings = some_ratings(2)
    ends = [
        als(
            ratings, factors=64, regularization=0.3, solver=solver, iterations=300,
            dtype=np.float64, history=True, target="cpu",
        ).residuals[-1]
        for solver in ("cholesky", "cg")
    ]  # fmt: skip
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-4)


def test_tolerance_ends_the_run() -> None:
    ratings = some_ratings(3)
    result = als(ratings, factors=4, iterations=500, tolerance=1e-4, target="cpu")
    assert result.converged
    assert 4 < result.supersteps < 1000
    assert not als(ratings, factors=4, iterations=2, target="cpu").converged


@pytest.mark.drawn(4)
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("implicit", [False, True])
def test_more_factors_than_ratings_without_regularization(
    implicit: bool, solver: str
) -> None:
    ratings = some_ratings(4)
    result = als(
        ratings, factors=64, regularization=0.0, implicit=implicit, iterations=20,
        solver=solver, dtype=np.float64, target="cpu",
    )  # fmt: skip
    assert np.abs(result.user_factors).max() < 100
    if not implicit:  # enough freedom to meet every rating
        assert rmse(ratings, result.user_factors, result.item_factors) < 1e-3


def test_users_and_items_without_ratings_are_zeros() -> None:
    result = als(some_ratings(5), factors=4, target="cpu")
    assert not result.user_factors[3].any()
    assert not result.item_factors[5].any()
    assert result.user_factors[0].any()
    nothing = als(sparse.csr_matrix((3, 2)), factors=4, target="cpu")
    assert not nothing.user_factors.any()


def test_stored_zeros_are_ratings() -> None:
    rows, columns = [0, 0, 1, 1], [0, 1, 0, 1]
    values = np.array([5.0, 0.0, 5.0, 5.0])
    ratings = sparse.csr_matrix((values, (rows, columns)))
    result = als(ratings, factors=2, regularization=1e-4, iterations=50, target="cpu")
    predicted = result.user_factors @ result.item_factors.T
    np.testing.assert_allclose(predicted, ratings.toarray(), atol=0.05)


#: User 0 has rated item 1 twice; no two ratings are equal.
REPEATED = np.array([4.0, 5.0, 3.0, 2.0]), ([0, 0, 1, 1], [1, 1, 0, 2])


@pytest.mark.parametrize("made", ["coo_array", "csr_matrix"])
def test_a_split_keeps_each_entry_in_one_part(made: str) -> None:
    values, (rows, columns) = REPEATED
    ratings = sparse.coo_array(REPEATED, shape=(3, 3))
    if made == "csr_matrix":  # as it is stored: SciPy's conversion adds repeats up
        ratings = sparse.csr_matrix((values, columns, [0, 2, 4, 4]), shape=(3, 3))
    wanted = sorted(zip(rows, columns, values.tolist(), strict=True))
    for seed in range(6):
        parts = train_test_split(ratings, 0.75, random_state=seed)
        assert [part.nnz for part in parts] == [3, 1]
        assert all(part.format == "csr" and part.shape == (3, 3) for part in parts)
        entries = (
            zip(p.coords[0], p.coords[1], p.data, strict=True)
            for p in map(sparse.coo_array, parts)
        )
        assert sorted(chain.from_iterable(entries)) == wanted


@pytest.mark.parametrize("dtype", [np.float64, np.int16, bool, np.longdouble])
@pytest.mark.parametrize("stored", ["coo", "csr", "csc"])
def test_entries_given_twice_are_two_ratings(stored: str, dtype: Any) -> None:
    shape, ends = (2, 3), ([0, 0, 1, 1], [0, 0, 0, 2])
    values = np.array([1, 1, 1, 1], dtype)
    ratings = {
        "coo": lambda: sparse.coo_array((values, ends), shape=shape),
        "csr": lambda: sparse.csr_array((values, ends[1], [0, 2, 4]), shape=shape),
        "csc": lambda: sparse.csc_array((values, ends[0], [0, 3, 3, 4]), shape=shape),
    }[stored]()
    graph = _ratings.checked_ratings(ratings, np.dtype(np.float32)).graph
    assert graph.weights is not None
    assert graph.weights.tolist() == [1.0] * 4
    assert ratings.nnz == 4


def test_runs_are_repeated_bit_by_bit() -> None:
    ratings = some_ratings(6)
    options = {"factors": 64, "implicit": True, "dtype": np.float64, "target": "cpu"}
    first, second = (als(ratings, **options) for _ in range(2))
    assert (first.user_factors == second.user_factors).all()
    other = als(ratings, random_state=1, **options)
    assert (first.user_factors != other.user_factors).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": 0}, "factors out of range"),
        ({"factors": 2.5}, "factors=: not an integer"),
        ({"regularization": -1.0}, "regularization out of range"),
        ({"alpha": float("nan")}, "alpha out of range"),
        ({"solver": "lu"}, "unknown solver"),
        ({"initial": (np.zeros((2, 2)), np.zeros((2, 2)))}, "another shape"),
        ({"dtype": np.int32}, "not a type of factors"),
    ],
)
def test_bad_options(change: dict[str, Any], message: str) -> None:
    kinds = fg.GraphInputError, fg.ArgumentError
    with pytest.raises(kinds, match=message):
        als(some_ratings(0), **{"target": "cpu", **change})


def test_what_is_made_of_a_graph_of_ratings_is_kept_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sides and totals are cached by their options, no longer than the graph lives."""
    looked: list[Any] = []
    look = _ratings.survey
    monkeypatch.setattr(
        _ratings, "survey", lambda state, **k: looked.append(1) or look(state, **k)
    )
    graph = fg.Graph.from_biadjacency(some_ratings(3))
    options: dict[str, Any] = {"factors": 4, "iterations": 2, "target": "cpu"}
    expected = als(some_ratings(3), **options)
    for _ in range(3):
        found = als(graph, **options)
        np.testing.assert_array_equal(found.factors, expected.factors)
    assert len(looked) == 2  # of the matrix, and of the graph
    for other in ({"implicit": True}, {"dtype": np.float64}):
        given = [als(x, **options, **other) for x in (graph, some_ratings(3))]
        np.testing.assert_array_equal(given[0].factors, given[1].factors)
    assert len(looked) == 6
    known = weakref.ref(graph)
    del graph, found, given
    gc.collect()
    assert known() is None


def test_bad_ratings() -> None:
    ratings = some_ratings(0)
    ratings.data[0] = np.nan
    with pytest.raises(fg.GraphInputError, match="not finite"):
        als(ratings)
    with pytest.raises(fg.GraphInputError, match="sparse matrix"):
        als(np.ones((2, 2)))
    with pytest.raises(fg.GraphInputError, match="without users or items"):
        als(sparse.csr_matrix((0, 3)))
    huge = some_ratings(0) * 1e30
    with pytest.raises(fg.FeatGraphError, match="infinite or nan"):
        als(huge, factors=2, target="cpu", iterations=20)


@pytest.fixture(scope="module")
def model() -> AlternatingLeastSquares:
    return AlternatingLeastSquares(factors=4, implicit=True, target="cpu").fit(
        some_ratings(7)
    )


def test_recommend_against_brute_force(model: AlternatingLeastSquares) -> None:
    ratings = some_ratings(7)
    scores = model.user_factors @ model.item_factors.T
    ids, best = model.recommend(np.array([0, 8]), ratings[[0, 8]], N=5)
    assert ids.shape == best.shape == (2, 5)
    for row, user in enumerate((0, 8)):
        left = [i for i in range(17) if not ratings[user, i]]
        expected = sorted(left, key=lambda i: -scores[user, i])[:5]
        assert ids[row].tolist() == expected
        np.testing.assert_allclose(best[row], scores[user, expected])
    ids, _ = model.recommend(0, filter_already_liked_items=False, N=100)
    assert sorted(ids[:17]) == list(range(17))
    assert (ids[17:] == -1).all()
    ids, best = model.recommend(0, ratings[0], items=[1, 2, 9], N=3)
    assert set(ids) - {-1} <= {1, 2, 9}
    assert np.isneginf(best[ids == -1]).all()


def test_fold_in_equals_the_system(model: AlternatingLeastSquares) -> None:
    ratings = some_ratings(8)
    y = model.item_factors.astype(np.float64)
    found = solve_side(
        ratings, model.item_factors, weighted_regularization=False, implicit=True,
        target="cpu",
    )  # fmt: skip
    full = ratings.toarray()
    for user in (0, 9):
        above = np.where(full[user] > 0, full[user] - 1, 0)
        system = y.T @ y + (above[:, None] * y).T @ y + 0.05 * np.eye(4)
        np.testing.assert_allclose(
            found[user], np.linalg.solve(system, full[user] @ y), rtol=1e-3, atol=1e-5
        )
    ids, _ = model.recommend(99, ratings[0], recalculate_user=True, N=3)
    scores = np.where(full[0] > 0, -np.inf, found[0] @ model.item_factors.T)
    assert ids.tolist() == np.argsort(-scores, kind="stable")[:3].tolist()


def test_partial_fits() -> None:
    ratings = some_ratings(9)
    model = AlternatingLeastSquares(factors=4, implicit=True, target="cpu").fit(ratings)
    before = model.user_factors.copy()
    model.partial_fit_users([1, 25], ratings[[2, 2]])
    assert model.user_factors.shape == (26, 4)
    np.testing.assert_allclose(model.user_factors[1], model.user_factors[25], rtol=1e-5)
    assert not model.user_factors[23:25].any()
    assert (model.user_factors[4:20] == before[4:20]).all()
    model.partial_fit_items([0], sparse.csr_matrix((1, 26)))
    assert not model.item_factors[0].any()
    with pytest.raises(fg.GraphInputError, match="do not fit"):
        model.partial_fit_users([1], ratings[[2, 2]])


def test_similar_items(model: AlternatingLeastSquares) -> None:
    ids, cosines = model.similar_items(2, N=4)
    y = model.item_factors / np.maximum(
        np.linalg.norm(model.item_factors, axis=1, keepdims=True), 1e-30
    )
    assert ids[0] == 2
    np.testing.assert_allclose(cosines, (y @ y[2])[ids], rtol=1e-5)
    assert (np.diff(cosines) <= 0).all()
    assert model.similar_users([1, 2])[0].shape == (2, 10)


def test_save_and_load(model: AlternatingLeastSquares, tmp_path: Any) -> None:
    path = tmp_path / "model.npz"
    model.save(path)
    again = AlternatingLeastSquares.load(path)
    assert (again.user_factors == model.user_factors).all()
    assert again.factors == 4
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]
    whole = path.read_bytes()
    for damaged in (whole[:-40], whole[: len(whole) // 2], b"", b"nothing"):
        path.write_bytes(damaged)
        with pytest.raises(fg.FileFormatError):
            AlternatingLeastSquares.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(fg.FileFormatError):
        AlternatingLeastSquares.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(fg.FileFormatError, match="not a regular file"):
        AlternatingLeastSquares.load(path)


def test_one_default() -> None:
    plain, parameters = (
        vars(AlternatingLeastSquares()),
        inspect.signature(als).parameters,
    )
    for name in plain.keys() & parameters.keys() - {"weighted_regularization"}:
        assert plain[name] == parameters[name].default, name


def test_every_parameter_is_saved(tmp_path: Any) -> None:
    chosen: dict[str, Any] = {
        "factors": 8, "regularization": 0.3, "alpha": 2.0, "iterations": 2,
        "implicit": True, "weighted_regularization": False, "tolerance": 1e-3,
        "solver": "cholesky", "dtype": "float64", "random_state": 5, "history": True,
        "target": "cpu",
    }  # fmt: skip
    plain = vars(AlternatingLeastSquares())
    for of_one_machine in ("checkpoint", "every", "repartition"):
        del plain[of_one_machine]
    assert chosen.keys() == plain.keys()
    assert all(chosen[name] != plain[name] for name in plain), "none at its default"
    model = AlternatingLeastSquares(**chosen).fit(some_ratings(11))
    model.save(tmp_path / "model.npz")
    again = AlternatingLeastSquares.load(tmp_path / "model.npz")
    assert {name: getattr(again, name) for name in chosen} == chosen
    assert again.user_factors.dtype == again.item_factors.dtype == np.float64


def test_scikit_learn_clones_it_and_searches_its_parameters() -> None:
    base = pytest.importorskip("sklearn.base")
    from sklearn.model_selection import GridSearchCV

    model = AlternatingLeastSquares(4, 0.5, solver="cholesky", target="cpu")
    assert repr(model).startswith("AlternatingLeastSquares(factors=4,")
    assert model.get_params()["regularization"] == 0.5
    assert model.set_params(regularization=0.25) is model
    copy = base.clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "user_factors")
    ratings = some_ratings(6, 40, 20, 0.6)
    search = GridSearchCV(model, {"regularization": [1e-6, 0.1, 50.0]}, cv=2)
    search.fit(ratings)
    assert search.best_params_ == {"regularization": 0.1}
    assert search.best_estimator_.score(ratings) == search.score(ratings) < 0


def test_the_score_is_of_ratings_held_out() -> None:
    rng = np.random.default_rng(5)
    full = sparse.csr_matrix(np.outer(rng.random(30) + 1, rng.random(12) + 1))
    model = AlternatingLeastSquares(1, 1e-6, solver="cholesky", target="cpu")
    model.fit(full)
    assert model.score(full[:7]) == pytest.approx(0, abs=1e-3)  # of rank one
    y = model.item_factors.astype(float)[:, 0]
    row = np.array([2.0, 5.0, 3.0])  # of items 0, 1, 4: halves 0 and 4, and 1
    items = [0, 1, 4]
    each = 2e-6, 1e-6  # the ridge counts once a rating
    x = [
        (row[chosen] @ y[np.array(items)[chosen]])
        / (y[np.array(items)[chosen]] @ y[np.array(items)[chosen]] + ridge)
        for chosen, ridge in zip(([0, 2], [1]), each, strict=True)
    ]
    error = np.array([2 - x[1] * y[0], 5 - x[0] * y[1], 3 - x[1] * y[4]])
    held = sparse.coo_array((row, ([1, 1, 1], items)), shape=(2, 12))
    assert model.score(held) == pytest.approx(-np.sqrt((error**2).mean()), rel=1e-4)
    for bad in (full[:, :5], full.toarray(), sparse.csr_matrix((3, 12))):
        with pytest.raises(fg.GraphInputError, match=r"fit the items|no ratings"):
            model.score(bad)


def test_misuse_of_the_estimator(model: AlternatingLeastSquares) -> None:
    with pytest.raises(fg.FeatGraphError, match="not fitted"):
        AlternatingLeastSquares().recommend(0)
    with pytest.raises(fg.GraphInputError, match="no such user"):
        model.recommend(99, filter_already_liked_items=False)
    with pytest.raises(fg.GraphInputError, match="needed to filter"):
        model.recommend(0)
    with pytest.raises(fg.GraphInputError, match="a row for each user"):
        model.recommend(0, some_ratings(7))


def test_metrics_are_those_of_implicit(model: AlternatingLeastSquares) -> None:
    evaluation = pytest.importorskip("implicit.evaluation")
    train, test = train_test_split(some_ratings(10, 60, 40), 0.7)
    assert train.nnz + test.nnz == some_ratings(10, 60, 40).nnz
    fitted = AlternatingLeastSquares(factors=4, implicit=True, target="cpu").fit(train)
    found = ranking_metrics(fitted, train, test, N=5)
    theirs = evaluation.ranking_metrics_at_k(
        fitted, train, test, K=5, show_progress=False
    )
    for name in ("precision", "ndcg", "map", "auc"):
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-6, err_msg=name)


# -- where it begins, and how it solves


def mixed(counters: Any) -> Any:
    """Return the bits of SplitMix64 for some counters."""
    bits = counters * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)


@pytest.mark.parametrize("k", [3, 24])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_begin_with_numbers_of_a_counter(k: int, dtype: str) -> None:
    ratings = some_ratings(3)
    result = als(ratings, factors=k, iterations=0, dtype=dtype, target="cpu")
    counters = np.arange(result.factors.size, dtype=np.uint64).reshape(-1, k)
    counters += np.uint64(np.random.default_rng(0).integers(1 << 62))
    parts = (mixed(counters) >> np.uint64(40)) / 2**24
    size = np.sqrt(ratings.data.mean() / k)
    has_some = np.concatenate([ratings.getnnz(1), ratings.getnnz(0)]) > 0
    wanted = np.where(has_some[:, None], size * (0.5 + parts), 0)
    np.testing.assert_allclose(result.factors, wanted, 4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(result.item_factors, result.factors[23:])
    assert result.factors.dtype == dtype


def test_another_seed_begins_elsewhere() -> None:
    def begin(seed: int | None) -> Any:
        options: dict[str, Any] = {"iterations": 0, "target": "cpu", "factors": 3}
        return als(some_ratings(3), random_state=seed, **options).factors

    np.testing.assert_array_equal(begin(7), begin(7))
    assert (begin(7) != begin(8)).any()
    assert (begin(None) != begin(None)).any()


@pytest.mark.parametrize(
    ("solver", "k", "on", "uses_cg"),
    [
        ("auto", 32, "cpu", False),
        ("auto", 33, "cpu", True),
        ("auto", 128, "cuda", False),
        ("auto", 129, "cuda", True),
        ("cg", 8, "cuda", True),
        ("cholesky", 200, "cpu", False),
    ],
)
def test_auto_takes_what_is_faster_on_the_target(
    solver: str, k: int, on: str, uses_cg: bool
) -> None:
    chosen = checked_options(k, 0.1, True, True, 1.0, solver=solver, target=on)
    assert chosen.uses_cg is uses_cg


def test_auto_follows_the_target_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_ratings.MOST_FOR_CHOLESKY, "cpu", 4)
    for k in (4, 5):
        run = als(some_ratings(3), factors=k, iterations=1, target="cpu").run
        assert any("advance" in str(kernel) for kernel in run.kernels) is (k == 5)
