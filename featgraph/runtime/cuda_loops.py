"""Small kernels over bitvectors that the CUDA runtime launches between folded ones."""

import math

from numba import float64, int64, uint32

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


@kernel(cache=True)
def expand(active, due, out_offsets, out_targets, vertex_count, hub_degree):  # type: ignore[no-untyped-def]
    """Add the targets of the active vertices' out-edges to `due`.

    A lane has a vertex, and takes few edges alone; all lanes share those of a vertex
    that has more. Hubs are left to `expand_hubs`.
    """
    lane = uint32(cuda.threadIdx.x % 32)
    turn = warp.words_a_turn(active)
    stride = cuda.gridsize(1) // 32 * turn
    for base in range(cuda.grid(1) // 32 * turn, active.size, stride):
        mine = warp.word_of_lane(active, base, turn)
        pending = warp.group_bits(mine != 0, 32)
        while pending != 0:
            place = warp.trailing_zeros(pending)
            pending &= pending - uint32(1)
            bits = uint32(warp.broadcast(int64(mine), place, 32))
            u = uint32(base + place) * uint32(32) + lane
            start, stop = int64(0), int64(0)
            if (bits >> lane) & uint32(1) and u < vertex_count:
                start = int64(out_offsets[u])
                stop = int64(out_offsets[u + uint32(1)])
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
def find_due(active, due, in_offsets, in_sources, vertex_count, hub_degree):  # type: ignore[no-untyped-def]
    """Add to `due` the vertices with an active source; a thread looks for one.

    Hubs are left to `find_due_hubs`.
    """
    for v in range(cuda.grid(1), vertex_count, cuda.gridsize(1)):
        start = in_offsets[uint32(v)]
        stop = in_offsets[uint32(v) + uint32(1)]
        if warp.test_bit(active, v) or stop - start >= hub_degree:
            continue
        for slot in range(start, stop):
            if warp.test_bit(active, in_sources[slot]):
                warp.set_bit(due, v)
                break


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
def copy_rows(bits, word, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of 32 vertices whose bits are set; a whole warp calls this."""
    width = uint32(current.shape[1])
    first = uint32(word) * uint32(32)
    rows = min(32, current.shape[0] - word * 32)
    for place in range(cuda.threadIdx.x % 32, rows * current.shape[1], 32):
        row = uint32(place) // width
        if (bits >> row) & uint32(1):
            f = uint32(place) - row * width
            next_[first + row, f] = current[first + row, f]


@device_function
def copy_marked(mine, base, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in the words of all lanes, from word `base` on."""
    pending = warp.group_bits(mine != 0, 32)
    while pending != 0:
        place = warp.trailing_zeros(pending)
        pending &= pending - uint32(1)
        bits = uint32(warp.broadcast(int64(mine), place, 32))
        copy_rows(bits, base + place, next_, current)


@kernel(cache=True)
def refresh_vertices(words, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in `words`, both of shape (V, N)."""
    turn = warp.words_a_turn(words)
    stride = cuda.gridsize(1) // 32 * turn
    for base in range(cuda.grid(1) // 32 * turn, words.size, stride):
        copy_marked(warp.word_of_lane(words, base, turn), base, next_, current)


@kernel(cache=True)
def refresh_vertices_without(words, without, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in `words` but not in `without`, shape (V, N)."""
    turn = warp.words_a_turn(words)
    stride = cuda.gridsize(1) // 32 * turn
    for base in range(cuda.grid(1) // 32 * turn, words.size, stride):
        mine = warp.word_of_lane(words, base, turn)
        mine &= ~warp.word_of_lane(without, base, turn)
        copy_marked(mine, base, next_, current)


@device_function
def copy_out_edges(start, stop, step, next_, current, out_edges):  # type: ignore[no-untyped-def]
    """Copy the rows of every `step`-th edge between two positions."""
    for slot in range(start, stop, step):
        e = out_edges[slot]
        for f in range(current.shape[1]):
            next_[e, f] = current[e, f]


@kernel(cache=True)
def refresh_edges(words, next_, current, out_offsets, out_edges, vertex_count):  # type: ignore[no-untyped-def]
    """Copy the rows of the out-edges of the vertices in `words`.

    A lane has a vertex, and takes few edges alone; all lanes share those of a vertex
    that has more.
    """
    lane = uint32(cuda.threadIdx.x % 32)
    turn = warp.words_a_turn(words)
    stride = cuda.gridsize(1) // 32 * turn
    for base in range(cuda.grid(1) // 32 * turn, words.size, stride):
        mine = warp.word_of_lane(words, base, turn)
        pending = warp.group_bits(mine != 0, 32)
        while pending != 0:
            place = warp.trailing_zeros(pending)
            pending &= pending - uint32(1)
            bits = uint32(warp.broadcast(int64(mine), place, 32))
            u = uint32(base + place) * uint32(32) + lane
            start, stop = int64(0), int64(0)
            if (bits >> lane) & uint32(1) and u < vertex_count:
                start = int64(out_offsets[u])
                stop = int64(out_offsets[u + uint32(1)])
            few = stop if stop - start <= ALONE else start
            copy_out_edges(start, few, 1, next_, current, out_edges)
            shared = warp.group_bits(stop > few, 32)
            while shared != 0:
                owner = warp.trailing_zeros(shared)
                shared &= shared - uint32(1)
                begin = warp.broadcast(start, owner, 32) + int64(lane)
                end = warp.broadcast(stop, owner, 32)
                copy_out_edges(begin, end, 32, next_, current, out_edges)
