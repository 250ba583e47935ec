"""Small kernels over bitvectors that the CUDA runtime launches between folded ones."""

import math

from numba import float64, int32, int64, uint32, uint64

from featgraph._cuda import cuda, device_function, kernel
from featgraph.device import warp

__all__ = [
    "collect_targets",
    "count_bits",
    "count_edges",
    "count_in_one_block",
    "expand",
    "expand_hubs",
    "fill",
    "find_due",
    "find_due_hubs",
    "first_key",
    "leave_out",
    "near",
    "refresh_edges",
    "refresh_edges_by_row",
    "refresh_vertices",
    "refresh_vertices_without",
    "settle",
    "words_and",
    "words_or",
    "words_without",
]

#: Edges of one vertex that one lane takes alone.
ALONE = 8


@kernel(cache=True)
def fill(array, value):  # type: ignore[no-untyped-def]
    """Set every element of a one-dimensional array."""
    for place in range(cuda.grid(1), array.size, cuda.gridsize(1)):
        array[place] = value


@kernel(cache=True)
def words_or(a, b, out):  # type: ignore[no-untyped-def]
    """Union of two bitvectors."""
    word = cuda.grid(1)
    if word < out.size:
        out[uint32(word)] = a[uint32(word)] | b[uint32(word)]


@kernel(cache=True)
def words_and(a, b, out):  # type: ignore[no-untyped-def]
    """Intersection of two bitvectors."""
    word = cuda.grid(1)
    if word < out.size:
        out[uint32(word)] = a[uint32(word)] & b[uint32(word)]


@kernel(cache=True)
def words_without(a, b, out):  # type: ignore[no-untyped-def]
    """Difference of two bitvectors."""
    word = cuda.grid(1)
    if word < out.size:
        out[uint32(word)] = a[uint32(word)] & ~b[uint32(word)]


@kernel(cache=True)
def leave_out(due, on, left, out):  # type: ignore[no-untyped-def]
    """Set `out` to what of `due` is in `on`, and add the rest to `left`."""
    word = uint32(cuda.grid(1))
    if word < out.size:
        out[word] = due[word] & on[word]
        left[word] = left[word] | (due[word] & ~on[word])


@kernel(cache=True)
def settle(due, stale, patched):  # type: ignore[no-untyped-def]
    """Move due vertices from `stale` to nowhere, all others of them to `patched`."""
    word = uint32(cuda.grid(1))
    if word < due.size:
        recomputed = due[word] & stale[word]
        patched[word] = (patched[word] | due[word]) & ~recomputed
        stale[word] = stale[word] & ~due[word]


@kernel(cache=True)
def near(words, keys, sign, limit, out):  # type: ignore[no-untyped-def]
    """Set `out` to the vertices of `words` with a feature that is not beyond `limit`.

    `keys` is of shape (V, N); a warp takes a word.
    """
    lane = cuda.threadIdx.x % 32
    first = cuda.grid(1) // 32
    for word in range(first, words.size, cuda.gridsize(1) // 32):
        v = uint32(word * 32 + lane)
        is_near = False
        if warp.test_bit(words, v):
            for f in range(keys.shape[1]):
                if not sign * float64(keys[v, uint32(f)]) > limit:
                    is_near = True
        found = warp.group_bits(is_near, 32)
        if lane == 0:
            out[uint32(word)] = found


@kernel(cache=True)
def first_key(words, keys, sign, out):  # type: ignore[no-untyped-def]
    """Lower ``out[0]`` to the smallest ``sign * key`` of the vertices in `words`."""
    here = float64(math.inf)
    for v in range(cuda.grid(1), keys.shape[0], cuda.gridsize(1)):
        if warp.test_bit(words, v):
            for f in range(keys.shape[1]):
                key = sign * float64(keys[uint32(v), uint32(f)])
                if key < here:
                    here = key
    here = warp.group_min(here, 32)
    if cuda.threadIdx.x % 32 == 0 and here < math.inf:
        cuda.atomic.min(out, 0, here)


@kernel(cache=True)
def count_bits(words, total):  # type: ignore[no-untyped-def]
    """Add the set bits of `words` to ``total[0]``."""
    word = cuda.grid(1)
    here = int64(0)
    if word < words.size:
        here = int64(warp.count_bits(words[uint32(word)]))
    here = warp.group_sum(here, 32)
    if cuda.threadIdx.x % 32 == 0 and here != 0:
        cuda.atomic.add(total, 0, here)


@kernel(cache=True)
def count_edges(words, offsets, total):  # type: ignore[no-untyped-def]
    """Add the degrees of the vertices in `words` to ``total[0]``; a warp a word."""
    lane = cuda.threadIdx.x % 32
    here = int64(0)
    for word in range(cuda.grid(1) // 32, words.size, cuda.gridsize(1) // 32):
        v = uint32(word * 32 + lane)
        if warp.test_bit(words, v):
            here += int64(offsets[v + uint32(1)]) - int64(offsets[v])
    here = warp.group_sum(here, 32)
    if lane == 0 and here != 0:
        cuda.atomic.add(total, 0, here)


@kernel(cache=True)
def count_in_one_block(words, total):  # type: ignore[no-untyped-def]
    """Set ``total[0]`` to the set bits of `words`; one block, so nothing to clear."""
    sums = cuda.shared.array(32, int64)
    thread = cuda.threadIdx.x
    here = int64(0)
    for word in range(thread, words.size, cuda.blockDim.x):
        here += int64(warp.count_bits(words[uint32(word)]))
    here = warp.group_sum(here, 32)
    if thread % 32 == 0:
        sums[uint32(thread // 32)] = here
    cuda.syncthreads()
    if thread < 32:  # the whole warp
        here = int64(0)
        if thread < cuda.blockDim.x // 32:
            here = sums[uint32(thread)]
        here = warp.group_sum(here, 32)
        if thread == 0:
            total[0] = here


@device_function
def mark_targets(start, stop, step, due, out_targets):  # type: ignore[no-untyped-def]
    """Add the targets of every `step`-th edge between two positions to `due`."""
    for slot in range(start, stop, step):
        v = out_targets[slot]
        if not warp.test_bit(due, v):
            warp.set_bit(due, v)


@device_function
def own_row(first, step, mine, before, done, count, offsets):  # type: ignore[no-untyped-def]
    """Return where the row of a lane's vertex begins and ends; empty without a vertex.

    Lane l has word ``first + l * step``, and of the bits of all words the one that
    comes l places behind `done`. All lanes of the warp must call this.
    """
    nth = int32(done + cuda.laneid)
    bit = warp.nth_bit(mine, before, min(nth, int32(count - 1)))
    start, stop = int64(0), int64(0)
    if nth < count:
        u = uint32(warp.vertex_at(first, step, bit))
        start, stop = int64(offsets[u]), int64(offsets[u + uint32(1)])
    return start, stop


@kernel(cache=True)
def expand(active, due, out_offsets, out_targets, hub_degree):  # type: ignore[no-untyped-def]
    """Add the targets of the active vertices' out-edges to `due`.

    A warp packs the vertices that it finds, a lane each, which takes few edges alone;
    all lanes share those of a vertex that has more. Hubs are left to `expand_hubs`.
    """
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(active)
    for first in range(cuda.grid(1) >> 5, active.size, turn * step):
        mine = warp.word_of_lane(active, first + lane * step, turn)
        before, count = warp.bits_before(mine)
        for done in range(int32(0), count, int32(32)):
            start, stop = own_row(first, step, mine, before, done, count, out_offsets)
            if stop - start >= hub_degree:
                stop = start
            few = stop if stop - start <= ALONE else start
            mark_targets(start, few, 1, due, out_targets)
            shared = warp.group_bits(stop > few, 32)
            while shared != 0:
                owner = warp.trailing_zeros(shared)
                shared &= shared - uint32(1)
                begin = warp.broadcast(start, owner, 32) + int64(lane)
                end = warp.broadcast(stop, owner, 32)
                mark_targets(begin, end, 32, due, out_targets)


@kernel(cache=True)
def expand_hubs(active, due, hubs, out_offsets, out_targets):  # type: ignore[no-untyped-def]
    """Add the targets of the active hubs' out-edges to `due`, a block a hub."""
    u = hubs[uint32(cuda.blockIdx.x)]
    if warp.test_bit(active, u):
        start = out_offsets[uint32(u)] + cuda.threadIdx.x
        for slot in range(start, out_offsets[uint32(u) + uint32(1)], cuda.blockDim.x):
            v = out_targets[slot]
            if not warp.test_bit(due, v):
                warp.set_bit(due, v)


@kernel(cache=True)
def find_due(active, due, in_offsets, in_sources, hub_degree):  # type: ignore[no-untyped-def]
    """Set `due` to the active vertices and those with an active source.

    A thread looks for one; hubs are left to `find_due_hubs`.
    """
    count = in_offsets.size - 1
    for base in range(cuda.grid(1) & ~31, count, cuda.gridsize(1)):
        v = int32(base + cuda.laneid)
        start = stop = int64(0)
        if v < count and not warp.test_bit(active, v):
            start = int64(in_offsets[uint32(v)])
            stop = int64(in_offsets[uint32(v) + uint32(1)])
        if stop - start >= hub_degree:
            stop = start
        is_due = False
        for slot in range(start, stop):
            if warp.test_bit(active, in_sources[slot]):
                is_due = True
                break
        found = warp.group_bits(is_due, 32)
        if cuda.laneid == 0:
            word = uint32(base) >> uint32(5)
            due[word] = active[word] | found


@kernel(cache=True)
def find_due_hubs(active, due, hubs, in_offsets, in_sources):  # type: ignore[no-untyped-def]
    """Add to `due` the hubs with an active source; a block looks for one."""
    v = hubs[uint32(cuda.blockIdx.x)]
    if not warp.test_bit(active, v):
        start = in_offsets[uint32(v)] + cuda.threadIdx.x
        for slot in range(start, in_offsets[uint32(v) + uint32(1)], cuda.blockDim.x):
            if warp.test_bit(due, v):  # another thread has found one
                break
            if warp.test_bit(active, in_sources[slot]):
                warp.set_bit(due, v)
                break


@kernel(cache=True)
def collect_targets(edge_state, in_offsets, words, vertex_count):  # type: ignore[no-untyped-def]
    """Set the bits of the vertices with an in-edge that passed last."""
    for v in range(cuda.grid(1), vertex_count, cuda.gridsize(1)):
        for e in range(in_offsets[uint32(v)], in_offsets[uint32(v) + uint32(1)]):
            if edge_state[e] == 2:
                warp.set_bit(words, v)
                break


@device_function
def copy_marked(mine, first, step, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in a warp's words, that of lane l ``l * step`` on.

    The lanes go through the entries of 32 rows side by side.
    """
    lane, width = int32(cuda.laneid), uint32(current.shape[1])
    before, count = warp.bits_before(mine)
    for done in range(int32(0), count, int32(32)):
        nth = min(int32(done + lane), int32(count - 1))
        own = warp.vertex_at(first, step, warp.nth_bit(mine, before, nth))
        entries = uint32(min(32, count - done)) * width
        for begin in range(uint32(0), entries, uint32(32)):
            entry = begin + uint32(lane)
            row = entry // width
            v = uint32(warp.broadcast(own, min(row, uint32(31)), 32))
            if entry < entries:
                f = entry - row * width
                next_[v, f] = current[v, f]


@kernel(cache=True)
def refresh_vertices(words, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in `words`, both of shape (V, N)."""
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(words)
    for first in range(cuda.grid(1) >> 5, words.size, turn * step):
        mine = warp.word_of_lane(words, first + lane * step, turn)
        copy_marked(mine, first, step, next_, current)


@kernel(cache=True)
def refresh_vertices_without(words, without, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in `words` but not in `without`, shape (V, N)."""
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(words)
    for first in range(cuda.grid(1) >> 5, words.size, turn * step):
        place = first + lane * step
        mine = warp.word_of_lane(words, place, turn)
        mine &= ~warp.word_of_lane(without, place, turn)
        copy_marked(mine, first, step, next_, current)


@device_function
def copy_out_edges(start, stop, step, next_, current, out_edges):  # type: ignore[no-untyped-def]
    """Copy the rows of every `step`-th edge between two positions."""
    for slot in range(start, stop, step):
        e = out_edges[slot]
        for f in range(current.shape[1]):
            next_[e, f] = current[e, f]


@device_function
def edges_from(words, source, is_edge):  # type: ignore[no-untyped-def]
    """Return a bit for each lane that has an edge, and its source in `words`.

    Without a branch, unlike `warp.test_bit`: loads for other edges go on beside it.
    """
    u = uint32(source)
    bit = uint32(words[u >> uint32(5)] >> (u & uint32(31))) & uint32(1)
    return warp.group_bits((bit != 0) & is_edge, 32)


@device_function
def copy_some(first, bits, next_, current):  # type: ignore[no-untyped-def]
    """Copy those of 32 rows from `first` on whose bits are set.

    The lanes go through the entries of all side by side.
    """
    width = uint32(current.shape[1])
    row, f = uint32(cuda.laneid) // width, uint32(cuda.laneid) % width
    while bits != 0 and row < 32:
        if (bits >> row) & uint32(1) != 0:
            next_[first + row, f] = current[first + row, f]
        row, f = uint32(row + uint32(32) // width), uint32(f + uint32(32) % width)
        if f >= width:
            row, f = uint32(row + uint32(1)), uint32(f - width)


@kernel(cache=True)
def refresh_edges(words, next_, current, in_sources):  # type: ignore[no-untyped-def]
    """Copy the rows of the out-edges of the vertices in `words`; asks every edge.

    A warp takes 128 at a time, so that four sources a lane are on their way at once.
    """
    first = uint64(cuda.grid(1) >> 5) << uint64(7)
    step = uint64(cuda.gridsize(1) >> 5) << uint64(7)
    last = uint64(in_sources.size - 1)
    while first <= last:
        a = first + uint64(cuda.laneid)
        b, c, d = a + uint64(32), a + uint64(64), a + uint64(96)
        source_a, source_b = in_sources[min(a, last)], in_sources[min(b, last)]
        source_c, source_d = in_sources[min(c, last)], in_sources[min(d, last)]
        bits_a = edges_from(words, source_a, a <= last)
        bits_b = edges_from(words, source_b, b <= last)
        bits_c = edges_from(words, source_c, c <= last)
        bits_d = edges_from(words, source_d, d <= last)
        copy_some(first, bits_a, next_, current)
        copy_some(first + uint64(32), bits_b, next_, current)
        copy_some(first + uint64(64), bits_c, next_, current)
        copy_some(first + uint64(96), bits_d, next_, current)
        first += step


@kernel(cache=True)
def refresh_edges_by_row(words, next_, current, out_offsets, out_edges):  # type: ignore[no-untyped-def]
    """Copy the rows of the out-edges of the vertices in `words`, row by row.

    A warp packs the vertices that it finds, a lane each, which takes few edges alone;
    all lanes share those of a vertex that has more.
    """
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(words)
    for first in range(cuda.grid(1) >> 5, words.size, turn * step):
        mine = warp.word_of_lane(words, first + lane * step, turn)
        before, count = warp.bits_before(mine)
        for done in range(int32(0), count, int32(32)):
            start, stop = own_row(first, step, mine, before, done, count, out_offsets)
            few = stop if stop - start <= ALONE else start
            copy_out_edges(start, few, 1, next_, current, out_edges)
            shared = warp.group_bits(stop > few, 32)
            while shared != 0:
                owner = warp.trailing_zeros(shared)
                shared &= shared - uint32(1)
                begin = warp.broadcast(start, owner, 32) + int64(lane)
                end = warp.broadcast(stop, owner, 32)
                copy_out_edges(begin, end, 32, next_, current, out_edges)
