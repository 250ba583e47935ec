"""Rows of a folder of slices, read to the GPU without a whole copy on the host.

The sums that check edges are computed on the GPU. Import this module inside functions
only: it imports the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.cached import cached_property
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
    require_in_range,
    row_bound,
    word_ends,
)
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.read import (
    PlacedRows,
    read_names,
    read_rows,
    require_edges,
    require_offsets,
)

__all__ = ["RowsOnGpu", "closed_offsets", "read_on_gpu"]

#: An array of the dialect.
Array = Any


def closed_offsets(degrees: Array) -> Array:
    """Return the offsets of rows, shape (V + 1,), from their lengths."""
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

    `degrees` is int32.
    """

    degrees: Array

    @cached_property
    def offsets(self) -> Array:
        """The offsets of rows, and the end of the last one."""
        return closed_offsets(self.degrees)

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
        """Return the offsets at words of all vertices, on the host."""
        places = memory.upload(word_ends(self.degrees.size).astype(np.int32))
        found: NDArray[Any] = memory.read(taken(self.offsets, places))
        return found

    def sums(
        self,
        edges: tuple[Array, Array, Array | None],
        first: int = 0,
        vertices: NDArray[np.int32] | None = None,
    ) -> NDArray[np.uint64]:
        """Return the sums over the edges, for `require_sums`."""
        (ends, numbers, weights), size = edges, self.size
        given = max(self.slices.manifest.given_count, 1)
        offsets, sums = self.offsets, memory.filled((12,), 0, np.int64)
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

    def read(self, name: str, more: int = 0, dtype: Any = None) -> Array:
        """Return "sources", "rows" or "weights" of the edges."""
        manifest, size, at = self.slices.manifest, self.size, 0
        stored = np.dtype(manifest.arrays[name].dtype).newbyteorder("=")
        made = memory.empty((size + more,), stored)
        for begin, end in self.spans:
            self.slices.upload(name, begin, end, made, at)
            at += end - begin
        if name != "weights" and size:
            bound = manifest.vertex_count if name == "sources" else row_bound(manifest)
            if self.count_inside(made, (0, size), 0, bound) != size:
                require_in_range(self.slices, name, memory.read(made)[:size])
        return made

    def count_inside(
        self, sources: Array, span: tuple[int, int], low: int, high: int
    ) -> int:
        """Count the sources of a range of edges that are from `low` to `high`."""
        (begin, end), found = span, memory.filled((1,), 0, np.int64)
        arguments = sources, begin, end, low, high, found, 0
        memory.launch_over(gpu_part_kernels.count_inside, end - begin, *arguments)
        return int(memory.read(found)[0])

    def renumbered(self, sources: Array, numbers: NDArray[np.int32]) -> Array:
        """Return ``numbers[sources]``."""
        return taken(memory.upload(numbers), sources)


def read_on_gpu(slices: Slices) -> EdgeList:
    """Read a whole graph that is stored without an order; see `checks`.

    Raises
    ------
    FileFormatError
        If slices are missing or altered, or contradict each other.
    """
    manifest, rows = slices.manifest, read_rows(slices, RowsOnGpu)
    ends, numbers = rows.read("sources"), rows.read("rows")
    weights = rows.read("weights") if "weights" in manifest.arrays else None
    outs, _ = require_edges(rows, (ends, numbers, weights))
    is_plain = manifest.directed and not _are_moved(numbers)
    row_edges = GpuRowEdges(
        rows.offsets,
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
