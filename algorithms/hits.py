"""HITS: hubs point to good authorities, authorities are pointed to by good hubs.

With ``w(e)`` the weight of an edge, or one, and both vectors summing to one::

    authority(v) = sum over edges u -> v of w(e) hub(u)        divided by its sum
    hub(v)       = sum over edges v -> u of w(e) authority(u)  divided by its sum

This is the power iteration for the largest singular value of the adjacency matrix. The
two lines are kernels of one foldmap, along in-edges and along out-edges; hubs are
computed from the authorities of the same superstep. Stored vectors are not divided: the
sum of a vector is a reduce, and each read of the vector divides by it.

State: ``hub`` and ``authority`` (V,), not divided. A superstep reads every edge twice,
and reads or writes 4 V values of vertices.

J. M. Kleinberg, "Authoritative Sources in a Hyperlinked Environment", Journal of the
ACM 46, 1999. Arguments, and the division by sums, are those of networkx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    given_or_own_weights,
    require_number,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, around_of, iterate_recorded
from featgraph.algorithms._verify import edges_of, require
from featgraph.algorithms._vertices import ByVertex, column_property

__all__ = ["HitsResult", "hits", "verify_hits"]

Array = npt.NDArray[Any]


def share(x: Any, total: Any) -> Any:
    """Divide by a sum of values that are not negative; return 0 if the sum is 0."""
    return x / total if total > 0 else 0.0


@fg.reduce(into="hub_sum", combine="sum")
def sum_of_hubs(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the hubs, which are divided by the sum."""
    return d.hub[v]


@fg.gather(into="inflow", combine="sum")
def hubs_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the hub rating of a vertex that points to v."""
    return d.hub[u]


@fg.gather(into="inflow", combine="sum")
def weighted_hubs_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the hub rating of a vertex that points to v, times the weight."""
    return d.weight[e] * d.hub[u]


@fg.vertex
def be_authority(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum of the divided hub ratings."""
    d.authority[v] = share(d.inflow[v], d.hub_sum[0])
    return True


@fg.reduce(into="authority_sum", combine="sum")
def sum_of_authorities(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the authorities, which are divided by the sum."""
    return d.authority[v]


@fg.gather(into="outflow", combine="sum", along="out")
def authorities_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the authority rating of a vertex to which v points."""
    return d.authority[u]


@fg.gather(into="outflow", combine="sum", along="out")
def weighted_authorities_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the authority rating of a vertex to which v points, times the weight."""
    return d.weight[e] * d.authority[u]


@fg.vertex
def be_hub(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum of the divided authority ratings."""
    d.hub_next[v] = share(d.outflow[v], d.authority_sum[0])
    return True


@fg.reduce(into="next_sum", combine="sum")
def sum_of_next(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the new hubs, which are divided by the sum."""
    return d.hub_next[v]


@fg.reduce(into="residual", combine="sum")
def change(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the absolute changes of divided hubs, the L1 norm."""
    return abs(share(d.hub_next[v], d.next_sum[0]) - share(d.hub[v], d.hub_sum[0]))


@fg.vertex
def be_divided(f, v, d):  # type: ignore[no-untyped-def]
    """Divide both ratings by the sums of the last iteration."""
    d.hub_next[v] = share(d.hub[v], d.next_sum[0])
    d.authority[v] = share(d.authority[v], d.authority_sum[0])
    return True


@fg.vertex
def begin_divided(f, v, d):  # type: ignore[no-untyped-def]
    """Divide the initial hubs by their sum, if there are no iterations."""
    d.hub_next[v] = share(d.hub[v], d.hub_sum[0])
    return True


def _step(behind: Any, ahead: Any) -> fg.FoldMap:
    """Return the foldmap of an iteration, from the gathers of both ratings."""
    authorities = (sum_of_hubs, behind, be_authority, sum_of_authorities)
    return fg.foldmap(*authorities, ahead, be_hub, sum_of_next, change)


#: Whether edges have weights -> the foldmap of an iteration.
STEPS = {
    False: _step(hubs_behind, authorities_ahead),
    True: _step(weighted_hubs_behind, weighted_authorities_ahead),
}
step = STEPS[False]
#: Whether there was an iteration -> the foldmap that runs after the last one.
DIVIDE = {False: fg.foldmap(sum_of_hubs, begin_divided), True: fg.foldmap(be_divided)}


@dataclass(frozen=True, eq=False, kw_only=True)
class HitsResult(Result):
    """Result of `hits`.

    Attributes
    ----------
    hubs, authorities : ndarray of shape (V,)
        Non-negative; each sums to one, or is zero if no edge has a positive weight.
    residuals : ndarray of float64, shape (S,)
        The residual of each iteration, which is a superstep.
    """

    hubs: Array = answer()
    authorities: Array = answer()

    residual_name: ClassVar[str] = "L1 change of the hubs"
    residual_fix: ClassVar[str] = ""


@fg.algorithm("max_supersteps")
def hits(
    graph: fg.GraphLike,
    *,
    weights: npt.ArrayLike | None = None,
    nstart: ByVertex | None = None,
    tol: float = 1e-8,
    max_iter: int = 100,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> HitsResult:
    """Rate the vertices of a graph as hubs and as authorities.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Edges point ``u -> v``; in both directions if the graph is undirected, and both
        ratings are then the same.
    weights : array_like of shape (E,), optional
        Finite, not negative. Default: those of the graph, or one for each edge.
    nstart : array_like of shape (V,), or mapping, optional
        Initial hubs, in any scale. Default: all equal. A mapping has values of some
        vertices by name, or by id if `Graph.vertex_names` is None; other vertices have
        zero.
    tol : float, optional
        The run has converged when the sum of the absolute changes of hubs is less than
        this.
    max_iter : int, optional
        The limit on iterations.
    dtype : numpy dtype, optional
        Dtype of the arithmetic and the result. In float32, `tol` should be 1e-6 or
        more.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    HitsResult
        Hubs, authorities, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If `nstart` or the weights do not fit the graph, are negative or not finite, or
        a number is out of range.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    An iteration multiplies the distance to the fixpoint by the square of the ratio of
    the second to the first singular value. If they are equal, the result depends on
    `nstart`.

    Bitwise repeatable in pull direction, which has no atomics. Memory: 3 values per
    vertex.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import hits
    >>> links = fg.Graph.from_edges([0, 0, 1, 3], [2, 1, 2, 2])
    >>> rated = hits(links)
    >>> rated.hubs.round(2).tolist(), rated.authorities.round(2).tolist()
    ([0.41, 0.29, 0.0, 0.29], [0.0, 0.29, 0.71, 0.0])
    """
    graph = fg.as_graph(graph)
    require_number("tol", tol, tol > 0, "more than 0")
    require_number("max_iter", max_iter, 0 <= max_iter < 1 << 63, "0 or more")
    real = checked_reals(dtype)
    weight = weight_properties(graph, weights, real, ratios=True)
    state = fg.State(
        graph,
        hub=column_property(graph, "nstart", nstart, real, iterated=True),
        authority=fg.vertex_property(real.type(0)),
        hub_sum=np.ones(1, real),
        **weight,
    )
    run, residuals = iterate_recorded(
        STEPS[bool(weight)],
        state,
        until=fg.below("residual", tol),
        max_supersteps=int(max_iter),
        **options,
    )
    DIVIDE[run.supersteps > 0](state, **around_of(options))
    hubs, authorities = state.view("hub"), state.view("authority")
    return HitsResult.of(graph, run, residuals, hubs=hubs, authorities=authorities)


def verify_hits(
    graph: fg.GraphLike,
    hubs: npt.ArrayLike,
    authorities: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    tol: float = 1e-8,
) -> None:
    """Check the answer of a converged run, in float64.

    * No rating is negative; hubs sum to one, or are all zero, and so do authorities.
    * Hubs follow from authorities, up to rounding.
    * Another iteration changes the hubs by at most twice `tol`, up to rounding.

    Parameters
    ----------
    graph, weights, tol
        As passed to `hits`.
    hubs, authorities : array_like of shape (V,)
        The answer of `hits`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    edges = edges_of(graph)
    given = given_or_own_weights(graph, weights, ratios=True)
    weight = np.ones(edges.given.size) if given is None else given[edges.given]
    found = fg.given_array(hubs, where="hubs").on_host()
    hub, authority = (
        fg.given_array(x, np.float64, "ratings").on_host() for x in (hubs, authorities)
    )
    count = graph.vertex_count
    degree = np.bincount(np.concatenate([edges.sources, edges.targets]))
    # Sums over edges, over all vertices, and two divisions, at both kinds.
    eps = float(np.finfo(found.dtype).eps)
    slack = 4 * eps * (degree.max(initial=0) + np.sqrt(count) + 8)
    for name, x in (("hub", hub), ("authority", authority)):
        require(x >= 0, f"a negative {name}")
        total = x.sum()
        if x.any() and abs(total - 1) > slack:
            raise AssertionError(f"the {name} ratings sum to {total!r}")

    def rated(x: Array, ends: Array, others: Array) -> Array:
        return _divided(np.bincount(ends, weight * x[others], minlength=count))

    near = np.abs(rated(authority, edges.sources, edges.targets) - hub) <= slack
    require(near, "the hub is not what its authorities make of it")
    again = rated(hub, edges.targets, edges.sources)
    moved = np.abs(rated(again, edges.sources, edges.targets) - hub).sum()
    if moved > 2 * tol + count * slack * eps + slack:
        raise AssertionError(f"another iteration moves the hubs by {moved:.3g}")


def _divided(x: Array) -> Array:
    total = x.sum(dtype=np.float64)
    return (x / total).astype(x.dtype) if total > 0 else np.zeros_like(x)
