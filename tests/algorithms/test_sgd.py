"""Stochastic gradient descent against NumPy, edge by edge, and its laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import sgd_factorization
from featgraph.algorithms.sgd import (
    SGDResult,
    epoch,
    epoch_of_parts,
    epoch_of_products,
    verify_sgd_factorization,
)
from featgraph.graph.views import edge_orders
from tests.programs.exclusive import descend, order_of

RATE, RIDGE = 0.03, 0.05
STEPS = {"biases": epoch, "products": epoch_of_products, "parts": epoch_of_parts}


def some_ratings(seed: int = 0, users: int = 29, items: int = 17) -> Any:
    """Return ratings from 1 to 5, a third of all; some twice, one user without any."""
    rng = np.random.default_rng(seed)
    u = rng.integers(0, users - 1, count := users * items // 3)
    i = (items * rng.random(count) ** 2).astype(int)
    return sparse.coo_matrix((rng.integers(1, 6, count), (u, i)), shape=(users, items))


def graph_of(ratings: Any) -> fg.Graph:
    ends, weights = (ratings.row, ratings.shape[0] + ratings.col), ratings.data
    return fg.Graph.from_edges(
        *ends, weights=weights.astype(float), sides=ratings.shape
    )


def epoch_of_numpy(
    kind: str, graph: fg.Graph, order: Any, x: Any, b: Any, mean: float
) -> None:
    """Take the steps of the edges in an order, in float64, in place."""
    columns = (
        np.asarray(c)[order] for c in (graph.sources, graph.targets, graph.weights)
    )
    least = 0.0 if kind == "parts" else -np.inf
    own = {"has_biases": kind == "biases", "least": least}
    descend(zip(*columns, strict=True), x, b, mean, RATE, RIDGE, **own)


@pytest.mark.parametrize(
    ("kind", "k", "options"),
    [
        ("biases", 1, {"schedule": "serial"}),
        ("biases", 16, {"schedule": "levels"}),
        ("biases", 33, {"schedule": "blocks", "parts": 3}),
        ("products", 3, {"schedule": "blocks", "parts": 2}),
        ("products", 32, {"schedule": "serial"}),
        ("parts", 5, {"schedule": "levels"}),
    ],
)
def test_an_epoch_is_that_of_numpy(
    kind: str, k: int, options: dict[str, Any], target: str
) -> None:
    rng = np.random.default_rng(k)
    graph = graph_of(some_ratings())
    x = rng.normal(0, 0.3, (graph.vertex_count, k))
    b = rng.normal(0, 0.3, graph.vertex_count) * (kind == "biases")
    mean = 3.3 if kind == "biases" else 0.0
    if kind == "parts":  # those of small products grow, and others are projected
        x = np.abs(x) * np.where(np.arange(len(x)) % 2, 3, 0.1)[:, None]
    state = fg.State(
        graph,
        x=fg.vertex_property(x.astype(np.float32)),
        bias=fg.vertex_property(b.astype(np.float32)),
        rating=fg.edge_property(graph.weights_as(np.float32)),
        turn=fg.edge_property(np.zeros((graph.edge_count, 2), np.int32)),
        mean=mean, rate=RATE, ridge=RIDGE,
    )  # fmt: skip
    STEPS[kind](state, target=target, record_order="turn", **options)
    turns = state["turn"]
    epoch_of_numpy(kind, graph, order_of(graph, turns), x, b, mean)
    rows = edge_orders.given_order(graph.given_index, None)
    chain = edge_orders.levels(
        graph.sources, graph.targets, rows[np.argsort(turns.sum(1), kind="stable")],
        graph.vertex_count,
    ).groups.size  # fmt: skip
    largest = max(np.abs(x).max(), np.abs(b).max())
    bound = (k + 8) * np.finfo(np.float32).eps * chain * largest
    assert np.abs(state["x"] - x).max() <= bound
    assert np.abs(state["bias"] - b).max() <= bound
    if kind == "parts":
        assert (x == 0).any(), "nothing was projected"
        assert (state["x"] >= 0).all()


def test_a_step_goes_against_the_gradient() -> None:
    """Of half of miss**2 + ridge (x(u)**2 + x(v)**2 + b(u)**2 + b(v)**2)."""
    rng = np.random.default_rng(4)
    begin, k, mean, rating = rng.normal(size=(2, 6)), 5, 0.7, 2.5

    def loss(both: Any) -> float:
        miss = rating - (mean + both[:, k].sum() + both[0, :k] @ both[1, :k])
        return float(miss**2 + RIDGE * (both**2).sum()) / 2

    slope = np.empty_like(begin)
    for at in np.ndindex(begin.shape):
        step = np.zeros_like(begin)
        step[at] = 1e-5
        slope[at] = (loss(begin + step) - loss(begin - step)) / 2e-5
    graph = fg.Graph.from_edges([0], [1], sides=(1, 1))
    state = fg.State(
        graph,
        x=fg.vertex_property(begin[:, :k].copy()), bias=fg.vertex_property(begin[:, k]),
        rating=fg.edge_property(np.array([rating])), mean=mean, rate=RATE, ridge=RIDGE,
    )  # fmt: skip
    epoch(state, target="cpu")
    ended = np.c_[state["x"], state["bias"]]
    np.testing.assert_allclose((begin - ended) / RATE, slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("schedule", ["serial", "levels"])
def test_epochs_follow_the_shuffled_order(schedule: str) -> None:
    ratings = some_ratings(1)
    graph = graph_of(ratings)
    result = sgd_factorization(
        ratings, factors=3, rate=RATE, epochs=4, shuffle=7, schedule=schedule,
        dtype=np.float64, target="cpu", history=True,
    )  # fmt: skip
    begin = sgd_factorization(
        ratings, factors=3, epochs=0, dtype=np.float64, target="cpu"
    )
    x, b = begin.factors.copy(), begin.biases.copy()
    order = graph.given_index[edge_orders.given_order(graph.given_index, 7)]
    for _ in range(4):
        epoch_of_numpy("biases", graph, order, x, b, begin.mean)
    np.testing.assert_allclose(result.factors, x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.biases, b, rtol=1e-12, atol=1e-14)
    verify_sgd_factorization(ratings, result, rtol=1e-10)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"biases": False, "dtype": np.float64},
        {"nonnegative": True},
        {"decay": 0.1, "dtype": np.float64},
        {"racy": True},
    ],
    ids=str,
)
def test_the_error_falls(more: dict[str, Any], target: str) -> None:
    ratings = some_ratings(2)
    more = {"factors": 4, "rate": 0.02, "epochs": 25, "target": target} | more
    is_racy = more.get("racy", False)
    more["deterministic"] = not is_racy  # "auto" may take locks on a GPU
    found = sgd_factorization(ratings, history=True, **more)
    verify_sgd_factorization(ratings, found)
    assert found.supersteps == found.residuals.size == found.training_rmse.size == 25
    if not is_racy:  # updates may be lost: nearly all, where a GPU runs them at once
        assert (np.diff(found.training_rmse) < 0).all()
    assert found.training_rmse[-1] < (1 if is_racy else 0.95) * found.training_rmse[0]
    has_biases = not (more.get("nonnegative") or "biases" in more)
    assert found.mean == ratings.data.mean() * has_biases
    assert found.biases.any() == has_biases
    assert found.factors.dtype == found.biases.dtype == more.get("dtype", np.float32)
    if more.get("nonnegative"):
        assert found.factors.min() == 0
    if not is_racy:
        again = sgd_factorization(ratings, **more)
        assert np.array_equal(again.factors, found.factors)


def test_the_rate_decays() -> None:
    graph = fg.Graph.from_edges([0], [1], weights=[1.0], sides=(1, 1))
    begin = np.array([[1.0]]), np.array([[0.0]])
    found = sgd_factorization(
        graph, factors=1, rate=0.5, decay=1.0, regularization=1.0, epochs=3,
        initial=begin, biases=False, dtype=np.float64, target="cpu",
    )  # fmt: skip
    p, q = 1.0, 0.0
    for rate in (0.5, 0.25, 0.5 / 3):
        miss = 1 - p * q
        p, q = p + rate * (miss * q - p), q + rate * (miss * p - q)
    np.testing.assert_allclose(found.factors[:, 0], [p, q], rtol=1e-15)


def whole(*shape: int) -> Any:
    return sparse.coo_matrix(np.arange(1.0, 1 + np.prod(shape)).reshape(shape))


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("ratings", "more"),
    [
        (whole(1, 1), {}),
        (whole(1, 7), {}),
        (whole(7, 1), {"factors": 1}),
        (sparse.coo_matrix(([1, 2, 2], ([0, 0, 1], [0, 0, 0]))), {}),
        (sparse.coo_matrix(np.full((3, 4), 2.5)), {}),
        (sparse.coo_matrix(([0.0], ([1], [1])), shape=(3, 3)), {}),
        (whole(3, 2), {"epochs": 0}),
        (whole(3, 2), {"rate": 0.0}),
        (whole(3, 2).tocsr(), {"regularization": 0}),
        (whole(3, 2).tocsc(), {"shuffle": None}),
        (sparse.csr_array(whole(3, 2)), {"rate": np.float32(0.01), "factors": 65}),
    ],
    ids=["one", "row", "column", "twice", "equal", "zero", "no epoch", "no rate",
         "no ridge", "as given", "array"],
)  # fmt: skip
@pytest.mark.parametrize("kind", [{}, {"nonnegative": True}], ids=["biases", "parts"])
def test_small_ratings(ratings: Any, more: dict[str, Any], kind: Any) -> None:
    own = {"factors": 2, "rate": 0.01, "epochs": 3, "target": "cpu"} | kind | more
    found = sgd_factorization(ratings, history=True, **own)
    ridge = own.get("regularization", 0.05)
    verify_sgd_factorization(ratings, found, regularization=ridge)
    begin = sgd_factorization(ratings, **own | {"epochs": 0})
    stays = not own["epochs"] or not own["rate"]
    if stays:
        assert np.array_equal(found.factors, begin.factors)
    if kind == {} and len(set(ratings.tocoo().data)) == 1:  # the mean is all
        wanted = ratings.tocoo().data[0]
        np.testing.assert_allclose(found.mean + found.biases, wanted, atol=1e-2)


def test_ratings_may_be_a_graph() -> None:
    ratings = some_ratings(4)
    options: dict[str, Any] = {"factors": 3, "epochs": 2, "target": "cpu"}
    expected = sgd_factorization(ratings, **options).factors
    graph = graph_of(ratings)
    np.testing.assert_array_equal(sgd_factorization(graph, **options).factors, expected)
    for wrong, what in (
        (fg.Graph.from_biadjacency(ratings.tocsr().astype(float)), "undirected"),
        (fg.Graph.from_edges([0], [1], weights=[1.0]), "no sides"),
        (fg.Graph.from_edges([0], [1], sides=(1, 1)), "weights are the ratings"),
        (
            fg.Graph.from_edges([0, 1], [2, 3], weights=[1.0, np.inf], sides=(2, 2)),
            "user 1, item 1: a rating is not finite",
        ),
        (fg.Graph.from_edges([], [], weights=[], sides=(2, 2)), "no ratings"),
    ):
        with pytest.raises(fg.GraphInputError, match=what):
            sgd_factorization(wrong, **options)
    backward = fg.Graph.from_edges([0, 3], [2, 1], weights=[1.0, 2.0], sides=(2, 2))
    with pytest.raises(fg.PlanError, match="edge 1, which leads from 3 to 1"):
        sgd_factorization(backward, schedule="blocks", **options)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"factors": 0}, "factors out of range"),
        ({"epochs": -1}, "epochs out of range"),
        ({"rate": -0.1}, "rate out of range"),
        ({"rate": np.nan}, "rate out of range"),
        ({"decay": np.inf}, "decay out of range"),
        ({"regularization": -1.0}, "regularization out of range"),
        ({"biases": True, "nonnegative": True}, "a bias may be negative"),
        ({"dtype": np.float16}, "not a type of factors"),
        ({"initial": (np.zeros((2, 2)), np.zeros((2, 2)))}, "of another shape"),
        ({"initial": ([], [], [], 0.0)}, "biases of shape"),
        ({"initial": ([], [], np.zeros(46), np.nan)}, "mean nan"),
        ({"patience": 2}, "could stop falling"),
        ({"patience": 0, "validation": some_ratings()}, "patience out of range"),
        ({"validation": whole(2, 2)}, "the same users and items"),
        ({"validation": sparse.csr_matrix((29, 17))}, "validation=: no ratings"),
        ({"validation": np.ones((29, 17))}, "sparse matrix"),
        ({"ratings": np.ones((3, 3))}, "sparse matrix"),
        ({"ratings": sparse.csr_matrix((3, 3))}, "no ratings"),
        ({"ratings": sparse.csr_matrix([[1.0, np.nan]])}, "not finite"),
        ({"ratings": sparse.csr_matrix([[1.0, 1e60]])}, "does not fit float32"),
    ],
)
def test_refusals(wrong: dict[str, Any], what: str) -> None:
    given: dict[str, Any] = {"ratings": some_ratings(), "factors": 2, "target": "cpu"}
    with pytest.raises(fg.GraphInputError, match=what):
        sgd_factorization(**given | wrong)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"schedule": "merge"}, "does not run exclusive functions"),
        ({"schedule": "rows"}, "rows of one end"),
        ({"racy": True, "schedule": "levels"}, "no order holds"),
        ({"racy": True, "deterministic": True}, "no order holds"),
        ({"schedule": "levels", "parts": 4}, "parts"),
        ({"asynchronous": True}, "runs once on each edge"),
    ],
)
def test_options_that_do_not_fit(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(fg.FeatGraphError, match=what):
        sgd_factorization(some_ratings(), factors=2, target="cpu", **wrong)


def test_negative_factors_are_no_beginning_of_nonnegative_ones() -> None:
    begin = np.full((3, 1), -1.0), np.ones((2, 1))
    with pytest.raises(fg.GraphInputError, match="initial factors are negative"):
        sgd_factorization(
            whole(3, 2), factors=1, initial=begin, nonnegative=True, target="cpu"
        )


@pytest.mark.parametrize("schedule", ["auto", "levels"])
def test_it_goes_on_from_a_result(schedule: str) -> None:
    ratings, held = some_ratings(3), some_ratings(8)
    own: dict[str, Any] = {"factors": 4, "rate": RATE, "target": "cpu"}
    own |= {"schedule": schedule, "history": True}
    first = sgd_factorization(ratings, epochs=3, **own)
    begin = first.user_factors, first.item_factors, first.biases, first.mean
    found = sgd_factorization(ratings, epochs=4, initial=begin, **own)
    whole = sgd_factorization(ratings, epochs=7, validation=held, **own)
    verify_sgd_factorization(ratings, found)
    verify_sgd_factorization(ratings, whole)
    assert whole.validation_rmse.size == 7
    np.testing.assert_array_equal(found.residuals, whole.residuals[3:])
    if whole.best_epoch == 7:
        np.testing.assert_array_equal(found.factors, whole.factors)
    none = sgd_factorization(ratings, validation=held, **own | {"epochs": 0})
    assert none.best_epoch == none.validation_rmse.size == 0
    assert none.factors.any()


@pytest.mark.parametrize("history", [False, True])
def test_a_rate_that_is_too_large_is_named(history: bool) -> None:
    with pytest.raises(fg.DivergenceError, match="rate=50") as caught:
        sgd_factorization(
            some_ratings(), rate=50.0, epochs=9, history=history, target="cpu"
        )
    assert ("after epoch" in str(caught.value)) == history


def test_a_verifier_finds_what_is_wrong() -> None:
    ratings = some_ratings(2)
    found = sgd_factorization(ratings, factors=2, epochs=5, history=True, target="cpu")
    verify_sgd_factorization(ratings, found)
    empty = ratings.shape[0] - 1  # the last user has no ratings
    moved, biased = found.factors.copy(), found.biases.copy()
    moved[empty], biased[empty] = 1, 1
    kept = {
        "run": found.run, "residuals": found.residuals, "mean": found.mean,
        "factors": found.factors, "biases": found.biases,
        "user_factors": found.user_factors, "item_factors": found.item_factors,
        "training_rmse": found.training_rmse,
    }  # fmt: skip
    for wrong in (
        {"factors": moved},
        {"biases": biased},
        {"factors": np.full_like(moved, np.nan)},
        {"mean": found.mean + 1},
        {"validation_rmse": np.arange(5.0)},  # the first epoch is the best one
        {"residuals": 1.01 * found.residuals},
        {"training_rmse": 1.01 * found.training_rmse},
    ):
        with pytest.raises(AssertionError):
            verify_sgd_factorization(ratings, SGDResult(**kept | wrong))
