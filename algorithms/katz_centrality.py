"""Katz centrality: the number of walks to a vertex, where long walks count less.

With ``x(v)`` the centrality of vertex v::

    x'(v) = alpha * (sum over edges u -> v of w(u, v) x(u)) + beta(v)

where x is initially zero. After n supersteps, each walk of length l < n from a vertex u
has added ``alpha^l beta(u)``, times the product of its weights, at its end. For weights
that are not negative, the fixpoint ``x = (I - alpha A)^-1 beta`` exists if ``alpha < 1
/ lambda``, with lambda the largest eigenvalue of the adjacency matrix A. Then each
superstep eventually multiplies the distance to it by ``alpha lambda``.

State: ``x`` and ``beta`` (V, k), one column for each beta; ``weight``, one a given
edge. A superstep reads E * k values and moves V * k of them, twice with the residual.
All vertices take part in each.

L. Katz, "A New Status Index Derived from Sociometric Analysis", Psychometrika 18, 1953;
M. Newman, "Networks: An Introduction", Oxford, 2010, section 7.3, for beta. Stopping
rule and scale are those of networkx for a beta of one; the rule is relative to beta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    given_or_own_weights,
    out_weights,
    require_held,
    require_number,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, around_of, iterate_recorded
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import ByVertex, columns, given_values

__all__ = ["KatzResult", "katz_centrality", "verify_katz_centrality"]

Array = npt.NDArray[Any]

#: Supersteps over which the growth of residuals is averaged, since it may oscillate.
WINDOW = 12


def part(x: Any, largest: Any) -> Any:
    """Divide by the largest value of a column; return 0 for a column of zeros."""
    return x / largest if largest > 0 else 0.0


@fg.gather(into="walks", combine="sum")
def from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the centrality of the source."""
    return d.x[u, f]


@fg.gather(into="walks", combine="sum")
def weighted_from_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the centrality of the source, times the weight."""
    return d.weight[e] * d.x[u, f]


@fg.vertex
def extend(f, v, d):  # type: ignore[no-untyped-def]
    """Extend all walks by an edge, and add the walk of length zero."""
    d.x_next[v, f] = d.alpha * d.walks[v, f] + d.beta[v, f]
    return True


@fg.reduce(into="residual", combine="sum")
def change(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the absolute changes of centralities, the L1 norm."""
    return abs(d.x_next[v, f] - d.x[v, f])


@fg.reduce(into="left", combine="max")
def change_in_range(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change relative to beta; 0, which ends the run, near an overflow."""
    if fg.feature_max(d.residual[f]) < d.most:
        return part(d.residual[f], d.largest_beta[f])
    return 0.0


#: Whether edges have weights -> the foldmap of a superstep.
STEPS = {
    False: fg.foldmap(from_sources, extend, change, change_in_range),
    True: fg.foldmap(weighted_from_sources, extend, change, change_in_range),
}
step = STEPS[False]


@fg.reduce(into="largest_beta", combine="max")
def size_of_beta(f, v, d):  # type: ignore[no-untyped-def]
    """Return the absolute beta; centralities are proportional to beta."""
    return abs(d.beta[v, f])


measure = fg.foldmap(size_of_beta)


@fg.reduce(into="total", combine="sum")
def absolute(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the absolute centralities."""
    return abs(d.x[v, f])


@fg.reduce(into="largest", combine="max")
def size(f, v, d):  # type: ignore[no-untyped-def]
    """Return the absolute centrality; the largest scales squares into range."""
    return abs(d.x[v, f])


@fg.reduce(into="squares", combine="sum")
def squared(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the squares of a column, divided by its largest value."""
    return part(d.x[v, f], d.largest[f]) ** 2


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Divide a column by its length."""
    length = math.sqrt(d.squares[f]) if d.squares[f] > 0 else 1.0
    d.x_next[v, f] = part(d.x[v, f], d.largest[f]) / length
    return True


add_up, normalize = fg.foldmap(absolute), fg.foldmap(size, squared, scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class KatzResult(Result):
    """Result of `katz_centrality`.

    Attributes
    ----------
    centralities : ndarray of shape (V,) or (V, k)
        Non-negative if beta is; if `normalized`, each column has the length one.
    """

    centralities: Array = answer()

    residual_name: ClassVar[str] = "L1 change of the centralities"
    residual_fix: ClassVar[str] = ""


@fg.algorithm()
def katz_centrality(
    graph: fg.GraphLike,
    *,
    alpha: float = 0.1,
    beta: ByVertex = 1.0,
    weights: npt.ArrayLike | None = None,
    tol: float = 1e-6,
    normalized: bool = True,
    max_supersteps: int = 1000,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> KatzResult:
    """Compute the Katz centrality: sum walks into each vertex, attenuated by length.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Walks follow ``u -> v``, in both directions if the graph is undirected.
    alpha : float, optional
        Attenuation of a walk by each edge: more than zero, less than 1 / lambda.
    beta : float, or array_like of shape (V,) or (V, k), or mapping, optional
        The centrality of a vertex without edges. One run computes all k columns. A
        mapping has a value for every vertex by name, or by id if `Graph.vertex_names`
        is None.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    tol : float, optional
        The run has converged when the sum of the absolute changes of every column is
        less than V * tol times the largest absolute beta of the column.
    normalized : bool, optional
        Whether columns are divided by their Euclidean length.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run before convergence.
    dtype : dtype, optional
        float64 or float32. For float32, V * tol must be well above 1e-6 times the sum
        of the centralities, divided by the largest beta; otherwise the run ends at the
        limit.
    **options
        ``target``, ``direction``, ``callback``, ... as for `featgraph.iterate`.

    Returns
    -------
    KatzResult
        Centralities, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If beta or the weights do not fit the graph, are not finite, a weight is
        negative, or a number is out of range.
    DivergenceError
        If alpha is 1 / lambda or more, so that centralities grow in each superstep.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    With q the ratio of the last two residuals, the distance to the fixpoint is about
    q / (1 - q) times the last residual. Bitwise repeatable in pull direction, which has
    no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import katz_centrality
    >>> star = fg.Graph.from_edges([0, 0, 0], [1, 2, 3], directed=False)
    >>> katz_centrality(star).centralities.round(2)
    array([0.56, 0.48, 0.48, 0.48])
    """
    graph = fg.as_graph(graph)
    require_number("alpha", alpha, alpha > 0, "more than 0, less than 1 / lambda")
    require_number("tol", tol, tol > 0, "more than 0")
    count, real = graph.living_count, checked_reals(dtype)
    require_held("alpha", alpha, real)
    given = given_values(graph, "beta", beta)
    base = _base_property(graph, given, real)
    weight = weight_properties(graph, weights, real)
    width = given.shape[1] if given.ndim == 2 else 1
    most = float(real.type(math.sqrt(np.finfo(real).max)))
    state = fg.State(
        graph,
        x=fg.vertex_property(real.type(0), shape=(width,), iterated=True),
        beta=base,
        alpha=float(alpha),
        most=most,
        **weight,
    )
    where = around_of(options)
    measure(state, **where)
    run, residuals = iterate_recorded(
        STEPS[bool(weight)],
        state,
        until=fg.below("left", count * tol),
        max_supersteps=max_supersteps,
        **options,
    )
    if run.supersteps and not residuals[-1] < most:
        run.converged = False  # ended near an overflow: see `change_in_range`
    if not run.converged:
        add_up(state, **where)
        _refuse_growth(run, residuals, float(np.max(state["total"])), alpha)
    if normalized:
        normalize(state, **where)
    centralities = state.view("x")
    if given.ndim < 2:
        centralities = centralities.reshape(len(centralities))
    return KatzResult.of(graph, run, residuals, centralities=centralities)


def _base_property(graph: fg.Graph, beta: fg.GivenArray, real: np.dtype[Any]) -> Any:
    """Return beta as a property (V, k): a number, or one or k values per vertex."""
    if beta.ndim > 0:
        given = columns(graph, "beta", beta).astype(real, "beta")
        return fg.vertex_property(given.values)
    number = float(beta.astype(np.float64).on_host())
    require_number("beta", number, True, "a finite number")
    return fg.vertex_property(number, shape=(1,), dtype=real)


def _base(graph: fg.Graph, beta: ByVertex) -> Array:
    """Return beta as an array (V, k): a number, or one or k values per vertex."""
    given = given_values(graph, "beta", beta)
    if given.ndim == 0:
        given = fg.given_array(np.full(graph.vertex_count, given.values, np.float64))
    return columns(graph, "beta", given).on_host()


def _refuse_growth(run: fg.Run, residuals: Array, total: float, alpha: float) -> None:
    """Raise DivergenceError if the residuals of an ended run did not shrink.

    If residuals grow by a constant factor, or are constant (alpha = 1 / lambda), the
    last of n residuals is at least 1 / n of the sum of centralities. A residual that
    consists of rounding errors is less.
    """
    window = min(WINDOW, len(residuals) - 1)
    if window < 1 or residuals[-1] == 0:
        return
    growth = (residuals[-1] / residuals[-1 - window]) ** (1 / window)
    if growth < 1 - 1e-9 or 2 * len(residuals) * residuals[-1] < total:
        return
    limit = alpha / growth
    raise fg.DivergenceError(
        "centralities grow from superstep to superstep",
        where=f"superstep {run.supersteps}",
        got=f"alpha = {alpha:g}, lambda about {1 / limit:.4g}",
        expected="alpha < 1 / lambda, lambda the largest eigenvalue",
        fix=f"choose alpha below {limit:.4g}, such as {0.9 * limit:.2g}",
    )


def verify_katz_centrality(
    graph: fg.GraphLike,
    centralities: npt.ArrayLike,
    *,
    alpha: float = 0.1,
    beta: ByVertex = 1.0,
    weights: npt.ArrayLike | None = None,
    tol: float = 1e-6,
) -> None:
    """Check the answer of a converged run with ``normalized=False``, in float64.

    * No centrality is below beta, if beta is not negative.
    * One more superstep changes no column by more than V * tol times its largest beta,
      up to rounding. If alpha times the largest sum of weights out of a vertex is above
      one, the limit is multiplied by it.

    Parameters
    ----------
    graph, alpha, beta, weights, tol
        As passed to `katz_centrality`.
    centralities : array_like of shape (V,) or (V, k)
        The answer of `katz_centrality`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex or column.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(centralities, where="centralities").on_host()
    eps = np.finfo(given.dtype).eps
    x = given.astype(np.float64).reshape(graph.vertex_count, -1)
    base = _base(graph, beta)
    edges = edges_of(graph)
    given_weights = given_or_own_weights(graph, weights)
    w = 1.0 if given_weights is None else given_weights[edges.given][:, None]
    walks = alpha * sums_over_in_edges(edges, w * x[edges.sources], len(x))
    degree = np.bincount(edges.targets, minlength=len(x))[:, None]
    size = alpha * sums_over_in_edges(edges, w * np.abs(x[edges.sources]), len(x))
    # A sum of n rounded terms is off by at most n roundings of the sum of their sizes.
    rounding = 2 * eps * (degree + 4) * (size + np.abs(base) + np.abs(x))
    if (base >= 0).all():
        require((x >= base - rounding).all(axis=1), "less than beta")
    moved = np.abs(walks + base - x).sum(axis=0)
    # Changes of the last superstep have not reached the targets of their edges yet.
    factor = max(1.0, alpha * float(out_weights(graph, given_weights).max(initial=0)))
    unit = np.abs(base).max(axis=0)
    holds = moved <= graph.living_count * tol * unit * factor + rounding.sum(axis=0)
    require(holds, "one more superstep moves it", "column")
