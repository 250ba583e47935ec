"""Rows of a pool as the host reads them, and helpers of loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache, partial
from threading import Barrier
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import import_whole

__all__ = [
    "HUB", "NONE", "SHARED", "Array", "HostMemory", "HostPlan", "Plan", "Queues",
    "Spec", "Threads", "Updates", "edges_of", "grown", "living_slots", "numba_kernels",
    "ranges",
]  # fmt: skip

Array: TypeAlias = NDArray[Any]
#: Type and width of each column of the edges; None for scalars.
Spec: TypeAlias = dict[str, tuple[np.dtype[Any], int | None]]

#: The length from which on rows are hubs; these are counted together.
HUB = 2048
#: Loops over fewer entries and rows are run by one thread.
SHARED = 1 << 14
_PIECES = 16
#: No vertices.
NONE = np.empty(0, np.int32)


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


@dataclass(eq=False)
class Updates:
    """The updates of a batch, as pools take them.

    Attributes
    ----------
    sources, targets : int32, (M,)
        Negative for an update without effect.
    kinds : uint8, (M,)
        1: it inserts.
    deletes : bool
        Whether some update deletes.
    policy, copies : int
        See `kernels_cpu`.
    looks : bool
        Whether anything depends on the edges that are there.
    number : int
        The number of the first insertion.
    rule : {"first", "last", "sum", "min", "max"}
    columns : dict of arrays, (M,) or (M, width)
    has_twins : bool
    numbers, ids : uint32, (M,) and (2 M,), optional
        Numbers in place of consecutive ones; ids by number of entry.
    is_checked : bool
        Whether the ids are those of vertices; else a plan refuses others.
    outcomes : uint8, (M,)
        Set by a plan.
    """

    sources: Array
    targets: Array
    kinds: Array
    deletes: bool
    policy: int
    copies: int
    looks: bool
    number: int
    rule: str
    columns: dict[str, Array]
    has_twins: bool
    numbers: Array | None = None
    ids: Array | None = None
    is_checked: bool = True
    outcomes: Any = None


class Plan:
    """The changes that a batch makes to a pool.

    Attributes
    ----------
    vertex_count, born : int
        All vertices, and those that are new.
    is_dense : bool
        Whether all rows are laid out anew.
    tally : int64
        Counts of updates by outcome, then of others: see `kernels_cpu`.
    came, left : int
        Edges that come to rows, and that leave.
    wanted, freed : int64
        How many runs of each class are taken, and freed.
    hubs : int32
        `RowPool.hubs` afterwards.
    writes, values : list of tuple
        Arguments of the kernels that write edges and values.
    fresh : RowPool or None
        The pool into which all rows are laid out.
    drops, puts : int64, list of (class, first slot)
        Runs that leave the queues, by class, and free memory that comes to them.
    region, top : tuple of int, int
        Free memory that rows are laid into next, and where nothing has been yet.
    lost : int
        Slots that are too few for a run, of memory that was skipped.
    """

    tally: Any = None
    came = left = 0
    wanted: Any = None
    freed: Any = None
    hubs: Any = None
    fresh: Any = None
    drops: Any = None
    region = (0, 0)
    top = lost = 0

    def __init__(self, vertex_count: int, born: int, is_dense: bool) -> None:
        self.vertex_count, self.born, self.is_dense = vertex_count, born, is_dense
        self.writes: list[tuple[Any, ...]] = []
        self.values: list[tuple[Any, ...]] = []
        self.puts: list[tuple[int, int]] = []


class HostPlan(Plan):
    """A plan for a pool of the host; see `kernels_cpu`.

    Attributes
    ----------
    rows, first : touched rows, and their first entries
    order : uint32, number of each entry in the batch
    ends : uint32, by entry
    fates, heads, places : by entry
    lengths, gone : by row: edges afterwards, and those that leave
    gone_at, gone_places : places in their rows of edges that leave, ascending; those of
        row j begin at ``gone_at[j]``
    starts, stops, classes : the rows as they are, with room for all vertices
    chosen, targets : class and first slot of each row's run afterwards
    left_ends : other ends of edges that leave, where degrees go by them
    degrees, out_degrees, out_counts : those of the pool, with room for all
    """

    shift = 0
    starts: Array
    stops: Array
    classes: Array
    gone_places: Array = NONE
    targets: Array
    left_ends: Array = NONE
    degrees: Array
    out_degrees: Array
    out_counts: Array

    def __init__(
        self, threads: Threads, rows: Array, first: Array, count: int, combines: bool,
        *sizes: Any,
    ) -> None:  # fmt: skip
        super().__init__(*sizes)
        self.threads, self.rows, self.first = threads, rows, first
        self.bounds = threads.bounds(rows.size, first)
        #: Run a kernel over the touched rows.
        self.share = partial(threads.share, self.bounds)
        self.order, self.ends = np.empty((2, count), np.uint32)
        self.fates = np.empty(count, np.uint8)
        entries = count if combines else 0
        self.heads, self.places = np.empty(entries, np.int32), np.empty(entries, int)
        self.lengths, self.gone = np.zeros((2, rows.size), np.int64)
        self.gone_at = np.zeros(rows.size + 1, np.int64)
        self.chosen = np.empty(rows.size, np.uint8)

    @property
    def entries(self) -> tuple[Array, Array]:
        """The number of each entry, and its fate."""
        return self.order, self.fates


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
