"""Helpers of searches: sources, their columns, and trees of predecessors.

A search computes one column of a property (V, k) from one source, or from several
sources together. `follow_paths` updates the paths of a search after changes of the
graph; the functions below it check lengths of edges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    bound_weights,
    edge_here,
    require_count,
    weights_here,
)
from featgraph.algorithms._following import (
    FEW,
    Following,
    Update,
    ends_of,
    is_on_gpu,
    spread,
)
from featgraph.algorithms._verify import Edges, require
from featgraph.algorithms._vertices import checked_vertices

__all__ = [
    "NO_VERTEX",
    "Kept",
    "Sources",
    "checked_lengths",
    "checked_reals",
    "first_lost_length",
    "follow_paths",
    "keep_paths",
    "length_property",
    "long_length",
    "refused_weight",
    "require_lengths",
    "require_tree",
    "searches_per_run",
]

Array = npt.NDArray[Any]

#: The predecessor of a vertex that was not reached; the source of columns that are not
#: used, if fewer sources are left than a run has columns.
NO_VERTEX = -1
#: Default number of searches per run. Edges are read once for all of them, in as many
#: supersteps as for one. From 8 to 32, the time per source of betweenness halved on
#: R-MAT and social graphs; 64 was not faster (two cores, 2026-11-22).
BATCH = 32
#: Most bytes of the columns of a run; the default batch is halved, down to 8, to fit.
COLUMNS = 2**29
#: An update of paths begins anew after changes of more than 1 / SHARE of the edges, or
#: if more than 1 / MOST_LOST of the vertices had their paths along deleted edges.
SHARE, MOST_LOST = 8, 4
#: On a GPU, updates begin anew if a call took fewer supersteps and one of the V edges
#: of paths was probably deleted: on an H200, following the chains of sources in a graph
#: of 42M edges took 1.6 to 2 times as long as a call.
FEW_SUPERSTEPS = 64


class Sources:
    """The sources of searches, checked.

    Parameters
    ----------
    graph : Graph
    given : int, str or array_like of shape (k,)
        A vertex, or several: ids, or names that are text.
    together : bool
        Whether all sources begin one search, rather than one search each.

    Attributes
    ----------
    vertices : ndarray of int64
        The sources.
    columns : ndarray of int64
        The column of each source's search.
    width : int
        k, the number of searches.
    is_one : bool
        Whether results are of shape (V,) rather than (V, k).
    """

    def __init__(self, graph: fg.Graph, given: npt.ArrayLike, together: bool) -> None:
        vertices = checked_vertices(graph, given, "sources=")
        self.count = graph.vertex_count
        self.vertices = vertices.ravel()
        self.is_one = together or vertices.ndim == 0
        self.columns = np.arange(self.vertices.size) * (not together)
        self.width = 1 if together else self.vertices.size

    def property(self, value: Any, elsewhere: Any, dtype: npt.DTypeLike) -> Any:
        """Return an iterated property (V, k): `value` at the source of each search."""
        return fg.vertex_property(
            np.dtype(dtype).type(elsewhere),
            shape=(self.width,),
            at=(self.vertices, self.columns),
            entries=np.asarray(value, dtype),
            iterated=True,
            fill=elsewhere,
        )

    def result(self, values: Any) -> Any:
        """Return (V, k), or (V,) for a single search."""
        return values.reshape(len(values)) if self.is_one else values

    def mask(self, column: int) -> Array:
        """Return a mask (V,) of the sources of one search."""
        begins = np.zeros(self.count, np.bool_)
        begins[self.vertices[self.columns == column]] = True
        return begins


class Kept(NamedTuple):
    """The values of paths, in a result and in the State of the call that made it.

    Attributes
    ----------
    answer, property, source : str
        The names of the answer, of its property, and of the property that has the
        vertex before each one on its path.
    start, far : float
        The values of sources, and of vertices that no path reaches.
    length : int, optional
        The least length of an edge.
    rises : bool, optional
        Whether greater values are better.
    cost : float, optional
        The time of an edge in an update over that in a call. On a GPU, of one of many
        supersteps.
    """

    answer: str
    property: str
    source: str
    start: float
    far: float
    length: int = 0
    rises: bool = False
    cost: float = 1


def keep_paths(result: Any, state: fg.State) -> Any:
    """Return a result that keeps the State of the call, if updates go on with it."""
    weight = state.signature.get("weight")
    if state.graph.changing is not None and (weight is None or weight.column):
        result._take(_paths=state)
    return result


def follow_paths(
    result: Any, following: Following, kept: Kept, step: Any
) -> Update | str:
    """Update the paths of one search, or return the reason to begin anew.

    Parameters
    ----------
    kept : Kept
    step : FoldMap
        The foldmap that improves `Kept.property` and sets `Kept.source`.
    """
    graph, arguments, name = following.graph, following.arguments, kept.property
    begin = Sources(graph, arguments["sources"], arguments["together"])
    if begin.width > 1:
        return "paths are those of several searches"
    if not result.converged:
        return "the call has not converged"
    changes = following.changes(SHARE, result.supersteps)
    if isinstance(changes, str):
        return changes
    gone = sum(changes.counts[1:])
    cuts_paths = gone * graph.vertex_count > graph.given_edge_count
    if cuts_paths and result.supersteps < FEW_SUPERSTEPS and is_on_gpu(graph):
        return "edges went, and few supersteps of all paths take less on a GPU"
    state: Any = vars(result).get("_paths")
    if state is None:
        return "the weights are of another type"
    target, sources = following.target, begin.vertices
    lost = fg.trim(state, kept.source, reset={name: kept.far}, target=target)
    if lost.size > max(graph.vertex_count, FEW) // MOST_LOST:
        following.weigh(changes, np.inf)
        return f"{lost.size} vertices had their paths along edges that went"
    # Ids of deleted sources that were given out again, and sources with lost loops.
    again = sources[np.isin(sources, np.concatenate([changes.born, lost]))]
    state.put(name, again, kept.start)
    state.put(kept.source, again, again[:, None])
    due = ends_of(
        state, name, changes, lost, far=kept.far, length=kept.length, rises=kept.rises
    )
    supersteps, edges = spread(step, state, due, lost, target)
    in_call = result.run.evaluated
    if edges is not None and in_call:
        following.weigh(changes, kept.cost * edges / in_call)
    else:
        cost = kept.cost if result.supersteps >= FEW_SUPERSTEPS else 1
        following.weigh(changes, cost * supersteps / max(result.supersteps, 1))
    names = {kept.answer: name, result.tree_name: kept.source}
    answers: dict[str, Any] = {
        answer: lambda _, name=name: begin.result(state[name])
        for answer, name in names.items()
    }
    result._take(vertex_names=graph.vertex_names, **answers)
    return Update(changes.version, "", supersteps, edges)


def searches_per_run(graph: fg.Graph, batch: int | None, column_bytes: int) -> int:
    """Return `batch`, checked, or the default number of searches per run."""
    if batch is not None:
        require_count("batch", batch, 1)
        return batch
    width = BATCH
    while width > 8 and column_bytes * width * graph.vertex_count > COLUMNS:
        width //= 2
    return width


def checked_reals(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a dtype of reals that kernels compute in."""
    found = np.dtype(dtype)
    if found.name not in {"float32", "float64"}:
        raise fg.GraphInputError(
            "not a type of real numbers",
            where="dtype=",
            got=found.name,
            expected="float32 or float64",
        )
    return found


def checked_lengths(
    graph: fg.Graph, weights: npt.ArrayLike | None, dtype: np.dtype[Any]
) -> fg.GivenArray:
    """Return lengths of edges, (E,) in given order, not nan; by default one each."""
    given = None if weights is None else weights_here(graph, weights)
    if given is None:  # graphs have no nan weights
        own = graph.weights_as(dtype)
        own = np.ones(graph.given_edge_count, dtype) if own is None else own
        return fg.given_array(own)
    lengths = given.astype(dtype, "weights")
    edge = lengths.first_outside(-np.inf, np.inf)
    if edge is not None:
        raise refused_weight(graph, edge, lengths, "a weight is a number", None)
    return lengths


def length_property(
    graph: fg.Graph, weights: npt.ArrayLike | None, dtype: np.dtype[Any],
    checked: Callable[..., fg.GivenArray] = checked_lengths,
) -> Any:  # fmt: skip
    """Return the property of lengths; edges without weights have the length one."""
    bound = bound_weights(graph, dtype) if weights is None else None
    if bound is not None:
        return bound
    if weights is None and graph.part.weights is None:
        return fg.edge_property(1, dtype=dtype, fill=1)
    check = partial(checked, graph, weights, dtype)
    ranks = graph.ranks
    lengths = check() if ranks is None else ranks.on_all(check, "a look at the weights")
    return fg.edge_property(lengths.values, copy=False)


def require_lengths(
    graph: fg.Graph, weights: npt.ArrayLike, *, positive: bool = False
) -> fg.GivenArray:
    """Return checked lengths of edges, (E,) in float64: not negative, or positive.

    With `positive`, lengths are also finite, and none is lost in the rounding of a
    path's sum: each edge on a shortest path leads to a larger distance, so that
    shortest paths have no cycle.
    """
    lengths = checked_lengths(graph, weights, np.dtype(np.float64))
    if positive:
        edge = lengths.first_outside(lengths.least_positive, lengths.greatest)
        what = "lengths of edges must be positive and finite"
        fix = "leave closed edges out; join vertices that are at one place"
    else:
        edge = lengths.first_outside(0, np.inf)
        what = "lengths of edges must not be negative"
        fix = "shift or scale the weights"
    if edge is not None:
        raise refused_weight(graph, edge, lengths, what, fix)
    edge = long_length(graph, lengths)
    if edge is not None:
        what = "lengths of a path could add up to more than float64 holds"
        raise refused_weight(graph, edge, lengths, what, "scale the lengths")
    edge = first_lost_length(lengths, graph.living_count) if positive else None
    if edge is not None:
        what = "a length may be lost in the rounding of a longer path"
        fix = "leave out edges that no shortest path takes, or make short ones longer"
        raise refused_weight(graph, edge, lengths, what, fix)
    return lengths


def long_length(graph: fg.Graph, lengths: fg.GivenArray) -> int | None:
    """Return an edge so long that a path of such edges could overflow; else None."""
    most = np.finfo(lengths.dtype).max
    edges = lengths.dtype.type(max(graph.living_count, 2))  # a path has one edge less
    return lengths.first_row_inside(most / edges, most)


def first_lost_length(lengths: fg.GivenArray, living_count: int) -> int | None:
    """Return the first edge whose length may be lost in rounding; None without one.

    Adding a length changes a float64 sum if it is more than 2**-53 of the sum. The sum
    is bounded by the sum of all lengths, and by V times the longest.

    Parameters
    ----------
    lengths : GivenArray of float64, shape (E,)
        Not negative. Lengths of zero are ignored.
    living_count : int
        The number of vertices.
    """
    if not lengths.size:
        return None
    column = lengths.matrix()
    with np.errstate(over="ignore"):  # beside an infinite sum, all lengths are lost
        total = float(column.sums_of_columns()[0])
    longest = min(living_count * float(column.largest_of_columns()[0]), total)
    return lengths.first_row_inside(lengths.least_positive, longest * 2.0**-53)


def refused_weight(
    graph: fg.Graph, edge: int, lengths: fg.GivenArray, what: str, fix: str | None
) -> fg.GraphInputError:
    """Return the error for an edge with an invalid weight."""
    where = f"edge {edge}"
    if graph.ranks is None:
        where += f", {int(graph.sources[edge])} -> {int(graph.targets[edge])}"
    elif lengths.size != graph.given_edge_count:  # weights of this rank's part
        where = edge_here(graph, None, edge)
    return fg.GraphInputError(what, where=where, got=lengths.row(edge), fix=fix)


def require_tree(
    edges: Edges, begins: Array, parents: Array, reached: Array, fits: Array
) -> None:
    """Check the predecessors of one search.

    * A source is its own predecessor, and an unreached vertex has none.
    * The predecessor of another vertex is the source of an edge into it that fits.
    * Following predecessors from any vertex ends at a source.

    Parameters
    ----------
    edges : Edges
        All edges.
    begins : ndarray of bool, shape (V,)
        Whether each vertex is a source of the search.
    parents : ndarray of shape (V,)
        The predecessors of vertices.
    reached : ndarray of bool, shape (V,)
        Whether the search has reached each vertex.
    fits : ndarray of bool, shape (E,)
        Whether each edge may lead from a predecessor.

    Raises
    ------
    AssertionError
        With the vertex at which it fails.
    """
    vertices = np.arange(parents.size)
    require(~begins | (parents == vertices), "a source is not its own predecessor")
    require(reached | (parents == NO_VERTEX), "has a predecessor, but was not reached")
    led = begins | ~reached
    led[edges.targets[fits & (parents[edges.targets] == edges.sources)]] = True
    require(led, "no edge leads here from its predecessor")
    # Pointer jumping: after n rounds, an ancestor is 2**n edges away.
    ancestors = np.where(reached, parents, vertices)
    for _ in range(max(int(parents.size).bit_length(), 1)):
        ancestors = ancestors[ancestors]
    require(~reached | begins[ancestors], "its predecessors go round in a circle")
