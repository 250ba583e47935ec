"""Matrix factorisation by gradient descent: users and items as vectors, step by step.

The graph and the error are as in `als` with explicit ratings. With x(u) the factors of
vertex u, the error is the sum over the ratings r(u, v) of ``(r(u, v) - dot(x(u),
x(v)))^2``, plus ``ridge(v) |x(v)|^2`` for every vertex. A half superstep holds one
side, and every vertex v of the other side moves against its gradient::

    slope(v)     = sum over its ratings of (r(u, v) - dot(x(u), x(v))) x(u)
    steepness(v) = sum over its ratings of |x(u)|^2
    x'(v)        = x(v) + rate / (steepness(v) + ridge(v)) (slope(v) - ridge(v) x(v))

Then the sides change roles. With one side held, the error of v is a quadratic form. Its
matrix is the sum of all ``x(u) x(u)^T``, plus the ridge, and the trace of the sum,
``steepness``, bounds its largest eigenvalue. Therefore a step with a rate up to 1 does
not pass the minimum in any direction, and a rate up to 2 does not raise the error: no
step size must be tuned. An edge takes 4 K multiply-adds per half, where `als` takes
K^2, and no system is solved.

State: ``x`` (V, K); ``rating``, one per edge; some numbers per vertex.

Z. Jia, Y. Kwon, G. Shipman, P. McCormick, M. Erez, A. Aiken, "A Distributed Multi-GPU
System for Fast Graph Processing", VLDB 2017, has gradient descent in this form, with
one step size; J. Bolte, S. Sabach, M. Teboulle, "Proximal Alternating Linearized
Minimization for Nonconvex and Nonsmooth Problems", Mathematical Programming 146, 2014,
for steps by the bound of each block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._factors import (
    FactorsResult,
    factors_to_begin,
    fields_of_factors,
    iterate_halves,
    sum_of_penalties,
    weigh,
)
from featgraph.algorithms._ratings import (
    Ratings,
    checked_options,
    checked_ratings,
    look_through,
)

__all__ = [
    "GradientFactorizationResult",
    "gradient_factorization",
    "verify_gradient_factorization",
]


@fg.gather(into="slope", combine="sum")
def slopes(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum the negative gradient of the squared errors of v, halved."""
    return (d.rating[e] - fg.dot(d.x[u], d.x[v])) * d.x[u, f]


@fg.gather(into="steepness", combine="sum")
def lengths(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum the squared factors of neighbors, a bound on the curvature of the error."""
    return d.x[u, f] * d.x[u, f]


@fg.vertex
def descend(f, v, d):  # type: ignore[no-untyped-def]
    """Move against the gradient; without ratings, the factors stay."""
    if d.in_degree[v] == 0:
        return False
    x = d.x[v, f]
    ridge = d.ridge + d.ridge_each * d.in_degree[v]
    bound = fg.feature_sum(d.steepness[v, f]) + ridge
    size = d.rate / bound if bound > 0 else 0.0
    new = x + size * (d.slope[v, f] - ridge * x)
    d.x_next[v, f] = new
    return fg.any_feature(new != x)


@fg.gather(into="squares", combine="sum")
def squares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum the squared errors of v."""
    error = d.rating[e] - fg.dot(d.x[u], d.x[v])
    return error * error


@fg.vertex
def keep_squares(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum for the reduce."""
    d.error[v] = d.squares[v, 0]
    return True


@fg.reduce(into="all_squares", combine="sum")
def sum_of_squares(f, v, d):  # type: ignore[no-untyped-def]
    """Sum over all users."""
    return d.error[v]


half = fg.foldmap(slopes, lengths, descend)
measure_errors = fg.foldmap(squares, keep_squares, sum_of_squares)
measure_penalties = fg.foldmap(weigh, sum_of_penalties)


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientFactorizationResult(FactorsResult):
    """Result of `gradient_factorization`; see `FactorsResult`."""


@fg.algorithm("max_supersteps")
def gradient_factorization(
    ratings: Any,
    *,
    factors: int = 32,
    rate: float = 1.0,
    regularization: float = 0.05,
    weighted_regularization: bool = True,
    iterations: int = 50,
    tolerance: float = 0.0,
    initial: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    random_state: int | None = 0,
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> GradientFactorizationResult:
    """Factorise a matrix of ratings by gradient descent on both sides in turn.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I), or Graph
        As for `als`.
    factors : int, optional
        K.
    rate : float, optional
        The length of steps, above 0 and at most 2, relative to the bound on the
        curvature; 1 has the best guaranteed decrease of the error.
    regularization : float, optional
        lambda, 0 or more.
    weighted_regularization : bool, optional
        Whether lambda counts once per rating, rather than once per vertex.
    iterations : int, optional
        Number of iterations; each updates the users, then the items.
    tolerance : float, optional
        The run ends when an iteration lowers the error by less than this share. Implies
        `history`.
    initial : (user_factors, item_factors), optional
        Initial factors. Default: small positive random numbers, as for `als`.
    random_state : int, optional
        Seed of the random numbers; None for another seed in each call.
    history : bool, optional
        Whether to record the error after every half, with another sweep over the
        ratings.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    GradientFactorizationResult
        Factors, errors, and the record of the run; a superstep is one half.

    Raises
    ------
    GraphInputError
        If ratings, options or initial factors do not fit, or are not finite.

    Notes
    -----
    The error does not rise. It falls more slowly than that of `als`: a step costs about
    1 / K of an exact solution, and reduces the error along the directions of largest
    curvature first. Bitwise repeatable: gathers are pulled, and the reduce adds in a
    fixed order.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from featgraph.algorithms import gradient_factorization
    >>> ratings = scipy.sparse.csr_matrix(np.outer([1.0, 2.0, 3.0], [1.0, 2.0]))
    >>> result = gradient_factorization(
    ...     ratings, factors=1, regularization=1e-6, target="cpu"
    ... )
    >>> (result.user_factors @ result.item_factors.T).round(2).tolist()
    [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    """
    real = np.dtype(dtype)
    target = options.get("target", "auto")
    given = checked_ratings(ratings, real, target)
    chosen = checked_options(
        factors, regularization, weighted_regularization, False, 1.0,
        iterations=iterations, tolerance=tolerance,
    )  # fmt: skip
    if not 0 < rate <= 2:
        raise fg.GraphInputError(
            "rate out of range", got=rate, expected="above 0, and 2 or less",
            fix="rate=1.0: steps are scaled by a bound on the curvature of the error",
        )  # fmt: skip
    totals = look_through(given, chosen, target=target)
    state = factors_to_begin(
        given, factors, initial, real, totals, random_state, target,
        rating=fg.edge_property(given.values, copy=False),
        rate=float(rate),
        error=fg.vertex_property(np.float64(0)),
        penalty=fg.vertex_property(np.float64(0)),
        **chosen.of_ridge(),
    )  # fmt: skip
    last, record = 2 * iterations, None
    if history or tolerance > 0:
        record = _Record(given, last, tolerance, target)
    steps = list(given.sides.halves(half))
    if iterations == 0 or not given.count:
        steps = [half.on([])]
    items = given.sides.items
    run = iterate_halves(steps, state, last, record, active=items, **options)
    return GradientFactorizationResult(
        **fields_of_factors(run, state, given.user_count)
    )


class _Record:
    """Callback of the run: stores errors in its record, and ends it on convergence."""

    def __init__(
        self, given: Ratings, last: int, tolerance: float, target: str
    ) -> None:
        self.count, self.last, self.target = given.count, last, target
        self.tolerance = tolerance
        self.errors, _ = given.sides.halves(measure_errors)

    def __call__(self, run: fg.Run, state: fg.State) -> bool:
        self._note(run.notes, state)
        errors, has_settled = run.notes.get("errors", []), False
        if self.tolerance > 0 and run.supersteps % 2 == 0 and len(errors) > 2:
            has_settled = errors[-3] - errors[-1] <= self.tolerance * errors[-3]
        run.converged = has_settled
        return has_settled or run.supersteps >= self.last

    def _note(self, notes: dict[str, list[float]], state: fg.State) -> None:
        self.errors(state, target=self.target)
        measure_penalties(state, target=self.target)
        error = float(state["all_squares"][0])
        notes.setdefault("rmse", []).append(math.sqrt(error / max(self.count, 1)))
        error += float(state["penalties"][0])
        notes.setdefault("errors", []).append(error)


def verify_gradient_factorization(
    ratings: Any,
    user_factors: npt.ArrayLike,
    item_factors: npt.ArrayLike,
    *,
    regularization: float = 0.05,
    weighted_regularization: bool = True,
    errors: npt.ArrayLike = (),
    rtol: float = 1e-3,
) -> None:
    """Check the answer of `gradient_factorization`, pair by pair, in float64.

    * The last error equals that computed from the factors.
    * The error never rises.
    * The factors of users and items without ratings are zeros.

    Parameters
    ----------
    ratings, regularization, weighted_regularization
        As passed to it.
    user_factors, item_factors : array_like
        The answer of `gradient_factorization`.
    errors : array_like, optional
        ``result.residuals``.
    rtol : float, optional
        Tolerance for errors, relative to the first error.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = checked_ratings(ratings, np.dtype(np.float64)).graph
    x, y = (
        fg.given_array(a, np.float64, "factors").on_host()
        for a in (user_factors, item_factors)
    )
    both = np.concatenate([x, y])
    history = fg.given_array(errors, np.float64, "errors").on_host()
    u, v, r = graph.sources, graph.targets, np.array(graph.weights)
    # In blocks of 2**24 factors, to bound the memory of gathered rows.
    for block in np.array_split(np.arange(r.size), max(r.size * x.shape[1] >> 24, 1)):
        r[block] -= np.einsum("ek,ek->e", both[u[block]], both[v[block]])
    degrees = np.bincount(u, minlength=len(both)) + np.bincount(v, minlength=len(both))
    if both[degrees == 0].any():
        raise AssertionError("a row without ratings is not zero")
    ridge = regularization * (degrees if weighted_regularization else degrees > 0)
    error = r @ r + ridge @ (both**2).sum(axis=1)
    if history.size and abs(history[-1] - error) > rtol * history[0]:
        raise AssertionError(f"the last error is {history[-1]}, and not {error}")
    if history.size and (np.diff(history) > rtol / 100 * history[0]).any():
        raise AssertionError("the error rises")
