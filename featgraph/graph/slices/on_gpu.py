"""Rows of a folder of slices, read to the GPU without a whole copy on the host.

The sums that check edges are computed on the GPU. Import this module inside functions
only: it imports the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays as memory
from featgraph.cuda import sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building import gpu_edge_kernels, gpu_part_kernels
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.building.gpu_edges import taken
from featgraph.graph.building.gpu_part_edges import GpuRowEdges
from featgraph.graph.building.row_edges import GpuRowEdgeList
from featgraph.graph.slices.checks import (
    bits_of,
    read_words,
    require_in_range,
    require_sums,
    require_words,
    row_bound,
    sums_of_vertices,
    word_ends,
)
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.names import read_names
from featgraph.graph.slices.read import (
    PlacedRows,
    ranges_of_sides,
    require_between_sides,
    require_offsets,
)

__all__ = ["RowsOnGpu", "closed_offsets", "count_inside", "read_on_gpu"]

#: An array of the dialect.
Array = Any


def count_inside(values: Array, begin: int, end: int, low: int, high: int) -> int:
    """Count the values in a range; waits for the GPU."""
    found = memory.filled((1,), 0, np.int64)
    arguments = values, begin, end, low, high, found, 0
    memory.launch_over(gpu_part_kernels.count_inside, end - begin, *arguments)
    return int(memory.read(found)[0])


def closed_offsets(degrees: Array) -> Array:
    """Return the offsets of rows with some lengths, and the end of the last one."""
    before, total = sorting.scanned(degrees)
    dtype = offset_dtype(int(memory.read(total)[0]))
    offsets = memory.empty((degrees.size + 1,), dtype)
    memory.launch_over(
        gpu_part_kernels.close_offsets, offsets.size, before, total, offsets
    )
    return offsets


@dataclass(frozen=True, eq=False)
class RowsOnGpu(PlacedRows):
    """The edges into the vertices at some places, on the GPU.

    Attributes
    ----------
    degrees : array of int32
        The number of edges of each row.
    """

    degrees: Array

    @classmethod
    def of(cls, slices: Slices, ranges: Sequence[tuple[int, int]]) -> RowsOnGpu:
        """Return the rows of the places in some ranges.

        Raises
        ------
        FileFormatError
            If offsets are missing or altered, or do not ascend.
        """
        degrees = memory.empty((sum(last - first for first, last in ranges),), np.int32)
        spans, at = [], 0
        for first, last in ranges:
            offsets = memory.empty((last - first + 1,), np.int64)
            slices.upload("offsets", first, last + 1, offsets)
            begin, end = (
                int(slices.read("offsets", place, place + 1)[0])
                for place in (first, last)
            )
            descents = memory.filled((2,), 0, np.int64)
            count = last - first
            memory.launch_over(
                gpu_part_kernels.count_descents, count, offsets, descents
            )
            ascends = not memory.read(descents)[0]
            require_offsets(slices, (first, last), (begin, end), ascends)
            memory.launch_over(
                gpu_part_kernels.put_lengths, count, offsets, at, degrees
            )
            spans.append((begin, end))
            at += count
        return cls(slices, ranges, spans, degrees)

    def in_degrees(self) -> NDArray[np.int32]:
        """Return the number of edges of each row, on the host."""
        found: NDArray[np.int32] = memory.read(self.degrees)
        return found

    def at_words(self) -> NDArray[Any]:
        """Return the offsets at words of vertices, for a single range, on the host."""
        places = memory.upload(word_ends(self.degrees.size).astype(np.int32))
        found: NDArray[Any] = memory.read(taken(closed_offsets(self.degrees), places))
        return found

    def sums(
        self,
        edges: tuple[Array, Array, Array | None],
        first: int = 0,
        vertices: NDArray[np.int32] | None = None,
    ) -> NDArray[np.uint64]:
        """Return the sums of `sums_of_edges`; arrays may be longer than the edges.

        Parameters
        ----------
        edges : tuple of array
            Sources, rows in given order, and weights or None.
        first : int
            The number of the first row.
        vertices : ndarray of int32, optional
            The vertex of each number. Default: numbers are vertices.
        """
        (ends, numbers, weights), size = edges, self.size
        given = max(self.slices.manifest.given_count, 1)
        offsets, sums = closed_offsets(self.degrees), memory.filled((12,), 0, np.int64)
        known = first, given, sums
        of = (
            memory.empty((0,), np.int32)
            if vertices is None
            else memory.upload(vertices)
        )
        arrays = offsets, ends, numbers
        memory.launch_over(gpu_part_kernels.add_slots, size, *arrays, of, *known)
        if weights is not None:
            bits = bits_of(weights)
            memory.launch_over(
                gpu_part_kernels.add_weights, size, *arrays, bits, *known
            )
        found: NDArray[np.uint64] = memory.read(sums).view(np.uint64)
        return found

    def _send(self, name: str, ranges: Sequence[tuple[int, int]], made: Array) -> None:
        at = 0
        for begin, end in ranges:
            self.slices.upload(name, begin, end, made, at)
            at += end - begin

    def read(self, name: str, more: int = 0) -> Array:
        """Return "sources", "rows" or "weights" of the edges, with spare room.

        Parameters
        ----------
        name : str
        more : int
            Number of spare elements at the end.

        Raises
        ------
        FileFormatError
            If slices are missing or altered, or contradict each other.
        """
        manifest, size = self.slices.manifest, self.size
        dtype = np.dtype(manifest.arrays[name].dtype).newbyteorder("=")
        made = memory.empty((size + more,), dtype)
        self._send(name, self.spans, made)
        if name != "weights" and size:
            bound = manifest.vertex_count if name == "sources" else row_bound(manifest)
            if count_inside(made, 0, size, 0, bound) != size:
                require_in_range(self.slices, name, memory.read(made)[:size])
        return made


def read_on_gpu(slices: Slices) -> EdgeList:
    """Read a whole graph that is stored without an order; see `checks`.

    Raises
    ------
    FileFormatError
        If slices are missing or altered, or contradict each other.
    """
    manifest = slices.manifest
    rows = RowsOnGpu.of(slices, ranges_of_sides(manifest))
    require_words(slices, rows.at_words(), read_words(slices))
    ends, numbers = rows.read("sources"), rows.read("rows")
    require_between_sides(slices, rows.spans, partial(count_inside, ends))
    weights = rows.read("weights") if "weights" in manifest.arrays else None
    outs = slices.read("outs") if manifest.directed else None
    found = rows.sums((ends, numbers, weights))
    require_sums(slices, found + sums_of_vertices(slices, outs, None))
    is_plain = manifest.directed and not _are_moved(numbers)
    row_edges = GpuRowEdges(
        closed_offsets(rows.degrees),
        ends,
        manifest.directed,
        None if is_plain else lambda: numbers,
        max(manifest.given_count, 1),
    )
    known: dict[str, Any] = {
        "digest": manifest.digest,
        "weights_digest": manifest.weights_digest,
    }
    if outs is not None:
        dtype = offset_dtype(manifest.edge_count)
        known["out_degree"] = outs.astype(dtype, copy=False)
    edges = GpuRowEdgeList(row_edges, weights, known)
    edges.names = read_names(slices)
    edges.sides = manifest.sides
    return edges


def _are_moved(numbers: Array) -> bool:
    """Whether the order of slots is not the given order."""
    found = memory.filled((1,), 0, np.int32)
    memory.launch_over(gpu_edge_kernels.find_moved, numbers.size, numbers, found)
    return bool(memory.read(found)[0])
