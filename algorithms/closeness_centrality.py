"""Closeness centrality: the inverse mean distance of vertices that reach a vertex.

With ``d(u, t)`` the distance from u to t, and n the number of vertices u with a path to
t, including t::

    closeness(t) = (n - 1) / (sum over these u of d(u, t)) * (n - 1) / (V - 1)

The second factor (Wasserman and Faust) lowers the closeness of vertices that few others
reach; it can be left out. Distances are computed backwards, from all k vertices t of a
run at once::

    d(v, t) = min over edges v -> u of w(v, u) + d(u, t)

State: ``distance`` (V, k), a column for each t; with lengths also ``weight``, one per
given edge. Without lengths, one superstep finds all vertices of a level, which are then
final. A superstep reads the out-edges of vertices that have a changed out-neighbor.
Sums and counts are reduced over all vertices, once per run.

L. C. Freeman, "Centrality in Social Networks: Conceptual Clarification", Social
Networks 1, 1979; S. Wasserman, K. Faust, "Social Network Analysis: Methods and
Applications", Cambridge, 1994, page 201. Distances are those to a vertex, as in
networkx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._paths import NO_VERTEX, require_lengths, searches_per_run
from featgraph.algorithms._result import Result, called_with, joined
from featgraph.algorithms._verify import distances_from, edges_of, require
from featgraph.algorithms._vertices import checked_vertices, living_vertices

__all__ = ["ClosenessResult", "closeness_centrality", "verify_closeness_centrality"]

Array = npt.NDArray[Any]

#: Bytes of a vertex in each column of a run: two buffers of float64 distances.
COLUMN_BYTES = 16


@fg.vertex
def begin(f, v, d):  # type: ignore[no-untyped-def]
    """Reset the levels of earlier targets, and begin at the new ones."""
    d.level_next[v, f] = 0 if v == d.target[f] else -1
    return True


@fg.vertex
def unseen(f, v, d):  # type: ignore[no-untyped-def]
    """Return True for vertices without a distance to some target."""
    return d.level[v, f] < 0


@fg.gather(into="leads", combine="any", along="out", sources="active")
def seen_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Test whether an out-neighbor has a distance."""
    return d.level[u, f] >= 0


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Set the distance of v to one more."""
    if d.level[v, f] >= 0 or not d.leads[v, f]:
        return False
    d.level_next[v, f] = d.superstep - d.begun + 1
    return True


@fg.vertex
def begin_measuring(f, v, d):  # type: ignore[no-untyped-def]
    """Reset the distances of earlier targets, and begin at the new ones."""
    d.distance_next[v, f] = 0.0 if v == d.target[f] else np.inf
    return True


@fg.gather(into="way", combine="min", along="out", sources="active")
def ways_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the length of the path that begins with the edge."""
    return d.weight[e] + d.distance[u, f]


@fg.vertex
def shorten(f, v, d):  # type: ignore[no-untyped-def]
    """Store the shortest distance, if it is below the known one."""
    d.distance_next[v, f] = min(d.way[v, f], d.distance[v, f])
    return d.way[v, f] < d.distance[v, f]


@fg.reduce(into="reaching", combine="sum")
def count_levels(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices that reach a target, including itself."""
    return 1 if d.level[v, f] >= 0 else 0


@fg.reduce(into="total", combine="sum")
def add_levels(f, v, d):  # type: ignore[no-untyped-def]
    """Sum their distances."""
    return max(d.level[v, f], 0)


@fg.reduce(into="reaching", combine="sum")
def count_distances(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices that reach a target, with lengths."""
    return 1 if d.distance[v, f] < np.inf else 0


@fg.reduce(into="total", combine="sum")
def add_distances(f, v, d):  # type: ignore[no-untyped-def]
    """Sum their distances, with lengths."""
    return d.distance[v, f] if d.distance[v, f] < np.inf else 0.0


#: Whether edges have lengths -> the foldmaps that begin a run, repeat, and end it.
STEPS = {
    False: (
        fg.foldmap(begin),
        fg.foldmap(unseen, seen_ahead, settle),
        fg.foldmap(count_levels, add_levels),
    ),
    True: (
        fg.foldmap(begin_measuring),
        fg.foldmap(ways_ahead, shorten),
        fg.foldmap(count_distances, add_distances),
    ),
}
step = STEPS[False][1]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClosenessResult(Result):
    """Result of `closeness_centrality`.

    `run` has the supersteps of all runs in order.

    Attributes
    ----------
    centralities : ndarray of float64, shape (k,)
        The closeness of `vertices`; zero for a vertex that no other reaches.
    reaching : ndarray of int64, shape (k,)
        The number of other vertices with a path to each vertex.
    distances : ndarray of float64, shape (k,)
        The sum of their distances.
    vertices : ndarray of int64, shape (k,)
        The vertices passed to the call; by default all that are not dead.
    """

    centralities: npt.NDArray[np.float64]
    reaching: npt.NDArray[np.int64]
    distances: npt.NDArray[np.float64]
    vertices: npt.NDArray[np.int64]

    def _per_vertex(self) -> list[str]:
        return ["centralities", "reaching", "distances"]

    def _row_names(self, count: int) -> Any:
        if self.vertex_names is None:
            return self.vertices
        return [self.vertex_names[v] for v in self.vertices.tolist()]


@fg.algorithm("max_supersteps")
def closeness_centrality(
    graph: fg.GraphLike,
    vertices: npt.ArrayLike | None = None,
    *,
    weights: npt.ArrayLike | None = None,
    wf_improved: bool = True,
    batch: int | None = None,
    **options: Any,
) -> ClosenessResult:
    """Compute the closeness of vertices, from the distances of all that reach them.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Paths go along ``u -> v``; in both directions if the graph is undirected.
    vertices : array_like of int or str, shape (k,), optional
        The vertices, as ids or as names that are text. Default: all vertices.
    weights : array_like of shape (E,), optional
        Lengths of the edges, not negative, in the order in which they were given; inf
        closes an edge. Default: one, also if the graph has weights.
    wf_improved : bool, optional
        Whether to multiply by the share of other vertices that reach the vertex.
    batch : int, optional
        Number of vertices per run; each takes 8 bytes per vertex of the graph, 16 with
        lengths. Default: 32, or down to 8 on large graphs, so that they take no more
        than 512 MiB.
    **options
        ``target``, ``direction``, ``deterministic``, ... as for calling a foldmap.

    Returns
    -------
    ClosenessResult
        Centralities, distances, counts, and the record of the runs.

    Raises
    ------
    GraphInputError
        If a vertex is none of the graph, weights do not fit the graph or are
        negative, or a number is out of range.

    Notes
    -----
    Sums of numbers of edges are exact; of lengths, they are made in float64. No atomics
    where gathers are pulled.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import closeness_centrality
    >>> path = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    >>> closeness_centrality(path).centralities
    array([0.5 , 0.75, 0.75, 0.5 ])
    """
    graph = fg.as_graph(graph)
    if vertices is None:
        chosen = living_vertices(graph)
    else:
        chosen = checked_vertices(graph, vertices, "vertices=", is_row=True)
    width = searches_per_run(graph, batch, COLUMN_BYTES)
    state = _state(graph, width, weights)
    steps = STEPS[weights is not None]
    runs: list[fg.Run] = []
    reaching = np.zeros(len(chosen), np.int64)
    distances = np.zeros(len(chosen))
    for first in fg.rounds(
        range(0, len(chosen), width), state, runs, reaching=reaching, far=distances
    ):
        some = chosen[first : first + width]
        state["target"] = np.append(some, np.full(width - len(some), NO_VERTEX))
        steps[0](state, **called_with(options))
        if weights is None:
            state["begun"] = state.superstep
        limit = graph.vertex_count + 2  # above the number of edges of any path
        active = np.unique(some)
        run = fg.iterate(
            steps[1], state, active=active, max_supersteps=limit, **options
        )
        runs.append(run)
        steps[2](state, **called_with(options))
        reaching[first : first + width] = state["reaching"][: len(some)] - 1
        distances[first : first + width] = state["total"][: len(some)]
    centralities = reaching / np.where(distances == 0, np.inf, distances)
    if wf_improved:
        centralities *= reaching / max(graph.living_count - 1, 1)
    return ClosenessResult.of(
        graph,
        joined(runs),
        centralities=centralities,
        reaching=reaching,
        distances=distances,
        vertices=chosen,
    )


def _state(graph: fg.Graph, width: int, weights: npt.ArrayLike | None) -> fg.State:
    target = np.full(width, NO_VERTEX)
    if weights is None:
        level = fg.vertex_property(np.int32(-1), shape=(width,), iterated=True)
        return fg.State(graph, level=level, target=target, begun=0)
    return fg.State(
        graph,
        distance=fg.vertex_property(np.inf, shape=(width,), iterated=True, dtype=float),
        weight=fg.edge_property(require_lengths(graph, weights).values, copy=False),
        target=target,
    )


def verify_closeness_centrality(
    graph: fg.GraphLike,
    result: ClosenessResult,
    *,
    weights: npt.ArrayLike | None = None,
    wf_improved: bool = True,
) -> None:
    """Check closeness against distances computed edge by edge, in NumPy.

    * `reaching` is the number of vertices with a finite distance.
    * `distances` is the sum of their distances, up to rounding, and closeness follows
      from both.

    Parameters
    ----------
    graph, weights, wf_improved
        As passed to `closeness_centrality`.
    result : ClosenessResult
        The answer of `closeness_centrality`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such index into ``result.vertices``.
    """
    graph = fg.as_graph(graph)
    edges = edges_of(graph)
    lengths = np.ones(len(edges.given))
    if weights is not None:
        lengths = require_lengths(graph, weights).on_host()[edges.given]
    count = graph.vertex_count
    reaching, totals = np.zeros(len(result.vertices)), np.zeros(len(result.vertices))
    for place, target in enumerate(result.vertices):
        # Against the edges: the distances of others to the target.
        ends = edges.targets, edges.sources
        distance = distances_from(target, *ends, lengths, count)
        reached = np.isfinite(distance)
        reaching[place] = reached.sum() - 1
        totals[place] = distance[reached].sum()
    require(result.reaching == reaching, "another number of vertices leads here")
    rounding = 2 * count * np.finfo(np.float64).eps
    apart = np.abs(result.distances - totals)
    require(apart <= rounding * totals, "another sum of distances")
    part = reaching / max(graph.living_count - 1, 1) if wf_improved else 1.0
    expected = reaching / np.where(totals == 0, np.inf, totals) * part
    apart = np.abs(result.centralities - expected)
    require(apart <= (rounding + 8e-16) * expected, "another closeness")
