"""k-core: what is left when vertices of less than k neighbors are taken away.

The k-core is the largest part of a graph in which every vertex has k neighbors or more
inside the part. The core number of v is the largest k whose k-core holds v. Peeling
finds it. With ``degree(v)`` the number of neighbors that have no core number yet::

    degree(v) -= number of edges from vertices that fell in the superstep before
    core(v)    = k, where degree(v) is more than k before, and not behind: v falls

is repeated for one k until nothing more falls. Then k rises to the smallest degree that
is left, and those that have it have fallen, with core number k (``then=``). What is
active is always what has just fallen. A superstep looks at that and at its neighbors.

State: ``core`` and ``degree`` (V,), the scalar ``k``. Pushed, an edge is passed once
from either end in the whole run. For each k that occurs, all degrees are tested
once: so O(E + V * number of different core numbers), and the overhead of a superstep
for each round of falling. A path of n vertices falls from its ends, in n / 2 rounds.

V. Batagelj, M. Zaversnik, "An O(m) Algorithm for Cores Decomposition of Networks",
2003, arXiv:cs/0310049. N. S. Dasari, R. Desh, M. Zubair, "ParK: An Efficient Algorithm
for k-Core Decomposition on Multicore Processors", IEEE Big Data, 2014: in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._result import Result
from featgraph.algorithms._verify import edges_of, require

__all__ = ["KCoreResult", "k_core", "verify_k_core"]

Array = npt.NDArray[Any]

#: More than any degree is above k.
NO_VERTEX_LEFT = np.uint32(2**31)


@fg.vertex
def is_left(f, v, d):  # type: ignore[no-untyped-def]
    """Pass vertices that have not fallen."""
    return d.degree[v] > d.k


@fg.gather(into="lost", combine="sum", sources="active")
def fallen(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Count the neighbors that have just fallen: they are what is active."""
    return 1


@fg.vertex
def fall(f, v, d):  # type: ignore[no-untyped-def]
    """Fall if no more than k neighbors are left."""
    d.degree[v] = d.degree[v] - d.lost[v]
    d.core[v] = d.k
    return d.degree[v] <= d.k


step = fg.foldmap(is_left, fallen, fall)


@dataclass(frozen=True, eq=False, kw_only=True)
class KCoreResult(Result):
    """What `k_core` returns.

    Attributes
    ----------
    core_numbers : ndarray of int64, shape (V,)
        The largest k for which the vertex is in the k-core; 0 without neighbors.
    k : int
        The one asked for, or the largest core number.
    vertices : ndarray of int64
        Those of the k-core, ascending: their core number is k or more.
    """

    core_numbers: npt.NDArray[np.int64]
    k: int
    vertices: npt.NDArray[np.int64]


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
    graph : Graph, or what `featgraph.as_graph` takes
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
        If an edge is a self-loop, or k is negative.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    All results are exact. Memory: 9 bytes a vertex, 24 more for the compiled loop that
    runs supersteps of few vertices on the CPU, and up to 9 while k rises; a directed
    graph is built again without directions.

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
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    loops = np.flatnonzero(sources == targets)
    if loops.size:
        raise fg.GraphInputError(
            "cores are not defined with self-loops",
            where=f"edge {loops[0]}",
            got=f"vertex {sources[loops[0]]} to itself",
            fix="drop the edges whose ends are the same",
        )
    count, names = graph.vertex_count, graph.vertex_names
    if graph.directed:
        graph = fg.Graph.from_edges(
            sources, targets, vertex_count=count, directed=False
        )
    degrees = np.asarray(graph.out_degree, np.int32)
    state = fg.State(
        graph,
        core=fg.vertex_property(np.zeros(count, np.int32)),
        degree=fg.vertex_property(degrees),
        k=-1,
    )
    begun = np.zeros(count, np.bool_)

    def raise_k(run: fg.Run | None, state: fg.State) -> Array:
        # What has fallen is at k or below: as an unsigned number, above all others.
        above = (state["degree"] - (state["k"] + 1)).view(np.uint32)
        least = above.min(initial=NO_VERTEX_LEFT)
        first: Array = above == least
        if least >= NO_VERTEX_LEFT:
            return np.zeros_like(first)
        state["k"] += int(least) + 1
        np.logical_or(begun, first, out=begun)
        return first

    run = fg.iterate(
        step,
        state,
        active=raise_k(None, state),
        max_supersteps=max_supersteps,
        then=raise_k,
        **options,
    )
    numbers = np.where(begun, state["degree"], state["core"]).astype(np.int64)
    numbers[~begun & (state["degree"] > state["k"])] = state["k"]
    chosen = int(numbers.max(initial=0)) if k is None else int(k)
    return KCoreResult(
        run=run,
        vertex_names=names,
        residuals=np.empty(0),
        core_numbers=numbers,
        k=chosen,
        vertices=np.flatnonzero(numbers >= chosen),
    )


def verify_k_core(graph: fg.GraphLike, core_numbers: npt.ArrayLike) -> None:
    """Check core numbers: that they are not too large, and not too small.

    * A vertex of core number c has c neighbors or more of core number c or more.
    * The vertices of core number k fall one after another, each with no more than k
      neighbors left, once all those of smaller core numbers have gone.

    Parameters
    ----------
    graph : Graph, or what `featgraph.as_graph` takes
        As given to `k_core`.
    core_numbers : array_like of int, shape (V,)
        Its answer.

    Raises
    ------
    AssertionError
        With the vertex at which a property fails first.
    """
    graph = fg.as_graph(graph)
    core = np.asarray(core_numbers)
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
