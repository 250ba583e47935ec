"""Small CUDA kernels over bitvectors, launched between folded kernels.

They combine, count, copy and compare sets (`words_or` to `all_if`, `count_bits`), find
near vertices (`near`, `first_key`), refresh stale rows (`refresh_vertices`), and write
and read logs of sets (`log_set`, `play_set`). Bit v % 32 of word v // 32 is vertex v.
"""

import math

from featgraph.cuda.dialect import (
    cuda,
    device_function,
    float64,
    int32,
    int64,
    kernel,
    uint32,
    uint64,
)
from featgraph.device import warp

#: The largest finite key.
MOST = 1.7976931348623157e308


@kernel(cache=True)
def place(array, places, values):  # type: ignore[no-untyped-def]
    """Set the elements of a one-dimensional array at `places` to `values`."""
    for entry in range(cuda.grid(1), places.size, cuda.gridsize(1)):
        array[places[entry]] = values[entry]


@kernel(cache=True)
def copy_features(source, target, width):  # type: ignore[no-untyped-def]
    """Copy the first `width` entries of each row, of arrays of two axes."""
    for place in range(cuda.grid(1), source.shape[0] * width, cuda.gridsize(1)):
        row, feature = place // width, place % width
        target[row, feature] = source[row, feature]


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
    """Set `out` to the vertices of `due` in `on`, and add the rest to `left`."""
    word = uint32(cuda.grid(1))
    if word < out.size:
        out[word] = due[word] & on[word]
        left[word] = left[word] | (due[word] & ~on[word])


@kernel(cache=True)
def settle(due, stale, patched):  # type: ignore[no-untyped-def]
    """Remove due vertices from `stale`, and add those not stale to `patched`."""
    word = uint32(cuda.grid(1))
    if word < due.size:
        recomputed = due[word] & stale[word]
        patched[word] = (patched[word] | due[word]) & ~recomputed
        stale[word] = stale[word] & ~due[word]


@kernel(cache=True)
def differ(last, now, flag):  # type: ignore[no-untyped-def]
    """Set ``flag[0]`` to 1 if any entry differs, else to 0; one block.

    NaN equals NaN.
    """
    found = False
    for place in range(cuda.threadIdx.x, now.size, cuda.blockDim.x):
        old, new = last[place], now[place]
        # Only NaN does not equal itself.
        if old != new and (old == old or new == new):
            found = True
    any_found = cuda.syncthreads_or(int32(found))
    if cuda.threadIdx.x == 0:
        flag[0] = int32(any_found)


@kernel(cache=True)
def all_if(flag, full, words, out):  # type: ignore[no-untyped-def]
    """Set `out` to `full` if ``flag[0]`` is not 0, else to `words`."""
    word = cuda.grid(1)
    if word < out.size:
        out[uint32(word)] = full[uint32(word)] if flag[0] else words[uint32(word)]


@kernel(cache=True)
def extreme(values, sign, out, place):  # type: ignore[no-untyped-def]
    """Set ``out[place]`` to the entry with the largest ``sign * entry``; one warp.

    NaN if any entry is.
    """
    here, is_nan = float64(-math.inf), False
    for entry in range(cuda.threadIdx.x, values.size, 32):
        value = sign * float64(values[entry])
        if value != value:
            is_nan = True
        elif value > here:
            here = value
    here = warp.group_max(here, 32)
    if warp.group_any(is_nan, 32):
        here = float64(math.nan)
    if cuda.threadIdx.x == 0:
        out[place] = sign * here


@kernel(cache=True)
def near(words, keys, width, sign, limit, delta, extremes, out):  # type: ignore[no-untyped-def]
    """Set `out` to the vertices of `words` with a key that is not beyond a limit.

    `keys` has shape (V, N), with `width` keys a row and padding; a warp takes a word.
    If `delta` is not 0 and the first key, ``extremes[1]``, is beyond `limit`, the limit
    becomes that key plus `delta`.
    """
    first_of_all = extremes[1]
    if delta > 0 and first_of_all > limit and first_of_all < math.inf:
        limit = float64(math.inf)
        if first_of_all < MOST:
            limit = first_of_all + delta
    lane = cuda.threadIdx.x % 32
    first = cuda.grid(1) // 32
    for word in range(first, words.size, cuda.gridsize(1) // 32):
        v = uint32(word * 32 + lane)
        is_near = False
        if warp.test_bit(words, v):
            for f in range(width):
                if not sign * float64(keys[v, uint32(f)]) > limit:
                    is_near = True
        found = warp.group_bits(is_near, 32)
        if lane == 0:
            out[uint32(word)] = found


@kernel(cache=True)
def first_key(words, keys, width, sign, extremes):  # type: ignore[no-untyped-def]
    """Lower ``extremes[1]`` to the smallest ``sign * key`` of the vertices in `words`.

    Infinite keys count as `MOST`, and NaN as -inf.
    """
    here = float64(math.inf)
    for v in range(cuda.grid(1), keys.shape[0], cuda.gridsize(1)):
        if warp.test_bit(words, v):
            for f in range(width):
                key = sign * float64(keys[uint32(v), uint32(f)])
                if key != key:
                    key = -float64(math.inf)
                here = min(here, min(key, MOST))
    here = warp.group_min(here, 32)
    if cuda.threadIdx.x % 32 == 0 and here < math.inf:  # one atomic a warp
        cuda.atomic.min(extremes, 1, here)


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
def count_in_one_block(words, total):  # type: ignore[no-untyped-def]
    """Set ``total[0]`` to the number of set bits of `words`; one block."""
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
def copy_marked(mine, first, step, next_, current):  # type: ignore[no-untyped-def]
    """Copy the rows of the vertices in 32 words of a warp, one a lane.

    Lane l has the word `mine` with index ``first + l * step``. The warp lists the
    vertices of all lanes, 32 at a time; consecutive lanes copy consecutive entries of
    their rows. Integers have the types with which kernels of due sets call the same
    functions: other types would compile them again.
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
            v = uint32(warp.broadcast(own, int64(min(row, uint32(31))), 32))
            if entry < entries:
                f = entry - row * width
                next_[v, f] = current[v, f]


@kernel(cache=True)
def refresh_vertices(words, next_, current):  # type: ignore[no-untyped-def]
    """Copy rows of `current` to `next_`, of shape (V, N), at vertices in `words`."""
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(words)
    for place in range(cuda.grid(1) >> 5, words.size, turn * step):
        first = int32(place)
        mine = warp.word_of_lane(words, int32(first + lane * step), turn)
        copy_marked(mine, first, step, next_, current)


@kernel(cache=True)
def refresh_vertices_without(words, without, next_, current):  # type: ignore[no-untyped-def]
    """Do the same at vertices in `words` but not in `without`."""
    lane, step = int32(cuda.laneid), int32(cuda.gridsize(1) >> 5)
    turn = warp.words_a_turn(words)
    for place in range(cuda.grid(1) >> 5, words.size, turn * step):
        first = int32(place)
        own = int32(first + lane * step)
        others = warp.word_of_lane(without, own, turn)
        mine = uint32(warp.word_of_lane(words, own, turn) & ~others)
        copy_marked(mine, first, step, next_, current)


@kernel(cache=True)
def copy_rows(marks, source, target):  # type: ignore[no-untyped-def]
    """Copy the rows of `source` with a mark of 1 to `target`, of shape (N, K)."""
    for place in range(cuda.grid(1), source.shape[0], cuda.gridsize(1)):
        row = uint64(place)
        if marks[row] == 1:
            for f in range(source.shape[1]):
                target[row, uint32(f)] = source[row, uint32(f)]


@kernel(cache=True)
def log_set(words, pairs, ends):  # type: ignore[no-untyped-def]
    """Append the nonzero words of a set to a log, as pairs (index, word).

    ``ends[1]`` counts the pairs of all sets. The order of the pairs of a set is not
    determined.
    """
    lane = uint32(cuda.laneid)
    for first in range(cuda.grid(1) - lane, words.size, cuda.gridsize(1)):
        place, bits = int64(first) + lane, uint32(0)
        if place < words.size:
            bits = words[uint32(place)]
        some = warp.group_bits(bits != 0, 32)
        if some != 0:  # the whole warp, which takes its places by one atomic
            leader, begin = warp.trailing_zeros(some), int64(0)
            if lane == uint32(leader):
                begin = cuda.atomic.add(ends, 1, int64(warp.count_bits(some)))
            begin = warp.broadcast(begin, leader, 32)
            if bits != 0:
                lower = some & ((uint32(1) << lane) - uint32(1))
                pair = uint64(begin + warp.count_bits(lower))
                pairs[pair, 0] = uint32(place)
                pairs[pair, 1] = bits


@kernel(cache=True)
def end_logged(ends):  # type: ignore[no-untyped-def]
    """End a set of a log; one thread. Sets without vertices are left out.

    ``ends[0]`` counts the sets. Their ends follow from ``ends[3]`` on; ``ends[2]`` is
    0.
    """
    if cuda.grid(1) == 0:
        count, end = ends[0], ends[1]
        if ends[uint64(2 + count)] != end:
            ends[uint64(3 + count)] = end
            ends[0] = count + 1


@kernel(cache=True)
def next_set(order):  # type: ignore[no-untyped-def]
    """Advance to the next entry of the order in which sets are played; one thread."""
    if cuda.grid(1) == 0:
        order[0, 0] += 1


@kernel(cache=True)
def play_set(pairs, order, out):  # type: ignore[no-untyped-def]
    """Write the words of the current set to `out`, which holds zeros.

    ``order[0]`` has the index of the current entry, and the number of entries. An entry
    has the first pair of a set in the log, and the end.
    """
    entry = order[0, 0]
    if entry <= order[0, 1]:
        begin, end = order[uint64(entry), 0], order[uint64(entry), 1]
        for pair in range(begin + cuda.grid(1), end, cuda.gridsize(1)):
            out[pairs[uint64(pair), 0]] = pairs[uint64(pair), 1]
