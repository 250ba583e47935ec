"""Queues in memory of the GPU: free runs of a pool, and free ids."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from featgraph.cuda import arrays, foreign
from featgraph.dynamic.kernels_cpu import CLASS_COUNT
from featgraph.dynamic.rows import Array, Queue

__all__ = ["GpuQueue", "GpuRuns", "bits_of", "part_of", "read_back", "width_of"]


def read_back(array: Any) -> Array:
    """Return a copy on the host."""
    if isinstance(array, np.ndarray):
        return array
    return arrays.read(array) if array.size else np.empty(array.shape, array.dtype)


def part_of(array: Any, first: int, count: int) -> Any:
    """Return some entries of an array, in the same memory."""
    if isinstance(array, np.ndarray):
        return array[first : first + count].copy()
    item = array.dtype.itemsize
    return foreign.strided(array, (int(count),), (item,), int(first) * item)


def width_of(array: Any) -> int:
    """Return how many elements a row of an array has."""
    return 1 if array.ndim == 1 else int(array.shape[1])


def bits_of(array: Any) -> Any:
    """Return an array as flat unsigned integers."""
    item = array.dtype.itemsize
    return arrays.piece_of(array, 0, array.size * item, item)


class GpuQueue(Queue):
    """Numbers in memory of the GPU, which leave in the order in which they came."""

    __slots__ = ()

    @staticmethod
    def _empty(size: int, dtype: Any) -> Any:
        return arrays.empty((size,), dtype)

    def _part(self, first: int, count: int) -> Any:
        return part_of(self._array, first, count)

    def _write(self, numbers: Any) -> None:
        arrays.copy(self._part(self._last, numbers.size), numbers)


#: Runs that a queue has room for at least: it moves where it has none.
_SPARE = 1024


class GpuRuns:
    """The queues of free runs of all classes, in one array.

    Attributes
    ----------
    table : int64, (3, classes)
        Where the runs of a class begin, where they end, and up to where there is room.
    runs : array of int64
    """

    def __init__(self) -> None:
        self.table = np.zeros((3, CLASS_COUNT), np.int64)
        self.runs = arrays.empty((1,), np.int64)

    @property
    def counts(self) -> Array:
        """How many runs of each class are free."""
        return self.table[1] - self.table[0]  # type: ignore[no-any-return]

    def __getitem__(self, size: int) -> _Runs:
        return _Runs(self, size)

    def reserve(self, more: Array) -> None:
        """Make room for more runs of each class."""
        if (self.table[1] + more <= self.table[2]).all():
            return
        counts, room = self.counts, 2 * (self.counts + more) + _SPARE
        begins = np.cumsum(room) - room
        runs = arrays.empty((max(int(room.sum()), 1),), np.int64)
        for size in np.flatnonzero(counts).tolist():
            old = part_of(self.runs, self.table[0, size], counts[size])
            arrays.copy(part_of(runs, begins[size], counts[size]), old)
        self.table, self.runs = np.stack([begins, begins + counts, begins + room]), runs

    def copy(self) -> GpuRuns:
        """Return queues with the same runs."""
        made = copy(self)
        made.table = self.table.copy()
        made.reserve(1 + self.table[2] - self.table[1])
        return made

    def on_host(self) -> list[Queue]:
        """Return the queues on the host."""
        found = []
        for size in range(CLASS_COUNT):
            queue, runs = Queue(np.int64), self[size]
            queue.reserve(len(runs))
            queue.put(runs.next(len(runs)))
            found.append(queue)
        return found


class _Runs:
    """The free runs of a class, as the host reads them."""

    def __init__(self, queues: GpuRuns, size: int) -> None:
        self._runs, (self._first, last) = queues.runs, queues.table[:2, size].tolist()
        self._count = last - self._first

    def __len__(self) -> int:
        return int(self._count)

    def next(self, count: int, skip: int = 0) -> Array:
        first, count = self._first + skip, min(count, len(self) - skip)
        return read_back(part_of(self._runs, first, count))
