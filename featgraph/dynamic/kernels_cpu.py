"""Loops of a batch over the rows of a pool, on the host, and the codes of batches.

`pools.RowPool` calls the loops. A batch is sorted by row into *entries*: number ``2 i``
is update i at its first row. Where edges are in the rows of both ends, ``2 i + 1`` is
update i at the second one. ``rows`` are the rows that have entries, and entries
``first[j]`` to ``first[j + 1]`` are those of row ``rows[j]``, in the batch's order.

`list_entries`, `list_rows`   the sorted entries, and their rows
`plan_rows`        outcomes, effects of entries, lengths and classes of rows
`place_runs`       the slots that each row has afterwards
`list_gone`        deleted edges, for the log and the queue of ids
`write_values`     one array over slots: ends, numbers, ids or a column
`finish_rows`, `count_ends`   starts, stops, classes, queues and degrees

Example of `plan_rows`: the row of vertex 5 has ends ``2 9 4``; entries delete 9, insert
7, insert 9. The entries of one end are a *pair*: here 9 has two. `_group` finds the
first entry of each pair; `_match` finds the edge of 9 at place 1, and lists the place
as deleted; `_decide` gives the effects nothing, append, append. The row becomes
``2 4 7 9``.

Kernels with the arguments `part`, `low` and `high` run on touched rows `low` to `high`,
so that threads share a batch. Arrays that readers use are written by `write_values` and
`finish_rows` alone. Functions that run once per row are inlined, since Numba counts the
references to each array at a call.

Import this module inside functions only: it imports Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from featgraph.base.store import jit, njit
from featgraph.device.cpu import prefetch
from featgraph.dynamic.rows import HUB as HUB

_Array: TypeAlias = Any
#: The type in which slots are computed: arrays may be unsigned or 32 bits wide.
_int64: Any = np.int64

#: Size classes of runs: four per doubling from 4 to 4,096 slots, then one. A row of
#: class 0 has no run.
CLASS_COUNT = 72
#: The class of 4,096 slots. Free runs of this class and above are split.
LONG_CLASS = 41
SIZES = np.array(
    [0]
    + [(4 + k % 4) << k // 4 for k in range(LONG_CLASS)]
    + [4096 << k for k in range(1, CLASS_COUNT - LONG_CLASS)],
    np.int64,
)
_LONG = 4096
#: The class of the shortest run for each number of edges up to 4,096.
_CLASSES = np.searchsorted(SIZES, np.arange(_LONG + 1)).astype(np.uint8)

#: Indices of the counts in `Plan.tally`. The first six are the outcomes of updates, of
#: which REPEATED is an error. Then: deleted edges (a deletion may take several copies),
#: edges added to rows, those of them that are no twins, edges removed from rows, rows
#: that become hubs or cease to be, rows that change their run; from WANTED and FREED
#: on, the runs that are taken and freed, by class.
INSERTED, REPLACED, IGNORED, DELETED, MISSING, REPEATED, EDGES, CAME = range(8)
BORN, GONE, HUBS, MOVES = range(8, 12)
WANTED, FREED = 16, 16 + CLASS_COUNT
TALLY = FREED + CLASS_COUNT
#: Effects of an entry on its row. Of several entries that replace the value of an edge,
#: the first has REPLACES. DEAD is added if a later entry deletes the edge again.
NOTHING, APPENDS, REPLACES, DEAD = 0, 1, 2, 4
#: Policies for an insertion of a pair that has an edge: keep both, keep the old value,
#: combine the values, or raise an error.
KEEP, IGNORE, COMBINE, REFUSE = range(4)
#: The copies of a pair that a deletion removes.
ALL, FIRST, LAST = range(3)
#: Prefetch distances: in rows, and in entries or slots.
_AHEAD, _FETCHED = 12, 64
#: Words of a Bloom filter of the ends that have entries, and the number of edges that
#: are compared with few entries in one vectorised loop.
_WORDS, _BLOCK = 128, 64
#: Rows of `pairs`, a scratch array over the entries of one row. PAIR: the first entry
#: of the same pair. At first entries: edges of the graph that deletions remove (NEED),
#: and edges of the pair in the row (FOUND) with the place of the last one (PLACE).
#: STATE and NEXT are the linked list of `_decide`.
PAIR, NEED, FOUND, STATE, PLACE, NEXT = range(6)
#: Rows with more entries use a hash table; tables above this size need prefetches.
_FEW, _LARGE = 8, 4096
#: More copies than a pair can have.
_MANY = 2**31 - 1

#: Mask of the number of an entry in its key, ``row << 32 | number``.
_LOW = 2**32 - 1


@njit(nogil=True, inline="always")
def class_of(length: int) -> int:
    """Return the class of the shortest run with room for `length` edges."""
    if length <= _LONG:
        return int(_CLASSES[length])
    found = LONG_CLASS
    while SIZES[found] < length:
        found += 1
    return found


@jit
def list_entries(
    at: _Array, other: _Array, twice: bool, keys: _Array, outcomes: _Array
) -> int:
    """Store the key of each entry; return how many there are.

    Updates with negative ends have no entry and the outcome IGNORED. A loop has one
    entry. All other outcomes are INSERTED until `plan_rows` finds another one.
    """
    count = 0
    for i in range(at.size):
        outcomes[i] = INSERTED if at[i] >= 0 else IGNORED
        if at[i] < 0:
            continue
        keys[count] = _int64(at[i]) << 32 | 2 * i
        count += 1
        if twice and at[i] != other[i]:
            keys[count] = _int64(other[i]) << 32 | 2 * i + 1
            count += 1
    return count


@jit
def list_rows(keys: _Array, rows: _Array, first: _Array) -> int:
    """Store the rows of sorted keys and the first key of each; return their number."""
    count, row = 0, -1
    for i in range(keys.size):
        if keys[i] >> 32 != row:
            row = keys[i] >> 32
            rows[count], first[count] = row, i
            count += 1
    first[count] = keys.size
    return count


@njit(nogil=True, inline="always")
def _fetch_row(
    j: int, high: int, rows: _Array, starts: _Array, stops: _Array, values: _Array,
    width: int,
) -> None:  # fmt: skip
    """Prefetch slots of a row to come, and bounds of a later one."""
    beyond = rows[min(j + 2 * _AHEAD, high - 1)]
    prefetch(starts, beyond)
    prefetch(stops, beyond)
    row = rows[min(j + _AHEAD, high - 1)]
    start, stop = _int64(starts[row]) * width, _int64(stops[row]) * width
    for slot in range(start, min(stop, start + _FETCHED), 16):
        prefetch(values, slot)
    prefetch(values, stop)


@njit(nogil=True, inline="always")
def _begin_of(key: int, size: int) -> int:
    """Return the first index of a hash table to probe for a key."""
    return int(((key * 2654435769) >> 15) & (size - 1))


@njit(nogil=True, inline="always")
def _slot_of(key: int, table: _Array, size: int) -> int:
    """Return the index of a key in a hash table, or the free index to store it at.

    An element of the table is ``key << 32 | first entry of the pair``, or -1.
    """
    at = _begin_of(key, size)
    while table[at] != -1 and (table[at] >> 32) & _LOW != key:
        at = (at + 1) & (size - 1)
    return int(at)


@njit(nogil=True, inline="always")
def _table_size(count: int) -> int:
    """Return the size of the hash table for a row; 0 if it has few entries."""
    size = 0
    if count > _FEW:
        size = 4 * _FEW
        while size < 2 * count:
            size *= 2
    return size


@njit(nogil=True, inline="always")
def _group(
    begin: int, count: int, keys: _Array, kinds: _Array, copies: int, table: _Array,
    pairs: _Array,
) -> tuple[bool, int]:  # fmt: skip
    """Find the first entry of each pair, and the edges that its deletions remove.

    `keys` are the other ends of the entries of the row, with the direction in the last
    bit along "both"; their `kinds` begin at `begin`. Sets PAIR and NEED, clears FOUND.

    Returns
    -------
    deletes : bool
        Whether any entry is a deletion.
    different : int
        The number of pairs.
    """
    size = _table_size(count)
    table[:size] = -1
    deletes, different = False, 0
    for i in range(count):
        pair = i
        if size:
            prefetch(table, _begin_of(_int64(keys[min(i + _FETCHED, count - 1)]), size))
            key = _int64(keys[i])
            at = _slot_of(key, table, size)
            if table[at] == -1:
                table[at] = key << 32 | i
            pair = table[at] & _LOW
        else:
            for other in range(i):
                if keys[other] == keys[i]:
                    pair = pairs[PAIR, other]
                    break
        pairs[PAIR, i] = pair
        if pair == i:
            pairs[NEED, i] = pairs[FOUND, i] = pairs[STATE, i] = 0
            different += 1
        if kinds[begin + i]:
            pairs[STATE, pair] += 1
            continue
        deletes = True
        if copies == ALL:
            pairs[NEED, pair] = _MANY
        elif copies == LAST and pairs[STATE, pair] > 0:
            pairs[STATE, pair] -= 1
        else:
            pairs[NEED, pair] += 1
    return deletes, different


@njit(nogil=True, inline="always")
def _match(
    start: int, stop: int, count: int, ends: _Array, numbers: _Array, is_sided: bool,
    is_backward: bool, most: int, keys: _Array, table: _Array, pairs: _Array,
    filter_: _Array, gone_places: _Array, gone_at: int,
) -> int:  # fmt: skip
    """Find the edges of a row whose pair has entries; list those that are deleted.

    Sets FOUND and PLACE of each pair, and stores places of deleted edges, ascending,
    from ``gone_places[gone_at]`` on. Stops after `most` edges with entries. Goes from
    the end of the row if `is_backward`, where deletions remove the last copies.
    Returns the number of deleted edges.
    """
    size, length = _table_size(count), stop - start
    if size:
        filter_[:] = 0
    for i in range(count if size else 0):
        key = _int64(keys[i])
        filter_[(key >> 6) % _WORDS] |= np.uint64(1) << np.uint64(key & 63)
    gone = k = 0
    while k < length and most:
        if not size and k % _BLOCK == 0:  # most blocks have no edge with an entry
            behind = min(k + _BLOCK, length)
            low = np.uint64(stop - behind if is_backward else start + k)
            hits = 0
            for i in range(count):
                end = np.int32(_int64(keys[i]) >> _int64(is_sided))
                for slot in range(low, low + np.uint64(behind - k)):
                    hits += ends[slot] == end
            if hits == 0:
                k = behind
                continue
        place = length - 1 - k if is_backward else k
        k += 1
        key = _int64(ends[start + place])
        if is_sided:
            key = key << 1 | _int64(numbers[start + place]) & 1
        pair = -1
        if size:
            if size > _LARGE:
                ahead = min(start + place + _FETCHED, stop - 1)
                prefetch(table, _begin_of(_int64(ends[ahead]), size))
            word = filter_[(key >> 6) % _WORDS]
            if not (word >> np.uint64(key & 63)) & np.uint64(1):
                continue
            entry = table[_slot_of(key, table, size)]
            pair = -1 if entry == -1 else entry & _LOW
        else:
            for i in range(count):
                if _int64(keys[i]) == key:
                    pair = pairs[PAIR, i]
                    break
        if pair < 0:
            continue
        if pairs[FOUND, pair] < pairs[NEED, pair]:
            gone_places[gone_at + gone] = place
            gone += 1
        pairs[FOUND, pair] += 1
        pairs[PLACE, pair] = place
        most -= 1
    for k in range(gone // 2 if is_backward else 0):
        first, last = gone_at + k, gone_at + gone - 1 - k
        gone_places[first], gone_places[last] = gone_places[last], gone_places[first]
    return gone


@njit(nogil=True, inline="always")
def _decide(
    begin: int, count: int, policy: int, copies: int, order: _Array, pairs: _Array,
    start: int, places: _Array, fates: _Array, heads: _Array, outcomes: _Array,
    tally: _Array,
) -> int:  # fmt: skip
    """Apply the entries of a row one by one; return how many edges it gains at its end.

    `FOUND` counts the edges of the graph that are left of a pair, at most one unless
    `policy` is `KEEP`. Entries that insert an edge of the pair, or first replace its
    value, are a linked list that begins at ``STATE - 1`` and goes on at `NEXT`: the
    last entry is first, or, where deletions take the first copy, the first one, and the
    list ends at ``NEED - 1``.
    """
    gained = 0
    pairs[STATE, :count] = 0
    for i in range(count):
        pair, e = pairs[PAIR, i], begin + i
        own, outcome, head, taken = pairs[STATE, pair] - 1, INSERTED, e, 0
        pairs[NEXT, i] = -1
        if fates[e] and (policy == KEEP or (own < 0 and pairs[FOUND, pair] == 0)):
            gained += 1
            if copies != FIRST:
                pairs[NEXT, i], pairs[STATE, pair] = own, i + 1
            elif own < 0:
                pairs[STATE, pair] = pairs[NEED, pair] = i + 1
            else:
                pairs[NEXT, pairs[NEED, pair] - 1], pairs[NEED, pair] = i, i + 1
        elif fates[e]:
            fates[e], outcome, head = NOTHING, IGNORED, -1
            if policy == REFUSE:
                outcome = REPEATED
            elif policy == COMBINE:
                outcome, head = REPLACED, begin + own
                if own < 0:
                    fates[e], head, pairs[STATE, pair] = REPLACES, e, i + 1
                    places[e] = start + pairs[PLACE, pair]
        else:
            head = -1
            if copies == ALL:
                taken, pairs[FOUND, pair] = pairs[FOUND, pair], 0
            elif pairs[FOUND, pair] > 0 and (copies == FIRST or own < 0):
                taken = 1
                pairs[FOUND, pair] -= 1
            while pairs[STATE, pair] > 0 and (copies == ALL or taken == 0):
                own = pairs[STATE, pair] - 1
                is_new = fates[begin + own] == APPENDS
                fates[begin + own] |= DEAD
                pairs[STATE, pair] = pairs[NEXT, own] + 1
                gained -= is_new
                taken += is_new
            outcome = DELETED if taken else MISSING
        if policy == COMBINE:
            heads[e] = head
        if not order[e] & 1:
            outcomes[order[e] >> 1] = outcome
            tally[outcome] += 1
            tally[EDGES] += taken
    return gained


@jit
def plan_rows(
    part: int, low: int, high: int, rows: _Array, first: _Array, entries: _Array,
    at: _Array, other: _Array, kinds: _Array, starts: _Array, stops: _Array,
    classes: _Array, ends: _Array, numbers: _Array, is_sided: bool, is_dense: bool,
    looks: bool, policy: int, copies: int, order: _Array, far: _Array, gone_at: _Array,
    gone_places: _Array, places: _Array, fates: _Array, heads: _Array,
    outcomes: _Array, lengths: _Array, gone: _Array, chosen: _Array, tallies: _Array,
) -> None:  # fmt: skip
    """Find outcomes, the fate of each entry, and length and class of each row.

    `entries` are the sorted keys of `list_entries`, `at`, `other` and `kinds` the
    updates. The arguments from `order` on are those of `HostPlan`; `far` is
    `HostPlan.ends`. A row changes its run if that is too short, or at least twice the
    size of the class for its length; if `is_dense`, all rows do. ``tallies[part]`` is
    increased.
    """
    tally, most = tallies[part], 0
    for j in range(low, high):
        most = max(most, first[j + 1] - first[j])
    table = np.empty(_table_size(most), np.int64)
    filter_ = np.empty(_WORDS, np.uint64)
    pairs, keys = np.empty((6, most), np.int32), np.empty(most, np.uint32)
    for j in range(low, high):
        prefetch(classes, rows[min(j + _AHEAD, high - 1)])
        if looks:
            _fetch_row(j, high, rows, starts, stops, ends, 1)
        row, begin, count = rows[j], first[j], first[j + 1] - first[j]
        start, stop = _int64(starts[row]), _int64(stops[row])
        gained, left = count, 0
        for e in range(begin, begin + count):
            prefetch(other, (entries[min(e + _FETCHED, first[high] - 1)] & _LOW) >> 1)
            number = entries[e] & _LOW
            order[e], fates[e] = number, kinds[number >> 1]
            end = _int64(at[number >> 1] if number & 1 else other[number >> 1])
            far[e], keys[e - begin] = end, end << is_sided | number & is_sided
        if count and looks:
            deletes, different = _group(begin, count, keys, fates, copies, table, pairs)
            if policy != KEEP or deletes:
                left = _match(
                    start, stop, count, ends, numbers, is_sided, copies == LAST,
                    _MANY if policy == KEEP else different, keys, table, pairs, filter_,
                    gone_places, gone_at[j],
                )  # fmt: skip
            gained = _decide(
                begin, count, policy, copies, order, pairs, start, places, fates, heads,
                outcomes, tally,
            )  # fmt: skip
        for e in range(begin, begin + count):
            tally[BORN] += fates[e] == APPENDS and not order[e] & 1
        tally[CAME] += gained
        tally[GONE] += left
        length = stop - start + gained - left
        tally[HUBS] += (stop - start >= HUB) != (length >= HUB)
        now, best = 0 if is_dense else _int64(classes[row]), class_of(length)
        lengths[j], gone[j], chosen[j] = length, left, now
        if length > SIZES[now] or best == 0 or SIZES[now] >= 2 * SIZES[best]:
            chosen[j] = best
            if best != now:
                tally[MOVES] += 1
                tally[WANTED + best] += 1
                tally[FREED + now] += 1


@jit
def place_runs(
    rows: _Array, starts: _Array, classes: _Array, chosen: _Array, runs: _Array,
    begins: _Array, counts: _Array, regions: _Array, targets: _Array,
) -> int:  # fmt: skip
    """Store the first slot of each row after the batch in `targets`.

    A row whose class stays keeps its run. Others get free runs of their class, in the
    order of the queue, then slots at the begin of a region.

    Parameters
    ----------
    runs, begins, counts
        Free runs: those of a class begin at ``runs[begins[class]]``, and
        ``counts[class]`` of them may be taken.
    regions : int64, (regions, 2)
        Bounds of free slots. If a row does not fit, the next region is used from then
        on. On return, the bounds of the slots that are left.

    Returns
    -------
    int
        The index of the region that is used last; -1 if a row fits in none.
    """
    taken, region = np.zeros(counts.size, np.int64), 0
    for j in range(rows.size):
        best = _int64(chosen[j])
        if best == _int64(classes[rows[j]]):
            targets[j] = starts[rows[j]]
        elif best == 0:
            targets[j] = 0
        elif taken[best] < counts[best]:
            targets[j] = runs[begins[best] + taken[best]]
            taken[best] += 1
        else:
            while regions[region, 0] + SIZES[best] > regions[region, 1]:
                region += 1
                if region == regions.shape[0]:
                    return -1
            targets[j] = regions[region, 0]
            regions[region, 0] += SIZES[best]
    return region


@jit
def list_gone(
    part: int, low: int, high: int, rows: _Array, starts: _Array, gone: _Array,
    gone_at: _Array, gone_places: _Array, begins: _Array, ends: _Array,
    numbers: _Array, ids: _Array, listed: _Array,
) -> None:  # fmt: skip
    """Store rows, ends, numbers, and ids if there are any, of the deleted edges.

    Those of row j are listed from ``begins[j]`` on.
    """
    for j in range(low, high):
        _fetch_row(j, high, rows, starts, starts, numbers, 1)
        for k in range(gone[j]):
            at = begins[j] + k
            slot = _int64(starts[rows[j]]) + gone_places[gone_at[j] + k]
            listed[0, at], listed[1, at], listed[2, at] = (
                rows[j],
                ends[slot],
                numbers[slot],
            )
            if ids.size:
                listed[3, at] = ids[slot]


@jit
def write_values(
    part: int, low: int, high: int, rows: _Array, first: _Array, fates: _Array,
    places: _Array, starts: _Array, stops: _Array, targets: _Array, gone: _Array,
    gone_at: _Array, gone_places: _Array, old: _Array, new: _Array, width: int,
    is_fresh: bool, values: _Array, sources: _Array, replaces: bool,
) -> None:  # fmt: skip
    """Write one array over slots: the edges that stay in a row, then inserted ones.

    Parameters
    ----------
    old, new
        Flat arrays with `width` elements per slot; the same array unless `is_fresh`.
        Within a row, edges only move towards its begin, so that none is overwritten
        before it is copied.
    values
        Flat, with `width` elements per value.
    sources
        The index of each entry's value; empty if value e is that of entry e.
    replaces
        Whether the array is a column, in which REPLACES writes a value.
    """
    for j in range(low, high):
        if not is_fresh:
            _fetch_row(j, high, rows, starts, stops, old, width)
        start, target = _int64(starts[rows[j]]), _int64(targets[j])
        count, at, place = _int64(stops[rows[j]]) - start, target, _int64(0)
        for k in range(gone[j] + 1):  # edges up to the next deleted one, or the end
            behind = _int64(gone_places[gone_at[j] + k]) if k < gone[j] else count
            if is_fresh or at != start + place:
                for x in range((behind - place) * width):
                    new[at * width + x] = old[(start + place) * width + x]
            at += behind - place
            place = behind + 1
        for e in range(first[j], first[j + 1]):
            source, to = _int64(sources[e]) if sources.size else e, at
            if fates[e] == REPLACES and replaces:
                to, k = target + places[e] - start, gone_at[j]
                while k < gone_at[j] + gone[j] and gone_places[k] < places[e] - start:
                    to, k = to - 1, k + 1
            elif fates[e] == APPENDS:
                at += 1
            else:
                continue
            for x in range(width):
                new[to * width + x] = values[source * width + x]


@jit
def finish_rows(
    rows: _Array, targets: _Array, lengths: _Array, chosen: _Array, starts: _Array,
    stops: _Array, classes: _Array, counts: _Array, degrees: _Array, runs: _Array,
    behind: _Array,
) -> None:  # fmt: skip
    """Store starts, stops and classes of rows, and count their lengths in `counts`.

    Lengths are stored in `degrees`, too, unless that is empty. Runs that rows leave are
    appended to the queues in `runs`, whose ends are `behind`, by class.
    """
    for j in range(rows.size):
        row, now = rows[j], _int64(classes[rows[j]])
        before = _int64(stops[row]) - _int64(starts[row])
        counts[min(before, HUB)] -= 1
        counts[min(lengths[j], HUB)] += 1
        if now and now != chosen[j]:
            runs[behind[now]] = starts[row]
            behind[now] += 1
        starts[row], stops[row] = targets[j], targets[j] + lengths[j]
        classes[row] = chosen[j]
        if degrees.size:
            degrees[row] = lengths[j]


@jit
def count_ends(
    ends: _Array, fates: _Array, gone: _Array, degrees: _Array, counts: _Array,
    longest: int,
) -> int:  # fmt: skip
    """Update `degrees`, how often each vertex is an end; return the highest one.

    `ends` and `fates` are those of all entries, and `gone` the ends of deleted edges.
    ``counts[k]`` is the number of vertices of degree k > 0, and `longest` the highest
    degree before. Without degrees, returns 0.
    """
    if not degrees.size:
        return 0
    for e in range(ends.size):
        if fates[e] == APPENDS:
            degree = degrees[ends[e]]
            counts[degree] -= 1
            counts[degree + 1] += 1
            degrees[ends[e]] = degree + 1
            longest = max(longest, degree + 1)
    for e in range(gone.size):
        degree = degrees[gone[e]]
        counts[degree] -= 1
        counts[degree - 1] += 1
        degrees[gone[e]] = degree - 1
    while longest > 0 and counts[longest] == 0:
        longest -= 1
    return longest


@jit
def number_range(
    starts: _Array, stops: _Array, numbers: _Array, bound: int
) -> tuple[int, int]:
    """Return the number of the first insertion, and of the last one."""
    least, most = _int64(bound), _int64(-1)
    for row in range(starts.size):
        for slot in range(_int64(starts[row]), _int64(stops[row])):
            own = _int64(numbers[slot] >> 1)
            least, most = min(least, own), max(most, own)
    return least, most


@jit
def place_slots(
    starts: _Array, stops: _Array, numbers: _Array, parity: int, least: int,
    rows: _Array, slots: _Array,
) -> None:  # fmt: skip
    """Store row and slot of each edge at its number, less the first one.

    With the parity 0 or 1, of the edges that were given, or of their twins; else -1.
    """
    for row in range(starts.size):
        for slot in range(_int64(starts[row]), _int64(stops[row])):
            own = _int64(numbers[slot])
            if parity < 0 or own & 1 == parity:
                at = (own >> 1) - least
                if 0 <= at < rows.size:  # else a batch of another thread came between
                    rows[at], slots[at] = row, slot


@jit
def find_ends(
    starts: _Array, stops: _Array, ends: _Array, is_dead: _Array, rows: _Array,
    others: _Array,
) -> None:  # fmt: skip
    """Store row and other end of each edge whose other end is in a set.

    `rows` and `others` have room for all of them.
    """
    count = 0
    for row in range(starts.size):
        for slot in range(_int64(starts[row]), _int64(stops[row])):
            if is_dead[ends[slot]]:
                rows[count], others[count] = row, ends[slot]
                count += 1
