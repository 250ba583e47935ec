"""Kernels that read rows on the GPU: degrees, lists of edges, and what a batch does."""

from __future__ import annotations

from featgraph._cuda import cuda, int64, kernel
from featgraph.dynamic.kernels_cpu import APPENDS, REPLACES
from featgraph.dynamic.kernels_cuda import (
    APPENDED,
    AT,
    COUNT,
    END,
    ENTRIES,
    PLACE,
    ROW,
    ROW_OF,
    START,
    gone_before,
    is_marked,
    row_at,
)


@kernel(cache=True)
def count_changes(d, degrees):  # type: ignore[no-untyped-def]
    """Count edges that come at their other ends, and count off those that leave."""
    for e in range(cuda.grid(1), d.summary[ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == APPENDS:
            cuda.atomic.add(degrees, d.work[END, d.order[e]], 1)
    total = d.wide[AT, d.summary[COUNT]] if d.has_marks != 0 else int64(0)
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        if is_marked(number, d):
            j = row_at(d.wide[AT], d.summary[COUNT], number)
            slot = d.wide[START, j] + number - d.wide[AT, j]
            cuda.atomic.add(degrees, d.ends[slot], -1)


@kernel(cache=True)
def list_slots(  # type: ignore[no-untyped-def]
    total, at, count, starts, numbers, is_undirected, rows, slots, keys, flags
):
    """List rows, slots and numbers of all edges; mark those that were given so."""
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        row = row_at(at, count, number)
        slot = int64(starts[row]) + number - at[row]
        rows[number], slots[number] = row, slot
        own = int64(numbers[slot])
        keys[number] = own >> 1
        flags[number] = 0 if is_undirected and (own & 1) != 0 else 1


@kernel(cache=True)
def take_rows(column, width, slots, out, out_width):  # type: ignore[no-untyped-def]
    """Store values of edges by slot."""
    for place in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        e, k = place // out_width, place % out_width
        out[place] = column[int64(slots[e]) * width + k]


@kernel(cache=True)
def measure_all(starts, stops, degrees):  # type: ignore[no-untyped-def]
    """Store the lengths of all rows."""
    for row in range(cuda.grid(1), degrees.size, cuda.gridsize(1)):
        degrees[row] = int64(stops[row]) - int64(starts[row])


@kernel(cache=True)
def count_ends(count, starts, stops, ends, degrees):  # type: ignore[no-untyped-def]
    """Count all edges at their other ends; a warp a row."""
    lane = int64(cuda.threadIdx.x) & 31
    for row in range(cuda.grid(1) >> 5, count, cuda.gridsize(1) >> 5):
        for slot in range(int64(starts[row]) + lane, int64(stops[row]), 32):
            cuda.atomic.add(degrees, ends[slot], 1)


@kernel(cache=True)
def list_from(count, starts, stops, ends, is_in_set, found, listed):  # type: ignore[no-untyped-def]
    """List the edges whose other ends are in a set, as far as there is room.

    A warp a row; they come in any order, as row and other end in one number.
    """
    lane = int64(cuda.threadIdx.x) & 31
    for row in range(cuda.grid(1) >> 5, count, cuda.gridsize(1) >> 5):
        for slot in range(int64(starts[row]) + lane, int64(stops[row]), 32):
            if is_in_set[ends[slot]] != 0:
                place = cuda.atomic.add(found, 0, 1)
                if place < listed.size:
                    listed[place] = row << 32 | int64(ends[slot])


@kernel(cache=True)
def give_ids(d, free, free_count, next_id, entry_ids):  # type: ignore[no-untyped-def]
    """Give ids to inserted edges in the order of rows: free ones first.

    `entry_ids` has twice the number of an update, and its side, for index.
    """
    for e in range(cuda.grid(1), d.summary[ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == APPENDS:
            number, count = int64(d.order[e]) << (1 - d.sides), d.wide[APPENDED, e]
            if count < free_count:
                entry_ids[number] = free[count]
            else:
                entry_ids[number] = next_id + count - free_count


@kernel(cache=True)
def list_gone(d, ids, has_ids, gone):  # type: ignore[no-untyped-def]
    """List rows, ends, numbers and ids of edges that leave, in the order of rows."""
    count, total = d.summary[COUNT], d.wide[AT, d.summary[COUNT]]
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        if is_marked(number, d):
            j = row_at(d.wide[AT], count, number)
            to = gone_before(number, d)
            slot = d.wide[START, j] + number - d.wide[AT, j]
            gone[0, to], gone[1, to] = d.work[ROW, j], d.ends[slot]
            gone[2, to] = d.numbers[slot]
            if has_ids:
                gone[3, to] = ids[slot]


@kernel(cache=True)
def mark_changed(d, old, width, values, value_width, sources, flags):  # type: ignore[no-untyped-def]
    """Mark the entries that give an edge another value."""
    for e in range(cuda.grid(1), d.summary[ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == REPLACES:
            for k in range(value_width):
                now = values[int64(sources[e]) * value_width + k]
                if old[d.wide[PLACE, e] * width + k] != now:
                    flags[e] = 1


@kernel(cache=True)
def list_changed(d, flags, is_undirected, rows, ends, numbers, count):  # type: ignore[no-untyped-def]
    """Store row, other end and number of edges that are marked, and count them.

    Of undirected graphs, edges in the direction in which they were given alone.
    """
    for e in range(cuda.grid(1), d.summary[ENTRIES], cuda.gridsize(1)):
        if flags[e] != 0:
            slot = d.wide[PLACE, e]
            if is_undirected and (d.numbers[slot] & 1) != 0:
                flags[e] = 0
                continue
            rows[e], ends[e] = d.work[ROW, d.work[ROW_OF, e]], d.ends[slot]
            numbers[e] = d.numbers[slot]
            cuda.atomic.add(count, 0, 1)


@kernel(cache=True)
def take_values(d, column, out):  # type: ignore[no-untyped-def]
    """Store the values of edges that entries replace; 0 elsewhere."""
    for e in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        is_there = (d.fates[e] & REPLACES) != 0
        out[e] = column[d.wide[PLACE, e]] if is_there else 0
