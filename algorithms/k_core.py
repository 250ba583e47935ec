"""k-core: the vertices left when those of less than k neighbors are removed.

The k-core is the largest part of a graph in which every vertex has k neighbors or more
inside the part. The core number of v is the largest k whose k-core holds v. Peeling
finds it. With ``degree(v)`` the number of neighbors that have no core number yet::

    degree(v) -= number of edges from vertices that fell in the superstep before
    core(v)    = k, where degree(v) is more than k before, and not behind: v falls

is repeated for one k until nothing more falls. Then k rises to the smallest degree that
is left, and those that have it have fallen, with core number k (``then=``). What is
active is always what has just fallen. A superstep looks at that and at its neighbors.

State: ``core`` and ``degree`` (V,), which is -1 where v has fallen; a reduce leaves
``k`` where supersteps run. Pushed, an edge is passed once from either end in the whole
run. For each k that occurs, the degrees of the vertices that are left, and of some that
fell lately, are tested: so O(E + V * number of different core numbers) at most, and the
overhead of a superstep for each round of falling. A path of n vertices falls from its
ends, in n / 2 rounds.

V. Batagelj, M. Zaversnik, "An O(m) Algorithm for Cores Decomposition of Networks",
2003, arXiv:cs/0310049. N. S. Dasari, R. Desh, M. Zubair, "ParK: An Efficient Algorithm
for k-Core Decomposition on Multicore Processors", IEEE Big Data, 2014: in rounds.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._result import Result, answer
from featgraph.algorithms._verify import edges_of, require

__all__ = ["KCoreResult", "k_core", "verify_k_core"]

Array = npt.NDArray[Any]

#: More than any degree.
NO_VERTEX_LEFT = 2**31 - 1
#: Stands for the degree of a vertex that has a core number.
FALLEN = -1


@fg.vertex
def count_neighbors(f, v, d):  # type: ignore[no-untyped-def]
    """Begin with all neighbors."""
    d.degree[v] = d.out_degree[v]
    return False


@fg.reduce(into="k", combine="min")
def least_degree(f, v, d):  # type: ignore[no-untyped-def]
    """Find the smallest degree of vertices that have not fallen."""
    return d.degree[v] if d.degree[v] >= 0 else NO_VERTEX_LEFT


@fg.vertex
def fall_first(f, v, d):  # type: ignore[no-untyped-def]
    """Fall as soon as k comes to the degree."""
    if d.degree[v] != d.k[0]:
        return False
    d.core[v] = d.k[0]
    d.degree[v] = FALLEN
    return True


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices that have not fallen."""
    return d.degree[v] >= 0


@fg.gather(into="lost", combine="sum", sources="active")
def fallen(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the neighbors that have just fallen, which are the active vertices."""
    return 1


@fg.vertex
def fall(f, v, d):  # type: ignore[no-untyped-def]
    """Fall if no more than k neighbors are left."""
    d.degree[v] = d.degree[v] - d.lost[v]
    if d.degree[v] > d.k[0]:
        return False
    d.core[v] = d.k[0]
    d.degree[v] = FALLEN
    return True


@fg.vertex
def stay(f, v, d):  # type: ignore[no-untyped-def]
    """Take k where the run has ended before one falls."""
    if d.degree[v] >= 0:
        d.core[v] = d.k[0]
    return False


@fg.reduce(into="most", combine="max")
def largest_number(f, v, d):  # type: ignore[no-untyped-def]
    """Find the core number of the innermost core."""
    return d.core[v]


begin = fg.vertexmap(count_neighbors)
rise = fg.foldmap(is_left, least_degree, fall_first)
step = fg.foldmap(is_left, fallen, fall)
end = fg.foldmap(stay, largest_number)

#: Version of a graph -> the graph without directions made of it; None for itself.
_undirected: weakref.WeakKeyDictionary[Any, fg.Graph | None] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False, kw_only=True)
class KCoreResult(Result):
    """Result of `k_core`.

    Attributes
    ----------
    core_numbers : ndarray of int64, shape (V,)
        The largest k for which the vertex is in the k-core; 0 without neighbors.
    k : int
        The one asked for, or the largest core number.
    vertices : ndarray of int64
        Those of the k-core, ascending: their core number is k or more.
    """

    core_numbers: npt.NDArray[np.int64] = answer()
    k: int
    vertices: npt.NDArray[np.int64] = answer(is_per_vertex=False)


@fg.algorithm()
def k_core(
    graph: fg.GraphLike,
    k: int | None = None,
    *,
    max_supersteps: int = 1_000_000,
    **options: Any,
) -> KCoreResult:
    """Find the core number of every vertex, and the vertices of one core.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Without self-loops. A directed graph is taken without its directions: a degree
        is in-degree plus out-degree. Multi-edges count as many.
    k : int, optional
        Which core `vertices` are those of. Default: the innermost that there is.
    max_supersteps : int, optional
        The limit. Where it ended the run, ``result.converged`` is False, and vertices
        whose core number is not known yet have the k that the run had come to.
    **options
        ``target``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    KCoreResult
        Core numbers, k, vertices, and the record of the run.

    Raises
    ------
    GraphInputError
        If an edge is a self-loop, or k is negative; on ranks, if the graph is directed.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    All results are exact. Memory: 13 bytes a vertex, and 28 more for the compiled loop
    that runs supersteps of few vertices on the CPU; a directed graph is built again
    without directions, once.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import k_core
    >>> triangle_with_tail = fg.Graph.from_edges(
    ...     [0, 1, 2, 2], [1, 2, 0, 3], directed=False
    ... )
    >>> result = k_core(triangle_with_tail)
    >>> result.core_numbers.tolist(), result.k, result.vertices.tolist()
    ([2, 2, 2, 1], 2, [0, 1, 2])
    """
    graph = fg.as_graph(graph)
    if k is not None and k < 0:
        raise fg.GraphInputError("k out of range", got=k, expected="0 or more")
    names, living = graph.vertex_names, graph.living
    graph = _without_directions(graph)
    where = {"target": options.get("target", "auto")}
    state = fg.State(
        graph,
        core=fg.vertex_property(np.int64(0)),
        degree=fg.vertex_property(np.int32(0)),
    )
    begin(state, **where)
    run = fg.iterate(
        step,
        state,
        active=rise(state, **where),
        max_supersteps=max_supersteps,
        then=rise,
        **options,
    )
    end(state, **where)
    chosen = int(state["most"][0]) if k is None else int(k)

    def members(result: KCoreResult) -> Array:
        inside = result.core_numbers >= chosen
        return np.flatnonzero(inside if living is None else inside & living)

    answers: dict[str, Any] = {"core_numbers": state.view("core"), "vertices": members}
    return KCoreResult(
        run=run, vertex_names=names, residuals=np.empty(0), k=chosen, **answers
    )


def _without_directions(graph: fg.Graph) -> fg.Graph:
    """Return an undirected graph with the same edges, once it has no self-loops."""
    version = graph.stamps.version
    if version not in _undirected:
        loops = graph.self_loops
        if loops.size:
            raise fg.GraphInputError(
                "cores are not defined with self-loops",
                where=f"edge {loops[0]}",
                got="a vertex to itself",
                fix="drop the edges whose ends are the same",
            )
        if graph.directed and graph.ranks:
            raise fg.GraphInputError(
                "no rank can take the directions from the whole graph",
                got=repr(graph),
                expected="an undirected graph on ranks",
                fix="distribute fg.Graph.from_edges(..., directed=False)",
            )
        _undirected[version] = (
            fg.Graph.from_edges(
                graph.sources, graph.targets,
                vertex_count=graph.vertex_count, directed=False,
            )
            if graph.directed
            else None
        )  # fmt: skip
    made = _undirected[version]
    return graph if made is None else made


def verify_k_core(graph: fg.GraphLike, core_numbers: npt.ArrayLike) -> None:
    """Check core numbers: that they are not too large, and not too small.

    * A vertex of core number c has c neighbors or more of core number c or more.
    * The vertices of core number k fall one after another, each with no more than k
      neighbors left, once all those of smaller core numbers have gone.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `k_core`.
    core_numbers : array_like of int, shape (V,)
        The answer of `k_core`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    core = fg.given_array(core_numbers, where="core_numbers").on_host()
    edges = edges_of(graph)
    u, v = edges.sources, edges.targets
    if graph.directed:
        u, v = np.concatenate([u, v]), np.concatenate([v, u])
    inside = np.bincount(v[core[u] >= core[v]], minlength=len(core))
    require(core >= 0, "a negative core number")
    require(inside >= core, "too few neighbors of its core number or a larger one")
    left = np.ones(len(core), np.bool_)
    for k in np.unique(core):
        falling = True
        while np.any(falling):
            degree = np.bincount(v[left[u]], minlength=len(core))
            falling = left & (core == k) & (degree <= k)
            left &= ~falling
        require(~left | (core != k), "it belongs to a core of larger k")
