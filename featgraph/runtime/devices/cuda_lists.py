"""What lies between the kernels that list the rows of a set (CUDA).

A kernel whose warps share edges out evenly goes by a list of vertices, and by how many
edges those before each have. Three small kernels make it on the device, in the order of
the vertices, and nothing of it comes to the host: the folder prints the one that counts
and the one that lists, since these go along rows.
"""

from featgraph._cuda import cuda, int32, int64, kernel, uint32

__all__ = ["MOST_BLOCKS", "THREADS", "add_up"]

#: Blocks whose warps look through a set, a range of its words each.
MOST_BLOCKS = 1024
#: Threads of the block that adds up what these have found.
THREADS = 256


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
