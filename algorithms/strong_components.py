"""Strong components: which vertices reach each other along the directions of edges.

Every vertex gets the smallest vertex of its component as its label. What is left, the
vertices without a label, is taken apart in three ways, each a foldmap or two::

    trim      a vertex that no other one left points to, or that points to no other one
              left, is a component of its own; first those that have no edges in or out
    pivot     the largest component, most likely: what one vertex reaches (forward),
              and what reaches that vertex (backward), both left
    colour    colour(v) = min of v and of what is left and reaches v; a vertex with its
              own number for colour is the smallest of its component, and the others of
              it are those of that colour that reach it

Colours take apart all components at once that no smaller vertex outside reaches, so one
component at least a round, and mostly many. Trimming runs before and behind: what a
component leaves behind is often a chain. On an undirected graph the weak components are
strong, and each round takes away all.

A superstep costs the edges of those due that are still left. There are as many as the
longest of the shortest paths that are followed, round by round; so a long path or cycle
takes as many as it has vertices, and a sequential search would be faster there.

L. K. Fleischer, B. Hendrickson, A. Pınar, "On Identifying Strongly Connected Components
in Parallel", IPDPS Workshops, 2000 (pivot); S. Orzan, "On Distributed Verification and
Verified Distribution", PhD thesis, Amsterdam, 2004 (colours); G. M. Slota,
S. Rajamanickam, K. Madduri, "BFS and Coloring-based Parallel Algorithms for Strongly
Connected Components and Related Problems", IPDPS, 2014 (one behind the other).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._components import require_reached, require_smallest
from featgraph.algorithms._verify import edges_of, require

__all__ = [
    "StrongComponentsResult",
    "strongly_connected_components",
    "verify_strongly_connected_components",
]

Array = npt.NDArray[Any]

#: The label of a vertex that is left.
LEFT = -1


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices without a label."""
    return d.label[v] < 0


# -- trim


@fg.gather(into="entered", combine="any")
def others_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for another vertex left that points here."""
    return u != v and d.label[u] < 0


@fg.gather(into="left_by", combine="any", along="out")
def others_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for another vertex left that is pointed to from here."""
    return u != v and d.label[u] < 0


@fg.vertex
def stand_alone(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component without both."""
    d.label_next[v] = v
    return not (d.entered[v] and d.left_by[v])


# -- pivot


@fg.vertex
def not_reached(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices left that the pivot is not known to reach."""
    return d.label[v] < 0 and not d.forward[v]


@fg.gather(into="reached", combine="any", sources="active")
def marks_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex that the pivot reaches and that points here."""
    return d.forward[u]


@fg.vertex
def go_forward(f, v, d):  # type: ignore[no-untyped-def]
    """Be reached as well."""
    d.forward_next[v] = True
    return d.reached[v]


@fg.vertex
def not_reaching(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices left that are not known to reach the pivot."""
    return d.label[v] < 0 and not d.backward[v]


@fg.gather(into="reaches", combine="any", along="out", sources="active")
def marks_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex that reaches the pivot and is pointed to from here."""
    return d.backward[u]


@fg.vertex
def go_backward(f, v, d):  # type: ignore[no-untyped-def]
    """Reach it as well."""
    d.backward_next[v] = True
    return d.reaches[v]


@fg.reduce(into="smallest", combine="min")
def smallest_marked(f, v, d):  # type: ignore[no-untyped-def]
    """Find the smallest vertex of the pivot's component."""
    return v if d.forward[v] and d.backward[v] else d.vertex_count


@fg.vertex
def join_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Be of the component if the pivot reaches here, and is reached."""
    d.label_next[v] = int(d.smallest[0])
    return d.forward[v] and d.backward[v]


# -- colour


@fg.vertex
def begin_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Begin with one's own number."""
    d.colour_next[v] = v
    return d.label[v] < 0


@fg.gather(into="low", combine="min", sources="active")
def colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the smallest colour of those left that point here."""
    return d.colour[u] if d.label[u] < 0 else fg.nothing


@fg.vertex
def take_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Take it if it is smaller."""
    d.colour_next[v] = min(d.colour[v], d.low[v])
    return d.low[v] < d.colour[v]


@fg.vertex
def be_smallest(f, v, d):  # type: ignore[no-untyped-def]
    """Be the smallest of a component if no smaller vertex reaches here."""
    d.label_next[v] = v
    return d.label[v] < 0 and d.colour[v] == v


@fg.gather(into="same", combine="any", along="out", sources="active")
def own_colour_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex of the component that one's colour names, pointed to."""
    return d.label[u] == d.colour[v]


@fg.vertex
def join_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Be of it as well."""
    d.label_next[v] = d.colour[v]
    return d.same[v]


trim = fg.foldmap(is_left, others_behind, others_ahead, stand_alone)
forward = fg.foldmap(not_reached, marks_behind, go_forward)
backward = fg.foldmap(not_reaching, marks_ahead, go_backward)
take_pivot = fg.foldmap(smallest_marked, join_pivot)
restart = fg.vertexmap(begin_colour)
spread = fg.foldmap(is_left, colours_behind, take_colour)
begin = fg.vertexmap(be_smallest)
step = fg.foldmap(is_left, own_colour_ahead, join_colour)


@dataclass(frozen=True, eq=False, kw_only=True)
class StrongComponentsResult:
    """What `strongly_connected_components` returns.

    Attributes
    ----------
    labels : ndarray of int32, shape (V,)
        The smallest vertex of the component.
    count : int
        How many components there are.
    rounds : int
        How often colours were spread.
    supersteps : int
        How many ran, of all foldmaps.
    vertex_names : ndarray, tuple or None
        Name of each vertex; None where the names are 0..V-1.
    """

    labels: npt.NDArray[np.int32]
    count: int
    rounds: int
    supersteps: int
    vertex_names: Any = field(default=None, repr=False)


def strongly_connected_components(
    graph: fg.GraphLike, **options: Any
) -> StrongComponentsResult:
    """Find the strong components of a graph.

    Parameters
    ----------
    graph : Graph, or what `featgraph.as_graph` takes
        Self-loops, multi-edges and isolated vertices are welcome.
    **options
        ``target``, ``deterministic``, ... as for calling a foldmap.

    Returns
    -------
    StrongComponentsResult
        Labels, their number, and how long it took.

    Notes
    -----
    Labels are the same on every target and with all options; no atomics where gathers
    are pulled. Memory: 20 bytes a vertex, and the edges both ways.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms.strong_components import (
    ...     strongly_connected_components,
    ... )
    >>> graph = fg.Graph.from_edges([3, 2, 1, 1, 4], [2, 1, 3, 0, 1])
    >>> found = strongly_connected_components(graph)
    >>> found.labels.tolist(), found.count
    ([0, 1, 1, 1, 4], 3)
    """
    graph = fg.as_graph(graph)
    count = graph.vertex_count
    sources, sinks = graph.in_degree == 0, graph.out_degree == 0
    ends = sources | sinks
    label = np.where(ends, np.arange(count, dtype=np.int32), np.int32(LEFT))
    state = fg.State(
        graph,
        label=fg.vertex_property(label, iterated=True),
        colour=fg.vertex_property(np.zeros(count, np.int32), iterated=True),
        forward=fg.vertex_property(np.zeros(count, np.bool_), iterated=True),
        backward=fg.vertex_property(np.zeros(count, np.bool_), iterated=True),
    )

    def settle(step: fg.FoldMap, active: Any) -> None:
        # Never reached: all supersteps but one change a vertex.
        limit = graph.vertex_count + 2
        fg.iterate(step, state, active=active, max_supersteps=limit, **options)

    settle(trim, ends & ~(sources & sinks))
    left = state["label"] < 0
    if left.any():
        pivot = _pivot(graph, left)
        for name, search in (("forward", forward), ("backward", backward)):
            state[name] = np.arange(count) == pivot
            settle(search, [pivot])
        take_pivot(state, **options)
        settle(trim, state["label"] < 0)
        left = state["label"] < 0
    rounds = 0
    while left.any():
        restart(state, **options)
        settle(spread, left)
        settle(step, begin(state, **options))
        settle(trim, left & (state["label"] >= 0))
        left = state["label"] < 0
        rounds += 1
    labels = state["label"]
    return StrongComponentsResult(
        vertex_names=graph.vertex_names,
        labels=labels,
        count=int(np.count_nonzero(labels == np.arange(count))),
        rounds=rounds,
        supersteps=state.superstep,
    )


def _pivot(graph: fg.Graph, left: Array) -> int:
    """Return a vertex of those left that is likely to be of the largest component."""
    degrees = graph.in_degree.astype(np.int64), graph.out_degree.astype(np.int64)
    return int(np.argmax(np.where(left, degrees[0] * degrees[1], -1)))


def verify_strongly_connected_components(
    graph: fg.GraphLike, labels: npt.ArrayLike
) -> None:
    """Check the answer of a run.

    * Every label is the smallest vertex that has it.
    * The vertex of a label reaches all that have it, and they reach it, by edges
      between vertices of that label.
    * Edges between different labels close no cycle.

    Parameters
    ----------
    graph : Graph, or what `featgraph.as_graph` takes
        As given to `strongly_connected_components`.
    labels : array_like of int, shape (V,)
        Its answer.

    Raises
    ------
    AssertionError
        With the vertex at which a property fails first.
    """
    graph = fg.as_graph(graph)
    found = np.asarray(labels)
    require_smallest(graph.vertex_count, found)
    require_reached(graph.out_edges, found, "its label names does not reach it")
    require_reached(graph.in_edges, found, "its label names is not reached from it")
    edges = edges_of(graph)
    ends = found[edges.sources], found[edges.targets]
    apart = ends[0] != ends[1]
    _require_no_cycle(graph.vertex_count, found, ends[0][apart], ends[1][apart])


def _require_no_cycle(
    count: int, labels: Array, sources: Array, targets: Array
) -> None:
    """Raise AssertionError if components that reach each other have several labels."""
    rows = fg.Graph.from_edges(sources, targets, vertex_count=count).out_edges
    waiting = np.bincount(targets, minlength=count)
    front = np.flatnonzero(waiting == 0)
    while front.size:
        first = rows.row_offsets[front].astype(np.int64)
        degree = rows.row_offsets[front + 1] - first
        before = np.repeat(np.cumsum(degree) - degree, degree)
        ends = rows.column_indices[
            np.repeat(first, degree) + np.arange(degree.sum()) - before
        ]
        np.subtract.at(waiting, ends, 1)
        front = np.unique(ends[waiting[ends] == 0])
    what = "its component reaches one that reaches it, under another label"
    require(waiting[labels] == 0, what)
