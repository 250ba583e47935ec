"""Lists of the vertices of a set, and how many edges those before each have (CUDA).

A kernel whose warps share edges out evenly goes by them: three small kernels make them
on the device, in the order of the vertices, and nothing of it comes to the host.
"""

from numba import int32, int64, uint32

from featgraph._cuda import cuda, device_function, kernel
from featgraph.device import warp

__all__ = ["MOST_BLOCKS", "THREADS", "add_up", "count_rows", "list_rows"]

#: Blocks whose warps look through a set, a range of its words each.
MOST_BLOCKS = 1024
#: Threads of the block that adds up what these have found.
THREADS = 256


@device_function
def _words_of(number, vertex_count, warps):  # type: ignore[no-untyped-def]
    """Return the words that a warp looks through: the first, and behind the last."""
    words = int64((vertex_count + 31) >> 5)
    each = (words + warps - 1) // warps
    return min(number * each, words), min(number * each + each, words)


@device_function
def _degree(words, everything, offsets, vertex):  # type: ignore[no-untyped-def]
    """Return how many edges a vertex has, if it is of the set."""
    if vertex >= offsets.size - 1:
        return int64(0)
    if not everything and not warp.test_bit(words, vertex):
        return int64(0)
    return int64(offsets[uint32(vertex + 1)] - offsets[uint32(vertex)])


@kernel(cache=True)
def count_rows(words, everything, offsets, counts, edges):  # type: ignore[no-untyped-def]
    """Count the vertices of a set that have edges, and these, for each warp."""
    number = cuda.grid(1) >> 5
    first, last = _words_of(number, offsets.size - 1, cuda.gridsize(1) >> 5)
    count, total = int32(0), int64(0)
    for word in range(first, last):
        degree = _degree(words, everything, offsets, word * 32 + cuda.laneid)
        count += int32(degree > 0)
        total += degree
    count = warp.group_sum(int32(count), 32)
    total = warp.group_sum(total, 32)
    if cuda.laneid == 0:
        counts[uint32(number)] = count
        edges[uint32(number)] = total


@kernel(cache=True)
def add_up(counts, edges, warps, share_begins, share_count):  # type: ignore[no-untyped-def]
    """Put in the place of each number the sum of those before it; one block."""
    thread = uint32(cuda.threadIdx.x)
    box_count = cuda.shared.array(THREADS, int32)
    box_edges = cuda.shared.array(THREADS, int64)
    each = (warps + THREADS - 1) // THREADS
    first = min(int64(thread) * each, warps)
    last = min(first + each, warps)
    count, total = int32(0), int64(0)
    for place in range(first, last):
        count += counts[uint32(place)]
        total += edges[uint32(place)]
    box_count[thread] = count
    box_edges[thread] = total
    cuda.syncthreads()
    offset = uint32(1)
    while offset < THREADS:
        more, further = int32(0), int64(0)
        if thread >= offset:
            more = box_count[uint32(thread - offset)]
            further = box_edges[uint32(thread - offset)]
        cuda.syncthreads()
        box_count[thread] += more
        box_edges[thread] += further
        cuda.syncthreads()
        offset = uint32(offset + offset)
    if thread == THREADS - 1:
        all_rows = box_count[thread]
        share_count[0] = all_rows
        share_begins[uint32(all_rows)] = box_edges[thread]
    count = int32(box_count[thread] - count)
    total = box_edges[thread] - total
    for place in range(first, last):
        own_count, own_edges = counts[uint32(place)], edges[uint32(place)]
        counts[uint32(place)] = count
        edges[uint32(place)] = total
        count += own_count
        total += own_edges


@kernel(cache=True)
def list_rows(  # type: ignore[no-untyped-def]
    words, everything, offsets, counts, edges, share_rows, share_begins
):
    """List the vertices of a set that have edges, and the edges before each."""
    lane = uint32(cuda.laneid)
    number = cuda.grid(1) >> 5
    first, last = _words_of(number, offsets.size - 1, cuda.gridsize(1) >> 5)
    count, total = int32(0), int64(0)
    if first < last:
        count, total = counts[uint32(number)], edges[uint32(number)]
    for word in range(first, last):
        vertex = word * 32 + cuda.laneid
        degree = _degree(words, everything, offsets, vertex)
        bits = warp.group_bits(degree > 0, 32)
        before = degree
        offset = int32(1)
        while offset < 32:
            lower = cuda.shfl_up_sync(0xFFFFFFFF, before, offset)
            if cuda.laneid >= offset:
                before += lower
            offset = int32(offset + offset)
        if degree > 0:
            lower_bits = uint32(bits & ((uint32(1) << lane) - uint32(1)))
            place = uint32(count + int32(warp.count_bits(lower_bits)))
            share_rows[place] = int32(vertex)
            share_begins[place] = total + before - degree
        count += int32(warp.count_bits(bits))
        total += cuda.shfl_sync(0xFFFFFFFF, before, int32(31))
