"""Alternating least squares: users and items as vectors whose products are ratings.

The graph is bipartite, and its edges are the ratings r(u, v). A half superstep holds
the factors of one side, and sets the factors of every vertex v of the other side to the
exact minimum of the regularised squared error. With x(u) the factors of vertex u, for
explicit ratings::

    sc(v) = sum over its ratings of r(u, v) * x(u)
    ic(v) = sum over its ratings of x(u) x(u)^T
    x'(v) = solve(ic(v) + ridge(v) I, sc(v))

Then the sides change roles. Updating both sides at once would not minimise: each would
be fitted to factors that the other replaces. ``ridge(v)`` is lambda, or lambda times
the number of ratings of v (*weighted* lambda, ALS-WR). For implicit feedback, every
pair of user and item is a rating: 1 with confidence c > 0 for given pairs, and 0 with
confidence 1 for all others. The others contribute the same matrix to all vertices of a
side::

    gram  = sum over the other side of x(u) x(u)^T
    sc(v) = sum over its edges of c(u, v) * x(u)
    ic(v) = gram + sum over its edges of (c(u, v) - 1) * x(u) x(u)^T

``solver="cg"`` instead makes some steps of conjugate gradients, starting at the old
x(v). They need only products of ic(v) with a vector, which are sums of
``x(u) * dot(x(u), p(v))`` over edges, so that no K x K matrix is stored. One kernel
makes all steps.

State: ``x`` (V, K); ``rating``, one per edge. A half superstep takes E (K^2 + K) +
V K^3 / 3 multiply-adds with Cholesky, E K (4 + 4 n) with n conjugate gradient steps.

Y. Zhou, D. Wilkinson, R. Schreiber, R. Pan, "Large-scale Parallel Collaborative
Filtering for the Netflix Prize", AAIM 2008 (weighted lambda); Y. Hu, Y. Koren, C.
Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008; G.
Takacs, I. Pilaszy, D. Tikk, "Applications of the Conjugate Gradient Method for Implicit
Feedback Collaborative Filtering", RecSys 2011. The form for single features is from
Onyx.
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
    Options,
    Ratings,
    checked_options,
    checked_ratings,
    look_through,
)

__all__ = ["ALSResult", "als", "solve_side", "verify_als"]


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):  # type: ignore[no-untyped-def]
    """Sum the outer products of the factors of one side."""
    return fg.outer(d.x[v], d.x[v])[i, f]


@fg.gather(into="sc", combine="sum")
def targets(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum the targets of the ratings, times their confidence."""
    return max(d.scale * d.rating[e], d.least) * d.x[u, f]


@fg.gather(into="ic", combine="sum", matrix=True)
def products(i, f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Sum outer products, weighted by the confidence minus that of other pairs."""
    above = d.slope * abs(d.rating[e]) + d.above
    return above * fg.outer(d.x[u], d.x[u])[i, f]


@fg.vertex
def minimum(f, v, d):  # type: ignore[no-untyped-def]
    """Set the factors of v to the minimum; without ratings, they stay."""
    if d.in_degree[v] == 0:
        return False
    trace = fg.feature_sum(d.ic[v, f, f] + d.gram[f, f])
    ridge = d.ridge + d.ridge_each * d.in_degree[v] + d.floor * trace
    new = fg.solve(d.ic[v] + d.gram, d.sc[v, f], diagonal=ridge, spd=True)
    d.explained[v] = fg.dot(new, d.sc[v, f])
    d.failed[v] = fg.any_feature(not math.isfinite(new))
    d.x_next[v, f] = new
    return fg.any_feature(abs(new - d.x[v, f]) > d.tolerance)


@fg.gather(into="ax", combine="sum")
def at_start(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Multiply x(v) by the sum over edges in ic(v)."""
    above = d.slope * abs(d.rating[e]) + d.above
    return above * fg.dot(d.x[u], d.x[v]) * d.x[u, f]


@fg.vertex
def begin(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the residual, which is the first direction of conjugate gradients."""
    if d.in_degree[v] == 0:
        return False
    x = d.x[v, f]
    ridge = d.ridge + d.ridge_each * d.in_degree[v]
    # The matrix is symmetric; lanes of consecutive f read its transpose coalesced.
    r = d.sc[v, f] - (d.ax[v, f] + fg.matvec(d.gram, x, transpose=True) + ridge * x)
    d.r[v, f] = r
    d.p[v, f] = r
    d.x_next[v, f] = x
    return True


@fg.gather(into="ap", combine="sum")
def along(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Multiply p(v) by the sum over edges in ic(v)."""
    above = d.slope * abs(d.rating[e]) + d.above
    return above * fg.dot(d.x[u], d.p[v]) * d.x[u, f]


@fg.vertex
def advance(f, v, d):  # type: ignore[no-untyped-def]
    """Move to the minimum along p; set p to a conjugate direction."""
    p = d.p[v, f]
    ridge = d.ridge + d.ridge_each * d.in_degree[v]
    ap = d.ap[v, f] + fg.matvec(d.gram, p, transpose=True) + ridge * p
    curvature = fg.dot(p, ap)
    before = fg.dot(d.r[v, f], d.r[v, f])
    # A residual of the size of rounding errors has no direction: do not move.
    moves = before > d.resolution * fg.dot(d.sc[v, f], d.sc[v, f])
    size = before / curvature if moves and curvature > 0 else 0.0
    r = d.r[v, f] - size * ap
    turn = fg.dot(r, r) / before if before > 0 else 0.0
    d.x_next[v, f] = d.x_next[v, f] + size * p
    d.r[v, f] = r
    d.p[v, f] = r + turn * p
    return True


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the explained part of the ratings; announce factors that moved."""
    x = d.x_next[v, f]
    d.explained[v] = fg.dot(x, d.sc[v, f] + d.r[v, f])
    d.failed[v] = fg.any_feature(not math.isfinite(x))
    return fg.any_feature(abs(x - d.x[v, f]) > d.tolerance)


#: Steps of conjugate gradients per half, with which alternating updates converge as
#: well as with exact solutions (Takacs et al. 2011).
CG_STEPS = 3


@fg.reduce(into="failures", combine="sum")
def count_failed(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices whose systems have no finite solution."""
    return 1 if d.failed[v] else 0


@fg.reduce(into="all_explained", combine="sum")
def sum_of_explained(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the explained parts."""
    return d.explained[v]


gram_of_others = fg.foldmap(gram)
find_failed = fg.foldmap(count_failed)
measure = fg.foldmap(weigh, sum_of_penalties, sum_of_explained)
cholesky_half = fg.foldmap(targets, products, minimum)
cg_half = fg.foldmap(targets, at_start, begin, *(along, advance) * CG_STEPS, settle)


@dataclass(frozen=True, eq=False, kw_only=True)
class ALSResult(FactorsResult):
    """Result of `als`; see `FactorsResult`.

    For implicit feedback, products of factors are preferences, and there is no
    `training_rmse`.
    """


@fg.algorithm("max_supersteps")
def als(
    ratings: Any,
    *,
    factors: int = 32,
    regularization: float = 0.05,
    weighted_regularization: bool = True,
    implicit: bool = False,
    alpha: float = 1.0,
    iterations: int = 15,
    tolerance: float = 0.0,
    solver: str = "auto",
    initial: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    random_state: int | None = 0,
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> ALSResult:
    """Factorise a matrix of ratings by alternating least squares.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I), or Graph
        Users by items. Stored zeros are ratings of zero; a repeated entry is two
        ratings. Or the result of `Graph.from_biadjacency`, also of a distributed graph.
    factors : int, optional
        K.
    regularization : float, optional
        lambda, 0 or more. With 0, a ridge of eps^(2/3) times the trace keeps factors
        bounded that the ratings do not determine.
    weighted_regularization : bool, optional
        Whether lambda counts once per rating (ALS-WR), rather than once per vertex.
    implicit : bool, optional
        Whether ``alpha * ratings`` are confidences that a user likes an item, and pairs
        that are not given are dislikes of confidence one. (Hu, Koren and Volinsky use
        1 + alpha * r: pass ``1 + alpha * r`` as ratings.) Negative entries are dislikes
        of the absolute confidence.
    alpha : float, optional
        See `implicit`; otherwise unused.
    iterations : int, optional
        Number of iterations; each updates the users, then the items.
    tolerance : float, optional
        The run ends when an iteration lowers the error by less than this share. Implies
        `history`.
    solver : {"auto", "cholesky", "cg"}, optional
        Exact solutions, or three steps of conjugate gradients from the last factors.
        "auto" uses Cholesky up to K = 32 on the CPU and up to K = 128 on a GPU.
    initial : (user_factors, item_factors), optional
        Initial factors. Default: small positive random numbers, equal on all targets.
    random_state : int, optional
        Seed of the random numbers; None for another seed in each call.
    history : bool, optional
        Whether to record the error after every half.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    ALSResult
        Factors, errors, and the record of the run; a superstep is one half, and for
        implicit feedback also one Gram matrix.

    Raises
    ------
    GraphInputError
        If ratings, options or initial factors do not fit, or are not finite.
    FeatGraphError
        If factors became infinite or nan.

    Notes
    -----
    The error does not rise: each half finds its exact minimum over one side (with "cg",
    moves towards it). Bitwise repeatable: gathers are pulled, and the reduce adds in a
    fixed order.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from featgraph.algorithms import als
    >>> ratings = scipy.sparse.csr_matrix(np.outer([1.0, 2.0, 3.0], [1.0, 2.0]))
    >>> result = als(ratings, factors=1, regularization=1e-6, target="cpu")
    >>> (result.user_factors @ result.item_factors.T).round(2).tolist()
    [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    """
    target = options.get("target", "auto")
    given = checked_ratings(ratings, np.dtype(dtype), target)
    chosen = checked_options(
        factors, regularization, weighted_regularization, implicit, alpha,
        solver=solver, iterations=iterations, tolerance=tolerance,
        target=_target_of(options) if solver == "auto" else "cpu",
    )  # fmt: skip
    real = np.dtype(dtype)
    totals = look_through(given, chosen, target=target)
    state = factors_to_begin(
        given, factors, initial, real, totals, random_state, target,
        **_properties(given, chosen, factors, real),
    )  # fmt: skip
    half = cg_half if chosen.uses_cg else cholesky_half
    steps = list(given.sides.halves(half))
    if implicit:
        of_users, of_items = given.sides.halves(gram_of_others)
        steps = [of_items, steps[0], of_users, steps[1]]
    last, record = len(steps) * iterations, None
    if history or tolerance > 0:
        record = _Record(
            given, chosen, len(steps), last, tolerance, totals.unexplained, target
        )
    if iterations == 0 or not given.count:
        steps = [half.on([])]
    items = given.sides.items
    run = iterate_halves(steps, state, last, record, active=items, **options)
    _check_failed(state, given, target)
    return ALSResult(**fields_of_factors(run, state, given.user_count))


def _target_of(options: dict[str, Any]) -> str:
    """Return the target of a run with these options."""
    kernel = gram_of_others.fold(k=1, target=options.get("target", "auto"))
    return kernel.plan.target


def _properties(
    given: Ratings, chosen: Options, k: int, real: np.dtype[Any]
) -> dict[str, Any]:
    """Return the properties of a factorisation's State beside ``x``."""
    # Far below the eigenvalues that ratings determine, and far above rounding errors.
    floor = 0.0 if chosen.regularization else float(np.finfo(real).eps) ** (2 / 3)
    more: dict[str, Any] = {}
    if chosen.uses_cg:
        zeros = fg.vertex_property(0, dtype=real, shape=(k,))
        more |= {"r": zeros, "p": zeros}
        # Squared, as it is compared with a quotient of squared lengths.
        more["resolution"] = (8 * float(np.finfo(real).eps)) ** 2
    return {
        "rating": fg.edge_property(given.values, copy=False),
        "gram": np.zeros((k, k), real),
        "explained": fg.vertex_property(0, dtype=real),
        "failed": fg.vertex_property(False),
        "penalty": fg.vertex_property(np.float64(0)),
        "floor": floor,
        "tolerance": 0.0,
        **chosen.of_ridge(),
        **chosen.of_rating(real),
        **more,
    }


@dataclass(eq=False)
class _Record:
    """Callback of the run: stores errors in its record, and ends it on convergence."""

    given: Ratings
    chosen: Options
    cycle: int
    last: int
    tolerance: float
    #: The squared error if all products of factors are zero.
    unexplained: float
    target: str
    has_settled: bool = False

    def __call__(self, run: fg.Run, state: fg.State) -> bool:
        place = (run.supersteps - 1) % self.cycle
        if self.chosen.implicit and place % 2 == 0:
            return False
        updates_users = place < self.cycle / 2
        self._note(run.notes, state, updates_users)
        errors = run.notes.get("errors", [])
        if not updates_users and len(errors) > 2:
            self.has_settled = errors[-3] - errors[-1] <= self.tolerance * errors[-3]
        ends = run.supersteps >= self.last or (self.tolerance > 0 and self.has_settled)
        run.converged = ends and self.has_settled
        return ends

    def _note(
        self, notes: dict[str, list[float]], state: fg.State, updates_users: bool
    ) -> None:
        """Compute the error from the explained parts of the updated side."""
        penalties, explained = [], []
        for of_side in self.given.sides.halves(measure):
            of_side(state, target=self.target)
            penalties.append(float(state["penalties"][0]))
            explained.append(float(state["all_explained"][0]))
        updated, held = (0, 1) if updates_users else (1, 0)
        error = self.unexplained - explained[updated] + penalties[held]
        notes.setdefault("errors", []).append(error)
        if not self.chosen.implicit:
            squares = max(error - sum(penalties), 0.0)
            rmse = math.sqrt(squares / max(self.given.count, 1))
            notes.setdefault("rmse", []).append(rmse)


def _check_failed(state: fg.State, given: Ratings, target: str) -> None:
    find_failed(state, target=target)
    failures = int(state["failures"][0])
    if failures:
        raise fg.FeatGraphError(
            "factors became infinite or nan",
            where=given.name(int(np.argmax(state["failed"]))),
            got=f"{failures} systems without a finite solution",
            fix="a larger regularization, or dtype=np.float64",
        )


def solve_side(
    ratings: Any,
    others: npt.NDArray[Any],
    *,
    regularization: float = 0.05,
    weighted_regularization: bool = True,
    implicit: bool = False,
    alpha: float = 1.0,
    target: str = "auto",
) -> npt.NDArray[Any]:
    """Return the factors of new users for given factors of the items.

    Parameters
    ----------
    ratings : sparse matrix of shape (U, I)
        The ratings of the new users; for new items, the transposed matrix.
    others : ndarray of shape (I, K)
        The factors of the items.
    regularization, weighted_regularization, implicit, alpha, target
        As for `als`.

    Returns
    -------
    ndarray of shape (U, K)
        Exact minima; zeros for users without ratings.
    """
    given = checked_ratings(ratings, others.dtype, target)
    chosen = checked_options(
        others.shape[1], regularization, weighted_regularization, implicit, alpha
    )
    no_factors = np.zeros((given.user_count, others.shape[1]), others.dtype)
    x = fg.vertex_property(np.concatenate([no_factors, others]), iterated=True)
    more = _properties(given, chosen, others.shape[1], others.dtype)
    state = fg.State(given.graph, x=x, **more)
    if implicit:
        gram_of_others.on(given.sides.items)(state, target=target)
    cholesky_half.on(given.sides.users)(state, target=target)
    _check_failed(state, given, target)
    found: npt.NDArray[Any] = state["x"][: given.user_count]
    return found


def verify_als(
    ratings: Any,
    user_factors: npt.ArrayLike,
    item_factors: npt.ArrayLike,
    *,
    regularization: float = 0.05,
    weighted_regularization: bool = True,
    implicit: bool = False,
    alpha: float = 1.0,
    errors: npt.ArrayLike = (),
    margin: float = 1e-3,
) -> None:
    """Check the answer of `als` with the exact solver, in float64.

    * The factors of every item, which were updated last, solve its system.
    * The factors of users and items without ratings are zeros.
    * The error never rises.

    Parameters
    ----------
    ratings, regularization, weighted_regularization, implicit, alpha
        As passed to `als`.
    user_factors, item_factors : array_like
        The answer of `als`.
    errors : array_like, optional
        ``result.residuals``.
    margin : float, optional
        Allowed distance, relative to the largest entry of the factors.

    Raises
    ------
    AssertionError
        With the item at which a property fails first.
    """
    given = checked_ratings(ratings, np.dtype(np.float64))
    chosen = checked_options(
        1, regularization, weighted_regularization, implicit, alpha
    )
    x, y = (
        fg.given_array(a, np.float64, "factors").on_host()
        for a in (user_factors, item_factors)
    )
    confidence, wanted = chosen.of_edges(given.values)
    graph = given.graph
    users, items = graph.sources, graph.targets - given.user_count
    for held, rows, count in ((x, users, len(x)), (y, items, len(y))):
        empty = np.bincount(rows, minlength=count) == 0
        _require(not held[empty].any(), "a row without ratings is not zero")
    gram = x.T @ x if implicit else np.zeros((x.shape[1],) * 2)
    scale = max(float(np.abs(y).max(initial=0.0)), 1e-30)
    order = np.argsort(items, kind="stable")
    cuts = np.searchsorted(items[order], np.arange(len(y) + 1))
    for item in range(len(y)):
        mine = order[cuts[item] : cuts[item + 1]]
        if not mine.size:
            continue
        rows = x[users[mine]]
        above = confidence[mine] - implicit
        ridge = regularization * (mine.size if weighted_regularization else 1)
        system = gram + (above[:, None] * rows).T @ rows + ridge * np.eye(x.shape[1])
        solution = np.linalg.solve(system, wanted[mine] @ rows)
        distance = np.abs(solution - y[item]).max() / scale
        _require(distance <= margin, f"item {item}: {distance:.2g} off its minimum")
    history = fg.given_array(errors, np.float64, "errors").on_host()
    slack = 1e-5 * np.abs(history[:-1])
    _require(bool((np.diff(history) <= slack).all()), "the error rises")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
