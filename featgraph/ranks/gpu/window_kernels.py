"""Kernels that store into windows of other ranks, and take what has come there (CUDA).

A *window* is memory of one rank into which all ranks store. Each has a place of its
own there, a *mailbox*, of two *slots*, and a flag. Exchanges are numbered by a
*generation*, which is counted on the device: it says which slot is written, and what
the flag shows when that is whole. A rank posts generation g + 2 behind its taking g + 1
from all, which these have posted behind their taking g: so a slot is free when it is
written again.

`there` and `here` have a row for each rank: the address of a mailbox, bytes of a slot,
and the address of the flag; in the windows of others, and in the rank's own. `own` has
`GENERATION`, `DONE` and `LOST`.

A slot of rows has a bit for each position of a link, in whole words; behind these, of
each property, a row for each position, whether it changed or not. So no row waits for
how many there are before it, and nothing is counted. The place of a row that did not
change is not written.
"""

from numba import int32, int64, uint8, uint16, uint32, uint64

from featgraph._cuda import (
    acquire_at,
    clock_ns,
    cuda,
    device_function,
    kernel,
    load_at,
    release_at,
    store_at,
)
from featgraph.device import warp

__all__ = [
    "BASE",
    "BYTES",
    "DONE",
    "FLAG",
    "GENERATION",
    "LOST",
    "combine_rows",
    "post_numbers",
    "post_rows",
    "take_numbers",
    "take_rows",
]

#: Threads of a block, and blocks of a multiprocessor, of kernels that go over rows.
_BOUNDS = (256, 4)
#: Columns of `there` and `here`.
BASE, BYTES, FLAG = 0, 1, 2
#: Entries of `own`: the exchange that was posted last, blocks that have posted theirs,
#: and 1 + the rank that did not post in time, or 0.
GENERATION, DONE, LOST = 0, 1, 2
#: Columns of `links`, which has a row for each chunk: the rank, the word with which its
#: link begins, and words of the link.
_LINK, _FIRST, _WORDS = 0, 1, 2
#: Columns of `columns`, which has a row for each property: the address of its rows,
#: bytes from one to the next, bytes of a row, those that are copied at a time, and
#: bytes of a row of all properties before it.
_ADDRESS, _STRIDE, _ROW, _UNIT, _BEFORE = 0, 1, 2, 3, 4


@device_function
def _raise_flags(there, own):  # type: ignore[no-untyped-def]
    """Tell all ranks that what was stored is whole; one thread, behind all others."""
    generation = own[GENERATION] + int64(1)
    own[GENERATION] = generation
    cuda.threadfence_system()
    for rank in range(there.shape[0]):
        release_at(there[rank, FLAG], generation)


@device_function
def _wait(here, rank, own, limit_ns):  # type: ignore[no-untyped-def]
    """Have a warp wait for what a rank has posted, or note that it is lost."""
    if cuda.laneid == 0:
        flag, generation = here[rank, FLAG], own[GENERATION]
        is_behind = acquire_at(flag) < generation
        # Atomically: blocks that begin later must not wait for a lost rank again.
        if is_behind and cuda.atomic.add(own, LOST, int64(0)) == 0:
            begun = clock_ns()
            while acquire_at(flag) < generation:
                if clock_ns() - begun > limit_ns:
                    cuda.atomic.cas(own, LOST, int64(0), int64(rank) + int64(1))
                    break
                cuda.nanosleep(uint32(64))
    cuda.syncwarp()


@device_function
def _copy(source, target, unit):  # type: ignore[no-untyped-def]
    """Copy a unit from one address to another."""
    if unit == 8:
        store_at(target, load_at(source, uint64), uint64)
    elif unit == 4:
        store_at(target, load_at(source, uint32), uint32)
    elif unit == 2:
        store_at(target, load_at(source, uint16), uint16)
    else:
        store_at(target, load_at(source, uint8), uint8)


@device_function
def _copy_rows(found, numbers, first, columns, column, slot, into_slot):  # type: ignore[no-untyped-def]
    """Copy the rows of a word's positions into a slot, or out of it; a whole warp.

    `slot` is the address of the row of the word's first position.
    """
    address, stride = columns[column, _ADDRESS], columns[column, _STRIDE]
    unit = int32(columns[column, _UNIT])
    width = int32(columns[column, _ROW]) // unit
    for entry in range(int32(cuda.laneid), int32(32) * width, int32(32)):
        row = entry // width
        if (found >> uint32(row)) & uint32(1):
            v = int64(numbers[uint32(first + row)])
            at = address + v * stride + int64(entry - row * width) * unit
            inside = slot + int64(entry) * unit
            if into_slot:
                _copy(at, inside, unit)
            else:
                _copy(inside, at, unit)


@kernel(cache=True, launch_bounds=_BOUNDS)
def post_rows(  # type: ignore[no-untyped-def]
    changed, numbers, chunks, links, count, columns, column_count, there, own
):
    """Store the rows of changed vertices at the ranks that have these; raise flags.

    A warp takes one of `count` chunks. The last block to end raises the flags.
    """
    lane, chunk = int32(cuda.laneid), uint32(cuda.grid(1) >> 5)
    if chunk < count:  # the whole warp
        link, words = links[chunk, _LINK], links[chunk, _WORDS]
        slot = (own[GENERATION] + int64(1)) & int64(1)
        base = there[link, BASE] + slot * there[link, BYTES]
        rows = base + (words * 4 + 15) // 16 * 16
        for word in range(chunks[chunk], chunks[uint32(chunk + uint32(1))]):
            number = numbers[uint32(word * 32 + lane)]
            is_set = number >= 0 and warp.test_bit(changed, uint32(number))
            found = warp.group_bits(is_set, 32)
            place = int64(word) - links[chunk, _FIRST]
            if lane == 0:
                store_at(base + place * 4, found, uint32)
            if found:
                for column in range(column_count):
                    before = words * 32 * columns[column, _BEFORE]
                    own_rows = rows + before + place * 32 * columns[column, _ROW]
                    _copy_rows(
                        found, numbers, word * 32, columns, column, own_rows, True
                    )
    cuda.threadfence_system()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        before_it = cuda.atomic.add(own, DONE, int64(1))
        if before_it == cuda.gridDim.x - 1:
            own[DONE] = int64(0)
            _raise_flags(there, own)


@device_function
def _chunk_to_take(count, here, links, own, limit_ns):  # type: ignore[no-untyped-def]
    """Return the chunk of a warp whose rows have come; -1 for none.

    Before the warps that have a chunk, one waits for each rank, whether that has rows
    for this one or not.
    """
    ranks, chunk = int32(here.shape[0]), int32(-1)
    number = int32(cuda.grid(1) >> 5)
    if number < ranks:
        _wait(here, number, own, limit_ns)
    elif number < ranks + count:
        chunk = number - ranks
        _wait(here, links[uint32(chunk), _LINK], own, limit_ns)
        if own[LOST] != 0:
            chunk = int32(-1)
    return chunk


@kernel(cache=True, launch_bounds=_BOUNDS)
def take_rows(  # type: ignore[no-untyped-def]
    numbers, chunks, links, count, columns, column_count, here, words, own, limit_ns
):
    """Copy rows that have come to listed vertices, and add these to a set.

    A warp takes one of `count` chunks.
    """
    lane = int32(cuda.laneid)
    chunk = _chunk_to_take(count, here, links, own, limit_ns)
    if chunk < 0:
        return
    chunk = uint32(chunk)
    link, size = links[chunk, _LINK], links[chunk, _WORDS]
    base = here[link, BASE] + (own[GENERATION] & int64(1)) * here[link, BYTES]
    rows = base + (size * 4 + 15) // 16 * 16
    for word in range(chunks[chunk], chunks[uint32(chunk + uint32(1))]):
        place = int64(word) - links[chunk, _FIRST]
        found = load_at(base + place * 4, uint32)
        if found:
            if (found >> uint32(lane)) & uint32(1):
                warp.set_bit(words, uint32(numbers[uint32(word * 32 + lane)]))
            for column in range(column_count):
                before = size * 32 * columns[column, _BEFORE]
                own_rows = rows + before + place * 32 * columns[column, _ROW]
                _copy_rows(found, numbers, word * 32, columns, column, own_rows, False)


@kernel(cache=True, launch_bounds=_BOUNDS)
def combine_rows(  # type: ignore[no-untyped-def]
    target, width, item, count, here, words, operation, own, limit_ns
):
    """Combine rows that ranks have posted for own vertices, in the order of ranks.

    All ranks list the own vertices, of `count` words, of which a warp takes one.
    `operation` is 0 to add, 1 to lower and 2 to raise; NaN lowers and raises nothing.
    `words` is told for which anything has come.
    """
    lane, word = int32(cuda.laneid), int32(cuda.grid(1) >> 5)
    for rank in range(here.shape[0]):
        _wait(here, rank, own, limit_ns)
    if word >= count or own[LOST] != 0:
        return
    slot, any_found = own[GENERATION] & int64(1), uint32(0)
    begin = (int64(count) * 4 + 15) // 16 * 16 + int64(word) * 32 * width * item
    for rank in range(here.shape[0]):
        base = here[rank, BASE] + slot * here[rank, BYTES]
        found = load_at(base + int64(word) * 4, uint32)
        any_found |= found
        for entry in range(lane, int32(32) * width, int32(32)):
            row = entry // width
            if (found >> uint32(row)) & uint32(1):
                v, f = uint32(word * 32 + row), uint32(entry - row * width)
                value = load_at(base + begin + int64(entry) * item, target.dtype)
                known = target[v, f]
                if operation == 0:
                    target[v, f] = known + value
                elif operation == 1:
                    if value < known or known != known:
                        target[v, f] = value
                elif value > known or known != known:
                    target[v, f] = value
    if lane == 0 and any_found:
        words[uint32(word)] = any_found


@kernel(cache=True)
def post_numbers(values, count, item, there, own):  # type: ignore[no-untyped-def]
    """Store numbers of this rank at all ranks, itself included; raise flags.

    A single block does.
    """
    slot = (own[GENERATION] + int64(1)) & int64(1)
    for rank in range(there.shape[0]):
        base = there[rank, BASE] + slot * there[rank, BYTES]
        for place in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            store_at(base + place * item, values[uint32(place)], values.dtype)
    cuda.threadfence_system()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        _raise_flags(there, own)


@device_function
def _combined(first, second, operator):  # type: ignore[no-untyped-def]
    """Return two numbers combined: their sum, product, minimum or maximum."""
    if operator == 0:
        return first + second
    if operator == 1:
        return first * second
    if first != first or second != second:  # NaN goes through
        return first + second
    if operator == 2:
        return first if first < second else second
    return second if first < second else first


@kernel(cache=True)
def take_numbers(values, count, item, operator, here, own, limit_ns, tells):  # type: ignore[no-untyped-def]
    """Combine the numbers of all ranks in their order; a single block.

    `operator` is a place in (sum, product, minimum, maximum). With `tells` the first
    number is less than 0 where a rank is lost: -1 - rank.
    """
    warps = cuda.blockDim.x >> 5
    for rank in range(cuda.threadIdx.x >> 5, here.shape[0], warps):
        _wait(here, rank, own, limit_ns)
    cuda.syncthreads()
    slot = own[GENERATION] & int64(1)
    for place in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        base = here[0, BASE] + slot * here[0, BYTES]
        found = load_at(base + place * item, values.dtype)
        for rank in range(1, here.shape[0]):
            base = here[rank, BASE] + slot * here[rank, BYTES]
            other = load_at(base + place * item, values.dtype)
            found = _combined(found, other, operator)
        values[uint32(place)] = found
        if tells and place == 0 and own[LOST] != 0:
            values[uint32(0)] = -own[LOST]
