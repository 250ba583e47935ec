"""Memory, queues and threads of pools of rows, and the plan of a batch.

`HostMemory`        makes and copies arrays; `gpu_pools.GpuMemory` does so on a GPU
`Queues`            free ids, or free runs by size class, first in first out
`Threads`           run a kernel of `kernels_cpu` on parts of the touched rows
`Updates`, `Plan`   the input of `pools.RowPool.plan`, and its result
`ranges`, `living_slots`, `edges_of`   slots and ends of the edges of rows
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from threading import Barrier
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass, field
from featgraph.base.interrupts import import_whole

__all__ = [
    "ALONE", "HUB", "NONE", "NO_KINDS", "SHARED", "Array", "HostMemory", "HostPlan",
    "Plan", "Queues", "Spec", "Threads", "Updates", "edges_of", "grown", "living_slots",
    "ranges", "width_of",
]  # fmt: skip

Array: TypeAlias = NDArray[Any]
#: Type of each column of edge values, and the length of its vectors; None: scalars.
Spec: TypeAlias = dict[str, tuple[np.dtype[Any], int | None]]

#: Rows of this length or more are hubs: `RowPool.length_counts` has one count of them.
HUB = 2048
#: One thread runs loops over fewer entries and rows; else threads take 16 parts.
SHARED = 1 << 14
_PIECES = 16
#: No vertices.
NONE = np.empty(0, np.int32)
#: No marks of insertions. The type is that of others: the loops are compiled once.
NO_KINDS = np.empty(0, np.uint8)


class HostMemory:
    """Functions on arrays of the host; `gpu_pools.GpuMemory` has the same names."""

    #: The least room of a queue that is allocated anew, and its room by its length.
    spare, growth = 4, 2

    @staticmethod
    def empty(size: int, dtype: Any) -> Any:
        """Return an uninitialised array."""
        return np.empty(size, dtype)

    @staticmethod
    def zeros(size: int, dtype: Any, width: int | None = None) -> Any:
        """Return zeros of shape (size,) or (size, width)."""
        return np.zeros(size if width is None else (size, width), dtype)

    @staticmethod
    def part(array: Any, first: int, count: int) -> Any:
        """Return a view of `count` entries."""
        return array[first : first + count]

    @staticmethod
    def copy(to: Any, values: Any) -> None:
        """Overwrite the first entries of an array with values in the same memory."""
        to[: len(values)] = values

    #: Overwrite the first entries of an array with values on the host.
    write = copy

    @staticmethod
    def copy_of(array: Any) -> Any:
        """Return a copy in this memory."""
        return array.copy()

    @staticmethod
    def placed(array: Any) -> Any:
        """Return an array of the host, copied to this memory if that is a GPU's."""
        return array

    #: Return an array of this memory, copied to the host if it is on a GPU.
    read = placed

    @staticmethod
    def bits_of(array: Any) -> Any:
        """Return a view of an array as flat unsigned integers of the same size."""
        return array.reshape(-1).view(_UNSIGNED[array.dtype.itemsize])


#: Unsigned integers of each size in bytes.
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def width_of(array: Any) -> int:
    """Return how many elements a row of an array has."""
    return 1 if array.ndim == 1 else int(array.shape[1])


def grown(array: Any, size: int, memory: Any = HostMemory) -> Any:
    """Return the array or None, or a copy with zeros appended up to `size`."""
    if array is None or array.size >= size:
        return array
    made = memory.zeros(size, array.dtype)
    memory.copy(made, array)
    return made


class Queues:
    """First-in-first-out queues of free ids, or of free runs, in one array.

    Parameters
    ----------
    dtype : dtype
    memory : {HostMemory, GpuMemory}, optional
    count : int, optional
        The number of queues: one of ids, or one of each size class of runs.

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

    def next(self, count: int, queue: int = 0) -> Any:
        """Return the next entries of a queue, at most `count`, without removal."""
        first, stop = self.table[:2, queue].tolist()
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
        room = self._memory.growth * (counts + more) + spare
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


class Threads(AbstractContextManager["Threads"]):
    """A pool of threads that run the kernels of one batch on parts of its rows.

    All threads are started at once, since starting one may fail and the last step of a
    batch must not. Without them, or for little work, the caller's thread runs all.

    Parameters
    ----------
    work : int
        The number of entries and rows of the batch.
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

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def share(self, bounds: Any, work: Callable[..., object], *arguments: Any) -> None:
        """Call ``work(part, low, high, *arguments)`` for each part of a range."""
        if self._pool is None:  # there is one part
            work(0, *bounds, *arguments)
            return
        parts = zip(range(len(bounds)), bounds[:-1], bounds[1:], strict=False)
        # Leaving `with Threads` waits for the other parts if one raises.
        for done in [self._pool.submit(work, *part, *arguments) for part in parts]:
            done.result()

    def beside(self, work: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Start a concurrent call; return a function that waits for its result."""
        if self._pool is None:
            result = work(*arguments)
            return lambda: result
        return self._pool.submit(work, *arguments).result

    def bounds(self, first: Array) -> list[int]:
        """Return bounds of parts of the rows; parts have equally many entries and rows.

        Row j has the entries from ``first[j]`` to ``first[j + 1]``.
        """
        count = first.size - 1
        if self._pool is None or count < _PIECES:
            return [0, count]
        work = first + np.arange(first.size)
        cuts = np.searchsorted(work, np.arange(1, _PIECES) * work[-1] / _PIECES)
        return [0, *map(int, cuts), count]


#: The caller's thread.
ALONE = Threads(0)


@dataclass(eq=False)
class Updates:
    """The updates of a batch, with the options of the store.

    Attributes
    ----------
    sources, targets : int32, (M,)
        Negative for an update without effect, such as a loop that is dropped.
    columns : dict of arrays, (M,) or (M, width)
        Values of insertions.
    kinds : uint8, (M,)
        1 for an insertion, 0 for a deletion.
    deletes : bool
        Whether any update is a deletion.
    policy, copies : int
        Codes of `kernels_cpu` for insertions of present edges, and for deletions.
    looks : bool
        Whether outcomes depend on the edges of the rows. Insertions that keep copies do
        not: rows are not read for them.
    number : int
        The insertion number of update 0.
    rule : str
        The policy of the graph for repeated edges, as a word.
    numbers : uint32, (M,), optional
        Even entries of `RowPool.numbers`, in place of those that follow from `number`.
    ids : uint32, (2 M,)
        Ids of inserted edges by number of entry, if edges have ids; set before
        `RowPool.prepare`.
    is_checked : bool
        Whether the updates are in memory of the host, which has checked them. A plan
        checks others.
    no_loops : bool
        Whether a plan finds a loop to be bad, as it finds an id of no vertex.
    turned : pair of int32
        The ids of vertices that are inserted, and that are deleted.
    outcomes : uint8, (M,)
        The outcome of each update, as a code, or a function that returns them; set by
        `RowPool.plan`.
    """

    sources: Array = field(default_factory=NONE.view)
    targets: Array = field(default_factory=NONE.view)
    columns: dict[str, Array] = field(default_factory=dict)
    kinds: Array = field(default_factory=NO_KINDS.view)
    deletes: bool = False
    policy: int = 0
    copies: int = 0
    looks: bool = False
    number: int = 0
    rule: str = "keep"
    numbers: Array | None = None
    ids: Any = field(default_factory=NONE.view)
    is_checked: bool = True
    no_loops: bool = False
    turned: tuple[Array, Array] = NONE, NONE
    outcomes: Any = None


class Plan:
    """The changes that a batch makes to one pool.

    Attributes
    ----------
    vertex_count, born : int
        The number of vertices after the batch, and how many rows `length_counts` does
        not count yet.
    is_dense : bool
        Whether all rows are planned, as for another pool.
    is_bad : bool
        Whether the host has to check the updates; nothing else is planned then.
    given : pair of arrays, or of functions that return them
        Sources and targets of the updates, which the log keeps.
    tally : int64
        Counts: of updates by outcome, of edges, rows and runs. Indices are constants of
        `kernels_cpu`.
    came, left : int
        The number of edges that rows gain, and that they lose.
    wanted, freed : int64, (classes,)
        The number of runs that rows take, and that they leave.
    moves : int
        0 if no row changes its run.
    hubs : int32
        `RowPool.hubs` after the batch.
    writes, values : list of tuple
        For each array over slots, arguments of the kernel that writes it; for each
        column, the values that are written.
    fresh : RowPool or None
        The pool into which `RowPool.refit` lays out all rows.
    drops : int64, (classes,), or 0
        The number of runs that leave the front of each queue.
    puts : list of (class, first slot)
        Free runs that are appended to queues.
    region, top, lost
        Those of `RowPool` after the batch; `lost` is the increase.
    """

    is_bad = False
    came = left = 0
    fresh: Any = None
    drops: Any = 0
    region = (0, 0)
    top = lost = 0

    def __init__(self, vertex_count: int, born: int, is_dense: bool) -> None:
        self.vertex_count, self.born, self.is_dense = vertex_count, born, is_dense
        self.writes: list[tuple[Any, ...]] = []
        self.values: list[tuple[Any, ...]] = []
        self.puts: list[tuple[int, int]] = []


class HostPlan(Plan):
    """A plan for a pool of the host. Its arrays are arguments of `kernels_cpu`.

    An *entry* is an update at one row: an update has two where edges are in two rows.
    Entries are sorted by row, in the order of the batch. Deletions have entries, too.

    Attributes
    ----------
    threads, bounds
        `Threads`, and bounds of the parts of the touched rows.
    rows : int32, the touched rows, ascending
    first : int64, (rows + 1,), index of each row's first entry
    order : uint32, by entry: ``2 i`` for update i at its first row, or ``2 i + 1``
    ends : uint32, by entry: the vertex at the other end
    fates : uint8, by entry: its effect on the row, `kernels_cpu.APPENDS` and so on
    heads : int32, by entry: the entry that writes its value, or -1; see `combined`
    places : int64, by entry: the slot whose value it replaces
    lengths, gone : int64, by row: edges afterwards, and how many are deleted
    gone_at, gone_places : int64 and int32
        Indices in row j of its deleted edges, ascending, from ``gone_at[j]`` on.
    starts, stops, classes : rows before the batch, with entries for all vertices
    chosen, targets : by row: class and first slot of its run afterwards; targets are
        None until `RowPool.prepare` if no row changes its run
    left_ends : int32, `ends` of the deleted edges, in the order of rows
    degrees, out_degrees, out_counts : those of the pool, with room for more entries
    shift : the left shift that makes `order` such numbers: 0 here, 0 or 1 on a GPU
    """

    shift = 0
    targets: Any = None
    gone_places = left_ends = NONE

    def __init__(
        self, threads: Threads, rows: Array, first: Array, count: int, combines: bool,
        *sizes: Any,
    ) -> None:  # fmt: skip
        super().__init__(*sizes)
        self.threads, self.rows, self.first = threads, rows, first
        self.bounds = threads.bounds(first)
        #: Run a kernel on all parts.
        self.share = partial(threads.share, self.bounds)
        self.order, self.ends = np.empty((2, count), np.uint32)
        self.fates = np.empty(count, np.uint8)
        #: For the log.
        self.entries = self.order, self.fates
        entries = count if combines else 0
        self.heads, self.places = np.empty(entries, np.int32), np.empty(entries, int)
        self.lengths, self.gone, self.gone_at = np.zeros((3, rows.size), np.int64)
        self.chosen = np.empty(rows.size, np.uint8)


def edges_of(pool: Any, rows: Array) -> tuple[Array, Array]:
    """Return the ends of all edges of some rows, and the row of each."""
    starts, stops = pool.spans(rows)
    ends = pool.memory.read(pool.entries_at("ends", ranges(starts, stops)))
    return ends, np.repeat(rows, stops - starts)


def lengths_of(pool: Any, vertex_count: int) -> Array:
    """Return the number of edges of each of the first rows, on the host."""
    starts, stops = pool.spans(vertex_count)
    return stops - starts  # type: ignore[no-any-return]


def ranges(starts: Array, stops: Array) -> Array:
    """Return the concatenation of all ``arange(start, stop)``."""
    lengths = stops - starts
    shift = (stops - lengths.cumsum(dtype=np.int64)).astype(stops.dtype)
    made: Array = shift.repeat(lengths)
    made += np.arange(made.size, dtype=made.dtype)
    return made


def living_slots(pool: Any, vertex_count: int) -> Array:
    """Return the slots that have an edge, in the order of rows."""
    return ranges(*pool.spans(vertex_count))
