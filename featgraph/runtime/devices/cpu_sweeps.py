"""Vertex sets on the CPU, and launches of kernels over them.

`CpuSets` has the operations on bitvectors, `CpuKeys` those of near and far vertices,
and `CpuSweeps` launches kernels, chunk by chunk on Numba's threads.

A sweep over few vertices must not read all words of a bitvector. The indices of the
nonzero words of recent sparse sets are cached, therefore (`KnownSets`): `expand` lists
the words that it writes, and the vertices that pass a kernel are among those that it
has swept. References of the cache are weak, and cached sets are never written.

Numba's threads run one kernel at a time: not every threading layer supports two
parallel kernels at once, and none gains by it. Kernels release the GIL, so that other
threads exchange messages with ranks meanwhile. GNU's OpenMP, Numba's default layer,
cannot start threads in a forked child of a process that has used it: Numba ends such a
child. There kernels run on the calling thread, chunk by chunk, with the same bits.
Other layers survive a fork (0027).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import import_whole
from featgraph.fold.plan.traits import REVERSED
from featgraph.graph.views.view import VertexSet
from featgraph.program.active import word_count
from featgraph.runtime.devices.protocol import (
    BoundEntry,
    DeviceGraph,
    Reach,
    is_dense,
    limit_behind,
)

__all__ = [
    "CHUNKS_PER_THREAD",
    "SMALLEST_CHUNK",
    "CpuKeys",
    "CpuSets",
    "CpuSweeps",
    "is_single_threaded",
]

#: Most cached sets: enough for two supersteps of each of several alternating foldmaps.
_MOST_KNOWN = 8


@dataclass(frozen=True)
class SparseSet:
    """The places of the nonzero words of a sparse set.

    Attributes
    ----------
    at : ndarray of int64
        Indices of the words that may be nonzero; in any order, each once.
    work : int
        Approximate number of edges of the vertices of the set, to cut it into chunks.
    count : int or None
        Number of the vertices; None if unknown.
    """

    at: npt.NDArray[np.int64]
    work: int
    count: int | None = None


class KnownSets:
    """Cache of the nonzero words of recent sparse sets."""

    def __init__(self) -> None:
        #: ``id(set)`` -> a weak reference to the set, and its words; the oldest first.
        self._known: dict[int, tuple[Any, SparseSet]] = {}

    def find(self, words: Any) -> SparseSet | None:
        """Return the words of a cached set, or None."""
        known = self._known.get(id(words))
        return known[1] if known is not None and known[0]() is words else None

    def note(self, words: Any, found: SparseSet) -> None:
        """Add the words of a set to the cache."""
        known = self._known
        known.pop(id(words), None)
        for oldest in list(known)[: 1 - _MOST_KNOWN]:  # other threads may add sets
            known.pop(oldest, None)
        known[id(words)] = weakref.ref(words), found


class WordIndices(dict[int, npt.NDArray[np.int64]]):
    """Number of words of a set -> their indices, 0 to that number - 1; cached."""

    def __missing__(self, count: int) -> npt.NDArray[np.int64]:
        self[count] = made = np.arange(count)
        return made


Array = Any
Words = Any
#: Chunks per thread, enough to balance uneven work.
CHUNKS_PER_THREAD = 16
#: Least number of edges and vertices of a chunk: a parallel region costs some
#: microseconds, and far more on a busy machine.
SMALLEST_CHUNK = 20_000
#: A set is cached if at most one in this many of its words may be nonzero.
_SPARSE = 4
#: A set of known size is scanned for its nonzero words if it has at most one vertex in
#: this many.
_FEW = 64
#: Most out-edges that `expand` follows on one thread.
_MOST_ALONE = 60_000


class CpuSets:
    """Sets of vertices as bitvectors: see `VertexSets`."""

    counts_wait = False

    def __init__(self) -> None:
        self.known = KnownSets()
        self.every_word = WordIndices()

    @cached_property
    def loops(self) -> Any:
        """Module `cpu_loops`, which imports Numba, and so only when it is needed."""
        import_whole("numba")
        return import_whole("featgraph.runtime.devices.cpu_loops")

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device; `words` itself on the CPU."""
        return words

    def snapshot(self, words: Words | None) -> Words | None:
        """Return a copy of a set."""
        return None if words is None else words.copy()

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return a bitvector of `count` zero words, except for ``apart[index]``."""
        words = np.zeros(count, np.uint32)
        for number, bits in (apart or {}).items():
            words[number] = bits
        return words

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""
        return a | b

    def intersection(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""
        return a & b

    def without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""
        return a & ~b

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return the vertices of `due` in `on`, and add the rest to `left`."""
        left |= due & ~on
        return due & on

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Update the sets of `Incremental`: see `VertexSets.settle`."""
        patched |= due
        patched &= ~(due & stale)
        stale &= ~due

    def count(self, words: Words) -> int:
        """Return the size of a set."""
        known = self.known.find(words)
        if known is not None and known.count is not None:
            return known.count
        return int(np.bitwise_count(words).sum())

    def edges_of(self, words: Words, graph: DeviceGraph, along: str) -> int:
        """Return the number of edges in the rows of a set's vertices."""
        known = self.known.find(words)
        at = self.every_word[words.size] if known is None else known.at
        count = graph.kernel("count", along)
        return int(count.function(words, at, *count.rows))

    def expand(
        self,
        active: Words,
        graph: DeviceGraph,
        count: int | None = None,
        along: str = "in",
        edges: int | None = None,
    ) -> Words:
        """Return `active` and the vertices that gather from it `along` some edges."""
        theirs = REVERSED[along]
        few = self._find_few(active, count)
        if few is not None:
            due = np.zeros(active.size, np.uint32)
            found = np.empty(active.size, np.int64)
            reach = graph.kernel("reach_few", theirs)
            size, work = reach.function(
                active, few.at, due, found, _MOST_ALONE, *reach.rows
            )
            if size >= 0:
                self.note(due, found[:size], work)
                return due
        if self._finds_sooner(active, count, graph, theirs, edges):
            due = np.empty(active.size, np.uint32)
            self._sweep("find", along, graph, active, due)
        else:
            due = active.copy()
            self._sweep("reach", theirs, graph, active, due)
        return due

    def _sweep(self, name: str, along: str, graph: DeviceGraph, *given: Array) -> None:
        """Run a kernel over all words of a set, on all threads.

        It runs on the calling thread if there is one chunk, or threads cannot start.
        """
        kernel = graph.kernel(name, along)
        if kernel.is_one_chunk or _lost_threads:
            kernel.function(0, 0, kernel.word_count, *given, *kernel.rows)
        else:
            with _all_threads:
                kernel.in_chunks(kernel.chunks, *given, *kernel.rows)

    def _finds_sooner(
        self,
        active: Words,
        count: int | None,
        graph: DeviceGraph,
        along: str,
        edges: int | None = None,
    ) -> bool:
        """Whether pulling finds due vertices sooner than pushing: see `is_dense`.

        If `edges` is None, edges are counted unless active vertices are few.
        """
        if count is None or count * _FEW < graph.vertex_count:
            return False
        vertices, all_edges = graph.vertex_count, graph.edges_along(along)
        if vertices + all_edges < SMALLEST_CHUNK:
            return False
        if edges is None:
            edges = self.edges_of(active, graph, along)
        return is_dense(count, vertices, all_edges, edges)

    def _find_few(self, words: Words, count: int | None) -> SparseSet | None:
        """Return the nonzero words of a set if they are cached or few, else None."""
        known = self.known.find(words)
        if known is None and count is not None and count * _FEW <= words.size * 32:
            known = SparseSet(np.flatnonzero(words), 0, count)
        return known

    def note(
        self, words: Words, at: Array, work: int, count: int | None = None
    ) -> None:
        """Cache the indices `at` of the nonzero words of a set, if they are few."""
        if at.size * _SPARSE <= words.size:
            self.known.note(words, SparseSet(at.copy(), work, count))

    def look(self, words: Words, graph: DeviceGraph) -> None:
        """Scan a set for nonzero words, and cache their indices if they are few."""
        at = np.flatnonzero(words)
        if at.size * _SPARSE <= words.size:
            self.note(words, at, self.edges_of(words, graph, "in"))

    def refresh_vertices(
        self, words: Words, next_: Array, current: Array, without: Words = None
    ) -> None:
        """Copy `current` to `next_` at vertices in `words` but not in `without`."""
        if current.ndim != 2:
            rows = (len(current), current.size // max(len(current), 1))
            next_, current = next_.reshape(rows), current.reshape(rows)
        known = self.known.find(words)
        if known is not None:
            self.loops.refresh_few(words, known.at, without, next_, current)
            return
        if without is not None:
            words = words & ~without
        self.loops.refresh_vertices(words, next_, current)

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, graph: DeviceGraph
    ) -> None:
        """Copy `current` to `next_` at the out-edges of the vertices in `words`."""
        rows = (len(current), current.size // max(len(current), 1))
        entries = next_.reshape(rows), current.reshape(rows)
        kernel = graph.kernel("refresh", "out")
        kernel.function(words, *entries, *kernel.rows)

    def reach(self, active: Words, graph: DeviceGraph) -> None:
        """Return None: edges are counted when they are needed."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set, and the largest or smallest entry of results."""
        found = []
        for array, is_largest in results:
            found.append(float(array.max() if is_largest else array.min()))
        return self.count(words), found

    def differ(self, last: Array, now: Array) -> bool:
        """Return whether two one-dimensional arrays differ; NaN equals NaN."""
        is_real = now.dtype.kind == "f"
        return not np.array_equal(last, now, equal_nan=is_real)

    def all_if(self, flag: bool, full: VertexSet, find: Callable[[], Words]) -> Words:
        """Return `full` if a flag is set, and otherwise ``find()``."""
        return full if flag else find()

    def targets(self, edge_state: Array, graph: DeviceGraph) -> Words:
        """Return the targets of the edges that passed last."""
        words = np.empty(word_count(graph.vertex_count), np.uint32)
        kernel = graph.kernel("find_targets", "in")
        kernel.function(edge_state, words, *kernel.rows)
        return words


class CpuKeys:
    """Operations on sets of vertices by their keys: see `SetKeys`."""

    def __init__(self, sets: CpuSets) -> None:
        self._sets = sets

    def near(
        self, words: Words, keys: Array, width: int, sign: float, limit: float
    ) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""
        near = np.empty_like(words)
        rows = keys.reshape(len(keys), width)
        loops = self._sets.loops
        loops.near(words, rows, np.float64(sign), np.float64(limit), near)
        at = np.flatnonzero(near)
        self._sets.note(near, at, 0, int(np.bitwise_count(near[at]).sum()))
        return near

    def first(self, words: Words, keys: Array, width: int, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; inf for the empty one."""
        rows = keys.reshape(len(keys), width)
        return float(self._sets.loops.first_key(words, rows, np.float64(sign)))

    def nearest(
        self,
        words: Words,
        keys: Array,
        order: tuple[int, float],
        limit: float,
        delta: float,
        reach_of: Callable[[Words], Reach | None],
    ) -> tuple[Words, int, float, int]:
        """Return near vertices, their number, the limit, and the size of `words`.

        The limit moves beyond the first key if no vertex is near.
        """
        near = self.near(words, keys, *order, limit)
        count = self._sets.count(near)
        if count == 0 and (first := self.first(words, keys, *order)) < np.inf:
            limit = limit_behind(first, delta)
            near = self.near(words, keys, *order, limit)
            count = self._sets.count(near)
        return near, count, limit, self._sets.count(words)


class CpuSweeps:
    """Launches kernels over vertex sets."""

    def __init__(self) -> None:
        self.sets = CpuSets()
        self.keys = CpuKeys(self.sets)

    def launch(self, bound: BoundEntry, given: Mapping[str, Any]) -> None:
        """Run one entry of a kernel, on all threads.

        It runs on the calling thread if there is one chunk, or threads cannot start.
        """
        values, place, few = bound.constants.copy(), bound.place, None
        for at, name in bound.given:  # `BoundEntry.fill`, without a call
            values[at] = given[name]
        if "swept_words" in place:
            few = self._find_swept(place, values, given.get("spreads", False))
        chunks = values[place["chunks"]] if bound.is_swept else None
        if chunks is not None and (chunks.size == 2 or _lost_threads):
            for name in ("turns", "chunks"):  # the later argument first: places shift
                if name in place:
                    del values[place[name]]
            for number, (start, stop) in enumerate(pairwise(chunks.tolist())):
                bound.sweep(number, start, stop, *values)
        else:
            with _all_threads:
                bound.function(*values)
        if few is not None:
            passed = given["passed"]
            found = np.empty(few.at.size, np.int64)
            size, count = self.sets.loops.find_set(passed, few.at, found)
            self.sets.known.note(passed, SparseSet(found[:size], few.work, count))

    def _find_swept(
        self, place: Mapping[str, int], values: list[Any], spreads: bool
    ) -> SparseSet | None:
        """Set the arguments "swept_words" and, for a sparse set, "chunks" of a launch.

        Returns the words if they are few. With `spreads`, the kernel may make vertices
        of any word due: it sweeps all words, and a copy of the due set.
        """
        swept = values[place["swept" if "swept" in place else "due"]]
        if spreads:  # the kernel adds to the set, which the caller must not see
            values[place["due"]] = values[place["due"]].copy()
        few = None if spreads else self.sets.known.find(swept)
        if few is None:
            values[place["swept_words"]] = self.sets.every_word[swept.size]
            return None
        values[place["swept_words"]] = few.at
        values[place["chunks"]] = _cut(few)
        return few


def _cut(few: SparseSet) -> Array:
    """Return cuts of a sparse set's words into chunks of about equal work."""
    # The number of in-edges is estimated by the edges from active vertices.
    work = few.work + 32 * few.at.size
    if work < 2 * SMALLEST_CHUNK:
        return np.array([0, few.at.size])
    count = min(few.at.size, work // SMALLEST_CHUNK)
    return np.linspace(0, few.at.size, count + 1).astype(np.int64)


#: Longest time, in s, that a fork waits for a thread that compiles: the child could
#: never acquire the compiler lock that such a thread holds.
_PATIENCE_S = 60.0

#: Whether this process is a forked child in which OpenMP cannot start threads.
_lost_threads = False
#: Held while a kernel runs on Numba's threads.
_all_threads = threading.Lock()
#: Numba's compiler lock, during a fork.
_held: Any = None


def is_single_threaded() -> bool:
    """Whether this process must not start Numba's threads."""
    return _lost_threads


def _hold_compiler() -> None:
    """Acquire Numba's compiler lock before a fork, if Numba is imported."""
    global _held
    known = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(getattr(known, "global_compiler_lock", None), "_lock", None)
    _held = lock if lock is not None and lock.acquire(timeout=_PATIENCE_S) else None


def _release_compiler() -> None:
    """Release Numba's compiler lock after a fork."""
    global _held
    lock, _held = _held, None
    if lock is not None:
        lock.release()


def _begin_child() -> None:
    """Make new locks in a forked child, and find out whether threads can start."""
    global _lost_threads, _all_threads
    _release_compiler()
    _all_threads = threading.Lock()  # the thread that held it is not in the child
    layer: Any = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(layer, "_is_initialized", False) and layer._threading_layer == "omp":
        _lost_threads = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_compiler,
        after_in_parent=_release_compiler,
        after_in_child=_begin_child,
    )
