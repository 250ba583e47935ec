"""Triangles: their total number, and the number of triangles at each vertex.

For every three vertices u, v, w that are joined by three edges::

    triangles(u) += 1,  triangles(v) += 1,  triangles(w) += 1

It is one superstep on the oriented graph, whose edges lead from lower to higher
(degree, id), so that each triangle is found once, and a row has O(sqrt(E)) edges. Work:
for each edge, the rest of a row after it, O(E ** 1.5) at worst; on graphs with few
hubs, little more than E. Memory: 8 bytes a vertex, and about 20 bytes an edge for the
oriented graph, which the graph keeps.

Counts are exact integers, so they do not depend on the order of atomic additions.

M. Latapy, "Main-memory Triangle Computations for Very Large (Sparse (Power-Law))
Graphs", Theoretical Computer Science 407, 2008. T. Schank, D. Wagner, "Finding,
Counting and Listing All Triangles in Large Graphs", WEA 2005.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._following import is_on_gpu
from featgraph.algorithms._result import Following, Result, Update, answer
from featgraph.algorithms._verify import require, triangles_of

__all__ = ["TriangleCountResult", "triangle_count", "verify_triangle_count"]


@fg.triangle
def count_corners(u, v, w, e_uv, e_uw, e_vw, d):  # type: ignore[no-untyped-def]
    """Count the triangle at all three of its corners."""
    fg.atomic.add(d.triangles, u, 1)
    fg.atomic.add(d.triangles, v, 1)
    fg.atomic.add(d.triangles, w, 1)


@fg.reduce(into="corners", combine="sum")
def add_corners(f, v, d):  # type: ignore[no-untyped-def]
    """Sum the counts of all vertices: three for each triangle."""
    return d.triangles[v]


step, total = fg.trianglemap(count_corners), fg.foldmap(add_corners)
#: An update runs for at most one change per this many edges. With one per 16 edges, it
#: took as long as a new call, and with one per 32, half as long (R-MAT of 2^16 vertices
#: and 0.9M edges, 2 cores, 2026-11-29).
SHARE = 32
#: On a GPU, for one per so many edges, or for `FEW_ON_GPU`, if that is more. The host
#: takes about 0.2 us a change; with 1e-3 E changes, updates took 2 to 4 times less than
#: calls (kron21, Delaunay 2^20; an H200, 2026-11-30).
SHARE_ON_GPU, FEW_ON_GPU = 512, 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class TriangleCountResult(Result):
    """Result of `triangle_count`.

    Attributes
    ----------
    triangles : ndarray of int64, shape (V,)
        The number of triangles at each vertex.
    total : int
        The number of all triangles.
    """

    triangles: npt.NDArray[np.int64] = answer()
    total: int

    def _resume(self, following: Following) -> Update | str:
        """Add the triangles of inserted edges, and subtract those of deleted ones."""
        graph, share = following.graph, SHARE
        if is_on_gpu(graph):
            most = graph.given_edge_count // FEW_ON_GPU
            share = max(share, min(SHARE_ON_GPU, most))
        changes = following.changes(share)
        if isinstance(changes, str):
            return changes
        state = vars(self)["_state"]
        ends_views = changes.dead.size or changes.born.size
        if ends_views and isinstance(vars(self).get("_triangles_source"), fg.View):
            _ = self.triangles  # reads them now, as the update may fail
        if is_on_gpu(graph) and not state.view("triangles").is_on_gpu:
            total(state)  # takes them there: capacities of the graph have grown
        with state.in_use.hold("result.update()", changes=False):
            found = graph.changing.add_triangles(changes, state.view("triangles"))
        if isinstance(found, str):
            return found
        with state.in_use.hold("result.update()"):  # views of the old counts end
            state.touch("triangles")
        self._take(
            triangles=lambda _: state["triangles"], total=self.total + found[0],
            vertex_names=graph.vertex_names,
        )  # fmt: skip
        return Update(changes.version, edges=found[1])


@fg.algorithm()
def triangle_count(graph: fg.GraphLike, **options: Any) -> TriangleCountResult:
    """Count the triangles of an undirected graph.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Undirected, without parallel edges; self-loops are in no triangle.
    **options
        ``target``, ``schedule``, ... as for `featgraph.iterate`.

    Returns
    -------
    TriangleCountResult
        The count of each vertex, the total, and the record of the run.

    Raises
    ------
    GraphInputError
        If the graph is directed, or has parallel edges.

    Notes
    -----
    On a changing graph, ``update()`` adds the triangles of inserted edges in the
    present rows, and subtracts those of deleted edges in the rows before.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import triangle_count
    >>> kite = fg.Graph.from_edges([0, 1, 2, 1, 3], [1, 2, 0, 3, 2], directed=False)
    >>> result = triangle_count(kite)
    >>> result.triangles.tolist(), result.total
    ([1, 2, 2, 1], 2)
    """
    graph = fg.as_graph(graph, directed=False)
    graph.orient(options.get("target", "auto"))  # raises if edges are parallel
    state = fg.State(graph, triangles=fg.vertex_property(0))
    run = fg.iterate(step, state, **options)
    total(state, target=options.get("target", "auto"))
    triangles, corners = state.view("triangles"), int(state["corners"][0])
    made = TriangleCountResult.of(graph, run, triangles=triangles, total=corners // 3)
    if graph.changing is not None:
        made._take(_state=state)
    return made


def verify_triangle_count(graph: fg.GraphLike, triangles: npt.ArrayLike) -> None:
    """Check counts against a list of all triangles, made in NumPy.

    * The count of a vertex is the number of triangles in the list that have it.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        As passed to `triangle_count`.
    triangles : array_like of int, shape (V,)
        The answer of `triangle_count`.

    Raises
    ------
    AssertionError
        With the first vertex whose count differs.
    """
    graph = fg.as_graph(graph, directed=False)
    given = fg.given_array(triangles, where="triangles").on_host()
    corners = triangles_of(graph).vertices.ravel()
    expected = np.bincount(corners, minlength=graph.vertex_count)
    require(given >= expected, "part of more triangles")
    require(given <= expected, "part of fewer triangles")
