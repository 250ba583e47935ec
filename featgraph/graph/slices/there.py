"""Rows of a folder of slices on the GPU: no array of the host has all of them.

What a reader of the host checks of offsets, sources and rows is checked on the GPU.
Import this module inside functions only: it imports the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.arrays import edge_kernels, memory, sorting
from featgraph.arrays.parts import kernels
from featgraph.arrays.parts.row_edges import GpuRowEdges
from featgraph.arrays.values import offset_dtype
from featgraph.graph.building.edges import EdgeList
from featgraph.graph.building.gpu_row_edges import GpuRowEdgeList
from featgraph.graph.slices.checks import require_in_range, row_bound
from featgraph.graph.slices.files import Slices
from featgraph.graph.slices.names import read_names
from featgraph.graph.slices.read import (
    PlacedRows,
    joined,
    ranges_of_sides,
    require_between_sides,
    require_offsets,
)

__all__ = ["RowsThere", "closed_offsets", "count_inside", "read_there"]

#: An array of the dialect.
Array = Any


def count_inside(values: Array, begin: int, end: int, low: int, high: int) -> int:
    """Return how many of some values are in a range; waits for the GPU."""
    found = memory.filled((1,), 0, np.int64)
    given = values, begin, end, low, high, found, 0
    memory.launch_over(kernels.count_inside, end - begin, *given)
    return int(memory.read(found)[0])


def closed_offsets(degrees: Array) -> Array:
    """Return where rows of some lengths begin, and where the last one ends."""
    before, total = sorting.scanned(degrees)
    dtype = offset_dtype(int(memory.read(total)[0]))
    offsets = memory.empty((degrees.size + 1,), dtype)
    memory.launch_over(kernels.close_offsets, offsets.size, before, total, offsets)
    return offsets


@dataclass(frozen=True, eq=False)
class RowsThere(PlacedRows):
    """Such edges that are read to the GPU.

    Attributes
    ----------
    degrees : array of int32
        How many edges each row has.
    """

    degrees: Array

    @classmethod
    def of(cls, slices: Slices, ranges: Sequence[tuple[int, int]]) -> RowsThere:
        """Return those of the places of some ranges.

        Raises
        ------
        FileFormatError
            Offsets that are missing or altered, or do not ascend.
        """
        degrees = memory.empty((sum(last - first for first, last in ranges),), np.int32)
        spans, at = [], 0
        for first, last in ranges:
            offsets = memory.empty((last - first + 1,), np.int64)
            slices.send("offsets", first, last + 1, offsets)
            begin, end = (
                int(slices.read("offsets", place, place + 1)[0])
                for place in (first, last)
            )
            descents = memory.filled((2,), 0, np.int64)
            count = last - first
            memory.launch_over(kernels.count_descents, count, offsets, descents)
            ascends = not memory.read(descents)[0]
            require_offsets(slices, (first, last), (begin, end), ascends)
            memory.launch_over(kernels.put_lengths, count, offsets, at, degrees)
            spans.append((begin, end))
            at += count
        return cls(slices, ranges, spans, degrees)

    def of_vertices(self, name: str) -> Array:
        """Return what is stored of each vertex, on the GPU."""
        dtype = np.dtype(self.slices.manifest.arrays[name].dtype).newbyteorder("=")
        made = memory.empty(self.degrees.shape, dtype)
        self._send(name, self.ranges, made)
        return made

    def _send(self, name: str, ranges: Sequence[tuple[int, int]], made: Array) -> None:
        at = 0
        for begin, end in ranges:
            self.slices.send(name, begin, end, made, at)
            at += end - begin

    def on_host(self, name: str) -> NDArray[Any]:
        """Return "rows" of the edges on the host, in the type that is stored."""
        return joined([self.slices.read(name, *span) for span in self.spans])

    def read(self, name: str, more: int = 0) -> Array:
        """Return "sources", "rows" or "weights" of the edges, with room behind them.

        Parameters
        ----------
        name : str
        more : int
            For how many edges there is room.

        Raises
        ------
        FileFormatError
            Slices that are missing or altered, or contradict each other.
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


def read_there(slices: Slices) -> EdgeList:
    """Read a whole graph without an order of its own.

    Raises
    ------
    FileFormatError
        Slices that are missing or altered, or contradict each other.
    """
    manifest = slices.manifest
    rows = RowsThere.of(slices, ranges_of_sides(manifest))
    ends, numbers = rows.read("sources"), rows.read("rows")
    require_between_sides(slices, rows.spans, partial(count_inside, ends))
    is_plain = manifest.directed and not _are_moved(numbers)
    weights = rows.read("weights") if "weights" in manifest.arrays else None
    slices.read("words")  # altered ones are not for ranks alone to find
    there = GpuRowEdges(
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
    if manifest.directed:
        dtype = offset_dtype(manifest.edge_count)
        known["out_degree"] = slices.read("outs").astype(dtype, copy=False)
    edges = GpuRowEdgeList(there, weights, known)
    edges.names = read_names(slices)
    edges.sides = manifest.sides
    return edges


def _are_moved(numbers: Array) -> bool:
    """Whether edges were given in another order than that of their slots."""
    found = memory.filled((1,), 0, np.int32)
    memory.launch_over(edge_kernels.find_moved, numbers.size, numbers, found)
    return bool(memory.read(found)[0])
