"""Undirected graphs with every edge oriented towards the end of higher degree.

Triangle functions find each triangle once in such a graph: at its edge between the two
lowest vertices, by intersecting two rows of upper neighbors.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.edges import FEW, Adjacency, freeze

__all__ = ["Oriented", "orient", "refuse_directed"]


@dataclass(frozen=True, eq=False)
class Oriented:
    """Vertices ordered by (degree, id), and the edges from lower to higher ones.

    The *place* of a vertex is its index in this order. Rows are numbered by places, and
    list places in ascending order. A row of `upper` has at most sqrt(E) edges (E counts
    twins), since each of them leads to a vertex of at least the same degree.

    Attributes
    ----------
    vertices : ndarray of int32, shape (V,)
        The vertices in degree order.
    degree_order : ndarray of int32, shape (V,)
        The place of each vertex.
    upper : Adjacency
        Row r lists the neighbors of r at higher places; `edge_ids` are those of the
        edges from r to them. Self-loops are left out.
    """

    vertices: NDArray[np.int32]
    degree_order: NDArray[np.int32]
    upper: Adjacency

    @cached_property
    def lower(self) -> Adjacency:
        """Neighbors of r at lower places; `edge_ids` are slots of `upper`."""
        upper = self.upper
        count, dtype = self.vertices.size, upper.row_offsets.dtype
        offsets = np.zeros(count + 1, dtype)
        np.cumsum(np.bincount(upper.column_indices, minlength=count), out=offsets[1:])
        columns = np.empty(upper.column_indices.size, np.int32)
        slots = np.empty(columns.size, dtype)
        _loops(count, columns.size).fill_lower(
            upper.row_offsets, upper.column_indices, offsets[:-1].copy(), columns, slots
        )
        return Adjacency(freeze(offsets), freeze(columns), freeze(slots))

    @cached_property
    def both(self) -> Adjacency:
        """All neighbors, ascending; `edge_ids` are those from lower to higher ends."""
        upper = self.upper
        degree = np.diff(upper.row_offsets)
        degree += np.bincount(upper.column_indices, minlength=degree.size).astype(
            degree.dtype
        )
        offsets = np.zeros(degree.size + 1, offset_dtype(int(degree.sum())))
        np.cumsum(degree, out=offsets[1:])
        columns = np.empty(int(offsets[-1]), np.int32)
        edge_ids = np.empty(columns.size, offsets.dtype)
        own: Any = upper.edge_ids
        _loops(degree.size, columns.size).fill_both(
            upper.row_offsets,
            upper.column_indices,
            own,
            offsets[:-1].copy(),
            columns,
            edge_ids,
        )
        return Adjacency(freeze(offsets), freeze(columns), freeze(edge_ids))

    @cached_property
    def work(self) -> NDArray[np.int64]:
        """Work of row r, (V,): 1 + its length + parts of rows intersected with it."""
        work, upper = np.empty(self.vertices.size, np.int64), self.upper
        loops = _loops(work.size, upper.column_indices.size)
        loops.measure_work(upper.row_offsets, upper.column_indices, work)
        return freeze(work)


def _loops(vertex_count: int, edge_count: int) -> ModuleType:
    """Return the module of loops: compiled ones, or NumPy for a small graph."""
    if max(vertex_count, edge_count) <= FEW:
        from featgraph.graph.building import few

        return few
    from featgraph.graph.building import kernels  # loads Numba

    return kernels


def refuse_directed() -> NoReturn:
    """Raise GraphInputError for a directed graph."""
    raise GraphInputError(
        "a directed graph has no triangles",
        got="directed=True",
        fix='make the graph with directed=False, duplicates="first"',
    )


def orient(graph: Any) -> Oriented:
    """Orient a graph; O(V log V + E).

    Raises
    ------
    GraphInputError
        If the graph is directed, or two edges have the same ends.
    """
    if graph.directed:
        refuse_directed()
    edges = graph._edges
    if edges.is_given_on_gpu and not edges.on_gpu_oriented.is_repeated:
        from featgraph.graph.building import fetch

        return Oriented(*fetch.build_upper(edges))
    return _orient_on_host(graph)


def _orient_on_host(graph: Any) -> Oriented:
    """Orient a graph, or find a repeated edge."""
    ins, count = graph.in_edges, graph.vertex_count
    loops = _loops(count, ins.column_indices.size)
    vertices = np.argsort(graph.in_degree, kind="stable").astype(np.int32)
    degree_order = np.empty(count, np.int32)
    degree_order[vertices] = np.arange(count, dtype=np.int32)
    offsets = np.zeros(count + 1, ins.row_offsets.dtype)
    loops.count_upper(ins.row_offsets, ins.column_indices, degree_order, offsets[1:])
    np.cumsum(offsets, out=offsets)
    columns = np.empty(int(offsets[-1]), np.int32)
    edge_ids = np.empty(columns.size, offsets.dtype)
    repeated = loops.fill_upper(
        ins.row_offsets,
        ins.column_indices,
        vertices,
        degree_order,
        offsets,
        offsets[:-1].copy(),
        columns,
        edge_ids,
    )
    if repeated >= 0:
        source = int(ins.column_indices[repeated])
        target = int(np.searchsorted(ins.row_offsets, repeated, "right")) - 1
        raise GraphInputError(
            "triangles of a graph with parallel edges",
            where=f"the edge between {source} and {target}",
            got="the edge more than once",
            expected="one edge between two vertices",
            fix='make the graph with duplicates="first"',
        )
    upper = Adjacency(freeze(offsets), freeze(columns), freeze(edge_ids))
    return Oriented(freeze(vertices), freeze(degree_order), upper)
