"""The edges given to a rank, before they are sent to their owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass

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
class Given:
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
