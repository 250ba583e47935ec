"""Kernels that read rows on the GPU: degrees, lists of edges, and what a batch does."""

from __future__ import annotations

from featgraph._cuda import cuda, int32, int64, kernel, uint32
from featgraph.dynamic.kernels_cpu import APPENDS, REPLACES
from featgraph.dynamic.kernels_cuda import FULL_WARP, gone_before, is_marked, row_at


@kernel(cache=True)
def count_came(fates, order, entry_ends, degrees):  # type: ignore[no-untyped-def]
    """Count edges that come at their other ends."""
    for e in range(cuda.grid(1), fates.size, cuda.gridsize(1)):
        if fates[e] == APPENDS:
            cuda.atomic.add(degrees, entry_ends[order[e]], 1)


@kernel(cache=True)
def count_left(total, at, count, rows, starts, ends, marks, degrees):  # type: ignore[no-untyped-def]
    """Count off edges that leave at their other ends."""
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        if is_marked(number, marks):
            j = row_at(at, count, number)
            slot = int64(starts[rows[j]]) + number - at[j]
            cuda.atomic.add(degrees, ends[slot], -1)


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
def count_from(count, starts, stops, ends, is_in_set, counts):  # type: ignore[no-untyped-def]
    """Count the edges of each row whose other ends are in a set; a warp a row."""
    lane = int64(cuda.threadIdx.x) & 31
    for row in range(cuda.grid(1) >> 5, count, cuda.gridsize(1) >> 5):
        found = int32(0)
        for slot in range(int64(starts[row]) + lane, int64(stops[row]), 32):
            found += is_in_set[ends[slot]]
        if found > 0:
            cuda.atomic.add(counts, row, found)


@kernel(cache=True)
def list_from(count, starts, stops, ends, is_in_set, before, out_ends, out_rows):  # type: ignore[no-untyped-def]
    """List them, in the order of rows and slots."""
    lane = int64(cuda.threadIdx.x) & 31
    lower = (uint32(1) << uint32(lane)) - uint32(1)
    for row in range(cuda.grid(1) >> 5, count, cuda.gridsize(1) >> 5):
        to = before[row]
        for base in range(int64(starts[row]), int64(stops[row]), 32):
            slot = base + lane
            is_found = slot < stops[row]
            if is_found:
                is_found = is_in_set[ends[slot]] != 0
            votes = uint32(cuda.ballot_sync(FULL_WARP, is_found))
            if is_found:
                place = to + int64(cuda.popc(uint32(votes & lower)))
                out_ends[place], out_rows[place] = ends[slot], row
            to += int64(cuda.popc(votes))


@kernel(cache=True)
def survey_degrees(degrees, count, bound, most):  # type: ignore[no-untyped-def]
    """Raise ``most`` to the highest degree of all, and of those below a bound."""
    own = cuda.shared.array(2, int32)
    if cuda.threadIdx.x < 2:
        own[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    highest = below = int32(0)
    for row in range(cuda.grid(1), count, cuda.gridsize(1)):
        highest = max(highest, degrees[row])
        if degrees[row] < bound:
            below = max(below, degrees[row])
    cuda.atomic.max(own, 0, highest)
    cuda.atomic.max(own, 1, below)
    cuda.syncthreads()
    if cuda.threadIdx.x < 2:
        cuda.atomic.max(most, cuda.threadIdx.x, own[cuda.threadIdx.x])


@kernel(cache=True)
def give_ids(fates, order, sides, appended, free, free_count, next_id, entry_ids):  # type: ignore[no-untyped-def]
    """Give ids to inserted edges in the order of rows: free ones first.

    `entry_ids` has twice the number of an update, and its side, for index.
    """
    for e in range(cuda.grid(1), fates.size, cuda.gridsize(1)):
        if fates[e] == APPENDS:
            number, count = int64(order[e]) << (1 - sides), appended[e]
            if count < free_count:
                entry_ids[number] = free[count]
            else:
                entry_ids[number] = next_id + count - free_count


@kernel(cache=True)
def list_gone(  # type: ignore[no-untyped-def]
    total, at, count, rows, starts, ends, numbers, marks, before, gone_rows, gone_ends,
    gone_numbers, ids, has_ids, gone_ids,
):  # fmt: skip
    """List the edges that leave, in the order of rows."""
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        if is_marked(number, marks):
            j = row_at(at, count, number)
            to = gone_before(number, marks, before)
            slot = int64(starts[rows[j]]) + number - at[j]
            gone_rows[to], gone_ends[to] = rows[j], ends[slot]
            gone_numbers[to] = numbers[slot]
            if has_ids:
                gone_ids[to] = ids[slot]


@kernel(cache=True)
def mark_changed(fates, places, old, width, values, value_width, sources, flags):  # type: ignore[no-untyped-def]
    """Mark the entries that give an edge another value."""
    for e in range(cuda.grid(1), fates.size, cuda.gridsize(1)):
        if fates[e] == REPLACES:
            for k in range(value_width):
                if (
                    old[places[e] * width + k]
                    != values[int64(sources[e]) * value_width + k]
                ):
                    flags[e] = 1


@kernel(cache=True)
def list_changed(  # type: ignore[no-untyped-def]
    flags, is_undirected, places, rows, row_of, ends, numbers, out_rows, out_ends,
    out_numbers, count,
):  # fmt: skip
    """Store row, other end and number of edges that are marked, and count them.

    Of undirected graphs, edges in the direction in which they were given alone.
    """
    for e in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        if flags[e] != 0:
            number = numbers[places[e]]
            if is_undirected and (number & 1) != 0:
                flags[e] = 0
                continue
            out_rows[e], out_ends[e] = rows[row_of[e]], ends[places[e]]
            out_numbers[e] = number
            cuda.atomic.add(count, 0, 1)


@kernel(cache=True)
def take_values(fates, places, column, out):  # type: ignore[no-untyped-def]
    """Store the values of edges that entries replace; 0 elsewhere."""
    for e in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        is_there = (fates[e] & REPLACES) != 0
        out[e] = column[places[e]] if is_there else 0
