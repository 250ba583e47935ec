"""Shortest paths: the least sum of weights from a source to every vertex.

A superstep looks whether a last edge makes a path shorter::

    way(v)       = min over edges u -> v of distance(u) + w(u, v)
    distance'(v) = way(v), where that is less than distance(v)

and the u of that edge becomes the predecessor of v. Only edges from vertices changed
in the last superstep are read (``sources="active"``): v has the other keys already.
When none has moved, no edge makes a path shorter (Bellman and Ford's algorithm, on what
has changed). All k columns, one for each source, are computed at once.

Weights must not be negative. Then predecessors make a tree, also along edges of weight
zero: a vertex that takes u for its predecessor has become strictly nearer, and is at
least as far as u was. In a cycle all would be equally far, and the last one would not
have become nearer.

A superstep reads E * k distances and E weights where everything is due. There are as
many as the longest shortest path has edges, and one more, if weights are equal. Where
far vertices wait (``near_far=``) there are more, and each edge is read about twice.

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
    Sources,
    checked_lengths,
    checked_reals,
    follow_paths,
    length_property,
    long_length,
    refused_weight,
    require_tree,
)
from featgraph.algorithms._result import PathsResult, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require

__all__ = ["SsspResult", "sssp", "verify_sssp"]

Array = npt.NDArray[Any]


@fg.gather(into="way", combine="argmin", sources="active")
def ways(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Go to the source, and along the edge."""
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
    """Go to the source, and along an edge of length one."""
    return d.distance[u, f] + 1


#: The superstep of updates where edges have no weights, which would have to follow.
step_by_one = fg.foldmap(ways_of_one, shorten)
#: Version of a graph -> for each type of its own weights, once none is negative,
#: whether a path could be longer than the type holds.
_looked_at: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False, kw_only=True)
class SsspResult(PathsResult):
    """Result of `sssp`.

    Attributes
    ----------
    distances : ndarray of shape (V,) or (V, k)
        Least sum of weights from the source; inf where no path leads.
    predecessors : ndarray of int32, shape (V,) or (V, k)
        The vertex before on such a path; a source is its own, -1 where none leads.
    """

    distances: Array = answer()
    predecessors: npt.NDArray[np.int32] = answer()

    def _resume(self, following: Any) -> Any:
        """Shorten the paths that may be, behind those that are gone."""
        arguments, graph, lengths = following.arguments, following.graph, {}
        has_column = "weight" in graph.changing.in_rows.columns
        if arguments["weights"] is not None or has_column:
            real, may_be_long = checked_reals(arguments["dtype"]), list[bool]()
            check = partial(_lengths, may_be_long)
            given = length_property(graph, arguments["weights"], real, check)
            if any(may_be_long):
                return "paths may be longer than the type holds"
            lengths["weight"] = given
        took, values = step if lengths else step_by_one, (np.inf, np.inf)
        return follow_paths(self, following, "distances", took, values, **lengths)


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
        Paths go along ``u -> v``; in both directions if the graph is undirected.
    sources : int or str, or array_like of them, shape (k,)
        Where paths begin, as ids or as names that are text: see
        `Graph.vertex_names`. Of several vertices, each has a column of the result.
    weights : array_like of shape (E,), optional
        Not negative, in the order in which the edges were given; inf closes an edge.
        Default: the weights of the graph, or one.
    together : bool, optional
        Paths begin at whichever source is nearest: one column for all.
    dtype : dtype, optional
        float32 or float64, of weights and distances. Sums of integers are exact up to
        2**24 in float32.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    SsspResult
        Distances, predecessors, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If a source is no vertex, or the weights do not fit the graph, or one of them
        is negative, nan, or not held by `dtype`; it names the edge. If a path is longer
        than `dtype` holds; it names the vertex that it leads to.

    Notes
    -----
    Distances are the same, bit for bit, on every target and with all options. So are
    predecessors with ``near_far=None``: of several sources that are as near, the
    smallest is taken. By default, paths from one source on the CPU let far vertices
    wait where supersteps run in a compiled loop, on graphs that are not small: fewer
    edges are read, and another predecessor that is as near may be found. The same holds
    for ``near_far=fg.NearFar("distance")`` and, in fewer supersteps, for
    ``asynchronous=True``.

    Memory in float32: 16 k bytes a vertex, and 4 an edge for its weight. On the CPU,
    the compiled loop that runs supersteps of few vertices takes 16 + 8 k bytes a vertex
    more, and 9 where far ones wait.

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
    state = fg.State(
        graph,
        distance=begin.property(0, np.inf, real),
        predecessor=begin.property(begin.vertices, NO_VERTEX, np.int32),
        weight=length_property(graph, weights, real, partial(_lengths, may_be_long)),
    )
    options.setdefault("max_supersteps", graph.vertex_count + 1)
    run, residuals = iterate_recorded(
        step, state, history=False, active=begin.vertices, **options
    )
    if any(may_be_long):
        _require_held(graph, begin, weights, state)
    return SsspResult(
        run=run,
        vertex_names=graph.vertex_names,
        residuals=residuals,
        distances=begin.result(state.view("distance")),
        predecessors=begin.result(state.view("predecessor")),
    )


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
    * The distance of a vertex is that of its predecessor and an edge from it; a source
      is its own, and a vertex that was not reached has none.
    * Going from predecessor to predecessor ends at a source.

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
        distance, starts = known[:, column], begin.of_column(column)
        require(~np.isnan(distance), "nan")
        begins = np.zeros(graph.vertex_count, np.bool_)
        begins[starts] = True
        require(~begins | (distance == 0), "a source that is not at distance zero")
        way = distance[edges.sources] + lengths
        least = np.full(graph.vertex_count, np.inf, distance.dtype)
        np.minimum.at(least, edges.targets, way)
        require(distance <= least, "an edge makes the path shorter")
        fits = way == distance[edges.targets]
        reached = np.isfinite(distance)
        require_tree(edges, starts, before[:, column], reached, fits)


def _lengths(
    may_be_long: list[bool], graph: fg.Graph, weights: Any, dtype: np.dtype[Any]
) -> fg.GivenArray:
    """Return lengths of the edges.

    Parameters
    ----------
    may_be_long : list
        Gets whether a path could be longer than the type holds.
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
    """Raise where a path of finite edges has become infinitely long.

    Its first vertex at such a distance is the target of a finite edge from a vertex at
    a finite distance, and the sum of both is infinite.
    """
    known: Array = state["distance"]
    dtype = known.dtype
    fix = "scale the weights" if dtype == np.float64 else "give dtype=np.float64"
    if graph.ranks is not None:  # none has all edges
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
