"""The rows of a graph along some edges, a slice of which is swept at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph._cuda_driver import address_of
from featgraph.fold.plan.layout import (
    JOINED_ENTRIES,
    PART_ENTRIES,
    Rows,
    windows_of,
)
from featgraph.runtime.devices.bound import BoundEntry, RowKernel
from featgraph.runtime.devices.cuda_arrays import BLOCK, block_count
from featgraph.runtime.devices.cuda_device import CudaDevice
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.streaming import kernels
from featgraph.runtime.streaming.pinned import PinnedArray, array_at
from featgraph.runtime.streaming.ring import Ring
from featgraph.runtime.streaming.slices import WORD, Slice, cut_rows

__all__ = ["CutRows", "SliceArrays", "Sources"]

Array = Any
Words = Any
_MOST_BLOCKS = 1 << 12
#: What the list of the vertices of a slice is kept as.
_LISTED = "listed"
#: Bytes of an edge's row of a property, at a place that nothing else is read near to,
#: that reading in place brings at least.
SECTOR = 64


@dataclass(frozen=True)
class Sources:
    """Arrays of edges that a phase reads, by their names in generated code.

    Attributes
    ----------
    copied : dict of str to PinnedArray
        Those that come to a buffer.
    viewed : dict of str to array
        Those of which rows are read, or written, where they are.
    """

    copied: dict[str, PinnedArray]
    viewed: dict[str, Array]

    @property
    def edge_bytes(self) -> int:
        """Bytes that are copied of an edge."""
        return sum(array.row_bytes for array in self.copied.values())


class CutRows:
    """Rows cut so that each slice of some arrays fits a buffer of a ring.

    Parameters
    ----------
    graph : GraphArrays
        The arrays of the graph.
    rows : Rows
        Which rows.
    ring : Ring
    row_bytes : sequence of int
        Bytes of a row of each array that is copied.

    Attributes
    ----------
    slices : list of Slice
    capacity : int
        Edges that a buffer takes.
    places : list of int
        The byte of a buffer where each array begins.
    most_rows : int
        Vertices that a slice has at most.
    """

    def __init__(
        self, graph: Any, device: CudaDevice, rows: Rows, ring: Ring,
        row_bytes: Sequence[int],
    ) -> None:  # fmt: skip
        # The graph has the ring, and that has this.
        self.graph: Any = weakref.proxy(graph)
        self._device = device
        self.rows, self.ring = rows, ring
        self.capacity, self.places = ring.lay_out(row_bytes)
        self._offsets = graph[rows.offsets]
        offsets = host_graph_array(graph.graph, rows.offsets)
        # One buffer more has their numbers.
        self.most_rows = max(ring.size // 4, WORD)
        self.slices = cut_rows(offsets, self.capacity, self.most_rows)
        #: Vertices with long rows, or parts of these, by the name of their list.
        self._hubs: dict[str, Any] = {}
        #: Windows by their name, on the host.
        self._windows: dict[str, Any] = {}
        bounds = [s.words[0] for s in self.slices] + [-(-(offsets.size - 1) // 32)]
        self._bounds = device.upload(np.array(bounds, np.int32))
        self._found = device.empty((2 * len(self.slices),), "int64")
        #: Slice, and buffer or -1 -> the arrays of the graph, of that slice there.
        self.arrays: dict[tuple[int, int], SliceArrays] = {}

    def due_in(self, words: Words) -> tuple[list[int], list[int]]:
        """Return how many rows of a set each slice has, and edges; waits."""
        device = self._device
        device.fill(self._found, 0)
        self._launch(kernels.count_due, words.size, words, self._offsets, self._bounds,
                     self._found)  # fmt: skip
        found = device.download(self._found).reshape(-1, 2)
        return found[:, 0].tolist(), found[:, 1].tolist()

    @property
    def all_due(self) -> tuple[list[int], list[int]]:
        """The same of all vertices."""
        own = self.slices
        return [s.last - s.first for s in own], [s.edge_count for s in own]

    def is_better_in_place(self, rows: int, edges: int, least: int, item: int) -> bool:
        """Whether so many rows are better read where they are than `least` edges moved.

        What is read there comes in pieces; twice as much is taken to be as dear.
        """
        return 2 * (rows * SECTOR + edges * item) <= least * item

    def part_of(self, words: Words, of: Slice) -> Words:
        """Return those of a set that a slice has."""
        first, last = of.words
        part = self._device.sets.empty(words.size)
        at = 4 * first
        source, target = address_of(words) + at, address_of(part) + at
        self._device.driver.copy(target, source, 4 * (last - first))
        return part

    def bind(self, of: Slice, *, everywhere: bool) -> None:
        """Have rows begin where they do in a slice.

        With `everywhere`, rows that the slice has not are empty; otherwise nothing is
        said about them.
        """
        first, last = of.first, of.last
        if everywhere:
            first, last = 0, self._offsets.size - 1
        count = last + 1 - first
        numbers = np.int64(first), np.int64(count), np.int64(of.begin)
        self._launch(kernels.rebase, count, self._offsets, self.rebased, *numbers,
                     np.int64(of.edge_count))  # fmt: skip

    @property
    def rebased(self) -> Array:
        """Where rows begin in the slice that was bound last."""
        kept, name = self.ring.kept, f"{self.rows.offsets} of slices"
        if name not in kept:
            # A slice has no 2^31 edges, if the graph has.
            kept[name] = made = self._device.empty(self._offsets.shape, "int32")
            self._device.fill(made, 0)
        return kept[name]

    def listed(self, of: Slice) -> Array:
        """Return the vertices of a slice, in memory that the next call takes."""
        count, kept = of.last - of.first, self.ring.kept
        if _LISTED not in kept:
            kept[_LISTED] = self._device.empty((self.most_rows,), "int32")
        rows = kept[_LISTED]
        numbers = np.int64(of.first), np.int64(count)
        self._launch(kernels.number_rows, count, rows, *numbers)
        return array_at(address_of(rows), (count,), np.int32, rows)

    def hubs_of(self, of: Slice, name: str) -> Array:
        """Return the vertices of a slice with long rows, or the parts of these.

        Places of parts that blocks join are of this list.
        """
        kind, whole = name.split(" ")[0], self._hubs.get(name)
        if whole is None:
            parts = {
                self.rows.hub_parts: PART_ENTRIES,
                self.rows.joined_parts: JOINED_ENTRIES,
            }
            whole = self._device.download(self.graph[name])
            whole = self._hubs[name] = whole.reshape(-1, parts.get(kind, 1))
        own = whole[(whole[:, 0] >= of.first) & (whole[:, 0] < of.last)]
        if kind == self.rows.joined_parts:
            begins = np.flatnonzero(own[:, 1] == 0)
            own[:, 3] = np.repeat(begins, own[begins, 4])
        return self._device.upload(np.ascontiguousarray(own).ravel())

    def windows_in(self, of: Slice, name: str) -> Array:
        """Return where windows of a slice begin, and behind the last."""
        whole = self._windows.get(name)
        if whole is None:
            whole = self._windows[name] = self._device.download(self.graph[name])
        first, last = np.searchsorted(whole, [of.first, of.last])
        return self._device.upload(np.ascontiguousarray(whole[first : last + 1]))

    def _launch(self, kernel: Any, count: int, *arguments: Any) -> None:
        blocks = min(block_count(count), _MOST_BLOCKS)
        self._device.launches(kernel, blocks, BLOCK, arguments)


class SliceArrays(Mapping[str, Any]):
    """The arrays of a graph, but those along some rows are of one slice.

    Parameters
    ----------
    cut : CutRows
    of : Slice
    arrays : dict of str to array
        Arrays of edges of the slice.
    """

    def __init__(self, cut: CutRows, of: Slice, arrays: dict[str, Array]) -> None:
        self._cut, self._of = cut, of
        self._arrays = {**arrays, cut.rows.offsets: cut.rebased}
        self.vertex_count, self.edge_count = cut.graph.vertex_count, of.edge_count
        #: Kernel, and name -> an entry with these in place.
        self.entries: dict[Any, BoundEntry] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._arrays.get(name)
        if found is None:
            found = self._arrays[name] = self._find(name)
        return found

    def _find(self, name: str) -> Any:
        cut = self._cut
        own = cut.rows
        if name.split(" ")[0] in {own.hubs, own.hub_parts, own.joined_parts}:
            return cut.hubs_of(self._of, name)
        windows = windows_of(name)
        if windows is not None and windows[0].windows == own.windows:
            return cut.windows_in(self._of, name)
        return cut.graph[name]

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets, by its name, that goes along some rows."""
        found: RowKernel = self._cut.graph.kernel_over(name, along, self)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
