"""Matrix factorization by stochastic gradient descent, with biases or without.

The graph leads from users to items, and its edges are the ratings r(u, v). A superstep
is an epoch: one step for each rating, which writes the factors x and biases b of both
of its ends in place (rule S11)::

    miss  = r(u, v) - (mean + b(u) + b(v) + x(u) . x(v))
    x(u) += rate (miss x(v) - ridge x(u))      x(v) += rate (miss x(u) - ridge x(v))
    b(u) += rate (miss - ridge b(u))           b(v) += rate (miss - ridge b(v))

with the values that x and b had before the step. Without biases, b and the mean are
zero. Nonnegative factors are projected: what falls below zero becomes zero. The rate of
epoch t is ``rate / (1 + decay t)``.

State: ``x`` (V, K), ``bias`` (V,), ``rating`` (E,); nothing is iterated. An epoch
takes 6 K E multiply-adds and moves E (12 + 4 K s) bytes, where a factor has s bytes.

A. Paterek, "Improving regularized singular value decomposition for collaborative
filtering", KDD Cup 2007 (biases); S. Funk, "Netflix update: try this at home", 2006; R.
Kaleem, S. Venkat, S. Pai, M. Hall, K. Pingali, "Synchronization Trade-offs in GPU
Implementations of Graph Algorithms", IPDPS 2016 (schedules; nonnegative factors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_count, require_number
from featgraph.algorithms._factors import (
    FactorsResult,
    factors_to_begin,
    fields_of_factors,
    iterate_halves,
    sum_of_penalties,
)
from featgraph.algorithms._ratings import Ratings, Totals, checked_ratings
from featgraph.algorithms._result import answer

__all__ = ["SGDResult", "sgd_factorization", "verify_sgd_factorization"]


@fg.edge(exclusive=True)
def learn(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Step against the gradient of one rating, with biases."""
    p = d.x[u, f]
    q = d.x[v, f]
    a = d.bias[u]
    b = d.bias[v]
    miss = d.rating[e] - (d.mean + a + b + fg.dot(p, q))
    d.x[u, f] = p + d.rate * (miss * q - d.ridge * p)
    d.x[v, f] = q + d.rate * (miss * p - d.ridge * q)
    d.bias[u] = a + d.rate * (miss - d.ridge * a)
    d.bias[v] = b + d.rate * (miss - d.ridge * b)
    return True


@fg.edge(exclusive=True)
def learn_products(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Step against the gradient of one rating, without biases."""
    p = d.x[u, f]
    q = d.x[v, f]
    miss = d.rating[e] - fg.dot(p, q)
    d.x[u, f] = p + d.rate * (miss * q - d.ridge * p)
    d.x[v, f] = q + d.rate * (miss * p - d.ridge * q)
    return True


@fg.edge(exclusive=True)
def learn_parts(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Step against the gradient of one rating, and set negative factors to zero."""
    p = d.x[u, f]
    q = d.x[v, f]
    miss = d.rating[e] - fg.dot(p, q)
    at_u = p + d.rate * (miss * q - d.ridge * p)
    at_v = q + d.rate * (miss * p - d.ridge * q)
    d.x[u, f] = 0.0 if at_u < 0.0 else at_u  # max() is not vectorized, and drops nan
    d.x[v, f] = 0.0 if at_v < 0.0 else at_v
    return True


@fg.edge(exclusive=True)
def learn_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Step for the user alone, with the item fixed: edges conflict at u only."""
    p = d.x[u, f]
    q = d.x[v, f]
    a = d.bias[u]
    miss = d.rating[e] - (d.mean + a + d.bias[v] + fg.dot(p, q))
    found = p + d.rate * (miss * q - d.ridge * p)
    d.x[u, f] = d.smallest if found < d.smallest else found
    d.bias[u] = a + d.rate_of_biases * d.rate * (miss - d.ridge * a)
    return True


@fg.gather(into="squares", combine="sum")
def misses(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add up the squared errors of the ratings of v."""
    told = d.mean + d.bias[u] + d.bias[v] + fg.dot(d.x[u], d.x[v])
    miss = d.rating[e] - told
    return miss * miss


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    """Store the squared error of v, to be summed over all vertices."""
    d.error[v] = d.squares[v, 0]
    return True


@fg.vertex
def weigh(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the penalty of v: its squared norm times its number of ratings."""
    square = fg.dot(d.x[v, f], d.x[v, f]) + d.bias[v] * d.bias[v]
    d.penalty[v] = (d.in_degree[v] + d.out_degree[v]) * square
    return True


@fg.reduce(into="all_squares", combine="sum")
def sum_of_squares(f, v, d):  # type: ignore[no-untyped-def]
    """Add up the squared errors."""
    return d.error[v]


epoch = fg.foldmap(learn)
epoch_of_products = fg.foldmap(learn_products)
epoch_of_parts = fg.foldmap(learn_parts)
epoch_of_sources = fg.foldmap(learn_sources)
measure_errors = fg.foldmap(misses, keep, sum_of_squares)
measure_sizes = fg.foldmap(weigh, sum_of_penalties)


@dataclass(frozen=True, eq=False, kw_only=True)
class SGDResult(FactorsResult):
    """Factors, biases and mean of `sgd_factorization`; see `FactorsResult`.

    Attributes
    ----------
    biases : ndarray of shape (U + I,)
        Of the users, followed by those of the items, in the dtype of the factors. Zeros
        for users and items without ratings, and everywhere without biases.
    mean : float
        The mean of the ratings; 0.0 without biases. The rating of user u and item i is
        predicted as ``mean + biases[u] + biases[U + i] + user_factors[u] @
        item_factors[i]``.
    validation_rmse : ndarray of float64
        Root of the mean squared error of the ratings held out, after each epoch; empty
        without them.
    """

    biases: npt.NDArray[Any] = answer()
    mean: float
    validation_rmse: npt.NDArray[np.float64] = field(
        default_factory=lambda: np.empty(0)
    )

    @property
    def best_epoch(self) -> int:
        """The epoch of the returned factors, from 1, of least `validation_rmse`."""
        held = self.validation_rmse
        return int(np.argmin(held)) + 1 if held.size else self.supersteps


@fg.algorithm("max_supersteps")
def sgd_factorization(
    ratings: Any,
    *,
    factors: int = 32,
    rate: float = 0.01,
    decay: float = 0.0,
    regularization: float = 0.05,
    epochs: int = 30,
    biases: bool | None = None,
    nonnegative: bool = False,
    shuffle: int | None = 0,
    initial: tuple[npt.ArrayLike, ...] | None = None,
    random_state: int | None = 0,
    validation: Any = None,
    patience: int | None = None,
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> SGDResult:
    """Factorize a matrix of ratings by stochastic gradient descent.

    Minimize the sum over all ratings of ``miss**2`` plus `regularization` times the
    squared factors and biases of both ends.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I), or Graph
        Finite ratings, users by items. Stored zeros are ratings of zero. An entry that
        is given twice is two ratings. Or a directed graph of two sides, from users to
        items, whose weights are the ratings.
    factors : int, optional
        K, the number of factors of a user or an item, 1 or more.
    rate : float, optional
        Step size of the first epoch, 0 or more.
    decay : float, optional
        The rate of epoch t (from 0) is ``rate / (1 + decay * t)``; 0 or more. With 0,
        and without `history` and `validation`, control does not return to the host
        between epochs.
    regularization : float, optional
        The ridge, 0 or more. It counts once for each rating.
    epochs : int, optional
        How often each rating is used, 0 or more.
    biases : bool, optional
        Whether users and items have a bias beside their factors, and ratings are
        predicted around their mean. Default: unless `nonnegative`.
    nonnegative : bool, optional
        Whether factors are zero or more, by projection.
    shuffle : int or None, optional
        Seed of the order in which ratings are used, 0 <= shuffle < 2**64; None keeps
        the order in which they are given.
    initial : (user_factors, item_factors), optional
        Initial factors, of shapes (U, K) and (I, K); biases begin at zero. Default:
        random factors, whose products are about zero with biases, and as large as the
        ratings without. Or (user_factors, item_factors, biases, mean) of a result, to
        continue from; users and items without ratings keep theirs.
    random_state : int or None, optional
        Seed of the initial factors; None draws another seed in each call.
    validation : sparse matrix of shape (U, I), or Graph, optional
        Held-out ratings, whose error is measured after each epoch, without clipping.
        The factors of the epoch with the least error are returned.
    patience : int, optional
        The run ends after this many epochs in a row, 1 or more, without a smaller error
        of `validation`. Default: all epochs run.
    history : bool, optional
        Whether to record the error after each epoch, which takes another pass over the
        ratings.
    dtype : dtype, optional
        float32 or float64, of factors and biases.
    **options
        ``schedule``, ``target``, ``racy``, ... as for `featgraph.iterate`.

    Returns
    -------
    SGDResult
        Factors, biases, errors, and the record of the run; a superstep is an epoch.

    Raises
    ------
    GraphInputError
        If ratings, or those of `validation`, are empty, not finite or no sparse matrix;
        a number is out of range; `validation` or initial factors have another shape;
        initial factors are negative with `nonnegative`; `patience` is given without
        `validation`; or both ``biases=True`` and ``nonnegative=True`` are given.
    PlanError
        If the schedule does not fit the graph or other options.
    DivergenceError
        If factors became infinite or NaN, because the rate is too large.

    Notes
    -----
    Results are bitwise repeatable for any number of threads, except with locks or
    ``racy=True``. On a GPU, ``deterministic=True`` keeps "auto" from taking locks.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from featgraph.algorithms import sgd_factorization
    >>> ratings = scipy.sparse.csr_matrix(np.outer([1.0, 2.0, 3.0], [1.0, 2.0]))
    >>> result = sgd_factorization(
    ...     ratings, factors=1, rate=0.05, regularization=0, epochs=500,
    ...     biases=False, target="cpu",
    ... )
    >>> (result.user_factors @ result.item_factors.T).round(2).tolist()
    [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    """
    has_biases = not nonnegative if biases is None else biases
    _check_numbers(factors, epochs, rate, decay, regularization)
    if has_biases and nonnegative:
        raise fg.GraphInputError(
            "a bias may be negative",
            where="biases=",
            got="biases=True, nonnegative=True",
            expected="one of the two",
            fix="biases=False",
        )
    real, target = np.dtype(dtype), options.get("target", "auto")
    given = checked_ratings(ratings, real, target, directed=True)
    held = _held_out(validation, patience, given, real, target)
    mean, spread, size = _moments(given)
    begin, bias = cast("Any", initial), cast("Any", 0)
    goes_on = isinstance(begin, tuple | list) and len(begin) == 4
    if goes_on:
        *begin, bias, mean = begin
        bias, mean = _given_biases(bias, mean, given)
    best: dict[str, Any] = {}
    if held is not None:  # in the State, so that checkpoints include these factors
        best["best_x"] = fg.vertex_property(0, dtype=real, shape=(factors,))
        best["best_bias"] = fg.vertex_property(0, dtype=real)
    state = factors_to_begin(
        given, factors, begin, real, Totals(spread if has_biases else size, 0.0),
        random_state, target, around="zero" if has_biases else "products",
        goes_on=goes_on,
        bias=fg.vertex_property(bias if has_biases else 0, dtype=real),
        **_properties(given, mean if has_biases else 0.0, rate, regularization),
        **best,
    )  # fmt: skip
    if nonnegative and initial is not None and state["x"].min() < 0:
        raise fg.GraphInputError("initial factors are negative", where="initial=")
    step = epoch if has_biases else epoch_of_parts if nonnegative else epoch_of_products
    record = _Record(given, rate, decay, epochs, target, history, held, patience)
    looks = epochs and (history or decay or held is not None)
    run = iterate_halves(
        [step], state, epochs, record if looks else None, shuffle=shuffle, **options
    )
    record.check(state)
    if run.notes.get("validation"):
        for name in ("x", "bias"):
            state[name] = state[f"best_{name}"]
    return SGDResult(
        validation_rmse=np.array(run.notes.get("validation", [])),
        biases=cast("Any", state.view("bias")),
        mean=float(state["mean"]),
        **fields_of_factors(run, state, given.user_count),
    )


def _properties(
    given: Ratings, mean: float, rate: float, ridge: float
) -> dict[str, Any]:
    """Return the scalars and ratings of a State, as keyword arguments."""
    return {
        "rating": fg.edge_property(given.values, copy=False),
        "mean": mean,
        "rate": float(rate),
        "ridge": float(ridge),
        "error": fg.vertex_property(np.float64(0)),
        "penalty": fg.vertex_property(np.float64(0)),
    }


def _held_out(
    validation: Any, patience: int | None, given: Ratings, real: np.dtype[Any],
    target: str,
) -> Ratings | None:  # fmt: skip
    """Return the held-out ratings, or None without any.

    Raises
    ------
    GraphInputError
        If the held-out ratings are empty, not finite, or of other users or items, or
        `patience` is given without them.
    """
    if patience is not None:
        require_count("patience", patience, 1)
    if validation is None:
        if patience is None:
            return None
        raise fg.GraphInputError(
            "there are no ratings whose error could stop falling",
            where="patience=",
            got=f"patience={patience}, validation=None",
            expected="ratings that are held out",
            fix="train, validation = train_test_split(ratings, 0.9)",
        )
    try:
        held = checked_ratings(validation, real, target, directed=True)
        _moments(held)
    except fg.GraphInputError as error:
        raise fg.GraphInputError(
            "no ratings to hold out", where="validation=", got=error
        ) from error
    if held.graph.sides != given.graph.sides:
        raise fg.GraphInputError(
            "ratings that are held out are of the same users and items",
            where="validation=",
            got=f"{held.graph.sides} users and items",
            expected=f"{given.graph.sides}",
        )
    return held


def _given_biases(bias: Any, mean: Any, given: Ratings) -> tuple[Any, float]:
    """Return the given biases and mean as NumPy array and float.

    Raises
    ------
    GraphInputError
        If their shapes do not fit, or a value is not finite.
    """
    found, own = (
        fg.given_array(x, np.float64, "initial").on_host() for x in (bias, mean)
    )
    shapes, expected = (found.shape, own.shape), ((given.graph.vertex_count,), ())
    if shapes != expected or not (np.isfinite(found).all() and np.isfinite(own)):
        raise fg.GraphInputError(
            "biases and mean to begin with do not fit",
            where="initial=",
            got=f"biases of shape {shapes[0]}, mean {own}",
            expected=f"finite numbers, shapes {expected}",
        )
    return found, float(own)


def learn_side(
    ratings: Any,
    others: npt.NDArray[Any],
    biases: npt.NDArray[Any],
    mean: float,
    *,
    rate: float,
    decay: float,
    regularization: float,
    epochs: int,
    has_biases: bool,
    nonnegative: bool,
    target: str = "auto",
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute factors and biases of new users, with those of the items fixed.

    Edges conflict at users alone, so the schedule is `rows`. Ratings are used in the
    order given, so the factors of a user do not depend on the other new users.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I)
        The ratings of the new users; for new items, the transposed matrix.
    others, biases : ndarray of shape (I, K), (I,)
        Factors and biases of the items.
    mean : float
    rate, decay, regularization, epochs, nonnegative, target
        As for `sgd_factorization`.
    has_biases : bool

    Returns
    -------
    ndarray of shape (U, K), (U,)
        Factors and biases after `epochs` epochs from zeros.
    """
    real, k = others.dtype, others.shape[1]
    given = checked_ratings(ratings, real, target, directed=True)
    count = given.user_count
    _check_numbers(k, epochs, rate, decay, regularization)
    state = fg.State(
        given.graph,
        x=fg.vertex_property(np.concatenate((np.zeros((count, k), real), others))),
        bias=fg.vertex_property(np.concatenate((np.zeros(count, real), biases))),
        # One function for all models: every factor is above -inf.
        smallest=0.0 if nonnegative else -np.inf,
        rate_of_biases=float(has_biases),
        **_properties(given, mean, rate, regularization),
    )
    record = _Record(given, rate, decay, epochs, target)
    iterate_halves(
        [epoch_of_sources], state, epochs * bool(given.count),
        record if decay and epochs else None, schedule="rows", shuffle=None,
        target=target,
    )  # fmt: skip
    record.check(state)
    return state["x"][:count], state["bias"][:count]


def _check_numbers(
    factors: int, epochs: int, rate: float, decay: float, ridge: float
) -> None:
    """Raise GraphInputError if a number is out of range."""
    require_count("factors", factors, 1)
    require_count("epochs", epochs, 0)
    for name, value in (("rate", rate), ("decay", decay), ("regularization", ridge)):
        require_number(name, value, value >= 0, "0 or more, finite")


def _moments(given: Ratings) -> tuple[float, float, float]:
    """Return mean, standard deviation and mean absolute value of the ratings.

    Raises
    ------
    GraphInputError
        If there are no ratings, or one is not finite.
    """
    if not given.count:
        raise fg.GraphInputError(
            "there are no ratings", where="ratings=", got=str(given.graph)
        )
    values = fg.given_array(given.values, where="ratings=").on_host()
    mean = float(values.mean(dtype=np.float64))
    if not math.isfinite(mean):
        at = int(np.argmin(np.isfinite(values)))
        user, item = given.graph.sources[at], given.graph.targets[at]
        raise fg.GraphInputError(
            "a rating is not finite",
            where=f"{given.name(int(user))}, {given.name(int(item))}",
            got=values[at],
        )
    with np.errstate(over="ignore"):
        square = float(values @ values) / values.size
    spread = math.sqrt(max(square - mean * mean, 0.0))
    return mean, spread, float(np.abs(values).mean(dtype=np.float64))


@dataclass(eq=False)
class _Record:
    """Callback after each epoch: set the rate, record errors, keep the best factors.

    It also raises DivergenceError if factors are not finite.
    """

    given: Ratings
    rate: float
    decay: float
    last: int
    target: str
    history: bool = False
    held: Ratings | None = None
    patience: int | None = None

    def __call__(self, run: fg.Run, state: fg.State) -> bool:
        penalties = 0.0
        if self.history or self.held:
            penalties = self.check(state, f"after epoch {run.supersteps}")
        if self.history:
            error = self._measured(state)
            rmse = math.sqrt(error / self.given.count)
            run.notes.setdefault("rmse", []).append(rmse)
            error += float(state["ridge"]) * penalties
            run.notes.setdefault("errors", []).append(error)
        state["rate"] = self.rate / (1 + self.decay * run.supersteps)
        ends = self.held is not None and self._settles(run, state, self.held)
        return ends or run.supersteps >= self.last

    def _measured(self, state: fg.State) -> float:
        """Return the sum of the squared errors of the ratings of a State."""
        measure_errors(state, target=self.target)
        return float(state["all_squares"][0])

    def _settles(self, run: fg.Run, state: fg.State, held: Ratings) -> bool:
        """Store the factors if they are the best; return whether patience has ended."""
        of_held = fg.State(
            held.graph,
            x=fg.vertex_property(state.view("x")),
            bias=fg.vertex_property(state.view("bias")),
            **_properties(held, float(state["mean"]), 0.0, 0.0),
        )
        errors = run.notes.setdefault("validation", [])
        errors.append(math.sqrt(self._measured(of_held) / held.count))
        since = len(errors) - 1 - int(np.argmin(errors))
        if not since:
            for name in ("x", "bias"):
                state[f"best_{name}"] = state[name]
        return self.patience is not None and since >= self.patience

    def check(self, state: fg.State, where: str = "rate=") -> float:
        """Return the sum of the squared norms of all rows times their ratings.

        Raises
        ------
        DivergenceError
            If the sum is not finite.
        """
        measure_sizes(state, target=self.target)
        found = float(state["penalties"][0])
        if not math.isfinite(found):
            raise fg.DivergenceError(
                "factors became infinite or nan",
                where=where,
                got=f"rate={self.rate:g}",
                expected="a rate at which the error falls: 0.01 suits ratings from 1 "
                "to 5, and less those that are larger",
                fix="a smaller rate, or scale the ratings",
            )
        return found


def verify_sgd_factorization(
    ratings: Any, result: SGDResult, *, regularization: float = 0.05, rtol: float = 1e-3
) -> None:
    """Check the answer of `sgd_factorization`, rating by rating, in float64.

    * Error and training RMSE of the best epoch equal those of the returned factors.
    * Users and items without ratings have zero factors and a zero bias.
    * All factors and biases are finite.

    Parameters
    ----------
    ratings, regularization
        As passed to `sgd_factorization`.
    result : SGDResult
        The answer of `sgd_factorization`.
    rtol : float, optional
        Relative tolerance of the errors.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = checked_ratings(ratings, np.dtype(np.float64), directed=True).graph
    u, v, miss = graph.sources, graph.targets, np.array(graph.weights, np.float64)
    x, b = result.factors.astype(np.float64), result.biases.astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(b).all()):
        raise AssertionError("a factor or a bias is not finite")
    miss -= result.mean + b[u] + b[v]
    # In blocks of 2**24 factors, to bound the memory of gathered rows.
    for block in np.array_split(
        np.arange(miss.size), (miss.size * x.shape[1] >> 24) + 1
    ):
        miss[block] -= np.einsum("ek,ek->e", x[u[block]], x[v[block]])
    degrees = np.bincount(u, minlength=len(x)) + np.bincount(v, minlength=len(x))
    if x[degrees == 0].any() or b[degrees == 0].any():
        raise AssertionError("a user or an item without ratings is not zero")
    squares = miss @ miss
    error = squares + regularization * (degrees @ ((x**2).sum(axis=1) + b**2))
    for found, expected in (
        (result.residuals, error),
        (result.training_rmse, math.sqrt(squares / miss.size)),
    ):
        own = found[result.best_epoch - 1] if found.size else expected
        if abs(own - expected) > rtol * expected:
            raise AssertionError(f"the error is {own}, and not {expected}")
