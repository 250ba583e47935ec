"""Multimodal learning: labels or scores spread over several modalities at once.

Each edge has M weights, the similarity of its ends in each of M modalities, and ``a``
has the weight of each modality. With ``mmode(v)`` the k values of vertex v,
``mmode0(v)`` the given values, and ``1`` a vector of ones::

    AGGR(v)   = sum over edges u -> v of w(u, v)^T mmode(u)        (an M x k matrix)
    mmode'(v) = a AGGR(v) + (1 - a . 1) mmode0(v)

``a AGGR(v)`` equals ``sum (a . w(u, v)) mmode(u)``, so that the M x k matrix is not
stored. The factors ``c(u, v) = a . w(u, v)`` do not change and are computed before the
first superstep: a superstep reads one number per edge instead of M. It reads E (k + 1)
values along edges, and updates V k. With ``C`` the matrix of the factors, the fixpoint
is ``(1 - a . 1) (I - C)^-1 mmode0``.

The run converges to it if the spectral radius of C is below one. With
``normalization="symmetric"`` the weights of modality m are divided by the square roots
of their sums at both ends, so that the matrix of m has a norm of at most one; with
"mean", by their sum at the target, so that its rows sum to one. In both cases ``a . 1 <
1`` suffices. Without normalisation (None), values may diverge, which is detected.

H. Tong, J. He, M. Li, C. Zhang, W.-Y. Ma, "Graph Based Multi-Modality Learning", ACM
Multimedia 2005, for the linear fusion of modalities; the vector form is from Onyx.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    UNLABELLED,
    checked_weight_vectors,
    require_choice,
    scaled_weights,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded, refuse_growth
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import columns, columns_property

__all__ = [
    "MultimodalLearningResult",
    "multimodal_learning",
    "verify_multimodal_learning",
]

Array = npt.NDArray[Any]


@fg.gather(into="arriving", combine="sum")
def weights_in(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the weight of an in-edge in modality f."""
    return d.weight[e, f]


@fg.gather(into="leaving", combine="sum", along="out")
def weights_out(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the weight of an out-edge in modality f."""
    return d.weight[e, f]


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    """Store both sums of weights."""
    d.into[v, f] = d.arriving[v, f]
    d.out_of[v, f] = d.leaving[v, f]
    return True


@fg.edge
def fuse_symmetric(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Store c(u, v), of weights divided by the roots of their sums at both ends."""
    w = d.weight[e, f]
    both = math.sqrt(d.into[v, f]) * math.sqrt(d.out_of[u, f])
    d.fused[e] = fg.feature_sum(d.share[f] * w / both if w > 0 else 0.0)
    return True


@fg.edge
def fuse_by_mean(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Store c(u, v), of weights divided by their sum at the target."""
    w = d.weight[e, f]
    d.fused[e] = fg.feature_sum(d.share[f] * w / d.into[v, f] if w > 0 else 0.0)
    return True


@fg.edge
def fuse(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Store c(u, v), of weights that are not normalised."""
    d.fused[e] = fg.feature_sum(d.share[f] * d.weight[e, f])
    return True


@fg.vertex
def start(f, v, d):  # type: ignore[no-untyped-def]
    """Store the initial value."""
    d.mmode_next[v, f] = d.given[v, f]
    return True


#: Normalisation -> the foldmap that computes the factors c.
FUSE = {
    "symmetric": fg.edgemap(fuse_symmetric),
    "mean": fg.edgemap(fuse_by_mean),
    None: fg.edgemap(fuse),
}
find_sums, begin = fg.foldmap(weights_in, weights_out, add_up), fg.vertexmap(start)


@fg.gather(into="aggr", combine="sum")
def fused_values(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return value f of the source, times the factor of the edge."""
    return d.fused[e] * d.mmode[u, f]


@fg.vertex
def learn(f, v, d):  # type: ignore[no-untyped-def]
    """Add the given value; announce changes above epsilon."""
    new = d.aggr[v, f] + d.rest * d.given[v, f]
    d.mmode_next[v, f] = new
    return fg.any_feature(abs(new - d.mmode[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of value f."""
    return abs(d.mmode_next[v, f] - d.mmode[v, f])


@fg.reduce(into="unbounded", combine="any")
def is_unbounded(f, v, d):  # type: ignore[no-untyped-def]
    """Test whether a value is not finite."""
    return not math.isfinite(d.mmode[v, f])


end = fg.foldmap(is_unbounded)
step = fg.foldmap(fused_values, learn)
step_with_residual = fg.foldmap(fused_values, learn, largest_change)


@dataclass(frozen=True, eq=False, kw_only=True)
class MultimodalLearningResult(Result):
    """Result of `multimodal_learning`.

    Attributes
    ----------
    values : ndarray of shape (V, k)
        The fixpoint, up to epsilon.
    """

    values: Array = answer()

    residual_name: ClassVar[str] = "largest change"

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The column of each vertex's largest value; -1 if all its values are zero."""
        best = self.values.argmax(axis=1)
        return np.where(self.values.any(axis=1), best, UNLABELLED).astype(np.int64)


@fg.algorithm()
def multimodal_learning(
    graph: fg.GraphLike,
    given: npt.ArrayLike,
    *,
    weights: npt.ArrayLike,
    alpha: npt.ArrayLike | None = None,
    normalization: str | None = "symmetric",
    epsilon: float = 1e-6,
    max_supersteps: int = 1000,
    history: bool = True,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> MultimodalLearningResult:
    """Spread given values over a graph with several weights on each edge.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Values spread along ``u -> v``, in both directions if the graph is undirected.
    given : array_like of shape (V,) or (V, k)
        ``mmode0``, such as one-hot rows for labelled vertices and zeros for the others.
    weights : array_like of shape (E, M)
        Non-negative, in the order in which the edges were given; zero if the ends have
        nothing in common in a modality.
    alpha : array_like of shape (M,), optional
        The weights of modalities: non-negative, with a sum below one. Default: 0.9 / M
        each.
    normalization : {"symmetric", "mean", None}, optional
        The divisors of the weights of each modality; see the module.
    epsilon : float, optional
        New values of a vertex are dropped if none changes by more than this. It has the
        unit of `given`: choose it far below its values.
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
    MultimodalLearningResult
        Values, labels, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If values or weights do not fit the graph or are not finite, a weight is
        negative, or a number is out of range.
    DivergenceError
        If values become infinite, which requires ``normalization=None``.

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
    >>> from featgraph.algorithms import multimodal_learning
    >>> path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    >>> given = [[1, 0], [0, 0], [0, 0], [0, 1]]
    >>> weights = [[1, 0], [1, 1], [0, 1]]  # two modalities that share one edge
    >>> multimodal_learning(path, given, weights=weights).labels.tolist()
    [0, 0, 1, 1]
    >>> # With the first modality alone, vertex 3 has no neighbors.
    >>> alone = multimodal_learning(path, given, weights=weights, alpha=[0.9, 0])
    >>> alone.labels.tolist()
    [0, 0, 0, 1]
    """
    graph = fg.as_graph(graph)
    w, share = _checked(graph, weights, alpha, normalization)
    if not epsilon >= 0:
        raise fg.GraphInputError(
            "epsilon out of range", got=epsilon, expected="0 or more"
        )
    real, known = checked_reals(dtype), columns(graph, "given", given)
    width, modalities = known.shape[1], (len(share),)
    # Weights are divided by sums of their modality: only ratios matter.
    stored = None
    if normalization is not None:
        stored = scaled_weights(graph, weights, w, real)
    stored = w.astype(real, "weights") if stored is None else stored
    state = fg.State(
        graph,
        mmode=fg.vertex_property(real.type(0), shape=(width,), iterated=True),
        given=columns_property(graph, known, width, real, where="given"),
        weight=fg.edge_property(stored.values, copy=False),
        into=fg.vertex_property(real.type(0), shape=modalities),
        out_of=fg.vertex_property(real.type(0), shape=modalities),
        fused=fg.edge_property(real.type(0), per_direction=not graph.directed),
        share=share.astype(real),
        rest=float(1 - share.sum()),
        epsilon=float(epsilon),
    )
    where = {"target": options.get("target", "auto")}
    if normalization is not None:
        find_sums(state, **where)
    FUSE[normalization](state, **where)
    begin(state, **where)
    fix = "smaller weights or alpha, or normalization='symmetric'"
    run, residuals = iterate_recorded(
        step_with_residual if history else step,
        state,
        history=history,
        growth=fix,
        max_supersteps=max_supersteps,
        **options,
    )
    end(state, **where)
    if state["unbounded"].any():
        refuse_growth(run.supersteps, fix)
    return MultimodalLearningResult.of(
        graph, run, residuals, values=state.view("mmode")
    )


def verify_multimodal_learning(
    graph: fg.GraphLike,
    given: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    weights: npt.ArrayLike,
    alpha: npt.ArrayLike | None = None,
    normalization: str | None = "symmetric",
    epsilon: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * All values are finite.
    * One more superstep, computed with the M x k matrix instead of the factors c,
      changes no value by more than `epsilon`, up to rounding.

    Parameters
    ----------
    graph, given, weights, alpha, normalization, epsilon
        As passed to `multimodal_learning`.
    values : array_like of shape (V, k)
        The answer of `multimodal_learning`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    result = fg.given_array(values, where="values").on_host()
    rounding = np.finfo(result.dtype).eps
    x = result.astype(np.float64)
    start = columns(graph, "given", given).on_host()
    of_edges, a = _checked(graph, weights, alpha, normalization)
    require(np.isfinite(x).all(axis=1), "a value that is not finite")
    edges, count = edges_of(graph), graph.vertex_count
    w = _normalized(graph, of_edges.on_host(), normalization)
    aggr = np.zeros((count, len(a), x.shape[1]))
    size = np.zeros_like(x)
    for m, share in enumerate(a):
        pieces = w[:, m, None] * x[edges.sources]
        aggr[:, m] = sums_over_in_edges(edges, pieces, count)
        size += share * sums_over_in_edges(edges, np.abs(pieces), count)
    moved = np.einsum("m,vmk->vk", a, aggr) + (1 - a.sum()) * start
    degree = np.bincount(edges.targets, minlength=count)[:, None]
    # A sum of n rounded terms is off by at most n roundings of the sum of their sizes.
    margin = 8 * rounding * (degree + len(a) + 4) * (size + np.abs(start))
    change = np.abs(moved - x)
    require((change <= epsilon + margin).all(axis=1), "one more superstep changes it")


def _checked(
    graph: fg.Graph,
    weights: npt.ArrayLike,
    alpha: npt.ArrayLike | None,
    normalization: str | None,
) -> tuple[fg.GivenArray, Array]:
    """Return weights (E, M) and alpha (M,), in float64."""
    require_choice("normalization", normalization, list(FUSE))
    w = checked_weight_vectors(graph, weights)
    count = w.shape[1]
    a = np.full(count, 0.9 / count)
    if alpha is not None:
        a = fg.given_array(alpha, np.float64, "alpha").on_host()
    if a.shape != (count,) or not (a >= 0).all() or not a.sum() < 1:
        raise fg.GraphInputError(
            "alpha has one number for each modality, with a sum below one",
            got=f"{a.tolist()} for {count} modalities",
            expected="0 or more each; their sum is the weight of the sources",
        )
    return w, a


def _normalized(graph: fg.Graph, w: Array, normalization: str | None) -> Array:
    """Return normalised weights, (E, M), in the order of `edges_of`."""
    edges, count = edges_of(graph), graph.vertex_count
    w = w[edges.given]
    if normalization is None:
        return w
    into = sums_over_in_edges(edges, w, count)[edges.targets]
    if normalization == "symmetric":
        reversed_edges = edges._replace(sources=edges.targets, targets=edges.sources)
        out_of = sums_over_in_edges(reversed_edges, w, count)[edges.sources]
        into = np.sqrt(into) * np.sqrt(out_of)
    return np.divide(w, into, out=np.zeros_like(w), where=w > 0)
