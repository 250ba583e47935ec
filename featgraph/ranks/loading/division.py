"""Owners of vertices by words of 32 numbers, for loops over edges.

Each word has one owner, so that loops need no search for the range of an end. If the
ranges of a partition do not begin at words, vertices get other numbers while edges are
sent to their owners: each range begins at the next word, and some numbers stay unused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.loading.given import Chunk

__all__ = ["Division"]

Array = npt.NDArray[Any]


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
