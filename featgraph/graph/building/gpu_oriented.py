"""Undirected edges on the GPU, oriented towards the end of higher degree.

All arrays are bitwise equal to those of `featgraph.graph.building.oriented`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays, sorting
from featgraph.cuda.dialect import cuda, int64, kernel
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building import gpu_edge_kernels, gpu_part_kernels
from featgraph.graph.building.gpu_edges import GpuEdges, taken

__all__ = ["GpuOriented", "OrientedRows", "as_type", "orient_edges"]

Array = Any
HostArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OrientedRows:
    """Rows in degree order, with ascending neighbors.

    Attributes
    ----------
    offsets : array of int32 or int64, shape (V + 1,)
    orders : array of int32, one a slot
        The places of the neighbors in degree order.
    edges : array of int32 or int64, one a slot
        Edge ids, or slots of `GpuOriented.upper`: see `Oriented`.
    """

    offsets: Array
    orders: Array
    edges: Array


class GpuOriented:
    """Vertices ordered by (degree, id), and the edges from lower to higher ones.

    Parameters
    ----------
    degrees : array of int32, shape (V,)
        Self-loops count once.
    most : int
        A bound of the degrees.
    dtype : numpy.dtype
        The type of offsets: that of the offsets of all edges.
    list_upward : callable
        ``list_upward(degree_order)`` returns the places of the lower and of the upper
        end of each edge, its id, and how many edges there are. Loops are left out, or
        have V as the lower place and are beyond that number.

    Attributes
    ----------
    vertices, degree_order : array of int32, shape (V,)
        The vertices in this order, and the place of each vertex in it.
    upper : OrientedRows
        Upper neighbors, with the ids of the edges to them.
    is_repeated : bool
        Whether two edges have the same ends; the rows are then invalid.
    """

    def __init__(
        self, degrees: Array, most: int, dtype: Any,
        list_upward: Callable[[Array], tuple[Array, Array, Array, int]],
    ) -> None:  # fmt: skip
        count = degrees.size
        _, vertices = sorting.sort_stably(degrees, most + 1)
        self.vertices = as_type(vertices, np.int32)
        self.degree_order = arrays.empty((count,), np.int32)
        arrays.launch_over(
            gpu_edge_kernels.invert, count, self.vertices, self.degree_order
        )
        low, high, ids, slots = list_upward(self.degree_order)
        # Stable sorts by column and then by row: columns ascend within a row.
        _, order = sorting.sort_stably(high, count)
        rows, order = sorting.sort_stably(taken(low, order), count + 1, order)
        offsets = arrays.empty((count + 1,), dtype)
        arrays.launch_over(gpu_edge_kernels.begin_rows, count + 1, rows, offsets)
        of = [arrays.empty((slots,), array.dtype) for array in (high, ids)]
        for array, made in zip((high, ids), of, strict=True):
            arrays.launch_over(gpu_edge_kernels.take, slots, array, order, made)
        self.upper = OrientedRows(offsets, *of)
        found = arrays.filled((1,), 0, np.int32)
        columns = self.upper.orders
        arrays.launch_over(find_repeated, columns.size, rows, columns, found)
        self.is_repeated = bool(arrays.read(found)[0])

    @cached_property
    def lower(self) -> OrientedRows:
        """Lower neighbors, with the slots of the edges in `upper`."""
        upper = self.upper
        count, dtype = self.vertices.size, upper.offsets.dtype
        rows, slots = sorting.sort_stably(upper.orders, count)
        offsets = arrays.empty((count + 1,), dtype)
        arrays.launch_over(gpu_edge_kernels.begin_rows, count + 1, rows, offsets)
        columns = taken(_rows_of(upper), slots)
        return OrientedRows(offsets, columns, as_type(slots, dtype))

    @cached_property
    def both(self) -> OrientedRows:
        """All neighbors, with the ids of the edges from lower to higher ends."""
        upper, lower = self.upper, self.lower
        slots = 2 * upper.orders.size
        offsets = arrays.empty(upper.offsets.shape, offset_dtype(slots))
        arrays.launch_over(
            add_rows, offsets.size, upper.offsets, lower.offsets, offsets
        )
        columns = arrays.empty((slots,), np.int32)
        ids = arrays.empty((slots,), upper.edges.dtype)
        arrays.launch_over(
            fill_both, slots // 2,
            upper.offsets, upper.orders, upper.edges, _rows_of(upper),
            lower.offsets, lower.orders, lower.edges, _rows_of(lower), columns, ids,
        )  # fmt: skip
        return OrientedRows(offsets, columns, ids)

    def long_rows(self, least: int) -> tuple[HostArray, HostArray]:
        """Return rows with work and `least` or more upper neighbors, and their work.

        Both are on the host, in the order of rows. The work of a row is 1 + its number
        of upper neighbors + the upper neighbors, from the row's place on, of its lower
        neighbors.
        """
        upper = self.upper
        work = arrays.empty((self.vertices.size,), np.int64)
        arrays.launch_over(begin_work, work.size, upper.offsets, work)
        arrays.launch_over(
            add_work, upper.orders.size,
            upper.offsets, upper.orders, _rows_of(upper), work,
        )  # fmt: skip
        count = arrays.filled((1,), 0, np.int32)
        # No more rows than this have `least` slots.
        found = arrays.empty((upper.orders.size // least + 1, 2), np.int64)
        arrays.launch_over(
            find_long_rows, work.size, upper.offsets, work, least, found, count
        )
        rows = arrays.read(found)[: arrays.read(count)[0]]
        rows = rows[np.argsort(rows[:, 0])]
        return rows[:, 0], rows[:, 1]


def orient_edges(edges: GpuEdges) -> GpuOriented:
    """Orient undirected edges on the GPU."""
    degrees, dtype = edges.degrees("in", np.int32), edges.rows("in").offsets.dtype
    turned = partial(_turned_upward, edges)
    return GpuOriented(degrees, edges.most_edges("in"), dtype, turned)


def _turned_upward(
    edges: GpuEdges, degree_order: Array
) -> tuple[Array, Array, Array, int]:
    """Return the lower and upper places of given edges, ids, and their number."""
    count, given, ins = edges.vertex_count, edges.given_count, edges.rows("in")
    low, high = (arrays.empty((given,), np.int32) for _ in range(2))
    ids = arrays.empty((given,), ins.offsets.dtype)
    arrays.launch_over(
        turn_upward, edges.edge_count, edges.sources, edges.targets,
        ins.order, edges.edge_count, degree_order, count, low, high, ids,
    )  # fmt: skip
    return low, high, ids, given - edges.loop_count


def _rows_of(rows: OrientedRows) -> Array:
    """Return the row of each slot."""
    made = arrays.empty(rows.orders.shape, np.int32)
    arrays.launch_over(gpu_part_kernels.expand_rows, made.size, rows.offsets, made)
    return made


def as_type(array: Array, dtype: Any) -> Array:
    """Return integers in a dtype that can hold them; no copy if it is the same."""
    if array.dtype == dtype:
        return array
    made = arrays.empty(array.shape, dtype)
    arrays.launch_over(cast, made.size, array, made)
    return made


@kernel(cache=True)
def turn_upward(  # type: ignore[no-untyped-def]
    sources, targets, order, count, degree_order, none, low, high, edge_ids
):
    """Set the degree places of each given edge's ends, and its id from low to high.

    Of each given edge and its twin, the one from lower to higher degree is set. `order`
    has 2 i for the id of given edge i, and 2 i + 1 for that of its twin. A loop is put
    in row `none`, after the rows of all vertices.
    """
    for slot in range(cuda.grid(1), count, cuda.gridsize(1)):
        place = order[slot]
        edge = place >> 1
        u, v = degree_order[sources[edge]], degree_order[targets[edge]]
        if place & 1 != 0:
            u, v = v, u
        if u > v:
            continue
        low[edge] = u if u < v else none
        high[edge] = v
        edge_ids[edge] = slot


@kernel(cache=True)
def find_repeated(rows, columns, found):  # type: ignore[no-untyped-def]
    """Set ``found[0]`` if a column occurs twice in a row; both ascend."""
    for slot in range(cuda.grid(1) + 1, columns.size, cuda.gridsize(1)):
        if rows[slot] == rows[slot - 1] and columns[slot] == columns[slot - 1]:
            found[0] = 1


@kernel(cache=True)
def cast(values, out):  # type: ignore[no-untyped-def]
    """Convert each entry to the dtype of `out`."""
    for place in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[place] = values[place]


@kernel(cache=True)
def add_rows(upper_offsets, lower_offsets, offsets):  # type: ignore[no-untyped-def]
    """Set the offsets of merged upper and lower rows."""
    for row in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        offsets[row] = int64(upper_offsets[row]) + int64(lower_offsets[row])


@kernel(cache=True)
def fill_both(  # type: ignore[no-untyped-def]
    upper_offsets, upper_columns, upper_edges, upper_rows,
    lower_offsets, lower_columns, lower_slots, lower_rows, columns, edge_ids,
):  # fmt: skip
    """Fill rows of all neighbors: lower ones, then upper ones."""
    for slot in range(cuda.grid(1), upper_columns.size, cuda.gridsize(1)):
        # Before an upper slot are all upper slots before it, and the lower slots of all
        # rows up to its own; before a lower one, the upper slots of earlier rows.
        place = lower_offsets[upper_rows[slot] + 1] + slot
        columns[place] = upper_columns[slot]
        edge_ids[place] = upper_edges[slot]
        place = upper_offsets[lower_rows[slot]] + slot
        columns[place] = lower_columns[slot]
        edge_ids[place] = upper_edges[lower_slots[slot]]


@kernel(cache=True)
def begin_work(offsets, work):  # type: ignore[no-untyped-def]
    """Set the work of each row to 1 plus its number of upper neighbors."""
    for row in range(cuda.grid(1), work.size, cuda.gridsize(1)):
        work[row] = int64(1) + int64(offsets[row + 1]) - int64(offsets[row])


@kernel(cache=True)
def add_work(offsets, columns, rows, work):  # type: ignore[no-untyped-def]
    """Add, for each lower neighbor, its upper neighbors from the row's place on."""
    for slot in range(cuda.grid(1), columns.size, cuda.gridsize(1)):
        cuda.atomic.add(work, columns[slot], int64(offsets[rows[slot] + 1]) - slot)


@kernel(cache=True)
def find_long_rows(offsets, work, least, found, count):  # type: ignore[no-untyped-def]
    """List long rows with work beyond their own length, in any order: row, work."""
    for row in range(cuda.grid(1), work.size, cuda.gridsize(1)):
        length = int64(offsets[row + 1]) - int64(offsets[row])
        if length >= least and work[row] > length + 1:
            place = cuda.atomic.add(count, 0, 1)
            found[place, 0] = row
            found[place, 1] = work[row]
