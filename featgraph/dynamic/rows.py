"""Rows of a pool as the host reads them, and helpers of loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.interrupts import import_whole

__all__ = [
    "SHARED",
    "Array",
    "HostRows",
    "Queue",
    "Spec",
    "Threads",
    "edges_of",
    "living_slots",
    "numba_kernels",
    "ranges",
]

Array: TypeAlias = NDArray[Any]
#: Type and width of each column of the edges; None for scalars.
Spec: TypeAlias = dict[str, tuple[np.dtype[Any], int | None]]

#: Loops over fewer entries and rows are run by one thread.
SHARED = 1 << 14
_PIECES = 16


@cache
def numba_kernels() -> Any:
    """Return the kernels of the host, which load Numba."""
    from featgraph.dynamic import kernels_cpu

    return kernels_cpu


class Queue:
    """Numbers that leave in the order in which they came.

    Parameters
    ----------
    dtype : dtype
    """

    __slots__ = ("_array", "_first", "_last")

    def __init__(self, dtype: Any) -> None:
        self._array, self._first, self._last = self._empty(0, dtype), 0, 0

    @staticmethod
    def _empty(size: int, dtype: Any) -> Any:
        return np.empty(size, dtype)

    def _part(self, first: int, count: int) -> Any:
        return self._array[first : first + count]

    def _write(self, numbers: Any) -> None:
        self._part(self._last, len(numbers))[:] = numbers

    def __len__(self) -> int:
        return self._last - self._first

    def next(self, count: int, skip: int = 0) -> Any:
        """Return the next numbers; all where there are fewer. They stay."""
        first = self._first + skip
        return self._part(first, min(count, self._last - first))

    def drop(self, count: int) -> None:
        """Remove the next numbers."""
        self._first += count

    def reserve(self, count: int) -> None:
        """Make room for so many numbers; this alone can fail."""
        if self._last + count > self._array.size:
            size, kept = len(self), self.next(len(self))
            self._array = self._empty(2 * (size + count), self._array.dtype)
            self._first = self._last = 0
            if size:
                self.put(kept)

    def put(self, numbers: Any) -> None:
        """Add numbers, for which there is room."""
        self._write(numbers)
        self._last += numbers.size if hasattr(numbers, "size") else len(numbers)

    def copy(self) -> Queue:
        """Return a queue with the same numbers."""
        made = type(self)(self._array.dtype)
        made.reserve(len(self) or 1)
        if len(self):
            made.put(self.next(len(self)))
        return made


class Threads:
    """Threads that share the loops of a batch.

    All have begun before the first loop: later there is none that could not be had.

    Parameters
    ----------
    work : int
        How many entries and rows there are.
    """

    def __init__(self, work: int) -> None:
        self._pool: ThreadPoolExecutor | None = None
        count = import_whole("numba").get_num_threads() if work >= SHARED else 1
        if count > 1:
            pool = ThreadPoolExecutor(count, "featgraph-rows")
            barrier = Barrier(count)
            try:
                for _ in range(count):
                    pool.submit(barrier.wait)
                self._pool = pool
            except RuntimeError:  # no more threads
                barrier.abort()
                pool.shutdown()
        self.count = 1 if self._pool is None else count

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def share(self, bounds: Any, work: Callable[..., object], *arguments: Any) -> None:
        """Call ``work(part, low, high, *arguments)`` for each part of a range."""
        if self._pool is None:  # then the range is one part
            work(0, *bounds, *arguments)
            return
        parts = zip(range(len(bounds)), bounds[:-1], bounds[1:], strict=False)
        # Waits for all of them, also where one failed.
        for done in [self._pool.submit(work, *part, *arguments) for part in parts]:
            done.result()

    def beside(self, work: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Begin a concurrent call; return a function that waits for its result."""
        if self._pool is None:
            result = work(*arguments)
            return lambda: result
        return self._pool.submit(work, *arguments).result

    def bounds(self, count: int, first: Array | None = None) -> list[int]:
        """Cut a range into parts, each with as many rows and entries."""
        if self.count == 1 or count < _PIECES:
            return [0, count]
        shares = np.arange(_PIECES + 1) / _PIECES
        if first is None:
            return [int(x) for x in shares * count]
        work = first + np.arange(first.size)
        cuts = np.searchsorted(work, shares[1:-1] * work[-1])
        return [0, *map(int, cuts), count]


class HostRows:
    """Rows in memory of the host; those of a GPU have the same methods.

    `placed` and `taken` bring arrays to where the rows are, where a `queue` is made.
    """

    queue: Any = Queue
    placed: Any = staticmethod(np.asarray)

    starts: Array
    stops: Array
    ends: Array
    numbers: Array
    columns: dict[str, Array]
    ids: Array | None
    hubs: Array
    length_counts: Array
    out_counts: Array
    longest_out: int

    def longest(self, vertex_count: int, has_out: bool, bound: int) -> tuple[int, int]:
        """Return the highest degree, and that below a bound; or of out-degrees."""
        top, counts = numba_kernels().top_of, self.length_counts
        most, below = top(counts, counts.size - 1), top(counts, bound - 1)
        if self.hubs.size:
            most = int((self.stops[self.hubs] - self.starts[self.hubs]).max())
        if has_out:
            most = max(most, self.longest_out)
            below = max(below, top(self.out_counts, min(self.longest_out, bound - 1)))
        return most, below

    def taken_at(self, name: str, places: Array) -> Array:
        """Return some entries of an array by its name, on the host."""
        return getattr(self, name)[places]  # type: ignore[no-any-return]

    def given_slots(
        self, vertex_count: int, bound: int, is_undirected: bool
    ) -> tuple[Array, Array]:
        """Return rows and slots of edges as given, in the order of insertion.

        Insertions are numbered below `bound`.
        """
        from featgraph.graph.building.kernels import order_of  # loads Numba

        slots, lengths = living_slots(self, vertex_count), self.lengths(vertex_count)
        rows = np.repeat(np.arange(vertex_count, dtype=np.int32), lengths)
        if is_undirected:
            is_given = self.numbers[slots] & 1 == 0
            rows, slots = rows[is_given], slots[is_given]
        numbers = (self.numbers[slots] >> 1).astype(np.int32)
        numbers -= numbers.min(initial=max(bound - 1, 0))
        order = order_of(numbers)
        return rows[order], slots[order]

    def edges_at(self, slots: Array) -> tuple[Array, Array, dict[str, Array], Any]:
        """Return ends, numbers, columns and ids of edges by slot."""
        columns = {name: column[slots] for name, column in self.columns.items()}
        ids = None if self.ids is None else self.ids[slots]
        return self.ends[slots], self.numbers[slots], columns, ids

    def rows_at(self, rows: Array, vertex_count: int) -> tuple[Array, Array, Array]:
        """Return starts, stops and ends on the host, at least of some rows."""
        return self.starts, self.stops, self.ends

    def edges_from(self, is_in_set: Array, vertex_count: int) -> tuple[Array, Array]:
        """Return other ends and rows of edges whose other ends are in a set."""
        kernels = numba_kernels()
        rows = self.starts[:vertex_count], self.stops, self.ends, is_in_set
        none = np.empty(0, np.int32)
        count = kernels.find_ends(*rows, none, none)
        targets, sources = np.empty((2, count), np.int32)
        if count:
            kernels.find_ends(*rows, targets, sources)
        return sources, targets

    def on_host(self) -> Any:
        """Return a pool that the host reads: this one."""
        return self

    @staticmethod
    def zeros(size: int, dtype: Any, width: int | None = None) -> Array:
        """Return an array in that memory, or one of rows."""
        return np.zeros(size if width is None else (size, width), dtype)

    def put(self, name: str, array: Any) -> None:
        """Write a `placed` array over one with a name; replace None, or by None."""
        if array is None or getattr(self, name) is None:
            setattr(self, name, array)
        else:
            getattr(self, name)[:] = array

    def taken(self, updates: Any) -> Any:
        """Return updates with arrays in that memory."""
        return updates

    def lengths(self, vertex_count: int) -> Array:
        """Return the number of edges of each vertex."""
        return self.stops[:vertex_count] - self.starts[:vertex_count]


def edges_of(pool: Any, rows: Array) -> tuple[Array, Array]:
    """Return the other ends of the edges of some rows, and the rows."""
    starts, stops = pool.taken_at("starts", rows), pool.taken_at("stops", rows)
    return pool.taken_at("ends", ranges(starts, stops)), np.repeat(rows, stops - starts)


def ranges(starts: Array, stops: Array) -> Array:
    """Return the numbers from each start up to its stop, one range behind another."""
    lengths = stops - starts
    shift = (stops - np.cumsum(lengths, dtype=np.int64)).astype(stops.dtype)
    ranges = np.repeat(shift, lengths)
    ranges += np.arange(ranges.size, dtype=ranges.dtype)
    return ranges


def living_slots(pool: Any, vertex_count: int) -> Array:
    """Return the slots with an edge, by row."""
    return ranges(pool.starts[:vertex_count], pool.stops[:vertex_count])
