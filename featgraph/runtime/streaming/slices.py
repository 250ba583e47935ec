"""Rows of edges cut into slices, each of which fits a buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["WORD", "Slice", "cut_rows"]

#: Slices are cut at words of sets, so that a part of a set is a range of its words.
WORD = 32


@dataclass(frozen=True)
class Slice:
    """Whole rows of consecutive vertices.

    Attributes
    ----------
    number : int
        Which slice it is.
    first, last : int
        Its vertices, without the last.
    begin, end : int
        Its edges, by their places in the rows, without the last.
    fits : bool
        Whether a buffer takes them; the rows of 32 vertices may be too long.
    """

    number: int
    first: int
    last: int
    begin: int
    end: int
    fits: bool

    @property
    def edge_count(self) -> int:
        """How many edges it has."""
        return self.end - self.begin

    @property
    def words(self) -> tuple[int, int]:
        """The words of a set that have its vertices, without the last."""
        return self.first // WORD, -(-self.last // WORD)


def cut_rows(
    offsets: npt.NDArray[np.integer], capacity: int, most_rows: int
) -> list[Slice]:
    """Return slices of at most so many edges, and at most so many vertices.

    They have all rows between them, in order. 32 vertices are a slice of their own
    though they have more.

    Parameters
    ----------
    offsets : ndarray of shape (V + 1,)
        Where the row of each vertex begins.
    capacity : int
        Edges that a buffer takes.
    most_rows : int
        Vertices that a list takes.
    """
    count = offsets.size - 1
    bounds = np.append(np.arange(0, count, WORD), count)
    begins = offsets[bounds].astype(np.int64)
    most_words = max(most_rows // WORD, 1)
    found: list[Slice] = []
    word, words = 0, bounds.size - 1
    while word < words:
        first = int(begins[word])
        behind = int(np.searchsorted(begins, first + capacity, "right")) - 1
        behind = min(max(behind, word + 1), word + most_words, words)
        end = int(begins[behind])
        ends = int(bounds[word]), int(bounds[behind])
        found.append(Slice(len(found), *ends, first, end, end - first <= capacity))
        word = behind
    return found
