"""Passes of a batch over the rows of a pool, on the GPU.

They do what `kernels_cpu` does, to the same bits. A batch is sorted twice: by row, in
the order of the batch (*entries*), and by row and other end (*pairs* of entries). A
*place* is what both sorts order: update i, or ``2 i`` and ``2 i + 1`` for both of its
ends where an edge stands at both (`sides` is 1).

`list_rows`, `list_pairs`, `decide` and `plan_rows` have the passes before apply. They
run some of them one after the other in one block, for a small batch, or one of them in
a launch of many blocks. The sorts are passes of one block; those of large
batches are `sorting.sort_stably`. Each thread has a share of consecutive numbers, so
that sums before a number take two passes: sums by block (`_add_up`), and the sums in
front of a thread (`_before`).

Slots of touched rows are numbered one behind the other; ``wide[AT, j]`` is the first
number of row j. A warp takes 256 of these numbers, so that a hub is shared among many
warps. Bit ``n`` of `marks` says whether the edge at number n leaves its row, `before`
how many leave in the words before. Nothing depends on the order of atomics: they add
integers, or list rows that the host sorts.
"""

from __future__ import annotations

from collections import namedtuple

from featgraph._cuda import cuda, device_function, int32, int64, kernel, uint32
from featgraph.dynamic import kernels_cpu as codes
from featgraph.dynamic.kernels_cpu import CLASS_COUNT, HUB

FULL_WARP = 0xFFFFFFFF
#: Slots of a warp: each lane takes one of 32 in each step.
STEPS = 8
SHARE = 32 * STEPS
#: More copies of a pair than there are.
EVERY = 2**31 - 1
#: Most entries of a batch that one block plans, or sorts; the bits of their numbers; a
#: key behind all others.
FEW, _BITS, _MOST = 4096, 12, 2**63 - 1
#: Most threads of a block.
THREADS, WARPS = 512, 16
#: Where the numbers are that the host reads: how many updates had each outcome, edges
#: that came as given, that came and that left, slots that are copied, rows that are or
#: were hubs, entries, touched rows, pairs, and slots in the first region; then runs
#: taken and freed by class, and changes of the counts of lengths.
BORN, CAME, GONE, COPIED, HUBS, ENTRIES, COUNT, PAIRS, CUT = range(8, 17)
#: Hubs that the host reads at once with these numbers.
HUBS_AT_ONCE = 256
HUB_LIST = 24
TAKEN = HUB_LIST + HUBS_AT_ONCE
FREED = TAKEN + CLASS_COUNT
LENGTHS = FREED + CLASS_COUNT
SUMMARY = LENGTHS + HUB + 1
_COUNTERS = LENGTHS - TAKEN + HUB + 1
_TALLIES = BORN + 1

#: Rows of `Passes.work`: by place, keys, other ends and entries; by entry, its row, its
#: pair, the entry that stands for it, and the update with its value; by pair, its row,
#: the copies that deletions take, and those that are there; by row, its vertex, the
#: class of its run, and the classes of the runs that it comes to and leaves.
KEY, END, ENTRY_OF, ROW_OF, PAIR_OF, HEAD, SOURCE = range(7)
PAIR_ROW, NEED, FOUND, ROW, CHOSEN, TAKES, FREES = range(7, 14)
WORK = 14
#: Rows of `Passes.wide`: sums before an entry; by row, its first entry, its first
#: number, its first slot, the edges afterwards, its first number among those that are
#: copied, the slots that it needs, its first slot afterwards, and hubs; by pair, its
#: first entry, its key as in `kernels_cpu`, and where its edge is; by entry, the same,
#: and how many entries before append an edge.
SUMS, FIRST_OF, AT, START, LENGTH, COPY_AT, NEEDS, TARGET, HUB_ROWS = range(9)
PAIR_FIRST, PAIR_KEY, EDGE_AT, PLACE, APPENDED = range(9, 14)
WIDE = 14
#: Rows of `Passes.table`: by class, where free runs begin, and end; by region of free
#: memory, where it begins and ends, and how many slots rows need up to there.
BEGINS, STOPS, FREE, ENDS, CUTS = range(5)
#: Bits of a hub's length behind its vertex: there are fewer than 2**32 edges.
HUB_BITS = 32


#: The arguments of the passes, by name.
#:
#: sides : 1 where an edge stands at both of its ends
#: none : the number of vertices; the row of a place without an entry
#: most, limit, regions : how many places, at most so many touched rows, and regions
#: policy, copies : see `kernels_cpu`
#: is_sided, is_dense, looks, has_marks : whether keys of pairs have sides, all rows are
#:     touched, anything depends on the edges that are there, and edges may leave
#: at, other, kinds, outcomes : by update
#: starts, stops, classes, ends, numbers : the rows
#: keys, order : rows and places of entries, in order
#: pairs : places by row and other end
#: fates : by entry
#: take_class, take_row, free_class, free_row : rows by the class of their run
#: work, wide : see above
#: marks, before : which edges leave
#: totals : sums by block
#: summary : what the host reads
#: table, runs : the queues of free runs
Passes = namedtuple(
    "Passes",
    "sides none most limit regions policy copies is_sided is_dense looks has_marks "
    "at other kinds outcomes starts stops classes ends numbers keys order pairs fates "
    "take_class take_row free_class free_row work wide marks before totals summary "
    "table runs",
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
def row_at(at, count, number, row):  # type: ignore[no-untyped-def]
    """Return the row that has a number; `row` is one that is not behind it, or -1."""
    if row >= 0 and number < at[row + 1]:
        return row
    if row >= 0 and number < at[row + 2]:
        return row + 1
    return lowest(at, int64(0), int64(count), number + 1) - 1


@device_function
def lowest(values, low, high, value):  # type: ignore[no-untyped-def]
    """Return the first place of a value, or of one above it, in an ascending range."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


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


# -- sums and sorts


@device_function
def _share(count):  # type: ignore[no-untyped-def]
    """Return the numbers below a count that this thread has: from, to."""
    each = (int64(count) + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    low = min(cuda.grid(1) * each, int64(count))
    return low, min(low + each, int64(count))


@device_function
def _block_sums(own, parts):  # type: ignore[no-untyped-def]
    """Return the sums of what a block's threads before this one have, and all have."""
    lane, warp = int32(cuda.threadIdx.x) & 31, int32(cuda.threadIdx.x) >> 5
    here, offset = int64(own), int32(1)
    while offset < 32:
        other = cuda.shfl_up_sync(FULL_WARP, here, offset)
        if lane >= offset:
            here += other
        offset += offset
    cuda.syncthreads()
    if lane == 31:
        parts[warp] = here
    cuda.syncthreads()
    before = total = int64(0)
    for other_warp in range(int32(cuda.blockDim.x) >> 5):
        if other_warp == warp:
            before = total
        total += parts[other_warp]
    return before + here - own, total


@device_function
def _add_up(own, d, parts):  # type: ignore[no-untyped-def]
    """Store the sum of what a block's threads have."""
    if cuda.gridDim.x > 1:  # one block needs none
        _, total = _block_sums(own, parts)
        if cuda.threadIdx.x == 0:
            d.totals[cuda.blockIdx.x] = total


@device_function
def _before(values, low, high, d, parts):  # type: ignore[no-untyped-def]
    """Return the sum of the values before those of this thread."""
    own = base = int64(0)
    for place in range(low, high):
        own += values[place]
    if cuda.gridDim.x > 1:
        here = int64(0)
        for block in range(cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x):
            here += d.totals[block]
        _, base = _block_sums(here, parts)
    before, _ = _block_sums(own, parts)
    return base + before


@device_function
def _spread(values, count, d, parts):  # type: ignore[no-untyped-def]
    """Replace values by the sums before them."""
    low, high = _share(count)
    before = _before(values, low, high, d, parts)
    for place in range(low, high):
        own = values[place]
        values[place] = before
        before += own


@device_function
def _sort(keys, count):  # type: ignore[no-untyped-def]
    """Sort keys of a block, which differ from each other; returns behind a barrier."""
    size = 1
    while size < count:
        size += size
    for place in range(count + cuda.threadIdx.x, size, cuda.blockDim.x):
        keys[place] = _MOST
    cuda.syncthreads()
    length = 2
    while length <= size:
        step = length >> 1
        while step > 0:
            for place in range(cuda.threadIdx.x, size >> 1, cuda.blockDim.x):
                low = 2 * place - (place & (step - 1))
                one, other = keys[low], keys[low + step]
                if (one > other) == ((low & length) == 0):
                    keys[low], keys[low + step] = other, one
            cuda.syncthreads()
            step >>= 1
        length += length


@device_function
def _sort_block(order, count, keys, d):  # type: ignore[no-untyped-def]
    """Sort those of the first numbers that a block has by their keys in an order."""
    first = int64(cuda.blockIdx.x) << _BITS
    size = max(min(int64(count) - first, int64(FEW)), int64(0))
    cuda.syncthreads()
    for place in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        number = first + place
        if order == BY_ROW:
            key = int64(d.work[KEY, number])
        elif order == BY_PAIR:
            at = d.order[number]
            key = int64(d.work[ROW_OF, number]) << 32 | int64(d.work[END, at]) << 1
            key |= at & d.is_sided
        else:
            key = int64(d.work[order, number])
        keys[place] = key << _BITS | place
    _sort(keys, size)
    for place in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        d.wide[SUMS, first + place] = keys[place]


@device_function
def _merge_blocks(order, count, d):  # type: ignore[no-untyped-def]
    """Put what blocks have sorted in one order: of equal keys, lower numbers first."""
    for place in range(cuda.grid(1), count, cuda.gridsize(1)):
        key, own, rank = d.wide[SUMS, place], place >> _BITS, place & (FEW - 1)
        for block in range((count + FEW - 1) >> _BITS):
            if block != own:
                low, least = block << _BITS, key >> _BITS
                if block < own:
                    least += 1
                high = min(low + FEW, int64(count))
                rank += lowest(d.wide[SUMS], low, high, least << _BITS) - low
        number, key = (own << _BITS) + (key & (FEW - 1)), key >> _BITS
        if order == BY_ROW:
            d.keys[rank], d.order[rank] = key, number
        elif order == BY_PAIR:
            d.pairs[rank] = d.order[number]
        elif order == TAKES:
            d.take_class[rank], d.take_row[rank] = key, number
        else:
            d.free_class[rank], d.free_row[rank] = key, number


# -- entries, rows and pairs


@device_function
def _list_entries(d):  # type: ignore[no-untyped-def]
    """Store row and other end of each place; row `none` for one without an entry."""
    for k in range(cuda.grid(1), d.summary.size, cuda.gridsize(1)):
        d.summary[k] = 0
    for i in range(cuda.grid(1), d.most >> d.sides, cuda.gridsize(1)):
        row, end, place = d.at[i], d.other[i], i << d.sides
        is_there = row >= 0
        d.outcomes[i] = codes.INSERTED if is_there else codes.IGNORED
        d.work[KEY, place] = row if is_there else d.none
        d.work[END, place] = end if is_there else 0
        if d.sides != 0:
            is_there = is_there and row != end
            d.work[KEY, place + 1] = end if is_there else d.none
            d.work[END, place + 1] = row if is_there else 0


@device_function
def _mark(count, is_pair, d, parts):  # type: ignore[no-untyped-def]
    """Mark the first entry of each row, or of each pair in the order by pairs."""
    low, high = _share(count)
    own = int64(0)
    for e in range(low, high):
        is_first = d.keys[e] < d.none and (e == 0 or d.keys[e] != d.keys[e - 1])
        if is_pair and not is_first:
            place, last = d.pairs[e], d.pairs[e - 1]
            is_first = d.work[END, place] != d.work[END, last]
            is_first = is_first or (place ^ last) & d.is_sided != 0
        d.wide[SUMS, e] = 1 if is_first else 0
        own += d.wide[SUMS, e]
    _add_up(own, d, parts)


@device_function
def _number_rows(d, parts):  # type: ignore[no-untyped-def]
    """List touched rows, where they begin, and the row of each entry; count both."""
    count = d.most
    low, high = _share(count)
    j = _before(d.wide[SUMS], low, high, d, parts) - 1
    for e in range(low, high):
        j += d.wide[SUMS, e]
        d.work[ROW_OF, e] = j
        d.work[ENTRY_OF, d.order[e]] = e
        if d.wide[SUMS, e] != 0:
            d.work[ROW, j], d.wide[FIRST_OF, j] = d.keys[e], e
        if d.keys[e] < d.none and (e + 1 == count or d.keys[e + 1] == d.none):
            d.wide[FIRST_OF, j + 1] = e + 1
            d.summary[ENTRIES], d.summary[COUNT] = e + 1, j + 1


@device_function
def _list_all_rows(d):  # type: ignore[no-untyped-def]
    """Do so where all rows are touched."""
    for row in range(cuda.grid(1), d.none + 1, cuda.gridsize(1)):
        first = lowest(d.keys, int64(0), int64(d.most), row)
        d.wide[FIRST_OF, row] = first
        if row < d.none:
            d.work[ROW, row] = row
        else:
            d.summary[ENTRIES], d.summary[COUNT] = first, row
    for e in range(cuda.grid(1), d.most, cuda.gridsize(1)):
        d.work[ROW_OF, e] = d.keys[e]
        d.work[ENTRY_OF, d.order[e]] = e


@device_function
def _number_pairs(d, parts):  # type: ignore[no-untyped-def]
    """List pairs: where they begin, their keys, and rows."""
    count = d.summary[ENTRIES]
    low, high = _share(count)
    p = _before(d.wide[SUMS], low, high, d, parts) - 1
    for b in range(low, high):
        p += d.wide[SUMS, b]
        d.work[PAIR_OF, b] = p
        if d.wide[SUMS, b] != 0:
            place = d.pairs[b]
            d.wide[PAIR_FIRST, p], d.work[PAIR_ROW, p] = b, d.work[ROW_OF, b]
            d.wide[PAIR_KEY, p] = (int64(d.work[END, place]) << 1) + (
                place & d.is_sided
            )
        if b + 1 == count:
            d.wide[PAIR_FIRST, p + 1], d.summary[PAIRS] = count, p + 1


# -- plan


@device_function
def _measure(d, parts):  # type: ignore[no-untyped-def]
    """Store how many copies that are there the deletions of each pair take.

    And the lengths of rows that have entries, 0 of others and behind the last.
    """
    for p in range(cuda.grid(1), d.summary[PAIRS], cuda.gridsize(1)):
        needed = own = int64(0)
        for b in range(d.wide[PAIR_FIRST, p], d.wide[PAIR_FIRST, p + 1]):
            if d.kinds[d.pairs[b] >> d.sides] != 0:
                own += 1
            elif d.copies == codes.ALL:
                needed = EVERY
            elif d.copies == codes.LAST and own > 0:
                own -= 1
            else:
                needed += 1
        d.work[NEED, p], d.work[FOUND, p] = needed, 0
    count, sum_here = d.summary[COUNT], int64(0)
    low, high = _share(count + 1)
    for j in range(low, high):
        length = int64(0)
        if j < count and d.wide[FIRST_OF, j] < d.wide[FIRST_OF, j + 1]:
            row = d.work[ROW, j]
            length = int64(d.stops[row]) - int64(d.starts[row])
        d.wide[AT, j] = length
        sum_here += length
    _add_up(sum_here, d, parts)


@device_function
def _count_bits(d, parts):  # type: ignore[no-untyped-def]
    """Count the edges of each word that leave."""
    total, own = d.wide[AT, d.summary[COUNT]], int64(0)
    low, high = _share((total >> 5) + 1)
    for w in range(low, high):
        if 32 * w >= total:  # behind the last edge
            d.marks[w] = 0
        d.before[w] = cuda.popc(uint32(d.marks[w]))
        own += d.before[w]
    _add_up(own, d, parts)


@device_function
def _decide_single(p, d, tally):  # type: ignore[no-untyped-def]
    """Take the updates of a pair one by one where no pair has two edges.

    `now` is 0 for an absent edge, 1 for one of the graph, and 2 behind entry `last`,
    which inserted the edge or replaced its value first.
    """
    now, last, last_is_given = int64(d.work[FOUND, p]), int64(-1), False
    for b in range(d.wide[PAIR_FIRST, p], d.wide[PAIR_FIRST, p + 1]):
        place = d.pairs[b]
        i, e = place >> d.sides, int64(d.work[ENTRY_OF, place])
        is_given = place & d.sides == 0
        outcome, fate, head = codes.INSERTED, codes.NOTHING, int64(-1)
        if d.kinds[i] == 0:
            outcome = codes.MISSING
            if now > 0:
                outcome = codes.DELETED
            if now > 1:
                if d.fates[last] == codes.APPENDS and last_is_given:
                    cuda.atomic.add(tally, BORN, -1)
                d.fates[last] = d.fates[last] | codes.DEAD
            now = int64(0)
        elif now == 0:
            fate, head, last, now = codes.APPENDS, e, e, int64(2)
            last_is_given = is_given
            if is_given:
                cuda.atomic.add(tally, BORN, 1)
        elif d.policy == codes.REFUSE:
            outcome = codes.REPEATED
        elif d.policy == codes.IGNORE:
            outcome = codes.IGNORED
        elif now == 1:
            fate, head, last, now = codes.REPLACES, e, e, int64(2)
            outcome, d.wide[PLACE, e] = codes.REPLACED, d.wide[EDGE_AT, p]
        else:
            outcome, head = codes.REPLACED, last
        d.fates[e], d.work[HEAD, e] = fate, head
        if head >= 0:
            d.work[SOURCE, head] = i
        if is_given:
            d.outcomes[i] = outcome
            cuda.atomic.add(tally, outcome, 1)
            if outcome == codes.DELETED:
                cuda.atomic.add(tally, codes.EDGES, 1)


@device_function
def _decide_copies(p, d, tally):  # type: ignore[no-untyped-def]
    """Take the updates of a pair one by one where pairs may have several edges.

    `left` copies of the graph are left. Those of the batch are a list through `HEAD`
    from `top` on: the last one first, but where deletions take the first.
    """
    left, top, tail = int64(d.work[FOUND, p]), int64(-1), int64(-1)
    for b in range(d.wide[PAIR_FIRST, p], d.wide[PAIR_FIRST, p + 1]):
        place = d.pairs[b]
        i, e = place >> d.sides, int64(d.work[ENTRY_OF, place])
        is_given = place & d.sides == 0
        outcome, fate, taken = codes.INSERTED, codes.NOTHING, int64(0)
        d.work[HEAD, e], d.work[SOURCE, e] = -1, i
        if d.kinds[i] != 0:
            fate = codes.APPENDS
            if is_given:
                cuda.atomic.add(tally, BORN, 1)
            if d.copies != codes.FIRST:
                d.work[HEAD, e], top = top, e
            elif top < 0:
                top = tail = e
            else:
                d.work[HEAD, tail] = e
                tail = e
        else:
            if d.copies == codes.ALL:
                taken, left = left, int64(0)
            elif left > 0 and (d.copies == codes.FIRST or top < 0):
                taken = int64(1)
                left -= 1
            while top >= 0 and (d.copies == codes.ALL or taken == 0):
                if d.order[top] & d.sides == 0:
                    cuda.atomic.add(tally, BORN, -1)
                d.fates[top] = codes.APPENDS | codes.DEAD
                top = int64(d.work[HEAD, top])
                taken += 1
            outcome = codes.DELETED if taken > 0 else codes.MISSING
        d.fates[e] = fate
        if is_given:
            d.outcomes[i] = outcome
            cuda.atomic.add(tally, outcome, 1)
            if taken > 0:
                cuda.atomic.add(tally, codes.EDGES, taken)


@device_function
def _decide_all(d, tally):  # type: ignore[no-untyped-def]
    """Find what becomes of each entry, and the outcome of each update."""
    if d.looks == 0:
        for e in range(cuda.grid(1), d.summary[ENTRIES], cuda.gridsize(1)):
            d.fates[e], d.work[SOURCE, e] = codes.APPENDS, d.order[e] >> d.sides
        return
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        tally[k] = 0
    cuda.syncthreads()
    for p in range(cuda.grid(1), d.summary[PAIRS], cuda.gridsize(1)):
        if d.policy == codes.KEEP:
            _decide_copies(p, d, tally)
        else:
            _decide_single(p, d, tally)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        cuda.atomic.add(d.summary, k, tally[k])


@device_function
def _mark_appends(d, parts):  # type: ignore[no-untyped-def]
    """Mark entries that append an edge; the last mark is 0."""
    entries, own = d.summary[ENTRIES], int64(0)
    low, high = _share(entries + 1)
    for e in range(low, high):
        d.wide[APPENDED, e] = 1 if e < entries and d.fates[e] == codes.APPENDS else 0
        own += d.wide[APPENDED, e]
    _add_up(own, d, parts)


@device_function
def _measure_rows(d, counters, parts):  # type: ignore[no-untyped-def]
    """Find the length of each row afterwards, its run, and how much of it is copied.

    A row moves where its run is too short, or twice as long as it must be; where all
    rows are laid out anew, all do. `TAKES` and `FREES` are the classes of runs that
    rows come to and leave, `CLASS_COUNT` for none.
    """
    count, sum_here = d.summary[COUNT], int64(0)
    for k in range(cuda.threadIdx.x, _COUNTERS, cuda.blockDim.x):
        counters[k] = 0
    cuda.syncthreads()
    low, high = _share(d.limit + 1)
    for j in range(low, high):
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
        if there > gone and (moves or gone > 0):
            d.wide[COPY_AT, j] = there
            sum_here += there
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
    if sum_here > 0:
        cuda.atomic.add(d.summary, COPIED, sum_here)
    _add_up(sum_here, d, parts)


# -- scan


@device_function
def _take_runs(d):  # type: ignore[no-untyped-def]
    """Give rows, sorted by class, the runs of the queues, in order."""
    for i in range(cuda.grid(1), d.summary[COUNT], cuda.gridsize(1)):
        size_class, j = int64(d.take_class[i]), d.take_row[i]
        if size_class < CLASS_COUNT:
            run = d.table[BEGINS, size_class] + i
            run -= lowest(d.take_class, int64(0), i, size_class)
            if run < d.table[STOPS, size_class]:
                d.wide[TARGET, j], d.wide[NEEDS, j] = d.runs[run], 0


@device_function
def _add_needs(d, parts):  # type: ignore[no-untyped-def]
    """Sum the slots that rows need beyond these runs."""
    low, high = _share(d.summary[COUNT] + 1)
    own = int64(0)
    for j in range(low, high):
        own += d.wide[NEEDS, j]
    _add_up(own, d, parts)


@device_function
def _cut_regions(d):  # type: ignore[no-untyped-def]
    """Store how many slots rows need up to the end of each region; one thread.

    A row that does not fit into a region begins the next one.
    """
    if cuda.grid(1) == 0:
        base, laid = int64(0), d.wide[NEEDS]
        for r in range(d.regions):
            room = base + d.table[ENDS, r] - d.table[FREE, r]
            behind = lowest(laid, int64(0), d.summary[COUNT] + 1, room + 1)
            base = max(base, laid[behind - 1])
            d.table[CUTS, r] = base
        d.summary[CUT] = d.table[CUTS, 0]


@device_function
def _lay_rows(d):  # type: ignore[no-untyped-def]
    """Give the rows without a run parts of free regions."""
    for j in range(cuda.grid(1), d.summary[COUNT], cuda.gridsize(1)):
        laid, region, base = d.wide[NEEDS, j], int64(0), int64(0)
        if d.wide[NEEDS, j + 1] > laid:
            while region < d.regions and d.table[CUTS, region] <= laid:
                base = d.table[CUTS, region]
                region += 1
            if region < d.regions:  # else there is no room
                d.wide[TARGET, j] = d.table[FREE, region] + laid - base


#: The passes, in order; `match` comes before `COUNT_BITS`. Those that sort are for one
#: block.
LIST_ENTRIES, SORT_ROWS, MERGE_ROWS, MARK_ROWS, LIST_ROWS, LIST_ALL_ROWS = range(6)
SORT_PAIRS, MERGE_PAIRS, MARK_PAIRS, LIST_PAIRS, MEASURE, NUMBER_SLOTS = range(6, 12)
COUNT_BITS, SUM_BITS, DECIDE, MARK_APPENDS, SUM_APPENDS, PLAN_ROWS = range(12, 18)
SUM_COPIED, SORT_FREED, MERGE_FREED, SORT_TAKEN, MERGE_TAKEN, TAKE_RUNS = range(18, 24)
ADD_NEEDS, SUM_NEEDS, CUT_REGIONS, LAY_ROWS, END_OF_PASSES = range(24, 29)
#: Sorts of numbers: by row, by pair, or by a row of `work`.
BY_ROW, BY_PAIR = -1, -2


@device_function
def _is_due(step, steps):  # type: ignore[no-untyped-def]
    """Wait for the block; return whether a pass is one of some passes, by bit."""
    cuda.syncthreads()
    return (steps >> step) & 1 != 0


@kernel(cache=True, launch_bounds=(THREADS, 1))
def list_rows(steps, d):  # type: ignore[no-untyped-def]
    """Run passes that list entries and rows."""
    keys = cuda.shared.array(FEW, int64)
    parts = cuda.shared.array(WARPS, int64)
    if _is_due(LIST_ENTRIES, steps):
        _list_entries(d)
    if _is_due(SORT_ROWS, steps):
        _sort_block(BY_ROW, d.most, keys, d)
    if _is_due(MERGE_ROWS, steps):
        _merge_blocks(BY_ROW, d.most, d)
    if _is_due(MARK_ROWS, steps):
        _mark(d.most, False, d, parts)
    if _is_due(LIST_ROWS, steps):
        _number_rows(d, parts)
    if _is_due(LIST_ALL_ROWS, steps):
        _list_all_rows(d)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def list_pairs(steps, d):  # type: ignore[no-untyped-def]
    """Run passes that list pairs, and number slots."""
    keys = cuda.shared.array(FEW, int64)
    parts = cuda.shared.array(WARPS, int64)
    if _is_due(SORT_PAIRS, steps):
        _sort_block(BY_PAIR, d.summary[ENTRIES], keys, d)
    if _is_due(MERGE_PAIRS, steps):
        _merge_blocks(BY_PAIR, d.summary[ENTRIES], d)
    if _is_due(MARK_PAIRS, steps):
        _mark(d.summary[ENTRIES], True, d, parts)
    if _is_due(LIST_PAIRS, steps):
        _number_pairs(d, parts)
    if _is_due(MEASURE, steps):
        _measure(d, parts)
    if _is_due(NUMBER_SLOTS, steps):
        _spread(d.wide[AT], d.summary[COUNT] + 1, d, parts)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def decide(steps, d):  # type: ignore[no-untyped-def]
    """Run passes that find what becomes of entries."""
    keys = cuda.shared.array(FEW, int64)
    parts = cuda.shared.array(WARPS, int64)
    if _is_due(COUNT_BITS, steps):
        _count_bits(d, parts)
    if _is_due(SUM_BITS, steps):
        total = d.wide[AT, d.summary[COUNT]]
        _spread(d.before, (total >> 5) + 1, d, parts)
    if _is_due(DECIDE, steps):
        _decide_all(d, keys)


@kernel(cache=True, launch_bounds=(THREADS, 1))
def plan_rows(steps, d):  # type: ignore[no-untyped-def]
    """Run passes that find rows and their runs."""
    keys = cuda.shared.array(FEW, int64)
    parts = cuda.shared.array(WARPS, int64)
    if _is_due(MARK_APPENDS, steps):
        _mark_appends(d, parts)
    if _is_due(SUM_APPENDS, steps):
        _spread(d.wide[APPENDED], d.summary[ENTRIES] + 1, d, parts)
    if _is_due(PLAN_ROWS, steps):
        _measure_rows(d, keys, parts)
    if _is_due(SUM_COPIED, steps):
        _spread(d.wide[COPY_AT], d.limit + 1, d, parts)
    if _is_due(SORT_FREED, steps):
        _sort_block(FREES, d.summary[COUNT], keys, d)
    if _is_due(MERGE_FREED, steps):
        _merge_blocks(FREES, d.summary[COUNT], d)
    if _is_due(SORT_TAKEN, steps):
        _sort_block(TAKES, d.summary[COUNT], keys, d)
    if _is_due(MERGE_TAKEN, steps):
        _merge_blocks(TAKES, d.summary[COUNT], d)
    if _is_due(TAKE_RUNS, steps):
        _take_runs(d)
    if _is_due(ADD_NEEDS, steps):
        _add_needs(d, parts)
    if _is_due(SUM_NEEDS, steps):
        _spread(d.wide[NEEDS], d.summary[COUNT] + 1, d, parts)
    if _is_due(CUT_REGIONS, steps):
        _cut_regions(d)
    if _is_due(LAY_ROWS, steps):
        _lay_rows(d)
