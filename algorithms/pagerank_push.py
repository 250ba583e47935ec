"""PageRank by pushing: vertices with a large residual pass it on, others wait.

Every vertex has a rank, and a residual that it has not passed on yet. A superstep
pushes the residual of each vertex at which it is above epsilon::

    if residual(u) > epsilon:
        rank(u)     += (1 - alpha) residual(u)
        residual(v) += alpha residual(u) w(u, v) / out(u)     for each edge u -> v
        residual(u)  = 0

beginning with rank 0 and ``residual = p``, the distribution of jumps. With P the
matrix of ``w(u, v) / out(u)``, at each moment and exactly::

    (1 - alpha) (I - alpha P)^-1 p = rank + (1 - alpha) (I - alpha P)^-1 residual

The left side is PageRank, if every vertex has out-edges. So ranks approach PageRank
from below, and the error in the L1 norm is the sum R of the residuals, at most
V * epsilon.

Vertices without out-edges keep ``(1 - alpha) residual``, and the rest is lost. Then the
left side y is PageRank times a number (module `pagerank` shows why), the error is less
than R, and ranks are scaled to sum one.

State: ``rank``, ``waiting``, the residuals, and ``sent`` (V, k), k the sets of seeds,
which take one run; ``out`` (V,); ``weight``, one per given edge. A superstep visits the
out-edges of the vertices above epsilon, and only those, with an atomic each: a run from
few seeds touches few vertices of a large graph. Where most are above epsilon,
`pagerank` is faster.

R. Andersen, F. Chung, K. Lang, "Local Graph Partitioning using PageRank Vectors", FOCS,
2006, for the push and its invariant; F. McSherry, "A Uniform Approach to Accelerated
PageRank Computation", WWW, 2005; J. J. Whang et al., "Scalable Data-Driven PageRank",
Euro-Par, 2015, for residuals above epsilon as work to do.
"""

from __future__ import annotations

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
from featgraph.algorithms._result import Result, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import (
    ByVertex,
    columns_property,
    distributions,
    given_values,
)
from featgraph.algorithms.pagerank import (
    count_out_edges,
    sent,
    weigh_out_edges,
    weights_of_out_edges,
)

__all__ = ["PageRankPushResult", "pagerank_push", "verify_pagerank_push"]

Array = npt.NDArray[Any]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Add a part of the residual to the rank, and store the rest as `sent`."""
    r = d.waiting[v, f]
    if r <= d.epsilon:
        d.sent[v, f] = 0.0
        return False
    d.rank[v, f] = d.rank[v, f] + (1 - d.alpha) * r
    d.sent[v, f] = d.alpha * r / sent(d.out[v])
    d.waiting[v, f] = 0.0
    return True


@fg.edge
def push(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add to the residual of the target; a target above epsilon is due."""
    share = d.sent[u, f]
    return fg.atomic.add(d.waiting, (v, f), share) + share > d.epsilon


@fg.edge
def push_weighted(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add to the residual of the target by weight; a target above epsilon is due."""
    share = d.weight[e] * d.sent[u, f]
    return fg.atomic.add(d.waiting, (v, f), share) + share > d.epsilon


@fg.reduce(into="residual", combine="sum")
def what_is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the residuals that are not passed on yet."""
    return d.waiting[v, f]


#: Whether edges have weights -> the foldmap before the first superstep.
begin = {
    False: fg.vertexmap(count_out_edges),
    True: fg.foldmap(weights_of_out_edges, weigh_out_edges),
}

#: (whether edges have weights, whether residuals are recorded) -> the superstep.
STEPS = {
    (weighted, history): fg.foldmap(
        settle,
        push_weighted if weighted else push,
        *([what_is_left] if history else []),
    )
    for weighted in (False, True)
    for history in (False, True)
}
step = STEPS[False, False]


@fg.reduce(into="mass", combine="sum")
def mass(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the ranks."""
    return d.rank[v, f]


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Divide the rank by the sum of all; after no supersteps, all ranks are zero."""
    d.rank[v, f] = d.rank[v, f] / sent(d.mass[f])
    return True


#: The foldmap after the last superstep.
end = fg.foldmap(mass, scale, what_is_left)


@dataclass(frozen=True, eq=False, kw_only=True)
class PageRankPushResult(Result):
    """Result of `pagerank_push`.

    Attributes
    ----------
    ranks : ndarray of shape (V,) or (V, k)
        Non-negative; each column sums to one.
    remaining : ndarray of shape (V,) or (V, k)
        The residual that each vertex has not passed on: at most epsilon, if the run has
        converged.
    mass : float, or ndarray of shape (k,)
        The sum of ranks before they were scaled: one minus the sum of `remaining`,
        if every vertex has out-edges.
    error_bound : float, or ndarray of shape (k,)
        A bound of the distance to PageRank in the L1 norm, up to rounding.
    """

    ranks: Array = answer()
    remaining: Array = answer()
    mass: Any
    error_bound: Any

    residual_name: ClassVar[str] = "sum of the residuals"


@fg.algorithm()
def pagerank_push(
    graph: fg.GraphLike,
    *,
    alpha: float = 0.85,
    personalization: ByVertex | None = None,
    weights: npt.ArrayLike | None = None,
    epsilon: float = 1e-6,
    history: bool = False,
    max_supersteps: int = 10_000,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> PageRankPushResult:
    """Compute PageRank by passing on residuals above epsilon only.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        A surfer follows ``u -> v``, in both directions if the graph is undirected.
    alpha : float, optional
        Probability of following an edge rather than jumping, in [0, 1).
    personalization : array_like of shape (V,) or (V, k), or mapping, optional
        The distribution of jumps: non-negative, in any scale. Each column is a set of
        seeds; all k are computed in one run. Default: all vertices equally. A mapping
        has values of some vertices by name, or by id where `Graph.vertex_names` is
        None; the value of other vertices is zero. At a vertex without out-edges the
        surfer always jumps.
    weights : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    epsilon : float, optional
        A residual of at most this is not passed on. A smaller epsilon makes the error
        smaller, and more vertices push.
    history : bool, optional
        Record the sum of the residuals, in a pass over all vertices a superstep.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run. `error_bound`
        holds then, too.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    PageRankPushResult
        Ranks, residuals, the bound of the error, and the record of the run.

    Raises
    ------
    GraphInputError
        If the personalization or the weights do not fit the graph, are negative or not
        finite, a column is zero, a number is out of range, or epsilon is so large that
        no vertex would begin.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    The bound is ``2 R / mass``, R the sum of `remaining`: before scaling, no rank is
    too large and all together lack at most R, and scaling at most doubles that error
    relative to their sum. From one seed, at most ``1 / ((1 - alpha) epsilon)``
    residuals are pushed, whatever the size of the graph.

    Residuals are added with atomics, so last digits differ from run to run.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import pagerank_push
    >>> star = fg.Graph.from_edges([1, 2, 3, 0], [0, 0, 0, 1])
    >>> result = pagerank_push(star, personalization=[0, 0, 1, 0])
    >>> result.ranks.round(2), bool(result.error_bound <= 2 * 4 * 1e-6)
    (array([0.46, 0.39, 0.15, 0.  ]), True)
    """
    graph = fg.as_graph(graph)
    require_number("alpha", alpha, 0 <= alpha < 1, "0 <= alpha < 1")
    require_number("epsilon", epsilon, epsilon > 0, "more than 0")
    real = checked_reals(dtype)
    require_held("alpha", alpha, real)
    personal = given = None
    if personalization is not None:
        given = given_values(graph, "personalization", personalization, 0.0)
        personal = distributions(graph, "personalization", given)
    _require_work(graph, personal, epsilon)
    properties = weight_properties(graph, weights, real, ratios=True)
    is_weighted = bool(properties)
    width = 1 if personal is None else personal.shape[1]
    state = fg.State(
        graph,
        rank=fg.vertex_property(real.type(0), shape=(width,)),
        waiting=columns_property(graph, personal, width, real),
        sent=fg.vertex_property(real.type(0), shape=(width,)),
        out=fg.vertex_property(real.type(0)),
        alpha=float(alpha),
        epsilon=float(epsilon),
        **properties,
    )
    where = {"target": options.get("target", "auto")}
    begin[is_weighted](state, **where)
    recorded = iterate_recorded(
        STEPS[is_weighted, history],
        state,
        history=history,
        max_supersteps=max_supersteps,
        **options,
    )
    end(state, **where)
    mass, missing = (state[name].astype(np.float64) for name in ("mass", "residual"))
    some = np.where(mass == 0, 1.0, mass)  # a run of no supersteps has no ranks
    bound = np.where(mass == 0, 2.0, np.minimum(2 * missing / some, 2.0))
    ranks, remaining = state.view("rank"), state.view("waiting")
    pick: Any = ...  # all columns
    if given is None or given.ndim < 2:
        # On ranks, a view has some of the rows: its own length counts.
        ranks, remaining = (view.reshape(len(view)) for view in (ranks, remaining))
        pick = 0
    return PageRankPushResult.of(
        graph,
        *recorded,
        ranks=ranks,
        remaining=remaining,
        mass=mass[pick],
        error_bound=bound[pick],
    )


def _require_work(
    graph: fg.Graph, personal: fg.GivenArray | None, epsilon: float
) -> None:
    if personal is None:
        largest = np.full(1, 1 / max(graph.living_count, 1))
    else:
        largest = personal.largest_of_columns()
    idle = largest <= epsilon
    if idle.any():
        column = int(np.argmax(idle))
        raise fg.GraphInputError(
            "no vertex has a residual above epsilon, so nothing would be ranked",
            where=f"column {column}",
            got=f"epsilon = {epsilon:g}, the largest residual {largest[column]:g}",
            fix=f"choose an epsilon of {largest[column] / 100:.1g} or less",
        )


def verify_pagerank_push(
    graph: fg.GraphLike,
    result: PageRankPushResult,
    *,
    alpha: float = 0.85,
    personalization: ByVertex | None = None,
    weights: npt.ArrayLike | None = None,
    epsilon: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * No residual is negative or above epsilon.
    * No rank is negative; each column sums to one.
    * ``(I - alpha P) rank = (1 - alpha) (p - residual)`` holds for the ranks before
      scaling, at every vertex, up to rounding. With the first property, this bounds
      the error.

    Parameters
    ----------
    graph, alpha, personalization, weights, epsilon
        As passed to `pagerank_push`.
    result : PageRankPushResult
        The answer of `pagerank_push`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    count = graph.vertex_count
    eps = np.finfo(result.ranks.dtype).eps
    ranks = result.ranks.astype(np.float64).reshape(count, -1)
    residual = result.remaining.astype(np.float64).reshape(count, -1)
    personal = distributions(graph, "personalization", personalization).on_host()
    require((residual >= 0).all(axis=1), "a negative residual")
    require((residual <= epsilon).all(axis=1), "more than epsilon was not passed on")
    require((ranks >= 0).all(axis=1), "a negative rank")
    off = np.abs(ranks.sum(axis=0) - 1)
    slack = 4 * eps * np.sqrt(count) + 8 * eps
    require(off <= slack, "ranks do not sum to one", "column")

    rank = ranks * np.reshape(result.mass, (1, -1))
    edges = edges_of(graph)
    given_weights = given_or_own_weights(graph, weights, ratios=True)
    out = out_weights(graph, given_weights)
    sent = rank / np.where(out == 0, 1.0, out)[:, None]
    w = 1.0 if given_weights is None else given_weights[edges.given][:, None]
    inflow = alpha * sums_over_in_edges(edges, w * sent[edges.sources], count)
    gap = np.abs(rank - inflow - (1 - alpha) * (personal - residual))
    # Each push adds to the residual of a target, and each superstep to its rank.
    degree = np.bincount(edges.targets, minlength=count)[:, None]
    additions = (degree + 4) * result.supersteps
    size = rank + inflow + (1 - alpha) * (personal + residual)
    require((gap <= 2 * eps * additions * size).all(axis=1), "rank went astray")
