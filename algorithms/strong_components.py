"""Strong components: which vertices reach each other along the directions of edges.

Every vertex gets the smallest vertex of its component as its label. What is left, the
vertices without a label, is in groups: no component has vertices of two, so edges
between them do not count. It is taken apart in three ways, each a foldmap or two::

    trim      a vertex that no other one of its group points to, or that points to no
              other one of it, is a component of its own. Each counts how many do, and
              counts down as those around it get labels: along out-edges until nothing
              changes, then along in-edges. Neither makes work for the other
    pivot     the largest component, most likely: what one vertex reaches, and of that
              what reaches the vertex, both left
    colour    all vertices are put in some order; colour(v) = first of v and of what
              reaches v inside of its group. The vertex that is its own colour is of a
              component with those of that colour that reach it; the others of the
              colour are a group

Colours find a component of each group at once. The order is another one each time, as
if drawn: a colour is any of those that reach a vertex, equally likely, and of the pairs
of them (not of one component) at most half lie the one behind the other. So of those
that reach a vertex, other than from its component, half are gone with each round, in
the mean: the rounds are as many as the logarithm of V and a few, whatever the graph.
A chain of rings would take a round for each if colours were numbers.

On an undirected graph the weak components are strong, and each round takes away all.
Components that colours have found are named at last, by spreading their numbers as if
these were colours, and the groups components.

On a CPU, a depth-first search on one thread takes the place of colours; with less than
eight threads it takes the place of everything (`Graph.strong_components`). Options for
supersteps, ranks, and graphs that change, leave it out.

A superstep costs the edges of what has changed. There are as many as the longest of the
shortest paths that are followed, and as a chain has vertices; on the CPU they run in a
compiled loop. Colours first go on at once to vertices whose turn is still to come
(``asynchronous=True``): most are settled in a few passes over the edges that are left.

L. K. Fleischer, B. Hendrickson, A. Pınar, "On Identifying Strongly Connected Components
in Parallel", IPDPS Workshops, 2000 (pivot); S. Orzan, "On Distributed Verification and
Verified Distribution", PhD thesis, Amsterdam, 2004 (colours); G. M. Slota,
S. Rajamanickam, K. Madduri, "BFS and Coloring-based Parallel Algorithms for Strongly
Connected Components and Related Problems", IPDPS, 2014 (one behind the other);
G. E. Blelloch, Y. Gu, J. Shun, Y. Sun, "Parallelism in Randomized Incremental
Algorithms", Journal of the ACM 67, 2020 (section 6: why an order at random is enough).
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

#: The label of a vertex that is left.
LEFT = -1
#: The group of a vertex that has got its label by trimming, or from the pivot. Colours
#: leave -1 - label, and vertices that are left have groups of 0 and above.
GONE = -(2**31)
#: Supersteps in which colours go on at once to vertices whose turn is still to come:
#: most are settled then. A long path is left to supersteps of few vertices.
SWEEPS = 8
#: With so many threads of a CPU, trimming and the pivot together are faster than one
#: thread that searches depth-first.
MANY_THREADS = 8
#: Orders of the vertices are functions of it, and of the round.
SEED = 2020


def place(v: Any, half: Any, mask: Any, factor: Any) -> Any:
    """Return where vertex `v` is in an order: one to one on 0..mask."""
    x = ((v ^ (v >> half)) * factor) & mask
    x = ((x ^ (x >> half)) * factor) & mask
    return x ^ (x >> half)


def at_place(x: Any, half: Any, mask: Any, inverse: Any) -> Any:
    """Return the vertex there: each step of `place` undone, the last one first."""
    v = ((x ^ (x >> half)) * inverse) & mask
    v = ((v ^ (v >> half)) * inverse) & mask
    return v ^ (v >> half)


@fg.vertex
def stay(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices without a label; others leave their groups."""
    if d.label[v] >= 0:
        d.group[v] = d.gone
    return d.label[v] < 0


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices without a label."""
    return d.label[v] < 0


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


@fg.gather(into="before", combine="sum")
def others_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count vertices of the group that point here."""
    return 1 if u != v and d.group[u] == d.group[v] else 0


@fg.gather(into="after", combine="sum", along="out")
def others_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count vertices of the group that are pointed to from here."""
    return 1 if u != v and d.group[u] == d.group[v] else 0


@fg.vertex
def be_alone_in_group(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component without edges from the group, or without any to it."""
    d.behind[v] = d.before[v]
    d.ahead[v] = d.after[v]
    d.label_next[v] = v
    return d.before[v] == 0 or d.after[v] == 0


@fg.gather(into="lost", combine="sum", sources="active")
def labelled_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the active in-neighbors, which have just got a label."""
    return 1 if d.group[u] == d.group[v] else 0


@fg.vertex
def lose_behind(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component if no other vertex of the group points here."""
    d.behind[v] = d.behind[v] - d.lost[v]
    d.label_next[v] = v
    return d.behind[v] == 0


@fg.gather(into="lost", combine="sum", along="out", sources="active")
def labelled_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count those that are pointed to and have just got a label."""
    return 1 if d.group[u] == d.group[v] else 0


@fg.vertex
def lose_ahead(f, v, d):  # type: ignore[no-untyped-def]
    """Be a component if no other vertex of the group is pointed to from here."""
    d.ahead[v] = d.ahead[v] - d.lost[v]
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


@fg.vertex
def leave_pivot(f, v, d):  # type: ignore[no-untyped-def]
    """Join the group that the pivot reaches, or the group that it does not reach."""
    gone = d.label[v] >= 0
    d.group[v] = d.gone if gone else 1 if d.reached[v] else 0
    return d.label[v] < 0


# -- colour


@fg.vertex
def begin_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Begin with one's own place in the order."""
    d.colour_next[v] = place(v, d.half, d.mask, d.factor)
    return True


@fg.vertex
def takes_part(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices of groups among which colours are spread."""
    return d.group[v] >= d.least_group


@fg.gather(into="low", combine="min")
def colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the first colour of those of the group that point here."""
    return d.colour[u] if d.group[u] == d.group[v] else fg.nothing


@fg.gather(into="low", combine="min", sources="active")
def new_colours_behind(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Find the first that has just come."""
    return d.colour[u] if d.group[u] == d.group[v] else fg.nothing


@fg.vertex
def take_colour(f, v, d):  # type: ignore[no-untyped-def]
    """Take it if it comes before one's own."""
    d.colour_next[v] = min(d.colour[v], d.low[v])
    return d.low[v] < d.colour[v]


@fg.vertex
def be_root(f, v, d):  # type: ignore[no-untyped-def]
    """Be the root of a component if no vertex reaches here that comes before."""
    d.label_next[v] = v
    return d.colour[v] == place(v, d.half, d.mask, d.factor)


@fg.gather(into="same", combine="any", along="out", sources="active")
def own_colour_ahead(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look for a vertex of the component that one's colour names, pointed to."""
    return d.label[u] == at_place(d.colour[v], d.half, d.mask, d.inverse)


@fg.vertex
def join_root(f, v, d):  # type: ignore[no-untyped-def]
    """Be of it as well."""
    d.label_next[v] = at_place(d.colour[v], d.half, d.mask, d.inverse)
    return d.same[v]


@fg.vertex
def leave_root(f, v, d):  # type: ignore[no-untyped-def]
    """Be in a group with the others of the colour, or with the component."""
    root = at_place(d.colour[v], d.half, d.mask, d.inverse)
    d.group[v] = -1 - d.label[v] if d.label[v] >= 0 else root
    return d.label[v] < 0


# -- behind all


@fg.vertex
def begin_name(f, v, d):  # type: ignore[no-untyped-def]
    """Begin with one's own number, if colours have found the component."""
    d.colour_next[v] = v
    return d.gone < d.group[v]


@fg.vertex
def take_name(f, v, d):  # type: ignore[no-untyped-def]
    """Be called by the smallest that has come."""
    d.label_next[v] = d.colour[v]
    return True


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
        How many components there are.
    rounds : int
        How often colours were spread.
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
    are pulled. Memory: 30 bytes a vertex, and the edges both ways.

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
    most = range(graph.vertex_count + 1)  # each finds a component at least
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
    """Labels so far, and runs that find more.

    Parameters
    ----------
    graph : Graph
    options : dict
        Of the runs.

    Attributes
    ----------
    left : ActiveSet or None
        Vertices without a label, and perhaps some that have got one; None: all.
    """

    def __init__(self, graph: fg.Graph, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.where = {"target": options.get("target", "auto")}
        self.runs: list[fg.Run] = []
        self.left: Any = None
        # Places in an order are all numbers of so many bits.
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
        """Return the answer, and the record of all runs as one."""
        return StrongComponentsResult(
            run=joined(self.runs),
            residuals=np.empty(0),
            vertex_names=self.graph.vertex_names,
            labels=labels,
            count=int(count),
            rounds=rounds,
        )

    def goes_deep(self) -> bool:
        """Whether a CPU thread may search: the call has no options of runs."""
        graph = self.graph
        if graph.ranks is not None or graph.changing is not None:
            return False
        if not set(self.options) <= {"target"}:
            return False
        if not self.runs:
            self.settle(trim_behind, [])  # nothing is due: for its target
        return self.runs[0].target == "cpu" and self.state.is_read_on_host

    def settle(self, step: Any, active: Any, **options: Any) -> fg.Run:
        """Repeat a foldmap until nothing changes."""
        # Never reached: all supersteps but one change a vertex.
        options = {"max_supersteps": self.graph.vertex_count + 2, **options}
        run = fg.iterate(step, self.state, active=active, **options, **self.options)
        self.runs.append(run)
        return run

    def trim(self, find: Any) -> None:
        """Take away vertices that no cycle inside of a group goes through.

        The function `find` finds the first of them, and counts neighbors of the others.

        A vertex that goes because nothing left points to it is pointed to by nothing
        left: so neither of the two searches has work for the other one.
        """
        alone = find(self.state, **self.where)
        if len(alone):
            self.settle(trim_behind, alone)
            self.settle(trim_ahead, alone)
        self.left = find_left(self.state, active_in=self.left, **self.where)

    def find_left(self) -> fg.ActiveSet:
        """Return the vertices without a label, also where a run is gone on with."""
        if self.left is None:
            self.left = fg.ActiveSet(self.graph, self.state["label"] < 0)
        found: fg.ActiveSet = self.left
        return found

    def take_pivot(self) -> None:
        """Label the component of a vertex, likely the largest, and make two groups."""
        find_pivot(self.state, **self.where)
        self.state["pivot"] = pivot = int(self.state["first"][0])
        set_pivot(self.state, **self.where)
        self.settle(forward, [pivot])
        self.settle(backward, [pivot])
        self.left = end_pivot(self.state, active_in=self.left, **self.where)

    def take_colours(self, number: int) -> None:
        """Label a component of each group, and make a group of those of a colour."""
        places = int(self.state["mask"]) + 1
        factor = 1 | int(np.random.default_rng([SEED, number]).integers(places))
        self.state["factor"] = factor
        self.state["inverse"] = pow(factor, -1, places)
        self.spread(restart(self.state, active_in=self.left, **self.where))
        roots = begin(self.state, active_in=self.left, **self.where)
        self.settle(step, roots)
        self.left = end_colours(self.state, active_in=self.left, **self.where)

    def spread(self, active: fg.ActiveSet) -> None:
        """Spread colours inside of groups."""
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
            run.active_sets = None  # they have a bit for each vertex
        self.settle(spread, active)

    def name(self, rounds: int) -> None:
        """Name components by their smallest vertices, and count them."""
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
    * The vertex of a label reaches all that have it, and they reach it, by edges
      between vertices of that label.
    * Edges between different labels close no cycle.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As given to `strongly_connected_components`.
    labels : array_like of int, shape (V,)
        Its answer.

    Raises
    ------
    AssertionError
        With the vertex at which a property fails first.
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
