"""Kernels that read rows of a pool on the GPU, and that write those of a batch.

`apply_batch` writes what `kernels_cuda` has planned: it lists deleted edges for the
log, copies the edges of rows that move or shrink, and appends inserted edges.
"""

from __future__ import annotations

from featgraph.cuda.dialect import (
    cuda,
    device_function,
    int32,
    int64,
    kernel,
    uint32,
    uint64,
)
from featgraph.device.warp import FULL_WARP, lower_bound
from featgraph.dynamic import kernels_cpu as codes
from featgraph.dynamic import kernels_cuda as passes
from featgraph.dynamic.kernels_cuda import gone_before, is_marked
from featgraph.dynamic.sorts_cuda import (
    COPY_THREADS,
    lane_of,
    meet_grid,
    row_at,
    share_of_grid,
)

#: Edges that a lane holds while rows are copied.
HELD = 4
#: Consecutive edges that a thread looks up.
TOGETHER = 8


@kernel(cache=True)
def list_slots(  # type: ignore[no-untyped-def]
    total, at, count, starts, numbers, parity, rows, slots, keys, flags
):
    """List rows, slots and numbers of all edges; mark those with a parity, 0 or 1.

    With the parity -1, all edges are marked.
    """
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        row = row_at(at, count, number, int64(-1))
        slot = int64(starts[row]) + number - at[row]
        rows[number], slots[number] = row, slot
        own = int64(numbers[slot])
        keys[number] = own >> 1
        flags[number] = 1 if parity < 0 or (own & 1) == parity else 0


@kernel(cache=True)
def list_upward(  # type: ignore[no-untyped-def]
    total, at, count, starts, ends, places, low, high, slots, flags
):
    """List the places of both ends, and slots; mark edges from lower to higher ones."""
    for number in range(cuda.grid(1), total, cuda.gridsize(1)):
        row = row_at(at, count, number, int64(-1))
        slot = int64(starts[row]) + number - at[row]
        low[number], high[number] = places[ends[slot]], places[row]
        slots[number], flags[number] = slot, 1 if low[number] < high[number] else 0


@kernel(cache=True)
def find_copies(  # type: ignore[no-untyped-def]
    total, at, count, starts, ends, table, found
):
    """Set ``found[0]`` if a row has the same other end twice.

    A row has twice as many entries of `table`, which begin as -1, as edges. An end goes
    to the first free one from its hash on.
    """
    chunks = (total + TOGETHER - 1) // TOGETHER
    for chunk in range(cuda.grid(1), chunks, cuda.gridsize(1)):
        if found[0] != 0:
            return
        row = int64(-1)
        for number in range(chunk * TOGETHER, min((chunk + 1) * TOGETHER, total)):
            row = row_at(at, count, number, row)
            begin, size = int64(at[row]), int64(at[row + 1]) - int64(at[row])
            end = ends[int64(starts[row]) + number - begin]
            hashed = uint32(uint32(end) * uint32(2654435769))  # 2**32 / golden ratio
            place = int64((uint64(hashed) * uint64(2 * size)) >> uint64(32))
            old = cuda.atomic.cas(table, 2 * begin + place, int32(-1), end)
            while old >= 0 and old != end:
                place = place + 1 if place + 1 < 2 * size else int64(0)
                old = cuda.atomic.cas(table, 2 * begin + place, int32(-1), end)
            if old == end:
                found[0] = 1


@kernel(cache=True)
def extend(values, count, out):  # type: ignore[no-untyped-def]
    """Copy values, the last of them up to the end of `out`."""
    for place in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[place] = values[min(place, count - 1)]


@kernel(cache=True)
def take_rows(column, width, slots, out, out_width):  # type: ignore[no-untyped-def]
    """Store the values at some slots of a column."""
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
def mark_rows(rows, mark, marks):  # type: ignore[no-untyped-def]
    """Store the same mark for some vertices."""
    for e in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        marks[rows[e]] = mark


@kernel(cache=True)
def list_edges(  # type: ignore[no-untyped-def]
    count, rows, is_swept, is_out, is_in_set, starts, stops, ends, found, listed
):
    """List and count the edges of some rows; one warp per row.

    If `is_swept`, of all rows, those edges whose other ends are in a set. Row
    `is_out` of `listed` is for the other ends, and the other one for the rows. Edges
    are in any order; those that do not fit are only counted.
    """
    lane = int64(cuda.threadIdx.x) & 31
    lower = (uint32(1) << uint32(lane)) - uint32(1)
    for number in range(cuda.grid(1) >> 5, count, cuda.gridsize(1) >> 5):
        row = int64(number)
        if not is_swept:
            row = int64(rows[number])
        for base in range(int64(starts[row]), int64(stops[row]), 32):
            slot, place = base + lane, int64(0)
            is_there = slot < stops[row]
            if is_there and is_swept:
                is_there = is_in_set[ends[slot]] != 0
            votes = uint32(cuda.ballot_sync(FULL_WARP, is_there))
            if lane == 0 and votes != 0:
                place = cuda.atomic.add(found, 0, int64(cuda.popc(votes)))
            place = cuda.shfl_sync(FULL_WARP, place, 0)
            place += int64(cuda.popc(uint32(votes & lower)))
            if is_there and place < listed.shape[1]:
                listed[is_out, place], listed[1 - is_out, place] = ends[slot], row


@kernel(cache=True)
def give_ids(d, free, free_count, next_id, entry_ids):  # type: ignore[no-untyped-def]
    """Store the ids of inserted edges in the order of rows; free ids are taken first.

    The id for side s of update i is ``entry_ids[2 * i + s]``.
    """
    for e in range(cuda.grid(1), d.summary[passes.ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == codes.APPENDS:
            number = int64(d.order[e]) << (1 - d.sides)
            count = d.wide[passes.APPENDED, e]
            if count < free_count:
                entry_ids[number] = free[count]
            else:
                entry_ids[number] = next_id + count - free_count


@kernel(cache=True)
def list_changed(  # type: ignore[no-untyped-def]
    d, old, width, values, value_width, sources, is_undirected, is_first, out
):
    """List and count the edges that get another value in a column, if not listed yet.

    By entry, `out` has 1 for such an edge, its row, its end and its number. Of
    undirected graphs, edges in the direction in which they were given alone.
    """
    for e in range(cuda.grid(1), d.summary[passes.ENTRIES], cuda.gridsize(1)):
        if is_first:
            out[0, e] = 0
        if d.fates[e] != codes.REPLACES or out[0, e] != 0:
            continue
        slot, differs = d.wide[passes.PLACE, e], False
        for k in range(value_width):
            now = values[int64(sources[e]) * value_width + k]
            differs = differs or old[slot * width + k] != now
        if differs and not (is_undirected and (d.numbers[slot] & 1) != 0):
            out[0, e], out[1, e] = 1, d.work[passes.ROW, d.work[passes.ROW_OF, e]]
            out[2, e], out[3, e] = d.ends[slot], d.numbers[slot]
            cuda.atomic.add(d.summary, passes.CHANGED, 1)


@kernel(cache=True)
def take_values(d, column, out):  # type: ignore[no-untyped-def]
    """Store the values of edges that entries replace; 0 elsewhere."""
    for e in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[e] = 0  # a choice of the two would be a float64 where values have 64 bits
        if (d.fates[e] & codes.REPLACES) != 0:
            out[e] = column[d.wide[passes.PLACE, e]]


# -- apply


@device_function
def _leave(d, j, mark, slot, gone, ids, degrees):  # type: ignore[no-untyped-def]
    """List an edge that leaves row j, and subtract it from the degree of its end."""
    if gone.shape[0] > 0:
        to = gone_before(mark, d)
        gone[0, to], gone[1, to] = d.work[passes.ROW, j], d.ends[slot]
        gone[2, to] = d.numbers[slot]
        if gone.shape[0] > 3:
            gone[3, to] = ids[slot]
    if degrees.size > 0:
        cuda.atomic.add(degrees, d.ends[slot], -1)


@device_function
def _bound(number, j, d):  # type: ignore[no-untyped-def]
    """Return where a part of the copied slots begins: at a number, which row j has.

    A row of less than `kernels_cuda.LONG` edges is in the part in which it begins.
    """
    begin, end = d.wide[passes.COPY_AT, j], d.wide[passes.COPY_AT, j + 1]
    return number if begin == number or end - begin >= passes.LONG else end


@device_function
def _slots_of(j, d):  # type: ignore[no-untyped-def]
    """Return the numbers that locate the copied edges of row j.

    They are the number behind its last one; what is added to a number to get its slot
    now, its slot if no edge leaves, and its mark; and how many edges leave before the
    row, or -1 if none leaves it.
    """
    begin, at, before = d.wide[passes.COPY_AT, j], int64(0), int64(-1)
    start, target = d.wide[passes.START, j] - begin, d.wide[passes.TARGET, j] - begin
    # Rows without entries have no marks.
    if d.has_marks != 0 and d.wide[passes.AT, j] < d.wide[passes.AT, j + 1]:
        at = d.wide[passes.AT, j] - begin
        before = gone_before(at + begin, d)
    return d.wide[passes.COPY_AT, j + 1], start, target, at, before


@device_function
def _move(old, place, new, now, width, column, more_old, more_new):  # type: ignore[no-untyped-def]
    """Copy an element of an edge, and its element of another array if there is one."""
    new[now * width + column] = old[place * width + column]
    if more_old is not None:
        more_new[now] = more_old[place]


@device_function
def _copy_part(  # type: ignore[no-untyped-def]
    d, low, high, first, column, is_fresh, is_back, old, width, new, kept, more_old,
    more_new, more_kept, gone, ids, degrees,
):  # fmt: skip
    """Copy one element of the edges in a part, which begins in row `first`."""
    lane, last = int64(cuda.threadIdx.x) & 31, d.summary[passes.COUNT] - 1
    to = cuda.local.array(HELD, int64)
    held, more_held = cuda.local.array(HELD, old.dtype), cuda.local.array(HELD, uint32)
    row, begin = first, low
    while begin < high:  # the next 32 rows, one for each lane
        row = row_at(d.wide[passes.COPY_AT], last + 1, begin, row)
        stop, start, target, at, before = _slots_of(min(row + lane, last), d)
        behind = int32(min(stop - begin, passes.FAR))
        stop = min(cuda.shfl_sync(FULL_WARP, stop, 31), high)
        for base in range(begin + lane, stop + lane, 32 * HELD):
            for k in range(HELD):
                number, to[k] = base + 32 * k, -1
                holder = lane_of(behind, int32(number - begin))
                there = cuda.shfl_sync(FULL_WARP, target, holder)
                slot = cuda.shfl_sync(FULL_WARP, start, holder)
                stays, slot, now = slot == there, slot + number, there + number
                is_left = number < stop
                if d.has_marks != 0:
                    mark = cuda.shfl_sync(FULL_WARP, at, holder) + number
                    less = cuda.shfl_sync(FULL_WARP, before, holder)
                    if is_left and less >= 0:
                        now += less - gone_before(mark, d)
                        is_left = not is_marked(mark, d)
                        if not is_left and gone is not None and not is_back:
                            _leave(d, row + holder, mark, slot, gone, ids, degrees)
                stays = stays and not is_fresh
                if is_left and stays and now - there < low:
                    if is_back:
                        _move(
                            kept, number, new, now, width, column, more_kept, more_new
                        )  # fmt: skip
                    else:
                        _move(
                            old, slot, kept, number, width, column, more_old, more_kept
                        )  # fmt: skip
                elif is_left and not is_back and not (stays and now == slot):
                    to[k], held[k] = now, old[slot * width + column]
                    if more_old is not None:
                        more_held[k] = more_old[slot]
            cuda.syncwarp()
            for k in range(HELD):
                if to[k] >= 0:
                    new[to[k] * width + column] = held[k]
                    if more_old is not None:
                        more_new[to[k]] = more_held[k]
        row, begin = min(row + 31, last), stop


@device_function
def _copy(d, is_fresh, is_back, old, width, *arrays):  # type: ignore[no-untyped-def]
    """Copy the remaining edges of rows that move or shrink, in one or two arrays.

    Edges of a row that stays move to its front. A warp has a part of the slots, and
    each lane `HELD` of them at a time: all lanes read before they write. Only of a long
    row may edges be overwritten that another warp has not read: those in their place
    are copied to `kept` first, and by a second call with `is_back` to their slots.
    """
    count = d.summary[passes.COUNT]
    total = d.wide[passes.COPY_AT, count]
    low, behind = share_of_grid(total, 32 * HELD)
    if low < behind:
        first, high = row_at(d.wide[passes.COPY_AT], count, low, int64(-1)), total
        low = _bound(low, first, d)
        if behind < total:
            last = row_at(d.wide[passes.COPY_AT], count, behind, first)
            high = _bound(behind, last, d)
        if is_back:  # only the first row may have begun before
            high = min(high, d.wide[passes.COPY_AT, first + 1])
        for column in range(width):
            _copy_part(
                d, low, high, first, column, is_fresh, is_back, old, width, *arrays
            )  # fmt: skip


@device_function
def _behind(e, j, d):  # type: ignore[no-untyped-def]
    """Return the slot of an edge that is appended to row j."""
    last = d.wide[passes.APPENDED, d.wide[passes.FIRST_OF, j + 1]]
    stop = d.wide[passes.TARGET, j] + d.wide[passes.LENGTH, j]
    return stop - last + d.wide[passes.APPENDED, e]


@device_function
def _write_rows(  # type: ignore[no-untyped-def]
    d, given, number, ends, numbers, starts, stops, classes, degrees, frees,
    out_degrees,
):  # fmt: skip
    """Write ends and numbers of inserted edges, rows, and queues.

    Update i has the number ``2 (number + i)``, or ``given[i]``; one more at its other
    end. Runs that rows leave are put behind those of the queues.
    """
    for e in range(cuda.grid(1), d.summary[passes.ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == codes.APPENDS:
            place = int64(d.order[e])
            i, side = place >> d.sides, place & d.sides
            slot = _behind(e, d.work[passes.ROW_OF, e], d)
            ends[slot] = d.work[passes.END, place]
            own = 2 * (int64(number) + i)
            if given.size > 0:
                own = int64(given[i])
            numbers[slot] = own + side
            if out_degrees.size > 0:
                cuda.atomic.add(out_degrees, ends[slot], 1)
    for j in range(cuda.grid(1), d.summary[passes.COUNT], cuda.gridsize(1)):
        row, target = d.work[passes.ROW, j], d.wide[passes.TARGET, j]
        length = d.wide[passes.LENGTH, j]
        starts[row], stops[row] = target, target + length
        classes[row] = d.work[passes.CHOSEN, j]
        if degrees.size > 0:
            degrees[row] = length
        if frees:
            # Of the row of that rank.
            size_class = int64(d.work[passes.FREE_CLASS, j])
            if size_class < codes.CLASS_COUNT:
                to = d.table[passes.STOPS, size_class] + j
                to -= lower_bound(d.work[passes.FREE_CLASS], int64(0), j, size_class)
                d.runs[to] = d.wide[passes.START, d.work[passes.FREE_ROW, j]]


@kernel(cache=True, launch_bounds=(COPY_THREADS, 1))
def copy_rows(d, first, last, is_fresh, old, width, new, kept):  # type: ignore[no-untyped-def]
    """Copy the remaining edges in one array; turns as in `apply_batch`."""
    for turn in range(first, last):
        if turn > first:
            meet_grid(d)
        _copy(
            d, is_fresh, turn == 1, old, width, new, kept, None, None, None, None, None,
            None,
        )  # fmt: skip


@kernel(cache=True, launch_bounds=(COPY_THREADS, 1))
def apply_batch(  # type: ignore[no-untyped-def]
    d, first, last, writes, is_fresh, ends, kept_ends, numbers, kept_numbers, gone, ids,
    out_degrees, given, number, starts, stops, classes, degrees, frees,
):  # fmt: skip
    """List deleted edges, copy edges, and write inserted edges and rows.

    The rows of `gone` are for the rows, ends, numbers and ids of deleted edges. `gone`,
    `given` and degrees are empty where there are none. The launch runs the turns
    `first` to `last` - 1: turn 0 copies edges, and turn 1 those from `kept` (`_copy`);
    between two turns, all blocks wait for each other. With `writes`, inserted edges and
    rows are written: behind turn 0 where rows lose edges and get others, which may have
    their slots.
    """
    for turn in range(first, last):
        if turn > first:
            meet_grid(d)
        _copy(
            d, is_fresh, turn == 1, d.ends, 1, ends, kept_ends, d.numbers, numbers,
            kept_numbers, gone, ids, out_degrees,
        )  # fmt: skip
    if writes:
        _write_rows(
            d, given, number, ends, numbers, starts, stops, classes, degrees, frees,
            out_degrees,
        )  # fmt: skip


@kernel(cache=True)
def write_ids(d, entry_ids, sides, ids):  # type: ignore[no-untyped-def]
    """Write the ids of inserted edges; both ends share one unless `sides` is 1."""
    for e in range(cuda.grid(1), d.summary[passes.ENTRIES], cuda.gridsize(1)):
        if d.fates[e] == codes.APPENDS:
            place = int64(d.order[e])
            own = 2 * (place >> d.sides) + (place & d.sides & sides)
            ids[_behind(e, d.work[passes.ROW_OF, e], d)] = entry_ids[own]


@kernel(cache=True)
def write_values(d, values, value_width, sources, new, width):  # type: ignore[no-untyped-def]
    """Write values of edges that are inserted or replaced; `sources` is by entry."""
    for e in range(cuda.grid(1), d.summary[passes.ENTRIES], cuda.gridsize(1)):
        if d.fates[e] != codes.APPENDS and d.fates[e] != codes.REPLACES:
            continue
        j = d.work[passes.ROW_OF, e]
        slot = _behind(e, j, d)
        if d.fates[e] == codes.REPLACES:
            place = d.wide[passes.PLACE, e] - d.wide[passes.START, j]
            slot = d.wide[passes.TARGET, j] + place
            if d.has_marks != 0:
                at = d.wide[passes.AT, j]
                slot += gone_before(at, d) - gone_before(at + place, d)
        for k in range(value_width):
            new[slot * width + k] = values[int64(sources[e]) * value_width + k]
