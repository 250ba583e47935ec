"""Shortest paths: the least sum of weights from a source to every vertex.

A superstep relaxes edges::

    way(v)       = min over edges u -> v of distance(u) + w(u, v)
    distance'(v) = way(v), where that is less than distance(v)

and the u of that edge becomes the predecessor of v. Only edges from the frontier, the
vertices that changed in the last superstep, are read (``sources="active"``): the
distance of v includes the other edges already. When no distance changes, no edge makes
a path shorter (Bellman and Ford's algorithm, restricted to the frontier). All k
columns, one for each source, are computed at once.

Weights must not be negative. Then predecessors make a tree, also along edges of weight
zero: a vertex that takes u for its predecessor has become strictly nearer, and is at
least as far as u was. In a cycle of predecessors, all distances would be equal, and the
last vertex to change could not have become nearer.

A superstep in which every vertex is due reads E * k distances and E weights. With equal
weights, the number of supersteps is one more than the number of edges of the longest
shortest path. With ``near_far=``, where far vertices wait, supersteps are more, and
each edge is read about twice.

R. Bellman, "On a Routing Problem", Quarterly of Applied Mathematics 16, 1958;
U. Meyer, P. Sanders, "Delta-stepping: a parallelizable shortest path algorithm",
Journal of Algorithms 49, 2003;
properties of a right answer: S. Beamer, K. Asanović, D. Patterson, "The GAP Benchmark
Suite", 2015.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._paths import (
    NO_VERTEX,
    Kept,
    Sources,
    checked_lengths,
    checked_reals,
    follow_paths,
    keep_paths,
    length_property,
    long_length,
    refused_weight,
    require_tree,
)
from featgraph.algorithms._result import PathsResult, answer
from featgraph.algorithms._verify import edges_of, require

__all__ = ["SsspResult", "sssp", "verify_sssp"]

Array = npt.NDArray[Any]


@fg.gather(into="way", combine="argmin", sources="active")
def ways(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the distance of the source plus the weight of the edge."""
    return d.distance[u, f] + d.weight[e]


@fg.vertex
def shorten(f, v, d):  # type: ignore[no-untyped-def]
    """Store the shortest distance, if it is below the known one."""
    if d.way[v, f] >= d.distance[v, f]:
        return False
    d.distance_next[v, f] = d.way[v, f]
    d.predecessor_next[v, f] = d.way_source[v, f]
    return True


step = fg.foldmap(ways, shorten)


@fg.gather(into="way", combine="argmin", sources="active")
def ways_of_one(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the distance of the source plus one."""
    return d.distance[u, f] + 1


#: The superstep on changing graphs without weights: weights of one would be an array
#: that has to follow each change.
step_by_one = fg.foldmap(ways_of_one, shorten)
#: Version of a graph -> dtype of the graph's weights that were found not negative ->
#: whether a path could be longer than the largest finite number of the dtype.
_looked_at: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False, kw_only=True)
class SsspResult(PathsResult):
    """Result of `sssp`.

    Attributes
    ----------
    distances : ndarray of shape (V,) or (V, k)
        Least sum of weights of a path from the source; inf where no path leads.
    predecessors : ndarray of int32, shape (V,) or (V, k)
        The vertex before v on a shortest path; v itself at a source, -1 where no path
        leads.
    """

    distances: Array = answer()
    predecessors: npt.NDArray[np.int32] = answer()

    def _resume(self, following: Any) -> Any:
        """Update the paths: recompute those that lost an edge, and shorten others."""
        given, may_be_long = following.arguments, list[bool]()
        is_weighted = not _is_unit(following.graph, given["weights"])
        if is_weighted:
            real, check = checked_reals(given["dtype"]), partial(_lengths, may_be_long)
            length_property(following.graph, given["weights"], real, check)
            if any(may_be_long):
                return "paths may be longer than the type holds"
        kept = Kept("distances", "distance", "predecessor", 0, np.inf, not is_weighted)
        return follow_paths(self, following, kept, step if is_weighted else step_by_one)


@fg.algorithm()
def sssp(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    together: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> SsspResult:
    """Find shortest paths from one vertex or several to all others.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Paths follow ``u -> v``, in both directions if the graph is undirected.
    sources : int or str, or array_like of them, shape (k,)
        Ids of the vertices at which paths begin, or their names if these are text: see
        `Graph.vertex_names`. Each of several sources has a column of the result.
    weights : array_like of shape (E,), optional
        Not negative, in the order in which the edges were given; inf closes an edge.
        Default: the weights of the graph, or one.
    together : bool, optional
        Whether the result has one column, with the paths from the nearest source.
    dtype : dtype, optional
        float32 or float64, of weights and distances. In float32, sums of integers are
        exact up to 2**24.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    SsspResult
        Distances, predecessors, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If a source is no vertex, the weights do not fit the graph, or a weight is
        negative, nan, or too large for `dtype` (the message names the edge). If a path
        is longer than `dtype` holds (the message names its last vertex).

    Notes
    -----
    Distances are the same, bit for bit, on every target and with all options. So are
    predecessors with ``near_far=None``: of several equally near ones, the smallest id
    is taken. By default, with one source on the CPU and a graph that is not small, far
    vertices wait in the supersteps of the compiled loop: fewer edges are read, and
    another, equally near predecessor may be found. This holds for
    ``near_far=fg.NearFar("distance")``, too, and for ``asynchronous=True``, which takes
    fewer supersteps.

    Memory in float32: 16 k bytes a vertex, and 4 an edge for its weight. On the CPU,
    the compiled loop that runs supersteps of few vertices takes 16 + 8 k bytes a vertex
    more, and another 9 if far vertices wait.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import sssp
    >>> roads = fg.Graph.from_edges([0, 0, 1], [1, 2, 2], weights=[1.0, 4.0, 2.0])
    >>> found = sssp(roads, 0)
    >>> found.distances.tolist(), found.predecessors.tolist()
    ([0.0, 1.0, 3.0], [0, 0, 1])
    """
    graph = fg.as_graph(graph)
    begin, real = Sources(graph, sources, together), checked_reals(dtype)
    may_be_long: list[bool] = []
    if begin.width == 1:
        options.setdefault("near_far", fg.NearFar("distance", optional=True))
    is_unit, lengths = _is_unit(graph, weights), dict[str, Any]()
    if not is_unit:
        check = partial(_lengths, may_be_long)
        lengths["weight"] = length_property(graph, weights, real, check)
    state = fg.State(
        graph,
        distance=begin.property(0, np.inf, real),
        predecessor=begin.property(begin.vertices, NO_VERTEX, np.int32),
        **lengths,
    )
    # A path has fewer than V edges; the last superstep changes no vertex.
    options.setdefault("max_supersteps", graph.vertex_count + 1)
    ways = step_by_one if is_unit else step
    run = fg.iterate(ways, state, active=begin.vertices, **options)
    if any(may_be_long):
        _require_held(graph, begin, weights, state)
    made = SsspResult.of(
        graph,
        run,
        distances=begin.result(state.view("distance")),
        predecessors=begin.result(state.view("predecessor")),
    )
    return keep_paths(made, state)


def verify_sssp(
    graph: fg.GraphLike,
    sources: npt.ArrayLike,
    distances: npt.ArrayLike,
    predecessors: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    together: bool = False,
) -> None:
    """Check the answer of a converged run, in the dtype of its distances.

    * Sources are at distance zero.
    * No edge makes a path shorter.
    * The distance of a vertex is that of its predecessor plus the weight of an edge
      from there. The predecessor of a source is itself, and a vertex that was not
      reached has none.
    * Each chain of predecessors ends at a source.

    Parameters
    ----------
    graph, sources, weights, together
        As passed to `sssp`.
    distances, predecessors : array_like of shape (V,) or (V, k)
        The answer of `sssp`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    begin, edges = Sources(graph, sources, together), edges_of(graph)
    shape = (graph.vertex_count, begin.width)
    known = fg.given_array(distances, where="distances").on_host().reshape(shape)
    lengths = _lengths([], graph, weights, checked_reals(known.dtype)).on_host()
    lengths = lengths[edges.given]
    before = fg.given_array(predecessors, where="predecessors").on_host().reshape(shape)
    for column in range(begin.width):
        distance, begins = known[:, column], begin.mask(column)
        require(~np.isnan(distance), "nan")
        require(~begins | (distance == 0), "a source that is not at distance zero")
        way = distance[edges.sources] + lengths
        least = np.full(graph.vertex_count, np.inf, distance.dtype)
        np.minimum.at(least, edges.targets, way)
        require(distance <= least, "an edge makes the path shorter")
        fits = way == distance[edges.targets]
        reached = np.isfinite(distance)
        require_tree(edges, begins, before[:, column], reached, fits)


def _is_unit(graph: fg.Graph, weights: Any) -> bool:
    """Return whether the edges of a graph that changes have the length one."""
    changing = graph.changing
    if changing is None or weights is not None:
        return False
    return "weight" not in changing.in_rows.columns


def _lengths(
    may_be_long: list[bool], graph: fg.Graph, weights: Any, dtype: np.dtype[Any]
) -> fg.GivenArray:
    """Return lengths of the edges; raise GraphInputError if one is negative.

    Parameters
    ----------
    may_be_long : list
        The function appends whether a path could be longer than `dtype` holds.
    """
    lengths = checked_lengths(graph, weights, dtype)
    version = graph.stamps.version
    known = _looked_at.setdefault(version, {}) if weights is None else {}
    if dtype not in known:
        edge = lengths.first_outside(0, np.inf)
        if edge is not None:
            raise refused_weight(
                graph,
                edge,
                lengths,
                "weights of shortest paths must not be negative",
                "shift or scale the weights; paths may go round a negative circle "
                "forever",
            )
        known[dtype] = long_length(graph, lengths) is not None
    may_be_long.append(known[dtype])
    return lengths


def _require_held(
    graph: fg.Graph, begin: Sources, weights: Any, state: fg.State
) -> None:
    """Raise GraphInputError if a path of finite weights has an infinite length.

    The first vertex on it at an infinite distance is the target of an edge of finite
    weight from a vertex at a finite distance, and the sum of both is infinite.
    """
    known: Array = state["distance"]
    dtype = known.dtype
    fix = "scale the weights" if dtype == np.float64 else "give dtype=np.float64"
    if graph.ranks is not None:  # no rank has all edges, to find the vertex
        raise fg.GraphInputError(
            f"paths may be longer than {dtype} holds",
            where="weights",
            expected="a sum along every path of less than "
            f"{float(np.finfo(dtype).max):.2g}",
            fix=fix,
        )
    edges = edges_of(graph)
    lengths = checked_lengths(graph, weights, dtype).on_host()[edges.given]
    is_open = np.isfinite(lengths)
    for column in range(begin.width):
        begins = known[edges.sources, column]
        with np.errstate(over="ignore"):
            is_long = np.isinf(begins + lengths)
        lost = is_long & is_open & np.isfinite(begins)
        lost &= np.isinf(known[edges.targets, column])
        if lost.any():
            edge = int(np.argmax(lost))
            source, target = int(edges.sources[edge]), int(edges.targets[edge])
            raise fg.GraphInputError(
                f"a path is longer than {dtype} holds",
                where=f"vertex {target}, reached from {source}",
                got=f"{known[source, column]:.6g} + {lengths[edge]:.6g}",
                expected=f"at most {float(np.finfo(dtype).max):.2g}",
                fix=fix,
            )
