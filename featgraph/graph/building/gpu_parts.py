"""Rows of a rank's part of a graph, built on a GPU from a stream of all edges.

The edges come piece by piece (`Pieces`), and rows are sorted slab by slab
(`gpu_part_edges.slabs`), so that only the results have the length of the part's edges.
Each slab streams all edges again. `survey` streams them once, for counts and digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph.building import gpu_part_kernels
from featgraph.graph.building.gpu_edges import marked, taken
from featgraph.graph.building.gpu_part_edges import slabs

__all__ = [
    "Part",
    "Piece",
    "Pieces",
    "Survey",
    "Wanted",
    "renumbered",
    "sums_of_ends",
    "sums_of_values",
    "survey",
]

Array = Any


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of consecutive edges.

    Attributes
    ----------
    first : int
        The number of the first edge.
    sources, targets : arrays of int32
    weights : array or None
    """

    first: int
    sources: Array
    targets: Array
    weights: Array | None


#: Output arrays for other ends, numbers and weights of entries; None: not needed.
Columns = tuple[Array | None, Array | None, Array | None]
#: A function that returns an iterator over all edges, each time it is called.
Pieces = Callable[[], Iterator[Piece]]


@dataclass(frozen=True, eq=False)
class Survey:
    """Counts and digest of edges, on the host.

    Attributes
    ----------
    into : ndarray of int64
        Entry i is the number of edges into the targets v with ``v >> shift == i``.
    ends, weights : ndarray of uint64, shape (2,)
        Sums for digests.
    """

    into: npt.NDArray[np.int64]
    ends: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.uint64]


def survey(
    pieces: Pieces,
    counters: int,
    shift: int,
    directed: bool,
) -> Survey:
    """Count in-edges, and add up the sums of digests.

    Parameters
    ----------
    pieces : callable
    counters, shift : int
        Number of counters, and right shift from a target to its counter.
    directed : bool
    """
    into = arrays.filled((counters,), 0, np.int64)
    sums = [arrays.filled((2,), 0, np.int64) for _ in range(2)]
    for piece in pieces():
        ends, size = (piece.sources, piece.targets), piece.targets.size
        arrays.launch_over(
            gpu_part_kernels.count_into, size, *ends, directed, shift, into
        )
        given = *ends, piece.first, sums[0]
        arrays.launch_over(gpu_part_kernels.add_ends, size, *given)
        if piece.weights is not None:
            width = piece.weights.dtype.itemsize
            bits = piece.weights.view(np.dtype(f"u{width}"))
            arrays.launch_over(
                gpu_part_kernels.add_values, size, bits, piece.first, sums[1]
            )
    return Survey(arrays.read(into), *(arrays.read(a).view(np.uint64) for a in sums))


def count_within(sources: Array, targets: Array, sides: tuple[int, ...]) -> int:
    """Return the number of edges on the GPU with both ends in one side."""
    found = arrays.filled((2,), 0, np.int64)
    bounds = arrays.upload(np.cumsum(sides, dtype=np.int64))
    ends = sources, targets
    arrays.launch_over(
        gpu_part_kernels.count_within, targets.size, *ends, bounds, found
    )
    return int(arrays.read(found)[0])


def sums_of_ends(sources: Array, targets: Array) -> npt.NDArray[np.uint64]:
    """Return the sums for the digest of ends: uint64, shape (2,)."""
    sums = arrays.filled((2,), 0, np.int64)
    arrays.launch_over(
        gpu_part_kernels.add_ends, targets.size, sources, targets, 0, sums
    )
    return arrays.read(sums).view(np.uint64)


def sums_of_values(values: Array) -> npt.NDArray[np.uint64]:
    """Return the sums for the digest of values: uint64, shape (2,)."""
    sums = arrays.filled((2,), 0, np.int64)
    bits = values.view(np.dtype(f"u{values.dtype.itemsize}"))
    arrays.launch_over(gpu_part_kernels.add_values, bits.size, bits, 0, sums)
    return arrays.read(sums).view(np.uint64)


def renumbered(pieces: Pieces, numbers: Array) -> Pieces:
    """Return the same stream of edges with renumbered vertices."""

    def passing() -> Iterator[Piece]:
        for piece in pieces():
            ends = taken(numbers, piece.sources), taken(numbers, piece.targets)
            yield Piece(piece.first, *ends, piece.weights)

    return passing


@dataclass(frozen=True)
class Wanted:
    """The entries of edges that a part has: see `gpu_part_kernels`.

    Attributes
    ----------
    first, last : int
        The range of own vertices.
    vertex_count, given_count : int
        Vertices and given edges of the whole graph.
    is_both : bool
        Whether the part has all edges at its own vertices, or only the edges into them.
    directed : bool
    """

    first: int
    last: int
    vertex_count: int
    given_count: int
    is_both: bool
    directed: bool

    @property
    def own(self) -> int:
        """Number of own vertices."""
        return self.last - self.first


class Part:
    """The part of a rank, built from streamed edges.

    Parameters
    ----------
    pieces : callable
        The stream of all edges.
    wanted : Wanted

    Attributes
    ----------
    wanted : Wanted
    ghosts : ndarray of int32
        Ghosts, ascending.
    offsets : array
        Offsets of the rows along in-edges.
    on_host : ndarray
        The same offsets on the host.
    out : ndarray of int32
        Out-degrees of own vertices, if directed.
    """

    def __init__(self, pieces: Pieces, wanted: Wanted) -> None:
        self._pieces, self.wanted = pieces, wanted
        count, own = wanted.vertex_count, wanted.own
        marks = arrays.filled((count,), 0, np.uint8)
        degrees = arrays.filled((count,), 0, np.int32)
        out = arrays.filled((max(own, 1),), 0, np.int32)
        kind = wanted.is_both, wanted.directed
        for piece in pieces():
            given = piece.sources, piece.targets, wanted.first, wanted.last
            size = piece.targets.size
            arrays.launch_over(
                gpu_part_kernels.mark_part, size, *given, *kind, marks, degrees, out
            )
        ghosts = marked(marks)
        del marks
        local_count = own + ghosts.size
        numbers = arrays.empty((local_count,), np.int32)
        given = wanted.first, ghosts, own, numbers
        arrays.launch_over(gpu_part_kernels.list_own, local_count, *given)
        before, total = sorting.scanned(taken(degrees, numbers))
        self._dtype = offset_dtype(int(arrays.read(total)[0]))
        self.offsets = arrays.empty((local_count + 1,), self._dtype)
        arrays.launch_over(
            gpu_part_kernels.close_offsets, local_count + 1, before, total, self.offsets
        )
        self.ghosts, self.on_host = arrays.read(ghosts), arrays.read(self.offsets)
        self.out = arrays.read(out)[:own]

    def rows(self, dtype: Any) -> tuple[Array, Array | None]:
        """Return the other end of each slot, and its weight in a dtype, or None."""
        ends = arrays.empty((self._size,), np.int32)
        weights = None if dtype is None else arrays.empty((self._size,), dtype)
        local, at = self._local(), 0
        for begin, end, count in slabs(self.on_host):
            others = arrays.empty((count,), np.int32)
            values = None if weights is None else arrays.empty((count,), dtype)
            rows = self._listed(local, (begin, end), (others, None, values))
            order = sorting.sort_stably(rows, end - begin)[1]
            arrays.launch_over(
                gpu_part_kernels.put_taken, count, others, order, at, ends
            )
            if weights is not None:
                given = values, order, at, weights
                arrays.launch_over(gpu_part_kernels.put_taken, count, *given)
            at += count
        return ends, weights

    def numbers(self) -> Array:
        """Return the row in given order of each slot's edge, plus E_given if a twin."""
        most = self.wanted.given_count * (1 if self.wanted.directed else 2)
        dtype = offset_dtype(most)
        made, at = arrays.empty((self._size,), dtype), 0
        local = self._local()
        for begin, end, count in slabs(self.on_host):
            numbers = arrays.empty((count,), dtype)
            rows = self._listed(local, (begin, end), (None, numbers, None))
            order = sorting.sort_stably(rows, end - begin)[1]
            arrays.launch_over(
                gpu_part_kernels.put_taken, count, numbers, order, at, made
            )
            at += count
        return made

    def forget(self) -> None:
        """Release the stream of edges: no more rows can be built."""
        self._pieces = lambda: iter(())

    def _local(self) -> Array:
        """Return the local number of each vertex of the whole graph."""
        wanted, ghosts = self.wanted, arrays.upload(self.ghosts)
        local = arrays.filled((wanted.vertex_count,), gpu_part_kernels.ABSENT, np.int32)
        given = wanted.first, ghosts, wanted.own, local
        arrays.launch_over(
            gpu_part_kernels.number_own, wanted.own + ghosts.size, *given
        )
        return local

    @property
    def _size(self) -> int:
        return int(self.on_host[-1])

    def _listed(self, local: Array, slab: tuple[int, int], columns: Columns) -> Array:
        """Stream all edges; return the row of each entry of a slab, and fill columns.

        Rows are relative to the first row of the slab.
        """
        others, numbers, values = columns
        wanted, at = self.wanted, 0
        count = next(array.size for array in columns if array is not None)
        rows = arrays.empty((count,), np.int32)
        kind = wanted.own, wanted.is_both, wanted.directed
        if not wanted.is_both:  # rows of ghosts are empty
            slab = slab[0], min(slab[1], wanted.own)
        none = arrays.empty((0,), np.int32)
        others = none if others is None else others
        numbers = none if numbers is None else numbers
        for piece in self._pieces():
            size = piece.targets.size
            flags = arrays.empty((size,), np.uint8)
            given = piece.sources, piece.targets, local, *kind, *slab
            arrays.launch_over(gpu_part_kernels.flag_entries, size, *given, flags)
            places, total = sorting.scanned(flags)
            more = places, at, piece.first, wanted.given_count, rows, others, numbers
            arrays.launch_over(gpu_part_kernels.emit_entries, size, *given, *more)
            if values is not None:
                listed = places, at, piece.weights, values
                arrays.launch_over(gpu_part_kernels.emit_values, size, *given, *listed)
            at += int(arrays.read(total)[0])
        return rows
