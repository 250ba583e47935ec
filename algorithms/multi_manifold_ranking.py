"""Multi-manifold ranking: the relevance of vertices to a query, on k manifolds.

Each edge has k weights, the similarity of its ends on each of k manifolds. With
``mm(v)`` the k scores of vertex v, ``mm0(v)`` the scores of the query, ``o`` the
entrywise product and ``x^o-1`` the entrywise (Hadamard) inverse::

    waggr(v) = sum over edges u -> v of w(u, v) o mm(u)
    haggr(v) = sum over edges u -> v of w(u, v)^o-1
    mm'(v)   = alpha waggr(v) o haggr(v) + (1 - alpha) mm0(v)

An edge of weight zero does not belong to the manifold, and adds nothing to either sum.

For one manifold this is ``x' = alpha M x + (1 - alpha) x0``, where row v of M has the
weights into v times haggr(v). It converges for every query if and only if alpha times
the spectral radius of M is below one. A row of M sums to ``sum(w) sum(1 / w)``. This is
at least the square of the number of its edges, and does not depend on the scale of the
weights into a vertex. Therefore *alpha* must be small, not the weights. The default is
0.85 divided by the largest row sum, which bounds the spectral radius. The bound is
small for vertices with few edges, and weights of one order of magnitude.

``normalization="mean"`` takes the inverse of the sum, ``haggr = (sum w)^o-1``, so that
``waggr o haggr`` is the weighted mean of the sources: the common definition of manifold
ranking, except that the normalisation is not symmetric. Rows of M then sum to one, and
every alpha below one converges.

State: ``score`` (V, k), ``query`` (V, k), ``weight`` (E, k). A superstep reads 2 E k
values along edges, and 2 V k of vertices; haggr is computed again although it does not
change. The k columns are independent; only the ranking combines them.

D. Zhou, J. Weston, A. Gretton, O. Bousquet, B. Schölkopf, "Ranking on Data Manifolds",
Advances in Neural Information Processing Systems 16, 2004, for one manifold; the form
with vectors of weights is from Onyx.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

import featgraph as fg
from featgraph.algorithms._checks import (
    checked_weight_vectors,
    require_choice,
    require_number,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded, refuse_growth
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import columns, columns_property

__all__ = [
    "MultiManifoldRankingResult",
    "multi_manifold_ranking",
    "verify_multi_manifold_ranking",
]

Array = npt.NDArray[Any]

#: alpha times the bound on the spectral radius, if alpha is not given.
DEFAULT_CONTRACTION = 0.85


@fg.gather(into="waggr", combine="sum")
def weighted_scores(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the score of the source, times the weight on manifold f."""
    return d.weight[e, f] * d.score[u, f]


@fg.gather(into="haggr", combine="sum")
def inverse_weights(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the inverse weight of an edge of manifold f."""
    if d.weight[e, f] == 0:
        return fg.nothing
    return 1 / d.weight[e, f]


@fg.gather(into="total", combine="sum")
def weights_in(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the weight; the sum is the divisor of the mean."""
    return d.weight[e, f]


@fg.vertex
def bound_row_sums(f, v, d):  # type: ignore[no-untyped-def]
    """Store the largest row sum of v in M over all manifolds."""
    d.row_sum[v] = fg.feature_max(d.total[v, f] * d.haggr[v, f])
    return True


@fg.reduce(into="bound", combine="max")
def largest_row_sum(f, v, d):  # type: ignore[no-untyped-def]
    """Return the row sum; the largest bounds the spectral radius."""
    return d.row_sum[v]


@fg.vertex
def start_at_query(f, v, d):  # type: ignore[no-untyped-def]
    """Set the initial scores to those of the query."""
    d.score_next[v, f] = d.query[v, f]
    return True


@fg.vertex
def rank(f, v, d):  # type: ignore[no-untyped-def]
    """Combine both sums with the score of the query."""
    new = d.alpha * d.waggr[v, f] * d.haggr[v, f] + (1 - d.alpha) * d.query[v, f]
    d.score_next[v, f] = new
    return fg.any_feature(abs(new - d.score[v, f]) > d.epsilon)


@fg.vertex
def rank_by_mean(f, v, d):  # type: ignore[no-untyped-def]
    """Combine the mean of the sources with the score of the query."""
    mean = d.waggr[v, f] / d.total[v, f] if d.total[v, f] > 0 else 0.0
    new = d.alpha * mean + (1 - d.alpha) * d.query[v, f]
    d.score_next[v, f] = new
    return fg.any_feature(abs(new - d.score[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of the score on manifold f."""
    return abs(d.score_next[v, f] - d.score[v, f])


@fg.reduce(into="unbounded", combine="any")
def is_unbounded(f, v, d):  # type: ignore[no-untyped-def]
    """Test whether a score is not finite."""
    return not math.isfinite(d.score[v, f])


begin, end = fg.vertexmap(start_at_query), fg.foldmap(is_unbounded)
find_bound = fg.foldmap(inverse_weights, weights_in, bound_row_sums, largest_row_sum)
#: (normalization, with residual) -> the foldmap of a superstep.
STEPS = {
    ("hadamard", False): fg.foldmap(weighted_scores, inverse_weights, rank),
    ("hadamard", True): fg.foldmap(
        weighted_scores, inverse_weights, rank, largest_change
    ),
    ("mean", False): fg.foldmap(weighted_scores, weights_in, rank_by_mean),
    ("mean", True): fg.foldmap(
        weighted_scores, weights_in, rank_by_mean, largest_change
    ),
}
step = STEPS["hadamard", True]


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiManifoldRankingResult(Result):
    """Result of `multi_manifold_ranking`.

    Attributes
    ----------
    scores : ndarray of shape (V, k)
        The score of each vertex on each manifold.
    alpha : float
        The parameter of the call, or its default for the graph.
    """

    scores: Array = answer()
    alpha: float

    @property
    def ranking(self) -> npt.NDArray[np.int64]:
        """All vertices, the best first, by the mean of their ranks on the manifolds.

        Scores of different manifolds have different scales; ranks do not. Equal scores
        get the mean of their ranks; of equal means, the smaller vertex comes first.
        """
        places = rankdata(self.scores, axis=0)
        return np.asarray(np.argsort(-places.sum(axis=1), kind="stable"))

    residual_name: ClassVar[str] = "largest change"


@fg.algorithm()
def multi_manifold_ranking(
    graph: fg.GraphLike,
    query: npt.ArrayLike,
    *,
    weights: npt.ArrayLike,
    alpha: float | None = None,
    normalization: str = "hadamard",
    epsilon: float = 1e-6,
    max_supersteps: int = 1000,
    history: bool = True,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> MultiManifoldRankingResult:
    """Score all vertices by their nearness to a query, along k manifolds at once.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Scores spread along ``u -> v``, in both directions if the graph is undirected.
        It has all edges of all manifolds.
    query : array_like of shape (V,) or (V, k)
        ``mm0``, such as 1 at examples of relevant vertices, and 0 elsewhere; for all
        manifolds, or a column for each.
    weights : array_like of shape (E, k)
        Non-negative, in the order in which the edges were given; zero if an edge does
        not belong to the manifold.
    alpha : float, optional
        The weight of the sources, in [0, 1). Default: 0.85, with "hadamard" divided by
        the largest ``sum(w) sum(1 / w)`` of a vertex.
    normalization : {"hadamard", "mean"}, optional
        ``haggr = sum(w^o-1)``, or ``haggr = (sum w)^o-1``; see the module.
    epsilon : float, optional
        New scores of a vertex are dropped if none changes by more than this. It has the
        unit of `query`: choose it far below its values.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    history : bool, optional
        Record the largest change of each superstep, in a pass over the vertices.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    MultiManifoldRankingResult
        Scores, ranking, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If query or weights do not fit the graph or one another, are not finite, a
        weight is negative or too small to be inverted, or a number is out of range.
    DivergenceError
        If scores become infinite, since alpha times the spectral radius is above one.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    Bitwise repeatable in pull direction, which has no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import multi_manifold_ranking
    >>> path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    >>> weights = [[1, 0], [1, 1], [0, 1]]  # two manifolds that overlap in an edge
    >>> result = multi_manifold_ranking(path, [1, 0, 0, 0], weights=weights)
    >>> result.ranking.tolist(), result.scores[3].tolist()
    ([0, 1, 2, 3], [0.0, 0.0])
    """
    graph = fg.as_graph(graph)
    w, start = _checked(graph, query, weights, alpha, normalization)
    if not epsilon >= 0:
        raise fg.GraphInputError(
            "epsilon out of range", got=epsilon, expected="0 or more"
        )
    real, width = checked_reals(dtype), w.shape[1]
    state = fg.State(
        graph,
        score=fg.vertex_property(real.type(0), shape=(width,), iterated=True),
        query=columns_property(graph, start, width, real, where="query"),
        weight=fg.edge_property(_stored(w, normalization, real).values, copy=False),
        row_sum=fg.vertex_property(np.float64(0)),
        alpha=0.0,
        epsilon=float(epsilon),
    )
    where = {"target": options.get("target", "auto")}
    if alpha is None:
        alpha = DEFAULT_CONTRACTION
        if normalization == "hadamard":
            find_bound(state, **where)
            # The largest row sum bounds the spectral radius, so that alpha contracts.
            alpha /= max(1.0, float(state["bound"][0]))
    state["alpha"] = alpha = float(alpha)
    begin(state, **where)
    fix = f"a smaller alpha than {alpha:.3g}, alpha=None, or normalization='mean'"
    run, residuals = iterate_recorded(
        STEPS[normalization, history],
        state,
        history=history,
        growth=fix,
        max_supersteps=max_supersteps,
        **options,
    )
    end(state, **where)
    if state["unbounded"].any():
        refuse_growth(run.supersteps, fix)
    return MultiManifoldRankingResult.of(
        graph, run, residuals, scores=state.view("score"), alpha=alpha
    )


def verify_multi_manifold_ranking(
    graph: fg.GraphLike,
    query: npt.ArrayLike,
    scores: npt.ArrayLike,
    *,
    weights: npt.ArrayLike,
    alpha: float | None = None,
    normalization: str = "hadamard",
    epsilon: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * All scores are finite.
    * A vertex without edges of a manifold has ``(1 - alpha) mm0`` there, up to
      `epsilon`.
    * One more superstep changes no score by more than `epsilon`, up to rounding.

    Parameters
    ----------
    graph, query, weights, alpha, normalization, epsilon
        As passed to `multi_manifold_ranking`.
    scores : array_like of shape (V, k)
        The answer of `multi_manifold_ranking`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(scores, where="scores").on_host()
    rounding = np.finfo(given.dtype).eps
    x = given.astype(np.float64)
    of_edges, query_columns = _checked(graph, query, weights, alpha, normalization)
    w, start = of_edges.on_host(), query_columns.on_host()
    require(np.isfinite(x).all(axis=1), "a score that is not finite")
    edges = edges_of(graph)
    w, count = w[edges.given], graph.vertex_count
    waggr = sums_over_in_edges(edges, w * x[edges.sources], count)
    size = sums_over_in_edges(edges, w * np.abs(x[edges.sources]), count)
    haggr = _haggr(graph, w, normalization)
    if alpha is None:
        alpha = DEFAULT_CONTRACTION
        if normalization == "hadamard":
            row_sums = sums_over_in_edges(edges, w, count) * haggr
            alpha /= max(1.0, float(row_sums.max(initial=0)))
    jump = (1 - alpha) * start
    degree = np.bincount(edges.targets, minlength=count)[:, None]
    # A sum of n rounded terms is off by at most n roundings of the sum of their sizes.
    margin = 8 * rounding * (degree + 4) * (alpha * size * haggr + np.abs(start))
    lonely = sums_over_in_edges(edges, w, count) == 0
    alone = np.abs(x - jump) <= epsilon + margin
    require((~lonely | alone).all(axis=1), "a score that comes from nowhere")
    moved = np.abs(alpha * waggr * haggr + jump - x)
    require((moved <= epsilon + margin).all(axis=1), "one more superstep changes it")


def _haggr(graph: fg.Graph, w: Array, normalization: str) -> Array:
    """Return haggr, (V, k), of weights (E, k) in the order of `edges_of`."""
    edges, count = edges_of(graph), graph.vertex_count
    if normalization == "hadamard":
        inverse = np.divide(1, w, out=np.zeros_like(w), where=w > 0)
        return sums_over_in_edges(edges, inverse, count)
    total = sums_over_in_edges(edges, w, count)
    return np.divide(1, total, out=np.zeros_like(total), where=total > 0)


def _checked(
    graph: fg.Graph,
    query: npt.ArrayLike,
    weights: npt.ArrayLike,
    alpha: float | None,
    normalization: str,
) -> tuple[fg.GivenArray, fg.GivenArray]:
    """Return weights (E, k), and the query, (V, k) or (V, 1)."""
    require_choice("normalization", normalization, ("hadamard", "mean"))
    w = checked_weight_vectors(graph, weights)
    start = columns(graph, "query", query)
    if start.shape[1] not in {1, w.shape[1]}:
        raise fg.GraphInputError(
            "the query has one column, or one for each manifold",
            got=f"{start.shape[1]} columns, {w.shape[1]} weights an edge",
        )
    if alpha is not None:
        require_number("alpha", alpha, 0 <= alpha < 1, "0 <= alpha < 1")
    return w, start


def _stored(
    w: fg.GivenArray, normalization: str, dtype: np.dtype[Any]
) -> fg.GivenArray:
    """Return the weights in a dtype, in which their inverses must be finite."""
    if normalization == "hadamard":
        edge = w.first_row_inside(w.least_positive, _most_not_inverted(dtype))
        if edge is not None:
            raise fg.GraphInputError(
                f"a weight too small to be inverted in {dtype}",
                where=f"edge {edge}",
                got=w.row(edge),
                fix="set it to 0, which leaves the edge out of that manifold",
            )
    return w.astype(dtype, "weights")


def _most_not_inverted(dtype: np.dtype[Any]) -> float:
    """Return the largest float64 whose inverse is infinite in a dtype."""
    one = dtype.type(1)
    least = one / np.finfo(dtype).max
    with np.errstate(divide="ignore", over="ignore"):
        while not np.isfinite(one / least):
            least = np.nextafter(least, one)
        below = np.nextafter(least, dtype.type(0))
        while np.isfinite(one / below):
            least, below = below, np.nextafter(below, dtype.type(0))
    middle = (float(below) + float(least)) / 2  # rounds to one of the two
    return middle if dtype.type(middle) == below else float(np.nextafter(middle, 0))
