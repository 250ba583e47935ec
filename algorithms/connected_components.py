"""Connected components: sets of vertices that are joined by paths.

The directions of edges are ignored: in a directed graph, these are the weak components.
Every vertex gets the smallest vertex of its component as its label. There are two
methods.

*Link* passes over the edges once. ``label(v) <= v`` is the parent of v in a tree of
vertices of its component, initially v itself. An edge joins the trees of its ends::

    a, b = label(u), label(v)
    while a != b, with a the larger one:
        a, b = (label(a) = min(label(a), b)), b      # atomic; a becomes the old label

Labels only change to smaller vertices of the same component. If a was a root, b is now
its parent, and the edge is done. If a had another parent, this parent and b are joined
next. After one pass, in any order, each component is one tree with its smallest vertex
as root; a second superstep attaches all vertices directly to the root. An edge usually
costs two reads and one atomic operation, and a vertex one atomic operation. On a CPU
with few threads, undirected graphs take another way: one thread first joins two edges
of each vertex, and skips most others (`Graph.strong_components`).

*Propagate* has no atomics, and the same results in every superstep of every run::

    low(v)   = min of label(u) over the edges at v, in and out
    label(v) = min(label(v), low(v))
    label(v) = label(label(v))

in two foldmaps that alternate until nothing changes; the second one is pointer jumping.
Each round reads all edges in both directions, and a long path whose vertices are in
random order takes many rounds.

Y. Shiloach, U. Vishkin, "An O(log n) Parallel Connectivity Algorithm", Journal of
Algorithms 3, 1982; linking by atomic minima: L. Dhulipala, C. Hong, J. Shun,
"ConnectIt: A Framework for Static and Incremental Parallel Graph Connectivity
Algorithms", VLDB 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_choice
from featgraph.algorithms._following import (
    FEW,
    Following,
    Update,
    ends_of,
    is_on_gpu,
    spread,
)  # fmt: skip
from featgraph.algorithms._result import Result, answer
from featgraph.algorithms._verify import (
    edges_of,
    require,
    require_reached,
    require_smallest,
)
from featgraph.algorithms._vertices import only_living

__all__ = [
    "ConnectedComponentsResult",
    "connected_components",
    "verify_connected_components",
]


@fg.vertex
def stand_alone(f, v, d):  # type: ignore[no-untyped-def]
    """Set the label of v to v."""
    d.label[v] = v
    return False


@fg.edge
def join(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Join the trees of the ends of an edge; a twin adds nothing."""
    if d.has_twins and u < v:
        return False
    a = d.label[u]
    b = d.label[v]
    while a != b:
        high = max(a, b)
        low = min(a, b)
        before = fg.atomic.min(d.label, high, low)
        if before == high:
            return False
        a = before
        b = low
    return False


@fg.vertex
def climb(f, v, d):  # type: ignore[no-untyped-def]
    """Attach v to its root, and shorten the path of its ancestors to the root."""
    before = v
    top = d.label[v]
    while d.label[top] < top:
        fg.atomic.min(d.label, before, d.label[top])
        before = top
        top = d.label[top]
    fg.atomic.min(d.label, v, top)
    return False


@fg.vertex
def take_own(f, v, d):  # type: ignore[no-untyped-def]
    """Set the initial label of v, which is iterated, to v."""
    d.label_next[v] = v
    return True


@fg.gather(into="low", combine="min", along="both")
def labels_around(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the label of a neighbor, in either direction of the edge."""
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    """Take the smallest label of neighbors if it is smaller."""
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.vertex
def jump(f, v, d):  # type: ignore[no-untyped-def]
    """Take the label of the vertex that is the label of v (pointer jumping)."""
    label = d.label[d.label[v]]
    d.label_next[v] = label
    return label < d.label[v]


@fg.reduce(into="tops", combine="sum")
def is_top(f, v, d):  # type: ignore[no-untyped-def]
    """Count the smallest vertices of components."""
    return d.label[v] == v


link, climb_all = fg.edgemap(join), fg.vertexmap(climb)
step, jumping = fg.foldmap(labels_around, adopt), fg.foldmap(jump)
count_tops = fg.foldmap(is_top)
#: Number of CPU threads from which linking by kernels is faster than one thread that
#: skips most edges.
MANY_THREADS = 3
#: Method -> the foldmap that sets initial labels, and the foldmaps that alternate.
METHODS = {
    "link": (fg.vertexmap(stand_alone), [link, climb_all]),
    "propagate": (fg.vertexmap(take_own), [step, jumping]),
}


#: The label of dead vertices.
NO_COMPONENT = -1


@fg.gather(into="low", combine="argmin", along="both", sources="active")
def smallest_around(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the label of a neighbor; the gather also finds the neighbor."""
    return d.label[u]


@fg.vertex
def adopt_from(f, v, d):  # type: ignore[no-untyped-def]
    """Take the smallest label if it is smaller, and store its neighbor."""
    is_smaller = d.low[v] < d.label[v]
    if is_smaller:
        d.label_next[v] = d.low[v]
        d.previous_next[v] = d.low_source[v]
    return is_smaller


#: A superstep of *propagate* that also stores the neighbor that each label came from.
follow_labels = fg.foldmap(smallest_around, adopt_from)
#: An update begins anew after changes of more than 1 / SHARE of the edges, or if more
#: than 1 / MOST_LOST of the vertices had their labels along deleted edges.
SHARE, MOST_LOST = 8, 16
#: After deletions, an update also begins anew if labels spread along more edges than
#: `DEEPEST`, or along `SHALLOW` ones to less than a share of 1 / MOST_FAR.
DEEPEST, SHALLOW, MOST_FAR = 64, 6, 8
#: On a GPU, updates of graphs with fewer edges begin anew: at 3.1M given edges, an H200
#: took 2 to 3 ms for an insertion, and 1.4 to 2 for a call.
LEAST_ON_GPU = 1 << 24
#: On a CPU with few threads, updates of undirected graphs with fewer vertices begin
#: anew. Calls took 0.6 ms at 8,192 vertices, 2.7 at 131,072 and 12 at 524,288, updates
#: 0.6, 0.8 and 1.7, and the first one after which edges went 3, 21 and 100 (R-MAT).
LEAST_FOLLOWED = 1 << 18
#: The label of vertices that have none yet.
UNKNOWN = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False, kw_only=True)
class ConnectedComponentsResult(Result):
    """Result of `connected_components`.

    Attributes
    ----------
    labels : ndarray of int32, shape (V,)
        The smallest vertex of each vertex's component; -1 for dead vertices.
    count : int
        The number of components.
    """

    labels: npt.NDArray[np.int32] = answer()
    count: int = answer(is_per_vertex=False)

    def _resume(self, following: Following) -> Update | str:
        """Join components by inserted edges; recompute labels along deleted edges.

        Deletions need a State with the neighbor that each label came from. It is made
        at the first deletion, and follows the graph from then on.
        """
        graph = following.graph
        if is_on_gpu(graph) and graph.given_edge_count < LEAST_ON_GPU:
            return "joining all edges takes a GPU less time"
        if not self.supersteps and graph.vertex_count < LEAST_FOLLOWED:
            return "joining all edges takes one thread less time"
        changes = following.changes(SHARE)
        if isinstance(changes, str):
            return changes
        _, gone, _ = changes.counts
        if gone and is_on_gpu(graph):
            return "edges went, and joining all edges takes a GPU less time"
        if gone and following.too_deep:
            return following.too_deep
        state, where = vars(self).get("_state"), {"target": following.target}
        if state is not None and "previous" in state:
            found = _follow(state, changes, where)
        elif gone:
            labels = self.labels if state is None else state["label"]
            state, found = _planted(graph, changes, labels, where)
            following.too_deep = found if isinstance(found, str) else ""
        else:
            if state is None:
                state = _state_of(graph, self.labels, iterated=False)
            found = _join(state, changes, where)
        if isinstance(found, str):
            return found
        self._take(
            _state=state, labels=lambda _: state["label"],
            count=lambda own: int((own.labels == np.arange(len(own.labels))).sum()),
            vertex_names=graph.vertex_names,
        )  # fmt: skip
        return Update(changes.version, "", *found)


def _state_of(graph: fg.Graph, labels: Any, *, iterated: bool) -> fg.State:
    """Return a State with labels of an earlier version."""
    begun = np.full(graph.vertex_count, NO_COMPONENT, np.int32)
    begun[: labels.size] = labels
    label = fg.vertex_property(begun, iterated=iterated, fill=NO_COMPONENT)
    previous = fg.vertex_property(np.int32(-1), iterated=True, fill=-1)
    more = {"previous": previous} if iterated else {}
    return fg.State(graph, label=label, has_twins=not graph.directed, **more)


def _stand_alone(state: fg.State, ids: Any) -> None:
    """Set the labels of some vertices to the vertices themselves."""
    ids = only_living(state.graph, ids)
    state.put("label", ids, ids)


def _join(state: fg.State, changes: Any, where: dict[str, Any]) -> tuple[int, None]:
    """Join components by inserted edges; return the number of supersteps, and None."""
    _stand_alone(state, changes.born)
    ends = np.unique(np.concatenate(changes.inserted))
    link(state, active_in=ends, **where)
    climb_all(state, **where)
    return 2, None


def _planted(
    graph: fg.Graph, changes: Any, labels: Any, where: dict[str, Any]
) -> tuple[fg.State, tuple[int, int | None] | str]:
    """Return a State with the neighbor that each label came from, and the cost.

    Labels spread from the old roots. Vertices that no root reaches, or only a larger
    one, since edges were deleted, then begin with labels of their own.
    """
    vertices = np.arange(graph.vertex_count, dtype=np.int32)
    begun = np.full(vertices.size, UNKNOWN)
    tops = np.append(np.flatnonzero(labels == vertices[: labels.size]), changes.born)
    begun[tops] = tops
    state = _state_of(graph, begun, iterated=True)
    runs = [fg.iterate(follow_labels, state, active=tops, supersteps=SHALLOW, **where)]
    if not runs[0].converged:
        spread_to = np.count_nonzero(state["label"] != UNKNOWN) - tops.size
        if spread_to * MOST_FAR < graph.living_count - tops.size:
            return state, f"most labels come along more than {SHALLOW} edges"
    options = where | {"supersteps": DEEPEST}
    runs.append(fg.iterate(follow_labels, state, **options))
    apart = np.flatnonzero(state["label"] > vertices)
    state.put("previous", apart, -1)
    _stand_alone(state, apart)
    runs.append(fg.iterate(follow_labels, state, active=apart, **options))
    if not all(run.converged for run in runs[1:]):
        return state, f"labels come along more than {DEEPEST} edges"
    edges = [run.evaluated for run in runs if run.evaluated is not None]
    return state, (sum(run.supersteps for run in runs), sum(edges) if edges else None)


def _follow(
    state: fg.State, changes: Any, where: dict[str, Any]
) -> tuple[int, int | None] | str:
    """Update labels; return supersteps and edges, or the reason to begin anew."""
    graph = state.graph
    _stand_alone(state, changes.born)
    lost = fg.trim(state, reset={"label": UNKNOWN}, along="both", values=False, **where)
    if lost.size > max(graph.vertex_count, FEW) // MOST_LOST:
        return f"{lost.size} vertices had their labels by edges that went"
    _stand_alone(state, lost)
    due = ends_of(state, "label", changes, lost)
    return spread(follow_labels, state, due, lost, **where)


@fg.algorithm()
def connected_components(
    graph: fg.GraphLike, *, method: str = "auto", **options: Any
) -> ConnectedComponentsResult:
    """Find the connected components of a graph (weak components if it is directed).

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        It may have self-loops, multi-edges and isolated vertices.
    method : {"auto", "link", "propagate"}, optional
        "link" passes over the edges once, with atomics. "propagate" repeats passes
        without atomics, in fewer supersteps with ``asynchronous=True``. "auto" links,
        except with ``deterministic=True``, ``asynchronous=True`` or on ranks. On one or
        two threads of a CPU, it searches an undirected graph without supersteps, unless
        there are options other than ``target``.
    **options
        ``target``, ``progress``, ``deterministic``, ... as for `featgraph.iterate`.

    Returns
    -------
    ConnectedComponentsResult
        Labels, the number of components, and the record of the run, without residuals.

    Raises
    ------
    GraphInputError
        If there is no such method.

    Notes
    -----
    Labels are the same on every target, with either method and all options: they do not
    depend on the order of atomics. Memory: 4 bytes per vertex; "propagate" takes 8, and
    the edges of a directed graph in both directions.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import connected_components
    >>> found = connected_components(fg.Graph.from_edges([2, 0, 5], [1, 2, 4]))
    >>> found.labels.tolist(), found.count
    ([0, 0, 0, 3, 4, 4], 3)
    """
    graph = fg.as_graph(graph)
    directed = graph.directed
    may_search = method == "auto" and not graph.ranks and set(options) <= {"target"}
    if method == "auto":
        is_asked_for = options.get("deterministic") or options.get("asynchronous")
        method = "propagate" if is_asked_for or graph.ranks else "link"
    else:
        require_choice("method", method, ("auto", *METHODS))
    label = fg.vertex_property(
        np.int32(0), iterated=method == "propagate", fill=NO_COMPONENT
    )
    state = fg.State(graph, label=label, has_twins=not directed)
    where = {"target": options.get("target", "auto")}
    begin, steps = METHODS[method]
    labels: Any = None
    if may_search and not directed:
        run = fg.iterate(begin, state, active=[], **where)  # for its target
        if run.target == "cpu" and state.is_read_on_host:
            labels = graph.strong_components(fewer_threads=MANY_THREADS)
    if labels is not None:
        count = np.sum(labels == np.arange(labels.size))
    else:
        begin(state, **where)
        # Labels come along fewer than V edges, one in every second superstep.
        options.setdefault("max_supersteps", 2 * graph.vertex_count + 4)
        run = fg.iterate(steps, state, **options)
        count_tops(state, **where)
        labels, count = state.view("label"), state["tops"][0]
    made = ConnectedComponentsResult.of(graph, run, labels=labels, count=int(count))
    if graph.changing is not None and run.supersteps and method == "link":
        made._take(_state=state)
    return made


def verify_connected_components(graph: fg.GraphLike, labels: npt.ArrayLike) -> None:
    """Check the answer of a run.

    * Every label is the smallest vertex that has it.
    * Both ends of every edge have the same label.
    * Every vertex is reached from the vertex that is its label.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `connected_components`.
    labels : array_like of int, shape (V,)
        The answer of `connected_components`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    found = fg.given_array(labels, where="labels").on_host()
    require_smallest(graph, found)
    edges = edges_of(graph)
    same = np.ones(graph.vertex_count, np.bool_)
    same[edges.targets[found[edges.sources] != found[edges.targets]]] = False
    require(same, "a neighbor has another label")
    require_reached(graph.incident_edges, found, "its label names does not reach it")
