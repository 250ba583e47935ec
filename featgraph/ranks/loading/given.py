"""The edges that a rank happens to have, before they are with their owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Chunk", "Given"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges in given order.

    Attributes
    ----------
    sources, targets : ndarray of integers
    weights : ndarray or None
    rows : int or ndarray of int64
        Row in given order of each edge, or of the first, if others follow it.
    """

    sources: Array
    targets: Array
    weights: Array | None
    rows: int | Array = 0

    @property
    def size(self) -> int:
        """How many edges there are."""
        return int(self.sources.size)

    @property
    def all_rows(self) -> Array:
        """Row in given order of each edge."""
        if isinstance(self.rows, int):
            return np.arange(self.rows, self.rows + self.size)
        return self.rows

    def at(self, places: Array) -> Chunk:
        """Return those at some places."""
        weights = None if self.weights is None else self.weights[places]
        first, rows = self.rows, places
        rows = first[places] if isinstance(first, np.ndarray) else first + places
        return Chunk(self.sources[places], self.targets[places], weights, rows)

    def part(self, begin: int, end: int) -> Chunk:
        """Return some of them."""
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
class Given:
    """What a rank has been given of a graph.

    Attributes
    ----------
    chunks : list of Chunk
        Checked: their ends are vertices. They are let go of when they are sent.
    vertex_count : int
    directed : bool
    weights_dtype : dtype or None
    sides : tuple of int, or None
    is_on_gpu : bool
        Whether arrays are the dialect's.
    """

    chunks: list[Chunk]
    vertex_count: int
    directed: bool
    weights_dtype: np.dtype[Any] | None
    sides: tuple[int, ...] | None = None
    is_on_gpu: bool = False

    @property
    def size(self) -> int:
        """How many edges this rank has."""
        return sum(chunk.size for chunk in self.chunks)

    def parts(self, most: int) -> Iterator[Chunk]:
        """Yield all edges, as many at a time as given."""
        for chunk in self.chunks:
            for begin in range(0, chunk.size, most):
                yield chunk.part(begin, min(begin + most, chunk.size))

    def take(self, most: int) -> Iterator[Chunk]:
        """Yield them likewise, and let go of them."""
        self.chunks.reverse()
        while self.chunks:
            chunk = self.chunks.pop()
            for begin in range(0, chunk.size, most):
                yield chunk.part(begin, min(begin + most, chunk.size))
