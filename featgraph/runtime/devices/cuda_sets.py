"""Vertex sets of the CUDA target: bitvectors on the device.

`CudaSets` launches the kernels of `cuda_loops` and of rows (`_RowWalks`); `CudaKeys`
those of near and far vertices. Methods named `leave_*` store a number on the device,
and the host reads several numbers in one wait (`CudaSets.read_counts`). New sets are
taken from the pools of the recorder, so that replays find them at the same addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from featgraph.cuda.driver import address_of
from featgraph.cuda.foreign import strided
from featgraph.fold.plan.traits import HUB_DEGREE, PART_ENTRIES, REVERSED, rows_along
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.program.active import word_count
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.devices.cuda_arrays import BLOCK, CudaArrays, block_count
from featgraph.runtime.devices.protocol import (
    DeviceGraph,
    Reach,
    RowKernel,
    is_dense,
    limit_behind,
)
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["CudaKeys", "CudaSets"]

Array = Any
Words = Any
#: Sets of up to this many words are counted by one block, which needs no atomics and no
#: total set to zero first.
_ONE_BLOCK_WORDS = 4096
#: Edges per lane in sweeps over all edges.
_AT_A_TIME = 4
#: Most blocks that scan the words of a set: 16 for each of 132 multiprocessors. With
#: more, most warps have no work; with fewer, each takes more words one by one.
_SCAN_BLOCKS = 2112
#: Infinity as the bits of a float64.
_INF = 0x7FF << 52


def scanning(words: Words) -> int:
    """Return the number of blocks of a scan of a set's words."""
    return min(block_count(int(words.size) * 32), _SCAN_BLOCKS)


class _RowWalks:
    """Launches kernels that sweep the rows of a set's vertices."""

    def __init__(self, arrays: CudaArrays, some_words: Callable[[int], Words]) -> None:
        self._arrays, self._some_words = arrays, some_words

    def run(
        self, kernel: RowKernel, blocks: int, given: tuple[Any, ...], block: int = 0
    ) -> None:
        """Launch a kernel, with its rows as the last arguments."""
        arguments = (*given, *kernel.rows)
        self._arrays.launches(kernel.function, blocks, block or BLOCK, arguments)

    def leave_edges(
        self, words: Words, graph: DeviceGraph, along: str, total: Array
    ) -> None:
        """Store the number of edges in the rows of a set in ``total[0]``."""
        self._arrays.driver.set_words(address_of(total), 0, 2)  # one int64
        kernel = graph.kernel("count", along)
        self.run(kernel, scanning(words), (words, total))

    def found(self, active: Words, graph: DeviceGraph, along: str) -> Words:
        """Return `active` and the vertices with an active one in their rows: a pull."""
        due, vertices = self._some_words(active.size), graph.vertex_count
        given = active, due, vertices, HUB_DEGREE
        self.run(graph.kernel("find", along), block_count(vertices), given)
        hubs = graph[rows_along(along).hubs]
        self._run_hubs("find_hubs", (active, due, hubs), graph, along, hubs.size)
        return due

    def reached(self, active: Words, graph: DeviceGraph, along: str) -> Words:
        """Return `active` and the other ends of edges of active vertices: a push."""
        due, rows = self._some_words(active.size), REVERSED[along]
        self._arrays.copy(due, active)
        kernel = graph.kernel("reach", rows)
        self.run(kernel, scanning(active), (active, due, HUB_DEGREE))
        parts = graph[rows_along(rows).hub_parts]
        blocks = parts.size // PART_ENTRIES
        self._run_hubs("reach_hubs", (active, due, parts), graph, rows, blocks)
        return due

    def _run_hubs(
        self, name: str, given: tuple[Any, ...], graph: DeviceGraph, rows: str,
        blocks: int,
    ) -> None:  # fmt: skip
        """Launch a kernel that takes one hub, or a part of one, per block, if any."""
        if blocks:
            of_hubs = graph.kernel(name, rows)
            self.run(of_hubs, blocks, given, of_hubs.threads)


class CudaSets:
    """Sets of vertices as bitvectors on one device."""

    counts_wait = True

    def __init__(self, arrays: CudaArrays) -> None:
        self._arrays = arrays
        self._launch, self._driver = arrays.launches, arrays.driver
        self._walks = _RowWalks(arrays, self.some_words)
        self._views: WeakKeyDictionary[Array, Array] = WeakKeyDictionary()

    def some_words(self, count: int) -> Words:
        """Return an uninitialized bitvector that nothing else references."""
        return self._arrays.recorder.take(count, self._arrays.empty)

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a copy of a host bitvector on the device."""
        given = np.ascontiguousarray(words, np.uint32)
        uploaded = self.some_words(given.size)
        size = 4 * given.size
        self._driver.write(address_of(uploaded), int(given.ctypes.data), size)
        return uploaded

    def snapshot(self, words: Words | None) -> Words | None:
        """Return the set itself: memory of a referenced set is never reused."""
        return words

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return a bitvector of `count` zero words, except for ``apart[index]``."""
        words = self.some_words(count)
        first = self._launch.address_of(words)
        self._driver.set_words(first, 0, count)
        if apart:
            for number, bits in apart.items():
                self._driver.set_words(first + 4 * number, bits, 1)
        return words

    def _combine(self, function: Any, a: Words, b: Words) -> Words:
        """Return a new set, made of two others word by word."""
        out = self.some_words(a.size)
        self._launch(function, block_count(a.size), BLOCK, (a, b, out))
        return out

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""
        return self._combine(cuda_loops.words_or, a, b)

    def intersection(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""
        return self._combine(cuda_loops.words_and, a, b)

    def without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""
        return self._combine(cuda_loops.words_without, a, b)

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return the vertices of `due` in `on`, and add the rest to `left`."""
        out = self.some_words(due.size)
        arguments = due, on, left, out
        self._launch(cuda_loops.leave_out, block_count(due.size), BLOCK, arguments)
        return out

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Update the sets of `Incremental`: see `VertexSets.settle`."""
        blocks = block_count(due.size)
        self._launch(cuda_loops.settle, blocks, BLOCK, (due, stale, patched))

    def differ(self, last: Array, now: Array) -> Any:
        """Return a flag for `all_if`: whether two one-dimensional arrays differ."""
        flag = self._arrays.own.flag
        self._launch(cuda_loops.differ, 1, BLOCK, (last, now, flag))
        return flag

    def all_if(self, flag: Any, full: VertexSet, find: Callable[[], Words]) -> Words:
        """Return a new set: `full` if a flag is set, and otherwise ``find()``.

        The device reads the flag.
        """
        words = words_of(find())
        out = self.some_words(words.size)
        arguments = flag, full.words, words, out
        self._launch(cuda_loops.all_if, block_count(words.size), BLOCK, arguments)
        return out

    def count(self, words: Words) -> int:
        """Return the number of set bits; wait for the device."""
        return self.count_and_look(words, ())[0]

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the number of set bits, and extremes of results; wait once."""
        self.leave_count(words, results)
        number, seen, _ = self.read_counts(len(results), reach)
        return number, seen

    def read_counts(
        self, extremes: int, reach: Reach | None, others: int = 0
    ) -> tuple[int, list[float], list[int]]:
        """Return the count, extremes and other counts from the device; wait once.

        `reach.pushed` is set, too.
        """
        arrays, own = self._arrays, self._arrays.own
        if reach is None:
            return arrays.read_counts(extremes, others)
        place = own.total_address + 8 * (1 + extremes + others)
        self._driver.copy(place, address_of(own.edges), 8)
        number, seen, counts = arrays.read_counts(extremes, others + 1)
        reach.pushed = counts.pop()
        return number, seen, counts

    def leave_count(self, words: Words, results: Sequence[tuple[Array, bool]]) -> None:
        """Store the number of set bits, and extremes of results, in `Own.total`."""
        self.leave_extremes(results)
        arguments = (words, self._arrays.own.total)
        if words.size <= _ONE_BLOCK_WORDS:
            self._launch(cuda_loops.count_in_one_block, 1, BLOCK, arguments)
        else:
            self._driver.set_words(self._arrays.own.total_address, 0, 2)
            blocks = block_count(words.size)
            self._launch(cuda_loops.count_bits, blocks, BLOCK, arguments)

    def leave_extremes(self, results: Sequence[tuple[Array, bool]]) -> None:
        """Store the extremes of results in `Own.extremes`, after the count."""
        for place, (array, is_largest) in enumerate(results, 1):
            flat = array if array.ndim == 1 else array.reshape(array.size)
            sign, out = np.float64(1 if is_largest else -1), self._arrays.own.extremes
            self._launch(cuda_loops.extreme, 1, 32, (flat, sign, out, np.int64(place)))

    def edges_of(self, words: Words, graph: DeviceGraph, along: str) -> int:
        """Return the number of edges in the rows of a set; wait for the device."""
        self._walks.leave_edges(words, graph, along, self._arrays.own.total)
        return self._arrays.read_counts(0, 0)[0]

    def reach(self, active: Words, graph: DeviceGraph) -> Reach:
        """Return the reach of a set; its edges are counted on the device.

        The superstep cannot be recorded, since the next one may choose another
        direction.
        """
        self._walks.leave_edges(active, graph, "out", self._arrays.own.edges)
        self._driver.note(*OPAQUE)
        return Reach(active, 0)

    def log(self, words: Words, pairs: Array, ends: Array) -> None:
        """Append a set to a log: see `cuda_loops.log_set`."""
        self._launch(cuda_loops.log_set, scanning(words), BLOCK, (words, pairs, ends))
        self._launch(cuda_loops.end_logged, 1, 32, (ends,))

    def play(self, pairs: Array, order: Array, count: int) -> Words:
        """Return the next set of a log, of `count` words: see `cuda_loops.play_set`."""
        self._launch(cuda_loops.next_set, 1, 32, (order,))
        words = self.empty(count)
        blocks = min(block_count(count), _SCAN_BLOCKS)
        self._launch(cuda_loops.play_set, blocks, BLOCK, (pairs, order, words))
        return words

    def read_rows(self, array: Array, begin: int, end: int) -> npt.NDArray[Any]:
        """Return some rows of an array on the host; wait for the device."""
        shape, size = (end - begin, *array.shape[1:]), array.strides[0]
        return self._arrays.download(strided(array, shape, array.strides, begin * size))

    def rows_of(self, array: Array) -> Array:
        """Return an array in shape (V, N), the same object at each call."""
        if array.ndim == 2:
            return array
        view = self._views.get(array)
        if view is None:
            shape = (array.shape[0], array.size // max(array.shape[0], 1))
            self._views[array] = view = array.reshape(shape)
        return view

    def expand(
        self,
        active: Words,
        graph: DeviceGraph,
        count: int | None = None,
        along: str = "in",
        edges: int | None = None,
    ) -> Words:
        """Return `active` and the vertices that gather from it `along` some edges."""
        # Ghosts of a part gather nothing. The density of active vertices in the part is
        # estimated by that in the whole graph.
        vertices, all_edges = graph.whole
        if edges is not None:
            vertices, all_edges = graph.vertex_count, graph.edge_count
        times = 2 if along == "both" else 1
        are_many = is_dense(count, vertices, times * all_edges, edges)
        return (self._walks.found if are_many else self._walks.reached)(
            active, graph, along
        )

    def targets(self, edge_state: Array, graph: DeviceGraph) -> Words:
        """Return the targets of the edges that passed last."""
        count = graph.vertex_count
        words = self.empty(word_count(count))
        given = edge_state, words, count
        self._walks.run(graph.kernel("find_targets", "in"), block_count(count), given)
        return words

    def refresh_vertices(
        self, words: Words, next_: Array, current: Array, without: Words = None
    ) -> None:
        """Copy `current` to `next_` at vertices in `words` but not in `without`."""
        blocks = scanning(words)
        rows = self.rows_of(next_), self.rows_of(current)
        if without is None:
            self._launch(cuda_loops.refresh_vertices, blocks, BLOCK, (words, *rows))
        else:
            function = cuda_loops.refresh_vertices_without
            self._launch(function, blocks, BLOCK, (words, without, *rows))

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, graph: DeviceGraph
    ) -> None:
        """Copy `current` to `next_` at the out-edges of the vertices in `words`.

        If there are hubs, the edges of which would occupy one warp for long, all edges
        of the graph are swept and their sources tested.
        """
        if current.size == 0:
            return
        given = words, self.rows_of(next_), self.rows_of(current)
        if graph[rows_along("out").hubs].size:
            several = -(-graph.edges_along("in") // _AT_A_TIME)
            blocks = min(block_count(several), _SCAN_BLOCKS)
            self._walks.run(graph.kernel("refresh_all", "in"), blocks, given)
        else:
            self._walks.run(graph.kernel("refresh", "out"), scanning(words), given)


class CudaKeys:
    """Operations on sets of vertices by their keys: see `SetKeys`."""

    def __init__(self, arrays: CudaArrays, sets: CudaSets) -> None:
        self._arrays, self._sets = arrays, sets
        self._launch = arrays.launches

    def near(
        self, words: Words, keys: Array, width: int, sign: float, limit: float
    ) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""
        return self._near(words, keys, (width, sign), limit, 0.0)

    def first(self, words: Words, keys: Array, width: int, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; wait for the device."""
        self._leave_first(words, keys, (width, sign))
        _, [first], _ = self._arrays.read_counts(1, 0)
        return first

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

        If no vertex is near, the kernel moves the limit, as the host does afterwards.
        The host waits once.
        """
        self._leave_first(words, keys, order)
        near = self._near(words, keys, order, limit, delta)
        reach, address = reach_of(near), self._arrays.own.total_address
        self._sets.leave_count(words, ())
        self._arrays.driver.copy(address + 16, address, 8)  # after the first key
        self._sets.leave_count(near, ())
        count, [first], [number] = self._sets.read_counts(1, reach, others=1)
        if limit < first < math.inf:
            limit = limit_behind(first, delta)
        return near, count, limit, number

    def _leave_first(self, words: Words, keys: Array, order: tuple[int, float]) -> None:
        """Store the smallest ``sign * key`` of a set in ``Own.extremes[1]``."""
        width, sign = order
        own, driver = self._arrays.own, self._arrays.driver
        # The kernel lowers the number by atomics. It is set by words of 32 bits, the
        # lower half first in memory.
        high, low = divmod(_INF, 1 << 32)
        driver.set_words(own.total_address + 8, low, 1)
        driver.set_words(own.total_address + 12, high, 1)
        blocks = min(block_count(keys.shape[0]), 1 << 12)
        rows = self._sets.rows_of(keys)
        arguments = (words, rows, width, np.float64(sign), own.extremes)
        self._launch(cuda_loops.first_key, blocks, BLOCK, arguments)

    def _near(
        self,
        words: Words,
        keys: Array,
        order: tuple[int, float],
        limit: float,
        delta: float,
    ) -> Words:
        """Return the near vertices of a set: see `cuda_loops.near`."""
        width, sign = order
        out = self._sets.some_words(words.size)
        blocks = min(block_count(words.size * 32), 1 << 16)
        numbers = width, np.float64(sign), np.float64(limit), np.float64(delta)
        rows, extremes = self._sets.rows_of(keys), self._arrays.own.extremes
        arguments = (words, rows, *numbers, extremes, out)
        self._launch(cuda_loops.near, blocks, BLOCK, arguments)
        return out
