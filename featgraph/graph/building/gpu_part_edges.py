"""Edges on the GPU, given as a CSC, from which other rows are built slab by slab.

A *slab* is a range of rows. Its entries are listed and sorted at once, so that
temporary arrays have the length of a slab, not of all edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building import gpu_edge_kernels, gpu_part_kernels
from featgraph.graph.building.gpu_edges import GpuEdges, GpuRows, marked, taken

__all__ = ["LEAST_SLAB", "SLABS", "GpuRowEdges", "slabs"]

Array = Any
#: Number of slabs, and least slots of a slab. A GPU sorts 2**24 slots in a few
#: milliseconds. Sorting an eighth of the slots takes about as much memory as all rows.
SLABS, LEAST_SLAB = 8, 1 << 24
#: Edges that are scanned at a time.
PIECE_EDGES = 1 << 24


def slabs(offsets: Any) -> Iterator[tuple[int, int, int]]:
    """Yield first row, end, and number of slots of each slab of rows.

    Parameters
    ----------
    offsets : ndarray
        Offsets of the rows, shape (rows + 1,).
    """
    rows, count = offsets.size - 1, int(offsets[-1])
    most = max(LEAST_SLAB, -(-count // SLABS))
    begin = 0
    while begin < rows:
        limit = int(offsets[begin]) + most
        end = max(int(np.searchsorted(offsets, limit, "right")) - 1, begin + 1)
        size = int(offsets[end]) - int(offsets[begin])
        if size:
            yield begin, end, size
        begin = end


class GpuRowEdges(GpuEdges):
    """Edges given by their rows along in-edges.

    Parameters
    ----------
    offsets : array of int32 or int64, shape (V + 1,)
    ends : array of int32, shape (E,)
        Sources, row by row, in given order.
    directed : bool
    numbers : callable, or None
        Returns the number of the given edge of each slot, plus `bound` for a twin. None
        if slots are in given order.
    bound : int
        Larger than the number of any given edge.
    is_by_slot : bool
        Whether the order of slots of a directed graph counts as given order; `numbers`
        then only determine the order of out-edges.
    """

    def __init__(
        self,
        offsets: Array,
        ends: Array,
        directed: bool,
        numbers: Callable[[], Array] | None,
        bound: int,
        is_by_slot: bool = False,
    ) -> None:
        self.vertex_count, self.directed = offsets.size - 1, directed
        self._offsets_in, self._ends_in = offsets, ends
        self._numbers, self._bound, self._is_by_slot = numbers, bound, is_by_slot
        self._dtype = offset_dtype(ends.size)
        self._rows: dict[str, GpuRows] = {"in": GpuRows(offsets, ends, None)}
        self._ids: dict[str, Array] = {}
        self._degrees: dict[tuple[str, str], Array] = {}

    def _expanded(self) -> Array:
        """Return the row of each slot."""
        rows = arrays.empty(self._ends_in.shape, np.int32)
        arrays.launch_over(
            gpu_part_kernels.expand_rows, rows.size, self._offsets_in, rows
        )
        return rows

    def _numbered(self) -> Array:
        """Return the number of the given edge of each slot."""
        if self._numbers is not None:
            return self._numbers()
        slots = arrays.empty(self._ends_in.shape, self._dtype)
        arrays.launch_over(gpu_part_kernels.number_slots, slots.size, slots)
        return slots

    def _is_given(self) -> Array:
        """Return flags of slots whose edge is no twin."""
        flags = arrays.empty(self._ends_in.shape, np.uint8)
        numbers = self._numbered()
        arrays.launch_over(
            gpu_part_kernels.flag_given, flags.size, numbers, self._bound, flags
        )
        return flags

    def _given_slots(self) -> Array:
        """Return the slots of given edges, in given order."""
        if self.directed:
            slots = arrays.empty(self._ends_in.shape, self._dtype)
            arrays.launch_over(gpu_part_kernels.number_slots, slots.size, slots)
        else:
            slots = marked(self._is_given())
        if self._is_plain:
            return slots
        return taken(slots, self._by_number(slots, self._numbered()))

    def _by_number(self, slots: Array, numbers: Array) -> Array:
        """Return the order that sorts some slots by the numbers of their edges."""
        numbers = taken(numbers, slots)
        keys = arrays.empty(numbers.shape, np.int32)
        arrays.launch_over(
            gpu_part_kernels.keys_of, keys.size, numbers, self._bound, keys
        )
        return sorting.sort_stably(keys, self._bound)[1]

    @cached_property
    def sources(self) -> Array:
        """Sources of given edges, in given order."""
        if self._is_plain:
            return self._ends_in
        return taken(self._ends_in, self._given_slots())

    @cached_property
    def targets(self) -> Array:
        """Targets of given edges, in given order."""
        rows = self._expanded()
        if self._is_plain:
            return rows
        return taken(rows, self._given_slots())

    @property
    def _is_plain(self) -> bool:
        """Whether slots are in given order."""
        return self.directed and (self._numbers is None or self._is_by_slot)

    @cached_property
    def given_count(self) -> int:
        """Number of given edges."""
        if self.directed:
            return self.edge_count
        _, total = sorting.scanned(self._is_given())
        return int(arrays.read(total)[0])

    @property
    def edge_count(self) -> int:
        """Number of edges, twins included."""
        return int(self._ends_in.size)

    @property
    def loop_count(self) -> int:
        """Number of self-loops of an undirected graph."""
        return 2 * self.given_count - self.edge_count

    def as_given(self) -> GpuEdges:
        """Return the same edges as a list in given order."""
        ends = self.sources, self.targets
        return GpuEdges(*ends, self.vertex_count, self.directed)

    @property
    def given_index(self) -> Array:
        """Row in given order of each edge id; twin of edge i: E_given + i."""
        made = arrays.empty(self._ends_in.shape, self._dtype)
        if self._is_plain:
            arrays.launch_over(gpu_part_kernels.number_slots, made.size, made)
            return made
        slots = self._given_slots()
        arrays.launch_over(gpu_edge_kernels.invert, slots.size, slots, made)
        if not self.directed:
            twins, flags = self.edge_ids("out"), self._is_given()
            given = flags, twins, int(slots.size), made
            arrays.launch_over(gpu_part_kernels.number_locally, made.size, *given)
        return made

    def is_in_given_order(self) -> bool:
        """Whether each edge id is the row in given order."""
        return self._is_plain or super().is_in_given_order()

    def rows(self, along: str) -> GpuRows:
        """Return the rows along "in", "out" or "both" edges."""
        along = along if self.directed else "in"
        if along not in self._rows:
            self._rows[along] = self._turned(along == "both")
        return self._rows[along]

    def edge_ids(self, along: str) -> Array:
        """Return the edge id of each slot along "out" or "both" edges."""
        if self.directed:
            return self.rows(along).order
        if "out" not in self._ids:
            twins = arrays.empty(self._ends_in.shape, self._offsets_in.dtype)
            given = self._offsets_in, self._ends_in, self._expanded(), self._numbered()
            find = gpu_part_kernels.find_in_rows
            arrays.launch_over(find, twins.size, *given, self._bound, twins)
            self._ids["out"] = twins
        return self._ids["out"]

    def degrees(self, side: str, dtype: Any = None) -> Array:
        """Return the "in" or "out" degree of each vertex."""
        side = side if self.directed else "in"
        wanted = np.dtype(offset_dtype(self.edge_count) if dtype is None else dtype)
        key = side, wanted.name
        if key not in self._degrees:
            counts = arrays.filled((self.vertex_count,), 0, wanted)
            if side == "in":
                of_rows = self._offsets_in, 0, counts
                arrays.launch_over(gpu_part_kernels.put_lengths, counts.size, *of_rows)
            else:
                given = self._ends_in, counts
                arrays.launch_over(
                    gpu_part_kernels.count_entries, self.edge_count, *given
                )
            self._degrees[key] = counts
        return self._degrees[key]

    def _turned(self, is_both: bool) -> GpuRows:
        """Return the rows along out-edges, or both, with edge ids as `order`."""
        rows = self._expanded()
        counts = arrays.filled((self.vertex_count,), 0, np.int64)
        arrays.launch_over(
            gpu_part_kernels.count_entries, self.edge_count, self._ends_in, counts
        )
        if is_both:
            given = self._ends_in, rows, counts
            arrays.launch_over(gpu_part_kernels.count_others, self.edge_count, *given)
        before, total = sorting.scanned(counts)
        size = int(arrays.read(total)[0])
        offsets = arrays.empty((self.vertex_count + 1,), offset_dtype(size))
        arrays.launch_over(
            gpu_part_kernels.close_offsets, offsets.size, before, total, offsets
        )
        del counts, before
        ends = arrays.empty((size,), np.int32)
        ids = arrays.empty((size,), self._dtype)
        numbers = None if self._numbers is None else self._numbers()
        at = 0
        for begin, end, count in slabs(arrays.read(offsets)):
            found, slots = self._entries(rows, is_both, (begin, end), count)
            if numbers is not None:
                order = self._by_number(slots, numbers)
                found, slots = taken(found, order), taken(slots, order)
            found, order = sorting.sort_stably(found, end - begin)
            slots = taken(slots, order)
            arrays.launch_over(
                gpu_part_kernels.other_of, count,
                self._ends_in, rows, begin, slots, found, at, ends,
            )  # fmt: skip
            arrays.launch_over(gpu_part_kernels.put_at, count, slots, at, ids)
            at += count
        return GpuRows(offsets, ends, ids)

    def _entries(
        self, rows: Array, is_both: bool, slab: tuple[int, int], count: int
    ) -> tuple[Array, Array]:
        """Return row (relative to the slab) and edge id of each entry of a slab."""
        found = arrays.empty((count,), np.int32)
        slots = arrays.empty((count,), self._dtype)
        at = 0
        for first in range(0, self.edge_count, PIECE_EDGES):
            size = min(PIECE_EDGES, self.edge_count - first)
            flags = arrays.empty((size,), np.uint8)
            given = self._ends_in, rows, is_both, *slab, first
            arrays.launch_over(gpu_part_kernels.flag_sources, size, *given, flags)
            places, total = sorting.scanned(flags)
            listed = places, at, found, slots
            arrays.launch_over(
                gpu_part_kernels.list_sources, size, *given, flags, *listed
            )
            at += int(arrays.read(total)[0])
        return found, slots
