"""Kernels over send lists, bits and rows (CUDA).

A *link* is a list of vertices for one other rank, in the same order on both ranks; a
*position* is an index into it. The links of a rank are concatenated, each padded to
whole words of 32 positions. A warp takes a *chunk*: up to 32 words of one link.
"""

from featgraph.cuda.dialect import cuda, int32, int64, kernel, uint32
from featgraph.device import warp
from featgraph.ranks.exchange.gpu_row_copies import combine_entry


@kernel(cache=True)
def mark_changed(changed, numbers, chunks, bits, counts):  # type: ignore[no-untyped-def]
    """Set the bits of positions whose vertices changed, and count them by chunk.

    Behind the end of a link, the numbers of its last word are negative.
    """
    lane, chunk = int32(cuda.laneid), uint32(cuda.grid(1) >> 5)
    if chunk >= counts.size:  # the whole warp
        return
    count = int32(0)
    for word in range(chunks[chunk], chunks[uint32(chunk + uint32(1))]):
        number = numbers[uint32(word * 32 + lane)]
        is_set = number >= 0 and warp.test_bit(changed, uint32(number))
        found = warp.group_bits(is_set, 32)
        if lane == 0:
            bits[uint32(word)] = found
        count += warp.count_bits(found)
    if lane == 0:
        counts[chunk] = count


@kernel(cache=True)
def take_bits(message, chunks, first, last, bits, counts):  # type: ignore[no-untyped-def]
    """Copy the bits of a link's chunks from a message, and count them by chunk."""
    lane, chunk = int32(cuda.laneid), uint32(first + (cuda.grid(1) >> 5))
    if chunk >= last:  # the whole warp
        return
    begin, count = chunks[uint32(first)], int32(0)
    word = chunks[chunk] + lane
    if word < chunks[uint32(chunk + uint32(1))]:
        found = message[uint32(word - begin)]
        bits[uint32(word)] = found
        count = warp.count_bits(found)
    count = warp.group_sum(count, 32)
    if lane == 0:
        counts[chunk] = count


@kernel(cache=True)
def add_up_links(links, counts, totals):  # type: ignore[no-untyped-def]
    """Replace the counts of chunks by their exclusive prefix sums within each link.

    A block of one warp takes a link; ``links`` has the first chunk of each link, and
    ``totals`` gets the sums.
    """
    lane, link = int32(cuda.laneid), uint32(cuda.blockIdx.x)
    last, before = links[uint32(link + uint32(1))], int32(0)
    for first in range(links[link], last, 32):
        place, own = uint32(first + lane), int32(0)
        if first + lane < last:
            own = counts[place]
        ahead = warp.sum_before(own)
        if first + lane < last:
            counts[place] = before + ahead
        before += warp.group_sum(own, 32)
    if lane == 0:
        totals[link] = before


@kernel(cache=True)
def list_marked(bits, numbers, chunks, begins, before, first, last, taken, positions):  # type: ignore[no-untyped-def]
    """List the marked vertices of chunks and their positions, from each link's begin.

    `begins` has the first word of each chunk's link; `before` counts the marked
    positions of the link before the chunk.
    """
    lane, chunk = int32(cuda.laneid), uint32(first + (cuda.grid(1) >> 5))
    if chunk >= last:  # the whole warp
        return
    begin = int64(begins[chunk]) * 32
    at = begin + before[chunk]
    for word in range(chunks[chunk], chunks[uint32(chunk + uint32(1))]):
        found = bits[uint32(word)]
        if (found >> uint32(lane)) & uint32(1):
            lower = found & ((uint32(1) << uint32(lane)) - uint32(1))
            row, place = uint32(at + warp.count_bits(lower)), word * 32 + lane
            taken[row] = numbers[uint32(place)]
            positions[row] = uint32(place - begin)
        at += warp.count_bits(found)


@kernel(cache=True)
def pick_listed(numbers, begin, message, count, taken):  # type: ignore[no-untyped-def]
    """List the vertices at the positions stored in a message."""
    for row in range(cuda.grid(1), count, cuda.gridsize(1)):
        taken[uint32(begin + row)] = numbers[uint32(begin + message[uint32(row)])]


@kernel(cache=True)
def copy_words(source, begin, count, message):  # type: ignore[no-untyped-def]
    """Copy words into the beginning of a message."""
    for place in range(cuda.grid(1), count, cuda.gridsize(1)):
        message[uint32(place)] = source[uint32(begin + place)]


@kernel(cache=True)
def gather_rows(source, width, numbers, begin, count, message, first):  # type: ignore[no-untyped-def]
    """Copy the rows of listed vertices into a message, from its entry `first` on.

    Rows have `width` entries; those of `source` may have a larger stride.
    """
    for entry in range(cuda.grid(1), count * width, cuda.gridsize(1)):
        row = entry // width
        v = uint32(numbers[begin + row])
        message[first + entry] = source[v, uint32(entry - row * width)]


@kernel(cache=True)
def scatter_rows(message, first, width, numbers, begin, count, target):  # type: ignore[no-untyped-def]
    """Copy rows of a message to listed vertices: the inverse of `gather_rows`."""
    for entry in range(cuda.grid(1), count * width, cuda.gridsize(1)):
        row = entry // width
        v = uint32(numbers[begin + row])
        target[v, uint32(entry - row * width)] = message[first + entry]


@kernel(cache=True)
def add_vertices(numbers, begin, count, words):  # type: ignore[no-untyped-def]
    """Add listed vertices to a set."""
    for row in range(cuda.grid(1), count, cuda.gridsize(1)):
        warp.set_bit(words, uint32(numbers[begin + row]))


@kernel(cache=True)
def mark_used(outbox, width, nothing, words):  # type: ignore[no-untyped-def]
    """Set the bits of the rows that have an entry other than `nothing`."""
    lane = int32(cuda.laneid)
    for word in range(cuda.grid(1) >> 5, words.size, cuda.gridsize(1) >> 5):
        row, is_used = word * 32 + lane, False
        if row < outbox.shape[0]:
            for entry in range(width):
                if outbox[uint32(row), uint32(entry)] != nothing:
                    is_used = True
        found = warp.group_bits(is_used, 32)
        if lane == 0:
            words[uint32(word)] = found


@kernel(cache=True)
def combine_rows(  # type: ignore[no-untyped-def]
    message, first, width, numbers, begin, count, target, operation
):
    """Combine rows of a message with those of listed vertices."""
    for entry in range(cuda.grid(1), count * width, cuda.gridsize(1)):
        row = entry // width
        v, f = uint32(numbers[begin + row]), uint32(entry - row * width)
        combine_entry(target, v, f, message[first + entry], operation)
