"""Lists of vertices in the one-kernel loop over few vertices on a GPU; locks (0042).

These are the parts of the loop that do not depend on the program. All blocks of the
grid run it together, and meet at barriers between its parts (`meet`). As in
`featgraph.device.warp`, all lanes of a warp take part in appending and finding edges.
Barriers, locks (`hold`) and turns (`has_turn`) also serve kernels of exclusive edge
functions.

A superstep traverses the edges of its *sources*. Sources with edges are at the front of
the list `sources`, each with the number of edges of the sources before it (`begins`);
sources without edges are at the end of the same list. Edges are numbered across all
sources: `chunks` has the source of every 32nd edge, so that a warp processes 32 edges
across rows. Each of these lists has two halves: a superstep reads one half while it
writes the list of the next superstep to the other. `due` has the vertices that were
reached, each once, as `marks` has a flag for each. `words` has the lengths of these
lists, by the superstep modulo `TURNS`, and the inputs and outputs of the loop. Outside
the loop, sets are bitvectors: `active` is the active set at the start, and `left` the
pending set at the end.

With near and far, vertices whose key is beyond a limit wait: they are in one of the two
lists `vertices`, and have a flag in `waits`. An entry may be outdated, or occur twice.
When no vertex is near, the limit moves, and the list is scanned: vertices that still
wait move to the other list. `limits` has the limit, and related keys.
"""

import math
from collections import namedtuple

from featgraph.cuda.dialect import (
    acquire,
    clock_ns,
    cuda,
    device_function,
    fence,
    int32,
    int64,
    prefetch,
    uint32,
)
from featgraph.device import segments, warp

__all__ = [
    "ARRIVED",
    "BEGUN",
    "DELTA",
    "DONE",
    "DUE",
    "EDGES",
    "EDGE_BITS",
    "ENDS",
    "FARS",
    "FIRST",
    "KEY",
    "LAST",
    "LEAVES",
    "LIMIT",
    "LIMITS",
    "LOG",
    "MOST",
    "MOST_NS",
    "NEAR",
    "OF_AN_ENTRY",
    "PASSED",
    "ROWS",
    "SIGN",
    "SOME",
    "STAGED",
    "STAGES",
    "TURNS",
    "WAITING",
    "Far",
    "Lists",
]

#: Arrays of a loop, and arrays of waiting vertices: see the docstring of the module.
Lists = namedtuple("Lists", "active left sources begins chunks due marks words")
Far = namedtuple("Far", "vertices waits limits")

# Words: number of supersteps that have run, and its limit; most sources and edges of a
# superstep; time limit of the loop, its start, and the end of the last superstep, in
# ns; the last superstep that may run, plus 2, or 0 for no limit.
DONE, LIMIT, MOST, MOST_NS, BEGUN, LAST, ENDS = range(7)
#: Entries of 4 bytes in a sector, the unit of loads into caches.
ENTRIES_OF_A_SECTOR = 8
#: Word that counts arrivals of blocks at barriers. All blocks poll it: it has a cache
#: line of its own.
ARRIVED = 16
#: Copies of each count: a superstep reads one, fills one, and clears one. A power of
#: two, so that the index is a mask.
TURNS = 4
# Counts, TURNS words each: sources with edges and, in the lower bits, their edges;
# sources without edges; vertices that were reached; committed vertices (near and far).
ROWS, LEAVES, DUE, PASSED = 32, 36, 40, 44
# Number of runs of a stage between supersteps, and the superstep after the last run.
STAGES, STAGED = 8, 9
# Waiting vertices: the property of their keys, or -1; the lengths of both lists (two
# words); whether any vertex waits; the number that waits at the end of the loop.
KEY, FARS, SOME, WAITING = 7, 48, 50, 51
# Entries of `limits`: the largest near key, times the sign; the sign; the distance of a
# new limit from the first waiting key, and that key; from `LIMITS` on, the limit of
# each superstep.
NEAR, SIGN, DELTA, FIRST, LIMITS = 0, 1, 2, 3, 4
#: First word of the log, and words of an entry: the number of vertices that a superstep
#: committed, and its time, in ns.
LOG, OF_AN_ENTRY = 52, 2
#: Longest time, in ns, that exclusive functions wait before their kernel ends with an
#: error; and number of polls between two reads of the clock.
LONGEST_WAIT, POLLS = 60_000_000_000, 4096
#: Most chunks of a row that a lane adds to the list by itself.
FEW_CHUNKS = 4
#: Number of lower bits of a word of `ROWS` that count edges. One atomic addition takes
#: places for rows and for their edges, so that `begins` ascend with the rows.
EDGE_BITS = 40
#: Mask of these bits.
EDGES = (1 << EDGE_BITS) - 1


@device_function
def meet(lists, meets):
    """Synchronize the grid: all threads see all earlier writes.

    `meets` is the number of barriers before; returns it plus one.
    """
    return meet_at(lists.words, meets, False)


@device_function
def meet_at(words, meets, ends):
    """Synchronize the grid by the count of arrivals in `words`, which begins at 0.

    Returns the number of barriers so far; with `ends`, -1 if other blocks have not
    arrived after `LONGEST_WAIT`.
    """
    return wait_for_all(words, arrive(words, meets), ends)


@device_function
def arrive(words, meets):
    """Arrive at a barrier; return the number of barriers, for `wait_for_all`.

    Writes between this call and the end of `wait_for_all` are not ordered by the
    barrier.
    """
    cuda.syncthreads()
    if cuda.gridDim.x > 1 and cuda.threadIdx.x == 0:
        # Release: the barrier has ordered the writes of the whole block before it.
        fence()
        cuda.atomic.add(words, ARRIVED, int64(1))
    return meets + 1


@device_function
def wait_for_all(words, meets, ends):
    """Wait until all blocks have arrived as often as this one has: see `meet_at`."""
    polls, begun = int32(0), int64(0)
    if cuda.gridDim.x > 1 and cuda.threadIdx.x == 0:
        all_blocks = meets * int64(cuda.gridDim.x)
        while begun >= 0 and acquire(words, ARRIVED) < all_blocks:
            if ends:
                polls += int32(1)
                begun = wait_begun(polls, begun)
    if ends:
        return int64(-1) if cuda.syncthreads_or(int32(begun < 0)) != 0 else meets
    # Thread 0 has acquired the writes of other blocks: make them visible to its block.
    cuda.syncthreads()
    return meets


@device_function
def ask_for(array, first, count):
    """Prefetch `count` adjacent entries into the L1 cache."""
    for place in range(0, count, ENTRIES_OF_A_SECTOR):
        prefetch(array, first + place)


@device_function
def task_at(tasks, number):
    """Return the begin and the end of a task; of the last one for larger numbers."""
    number = min(number, int64(tasks.shape[0] - 2))
    return int64(tasks[number]), int64(tasks[number + 1])


@device_function
def ends_at(sources, targets, place):
    """Return source and target of the edge at a place; of the last one beyond it."""
    place = min(place, int64(sources.shape[0] - 1))
    return sources[place], targets[place]


@device_function
def wait_begun(polls, begun):
    """Return the time when a wait began, in ns; -1 after `LONGEST_WAIT`.

    0 before the first read of the clock, which is read in one of `POLLS` calls; `polls`
    counts the calls, from 1 on.
    """
    if polls & int32(POLLS - 1) != 0:
        return begun
    now = clock_ns()
    if begun == 0:
        return now
    return int64(-1) if now - begun > LONGEST_WAIT else begun


@device_function
def hold(locks, first, second):
    """Try to acquire two locks, or one if they are equal; return whether it succeeded.

    Acquires the writes of previous holders, too. It does not wait: a lane that waited
    for a lock of another lane of its warp would wait forever.
    """
    if cuda.atomic.cas(locks, first, int32(0), int32(1)) == 0:
        is_one = first == second
        if is_one or cuda.atomic.cas(locks, second, int32(0), int32(1)) == 0:
            # Atomics are relaxed: no load of the holder may come before them.
            fence()
            return True
        cuda.atomic.exch(locks, first, int32(0))
    return False


@device_function
def release(locks, first, second):
    """Release two locks, or one if they are equal, after all earlier writes."""
    fence()
    cuda.atomic.exch(locks, second, int32(0))  # more wait for that of a hub
    if first != second:
        cuda.atomic.exch(locks, first, int32(0))


@device_function
def has_turn(counts, place, turn):
    """Return whether `turn` edges of a vertex have run; acquires their writes."""
    return acquire(counts, place) == turn


@device_function
def is_clerk():
    """Return whether this thread updates the counters: the last thread of the grid."""
    return cuda.grid(1) == cuda.gridsize(1) - 1


@device_function
def half_of(array, number):
    """Return the offset of the half of a list that superstep `number` reads."""
    return int64(array.size >> 1) * (number & 1)


@device_function
def sizes_of(lists, number):
    """Return the numbers of sources with edges, of sources without, and of edges."""
    turn = number & (TURNS - 1)
    packed = lists.words[ROWS + turn]
    rows, leaves = packed >> EDGE_BITS, lists.words[LEAVES + turn]
    return int32(rows), int32(leaves), packed & EDGES


@device_function
def goes_on(lists, number):
    """Return whether superstep `number` runs, and log the superstep before it.

    The active vertices are those that the superstep before has committed.
    """
    rows, leaves, _ = sizes_of(lists, number)
    return goes_on_from(lists, number, int64(rows) + leaves)


@device_function
def goes_on_near(lists, far, number):
    """Return the result of `goes_on` with near and far; log the limit, too."""
    if is_clerk():
        far.limits[uint32(LIMITS + number)] = far.limits[NEAR]
    return goes_on_from(lists, number, lists.words[PASSED + (number & (TURNS - 1))])


@device_function
def goes_on_behind(lists, number, is_staged):
    """Return the result of `goes_on` for active vertices that may be from a stage."""
    rows, leaves, _ = sizes_of(lists, number)
    committed = int64(0) if is_staged else int64(rows) + leaves
    return goes_on_from(lists, number, committed)


@device_function
def is_idle(lists, number):
    """Return whether no vertex is active, so that the stage runs before a superstep.

    To be called after the last barrier of the superstep before `number`.
    """
    rows, leaves, _ = sizes_of(lists, number)
    may_run = number < lists.words[LIMIT] and lists.words[ENDS] == 0
    return may_run and rows + leaves == 0


@device_function
def begin_result(result, identity):
    """Set the result of a reduce to its identity."""
    if is_clerk():
        result[0] = identity


@device_function
def note_stage(lists, number):
    """Count a run of the stage before superstep `number`."""
    if is_clerk():
        lists.words[STAGES] += 1
        lists.words[STAGED] = number


@device_function
def goes_on_from(lists, number, committed):
    """Log superstep ``number - 1`` with its commits; return whether `number` runs."""
    words = lists.words
    rows, leaves, edges = sizes_of(lists, number)
    active = int64(rows) + leaves
    if is_clerk():
        now = clock_ns()
        if number == 0:
            words[BEGUN] = now
        else:
            entry = LOG + OF_AN_ENTRY * (number - 1)
            words[entry], words[entry + 1] = committed, now - words[LAST]
        words[DONE], words[LAST] = number, now
    # Other blocks may read `ENDS` later, when this superstep has changed it. Its value
    # therefore applies to the superstep after the one that sets it.
    stays = number < words[LIMIT] and (words[ENDS] == 0 or number + 1 < words[ENDS])
    return stays and active > 0 and active + edges <= words[MOST]


@device_function
def clear(lists, number):
    """Set the counts to 0 that the superstep after `number` will increase."""
    if is_clerk():
        turn = (number + 2) & (TURNS - 1)
        lists.words[ROWS + turn] = lists.words[LEAVES + turn] = 0
        lists.words[DUE + turn] = lists.words[PASSED + turn] = 0


@device_function
def end_behind(lists, number):
    """Let no superstep run after `number`; -1 for none at all."""
    lists.words[ENDS] = number + 2


@device_function
def watch(lists, number):
    """End the loop after superstep `number` if it has run for long enough.

    To be called before the last barrier of the superstep.
    """
    words = lists.words
    if is_clerk() and words[LAST] - words[BEGUN] > words[MOST_NS]:
        end_behind(lists, number)


@device_function
def leave(lists, number):
    """Add the sources of superstep `number`, which does not run, to `left`."""
    rows, leaves, _ = sizes_of(lists, number)
    if int64(rows) + leaves <= lists.sources.size >> 1:
        for place in range(cuda.grid(1), rows + leaves, cuda.gridsize(1)):
            v = source_of(lists, int32(place), rows, leaves, number)
            warp.set_bit(lists.left, v)


@device_function
def claim(lists, v):
    """Return whether this thread is the first to reach a vertex."""
    # Saves the atomic operation for vertices that were reached before.
    if lists.marks[uint32(v)] != 0:
        return False
    return cuda.atomic.cas(lists.marks, uint32(v), int32(0), int32(1)) == 0


@device_function
def is_unsettled(lists, v, number):
    """Return whether a vertex seems unsettled in superstep `number`: a relaxed read.

    Marks are numbers of supersteps here, and are cleared after the loop.
    """
    return lists.marks[uint32(v)] < int32(number + 1)


@device_function
def settles(lists, v, number):
    """Return whether this thread is the first to settle a vertex in a superstep."""
    mark = int32(number + 1)
    return cuda.atomic.max(lists.marks, uint32(v), mark) < mark


@device_function
def append(flag, v, lists, number):
    """Append the vertices of a warp's lanes with a set `flag` to the list `due`."""
    bits = warp.group_bits(flag, 32)
    if bits != 0:  # the whole warp
        leader, first = warp.trailing_zeros(bits), int64(0)
        if cuda.laneid == leader:
            count = int64(warp.count_bits(bits))
            first = cuda.atomic.add(lists.words, DUE + (number & (TURNS - 1)), count)
        first = warp.broadcast(first, leader, 32)
        if flag:
            lower = bits & ((uint32(1) << uint32(cuda.laneid)) - uint32(1))
            lists.due[uint32(first + warp.count_bits(lower))] = v


@device_function
def append_row(flag, v, degree, lists, number):
    """Append the vertices of a warp's lanes with a set `flag` to the list `sources`.

    They are sources of superstep `number`; `degree` is the out-degree of the vertex.
    """
    edges = int64(degree) if flag else int64(0)
    before = warp.sum_before(edges)
    bits = warp.group_bits(edges > 0, 32)
    others = warp.group_bits(flag and edges == 0, 32)
    if bits != 0:  # the whole warp
        total = warp.broadcast(before + edges, 31, 32)
        leader, packed = warp.trailing_zeros(bits), int64(0)
        if cuda.laneid == leader:
            more = (int64(warp.count_bits(bits)) << EDGE_BITS) + total
            packed = cuda.atomic.add(lists.words, ROWS + (number & (TURNS - 1)), more)
        packed = warp.broadcast(packed, leader, 32)
        row, begin = int32(-1), (packed & EDGES) + before
        if edges > 0:
            lower = bits & ((uint32(1) << uint32(cuda.laneid)) - uint32(1))
            row = int32((packed >> EDGE_BITS) + warp.count_bits(lower))
            if row < lists.sources.size >> 1:
                place = uint32(half_of(lists.sources, number) + row)
                lists.sources[place] = v
                lists.begins[place] = int32(begin)
        put_chunks(row, begin, edges, lists, number)
    if others != 0:  # the whole warp
        leader, first = warp.trailing_zeros(others), int64(0)
        if cuda.laneid == leader:
            count = int64(warp.count_bits(others))
            first = cuda.atomic.add(lists.words, LEAVES + (number & (TURNS - 1)), count)
        first = warp.broadcast(first, leader, 32)
        if flag and edges == 0:
            lower = others & ((uint32(1) << uint32(cuda.laneid)) - uint32(1))
            place = (lists.sources.size >> 1) - 1 - (first + warp.count_bits(lower))
            if place >= 0:
                lists.sources[uint32(half_of(lists.sources, number) + place)] = v


@device_function
def put_chunks(row, begin, edges, lists, number):
    """Store the row of each lane at all chunks whose first edge is in it; -1: no row.

    A lane stores up to `FEW_CHUNKS` by itself; for longer rows, all lanes of the warp
    store the others. Chunks beyond the list are never read, since a superstep with so
    many edges does not run.
    """
    half = half_of(lists.chunks, number)
    chunk, last = (begin + 31) >> 5, (begin + edges - 1) >> 5
    last = min(last, int64((lists.chunks.size >> 1) - 1))
    if row < 0:
        last = chunk - 1
    end = min(last, chunk + FEW_CHUNKS - 1)
    while chunk <= end:
        lists.chunks[uint32(half + chunk)] = row
        chunk += 1
    long_rows = warp.group_bits(chunk <= last, 32)
    while long_rows != 0:  # the whole warp
        leader = warp.trailing_zeros(long_rows)
        place = warp.broadcast(int64(chunk), leader, 32) + cuda.laneid
        end = warp.broadcast(int64(last), leader, 32)
        own = warp.broadcast(int32(row), leader, 32)
        while place <= end:
            lists.chunks[uint32(half + place)] = own
            place += 32
        long_rows = uint32(long_rows & (long_rows - uint32(1)))


@device_function
def edge_of(lists, chunk, rows, edges, number):
    """Return the source of a lane's edge in a chunk, its index in the row, and a flag.

    The flag is False for lanes beyond the last edge, which get the last edge.
    """
    first = lists.chunks[uint32(half_of(lists.chunks, number) + chunk)]
    own = int32(first + cuda.laneid)
    place = int32(chunk * 32 + cuda.laneid)
    inside = place < edges
    place = min(place, int32(edges - 1))
    source, begin = int32(0), int32(edges)
    if own < rows:
        listed = uint32(half_of(lists.sources, number) + own)
        source, begin = lists.sources[listed], lists.begins[listed]
    row = segments.row_of(begin, place, 1)
    begin = warp.broadcast(begin, row, 32)
    return warp.broadcast(source, row, 32), int32(place - begin), inside


@device_function
def source_of(lists, place, rows, leaves, number):
    """Return a source by its index: those with edges come before those without."""
    place = min(place, int32(rows + leaves - 1))
    own = place if place < rows else (lists.sources.size >> 1) - 1 - (place - rows)
    return lists.sources[uint32(half_of(lists.sources, number) + own)]


@device_function
def clear_first(lists, far):
    """Reset the first waiting key; a scan computes it if no vertex is near."""
    if is_clerk():
        lists.words[SOME], far.limits[FIRST] = 0, math.inf


@device_function
def watch_far(lists, far, side, number):
    """End the loop if a list may not have room for two more supersteps."""
    words, room = lists.words, far.vertices.shape[1]
    if is_clerk() and words[FARS + side] + lists.sources.size > room:
        end_behind(lists, number)


@device_function
def append_far(flag, v, lists, far, side):
    """Append the vertices of a warp's lanes with a set `flag` to a list of far ones.

    `side`, 0 or 1, is the list.
    """
    bits = warp.group_bits(flag, 32)
    if bits != 0:  # the whole warp
        leader, first = warp.trailing_zeros(bits), int64(0)
        if cuda.laneid == leader:
            count = int64(warp.count_bits(bits))
            first = cuda.atomic.add(lists.words, FARS + side, count)
        first = warp.broadcast(first, leader, 32)
        if flag:
            lower = bits & ((uint32(1) << uint32(cuda.laneid)) - uint32(1))
            place = uint32(first + warp.count_bits(lower))
            far.vertices[uint32(side), place] = v


@device_function
def wait(flag, near, v, lists, far, side):
    """Let the vertices of a warp's lanes with a set `flag` wait, unless they are near.

    No other thread may call it for the same vertex.
    """
    joins = False
    if flag:
        waits = far.waits[uint32(v)] != 0
        joins = not (near or waits)
        if joins:
            far.waits[uint32(v)] = 1
        elif near and waits:
            far.waits[uint32(v)] = 0
    append_far(joins, v, lists, far, side)


@device_function
def count_passed(flag, lists, number):
    """Count the vertices of a warp's lanes with a set `flag` as committed."""
    bits = warp.group_bits(flag, 32)
    if cuda.laneid == warp.trailing_zeros(bits):
        count = int64(warp.count_bits(bits))
        cuda.atomic.add(lists.words, PASSED + (number & (TURNS - 1)), count)


@device_function
def wants_more(lists, side, number):
    """Return whether no vertex is near, and the list `side` of far ones has entries."""
    rows, leaves, _ = sizes_of(lists, number)
    return rows + leaves == 0 and lists.words[FARS + side] > 0


@device_function
def note_first(some, first, lists, far):
    """Lower the first waiting key to the least `first` of lanes with a set `some`."""
    bits = warp.group_bits(some, 32)
    if bits != 0:  # the whole warp
        first = warp.group_min(first, 32)
        if cuda.laneid == warp.trailing_zeros(bits):
            lists.words[SOME] = 1
            cuda.atomic.min(far.limits, FIRST, first)


@device_function
def move_limit(lists, far, side):
    """Move the limit beyond the first waiting key, if any; empty the list `side`."""
    if is_clerk():
        if lists.words[SOME] != 0:
            far.limits[NEAR] = far.limits[FIRST] + far.limits[DELTA]
        lists.words[FARS + side] = 0


@device_function
def stops_waiting(near, v, far):
    """Return whether a waiting vertex becomes near; clears its flag in `waits`.

    An atomic exchange, so that it is True for one entry of a repeated vertex only.
    """
    return near and cuda.atomic.cas(far.waits, uint32(v), int32(1), int32(0)) == 1


@device_function
def leave_far(lists, far, side):
    """Add the waiting vertices to the pending set `left`, and count them."""
    count = int64(0)
    for place in range(cuda.grid(1), lists.words[FARS + side], cuda.gridsize(1)):
        v = far.vertices[uint32(side), uint32(place)]
        if stops_waiting(True, v, far):
            warp.set_bit(lists.left, v)
            count += 1
    if count != 0:
        cuda.atomic.add(lists.words, WAITING, count)
