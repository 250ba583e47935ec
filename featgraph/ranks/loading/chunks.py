"""The edges given to a rank in chunks, and the owners of their ends.

`Division` has the owners of vertices by words of 32 numbers, for loops over edges. Each
word has one owner, so that loops need no search for the range of an end. If the ranges
of a partition do not begin at words, vertices get other numbers while edges are sent to
their owners: each range begins at the next word, and some numbers stay unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition

__all__ = ["Chunk", "Division", "EdgeChunks"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges in given order.

    Attributes
    ----------
    sources, targets : ndarray of integers
    weights : ndarray or None
    rows : int or ndarray of int64
        Row in given order of each edge, or of the first one if rows are consecutive.
    """

    sources: Array
    targets: Array
    weights: Array | None
    rows: int | Array = 0

    @property
    def size(self) -> int:
        """Number of edges."""
        return int(self.sources.size)

    @property
    def all_rows(self) -> Array:
        """Row in given order of each edge."""
        if isinstance(self.rows, int):
            return np.arange(self.rows, self.rows + self.size)
        return self.rows

    def at(self, places: Array) -> Chunk:
        """Return the edges at some indices."""
        weights = None if self.weights is None else self.weights[places]
        first, rows = self.rows, places
        rows = first[places] if isinstance(first, np.ndarray) else first + places
        return Chunk(self.sources[places], self.targets[places], weights, rows)

    def part(self, begin: int, end: int) -> Chunk:
        """Return the edges from `begin` up to `end`."""
        some = slice(begin, end)
        weights = None if self.weights is None else self.weights[some]
        rows = self.rows
        return Chunk(
            self.sources[some],
            self.targets[some],
            weights,
            rows[some] if isinstance(rows, np.ndarray) else rows + begin,
        )


@dataclass(eq=False)
class EdgeChunks:
    """The edges of a graph that were given to this rank.

    Attributes
    ----------
    chunks : list of Chunk
        Checked edges, whose ends are vertices. They are released when they are sent.
    vertex_count : int
    directed : bool
    weights_dtype : dtype or None
    sides : tuple of int, or None
    is_on_gpu : bool
        Whether the arrays are on the GPU.
    """

    chunks: list[Chunk]
    vertex_count: int
    directed: bool
    weights_dtype: np.dtype[Any] | None
    sides: tuple[int, ...] | None = None
    is_on_gpu: bool = False

    @property
    def size(self) -> int:
        """Number of edges given to this rank."""
        return sum(chunk.size for chunk in self.chunks)

    def parts(self, most: int) -> Iterator[Chunk]:
        """Yield all edges in chunks of at most `most`."""
        for chunk in self.chunks:
            for begin in range(0, chunk.size, most):
                yield chunk.part(begin, min(begin + most, chunk.size))

    def take(self, most: int) -> Iterator[Chunk]:
        """Yield all edges in chunks of at most `most`, and release them."""
        self.chunks.reverse()
        while self.chunks:
            chunk = self.chunks.pop()
            for begin in range(0, chunk.size, most):
                yield chunk.part(begin, min(begin + most, chunk.size))


@dataclass(frozen=True, eq=False)
class Division:
    """A numbering of vertices in which each rank owns whole words.

    Attributes
    ----------
    partition : Partition
    firsts : ndarray of int64, shape (P + 1,)
        The first number of each rank, a multiple of 32, and the end of all numbers.
    numbers : ndarray of int32, shape (V,), or None
        The number of each vertex, by end of an edge; None: ends are numbers already.
    """

    partition: Partition
    firsts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, partition: Partition, places: Array | None = None) -> Division:
        """Return the division of a partition.

        Parameters
        ----------
        partition : Partition
        places : ndarray of int32, shape (V,), optional
            The place of each vertex in the order of the partition, by end of an edge.
            Default: ends are places already.
        """
        cuts, count = partition.cuts, partition.vertex_count
        if bool(((cuts % WORD == 0) | (cuts == count)).all()):
            return cls(partition, cuts, places)
        sizes = np.diff(cuts)
        firsts = np.concatenate(([0], np.cumsum(-(-sizes // WORD) * WORD)))
        shifts = (firsts - cuts)[:-1].astype(np.int32)
        numbers = np.arange(count, dtype=np.int32) + np.repeat(shifts, sizes)
        return cls(partition, firsts, numbers if places is None else numbers[places])

    @property
    def size(self) -> int:
        """The end of all numbers."""
        return int(self.firsts[-1])

    @property
    def owners(self) -> npt.NDArray[np.int32]:
        """The rank that owns the vertices of each word."""
        words = np.diff(-(-self.firsts // WORD))
        return np.repeat(np.arange(words.size, dtype=np.int32), words)

    @property
    def vertices(self) -> npt.NDArray[np.int32] | None:
        """The vertex of each number, 0 for unused ones; None if they are equal."""
        order, firsts = self.partition.order, self.firsts
        if firsts is self.partition.cuts:
            return order
        made = np.zeros(self.size, np.int32)
        for (begin, end), first in zip(
            pairwise(self.partition.cuts.tolist()), firsts.tolist(), strict=False
        ):
            some = slice(first, first + end - begin)
            made[some] = np.arange(begin, end) if order is None else order[begin:end]
        return made

    def own(self, rank: int) -> tuple[int, int]:
        """Return the first number of a rank's vertices, and the end of its numbers."""
        first, cuts = int(self.firsts[rank]), self.partition.cuts
        return first, first + int(cuts[rank + 1] - cuts[rank])

    def renumbered(self, chunk: Chunk) -> Chunk:
        """Return a chunk whose ends are replaced by their numbers."""
        numbers = self.numbers
        if numbers is None:
            return chunk
        ends = numbers[chunk.sources], numbers[chunk.targets]
        return Chunk(*ends, chunk.weights, chunk.rows)

    def places(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the places, in the partition's order, of ascending numbers."""
        cuts, firsts = self.partition.cuts, self.firsts
        if firsts is cuts:
            return numbers
        # In the dtype of `numbers`, or all of them would be converted.
        counts = np.diff(np.searchsorted(numbers, firsts.astype(numbers.dtype)))
        return numbers + np.repeat((cuts - firsts)[:-1].astype(np.int32), counts)
