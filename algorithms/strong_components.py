"""Strong components: which vertices reach each other along the directions of edges.

Every vertex gets the smallest vertex of its component as its label. Vertices without a
label, called *left*, are divided into groups. All vertices of a component are in one
group, so edges between groups do not count. Three steps, each of one or two foldmaps,
label vertices and divide groups::

    trim      A vertex without in-edges from other vertices of its group, or without
              out-edges to them, is a component. Each vertex counts these neighbors,
              and subtracts those that get labels: along out-edges until nothing
              changes, then along in-edges. The second pass makes no work for the first
    pivot     The vertices that one vertex reaches and that reach it are, most likely,
              the largest component
    colour    In some order of all vertices, colour(v) is the first vertex that reaches
              v within its group, v included. A vertex that is its own colour is the
              root of a component: the vertices of its colour that reach it. The other
              vertices of the colour are a group

A round of colours finds a component of each group. Each round has another pseudorandom
order, so every vertex that reaches v is its colour with equal probability. Of the
ordered pairs of these vertices from different components, the first one reaches the
second in at most half. So, in the mean, at most half of the vertices outside the
component of v that reach v stay in its group, and the number of rounds is about the
logarithm of V on any graph. If colours were ordered by id, a chain of rings could take
a round for each ring.

On an undirected graph, the first round of colours labels all vertices that are left.
At the end, components found by colours get their smallest vertex as label: ids are
spread as colours are, with components as the groups.

On a CPU, a depth-first search on one thread replaces colours; with less than eight
threads it replaces all steps (`Graph.strong_components`). It is not used with options
for supersteps, or on ranks.

A superstep costs the edges of the vertices that changed. A step takes as many
supersteps as the longest shortest path, or the longest chain to trim, has edges; on the
CPU, supersteps run in a compiled loop. The first passes of colours read values of the
same superstep (``asynchronous=True``), so that most vertices are settled after a few
passes over the edges that are left.

L. K. Fleischer, B. Hendrickson, A. Pınar, "On Identifying Strongly Connected Components
in Parallel", IPDPS Workshops, 2000 (pivot); S. Orzan, "On Distributed Verification and
Verified Distribution", PhD thesis, Amsterdam, 2004 (colours); G. M. Slota,
S. Rajamanickam, K. Madduri, "BFS and Coloring-based Parallel Algorithms for Strongly
Connected Components and Related Problems", IPDPS, 2014 (one behind the other);
G. E. Blelloch, Y. Gu, J. Shun, Y. Sun, "Parallelism in Randomized Incremental
Algorithms", Journal of the ACM 67, 2020 (section 6: why a random order is enough).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._result import Result, answer, joined
from featgraph.algorithms._verify import (
    edges_of,
    ends_of_rows,
    require,
    require_reached,
    require_smallest,
)

__all__ = [
    "StrongComponentsResult",
    "strongly_connected_components",
    "verify_strongly_connected_components",
]

Array = npt.NDArray[Any]

#: The label of a vertex that is left: that has no label yet.
LEFT = -1
#: The group of a vertex that was labelled by trimming or by the pivot. The group of a
#: vertex labelled by colours is -1 - label, and that of a vertex left is 0 or more.
GONE = -(2**31)
#: Asynchronous passes in which colours spread first. They settle most vertices;
#: ordinary supersteps, which touch few vertices, follow the long paths.
SWEEPS = 8
#: From this number of CPU threads on, trimming and the pivot are faster than one thread
#: that searches depth-first.
MANY_THREADS = 8
#: Seed of the orders of the vertices, together with the number of the round.
SEED = 2020


def place(v: Any, half: Any, mask: Any, factor: Any) -> Any:
    """Return the place of vertex `v` in an order: a bijection of 0..mask."""
    x = ((v ^ (v >> half)) * factor) & mask
    x = ((x ^ (x >> half)) * factor) & mask
    return x ^ (x >> half)


def at_place(x: Any, half: Any, mask: Any, inverse: Any) -> Any:
    """Return the vertex at place `x`: undo the steps of `place` in reverse order."""
    v = ((x ^ (x >> half)) * inverse) & mask
    v = ((v ^ (v >> half)) * inverse) & mask
    return v ^ (v >> half)


@fg.vertex
def stay(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether v is left; take it out of its group if not."""
    if d.label[v] >= 0:
        d.group[v] = d.gone
    return d.label[v] < 0


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether v is left."""
    return d.label[v] < 0


# -- trim


@fg.gather(into="loops", combine="sum")
def loops_at(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the self-loops at v."""
    return 1 if u == v else 0


@fg.vertex
def be_alone(f, v, d):  # type: ignore[no-untyped-def]
    """Label v as a component if no other vertex points to v, or v to no other."""
    d.behind[v] = d.in_degree[v] - d.loops[v]
    d.ahead[v] = d.out_degree[v] - d.loops[v]
    d.label_next[v] = v
    return d.in_degree[v] == d.loops[v] or d.out_degree[v] == d.loops[v]


@fg.gather(into="before", combine="sum")
def others_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the edges from other vertices of the group."""
    return 1 if u != v and d.group[u] == d.group[v] else 0


@fg.gather(into="after", combine="sum", along="out")
def others_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the edges to other vertices of the group."""
    return 1 if u != v and d.group[u] == d.group[v] else 0


@fg.vertex
def be_alone_in_group(f, v, d):  # type: ignore[no-untyped-def]
    """Label v as a component if it has no edges from its group, or none to it."""
    d.behind[v] = d.before[v]
    d.ahead[v] = d.after[v]
    d.label_next[v] = v
    return d.before[v] == 0 or d.after[v] == 0


@fg.gather(into="lost", combine="sum", sources="active")
def labelled_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the edges from vertices of the group that have just got a label."""
    return 1 if d.group[u] == d.group[v] else 0


@fg.vertex
def lose_behind(f, v, d):  # type: ignore[no-untyped-def]
    """Label v as a component if no edge from a vertex left in the group remains."""
    d.behind[v] = d.behind[v] - d.lost[v]
    d.label_next[v] = v
    return d.behind[v] == 0


@fg.gather(into="lost", combine="sum", along="out", sources="active")
def labelled_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the edges to vertices of the group that have just got a label."""
    return 1 if d.group[u] == d.group[v] else 0


@fg.vertex
def lose_ahead(f, v, d):  # type: ignore[no-untyped-def]
    """Label v as a component if no edge to a vertex left in the group remains."""
    d.ahead[v] = d.ahead[v] - d.lost[v]
    d.label_next[v] = v
    return d.ahead[v] == 0


# -- pivot


@fg.reduce(into="heaviest", combine="max")
def most_ways(f, v, d):  # type: ignore[no-untyped-def]
    """Find the largest product of in-degree and out-degree of the vertices left."""
    return d.in_degree[v] * d.out_degree[v] if d.label[v] < 0 else -1


@fg.reduce(into="first", combine="min")
def first_of_most(f, v, d):  # type: ignore[no-untyped-def]
    """Find the first vertex of that product, likely of the largest component."""
    is_one = d.label[v] < 0 and d.in_degree[v] * d.out_degree[v] == d.heaviest[f]
    return v if is_one else d.vertex_count


@fg.vertex
def begin_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Mark the pivot as reached, and label it by itself."""
    d.reached_next[v] = v == d.pivot
    d.label_next[v] = v if v == d.pivot else d.label[v]
    return True


@fg.vertex
def not_reached(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether v is left and not marked as reached from the pivot."""
    return d.label[v] < 0 and not d.reached[v]


@fg.gather(into="comes", combine="any", sources="active")
def reached_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return whether the pivot reaches the source."""
    return d.reached[u]


@fg.vertex
def go_forward(f, v, d):  # type: ignore[no-untyped-def]
    """Mark v as reached if the pivot reaches an in-neighbor."""
    d.reached_next[v] = True
    return d.comes[v]


@fg.vertex
def may_join(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether v is left and reached from the pivot."""
    return d.label[v] < 0 and d.reached[v]


@fg.gather(into="returns", combine="any", along="out", sources="active")
def joined_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return whether the out-neighbor is in the component of the pivot."""
    return d.label[u] == d.pivot


@fg.vertex
def join_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Join the component of the pivot if an out-neighbor is in it."""
    d.label_next[v] = d.pivot
    return d.returns[v]


@fg.vertex
def leave_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Store the group: 1 for vertices that the pivot reaches, 0 for others left."""
    gone = d.label[v] >= 0
    d.group[v] = d.gone if gone else 1 if d.reached[v] else 0
    return d.label[v] < 0


# -- colour


@fg.vertex
def begin_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Set the colour of v to the place of v in the order."""
    d.colour_next[v] = place(v, d.half, d.mask, d.factor)
    return True


@fg.vertex
def takes_part(f, v, d):  # type: ignore[no-untyped-def]
    """Return whether colours are spread in the group of v."""
    return d.group[v] >= d.least_group


@fg.gather(into="low", combine="min")
def colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the first colour of in-neighbors in the group."""
    return d.colour[u] if d.group[u] == d.group[v] else fg.nothing


@fg.gather(into="low", combine="min", sources="active")
def new_colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the first colour of in-neighbors in the group that just changed."""
    return d.colour[u] if d.group[u] == d.group[v] else fg.nothing


@fg.vertex
def take_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Take the colour found if it is before that of v."""
    d.colour_next[v] = min(d.colour[v], d.low[v])
    return d.low[v] < d.colour[v]


@fg.vertex
def be_root(f, v, d):  # type: ignore[no-untyped-def]
    """Label v as the root of a component if no earlier vertex reaches it."""
    d.label_next[v] = v
    return d.colour[v] == place(v, d.half, d.mask, d.factor)


@fg.gather(into="same", combine="any", along="out", sources="active")
def own_colour_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return whether the out-neighbor is in the component of the root of v's colour."""
    return d.label[u] == at_place(d.colour[v], d.half, d.mask, d.inverse)


@fg.vertex
def join_root(f, v, d):  # type: ignore[no-untyped-def]
    """Join the component of the root if an out-neighbor is in it."""
    d.label_next[v] = at_place(d.colour[v], d.half, d.mask, d.inverse)
    return d.same[v]


@fg.vertex
def leave_root(f, v, d):  # type: ignore[no-untyped-def]
    """Store the group: that of the component, or of the colour for vertices left."""
    root = at_place(d.colour[v], d.half, d.mask, d.inverse)
    d.group[v] = -1 - d.label[v] if d.label[v] >= 0 else root
    return d.label[v] < 0


# -- labels by smallest vertices


@fg.vertex
def begin_name(f, v, d):  # type: ignore[no-untyped-def]
    """Set the colour to the id of v; return whether colours found its component."""
    d.colour_next[v] = v
    return d.gone < d.group[v]


@fg.vertex
def take_name(f, v, d):  # type: ignore[no-untyped-def]
    """Set the label to the colour: the smallest id of the component."""
    d.label_next[v] = d.colour[v]
    return True


@fg.reduce(into="smallest", combine="min")
def smallest_of_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Find the smallest vertex of the pivot's component."""
    return v if d.label[v] == d.pivot else d.vertex_count


@fg.vertex
def rename(f, v, d):  # type: ignore[no-untyped-def]
    """Replace the pivot as the label of its component by the smallest vertex."""
    d.label_next[v] = d.smallest[f] if d.label[v] == d.pivot else d.label[v]
    return True


@fg.reduce(into="roots", combine="sum")
def count_roots(f, v, d):  # type: ignore[no-untyped-def]
    """Count the vertices that are their own label: one for each component."""
    return 1 if d.label[v] == v else 0


find_left = fg.vertexmap(stay)
find_alone = fg.foldmap(loops_at, be_alone)
find_alone_in_group = fg.foldmap(others_behind, others_ahead, be_alone_in_group)
trim_behind = fg.foldmap(is_left, labelled_behind, lose_behind)
trim_ahead = fg.foldmap(is_left, labelled_ahead, lose_ahead)
find_pivot, set_pivot = fg.foldmap(most_ways, first_of_most), fg.vertexmap(begin_pivot)
forward = fg.foldmap(not_reached, reached_behind, go_forward)
backward = fg.foldmap(may_join, joined_ahead, join_pivot)
end_pivot = fg.vertexmap(leave_pivot)
restart = fg.vertexmap(begin_colour)
sweep = fg.foldmap(takes_part, colours_behind, take_colour)
spread = fg.foldmap(takes_part, new_colours_behind, take_colour)
begin = fg.vertexmap(be_root)
step = fg.foldmap(is_left, own_colour_ahead, join_root)
end_colours = fg.vertexmap(leave_root)
find_named, set_names = fg.vertexmap(begin_name), fg.vertexmap(take_name)
end, total = fg.foldmap(smallest_of_pivot, rename), fg.foldmap(count_roots)


@dataclass(frozen=True, eq=False, kw_only=True)
class StrongComponentsResult(Result):
    """Result of `strongly_connected_components`.

    Attributes
    ----------
    labels : ndarray of int32, shape (V,)
        The smallest vertex of the component; -1 of a dead vertex.
    count : int
        Number of components.
    rounds : int
        Number of rounds of colours.
    """

    labels: npt.NDArray[np.int32] = answer()
    count: int
    rounds: int


@fg.algorithm("max_supersteps")
def strongly_connected_components(
    graph: fg.GraphLike, **options: Any
) -> StrongComponentsResult:
    """Find the strong components of a graph.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        It may have self-loops, parallel edges and isolated vertices.
    **options
        ``target``, ``deterministic``, ... as for calling a foldmap.

    Returns
    -------
    StrongComponentsResult
        Labels, the number of components, and the record of all runs as one.

    Notes
    -----
    Labels are the same on every target and with all options. In pull direction there
    are no atomics. Memory: 30 bytes a vertex, and the edges in both directions.

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
    search = _Search(graph, options)
    if search.goes_deep():
        labels: Any = graph.strong_components(fewer_threads=MANY_THREADS)
        if labels is not None:
            own = np.arange(labels.size, dtype=labels.dtype)
            return search.result(labels, np.count_nonzero(labels == own), 0)
    most = range(graph.vertex_count + 1)  # each round finds at least one component
    for rounds in fg.rounds(most, search.state, search.runs):
        if not rounds:
            search.trim(find_alone)
        if not len(search.find_left()):
            break
        if rounds and search.goes_deep():
            known = search.state["label"]
            search.state["label"] = graph.strong_components(known)
            break
        if rounds:
            search.take_colours(rounds)
        else:
            search.take_pivot()
        search.trim(find_alone_in_group.on(search.left))
    search.name(rounds)
    labels, count = search.state.view("label"), search.state["roots"][0]
    return search.result(labels, count, max(rounds - 1, 0))


class _Search:
    """The State of the labels, and the steps that label further vertices.

    Parameters
    ----------
    graph : Graph
    options : dict
        Options of all runs.

    Attributes
    ----------
    left : ActiveSet or None
        All vertices that are left, and perhaps some with labels; None: all vertices.
    """

    def __init__(self, graph: fg.Graph, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.where = {"target": options.get("target", "auto")}
        self.runs: list[fg.Run] = []
        self.left: Any = None
        # The places in an order are all numbers of this many bits.
        bits = max(graph.vertex_count - 1, 1).bit_length()
        self.state = fg.State(
            graph,
            label=fg.vertex_property(np.int32(LEFT), iterated=True, fill=LEFT),
            group=fg.vertex_property(np.int32(0)),
            behind=fg.vertex_property(np.int32(0)),
            ahead=fg.vertex_property(np.int32(0)),
            colour=fg.vertex_property(np.int32(0), iterated=True),
            reached=fg.vertex_property(False, iterated=True),
            pivot=0,
            gone=GONE,
            least_group=0,
            mask=(1 << bits) - 1,
            half=(bits + 1) // 2,
            factor=1,
            inverse=1,
        )

    def result(self, labels: Any, count: Any, rounds: int) -> StrongComponentsResult:
        """Return the result, with the record of all runs as one."""
        run = joined(self.runs)
        return StrongComponentsResult.of(
            self.graph, run, labels=labels, count=int(count), rounds=rounds
        )

    def goes_deep(self) -> bool:
        """Return whether a CPU thread may search: on the CPU, without run options."""
        graph = self.graph
        if graph.ranks is not None:
            return False
        if not set(self.options) <= {"target"}:
            return False
        if not self.runs:
            self.settle(trim_behind, [])  # a run of no vertices, to learn its target
        return self.runs[0].target == "cpu" and self.state.is_read_on_host

    def settle(self, step: Any, active: Any, **options: Any) -> fg.Run:
        """Iterate a foldmap until no vertex is due."""
        # Never reached: each superstep but the last changes a vertex.
        options = {"max_supersteps": self.graph.vertex_count + 2, **options}
        run = fg.iterate(step, self.state, active=active, **options, **self.options)
        self.runs.append(run)
        return run

    def trim(self, find: Any) -> None:
        """Label each vertex that loses all in-edges or all out-edges within its group.

        The foldmap `find` labels the first such vertices, and counts the neighbors of
        the others. A vertex that is labelled for lack of in-edges has no in-neighbor
        left whose count could fall, and likewise for out-edges, so neither of the two
        runs makes work for the other.
        """
        alone = find(self.state, **self.where)
        if len(alone):
            self.settle(trim_behind, alone)
            self.settle(trim_ahead, alone)
        self.left = find_left(self.state, active_in=self.left, **self.where)

    def find_left(self) -> fg.ActiveSet:
        """Return the vertices that are left, also after a resumed checkpoint."""
        if self.left is None:
            self.left = fg.ActiveSet(self.graph, self.state["label"] < 0)
        found: fg.ActiveSet = self.left
        return found

    def take_pivot(self) -> None:
        """Label the component of the pivot; divide the vertices left in two groups."""
        find_pivot(self.state, **self.where)
        self.state["pivot"] = pivot = int(self.state["first"][0])
        set_pivot(self.state, **self.where)
        self.settle(forward, [pivot])
        self.settle(backward, [pivot])
        self.left = end_pivot(self.state, active_in=self.left, **self.where)

    def take_colours(self, number: int) -> None:
        """Label one component of each colour; the rest of the colour is a group."""
        places = int(self.state["mask"]) + 1
        # Odd, and so invertible modulo a power of two.
        factor = 1 | int(np.random.default_rng([SEED, number]).integers(places))
        self.state["factor"] = factor
        self.state["inverse"] = pow(factor, -1, places)
        self.spread(restart(self.state, active_in=self.left, **self.where))
        roots = begin(self.state, active_in=self.left, **self.where)
        self.settle(step, roots)
        self.left = end_colours(self.state, active_in=self.left, **self.where)

    def spread(self, active: fg.ActiveSet) -> None:
        """Spread colours within groups, beginning at the active vertices."""
        if not {"deterministic", "direction"} & set(self.options):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                run = self.settle(
                    sweep.on(active),
                    None,
                    asynchronous=True,
                    record_active=True,
                    max_supersteps=SWEEPS,
                )
            active = run.active_sets[-1]  # type: ignore[index]
            run.active_sets = None  # not needed further; each has a bit per vertex
        self.settle(spread, active)

    def name(self, rounds: int) -> None:
        """Label components by their smallest vertices, and count components."""
        if rounds > 1:
            self.state["least_group"] = GONE + 1
            named = find_named(self.state, **self.where)
            self.spread(named)
            set_names(self.state, active_in=named, **self.where)
        if rounds:
            end(self.state, **self.where)
        total(self.state, **self.where)


def verify_strongly_connected_components(
    graph: fg.GraphLike, labels: npt.ArrayLike
) -> None:
    """Check the answer of a run.

    * Every label is the smallest vertex that has it.
    * The vertex that is a label reaches all vertices of that label, and they reach it,
      by edges between vertices of that label.
    * Edges between different labels close no cycle.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `strongly_connected_components`.
    labels : array_like of int, shape (V,)
        The answer of `strongly_connected_components`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    found = fg.given_array(labels, where="labels").on_host()
    require_smallest(graph, found)
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
        ends, _ = ends_of_rows(rows, front)
        np.subtract.at(waiting, ends, 1)
        front = np.unique(ends[waiting[ends] == 0])
    what = "its component reaches one that reaches it, under another label"
    require(waiting[labels] == 0, what)
