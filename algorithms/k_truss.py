"""k-truss: the edges that remain when edges in few triangles are removed.

The k-truss is the largest subgraph in which every edge is in k - 2 triangles or more.
The trussness of an edge is the largest k whose k-truss contains it. Peeling computes
it. With ``support(e)`` the number of triangles of e whose edges all remain::

    if e remains and support(e) <= k - 2:
        trussness(e) = k;  e is removed
        for each triangle of e:  support of its other two edges -= 1

This is repeated for one k until nothing more is removed. Then k rises to the smallest
remaining support plus 2 (``then=rise``). A triangle ends with the first of its edges,
so each triangle is visited once while peeling.

State, for each direction of an edge: ``left``, ``support`` (the support of the edge is
the sum of both) and ``trussness``; a reduce stores ``smallest``, k - 2, on the target.
If one direction is removed, the other follows in the next superstep, without visiting
triangles again, since `within` requires both. Cost: counting all triangles; for each
edge, once, searching the shorter of two rows of neighbors in the longer; a test of an
edge whenever it has lost a triangle; and two passes over all edges for each k that
occurs. Memory: 22 bytes per direction, and the oriented graph. All numbers are
integers, and do not depend on the order of atomics.

J. Cohen, "Trusses: Cohesive Subgraphs for Social Network Analysis", NSA, 2008. For
peeling in rounds: H. Kabir, K. Madduri, "Shared-Memory Graph Truss Decomposition",
HiPC, 2017. k is defined as in networkx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._result import Result, answer
from featgraph.algorithms._verify import require, triangles_of

__all__ = ["KTrussResult", "k_truss", "verify_k_truss"]

#: The smallest support if no edge remains: larger than every support.
NO_SUPPORT = 2**31 - 1


@fg.triangle
def support(u, v, w, e_uv, e_uw, e_vw, d):  # type: ignore[no-untyped-def]
    """Count the triangle at all three of its edges."""
    fg.atomic.add(d.support, e_uv, 1)
    fg.atomic.add(d.support, e_uw, 1)
    fg.atomic.add(d.support, e_vw, 1)


@fg.edge
def fall(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Remove the edge with trussness k if it is in k - 2 triangles or fewer."""
    if not d.left[e] or d.support[e] + d.support[fg.reverse(e)] > d.smallest[0]:
        return False
    d.left_next[e] = False
    d.trussness[e] = d.smallest[0] + 2
    return True


@fg.triangle(within="left")
def lose_triangle(u, v, w, e_uv, e_uw, e_vw, d):  # type: ignore[no-untyped-def]
    """Subtract a triangle with a removed edge from the supports of its edges."""
    fg.atomic.add(d.support, e_uv, -1)
    fg.atomic.add(d.support, e_uw, -1)
    fg.atomic.add(d.support, e_vw, -1)


@fg.gather(into="fewest", combine="min")
def supports_left(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the support of an edge that remains."""
    return d.support[e] + d.support[fg.reverse(e)] if d.left[e] else NO_SUPPORT


@fg.vertex
def keep_fewest(f, v, d):  # type: ignore[no-untyped-def]
    """Store the smallest support at a vertex."""
    d.least[v] = min(d.fewest[v], NO_SUPPORT)
    return True


@fg.reduce(into="smallest", combine="min")
def smallest_support(f, v, d):  # type: ignore[no-untyped-def]
    """Return the smallest support at a vertex."""
    return d.least[v]


@fg.vertex
def goes_on(f, v, d):  # type: ignore[no-untyped-def]
    """Make all vertices active, so that all edges are tested, while edges remain."""
    return d.smallest[0] < NO_SUPPORT


@fg.gather(into="innermost", combine="max")
def trussness_here(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the trussness of an edge."""
    return d.trussness[e]


@fg.vertex
def keep_innermost(f, v, d):  # type: ignore[no-untyped-def]
    """Store the largest trussness at a vertex, 2 or more."""
    d.least[v] = max(d.innermost[v], 2)
    return True


@fg.reduce(into="largest", combine="max")
def largest_trussness(f, v, d):  # type: ignore[no-untyped-def]
    """Return the largest trussness at a vertex."""
    return d.least[v]


count = fg.trianglemap(support)
rise = fg.foldmap(supports_left, keep_fewest, smallest_support, goes_on)
step = fg.foldmap(fall, lose_triangle)
end = fg.foldmap(trussness_here, keep_innermost, largest_trussness)


@dataclass(frozen=True, eq=False, kw_only=True)
class KTrussResult(Result):
    """Result of `k_truss`.

    Attributes
    ----------
    trussness : ndarray of int64, shape (E,)
        The largest k for which the edge is in the k-truss; 2 without triangles. In the
        order in which the edges were given.
    k : int
        The k of the call; by default the largest trussness.
    edges : ndarray of int64
        Indices of the given edges in the k-truss: their trussness is k or more.
    """

    trussness: npt.NDArray[np.int64] = answer(is_per_vertex=False)
    k: int
    edges: npt.NDArray[np.int64] = answer(is_per_vertex=False)


@fg.algorithm()
def k_truss(
    graph: fg.GraphLike,
    k: int | None = None,
    *,
    max_supersteps: int = 1_000_000,
    **options: Any,
) -> KTrussResult:
    """Find the trussness of every edge, and the edges of one truss.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Undirected, without self-loops and parallel edges.
    k : int, optional
        The k of the truss whose edges are returned. Default: the innermost truss.
    max_supersteps : int, optional
        The limit. If it ended the run, ``result.converged`` is False, and the remaining
        edges have the last k as trussness.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    KTrussResult
        Trussness, k, edges, and the record of the run.

    Raises
    ------
    GraphInputError
        If the graph is directed, an edge is a self-loop or repeated, or k is negative.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import k_truss
    >>> kite_with_tail = fg.Graph.from_edges(
    ...     [0, 1, 2, 1, 3, 3], [1, 2, 0, 3, 2, 4], directed=False
    ... )
    >>> result = k_truss(kite_with_tail)
    >>> result.trussness.tolist(), result.k, result.edges.tolist()
    ([3, 3, 3, 3, 3, 2], 3, [0, 1, 2, 3, 4])
    """
    graph = fg.as_graph(graph, directed=False)
    if k is not None and k < 0:
        raise fg.GraphInputError("k out of range", got=k, expected="0 or more")
    # Raises if the graph is directed, or has parallel edges.
    graph.orient(options.get("target", "auto"))
    _refuse_loops(graph)
    state = fg.State(
        graph,
        left=fg.edge_property(True, iterated=True, per_direction=True),
        support=fg.edge_property(np.int32(0), per_direction=True),
        trussness=fg.edge_property(np.int32(0), per_direction=True),
        least=fg.vertex_property(np.int64(0)),
    )
    where = {"target": options.get("target", "auto")}
    count(state, **where)
    run = fg.iterate(
        step,
        state,
        active=rise(state, **where),
        max_supersteps=max_supersteps,
        then=rise,
        **options,
    )
    left = int(state["smallest"][0])
    if left == NO_SUPPORT:
        end(state, **where)
        most = int(state["largest"][0]) if graph.vertex_count else 2
    else:  # the limit ended the run: remaining edges have the last k
        most = left + 2
    stored = state.view("trussness")
    of = state.graph  # on ranks, the graph to which the stored rows belong
    chosen = most if k is None else int(k)
    return KTrussResult.of(
        graph,
        run,
        trussness=lambda _: _of_edges(of, stored, most, run.converged),
        k=chosen,
        edges=lambda result: np.flatnonzero(result.trussness >= chosen),
    )


def _of_edges(
    graph: fg.Graph, stored: fg.View, left: int, have_fallen: bool
) -> npt.NDArray[np.int64]:
    """Return the trussness of given edges; remaining edges have the last k.

    If the limit ended the run, one direction of an edge may be removed and the other
    not.
    """
    if have_fallen:
        return graph.collect_edge_values(stored).astype(np.int64)
    both = graph.collect_edge_values(stored, per_direction=True)
    found = both.reshape(2, -1).max(axis=0).astype(np.int64)
    found[found == 0] = left
    return found


def _refuse_loops(graph: fg.Graph) -> None:
    if graph.edge_count == 2 * graph.given_edge_count:
        return
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    loop = int(np.argmax(sources == targets))
    raise fg.GraphInputError(
        "trusses are not defined with self-loops",
        where=f"edge {loop}",
        got=f"vertex {sources[loop]} to itself",
        fix="drop the edges whose ends are the same",
    )


def verify_k_truss(graph: fg.GraphLike, trussness: npt.ArrayLike) -> None:
    """Check trussness against a list of all triangles, made in NumPy.

    * An edge of trussness t is in t - 2 triangles or more whose edges all have
      trussness t or more: t is not too large.
    * After removing all edges of smaller trussness, the edges of trussness k can be
      removed one after another, each with k - 2 or fewer triangles: k is not too small.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `k_truss`.
    trussness : array_like of int, shape (E,)
        The answer of `k_truss`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such edge.
    """
    graph = fg.as_graph(graph, directed=False)
    given = fg.given_array(trussness, where="trussness").on_host()
    edges = triangles_of(graph).edges
    require(given >= 2, "trussness less than 2", "edge")
    weakest = given[edges].min(axis=1, initial=2**31)
    counted = (given[edges] == weakest[:, None]) & (len(edges) > 0)
    inside = np.bincount(edges[counted], minlength=given.size)
    require(inside >= given - 2, "too few triangles in its truss", "edge")
    left = _peeled(given, edges)
    require(~left, "it belongs to a truss of larger k", "edge")


def _peeled(given: npt.NDArray[Any], edges: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of edges that cannot be removed at their trussness."""
    supports = np.bincount(edges.ravel(), minlength=given.size)
    ends = np.cumsum(supports)
    holders = np.argsort(edges.ravel(), kind="stable") // 3  # edge by edge
    left = np.ones(given.size, np.bool_)
    whole = np.ones(len(edges), np.bool_)
    for k in np.unique(given):
        own = np.flatnonzero(given == k)
        falling = own[supports[own] <= k - 2]
        while falling.size:
            left[falling] = False
            slots = [np.arange(e - n, e) for e, n in zip(
                ends[falling], np.diff(ends, prepend=0)[falling], strict=True
            )]  # fmt: skip
            lost = holders[np.concatenate(slots)]
            lost = np.unique(lost[whole[lost]])
            whole[lost] = False
            supports -= np.bincount(edges[lost].ravel(), minlength=given.size)
            own = own[left[own]]
            falling = own[supports[own] <= k - 2]
    return left
