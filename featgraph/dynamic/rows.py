"""Rows of a pool as the host reads them, and helpers of loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache
from threading import Barrier
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.interrupts import import_whole

__all__ = [
    "HUB",
    "SHARED",
    "Array",
    "HostMemory",
    "HostRows",
    "Queues",
    "Spec",
    "Threads",
    "edges_of",
    "grown",
    "living_slots",
    "numba_kernels",
    "ranges",
]

Array: TypeAlias = NDArray[Any]
#: Type and width of each column of the edges; None for scalars.
Spec: TypeAlias = dict[str, tuple[np.dtype[Any], int | None]]

#: The length from which on rows are hubs; these are counted together.
HUB = 2048
#: Loops over fewer entries and rows are run by one thread.
SHARED = 1 << 14
_PIECES = 16


@cache
def numba_kernels() -> Any:
    """Return the kernels of the host, which load Numba."""
    from featgraph.dynamic import kernels_cpu

    return kernels_cpu


class HostMemory:
    """Memory of the host; `gpu_pools.GpuMemory` has the same methods."""

    #: Runs that a queue has room for at least.
    spare = 4

    @staticmethod
    def empty(size: int, dtype: Any) -> Any:
        """Return an array without values."""
        return np.empty(size, dtype)

    @staticmethod
    def zeros(size: int, dtype: Any, width: int | None = None) -> Any:
        """Return an array of zeros, or one of rows."""
        return np.zeros(size if width is None else (size, width), dtype)

    @staticmethod
    def part(array: Any, first: int, count: int) -> Any:
        """Return some entries of an array, which are not copied."""
        return array[first : first + count]

    @staticmethod
    def copy(to: Any, values: Any) -> None:
        """Write values of this memory over the first entries of an array."""
        to[: len(values)] = values

    #: Write values of the host over an array.
    write = copy

    @staticmethod
    def copy_of(array: Any) -> Any:
        """Return a copy in this memory."""
        return array.copy()

    @staticmethod
    def placed(array: Array) -> Any:
        """Return an array of the host in this memory."""
        return array

    @staticmethod
    def read(array: Any) -> Array:
        """Return an array of this memory on the host."""
        return array  # type: ignore[no-any-return]

    @staticmethod
    def bits_of(array: Any) -> Any:
        """Return an array as flat unsigned integers."""
        flat = array if array.ndim == 1 else array.reshape(-1)
        return flat.view(_UNSIGNED[array.dtype.itemsize])


#: Unsigned integers of each size in bytes.
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def grown(array: Any, size: int, memory: Any = HostMemory) -> Any:
    """Return an array, or a longer copy of it."""
    if array.size >= size:
        return array
    made = memory.zeros(size, array.dtype)
    memory.copy(made, array)
    return made


class Queues:
    """Queues of free ids or free runs, in one array; the oldest leave first.

    Parameters
    ----------
    dtype : dtype
    memory : {HostMemory, GpuMemory}, optional
    count : int, optional
        How many queues there are.

    Attributes
    ----------
    table : int64, (3, count)
        Where each queue begins in `runs`, where it ends, and where its room ends.
    runs : array
        Ids, or first slots of runs, in the memory.
    """

    def __init__(self, dtype: Any, memory: Any = HostMemory, count: int = 1) -> None:
        self.table = np.zeros((3, count), np.int64)
        self._memory, self.runs = memory, memory.empty(1, dtype)

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def counts(self) -> Array:
        """The length of each queue."""
        return self.table[1] - self.table[0]  # type: ignore[no-any-return]

    def next(self, count: int, queue: int = 0, skip: int = 0) -> Any:
        """Return the next entries of a queue, at most `count`, without removal."""
        first, stop = self.table[:2, queue].tolist()
        first += skip
        return self._memory.part(self.runs, first, min(count, stop - first))

    def listed(self) -> list[Array]:
        """Return all entries by queue, on the host."""
        lengths = enumerate(self.counts.tolist())
        return [self._memory.read(self.next(n, queue)) for queue, n in lengths]

    def drop(self, count: int) -> None:
        """Remove the next entries of the first queue."""
        self.table[0, 0] += count

    def reserve(self, more: Any) -> None:
        """Make room for more entries of each queue; this alone can fail."""
        if (self.table[1] + more <= self.table[2]).all():
            return
        counts = self.counts  # all queues move where one has no room
        spare = self._memory.spare + int(counts.sum()) // counts.size
        room = 2 * (counts + more) + spare
        begins, part = np.cumsum(room) - room, self._memory.part
        runs = self._memory.empty(int(room.sum()), self.runs.dtype)
        for queue in counts.nonzero()[0].tolist():
            to = part(runs, begins[queue], counts[queue])
            self._memory.copy(to, self.next(counts[queue], queue))
        self.table, self.runs = np.stack([begins, begins + counts, begins + room]), runs

    def put(self, entries: Any, queue: int = 0) -> None:
        """Append entries, for which there is room, to a queue."""
        if entries.size:
            room = self._memory.part(self.runs, self.table[1, queue], entries.size)
            is_here = isinstance(entries, np.ndarray)
            (self._memory.write if is_here else self._memory.copy)(room, entries)
            self.table[1, queue] += entries.size

    def copy(self, memory: Any = None) -> Queues:
        """Return queues with the same entries, in `memory` if that is given."""
        made = copy(self)
        made.table, made._memory = self.table.copy(), memory or self._memory
        copies = self._memory.read if memory else self._memory.copy_of
        made.runs = copies(self.runs)
        return made

    def on_host(self) -> Queues:
        """Return queues with the same entries on the host."""
        return self.copy(HostMemory)


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

    `memory` makes arrays where the rows are.
    """

    memory: Any = HostMemory

    starts: Array
    stops: Array
    ends: Array
    numbers: Array
    columns: dict[str, Array]
    ids: Array | None
    hubs: Array
    length_counts: Array
    out_degrees: Array
    out_counts: Array
    longest_out: int
    #: `RowPool._bits`, and a copy of rows of a GPU on the host, until arrays change.
    _flat: list[tuple[Any, int]] | None = None
    _host: Any = None

    @property
    def hub_lengths(self) -> Array:
        """The number of edges of each hub."""
        return self.stops[self.hubs] - self.starts[self.hubs]

    def longest(self) -> tuple[int, int]:
        """Return the highest degree, and that of a vertex that is no hub.

        Of out-degrees as well, where batches count them.
        """
        top = numba_kernels().top_of
        most = below = top(self.length_counts, HUB - 1)
        if self.hubs.size:
            most = int(self.hub_lengths.max())
        out = self.longest_out
        if out >= HUB:
            most, out = max(most, out), top(self.out_counts, HUB - 1)
        return max(most, out), max(below, out)

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
        count = int(self.out_degrees[is_in_set].sum())
        targets, sources = np.empty((2, count), np.int32)
        rows = self.starts[:vertex_count], self.stops, self.ends
        numba_kernels().find_ends(*rows, is_in_set, targets, sources)
        return sources, targets

    def on_host(self) -> Any:
        """Return a pool that the host reads: this one."""
        return self

    def put(self, name: str, array: Any) -> None:
        """Write a placed array over one with a name; replace None, or by None."""
        self._host = self._flat = None
        if array is None or getattr(self, name) is None:
            setattr(self, name, array)
        else:
            self.memory.copy(getattr(self, name), array)

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
