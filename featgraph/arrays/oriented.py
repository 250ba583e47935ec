"""Undirected edges on the GPU, turned towards the end of higher degree.

All arrays equal, bit for bit, those that `featgraph.graph.oriented` makes on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.arrays import edge_kernels, memory, sorting
from featgraph.arrays import oriented_kernels as kernels
from featgraph.arrays.edges import GpuEdges, taken
from featgraph.arrays.values import offset_dtype

__all__ = ["GpuOriented", "OrientedRows"]

Array = Any
HostArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OrientedRows:
    """Rows by degree order, ascending.

    Attributes
    ----------
    offsets : array of int32 or int64, shape (V + 1,)
    orders : array of int32, one a slot
        The places of the neighbors by degree.
    edges : array of int32 or int64, one a slot
        Ids of edges, or slots of `GpuOriented.upper`: as of `Oriented`.
    """

    offsets: Array
    orders: Array
    edges: Array


class GpuOriented:
    """Vertices by (degree, id), and the edges from lower to higher ones.

    Parameters
    ----------
    edges : GpuEdges
        Undirected.

    Attributes
    ----------
    vertices, degree_order : array of int32, shape (V,)
        The vertices in that order, and the place of each vertex in it.
    upper : OrientedRows
        The neighbors above, with the ids of the edges to them.
    is_repeated : bool
        Whether some edge is there twice: then nothing else is to be asked for.
    """

    def __init__(self, edges: GpuEdges) -> None:
        count = edges.vertex_count
        degrees = edges.degrees("in", np.int32)
        _, vertices = sorting.sort_stably(degrees, edges.most_edges("in") + 1)
        self.vertices = _as_type(vertices, np.int32)
        self.degree_order = memory.empty((count,), np.int32)
        memory.launch_over(edge_kernels.invert, count, self.vertices, self.degree_order)
        rows, self.upper = self._turn_upward(edges)
        found = memory.filled((1,), 0, np.int32)
        columns = self.upper.orders
        memory.launch_over(kernels.find_repeated, columns.size, rows, columns, found)
        self.is_repeated = bool(memory.read(found)[0])

    def _turn_upward(self, edges: GpuEdges) -> tuple[Array, OrientedRows]:
        """Return the row of each slot, those of loops behind, and the rows."""
        count, given = edges.vertex_count, edges.given_count
        ins = edges.rows("in")
        dtype = ins.offsets.dtype
        low, high = (memory.empty((given,), np.int32) for _ in range(2))
        ids = memory.empty((given,), dtype)
        memory.launch_over(
            kernels.turn_upward, edges.edge_count, edges.sources, edges.targets,
            ins.order, edges.edge_count, self.degree_order, count, low, high, ids,
        )  # fmt: skip
        _, order = sorting.sort_stably(high, count)
        rows, order = sorting.sort_stably(taken(low, order), count + 1, order)
        slots = given - edges.loop_count
        offsets = memory.empty((count + 1,), dtype)
        memory.launch_over(edge_kernels.begin_rows, count + 1, rows, offsets)
        of = [memory.empty((slots,), array.dtype) for array in (high, ids)]
        for array, made in zip((high, ids), of, strict=True):
            memory.launch_over(edge_kernels.take, slots, array, order, made)
        return rows, OrientedRows(offsets, *of)

    @cached_property
    def lower(self) -> OrientedRows:
        """The neighbors below, with the slots of these edges in `upper`."""
        upper = self.upper
        count, dtype = self.vertices.size, upper.offsets.dtype
        rows, slots = sorting.sort_stably(upper.orders, count)
        offsets = memory.empty((count + 1,), dtype)
        memory.launch_over(edge_kernels.begin_rows, count + 1, rows, offsets)
        columns = taken(_rows_of(upper), slots)
        return OrientedRows(offsets, columns, _as_type(slots, dtype))

    @cached_property
    def both(self) -> OrientedRows:
        """All neighbors, with the ids of the edges from lower to higher ends."""
        upper, lower = self.upper, self.lower
        slots = 2 * upper.orders.size
        offsets = memory.empty(upper.offsets.shape, offset_dtype(slots))
        memory.launch_over(
            kernels.add_rows, offsets.size, upper.offsets, lower.offsets, offsets
        )
        columns = memory.empty((slots,), np.int32)
        ids = memory.empty((slots,), upper.edges.dtype)
        memory.launch_over(
            kernels.fill_both, slots // 2,
            upper.offsets, upper.orders, upper.edges, _rows_of(upper),
            lower.offsets, lower.orders, lower.edges, _rows_of(lower), columns, ids,
        )  # fmt: skip
        return OrientedRows(offsets, columns, ids)

    def long_rows(self, least: int) -> tuple[HostArray, HostArray]:
        """Return the rows that have so many above, and others below, and their work.

        Both on the host, in the order of the rows. The work of a row is one, what it
        has, and what its members below have from there on.
        """
        upper = self.upper
        work = memory.empty((self.vertices.size,), np.int64)
        memory.launch_over(kernels.begin_work, work.size, upper.offsets, work)
        memory.launch_over(
            kernels.add_work, upper.orders.size,
            upper.offsets, upper.orders, _rows_of(upper), work,
        )  # fmt: skip
        count = memory.filled((1,), 0, np.int32)
        # No more of them can be that long.
        found = memory.empty((upper.orders.size // least + 1, 2), np.int64)
        memory.launch_over(
            kernels.find_long_rows, work.size, upper.offsets, work, least, found, count
        )
        rows = memory.read(found)[: memory.read(count)[0]]
        rows = rows[np.argsort(rows[:, 0])]
        return rows[:, 0], rows[:, 1]


def _rows_of(rows: OrientedRows) -> Array:
    """Return the row of each slot."""
    made = memory.empty(rows.orders.shape, np.int32)
    memory.launch_over(kernels.find_rows, made.size, rows.offsets, made)
    return made


def _as_type(array: Array, dtype: Any) -> Array:
    """Return an array of integers in a type that holds them, itself if it is of it."""
    if array.dtype == dtype:
        return array
    made = memory.empty(array.shape, dtype)
    memory.launch_over(kernels.cast, made.size, array, made)
    return made
