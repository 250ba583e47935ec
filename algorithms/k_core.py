"""k-core: the vertices that remain when vertices of few neighbors are removed.

The k-core is the largest subgraph in which every vertex has k neighbors or more. The
core number of v is the largest k whose k-core contains v. Peeling computes it: vertices
of the smallest degree are removed, in rounds. With ``degree(v)`` the number of
neighbors that are not removed yet::

    degree(v) -= number of neighbors removed in the superstep before
    core(v)    = k, if degree(v) was above k, and is k or less now: v is removed

This is repeated for one k until nothing more is removed. Then k rises to the smallest
remaining degree, and the vertices of this degree are removed with core number k
(``then=``). The active vertices are always those just removed; a superstep visits them
and their neighbors.

State: ``core`` and ``degree`` (V,), with -1 for removed vertices; a reduce stores ``k``
on the target. In push direction, each edge is passed once from either end in the whole
run. For each k that occurs, the degrees of the remaining vertices, and of some removed
ones, are tested: O(E + V * number of different core numbers) at most, plus the overhead
of a superstep for each round. A path of n vertices is peeled from its ends, in n / 2
rounds.

V. Batagelj, M. Zaversnik, "An O(m) Algorithm for Cores Decomposition of Networks",
2003, arXiv:cs/0310049. For peeling in rounds: N. S. Dasari, R. Desh, M. Zubair, "ParK:
An Efficient Algorithm for k-Core Decomposition on Multicore Processors", IEEE Big Data,
2014.
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

#: The smallest remaining degree if no vertex remains: more than any degree.
NO_VERTEX_LEFT = 2**31 - 1
#: The degree of a removed vertex, whose core number is known.
FALLEN = -1


@fg.vertex
def count_neighbors(f, v, d):  # type: ignore[no-untyped-def]
    """Set the initial degree."""
    d.degree[v] = d.out_degree[v]
    return False


@fg.reduce(into="k", combine="min")
def least_degree(f, v, d):  # type: ignore[no-untyped-def]
    """Return the degree of a vertex that remains."""
    return d.degree[v] if d.degree[v] >= 0 else NO_VERTEX_LEFT


@fg.vertex
def fall_first(f, v, d):  # type: ignore[no-untyped-def]
    """Remove v if its degree is the new k."""
    if d.degree[v] != d.k[0]:
        return False
    d.core[v] = d.k[0]
    d.degree[v] = FALLEN
    return True


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Return True for vertices that remain."""
    return d.degree[v] >= 0


@fg.gather(into="lost", combine="sum", sources="active")
def fallen(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the neighbors that were just removed, which are the active vertices."""
    return 1


@fg.vertex
def fall(f, v, d):  # type: ignore[no-untyped-def]
    """Remove v if k or fewer neighbors remain."""
    d.degree[v] = d.degree[v] - d.lost[v]
    if d.degree[v] > d.k[0]:
        return False
    d.core[v] = d.k[0]
    d.degree[v] = FALLEN
    return True


@fg.vertex
def stay(f, v, d):  # type: ignore[no-untyped-def]
    """Set the core number to k if v remains when the run ends at its limit."""
    if d.degree[v] >= 0:
        d.core[v] = d.k[0]
    return False


@fg.reduce(into="most", combine="max")
def largest_number(f, v, d):  # type: ignore[no-untyped-def]
    """Return the core number; the largest is that of the innermost core."""
    return d.core[v]


begin = fg.vertexmap(count_neighbors)
rise = fg.foldmap(is_left, least_degree, fall_first)
step = fg.foldmap(is_left, fallen, fall)
end = fg.foldmap(stay, largest_number)

#: Version of a graph -> an undirected graph with the same edges; None if the graph
#: itself is undirected.
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
        The k of the call; by default the largest core number.
    vertices : ndarray of int64
        The vertices of the k-core, ascending: their core number is k or more.
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
        Without self-loops. The directions of edges are ignored: the degree in a
        directed graph is in-degree plus out-degree. Each multi-edge counts.
    k : int, optional
        The k of the core whose vertices are returned. Default: the innermost core.
    max_supersteps : int, optional
        The limit. If it ended the run, ``result.converged`` is False, and the remaining
        vertices have the last k as core number.
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
    All results are exact. Memory: 13 bytes per vertex, and 28 more for the compiled
    loop that runs supersteps of few vertices on the CPU. For a directed graph, an
    undirected copy is made, once.

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
    given = fg.as_graph(graph)
    if k is not None and k < 0:
        raise fg.GraphInputError("k out of range", got=k, expected="0 or more")
    living = given.living
    graph = _without_directions(given)
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

    numbers = state.view("core")
    return KCoreResult.of(given, run, core_numbers=numbers, k=chosen, vertices=members)


def _without_directions(graph: fg.Graph) -> fg.Graph:
    """Return an undirected graph with the same edges; raise for self-loops."""
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
    """Check that core numbers are neither too large nor too small.

    * A vertex of core number c has c neighbors or more of core number c or more.
    * After removing all vertices of smaller core numbers, the vertices of core number k
      can be removed one after another, each with k or fewer remaining neighbors.

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
