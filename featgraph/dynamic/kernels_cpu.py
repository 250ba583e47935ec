"""Loops of a batch over the rows of a pool, on the host.

A batch is sorted by row into *entries*. Entry number ``2 i`` is update i at its row,
``2 i + 1`` the same at its other end, in pools where an edge stands at both. Within a
row, entries have the order of the batch. ``rows`` are the touched rows, and the entries
of row j are those from ``first[j]`` to ``first[j + 1]``.

A kernel works on the touched rows from `low` to `high`, one part of several, so that
threads share them.
Nothing that lives is written before `write_values`.

Functions that kernels call for each row are inlined: a call would count references to
each array.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from featgraph.base.store import jit, njit

_Array: TypeAlias = Any
#: Offsets of slots are computed in it; ids and numbers may be unsigned.
_int64: Any = np.int64

#: Classes of run sizes: four a doubling from 4 to 4,096 slots, then one. Class 0: none.
CLASS_COUNT = 72
#: The class of 4,096 slots: free runs from there on are cut into shorter ones.
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

#: Outcomes of updates, the last of which is an error. Behind their counts are those of
#: edges that are deleted, that come to rows, and that come as given; of edges that
#: leave rows; of rows that become hubs or no longer are; of rows that come to other
#: runs; and of runs that are taken and freed, by class.
INSERTED, REPLACED, IGNORED, DELETED, MISSING, REPEATED, EDGES, CAME = range(8)
BORN, GONE, HUBS, MOVES = range(8, 12)
WANTED, FREED = 16, 16 + CLASS_COUNT
TALLY = FREED + CLASS_COUNT
#: Effects of an entry on its row; the first of those that replace a value stands for
#: all. `DEAD` is added where a later update of the batch deletes the edge.
NOTHING, APPENDS, REPLACES, DEAD = 0, 1, 2, 4
#: Policies for an inserted edge that the graph has already.
KEEP, IGNORE, COMBINE, REFUSE = range(4)
#: Which copies of a pair a deletion takes.
ALL, FIRST, LAST = range(3)
#: How many rows ahead slots are fetched, of which the first ones, and entries.
_AHEAD, _FETCHED = 12, 64
#: Words of the filter that most edges without an entry fail, and the number of edges
#: that are compared with few entries at once.
_WORDS, _BLOCK = 128, 64
#: Columns of the entries of a row: the first entry of their pair; and of a pair, the
#: edges that deletions take, those that were found, and the next state and place.
PAIR, NEED, FOUND, STATE, PLACE = range(5)
#: Rows with more entries look for ends in a table; larger tables leave the cache.
_FEW, _LARGE = 8, 4096
_MANY = 2**31 - 1
#: Lengths from here on are counted together: rows of hubs.
HUB = 2048

#: The number of an entry in its key.
_LOW = 2**32 - 1


@njit(nogil=True, inline="always")
def class_of(length: int) -> int:
    """Return the class of the shortest run for so many edges."""
    if length <= _LONG:
        return int(_CLASSES[length])
    found = LONG_CLASS
    while SIZES[found] < length:
        found += 1
    return found


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Have the cache fetch an element of an array; the loop does not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = context.make_array(array)(context, builder, values[0])
        index = context.cast(builder, values[1], at, types.int64)
        place = builder.gep(view.data, [index])
        bytes_, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        given = ir.FunctionType(ir.VoidType(), [bytes_, flag, flag, flag])
        name = "llvm.prefetch.p0i8"
        fetch = cgutils.get_or_insert_function(builder.module, given, name)
        # To be read, into all caches, as data.
        call = builder.bitcast(place, bytes_), flag(0), flag(3), flag(1)
        builder.call(fetch, call)
        return context.get_dummy_value()

    return types.void(array, at), generate


@jit
def list_entries(
    at: _Array, other: _Array, twice: bool, keys: _Array, outcomes: _Array
) -> int:
    """Store the row and the number of each entry; return how many there are.

    Updates with a negative row have no entry and are ignored, and a loop has one. All
    others insert an edge unless `plan_rows` finds another outcome.
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
def read_entries(
    part: int, low: int, high: int, keys: _Array, at: _Array, other: _Array,
    kinds: _Array, order: _Array, ends: _Array, fates: _Array,
) -> None:  # fmt: skip
    """Store number, other end and kind of some entries."""
    for e in range(low, high):
        _fetch(other, (keys[min(e + _FETCHED, high - 1)] & _LOW) >> 1)
        number = keys[e] & _LOW
        order[e] = number
        ends[e] = at[number >> 1] if number & 1 else other[number >> 1]
        fates[e] = kinds[number >> 1]


@jit
def list_rows(keys: _Array, rows: _Array, first: _Array, is_dense: bool) -> int:
    """List the rows among sorted keys, unless `is_dense`, and where each begins.

    Return how many there are.
    """
    count, row = 0, -1
    for i in range(keys.size):
        if keys[i] >> 32 != row:
            if is_dense:
                first[row + 1 : keys[i] >> 32] = i
                count = keys[i] >> 32
            else:
                rows[count] = keys[i] >> 32
            row, first[count] = keys[i] >> 32, i
            count += 1
    first[count:] = keys.size
    return count


@jit
def number_bits(rows: _Array, starts: _Array, stops: _Array, bits_at: _Array) -> int:
    """Store the first word of each row's bits; return how many words there are."""
    count = 0
    for j in range(rows.size):
        ahead = rows[min(j + _AHEAD, rows.size - 1)]
        _fetch(starts, ahead)
        _fetch(stops, ahead)
        bits_at[j] = count
        count += (_int64(stops[rows[j]]) - _int64(starts[rows[j]]) + 63) >> 6
    return count


@njit(nogil=True, inline="always")
def _fetch_row(
    j: int, high: int, rows: _Array, starts: _Array, stops: _Array, values: _Array,
    width: int,
) -> None:  # fmt: skip
    """Fetch the first slots and the last one of a row ahead, and bounds of another."""
    beyond = rows[min(j + 2 * _AHEAD, high - 1)]
    _fetch(starts, beyond)
    _fetch(stops, beyond)
    row = rows[min(j + _AHEAD, high - 1)]
    start, stop = _int64(starts[row]) * width, _int64(stops[row]) * width
    for slot in range(start, min(stop, start + _FETCHED), 16):
        _fetch(values, slot)
    _fetch(values, stop)


@njit(nogil=True, inline="always")
def _begin_of(key: int, size: int) -> int:
    """Return where in a table of entries the search for a key begins."""
    return int(((key * 2654435769) >> 15) & (size - 1))


@njit(nogil=True, inline="always")
def _slot_of(key: int, table: _Array, size: int) -> int:
    """Return the place of a key in a table of entries, or the free place for it.

    The table has the key of an entry in its upper bits, and -1 where there is none.
    """
    at = _begin_of(key, size)
    while table[at] != -1 and (table[at] >> 32) & _LOW != key:
        at = (at + 1) & (size - 1)
    return int(at)


@njit(nogil=True, inline="always")
def _table_size(count: int) -> int:
    """Return the size of the table of a row, 0 for one of few entries."""
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
    """Find the first entry of each pair, and the copies that deletions take of it.

    Returns
    -------
    deletes : bool
    found : int
        How many pairs there are.
    """
    size = _table_size(count)
    table[:size] = -1
    deletes, different = False, 0
    for i in range(count):
        pair = i
        if size:
            behind = keys[begin + min(i + _FETCHED, count - 1)]
            _fetch(table, _begin_of(_int64(behind), size))
            key = _int64(keys[begin + i])
            at = _slot_of(key, table, size)
            if table[at] == -1:
                table[at] = key << 32 | i
            pair = table[at] & _LOW
        else:
            for other in range(i):
                if keys[begin + other] == keys[begin + i]:
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
    start: int, stop: int, begin: int, count: int, ends: _Array, numbers: _Array,
    is_sided: bool, is_backward: bool, most: int, keys: _Array, table: _Array,
    pairs: _Array, filter_: _Array, bits: _Array, bits_at: int,
) -> int:  # fmt: skip
    """Find the edges of a row that have entries; mark those that deletions take.

    Return how many are taken.
    """
    size, length = _table_size(count), stop - start
    if size:
        filter_[:] = 0
    for i in range(count if size else 0):
        key = _int64(keys[begin + i])
        filter_[(key >> 6) % _WORDS] |= np.uint64(1) << np.uint64(key & 63)
    gone = k = 0
    while k < length and most:
        if not size and k % _BLOCK == 0:  # most blocks have none: compare all at once
            behind = min(k + _BLOCK, length)
            low = np.uint64(stop - behind if is_backward else start + k)
            hits = 0
            for i in range(count):
                end = np.int32(_int64(keys[begin + i]) >> _int64(is_sided))
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
                _fetch(table, _begin_of(_int64(ends[ahead]), size))
            word = filter_[(key >> 6) % _WORDS]
            if not (word >> np.uint64(key & 63)) & np.uint64(1):
                continue
            entry = table[_slot_of(key, table, size)]
            pair = -1 if entry == -1 else entry & _LOW
        else:
            for i in range(count):
                if _int64(keys[begin + i]) == key:
                    pair = pairs[PAIR, i]
                    break
        if pair < 0:
            continue
        if pairs[FOUND, pair] < pairs[NEED, pair]:
            bits[bits_at + (place >> 6)] |= np.uint64(1) << np.uint64(place & 63)
            gone += 1
        pairs[FOUND, pair] += 1
        pairs[PLACE, pair] = place
        most -= 1
    return gone


@njit(nogil=True, inline="always")
def _decide_single(
    begin: int, count: int, policy: int, order: _Array, pairs: _Array, start: int,
    places: _Array, fates: _Array, heads: _Array, outcomes: _Array,
    tally: _Array,
) -> int:  # fmt: skip
    """Take the updates of a row one by one where no pair has two edges.

    `STATE` is 0 for an absent edge, 1 for one of the graph, and 2 behind the entry that
    last inserted the edge or first replaced its value.

    Return how many edges the row gains at its end.
    """
    gained = 0
    for i in range(count):
        pairs[STATE, i] = pairs[FOUND, i]
    for i in range(count):
        pair, e = pairs[PAIR, i], begin + i
        now = pairs[STATE, pair]
        outcome, head, kind = INSERTED, -1, fates[e]
        fates[e] = NOTHING
        if not kind:
            outcome = MISSING
            if now > 0:
                outcome, pairs[STATE, pair] = DELETED, 0
            if now > 1:
                gained -= fates[begin + now - 2] == APPENDS
                fates[begin + now - 2] |= DEAD
        elif now == 0:
            fates[e], head, pairs[STATE, pair] = APPENDS, e, i + 2
            gained += 1
        elif policy == REFUSE:
            outcome = REPEATED
        elif policy == IGNORE:
            outcome = IGNORED
        elif now == 1:
            fates[e], head, pairs[STATE, pair] = REPLACES, e, i + 2
            outcome, places[e] = REPLACED, start + pairs[PLACE, pair]
        else:
            outcome, head = REPLACED, begin + now - 2
        if policy == COMBINE:
            heads[e] = head
        if not order[e] & 1:
            outcomes[order[e] >> 1] = outcome
            tally[outcome] += 1
            tally[EDGES] += outcome == DELETED
    return gained


@njit(nogil=True, inline="always")
def _decide_copies(
    begin: int, count: int, copies: int, order: _Array, pairs: _Array, fates: _Array,
    outcomes: _Array, tally: _Array,
) -> int:  # fmt: skip
    """Take the updates of a row one by one where pairs may have several edges.

    `FOUND` counts the copies of the graph that are left. Those of the batch are a list
    through `PLACE` that begins at `STATE` - 1: the last one first, but where deletions
    take the first, which have its end at `NEED` - 1.
    """
    gained = 0
    pairs[STATE, :count] = 0
    for i in range(count):
        pair, e = pairs[PAIR, i], begin + i
        outcome, taken = INSERTED, 0
        pairs[PLACE, i] = -1
        if fates[e]:
            gained += 1
            if copies != FIRST:
                pairs[PLACE, i], pairs[STATE, pair] = pairs[STATE, pair] - 1, i + 1
            elif pairs[STATE, pair] == 0:
                pairs[STATE, pair] = pairs[NEED, pair] = i + 1
            else:
                pairs[PLACE, pairs[NEED, pair] - 1], pairs[NEED, pair] = i, i + 1
        else:
            if copies == ALL:
                taken, pairs[FOUND, pair] = pairs[FOUND, pair], 0
            elif pairs[FOUND, pair] > 0 and (
                copies == FIRST or pairs[STATE, pair] == 0
            ):
                taken = 1
                pairs[FOUND, pair] -= 1
            while pairs[STATE, pair] > 0 and (copies == ALL or taken == 0):
                own = pairs[STATE, pair] - 1
                fates[begin + own] = APPENDS | DEAD
                pairs[STATE, pair] = pairs[PLACE, own] + 1
                gained -= 1
                taken += 1
            outcome = DELETED if taken else MISSING
        if not order[e] & 1:
            outcomes[order[e] >> 1] = outcome
            tally[outcome] += 1
            tally[EDGES] += taken
    return gained


@jit
def plan_rows(
    part: int, low: int, high: int, rows: _Array, first: _Array, order: _Array,
    keys: _Array, starts: _Array, stops: _Array, classes: _Array, ends: _Array,
    numbers: _Array, is_sided: bool, is_dense: bool, looks: bool, policy: int,
    copies: int, bits_at: _Array, bits: _Array, places: _Array, fates: _Array,
    heads: _Array, outcomes: _Array, lengths: _Array, gone: _Array, chosen: _Array,
    tallies: _Array,
) -> None:  # fmt: skip
    """Find the fate of each entry, the lengths of rows afterwards, and runs.

    `fates` are the kinds of the entries at first. A row moves where its run is too
    short, or twice as long as it must be; all do if `is_dense`.
    """
    tally, most = tallies[part], 0
    for j in range(low, high):
        most = max(most, first[j + 1] - first[j])
    table = np.empty(_table_size(most), np.int64)
    filter_ = np.empty(_WORDS, np.uint64)
    pairs = np.empty((5, most), np.int32)
    for j in range(low, high):
        _fetch(classes, rows[min(j + _AHEAD, high - 1)])
        if looks:
            _fetch_row(j, high, rows, starts, stops, ends, 1)
        row, begin, count = rows[j], first[j], first[j + 1] - first[j]
        start, stop = _int64(starts[row]), _int64(stops[row])
        gained, left = count, 0
        if count and looks:
            deletes, different = _group(begin, count, keys, fates, copies, table, pairs)
            if policy != KEEP or deletes:
                left = _match(
                    start, stop, begin, count, ends, numbers, is_sided, copies == LAST,
                    _MANY if policy == KEEP else different, keys, table, pairs, filter_,
                    bits, bits_at[j],
                )  # fmt: skip
            if policy == KEEP:
                gained = _decide_copies(
                    begin, count, copies, order, pairs, fates, outcomes, tally
                )
            else:
                gained = _decide_single(
                    begin, count, policy, order, pairs, start, places, fates, heads,
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
    """Find where each row goes: first runs from queues, then parts of free regions.

    Parameters
    ----------
    runs : first slots of free runs, those of a class from ``begins[class]`` on, of
        which ``counts[class]`` may be taken
    regions : int64, (regions, 2)
        Bounds of free memory. A row that does not fit begins the next region. On
        return, the bounds of what is left.

    Returns
    -------
    int
        The regions that rows have passed by; -1 where a row fits in none.
    """
    taken, region = np.zeros(counts.size, np.int64), 0
    for j in range(rows.size):
        best = _int64(chosen[j])
        targets[j] = starts[rows[j]]
        if best == _int64(classes[rows[j]]):
            continue
        targets[j] = 0
        if best == 0:
            continue
        if taken[best] < counts[best]:
            targets[j] = runs[begins[best] + taken[best]]
            taken[best] += 1
            continue
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
    gone_at: _Array, bits_at: _Array, bits: _Array, ends: _Array, numbers: _Array,
    ids: _Array, gone_rows: _Array, gone_ends: _Array, gone_numbers: _Array,
    gone_ids: _Array,
) -> None:  # fmt: skip
    """List the edges that are deleted, in the order of rows."""
    for j in range(low, high):
        _fetch_row(j, high, rows, starts, starts, numbers, 1)
        if gone[j] == 0:
            continue
        start, at, left = _int64(starts[rows[j]]), gone_at[j], gone[j]
        place = 0
        while left:
            word = bits[bits_at[j] + (place >> 6)] >> np.uint64(place & 63)
            if word == 0:
                place = (place | 63) + 1
                continue
            if word & np.uint64(1):
                slot = start + place
                gone_rows[at], gone_ends[at] = rows[j], ends[slot]
                gone_numbers[at] = numbers[slot]
                if ids.size:
                    gone_ids[at] = ids[slot]
                at += 1
                left -= 1
            place += 1


@njit(nogil=True, inline="always")
def _close_gaps(
    start: int, count: int, target: int, bits: _Array, bits_at: int, old: _Array,
    new: _Array, width: int, moves: bool,
) -> int:  # fmt: skip
    """Copy the edges of a row that stay; return the slot behind them."""
    to, place = target, 0
    while place < count:
        behind = place
        while behind < count:
            word = bits[bits_at + (behind >> 6)] >> np.uint64(behind & 63)
            if word & np.uint64(1):
                break
            behind = behind + 1 if word else min((behind | 63) + 1, count)
        if moves or to != start + place:
            for k in range((behind - place) * width):
                new[to * width + k] = old[(start + place) * width + k]
        to += behind - place
        place = behind + 1
    return to


@njit(nogil=True, inline="always")
def _place_now(place: int, bits: _Array, bits_at: int) -> int:
    """Return where an edge is in its row once edges before it have gone."""
    now = 0
    for before in range(place):
        word = bits[bits_at + (before >> 6)]
        now += not (word >> np.uint64(before & 63)) & np.uint64(1)
    return now


@jit
def write_values(
    part: int, low: int, high: int, rows: _Array, first: _Array, fates: _Array,
    places: _Array, starts: _Array, stops: _Array, targets: _Array, gone: _Array,
    bits_at: _Array, bits: _Array, old: _Array, new: _Array, width: int, is_fresh: bool,
    values: _Array, sources: _Array, replaces: bool,
) -> None:  # fmt: skip
    """Write an array of each row: edges that stay, then those that are inserted.

    Parameters
    ----------
    old, new : flat arrays of `width` elements a slot; the same one unless `is_fresh`
    values : flat, `width` elements for each value
    sources : which value each entry has; without any, each has its own
    replaces : whether edges that are there get other values
    """
    for j in range(low, high):
        if not is_fresh:
            _fetch_row(j, high, rows, starts, stops, old, width)
        row, target = rows[j], _int64(targets[j])
        start = _int64(starts[row])
        count = _int64(stops[row]) - start
        moves = is_fresh or target != start
        if gone[j]:
            at = _close_gaps(
                start, count, target, bits, bits_at[j], old, new, width, moves
            )
        else:
            at = target + count
            if moves:
                for k in range(count * width):
                    new[target * width + k] = old[start * width + k]
        for e in range(first[j], first[j + 1]):
            source = _int64(sources[e]) if sources.size else e
            if fates[e] == APPENDS:
                for k in range(width):
                    new[at * width + k] = values[source * width + k]
                at += 1
            elif fates[e] == REPLACES and replaces:
                place = places[e] - start
                if gone[j]:
                    place = _place_now(place, bits, bits_at[j])
                for k in range(width):
                    new[(target + place) * width + k] = values[source * width + k]


@jit
def finish_rows(
    rows: _Array, targets: _Array, lengths: _Array, chosen: _Array, starts: _Array,
    stops: _Array, classes: _Array, counts: _Array, degrees: _Array, runs: _Array,
    behind: _Array,
) -> None:  # fmt: skip
    """Store where rows are now, and count their lengths; `degrees` may be none.

    Runs that rows leave are put behind those of the queues, which end at `behind`.
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
    """Count edges that come and go at their other ends; return the highest degree.

    `counts` has the number of vertices by degree, but for 0; `longest` was the highest.
    Nothing is counted where `degrees` are none.
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
    return top_of(counts, longest)


@jit
def top_of(counts: _Array, most: int) -> int:
    """Return the highest number up to `most` that is counted; 0 without one."""
    while most > 0 and counts[most] == 0:
        most -= 1
    return most


@jit
def find_ends(
    starts: _Array, stops: _Array, ends: _Array, is_dead: _Array, rows: _Array,
    others: _Array,
) -> int:  # fmt: skip
    """Count edges whose other end is in a set, and list them where arrays have room."""
    count = 0
    for row in range(starts.size):
        for slot in range(_int64(starts[row]), _int64(stops[row])):
            if is_dead[ends[slot]]:
                if rows.size:
                    rows[count], others[count] = row, ends[slot]
                count += 1
    return count
