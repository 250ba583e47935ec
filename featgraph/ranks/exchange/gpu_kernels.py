"""Kernels over send lists, bits, rows and entries of cut edges (CUDA).

A *link* is a list of vertices or edges for one other rank, in the same order on both
ranks; a *position* is an index into it. The links of a rank are concatenated, each
padded to whole words of 32 positions. Over rows of vertices, a warp takes a *chunk*: up
to 32 words of one link. Over entries of edges, a warp takes a word, and a lane one
position.
"""

from featgraph.cuda.dialect import (
    cuda,
    device_function,
    int32,
    int64,
    kernel,
    uint8,
    uint32,
)
from featgraph.device import warp
from featgraph.ranks.exchange.gpu_row_copies import combine_entry

__all__ = []


@kernel(cache=True)
def mark_changed(changed, numbers, chunks, bits, counts):  # type: ignore[no-untyped-def]
    """Set the bits of positions whose vertices changed, and count them by chunk.

    Behind the end of a link, the numbers of its last word are negative.
    """
    lane, chunk = int32(cuda.laneid), uint32(cuda.grid(1) >> 5)
    if chunk >= counts.size:  # warp-uniform
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
    if chunk >= last:  # warp-uniform
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
    if chunk >= last:  # warp-uniform
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


#: The state of an edge that has passed: see `BoundState.edge_state`.
_PASSED = 2


@kernel(cache=True)
def mark_members(members, numbers, also, marks):  # type: ignore[no-untyped-def]
    """Mark the positions of lists whose number is in a set, and those marked in `also`.

    Behind the end of a list, the numbers of its last word are negative.
    """
    lane = int32(cuda.laneid)
    for word in range(cuda.grid(1) >> 5, marks.size, cuda.gridsize(1) >> 5):
        number = numbers[uint32(word * 32 + lane)]
        is_set = number >= 0 and warp.test_bit(members, uint32(number))
        found = warp.group_bits(is_set, 32)
        if lane == 0:
            marks[uint32(word)] = found | also[uint32(word)]


@kernel(cache=True)
def mark_passed(edge_state, own, numbers, also, wide, marks):  # type: ignore[no-untyped-def]
    """Mark the positions of lists whose edge passed, and those marked in `also`.

    `wide` gets the state of each own edge that passed, and 0 for all other edges.
    """
    lane = int32(cuda.laneid)
    for word in range(cuda.grid(1) >> 5, marks.size, cuda.gridsize(1) >> 5):
        number = numbers[uint32(word * 32 + lane)]
        has_passed = number >= 0 and edge_state[uint32(max(number, 0))] == _PASSED
        found = warp.group_bits(has_passed, 32)
        if lane == 0:
            marks[uint32(word)] = found | also[uint32(word)]
    for edge in range(cuda.grid(1), wide.size, cuda.gridsize(1)):
        state = uint8(0)
        if edge < own and edge_state[uint32(edge)] == _PASSED:
            state = uint8(_PASSED)
        wide[uint32(edge)] = state


@kernel(cache=True)
def mark_differing(marks, numbers, now, before, width, found):  # type: ignore[no-untyped-def]
    """Of marked positions, mark those whose rows differ between two buffers.

    Rows have `width` entries, compared as unsigned integers: 0.0 differs from -0.0.
    """
    lane = int32(cuda.laneid)
    for word in range(cuda.grid(1) >> 5, marks.size, cuda.gridsize(1) >> 5):
        differs = False
        if (marks[uint32(word)] >> uint32(lane)) & uint32(1):
            row = uint32(numbers[uint32(word * 32 + lane)])
            for entry in range(width):
                if now[row, uint32(entry)] != before[row, uint32(entry)]:
                    differs = True
        own = warp.group_bits(differs, 32)
        if lane == 0:
            found[uint32(word)] = own


@kernel(cache=True)
def copy_rows(source, count, target):  # type: ignore[no-untyped-def]
    """Copy the first rows of an array."""
    width = int64(source.shape[1])
    size = count * width
    for entry in range(int64(cuda.grid(1)), size, int64(cuda.gridsize(1))):
        row = entry // width
        column = uint32(entry - row * width)
        target[uint32(row), column] = source[uint32(row), column]


@kernel(cache=True)
def list_passed(edge_state, edge_twin, edges, count):  # type: ignore[no-untyped-def]
    """List the edges that passed, in any order, and only one of two twins."""
    lane, size = int32(cuda.laneid), int64(edge_state.size)
    first = int64(cuda.grid(1)) - int64(lane)
    for base in range(first, size, int64(cuda.gridsize(1))):
        edge = base + lane
        takes = edge < size and edge_state[uint32(min(edge, size - 1))] == _PASSED
        if takes:
            twin = int64(edge_twin[uint32(edge)])
            is_later = twin < edge and edge_state[uint32(twin)] == _PASSED
            takes = twin != edge and not is_later
        warp.append(takes, int32(edge), edges, count)


@kernel(cache=True)
def note_changed(reached, twins, own, changed):  # type: ignore[no-untyped-def]
    """Add the reached own edges and their twins to a set.

    Own edges whose twin belongs to another rank are always added: this rank cannot see
    whether the twin was reached.
    """
    lane, words = int32(cuda.laneid), (own + int32(31)) >> 5
    for word in range(cuda.grid(1) >> 5, words, cuda.gridsize(1) >> 5):
        edge, is_added = int32(word * 32 + lane), False
        if edge < own:
            is_added = (reached[uint32(word)] >> uint32(lane)) & uint32(1) != 0
            twin = int32(twins[uint32(edge)])
            if twin >= own:
                is_added = True
            elif is_added:
                warp.set_bit(changed, uint32(twin))
        found = warp.group_bits(is_added, 32)
        if lane == 0 and found != 0:
            cuda.atomic.or_(changed, uint32(word), found)


@device_function
def _combine(values, row, width, source, place, operation):  # type: ignore[no-untyped-def]
    """Combine row `place` of `source` into row `row` of `values`."""
    for f in range(width):
        value = source[place, uint32(f)]
        combine_entry(values, row, uint32(f), value, operation)


@kernel(cache=True)
def combine_listed(  # type: ignore[no-untyped-def]
    values, width, outbox, used, landed, came, begins, listed, operation, reached
):
    """Combine the contributions of all ranks to own entries, in the order of ranks.

    ``listed[begins[e]:begins[e + 1]]`` has the positions of entry e in `landed`, one a
    rank; -1 stands for its place in the `outbox` of this rank. The sets `used` and
    `came` mark valid entries of `outbox` and `landed`; `reached` gets the set of
    entries with a contribution.
    """
    lane, own = int32(cuda.laneid), int32(begins.size - 1)
    words = (own + int32(31)) >> 5
    for word in range(cuda.grid(1) >> 5, words, cuda.gridsize(1) >> 5):
        entry, is_reached = int32(word * 32 + lane), False
        if entry < own:
            row = uint32(entry)
            for slot in range(begins[row], begins[uint32(row + uint32(1))]):
                place = listed[uint32(slot)]
                if place < 0:
                    if warp.test_bit(used, row):
                        is_reached = True
                        _combine(values, row, width, outbox, row, operation)
                elif warp.test_bit(came, uint32(place)):
                    is_reached = True
                    _combine(values, row, width, landed, uint32(place), operation)
        found = warp.group_bits(is_reached, 32)
        if lane == 0:
            reached[uint32(word)] = found
