"""Kernels that plan a batch of updates on the GPU.

A batch passes through three kernels of this module, which are one for a small batch
(`plan_batch`), and `rows_cuda.apply_batch` then writes the rows. Plans have the bits of
`kernels_cpu`, which has the same steps:

``list_batch``  sorts the updates by row, and within a row by other end
``match``       looks for the pair of each edge of the touched rows among the updates
``find_runs``   decides each update, and finds room for rows that grow or shrink

*Entry*: an update in a touched row, in the order of rows, then of the batch. If edges
stand at both of their ends (``d.sides`` is 1), update i has two entries. *Pair*: all
entries of one row with one other end. *Place*: an entry before it is sorted; update i
has place i, or places ``2 i`` and ``2 i + 1``.

Blocks of `list_batch` and `find_runs` wait for each other between passes (`meet`): a
launch has one block per multiprocessor, or one block alone for up to `FEW` entries.

The slots of all touched rows are numbered one row after the other: row j has the
numbers ``d.wide[AT, j]`` to ``d.wide[AT, j + 1]``. Each warp has consecutive numbers,
so that many warps share a hub; its lanes hold where 32 rows are at a time. Bit n of
`d.marks` is set if the edge with number n leaves its row, and ``d.before[w]`` counts
the marks in the words before word w. Atomics add integers, or list rows that the host
sorts: their order has no effect.
"""

from __future__ import annotations

from collections import namedtuple

from featgraph.cuda.dialect import cuda, device_function, int32, int64, kernel, uint32
from featgraph.device.warp import FULL_WARP, lower_bound
from featgraph.dynamic import kernels_cpu as codes
from featgraph.dynamic.kernels_cpu import CLASS_COUNT, HUB
from featgraph.dynamic.sorts_cuda import (
    COUNTS,
    THREADS,
    WARPS,
    bits_of,
    digits_of,
    lane_of,
    meet,
    meet_grid,
    row_at,
    share_of_grid,
    sort,
    spread,
    threads,
)

#: More than the numbers that a warp has: ends of rows are stored up to here.
FAR = 2**30
#: Several warps copy a row of so many edges.
LONG = 2048
#: Deletions take all copies of a pair.
EVERY = 2**31 - 1
#: A batch with at most this many entries is planned by one block.
FEW = 4096
#: Threads of a block of `plan_batch`, with up to 168 registers.
FEW_THREADS = 384
#: Bits of a size class of runs (`kernels_cpu.CLASS_COUNT` and below).
CLASS_BITS = 7
#: Rows with at most this many entries are ordered by other end without a sort: each
#: entry is compared with all of its row.
MOST_RANKED = 32
#: `Passes.summary` is read by the host. From 0 on, it has the number of updates with
#: each outcome (`kernels_cpu`); at these indices, the number of edges
#:
#: BORN : inserted edges, each counted once; CAME, GONE : entries of rows that are
#:     inserted and deleted
#: COPIED : slots of rows that are copied; HUBS : rows that are or were hubs
#: ENTRIES, COUNT, PAIRS : entries, touched rows, and pairs
#: CUT : slots that are needed in the first region of free memory
BORN, CAME, GONE, COPIED, HUBS, ENTRIES, COUNT, PAIRS, CUT = range(8, 17)
#: COMING, LEAVING : rows that get a run, and that give one back
#: BAD : updates that the host has to check; more than 0 if a weight is not a number
#: IS_LONG : 1 if a row has more than `MOST_RANKED` entries; IS_SHARED : 1 if a row of
#:     `LONG` edges is copied; CHANGED : changed edges
COMING, LEAVING, BAD, IS_LONG, IS_SHARED, CHANGED = range(17, 23)
#: From HUB_LIST on: up to so many of the HUBS rows. Then, by size class, runs that are
#: taken (TAKEN) and given back (FREED); and changes of the numbers of rows by length
#: (LENGTHS).
HUBS_AT_ONCE = 256
HUB_LIST = 24
TAKEN = HUB_LIST + HUBS_AT_ONCE
FREED = TAKEN + CLASS_COUNT
LENGTHS = FREED + CLASS_COUNT
SUMMARY = LENGTHS + HUB + 1
_COUNTERS = LENGTHS - TAKEN + HUB + 1
_TALLIES = BORN + 1

#: Rows of `Passes.work`, int32. By place:
#:
#: KEY, END : row and other end; KEY is `none` if the place has no entry
#: END_KEY : END, with the side in the last bit if rows distinguish sides
#: ENTRY_OF : the entry
#:
#: By entry:
#:
#: ROW_OF, PAIR_OF : the number of its row among touched rows, and of its pair
#: HEAD : the entry that inserts the edge that this one changes; -1: none
#: SOURCE : the update that has the value of the inserted edge
KEY, END, END_KEY, ENTRY_OF, ROW_OF, PAIR_OF, HEAD, SOURCE = range(8)
#: By pair: its touched row, how many copies deletions take (or `EVERY`), and how many
#: copies are there. By touched row: its vertex, the size class of its run afterwards,
#: and the classes of the runs that it takes and gives back (`CLASS_COUNT`: none).
PAIR_ROW, NEED, FOUND, ROW, CHOSEN, TAKES, FREES = range(8, 15)
#: Results of sorts, two rows each, keys and sorted numbers: entries by row; places by
#: pair; touched rows by the class of the run that they give back, and that they take.
#: SPARE is scratch memory of sorts.
KEYS, PLACES, PAIR_KEYS, PAIR_PLACES, FREE_CLASS, FREE_ROW, SPARE = range(15, 22)
TAKE_CLASS, TAKE_ROW, WORK = PAIR_KEYS, PAIR_PLACES, 23
#: Rows of `Passes.wide`, int64. SUMS: prefix sums by entry. By touched row:
#:
#: FIRST_OF, AT : its first entry, and the number of its first slot
#: START, TARGET : its first slot now and afterwards
#: LENGTH : its edges afterwards
#: COPY_AT : prefix sums of the slots that are copied
#: NEEDS : the slots of its new run, then their prefix sums
#: HUB_ROWS : hubs, as vertex and length
SUMS, FIRST_OF, AT, START, LENGTH, COPY_AT, NEEDS, TARGET, HUB_ROWS = range(9)
#: By pair: its first entry, its key (twice the other end, plus the side), and the slot
#: of its edge. By entry: the slot of the edge that it changes, and prefix sums of the
#: entries that append an edge.
PAIR_FIRST, PAIR_KEY, EDGE_AT, PLACE, APPENDED = range(9, 14)
WIDE = 14
#: Rows of `Passes.table`: by size class, the begin and the end of its queue in
#: `Passes.runs`; by region of free memory, its begin, its end, and the prefix sums of
#: the slots that rows need there.
BEGINS, STOPS, FREE, ENDS, CUTS = range(5)
#: A hub is stored as ``vertex << HUB_BITS | length``: lengths are below 2**32.
HUB_BITS = 32


#: The arguments of all kernels of a batch.
#:
#: sides : 1 if each edge stands at both of its ends, else 0
#: none : the number of vertices; KEY of a place without an entry
#: most, limit, regions : the number of places; bounds of the numbers of touched rows
#:     and of regions
#: policy, copies : `kernels_cpu`
#: is_sided, is_dense, looks, has_marks : 1 if the keys of pairs have sides; if all rows
#:     are laid out anew; if outcomes depend on the present edges; if edges may leave
#: has_runs, checks : 1 if there are free runs; if the host has not checked the updates,
#:     of which kernels store copies: 1 if they are of one kind, 2 if `kinds` is given
#: has_dead, no_loops : 1 if `dead` marks vertices; if the host has to see new loops
#: blocks : 1, or the number of blocks that share a pass
#: at, other, kinds, outcomes : by update: row, other end, 1 for an insertion, outcome
#: starts, stops, classes, dead : by vertex: its slots, class of its run, 1 if deleted
#: ends, numbers : by slot: the other end, and twice the number of the insertion, plus 1
#:     in the row of the source if edges stand at both of their ends
#: order, fates : by entry: its place, and what becomes of it (`kernels_cpu`)
#: work, wide, marks, before : above
#: totals, digits : by block: partial sums, and counts of each digit of a sort
#: gate, summary, table, runs : the number of arrivals at `meet_grid`; see above
Passes = namedtuple(
    "Passes",
    "sides none most limit regions policy copies is_sided is_dense looks has_marks "
    "has_runs checks has_dead no_loops blocks at other kinds outcomes starts stops "
    "classes dead ends numbers order fates work wide marks before totals digits gate "
    "summary table runs",
)


@device_function
def _size_of(size_class):  # type: ignore[no-untyped-def]
    """Return the slots of a run of a class."""
    if size_class == 0:
        return int64(0)
    step = int64(size_class) - 1
    if step < codes.LONG_CLASS:
        return (4 + (step & 3)) << (step >> 2)
    return int64(4096) << (step - codes.LONG_CLASS + 1)


@device_function
def _class_of(length):  # type: ignore[no-untyped-def]
    """Return the class of the shortest run for so many edges."""
    found = int64(0)
    while _size_of(found) < length:
        found += 1
    return found


@device_function
def gone_before(number, d):  # type: ignore[no-untyped-def]
    """Return how many edges before a number leave."""
    word = uint32(d.marks[number >> 5])
    lower = (uint32(1) << uint32(number & 31)) - uint32(1)
    return d.before[number >> 5] + int64(cuda.popc(uint32(word & lower)))


@device_function
def is_marked(number, d):  # type: ignore[no-untyped-def]
    """Return whether the edge at a number leaves its row."""
    return (uint32(d.marks[number >> 5]) >> uint32(number & 31)) & uint32(1) != 0


# -- entries, rows and pairs


@device_function
def _list_entries(d, at, other):  # type: ignore[no-untyped-def]
    """Store row and other end of each place; row `none` for one without an entry."""
    for k in range(cuda.grid(1), d.summary.size, threads(d)):
        d.summary[k] = 0
    if d.checks != 0:
        meet(d)
    for i in range(cuda.grid(1), d.most >> d.sides, threads(d)):
        row, end = at[i], other[i]
        if d.checks != 0:
            d.at[i], d.other[i] = row, end
            if d.checks == 1:
                d.kinds[i] = 1 - d.has_marks
            is_bad = min(row, end) < 0 or max(row, end) >= d.none
            is_bad = is_bad or (d.no_loops & d.kinds[i] != 0 and row == end)
            if is_bad or (d.has_dead != 0 and d.dead[row] | d.dead[end] != 0):
                row = end = int32(-1)
                cuda.atomic.add(d.summary, BAD, 1)
        d.outcomes[i] = codes.INSERTED if row >= 0 else codes.IGNORED
        for side in range(1 + d.sides):
            is_there = row >= 0 and (side == 0 or row != end)
            place = (i << d.sides) + side
            own, far = (end, row) if side != 0 else (row, end)
            d.work[KEY, place] = own if is_there else d.none
            d.work[END, place] = far if is_there else 0
            key = int64(far) << d.is_sided | (side & d.is_sided)
            d.work[END_KEY, place] = key if is_there else 0


@device_function
def _mark(count, is_pair, d, parts):  # type: ignore[no-untyped-def]
    """Store prefix sums of entries that begin a row, or of places that begin a pair."""
    for e in range(cuda.grid(1), count + 1, threads(d)):
        is_first = e < count and d.work[KEYS, e] < d.none
        if is_first and e > 0 and d.work[KEYS, e] == d.work[KEYS, e - 1]:
            is_first = False
            if is_pair:
                place, last = d.work[PAIR_PLACES, e], d.work[PAIR_PLACES, e - 1]
                is_first = d.work[END_KEY, place] != d.work[END_KEY, last]
        d.wide[SUMS, e] = 1 if is_first else 0
    spread(d.wide[SUMS], count + 1, d, parts)


@device_function
def _place_entry(e, d):  # type: ignore[no-untyped-def]
    """Store the place of an entry, and note a row of more than `MOST_RANKED` entries.

    The entries of places, and such rows, are read only if outcomes depend on edges.
    """
    d.order[e] = d.work[PLACES, e]
    if d.looks != 0:
        d.work[ENTRY_OF, d.order[e]], row = e, d.work[KEYS, e]
        is_far = e >= MOST_RANKED and row < d.none and d.summary[IS_LONG] == 0
        if is_far and d.work[KEYS, e - MOST_RANKED] == row:
            d.summary[IS_LONG] = 1


@device_function
def _number_rows(d):  # type: ignore[no-untyped-def]
    """Store each touched row, its first entry, and the row of each entry."""
    for e in range(cuda.grid(1), d.most, threads(d)):
        row, j = d.work[KEYS, e], d.wide[SUMS, e + 1] - 1
        # Places without an entry are behind all rows.
        d.work[ROW_OF, e] = j if row < d.none else j + 1
        _place_entry(e, d)
        if j >= d.wide[SUMS, e]:
            d.work[ROW, j], d.wide[FIRST_OF, j] = row, e
        if row < d.none and (e + 1 == d.most or d.work[KEYS, e + 1] == d.none):
            d.wide[FIRST_OF, j + 1] = e + 1
            d.summary[ENTRIES], d.summary[COUNT] = e + 1, j + 1


@device_function
def _list_all_rows(d):  # type: ignore[no-untyped-def]
    """Store the same if all rows are touched: row j is vertex j."""
    for row in range(cuda.grid(1), d.none + 1, threads(d)):
        first = lower_bound(d.work[KEYS], int64(0), int64(d.most), row)
        d.wide[FIRST_OF, row] = first
        if row < d.none:
            d.work[ROW, row] = row
        else:
            d.summary[ENTRIES], d.summary[COUNT] = first, row
    for e in range(cuda.grid(1), d.most, threads(d)):
        d.work[ROW_OF, e] = d.work[KEYS, e]
        _place_entry(e, d)


@device_function
def _rank_ends(d):  # type: ignore[no-untyped-def]
    """Order the places of each row by other end; those of one pair keep their order."""
    for e in range(cuda.grid(1), d.summary[ENTRIES], threads(d)):
        j, place = d.work[ROW_OF, e], d.work[PLACES, e]
        key, rank = d.work[END_KEY, place], d.wide[FIRST_OF, j]
        for other in range(d.wide[FIRST_OF, j], d.wide[FIRST_OF, j + 1]):
            other_key = d.work[END_KEY, d.work[PLACES, other]]
            if other_key < key or (other_key == key and other < e):
                rank += 1
        d.work[PAIR_PLACES, rank] = place


@device_function
def _number_pairs(d):  # type: ignore[no-untyped-def]
    """Store the first entry, the key and the row of each pair."""
    count = d.summary[ENTRIES]
    for b in range(cuda.grid(1), count, threads(d)):
        p, place = d.wide[SUMS, b + 1] - 1, d.work[PAIR_PLACES, b]
        d.work[PAIR_OF, b] = p
        if p >= d.wide[SUMS, b]:
            d.wide[PAIR_FIRST, p], d.work[PAIR_ROW, p] = b, d.work[ROW_OF, b]
            key = int64(d.work[END, place]) << 1
            d.wide[PAIR_KEY, p] = key + (place & d.is_sided)
        if b + 1 == count:
            d.wide[PAIR_FIRST, p + 1], d.summary[PAIRS] = count, p + 1


# -- plan


@device_function
def _measure(d, parts):  # type: ignore[no-untyped-def]
    """Store how many present copies of each pair deletions take, and number slots.

    Rows without entries have no numbers.
    """
    for p in range(cuda.grid(1), d.summary[PAIRS], threads(d)):
        needed = own = int64(0)
        for b in range(d.wide[PAIR_FIRST, p], d.wide[PAIR_FIRST, p + 1]):
            if d.kinds[d.work[PAIR_PLACES, b] >> d.sides] != 0:
                own += 1
            elif d.copies == codes.ALL:
                needed = EVERY
            elif d.copies == codes.LAST and own > 0:
                own -= 1
            else:
                needed += 1
        d.work[NEED, p], d.work[FOUND, p] = needed, 0
    count = d.summary[COUNT]
    for j in range(cuda.grid(1), count + 1, threads(d)):
        length = int64(0)
        if j < count and d.wide[FIRST_OF, j] < d.wide[FIRST_OF, j + 1]:
            row = d.work[ROW, j]
            length = int64(d.stops[row]) - int64(d.starts[row])
        d.wide[AT, j] = length
    spread(d.wide[AT], count + 1, d, parts)


@device_function
def _pair_at(e, d):  # type: ignore[no-untyped-def]
    """Return the pair of an entry, or the number of pairs behind the last entry."""
    return d.work[PAIR_OF, e] if e < d.summary[ENTRIES] else int32(d.summary[PAIRS])


@device_function
def _match(d):  # type: ignore[no-untyped-def]
    """Find the pair of each edge of the touched rows; count copies of pairs.

    Edges of pairs of which all copies leave are marked. Unless pairs may have copies,
    `EDGE_AT` gets the slot of the edge.

    Lanes hold 32 rows, whose numbers are from `begin` to `stop`: where each ends
    (`behind`), how slots follow from numbers (`shift`), and its pairs.
    """
    lane, count = int64(cuda.threadIdx.x) & 31, d.summary[COUNT]
    low, high = share_of_grid(d.wide[AT, count], 32)
    row, stop, begin = int64(-1), low, low
    behind = first = pairs = int32(0)
    shift = int64(0)
    for base in range(low, high, 32):
        number, word, done = base + lane, uint32(0), base
        while done < min(base + 32, high):
            if done == stop:  # the next 32 rows, one for each lane
                row = row_at(d.wide[AT], count, done, row)
                own, begin = min(row + lane, count - 1), done
                stop = d.wide[AT, own + 1]
                behind = int32(min(stop - begin, FAR))
                stop = cuda.shfl_sync(FULL_WARP, stop, 31)
                shift = int64(d.starts[d.work[ROW, own]]) - d.wide[AT, own]
                first = _pair_at(d.wide[FIRST_OF, own], d)
                pairs = _pair_at(d.wide[FIRST_OF, own + 1], d)
                row = min(row + 31, count - 1)
            holder = lane_of(behind, int32(number - begin))
            slot = number + cuda.shfl_sync(FULL_WARP, shift, holder)
            p = int64(cuda.shfl_sync(FULL_WARP, first, holder))
            p_behind = int64(cuda.shfl_sync(FULL_WARP, pairs, holder))
            leaves = False
            if done <= number and number < min(stop, high):
                key = int64(d.ends[slot]) << 1
                if d.is_sided != 0:
                    key += int64(d.numbers[slot]) & 1
                p = lower_bound(d.wide[PAIR_KEY], p, p_behind, key)
                if p < p_behind and d.wide[PAIR_KEY, p] == key:
                    leaves = d.work[NEED, p] == EVERY
                    if d.policy == codes.KEEP:
                        cuda.atomic.add(d.work, (FOUND, p), 1)
                    else:
                        d.work[FOUND, p] = 1
                        d.wide[EDGE_AT, p] = slot
            word |= uint32(cuda.ballot_sync(FULL_WARP, leaves))
            done = min(stop, base + 32)
        if d.has_marks != 0 and lane == 0:
            d.marks[base >> 5] = word


@device_function
def _mark_copies(d):  # type: ignore[no-untyped-def]
    """Mark the first or last copies of pairs that deletions take, one warp per pair."""
    lane = int64(cuda.threadIdx.x) & 31
    lower = (uint32(1) << uint32(lane)) - uint32(1)
    for p in range(cuda.grid(1) >> 5, d.summary[PAIRS], cuda.gridsize(1) >> 5):
        left = min(int64(d.work[NEED, p]), int64(d.work[FOUND, p]))
        j = d.work[PAIR_ROW, p]
        length = d.wide[AT, j + 1] - d.wide[AT, j]
        start = int64(d.starts[d.work[ROW, j]])
        for base in range(0, length, 32):
            if left <= 0:  # uniform
                break
            place = base + lane
            is_there = place < length
            if d.copies == codes.LAST:
                place = length - 1 - place
            if is_there:
                slot = start + place
                key = (int64(d.ends[slot]) << 1) + (int64(d.numbers[slot]) & d.is_sided)
                is_there = key == d.wide[PAIR_KEY, p]
            votes = uint32(cuda.ballot_sync(FULL_WARP, is_there))
            if is_there and int64(cuda.popc(uint32(votes & lower))) < left:
                number = d.wide[AT, j] + place
                bit = uint32(1) << uint32(number & 31)
                cuda.atomic.or_(d.marks, number >> 5, bit)
            left -= int64(cuda.popc(votes))


@device_function
def _count_bits(d, parts):  # type: ignore[no-untyped-def]
    """Store in `before` how many edges leave before each word of marks."""
    total = d.wide[AT, d.summary[COUNT]]
    for w in range(cuda.grid(1), (total >> 5) + 1, threads(d)):
        if 32 * w >= total:  # behind the last edge
            d.marks[w] = 0
        d.before[w] = cuda.popc(uint32(d.marks[w]))
    spread(d.before, (total >> 5) + 1, d, parts)


@device_function
def _decide(p, d, tally):  # type: ignore[no-untyped-def]
    """Apply the updates of a pair in order.

    `left` edges are left of those before the batch, at most one unless pairs may have
    copies. Entry `top` is the last one that has inserted an edge that is there, or
    replaced the value of the edge. Copies that the batch has inserted are a list linked
    by `HEAD` from `top` on, which the next deletion takes: the last one, or, with
    ``copies="first"``, the first.
    """
    left, top, tail = int64(d.work[FOUND, p]), int64(-1), int64(-1)
    keeps = d.policy == codes.KEEP
    for b in range(d.wide[PAIR_FIRST, p], d.wide[PAIR_FIRST, p + 1]):
        place = d.work[PAIR_PLACES, b]
        i, e = place >> d.sides, int64(d.work[ENTRY_OF, place])
        is_given = place & d.sides == 0
        outcome, fate, head, taken = codes.INSERTED, codes.NOTHING, int64(-1), int64(0)
        if d.kinds[i] == 0:
            if d.copies == codes.ALL:
                taken, left = left, int64(0)
            elif left > 0 and (d.copies == codes.FIRST or top < 0):
                taken = int64(1)
                left -= 1
            while top >= 0 and (d.copies == codes.ALL or taken == 0):
                if d.fates[top] == codes.APPENDS:
                    taken += 1
                    if d.order[top] & d.sides == 0:
                        cuda.atomic.add(tally, BORN, -1)
                d.fates[top] = d.fates[top] | codes.DEAD
                top = int64(d.work[HEAD, top]) if keeps else int64(-1)
            outcome = codes.DELETED if taken > 0 else codes.MISSING
        elif keeps or (left == 0 and top < 0):
            fate = codes.APPENDS
            if is_given:
                cuda.atomic.add(tally, BORN, 1)
            if keeps and d.copies == codes.FIRST and top >= 0:
                d.work[HEAD, tail] = e
            else:
                head, top = top if keeps else e, e
            tail = e
        elif d.policy == codes.REFUSE:
            outcome = codes.REPEATED
        elif d.policy == codes.IGNORE:
            outcome = codes.IGNORED
        else:
            outcome = codes.REPLACED
            if top < 0:
                fate, top, d.wide[PLACE, e] = codes.REPLACES, e, d.wide[EDGE_AT, p]
            head = top
        d.fates[e], d.work[HEAD, e], d.work[SOURCE, e] = fate, head, i
        if head >= 0 and not keeps:
            d.work[SOURCE, head] = i
        if is_given:
            d.outcomes[i] = outcome
            cuda.atomic.add(tally, outcome, 1)
            if taken > 0:
                cuda.atomic.add(tally, codes.EDGES, taken)


@device_function
def _decide_all(d, tally):  # type: ignore[no-untyped-def]
    """Store the fate of each entry and the outcome of each update; count outcomes."""
    if d.looks == 0:
        for e in range(cuda.grid(1), d.summary[ENTRIES], threads(d)):
            d.fates[e], d.work[SOURCE, e] = codes.APPENDS, d.order[e] >> d.sides
        return
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        tally[k] = 0
    cuda.syncthreads()
    for p in range(cuda.grid(1), d.summary[PAIRS], threads(d)):
        _decide(p, d, tally)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        cuda.atomic.add(d.summary, k, tally[k])


@device_function
def _count_appends(d, parts):  # type: ignore[no-untyped-def]
    """Store in `APPENDED` prefix sums of the entries that append an edge."""
    entries = d.summary[ENTRIES]
    for e in range(cuda.grid(1), entries + 1, threads(d)):
        is_one = e < entries and d.looks != 0 and d.fates[e] == codes.APPENDS
        d.wide[APPENDED, e] = int64(is_one) if d.looks != 0 else e
    if d.looks != 0:
        spread(d.wide[APPENDED], entries + 1, d, parts)
    else:  # all entries append
        meet(d)


@device_function
def _measure_rows(d, counters, parts):  # type: ignore[no-untyped-def]
    """Store the new length of each touched row, its run, and how many slots are copied.

    A row moves to another run if its run is too short, or at least twice as long as it
    must be. All rows move if they are laid out anew.
    """
    count = d.summary[COUNT]
    for k in range(cuda.threadIdx.x, _COUNTERS, cuda.blockDim.x):
        counters[k] = 0
    cuda.syncthreads()
    for j in range(cuda.grid(1), d.limit + 1, threads(d)):
        d.work[TAKES, j], d.wide[COPY_AT, j], d.wide[NEEDS, j] = CLASS_COUNT, 0, 0
        if j > count:
            continue
        if j == count:
            d.summary[CAME] = d.wide[APPENDED, d.summary[ENTRIES]]
            if d.has_marks != 0:
                d.summary[GONE] = gone_before(d.wide[AT, j], d)
            continue
        row = d.work[ROW, j]
        start, now = int64(d.starts[row]), int64(d.classes[row])
        there, gone = int64(d.stops[row]) - start, int64(0)
        if d.has_marks != 0:
            gone = gone_before(d.wide[AT, j + 1], d) - gone_before(d.wide[AT, j], d)
        first, behind = d.wide[FIRST_OF, j], d.wide[FIRST_OF, j + 1]
        length = there - gone + d.wide[APPENDED, behind] - d.wide[APPENDED, first]
        best, choice = _class_of(length), now
        is_long = _size_of(now) >= 2 * _size_of(best)
        if d.is_dense != 0 or length > _size_of(now) or best == 0 or is_long:
            choice = best
        moves = d.is_dense != 0 or choice != now
        frees = moves and now > 0 and d.is_dense == 0
        d.wide[START, j], d.wide[LENGTH, j], d.work[CHOSEN, j] = start, length, choice
        d.wide[TARGET, j] = 0 if moves else start
        if moves or gone > 0:
            d.wide[COPY_AT, j] = there
            if there >= LONG:
                d.summary[IS_SHARED] = 1
        if moves and choice > 0:
            d.work[TAKES, j], d.wide[NEEDS, j] = choice, _size_of(choice)
            cuda.atomic.add(counters, choice, 1)
        d.work[FREES, j] = now if frees else CLASS_COUNT
        if frees:
            cuda.atomic.add(counters, CLASS_COUNT + now, 1)
        if d.is_dense == 0:
            cuda.atomic.add(counters, 2 * CLASS_COUNT + min(there, HUB), -1)
        cuda.atomic.add(counters, 2 * CLASS_COUNT + min(length, HUB), 1)
        if length >= HUB or there >= HUB:
            place = cuda.atomic.add(d.summary, HUBS, 1)
            d.wide[HUB_ROWS, place] = int64(row) << HUB_BITS | length
            if place < HUBS_AT_ONCE:
                d.summary[HUB_LIST + place] = d.wide[HUB_ROWS, place]
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _COUNTERS, cuda.blockDim.x):
        if counters[k] != 0:
            cuda.atomic.add(d.summary, TAKEN + k, counters[k])
            if k < 2 * CLASS_COUNT:
                which = COMING if k < CLASS_COUNT else LEAVING
                cuda.atomic.add(d.summary, which, counters[k])
    spread(d.wide[COPY_AT], d.limit + 1, d, parts)
    if cuda.grid(1) == 0:
        d.summary[COPIED] = d.wide[COPY_AT, count]


# -- scan


@device_function
def _take_runs(d):  # type: ignore[no-untyped-def]
    """Give rows, sorted by size class, the runs in the queue of the class, in order."""
    for i in range(cuda.grid(1), d.summary[COUNT], threads(d)):
        size_class, j = int64(d.work[TAKE_CLASS, i]), d.work[TAKE_ROW, i]
        if size_class < CLASS_COUNT:
            run = d.table[BEGINS, size_class] + i
            run -= lower_bound(d.work[TAKE_CLASS], int64(0), i, size_class)
            if run < d.table[STOPS, size_class]:
                d.wide[TARGET, j], d.wide[NEEDS, j] = d.runs[run], 0


@device_function
def _cut_regions(d):  # type: ignore[no-untyped-def]
    """Store how many slots rows need up to the end of each region; one thread.

    A row that does not fit into a region begins the next one.
    """
    if cuda.grid(1) == 0:
        base, laid = int64(0), d.wide[NEEDS]
        for r in range(d.regions):
            room = base + d.table[ENDS, r] - d.table[FREE, r]
            behind = lower_bound(laid, int64(0), d.summary[COUNT] + 1, room + 1)
            base = max(base, laid[behind - 1])
            d.table[CUTS, r] = base
        d.summary[CUT] = d.table[CUTS, 0]


@device_function
def _lay_rows(d):  # type: ignore[no-untyped-def]
    """Give the rows without a run parts of free regions."""
    for j in range(cuda.grid(1), d.summary[COUNT], threads(d)):
        laid, region, base = d.wide[NEEDS, j], int64(0), int64(0)
        if d.wide[NEEDS, j + 1] > laid:
            while region < d.regions and d.table[CUTS, region] <= laid:
                base = d.table[CUTS, region]
                region += 1
            if region < d.regions:  # else there is no room
                d.wide[TARGET, j] = d.table[FREE, region] + laid - base


@device_function
def _list_batch(d, at, other, counts, parts):  # type: ignore[no-untyped-def]
    """Sort updates into entries, rows and pairs, and number the slots of rows."""
    _list_entries(d, at, other)
    meet(d)
    turn, turns = int64(0), 1 + 2 * d.looks
    while turn < turns:  # one text of the sort: it is long
        keys, through, into, spare = int64(KEY), int64(-1), KEYS, SPARE
        bits = bits_of(d.none)
        if turn == 1:
            keys, into, bits = int64(END_KEY), PAIR_KEYS, int32(bits + d.is_sided)
            if digits_of(bits_of(d.limit))[0] & 1 != 0:  # where the last sort begins
                into, spare = SPARE, PAIR_KEYS
        elif turn == 2:
            keys, through, into = int64(ROW_OF), int64(ENTRY_OF), PAIR_KEYS
            bits = bits_of(d.limit)
        sort(keys, through, into, spare, d.most, bits, d, counts, parts)
        if turn == 0:
            if d.is_dense != 0:
                _list_all_rows(d)
            else:
                _mark(d.most, False, d, parts)
                _number_rows(d)
            meet(d)
            if d.looks != 0 and d.summary[IS_LONG] == 0:  # the same for all threads
                _rank_ends(d)
                meet(d)
                turn = turns
        turn += 1
    if d.looks != 0:
        _mark(d.summary[ENTRIES], True, d, parts)
        _number_pairs(d)
        meet(d)
        _measure(d, parts)


@device_function
def _find_runs(d, counts, parts):  # type: ignore[no-untyped-def]
    """Find the fates of entries and rows, and runs for rows that move."""
    if d.looks != 0 and d.has_marks != 0:
        _count_bits(d, parts)
    _decide_all(d, counts)
    meet(d)
    _count_appends(d, parts)
    _measure_rows(d, counts, parts)
    if d.is_dense == 0:
        takes = d.has_runs != 0 and d.summary[COMING] > 0
        for turn in range(2):
            is_due, keys, into = d.summary[LEAVING] > 0, FREES, FREE_CLASS
            if turn == 1:
                is_due, keys, into = takes, TAKES, TAKE_CLASS
            if is_due:
                count, no = d.summary[COUNT], int64(-1)
                sort(keys, no, into, SPARE, count, CLASS_BITS, d, counts, parts)
        if takes:
            _take_runs(d)
        if d.summary[COMING] > 0:
            _lay(False, d, parts)


@device_function
def _lay(is_summed, d, parts):  # type: ignore[no-untyped-def]
    """Lay rows that have no run yet into free regions."""
    if not is_summed:
        spread(d.wide[NEEDS], d.summary[COUNT] + 1, d, parts)
    _cut_regions(d)
    meet(d)
    _lay_rows(d)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def list_batch(d, at, other):  # type: ignore[no-untyped-def]
    """Run the passes before `match`: sort the updates, list rows and pairs."""
    counts = cuda.shared.array(COUNTS, int32)
    _list_batch(d, at, other, counts, cuda.shared.array(WARPS, int64))


@kernel(cache=True)
def match(d, marks_copies):  # type: ignore[no-untyped-def]
    """Run `_match`, or `_mark_copies`, by more blocks than may meet."""
    if marks_copies:
        _mark_copies(d)
    else:
        _match(d)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def find_runs(d):  # type: ignore[no-untyped-def]
    """Run the passes behind `match`: find fates, new lengths of rows, and runs."""
    counts = cuda.shared.array(COUNTS, int32)
    _find_runs(d, counts, cuda.shared.array(WARPS, int64))


@kernel(cache=True, launch_bounds=(FEW_THREADS, 1))
def plan_batch(d, at, other, marks_copies):  # type: ignore[no-untyped-def]
    """Run all passes of a small batch: the first block sorts, all look for pairs."""
    counts = cuda.shared.array(COUNTS, int32)
    parts = cuda.shared.array(WARPS, int64)
    if cuda.blockIdx.x == 0:
        _list_batch(d, at, other, counts, parts)
    if d.looks != 0:
        meet_grid(d)
        _match(d)
        if marks_copies:
            meet_grid(d)
            _mark_copies(d)
        meet_grid(d)
    if cuda.blockIdx.x == 0:
        _find_runs(d, counts, parts)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def lay_rows(d, is_summed):  # type: ignore[no-untyped-def]
    """Lay rows into other regions; `is_summed`: `NEEDS` are sums already."""
    _lay(is_summed, d, cuda.shared.array(WARPS, int64))
