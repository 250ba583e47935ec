"""Passes of a batch over the rows of a pool, on the GPU.

They do what `kernels_cpu` does, to the same bits. A batch is sorted twice: by row, in
the order of the batch (*entries*), and by row and other end (*pairs* of entries). A
*place* is what both sorts order: update i, or ``2 i`` and ``2 i + 1`` for both of its
ends where an edge stands at both (`sides` is 1).

Slots of touched rows are numbered one behind the other; ``at[j]`` is the first number
of row j. A warp takes 256 of these numbers, so that a hub is shared among many warps.
Bit ``n`` of `marks` says whether the edge at number n leaves its row, `before` how many
leave in the words before. Nothing depends on the order of atomics: they add integers,
or list rows that the host sorts.
"""

from __future__ import annotations

from featgraph._cuda import cuda, device_function, int32, int64, kernel, uint32
from featgraph.dynamic.kernels_cpu import (
    ALL,
    APPENDS,
    CLASS_COUNT,
    DEAD,
    DELETED,
    EDGES,
    FIRST,
    HUB,
    IGNORE,
    IGNORED,
    INSERTED,
    LAST,
    LONG_CLASS,
    MISSING,
    NOTHING,
    REFUSE,
    REPEATED,
    REPLACED,
    REPLACES,
)

FULL_WARP = 0xFFFFFFFF
#: Slots of a warp: each lane takes one of 32 in each step.
STEPS = 8
SHARE = 32 * STEPS
#: More copies of a pair than there are.
_MANY = 2**31 - 1
#: Where the numbers are that the host reads: how many updates had each outcome, edges
#: that came as given, that came and that left, slots that are copied, rows that are or
#: were hubs; then runs taken and freed by class, and changes of the counts of lengths.
BORN, CAME, GONE, COPIED, HUBS = range(8, 13)
TAKEN = 16
FREED = TAKEN + CLASS_COUNT
LENGTHS = FREED + CLASS_COUNT
SUMMARY = LENGTHS + HUB + 1
_COUNTERS = LENGTHS - TAKEN + HUB + 1
_TALLIES = BORN + 1


@device_function
def _size_of(size_class):  # type: ignore[no-untyped-def]
    """Return the slots of a run of a class."""
    if size_class == 0:
        return int64(0)
    step = int64(size_class) - 1
    if step < LONG_CLASS:
        return (4 + (step & 3)) << (step >> 2)
    return int64(4096) << (step - LONG_CLASS + 1)


@device_function
def _class_of(length):  # type: ignore[no-untyped-def]
    """Return the class of the shortest run for so many edges."""
    found = int64(0)
    while _size_of(found) < length:
        found += 1
    return found


@device_function
def row_at(at, count, number):  # type: ignore[no-untyped-def]
    """Return the row that has a number, of `count` rows."""
    low, high = int64(0), int64(count)
    while high - low > 1:
        middle = (low + high) >> 1
        if at[middle] <= number:
            low = middle
        else:
            high = middle
    return low


@device_function
def gone_before(number, marks, before):  # type: ignore[no-untyped-def]
    """Return how many edges before a number leave."""
    word = uint32(marks[number >> 5])
    lower = (uint32(1) << uint32(number & 31)) - uint32(1)
    return before[number >> 5] + int64(cuda.popc(uint32(word & lower)))


@device_function
def is_marked(number, marks):  # type: ignore[no-untyped-def]
    """Return whether the edge at a number leaves its row."""
    return (uint32(marks[number >> 5]) >> uint32(number & 31)) & uint32(1) != 0


# -- sorting


@kernel(cache=True)
def list_entries(at, other, sides, none, keys, ends):  # type: ignore[no-untyped-def]
    """Store row and other end of each place; row `none` for one without an entry."""
    for i in range(cuda.grid(1), at.size, cuda.gridsize(1)):
        row, end = at[i], other[i]
        is_there = row >= 0
        keys[i << sides] = row if is_there else none
        ends[i << sides] = end if is_there else 0
        if sides != 0:
            is_there = is_there and row != end
            keys[2 * i + 1] = end if is_there else none
            ends[2 * i + 1] = row if is_there else 0


@kernel(cache=True)
def list_sides(count, keys):  # type: ignore[no-untyped-def]
    """Store the side of each place."""
    for place in range(cuda.grid(1), count, cuda.gridsize(1)):
        keys[place] = place & 1


@kernel(cache=True)
def mark_rows(keys, none, flags):  # type: ignore[no-untyped-def]
    """Mark the first entry of each row."""
    for e in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        is_first = keys[e] < none and (e == 0 or keys[e] != keys[e - 1])
        flags[e] = 1 if is_first else 0


@kernel(cache=True)
def list_rows(  # type: ignore[no-untyped-def]
    keys, none, flags, sums, rows, first, row_of, order, entry_of, counts
):
    """List touched rows, where they begin, the row of each entry; count both.

    `entry_of` is the entry of each place.
    """
    for e in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        j = sums[e] + flags[e] - 1
        row_of[e] = j
        entry_of[order[e]] = e
        if flags[e] != 0:
            rows[j], first[j] = keys[e], e
        if keys[e] < none and (e + 1 == keys.size or keys[e + 1] == none):
            first[j + 1] = e + 1
            counts[0], counts[1] = e + 1, j + 1


@kernel(cache=True)
def list_all_rows(keys, none, first, row_of, order, entry_of, counts):  # type: ignore[no-untyped-def]
    """Do so where all rows below `none` are touched, whose entries `first` knows."""
    for e in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        row_of[e] = keys[e]
        entry_of[order[e]] = e
    if cuda.grid(1) == 0:
        counts[0], counts[1] = first[none], none


@kernel(cache=True)
def count_up(numbers):  # type: ignore[no-untyped-def]
    """Store the number of each entry."""
    for e in range(cuda.grid(1), numbers.size, cuda.gridsize(1)):
        numbers[e] = e


@kernel(cache=True)
def list_updates(entries, order, sides, sources):  # type: ignore[no-untyped-def]
    """Store the update of each entry."""
    for e in range(cuda.grid(1), entries, cuda.gridsize(1)):
        sources[e] = order[e] >> sides


@kernel(cache=True)
def mark_pairs(keys, none, ends, order, is_sided, flags):  # type: ignore[no-untyped-def]
    """Mark the first entry of each pair, in the order by pairs."""
    for e in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        is_first = keys[e] < none
        if is_first and e > 0 and keys[e] == keys[e - 1]:
            place, last = order[e], order[e - 1]
            is_first = ends[place] != ends[last] or (
                is_sided and (place & 1) != (last & 1)
            )
        flags[e] = 1 if is_first else 0


@kernel(cache=True)
def list_pairs(  # type: ignore[no-untyped-def]
    keys, none, ends, order, is_sided, flags, sums, row_of, pair_first, pair_keys,
    pair_rows, counts,
):  # fmt: skip
    """List pairs: where they begin, their keys as in `kernels_cpu`, and rows."""
    for e in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        p = sums[e] + flags[e] - 1
        if flags[e] != 0:
            place = order[e]
            side = place & 1 if is_sided else 0
            pair_first[p], pair_rows[p] = e, row_of[e]
            pair_keys[p] = (int64(ends[place]) << 1) + side
        if keys[e] < none and (e + 1 == keys.size or keys[e + 1] == none):
            pair_first[p + 1] = e + 1
            counts[2] = p + 1


# -- plan


@kernel(cache=True)
def count_needs(pairs, pair_first, order, sides, kinds, copies, need):  # type: ignore[no-untyped-def]
    """Store how many copies that are there the deletions of each pair take."""
    for p in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        needed = own = int64(0)
        for b in range(pair_first[p], pair_first[p + 1]):
            if kinds[order[b] >> sides] != 0:
                own += 1
            elif copies == ALL:
                needed = _MANY
            elif copies == LAST and own > 0:
                own -= 1
            else:
                needed += 1
        need[p] = needed


@kernel(cache=True)
def measure_rows(rows, counts, first, starts, stops, lengths):  # type: ignore[no-untyped-def]
    """Store lengths of rows that have entries, 0 of others and behind the last."""
    for j in range(cuda.grid(1), lengths.size, cuda.gridsize(1)):
        length = int64(0)
        if j < counts[1] and first[j] < first[j + 1]:
            length = int64(stops[rows[j]]) - int64(starts[rows[j]])
        lengths[j] = length


@device_function
def _pair_of(key, low, high, pair_keys):  # type: ignore[no-untyped-def]
    """Return the pair of a key in a range of pairs, or -1."""
    end = high
    while low < high:
        middle = (low + high) >> 1
        if pair_keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < end and pair_keys[low] == key:
        return low
    return int64(-1)


@kernel(cache=True)
def match(  # type: ignore[no-untyped-def]
    total, at, count, rows, starts, ends, numbers, is_sided, first, entries, sums,
    pairs, pair_keys, need, has_copies, found, places, marks,
):  # fmt: skip
    """Find the edges of touched rows that have entries; mark those that all leave.

    Without copies of pairs, `places` is where the edge of a pair is.
    """
    lane = int64(cuda.threadIdx.x) & 31
    warps = cuda.gridsize(1) >> 5
    for share in range((cuda.grid(1) >> 5) * SHARE, total, warps * SHARE):
        j = end = shift = low = high = int64(-1)
        for step in range(STEPS):
            base = share + 32 * step
            if base >= total:  # uniform
                break
            number, is_gone = base + lane, False
            if number < total:
                if end <= number:
                    if j < 0:
                        j = row_at(at, count, number)
                    while at[j + 1] <= number:
                        j += 1
                    end, shift = at[j + 1], int64(starts[rows[j]]) - at[j]
                    low, high = sums[first[j]], int64(pairs)
                    if first[j + 1] < entries:
                        high = sums[first[j + 1]]
                slot = number + shift
                key = int64(ends[slot]) << 1
                if is_sided:
                    key += int64(numbers[slot]) & 1
                p = _pair_of(key, low, high, pair_keys)
                if p >= 0:
                    is_gone = need[p] == _MANY
                    if has_copies:
                        cuda.atomic.add(found, p, 1)
                    else:
                        found[p] = 1
                        places[p] = slot
            word = cuda.ballot_sync(FULL_WARP, is_gone)
            if lane == 0:
                marks[base >> 5] = uint32(word)


@kernel(cache=True)
def mark_copies(  # type: ignore[no-untyped-def]
    pairs, pair_rows, pair_keys, need, found, is_backward, at, rows, starts, ends,
    numbers, is_sided, marks,
):  # fmt: skip
    """Mark the first or last copies of pairs that deletions take; a warp a pair."""
    lane = int64(cuda.threadIdx.x) & 31
    lower = (uint32(1) << uint32(lane)) - uint32(1)
    for p in range(cuda.grid(1) >> 5, pairs, cuda.gridsize(1) >> 5):
        left = min(int64(need[p]), int64(found[p]))
        j = pair_rows[p]
        length = at[j + 1] - at[j]
        start = int64(starts[rows[j]])
        for base in range(0, length, 32):
            if left <= 0:  # uniform
                break
            place = base + lane
            is_there = place < length
            if is_backward:
                place = length - 1 - place
            if is_there:
                key = int64(ends[start + place]) << 1
                if is_sided:
                    key += int64(numbers[start + place]) & 1
                is_there = key == pair_keys[p]
            votes = uint32(cuda.ballot_sync(FULL_WARP, is_there))
            if is_there and int64(cuda.popc(uint32(votes & lower))) < left:
                number = at[j] + place
                bit = uint32(1) << uint32(number & 31)
                cuda.atomic.or_(marks, number >> 5, bit)
            left -= int64(cuda.popc(votes))


@kernel(cache=True)
def count_bits(marks, counts):  # type: ignore[no-untyped-def]
    """Count the bits of each word."""
    for w in range(cuda.grid(1), marks.size, cuda.gridsize(1)):
        counts[w] = cuda.popc(uint32(marks[w]))


@kernel(cache=True)
def decide_single(  # type: ignore[no-untyped-def]
    pairs, pair_first, order, sides, entry_of, kinds, policy, found, places, fates,
    heads, sources, entry_places, outcomes, summary,
):  # fmt: skip
    """Take the updates of each pair one by one where no pair has two edges.

    `now` is 0 for an absent edge, 1 for one of the graph, and 2 behind entry `last`,
    which inserted the edge or replaced its value first.
    """
    tally = cuda.shared.array(_TALLIES, int32)
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        tally[k] = 0
    cuda.syncthreads()
    for p in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        now, last, last_is_given = int64(found[p]), int64(-1), False
        for b in range(pair_first[p], pair_first[p + 1]):
            place = order[b]
            i, e = place >> sides, entry_of[place]
            is_given = sides == 0 or (place & 1) == 0
            outcome, fate, head = INSERTED, NOTHING, int64(-1)
            if kinds[i] == 0:
                outcome = MISSING
                if now > 0:
                    outcome = DELETED
                if now > 1:
                    if fates[last] == APPENDS and last_is_given:
                        cuda.atomic.add(tally, BORN, -1)
                    fates[last] = fates[last] | DEAD
                now = int64(0)
            elif now == 0:
                fate, head, last, now = APPENDS, int64(e), int64(e), int64(2)
                last_is_given = is_given
                if is_given:
                    cuda.atomic.add(tally, BORN, 1)
            elif policy == REFUSE:
                outcome = REPEATED
            elif policy == IGNORE:
                outcome = IGNORED
            elif now == 1:
                fate, head, last, now = REPLACES, int64(e), int64(e), int64(2)
                outcome, entry_places[e] = REPLACED, places[p]
            else:
                outcome, head = REPLACED, last
            fates[e], heads[e] = fate, head
            if head >= 0:
                sources[head] = i
            if is_given:
                outcomes[i] = outcome
                cuda.atomic.add(tally, outcome, 1)
                if outcome == DELETED:
                    cuda.atomic.add(tally, EDGES, 1)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        cuda.atomic.add(summary, k, int64(tally[k]))


@kernel(cache=True)
def decide_copies(  # type: ignore[no-untyped-def]
    pairs, pair_first, order, by_row, sides, entry_of, kinds, copies, found, fates,
    heads, sources, outcomes, summary,
):  # fmt: skip
    """Take the updates of each pair one by one where pairs may have several edges.

    `left` copies of the graph are left. Those of the batch are a list through `heads`
    from `top` on: the last one first, but where deletions take the first.
    """
    tally = cuda.shared.array(_TALLIES, int32)
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        tally[k] = 0
    cuda.syncthreads()
    for p in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        left, top, tail = int64(found[p]), int64(-1), int64(-1)
        for b in range(pair_first[p], pair_first[p + 1]):
            place = order[b]
            i, e = place >> sides, int64(entry_of[place])
            is_given = sides == 0 or (place & 1) == 0
            outcome, fate, taken = INSERTED, NOTHING, int64(0)
            heads[e], sources[e] = -1, i
            if kinds[i] != 0:
                fate = APPENDS
                if is_given:
                    cuda.atomic.add(tally, BORN, 1)
                if copies != FIRST:
                    heads[e], top = top, e
                elif top < 0:
                    top = tail = e
                else:
                    heads[tail] = e
                    tail = e
            else:
                if copies == ALL:
                    taken, left = left, int64(0)
                elif left > 0 and (copies == FIRST or top < 0):
                    taken = int64(1)
                    left -= 1
                while top >= 0 and (copies == ALL or taken == 0):
                    if sides == 0 or (by_row[top] & 1) == 0:
                        cuda.atomic.add(tally, BORN, -1)
                    fates[top] = APPENDS | DEAD
                    top = int64(heads[top])
                    taken += 1
                outcome = DELETED if taken > 0 else MISSING
            fates[e] = fate
            if is_given:
                outcomes[i] = outcome
                cuda.atomic.add(tally, outcome, 1)
                if taken > 0:
                    cuda.atomic.add(tally, EDGES, int32(taken))
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _TALLIES, cuda.blockDim.x):
        cuda.atomic.add(summary, k, int64(tally[k]))


@kernel(cache=True)
def mark_appends(fates, flags):  # type: ignore[no-untyped-def]
    """Mark entries that append an edge; the last flag is 0."""
    for e in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
        flags[e] = 1 if e < fates.size and fates[e] == APPENDS else 0


@kernel(cache=True)
def plan_rows(  # type: ignore[no-untyped-def]
    rows, count, first, starts, stops, classes, appended, entries, at, marks, before,
    has_marks, is_dense, lengths, chosen, copied, taken, freed, hub_rows, hub_lengths,
    summary,
):  # fmt: skip
    """Find the length of each row afterwards, its run, and how much of it is copied.

    A row moves where its run is too short, or twice as long as it must be; where all
    rows are laid out anew, all do. `taken` and `freed` are the classes of runs that
    rows come to and leave, `CLASS_COUNT` for none.
    """
    counters = cuda.shared.array(_COUNTERS, int32)
    for k in range(cuda.threadIdx.x, _COUNTERS, cuda.blockDim.x):
        counters[k] = 0
    cuda.syncthreads()
    for j in range(cuda.grid(1), count + 1, cuda.gridsize(1)):
        if j == count:
            copied[j] = 0
            summary[CAME] = appended[entries]
            if has_marks:
                summary[GONE] = gone_before(at[count], marks, before)
            continue
        row = rows[j]
        there = int64(stops[row]) - int64(starts[row])
        gone = int64(0)
        if has_marks:
            gone = gone_before(at[j + 1], marks, before)
            gone -= gone_before(at[j], marks, before)
        length = there - gone + appended[first[j + 1]] - appended[first[j]]
        now, best = int64(classes[row]), _class_of(length)
        choice = now
        if (
            is_dense
            or length > _size_of(now)
            or best == 0
            or _size_of(now) >= 2 * _size_of(best)
        ):
            choice = best
        moves = is_dense or choice != now
        lengths[j], chosen[j] = length, choice
        copied[j] = there if there > gone and (moves or gone > 0) else 0
        taken[j] = choice if moves and choice > 0 else CLASS_COUNT
        freed[j] = now if moves and now > 0 and not is_dense else CLASS_COUNT
        if moves and choice > 0:
            cuda.atomic.add(counters, choice, 1)
        if moves and now > 0 and not is_dense:
            cuda.atomic.add(counters, CLASS_COUNT + now, 1)
        if not is_dense:
            cuda.atomic.add(counters, 2 * CLASS_COUNT + min(there, HUB), -1)
        cuda.atomic.add(counters, 2 * CLASS_COUNT + min(length, HUB), 1)
        if length >= HUB or there >= HUB:
            place = cuda.atomic.add(summary, HUBS, 1)
            hub_rows[place], hub_lengths[place] = row, length
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, _COUNTERS, cuda.blockDim.x):
        if counters[k] != 0:
            cuda.atomic.add(summary, TAKEN + k, int64(counters[k]))


@kernel(cache=True)
def note(values, place, summary, to):  # type: ignore[no-untyped-def]
    """Copy a number to where the host reads it."""
    if cuda.grid(1) == 0:
        summary[to] = values[place]


# -- scan


@kernel(cache=True)
def begin_targets(rows, count, starts, classes, chosen, is_dense, targets, sizes):  # type: ignore[no-untyped-def]
    """Store where rows stay, and the slots that others need; 0 behind the last."""
    for j in range(cuda.grid(1), count + 1, cuda.gridsize(1)):
        size = int64(0)
        if j < count:
            stays = not is_dense and chosen[j] == classes[rows[j]]
            targets[j] = starts[rows[j]] if stays else 0
            if not stays:
                size = _size_of(chosen[j])
        sizes[j] = size


@kernel(cache=True)
def take_runs(count, by_class, order, table, runs, targets, sizes):  # type: ignore[no-untyped-def]
    """Give rows, sorted by class, the runs of the queues, in order.

    ``table`` has by class: the first row, how many runs there are, where they begin.
    """
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        size_class = by_class[i]
        if size_class == CLASS_COUNT:
            continue
        rank = i - table[0, size_class]
        if rank < table[1, size_class]:
            targets[order[i]] = runs[table[2, size_class] + rank]
            sizes[order[i]] = 0


@kernel(cache=True)
def cut_regions(count, laid, regions, cuts):  # type: ignore[no-untyped-def]
    """Store how many slots rows need up to the end of each region; one thread.

    A row that does not fit into a region begins the next one.
    """
    if cuda.grid(1) == 0:
        base = int64(0)
        for r in range(cuts.size):
            room = regions[r, 1] - regions[r, 0]
            low, high = int64(0), int64(count)
            while low < high:
                middle = (low + high + 1) >> 1
                if laid[middle] - base <= room:
                    low = middle
                else:
                    high = middle - 1
            base = max(base, laid[low])
            cuts[r] = base


@kernel(cache=True)
def lay_rows(count, sizes, laid, regions, cuts, targets):  # type: ignore[no-untyped-def]
    """Give the other rows parts of free regions."""
    for j in range(cuda.grid(1), count, cuda.gridsize(1)):
        if sizes[j] > 0:
            region, base = int64(0), int64(0)
            while cuts[region] <= laid[j]:
                base = cuts[region]
                region += 1
            targets[j] = regions[region, 0] + laid[j] - base


# -- apply


@kernel(cache=True)
def copy_rows(  # type: ignore[no-untyped-def]
    total, copied_at, count, rows, starts, targets, at, marks, before, has_marks,
    is_fresh, is_back, old, width, new, kept, more_old, more_new, more_kept, has_more,
):  # fmt: skip
    """Copy the edges that stay in rows that move or lose some, in one or two arrays.

    Rows that move are in other slots than before. Edges of the others go by way of
    `kept`, from where a second launch, `is_back`, brings them where they belong.
    """
    lane = int64(cuda.threadIdx.x) & 31
    warps = cuda.gridsize(1) >> 5
    for share in range((cuda.grid(1) >> 5) * SHARE, total, warps * SHARE):
        j = int64(-1)
        for step in range(STEPS):
            number = share + 32 * step + lane
            if number >= total:
                break
            if j < 0:
                j = row_at(copied_at, count, number)
            while copied_at[j + 1] <= number:
                j += 1
            place = number - copied_at[j]
            start, target, now = int64(starts[rows[j]]), int64(targets[j]), place
            if has_marks and at[j] < at[j + 1]:  # rows without entries have no marks
                if is_marked(at[j] + place, marks):
                    continue
                now -= gone_before(at[j] + place, marks, before)
                now += gone_before(at[j], marks, before)
            stays = not is_fresh and start == target
            place, now = start + place, target + now
            if stays and now == place:
                continue
            if not stays and not is_back:
                for k in range(width):
                    new[now * width + k] = old[place * width + k]
                if has_more:
                    more_new[now] = more_old[place]
            elif stays and is_back:
                for k in range(width):
                    new[now * width + k] = kept[number * width + k]
                if has_more:
                    more_new[now] = more_kept[number]
            elif stays:
                for k in range(width):
                    kept[number * width + k] = old[place * width + k]
                if has_more:
                    more_kept[number] = more_old[place]


@device_function
def _behind(e, j, targets, lengths, appended, first):  # type: ignore[no-untyped-def]
    """Return the slot of an edge that is appended to row j."""
    return int64(targets[j]) + lengths[j] - appended[first[j + 1]] + appended[e]


@kernel(cache=True)
def append_edges(  # type: ignore[no-untyped-def]
    fates, order, sides, row_of, targets, lengths, appended, first, entry_ends, given,
    is_given, number, ends, numbers, entry_ids, has_ids, id_sides, ids,
):  # fmt: skip
    """Write other ends, numbers and ids of inserted edges.

    Update i has the number ``2 (number + i)``, or ``given[i]``; one more at its other
    end.
    """
    for e in range(cuda.grid(1), fates.size, cuda.gridsize(1)):
        if fates[e] == APPENDS:
            place = int64(order[e])
            i, side = place >> sides, place & sides
            slot = _behind(e, row_of[e], targets, lengths, appended, first)
            ends[slot] = entry_ends[place]
            own = 2 * (int64(number) + i)
            if is_given:
                own = int64(given[i])
            numbers[slot] = own + side
            if has_ids:
                ids[slot] = entry_ids[2 * i + (side & id_sides)]


@kernel(cache=True)
def write_values(  # type: ignore[no-untyped-def]
    fates, sources, row_of, rows, starts, targets, lengths, appended, first, places, at,
    marks, before, has_marks, values, value_width, new, width,
):  # fmt: skip
    """Write values of edges that are inserted or replaced."""
    for e in range(cuda.grid(1), fates.size, cuda.gridsize(1)):
        if fates[e] != APPENDS and fates[e] != REPLACES:
            continue
        j = row_of[e]
        slot = _behind(e, j, targets, lengths, appended, first)
        if fates[e] == REPLACES:
            place = places[e] - int64(starts[rows[j]])
            slot = int64(targets[j]) + place
            if has_marks:
                slot -= gone_before(at[j] + place, marks, before)
                slot += gone_before(at[j], marks, before)
        for k in range(value_width):
            new[slot * width + k] = values[int64(sources[e]) * value_width + k]


@kernel(cache=True)
def free_runs(count, by_class, order, table, rows, starts, runs):  # type: ignore[no-untyped-def]
    """Put the runs that rows leave, sorted by class, behind those of the queues."""
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        size_class = by_class[i]
        if size_class != CLASS_COUNT:
            to = table[1, size_class] + i - table[0, size_class]
            runs[to] = starts[rows[order[i]]]


@kernel(cache=True)
def put_runs(puts, runs):  # type: ignore[no-untyped-def]
    """Write some runs: (place, first slot)."""
    for k in range(cuda.grid(1), puts.shape[0], cuda.gridsize(1)):
        runs[puts[k, 0]] = puts[k, 1]


@kernel(cache=True)
def move_queues(table, count, old, new):  # type: ignore[no-untyped-def]
    """Copy queues to where they have more room.

    ``table`` has by class: where its runs were, how many there are, where they will be.
    """
    for number in range(cuda.grid(1), table.shape[1] * count, cuda.gridsize(1)):
        size_class, k = number // count, number % count
        if k < table[1, size_class]:
            new[table[2, size_class] + k] = old[table[0, size_class] + k]


@kernel(cache=True)
def finish_rows(  # type: ignore[no-untyped-def]
    rows, count, targets, lengths, chosen, starts, stops, classes, degrees, has_degrees
):
    """Store where rows are now, and how long, where somebody asks for degrees."""
    for j in range(cuda.grid(1), count, cuda.gridsize(1)):
        row = rows[j]
        if has_degrees:
            degrees[row] = lengths[j]
        starts[row], stops[row] = targets[j], targets[j] + lengths[j]
        classes[row] = chosen[j]
