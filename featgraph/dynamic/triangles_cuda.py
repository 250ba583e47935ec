"""Counts of the triangles of changed edges on the GPU: see `triangles`.

A block has an edge, and a part of the longer one of its ends' rows. Of the shorter row,
it puts up to `CHUNK` neighbors at a time into a table in shared memory, and looks up
the neighbors in its part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.cuda import arrays as memory
from featgraph.cuda.dialect import (
    cuda,
    device_function,
    int32,
    int64,
    kernel,
    uint32,
    uint64,
)
from featgraph.device.warp import lower_bound
from featgraph.dynamic.rows_cuda import mark_rows
from featgraph.dynamic.triangles import Array, Counter

__all__ = ["GpuCounter", "add_reads", "count_corners"]

#: Threads of a block.
THREADS = 256
#: Most neighbors in a table, and its entries.
CHUNK, TABLE = 4096, 8192
#: Neighbors in a part of a row, if it has not `MOST_PARTS` already.
PART, MOST_PARTS = 8192, 64
_END = 0xFFFFFFFF
#: Places of `found`: the sum of what was added, how often edges that were inserted are
#: in their rows, and how many neighbors are to be looked up.
TOTAL, MATCHES, READS = 0, 1, 2
#: Updates look up at most so many neighbors a slot of the pool, or `FEW_READ`. On an
#: H200, 0.09 ns each, where there are many; a call took 80 ms for 110M slots, and 5 for
#: 7M.
READ_SHARE, FEW_READ = 8, 1 << 22


@device_function
def _before(keys, vertex):  # type: ignore[no-untyped-def]
    """Return the number of edges in a set that are of lower vertices."""
    return lower_bound(keys, int64(0), int64(keys.size), int64(vertex) << 32)


@device_function
def _is_in(keys, u, v):  # type: ignore[no-untyped-def]
    """Return whether a set has an edge."""
    key = int64(u) << 32 | int64(v)
    place = lower_bound(keys, int64(0), int64(keys.size), key)
    return place < keys.size and keys[place] == key


@device_function
def _place(end, size):  # type: ignore[no-untyped-def]
    """Return the place in a table at which the search for a vertex begins."""
    hashed = uint32(uint32(end) * uint32(2654435769))  # 2**32 / golden ratio
    return int32((uint64(hashed) * uint64(size)) >> uint64(32))


@device_function
def _is_counted_before(own, a, b, w):  # type: ignore[no-untyped-def]
    """Return whether an edge with a lesser key in `own` counts triangle (a, b, w)."""
    key = min(a, b) << 32 | max(a, b)
    for side in range(2):
        end = b if side else a
        low, high = min(end, w), max(end, w)
        if low << 32 | high < key and _is_in(own, low, high):
            return True
    return False


@kernel(cache=True)
def add_reads(own, starts, stops, found):  # type: ignore[no-untyped-def]
    """Add how many neighbors `count_corners` looks up to ``found[READS]``."""
    for i in range(cuda.grid(1), own.size, cuda.gridsize(1)):
        a, b = own[i] >> 32, own[i] & _END
        of_a, of_b = int64(stops[a]) - starts[a], int64(stops[b]) - starts[b]
        if a < b:
            reads = max(of_a, of_b) * (min(of_a, of_b) // CHUNK + 1)
            cuda.atomic.add(found, READS, reads)


@kernel(cache=True, launch_bounds=(THREADS, 3))
def count_corners(  # type: ignore[no-untyped-def]
    own, without, beside, sign, parts, length, chunk, starts, stops, ends, counts, found
):
    """Add `sign` to the counts of all triangles with an edge in the set `own`.

    The rows are taken without the edges in `without`, and with those in `beside`. The
    longer row of an edge is cut into up to `parts` parts, of `length` neighbors or
    more; tables are of `chunk` neighbors. `found` gets the sum, and how often edges of
    `own` are in their rows.
    """
    table = cuda.shared.array(TABLE, int32)
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    for item in range(cuda.blockIdx.x, own.size * parts, cuda.gridDim.x):
        a, b = own[item // parts] >> 32, own[item // parts] & _END
        if a > b:  # the same edge in the other direction
            continue
        if int64(stops[a]) - starts[a] < int64(stops[b]) - starts[b]:
            a, b = b, a
        start_a, start_b = int64(starts[a]), int64(starts[b])
        of_a, of_b = int64(stops[a]) - start_a, int64(stops[b]) - start_b
        more_a, more_b = _before(beside, a), _before(beside, b)
        all_a = of_a + _before(beside, a + 1) - more_a
        all_b = of_b + _before(beside, b + 1) - more_b
        part, used = int64(item % parts), min(int64(parts), all_a // length + 1)
        if part >= used:
            continue
        triangles = int64(0)
        for begin in range(int64(0), all_b, int64(chunk)):
            stop, size = min(begin + chunk, all_b), int64(32)
            while size < 2 * (stop - begin):
                size += size
            # The table gets neighbors of b, which has the shorter row.
            for place in range(thread, size, threads):
                table[place] = -1
            cuda.syncthreads()
            for number in range(begin + thread, stop, threads):
                if number < of_b:
                    w = int64(ends[start_b + number])
                    if w == a and part == 0 and sign > 0:
                        cuda.atomic.add(found, MATCHES, int64(1))
                    is_there = w != a and w != b and not _is_in(without, b, w)
                else:
                    w = beside[more_b + number - of_b] & _END
                    is_there = w != a
                if is_there:
                    place = _place(w, size)
                    old = cuda.atomic.cas(table, place, int32(-1), int32(w))
                    while old >= 0 and old != w:
                        place = (place + 1) & int32(size - 1)
                        old = cuda.atomic.cas(table, place, int32(-1), int32(w))
            cuda.syncthreads()
            # Neighbors of a in this part that the table has are third corners.
            for number in range(
                all_a * part // used + thread, all_a * (part + 1) // used, threads
            ):
                if number < of_a:
                    w = int64(ends[start_a + number])
                else:
                    w = beside[more_a + number - of_a] & _END
                place = _place(w, size)
                while table[place] >= 0 and table[place] != w:
                    place = (place + 1) & int32(size - 1)
                is_corner = table[place] == w
                if is_corner and number < of_a:
                    is_corner = not _is_in(without, a, w)
                if is_corner and not _is_counted_before(own, a, b, w):
                    cuda.atomic.add(counts, w, int64(sign))
                    triangles += 1
            cuda.syncthreads()
        if triangles:
            cuda.atomic.add(counts, a, sign * triangles)
            cuda.atomic.add(counts, b, sign * triangles)
            cuda.atomic.add(found, TOTAL, sign * triangles)


class GpuCounter(Counter):
    """The triangles of sets of edges in rows on the GPU."""

    def __init__(self, pool: Any, counts: Any) -> None:
        super().__init__(pool, counts)
        self._found = memory.filled((3,), 0, np.int64)
        self._parts = min(pool.longest()[0] // PART + 1, MOST_PARTS)

    placed: Any = staticmethod(memory.upload)

    def takes_long(self, came: Any, went: Any) -> bool:
        """See `Counter.takes_long`."""
        rows = self._rows[:2]
        for own in (came, went):
            memory.launch_over(add_reads, own.size, own, *rows, self._found)
        self.walked = int(memory.read(self._found)[READS])
        most = max(READ_SHARE * self._rows[2].size, FEW_READ)
        return self.walked > int(most)

    def clear(self, vertices: Array) -> None:
        """See `Counter.clear`."""
        if vertices.size:
            rows = memory.upload(vertices)
            memory.launch_over(mark_rows, rows.size, rows, 0, self._counts)

    def add(self, own: Any, without: Any, beside: Any, sign: int) -> None:
        """See `Counter.add`."""
        if own.size:
            blocks = min(own.size * self._parts, memory.MOST_BLOCKS)
            memory.launch(
                count_corners, blocks, own, without, beside, sign, self._parts, PART,
                CHUNK, *self._rows, self._counts, self._found, threads=THREADS,
            )  # fmt: skip

    def found(self) -> tuple[int, int]:
        """See `Counter.found`."""
        found = memory.read(self._found)
        return int(found[TOTAL]), int(found[MATCHES])
