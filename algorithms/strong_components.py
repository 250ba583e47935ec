"""Strong components: which vertices reach each other along the directions of edges.

Every vertex gets the smallest vertex of its component as its label. What is left, the
vertices without a label, is taken apart in three ways, each a foldmap or two::

    trim      a vertex that no other one left points to, or that points to no other one
              left, is a component of its own. Each counts how many do, and counts down
              as those around it get labels: along out-edges until nothing changes, then
              along in-edges. Neither makes work for the other
    pivot     the largest component, most likely: what one vertex reaches, and of that
              what reaches the vertex, both left
    colour    colour(v) = min of v and of what is left and reaches v; a vertex with its
              own number for colour is the smallest of its component, and the others of
              it are those of that colour that reach it

Colours take apart all components at once that no smaller vertex outside reaches, so one
component at least a round, and mostly many. Trimming runs before and behind: what a
component leaves behind is often a chain. On an undirected graph the weak components are
strong, and each round takes away all.

No component has vertices that the pivot reaches and others, or vertices of two colours.
So edges between them do not matter any more. Where what is left is much smaller than
the graph, it goes on as a graph of its own, without those edges.

A superstep costs the edges of what has changed. There are as many as the longest of the
shortest paths that are followed, and as a chain has vertices; on the CPU they run in a
compiled loop. Colours first go on at once to vertices whose turn is still to come
(``asynchronous=True``): most are settled in a few passes over the edges that are left.

L. K. Fleischer, B. Hendrickson, A. Pınar, "On Identifying Strongly Connected Components
in Parallel", IPDPS Workshops, 2000 (pivot); S. Orzan, "On Distributed Verification and
Verified Distribution", PhD thesis, Amsterdam, 2004 (colours); G. M. Slota,
S. Rajamanickam, K. Madduri, "BFS and Coloring-based Parallel Algorithms for Strongly
Connected Components and Related Problems", IPDPS, 2014 (one behind the other).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._components import require_reached, require_smallest
from featgraph.algorithms._result import Result, answer, joined
from featgraph.algorithms._verify import edges_of, require

__all__ = [
    "StrongComponentsResult",
    "strongly_connected_components",
    "verify_strongly_connected_components",
]

Array = npt.NDArray[Any]

#: The label of a vertex that is left.
LEFT = -1
#: The class of vertices that are not left.
OTHERS = -1
#: Vertices and edges of what is left, from which on it is made a graph of its own: of
#: smaller ones, supersteps would not run in a compiled loop on the CPU.
SMALLEST = 2**15
#: Supersteps in which colours go on at once to vertices whose turn is still to come:
#: most are settled then. A long path is left to supersteps of few vertices.
SWEEPS = 8
#: Up to which part of the graph before it.
FEWER = 0.5


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices without a label."""
    return d.label[v] < 0


@fg.reduce(into="left", combine="sum")
def count_left(f, v, d):  # type: ignore[no-untyped-def]
    """Count them."""
    return 1 if d.label[v] < 0 else 0


@fg.reduce(into="edges_left", combine="sum")
def count_edges_left(f, v, d):  # type: ignore[no-untyped-def]
    """Count the edges out of them."""
    return d.out_degree[v] if d.label[v] < 0 else 0


@fg.vertex
def note(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices that have got a label since this was last asked."""
    is_new = d.label[v] >= 0 and not d.noted[v]
    d.noted[v] = d.label[v] >= 0
    return is_new


# -- trim


@fg.gather(into="loops", combine="sum")
def loops_at(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count edges that lead nowhere."""
    return 1 if u == v else 0


@fg.vertex
def be_alone(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component without edges from others, or without any to others."""
    d.behind[v] = d.in_degree[v] - d.loops[v]
    d.ahead[v] = d.out_degree[v] - d.loops[v]
    d.label_next[v] = v
    return d.in_degree[v] == d.loops[v] or d.out_degree[v] == d.loops[v]


@fg.gather(into="gone", combine="sum", sources="active")
def labelled_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count those that point here and have just got a label: what is active."""
    return 1


@fg.vertex
def lose_behind(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component if no other vertex left points here."""
    d.behind[v] = d.behind[v] - d.gone[v]
    d.label_next[v] = v
    return d.behind[v] == 0


@fg.gather(into="gone", combine="sum", along="out", sources="active")
def labelled_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count those that are pointed to and have just got a label."""
    return 1


@fg.vertex
def lose_ahead(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component if no other vertex left is pointed to from here."""
    d.ahead[v] = d.ahead[v] - d.gone[v]
    d.label_next[v] = v
    return d.ahead[v] == 0


# -- pivot


@fg.reduce(into="heaviest", combine="max")
def most_ways(f, v, d):  # type: ignore[no-untyped-def]
    """Find through how many pairs of edges paths may go at a vertex left."""
    return d.in_degree[v] * d.out_degree[v] if d.label[v] < 0 else -1


@fg.reduce(into="first", combine="min")
def first_of_most(f, v, d):  # type: ignore[no-untyped-def]
    """Find the first such vertex, likely to be of the largest component."""
    is_one = d.label[v] < 0 and d.in_degree[v] * d.out_degree[v] == d.heaviest[f]
    return v if is_one else d.vertex_count


@fg.vertex
def begin_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Begin at the pivot."""
    d.reached_next[v] = v == d.pivot
    d.label_next[v] = v if v == d.pivot else d.label[v]
    return True


@fg.vertex
def not_reached(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices left that the pivot is not known to reach."""
    return d.label[v] < 0 and not d.reached[v]


@fg.gather(into="comes", combine="any", sources="active")
def reached_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex that the pivot reaches and that points here."""
    return d.reached[u]


@fg.vertex
def go_forward(f, v, d):  # type: ignore[no-untyped-def]
    """Be reached as well."""
    d.reached_next[v] = True
    return d.comes[v]


@fg.vertex
def may_join(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices left that the pivot reaches."""
    return d.label[v] < 0 and d.reached[v]


@fg.gather(into="returns", combine="any", along="out", sources="active")
def joined_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex of the pivot's component that is pointed to from here."""
    return d.label[u] == d.pivot


@fg.vertex
def join_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Be of it as well."""
    d.label_next[v] = d.pivot
    return d.returns[v]


# -- colour


@fg.vertex
def begin_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Begin with one's own number; those that are not left have a larger one."""
    d.colour_next[v] = v if d.label[v] < 0 else d.vertex_count
    return True


@fg.gather(into="low", combine="min")
def colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the smallest colour of those that point here."""
    return d.colour[u]


@fg.gather(into="low", combine="min", sources="active")
def new_colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the smallest that has just come."""
    return d.colour[u]


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


# -- behind all


@fg.reduce(into="smallest", combine="min")
def smallest_of_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Find the smallest vertex of the pivot's component."""
    return v if d.label[v] == d.pivot else d.vertex_count


@fg.vertex
def rename(f, v, d):  # type: ignore[no-untyped-def]
    """Name that component by it, not by its pivot."""
    d.label_next[v] = d.smallest[f] if d.label[v] == d.pivot else d.label[v]
    return True


@fg.reduce(into="roots", combine="sum")
def count_roots(f, v, d):  # type: ignore[no-untyped-def]
    """Count the components by the vertices that name them."""
    return 1 if d.label[v] == v else 0


find_left, find_new = fg.vertexmap(is_left), fg.vertexmap(note)
survey = fg.foldmap(count_left, count_edges_left)
find_alone = fg.foldmap(loops_at, be_alone)
trim_behind = fg.foldmap(is_left, labelled_behind, lose_behind)
trim_ahead = fg.foldmap(is_left, labelled_ahead, lose_ahead)
find_pivot, set_pivot = fg.foldmap(most_ways, first_of_most), fg.vertexmap(begin_pivot)
forward = fg.foldmap(not_reached, reached_behind, go_forward)
backward = fg.foldmap(may_join, joined_ahead, join_pivot)
restart = fg.vertexmap(begin_colour)
sweep = fg.foldmap(is_left, colours_behind, take_colour)
spread = fg.foldmap(is_left, new_colours_behind, take_colour)
begin = fg.vertexmap(be_smallest)
step = fg.foldmap(is_left, own_colour_ahead, join_colour)
end, total = fg.foldmap(smallest_of_pivot, rename), fg.foldmap(count_roots)


@dataclass(frozen=True, eq=False, kw_only=True)
class StrongComponentsResult(Result):
    """What `strongly_connected_components` returns.

    Attributes
    ----------
    labels : ndarray of int32, shape (V,)
        The smallest vertex of the component.
    count : int
        How many components there are.
    rounds : int
        How often colours were spread.
    """

    labels: npt.NDArray[np.int32] = answer()
    count: int
    rounds: int


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
        Labels, their number, and the record of all runs as one.

    Notes
    -----
    Labels are the same on every target and with all options; no atomics where gathers
    are pulled. Memory: 27 bytes a vertex, and the edges both ways;
    the same again for what is left, where that is at most half of the graph.

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
    parts = [_Part(graph, None, options)]
    rounds = 0
    while (part := parts[-1]).left:
        classes = part.take_colours() if rounds else part.take_pivot()
        rounds += 1
        part.trim(find_new(part.state, **part.where))
        smaller = part.shrunk(classes)
        parts += [] if smaller is None else [smaller]
    count = sum(part.finished() for part in parts)
    views = [(part.ids, part.state.view("label")) for part in parts]
    labels: Any = views[0][1] if len(views) == 1 else lambda _: _told(views)
    return StrongComponentsResult(
        run=joined([run for part in parts for run in part.runs]),
        residuals=np.empty(0),
        vertex_names=graph.vertex_names,
        labels=labels,
        count=count,
        rounds=max(rounds - 1, 0),
    )


class _Part:
    """Vertices that had no label when they were put together, and runs on them.

    Parameters
    ----------
    graph : Graph
        Those vertices, and the edges between them that matter.
    ids : ndarray of int32, shape (V,), or None
        Which vertices they are in the whole graph, ascending; None: all.
    options : dict
        Of the runs.

    Attributes
    ----------
    left, size : int
        How many vertices have no label, and how many edges lead out of them beside.
    """

    def __init__(
        self, graph: fg.Graph, ids: Array | None, options: dict[str, Any]
    ) -> None:
        self.graph, self.ids, self.options = graph, ids, options
        self.where = {"target": options.get("target", "auto")}
        self.runs: list[fg.Run] = []
        self.state = fg.State(
            graph,
            label=fg.vertex_property(np.int32(LEFT), iterated=True),
            noted=fg.vertex_property(False),
            behind=fg.vertex_property(np.int32(0)),
            ahead=fg.vertex_property(np.int32(0)),
            colour=fg.vertex_property(np.int32(0), iterated=True),
            reached=fg.vertex_property(False, iterated=True),
            pivot=0,
        )
        self.trim(find_alone(self.state, **self.where))

    def settle(self, step: fg.FoldMap, active: Any, **options: Any) -> fg.Run:
        """Repeat a foldmap until nothing changes."""
        # Never reached: all supersteps but one change a vertex.
        options = {"max_supersteps": self.graph.vertex_count + 2, **options}
        run = fg.iterate(step, self.state, active=active, **options, **self.options)
        self.runs.append(run)
        return run

    def trim(self, labelled: fg.ActiveSet) -> None:
        """Take away vertices that those with new labels were the last before or behind.

        A vertex that goes because nothing left points to it is pointed to by nothing
        left: so neither of the two searches has work for the other one.
        """
        if len(labelled):
            self.settle(trim_behind, labelled)
            self.settle(trim_ahead, labelled)
        find_new(self.state, **self.where)
        survey(self.state, **self.where)
        self.left = int(self.state["left"][0])
        self.size = self.left + int(self.state["edges_left"][0])

    def take_pivot(self) -> str:
        """Label the component of a vertex; return which property says what it reaches.

        The vertex is one that is likely to be of the largest component.
        """
        find_pivot(self.state, **self.where)
        self.state["pivot"] = pivot = int(self.state["first"][0])
        set_pivot(self.state, **self.where)
        self.settle(forward, [pivot])
        self.settle(backward, [pivot])
        return "reached"

    def take_colours(self) -> str:
        """Label the components that no smaller vertex reaches; return as before."""
        everywhere = restart(self.state, **self.where)
        if {"deterministic", "direction"} & set(self.options):
            active = find_left(self.state, **self.where)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                run = self.settle(
                    sweep,
                    everywhere,  # finding due ones takes longer
                    asynchronous=True,
                    record_active=True,
                    max_supersteps=SWEEPS,
                )
            active = run.active_sets[-1]  # type: ignore[index]
        self.settle(spread, active)
        self.settle(step, begin(self.state, **self.where))
        return "colour"

    def shrunk(self, classes: str) -> _Part | None:
        """Return those left, with the edges inside of a class, if they are much fewer.

        No component has vertices of two classes. The host makes their graph.
        """
        whole = self.graph.vertex_count + self.graph.edge_count
        if not SMALLEST <= self.size <= whole * FEWER:
            return None
        left = np.flatnonzero(self.state["label"] < 0)
        rows = self.graph.out_edges
        first = rows.row_offsets[left].astype(np.int64)
        degree = rows.row_offsets[left + 1] - first
        shift = np.repeat(first - np.cumsum(degree) + degree, degree)
        targets = rows.column_indices[np.arange(shift.size) + shift]
        number = np.full(self.graph.vertex_count, LEFT, np.int32)
        number[left] = np.arange(left.size, dtype=np.int32)
        own = np.where(number >= 0, self.state[classes].astype(np.int32), OTHERS)
        kept = own[targets] == np.repeat(own[left], degree)
        graph = fg.Graph.from_edges(
            np.repeat(number[left], degree)[kept],
            number[targets[kept]],
            vertex_count=left.size,
        )
        ids = left.astype(np.int32) if self.ids is None else self.ids[left]
        return _Part(graph, ids, self.options)

    def finished(self) -> int:
        """Name components by their smallest vertices; return how many there are."""
        end(self.state, **self.where)
        total(self.state, **self.where)
        return int(self.state["roots"][0])


def _told(views: Sequence[tuple[Array | None, fg.View]]) -> Array:
    """Return the labels of the whole graph: what each part knows of its vertices."""
    labels = np.array(views[0][1])
    for ids, view in views[1:]:
        own = np.asarray(view)
        known = np.flatnonzero(own >= 0)
        labels[ids[known]] = ids[own[known]]  # type: ignore[index]
    return labels


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
