"""Kernels that post to the windows of other ranks, and take from the own window (CUDA).

A *window* is memory of one rank into which all ranks store. Each rank has a *mailbox*
in it, of two *slots*, and a flag. Exchanges are numbered by a *generation*, counted on
the device: its lowest bit selects the slot, and the flag is set to it when the slot is
complete. A rank posts generation g + 2 after it has taken g + 1 from all ranks, which
they have posted after they have taken g: so a slot is free before it is written again.

Arguments are the same in all kernels. `there` has a row for each rank, of this rank's
mailbox in that rank's window: its address, the bytes of a slot, and the address of the
flag. `here` has the same for the mailboxes of all ranks in this rank's own window.
`own` has `GENERATION`, `DONE`, `LOST` and `COUNT`; `notes` has the values that the host
reads: `FAULT`, `WORK` and `SINCE`.

A slot has *numbers*, which are combined over all ranks, and up to two *parts*, each a
set of vertices with rows. Behind the numbers, each property of a part has a row for
each position of a link, changed or not, so that the place of a row does not depend on
the number of changed rows before it. Rows that did not change are not written. The slot
ends with a bit for each position, of both parts, in whole words. These bits are zero
before they are posted, and the receiving rank clears them again before it posts the
next exchange: so zeros need not be posted.

Forms (0077): `ALL` and `MS` post all rows and all bits, `VR` changed rows and all bits,
`LISTED` changed rows, and the nonzero bytes of bits. `stored` sums the bytes by form
and rank, in `STRIPES` places to reduce contention of atomics; `NUMBERS` counts as a
form of its own.
"""

from featgraph.cuda.dialect import (
    acquire_at,
    clock_ns,
    cuda,
    device_function,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    kernel,
    load_at,
    raise_at,
    store_at,
    uint8,
    uint16,
    uint32,
    uint64,
)
from featgraph.device import warp
from featgraph.ranks.exchange.gpu_row_copies import (
    FAULT,
    combine_entry,
    copy_all,
    copy_unit,
)

__all__ = ["FAULT", "KINDS"]

#: Threads of a block, and blocks of a multiprocessor, as many as registers allow.
_BOUNDS, _BOUNDS_TAKING = (256, 3), (256, 2)
#: Forms of rows, and the row of numbers in `stored`.
ALL, MS, VR, LISTED, NUMBERS = 0, 1, 2, 3, 4
#: Counters over which the bytes of a form and rank are spread: atomic adds of all
#: warps to one counter would run one after the other.
STRIPES = 64
#: Columns of `there` and `here`.
BASE, BYTES, FLAG = 0, 1, 2
#: Entries of `own`: the generation posted last, blocks that are done with posting,
#: 1 + a lost rank (0: none), and the counted vertices.
GENERATION, DONE, LOST, COUNT = 0, 1, 2, 3
#: Entries of `notes` beside `FAULT`, in ns: how long this rank has worked, without
#: waits, and the time up to which that is counted.
WORK, SINCE = 1, 2
#: Columns of `links`, which has a row for each chunk: the rank, first word and number
#: of words of its link, first word and end of the chunk, and the range of words of sets
#: with its vertices: the first (-1: too many to be tested), and how many.
_LINK, _FIRST, _WORDS, _FROM, _TO, _IN_SETS, _OF_SETS = 0, 1, 2, 3, 4, 5, 6
#: Columns of `numbers`, which has a row for each array: its address, number of entries,
#: bytes of an entry, index of its type in `KINDS`, index of the operator in (sum,
#: product, minimum, maximum), and byte offset in a slot.
_VALUES, _ENTRIES, _ITEM, _KIND, _OPERATOR, _BEGIN = 0, 1, 2, 3, 4, 5
#: Types of numbers.
KINDS = (
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64",
)  # fmt: skip
#: Reads of a flag for each read of the alarm, which is in memory of the host.
_LOOKS = 16
#: First and longest pause of a warp between two reads of a flag, in ns.
_FIRST_PAUSE, _LAST_PAUSE = 64, 1024
#: The wait, in ns, after which a warp reports it to the host.
_REPORTED_NS = 100_000_000
#: Most blocks that initialize the words of sets: each of their warps adds to one
#: counter, one after the other.
SET_BLOCKS = 528
#: Subtracted from a rank's count if a value is too large for the wire dtype. No sum of
#: counts reaches half of it, so a sum below minus half of it has the fault of a rank.
TOO_LARGE = 1 << 48


@device_function
def _raise_flags(there, own):  # type: ignore[no-untyped-def]
    """Raise the flags of a complete slot on all ranks, by one thread after all others.

    One fence covers all stores of this GPU: those of other threads precede a barrier of
    their block, and those of other blocks precede their increments of `DONE`.
    """
    generation = own[GENERATION] + int64(1)
    own[GENERATION] = generation
    cuda.threadfence_system()
    for rank in range(there.shape[0]):
        raise_at(there[rank, FLAG], generation)


@device_function
def _wait(here, rank, own, alarm, limit_ns):  # type: ignore[no-untyped-def]
    """Wait for the post of a rank, by a whole warp, or note that the rank is lost.

    A rank is lost after `limit_ns`, or if the host sets the alarm, a word of memory of
    the host. Reads of that memory are serialized, so only the first block reads the
    alarm, and stores to the words after it for which rank it waits; other blocks read
    `LOST`. Flags are read by acquire loads: the compiler would hoist plain loads, such
    as `cuda.ldcv`, out of the loop.
    """
    if cuda.laneid == 0:
        flag, generation = here[rank, FLAG], own[GENERATION]
        is_behind = acquire_at(flag) < generation
        # Atomically: blocks that begin later must not wait for a lost rank again.
        if is_behind and cuda.atomic.add(own, LOST, int64(0)) == 0:
            begun, looks, pause = clock_ns(), int32(0), _FIRST_PAUSE
            is_reported, waits = False, alarm + int64(8) * (int64(rank) + int64(1))
            while acquire_at(flag) < generation:
                waited_ns = clock_ns() - begun
                is_lost = waited_ns > limit_ns
                if looks % _LOOKS == 0:
                    if cuda.blockIdx.x == 0:
                        is_lost = is_lost or acquire_at(alarm) != 0
                        if not is_reported and waited_ns > _REPORTED_NS:
                            is_reported = True
                            raise_at(waits, int64(1))
                    elif cuda.atomic.add(own, LOST, int64(0)) != 0:
                        break
                if is_lost:
                    cuda.atomic.cas(own, LOST, int64(0), int64(rank) + int64(1))
                    break
                looks += int32(1)
                cuda.nanosleep(uint32(pause))
                if cuda.blockIdx.x != 0:  # thousands of warps poll the same memory
                    pause = min(2 * pause, _LAST_PAUSE)
            if is_reported:
                raise_at(waits, int64(0))
    cuda.syncwarp()


@device_function
def _bits_of(mailboxes, rank, slot, words):  # type: ignore[no-untyped-def]
    """Return the address of the bits of a slot's first part."""
    end = mailboxes[rank, BASE] + (slot + int64(1)) * mailboxes[rank, BYTES]
    return end - int64(2) * _aligned(words)


@device_function
def _aligned(words):  # type: ignore[no-untyped-def]
    """Return the bytes of so many words of bits, a multiple of 16."""
    return (int64(words) * 4 + 15) // 16 * 16


@device_function
def _is_in(words, number):  # type: ignore[no-untyped-def]
    """Return whether a vertex is in a set; a negative number is in none."""
    return number >= 0 and warp.test_bit(words, uint32(number))


@device_function
def _store_bits(found, address, form):  # type: ignore[no-untyped-def]
    """Store the bits of a word in a form, by a whole warp; return the bytes stored."""
    lane, size = uint32(cuda.laneid), int32(4)
    if form == LISTED:
        octet = uint32(0)
        if lane < 4:
            octet = (found >> (uint32(8) * lane)) & uint32(255)
        size = int32(warp.count_bits(warp.group_bits(octet != 0, 32)))
        if octet != 0:
            store_at(address + int64(lane), uint8(octet), uint8)
    elif lane == 0:
        store_at(address, found, uint32)
    return size


@device_function
def _begin_sets(changed, announced, came, counts, own_count, own):  # type: ignore[no-untyped-def]
    """Initialize the received sets, and count the own vertices of the first sent set.

    With `counts`, the first received set starts as a copy of the sent set; the other
    set is empty. Only the first blocks work, since each warp adds to the same counter.
    """
    if cuda.blockIdx.x >= SET_BLOCKS:
        return
    here, step = int64(0), min(cuda.gridDim.x, SET_BLOCKS) * cuda.blockDim.x
    for word in range(cuda.grid(1), announced.size, step):
        place, found = uint32(word), uint32(0)
        if counts:
            found = changed[place]
            # Own vertices have the first bits, before ghosts.
            behind = int64(own_count) - int64(word) * 32
            if behind >= 32:
                here += int64(warp.count_bits(found))
            elif behind > 0:
                mask = (uint32(1) << uint32(behind)) - uint32(1)
                here += int64(warp.count_bits(found & mask))
        announced[place] = found
    for word in range(cuda.grid(1), came.size, step):
        came[uint32(word)] = uint32(0)
    if counts:
        here = warp.group_sum(here, 32)
        if cuda.laneid == 0 and here != 0:
            cuda.atomic.add(own, COUNT, here)


@device_function
def _is_idle(sets, parts, form, links, chunk):  # type: ignore[no-untyped-def]
    """Return whether the words of sets for a chunk are all zero, by a whole warp.

    If few vertices have changed, most chunks have nothing to post. False is returned
    for chunks with too many words of sets, too.
    """
    begin = links[chunk, _IN_SETS]
    if form != LISTED or begin < 0:
        return False
    found, end = uint32(0), begin + links[chunk, _OF_SETS]
    for word in range(begin + int64(cuda.laneid), end, 32):
        found |= sets[0][uint32(word)]
        if parts == 2:
            found |= sets[1][uint32(word)]
    return warp.group_all(found == 0, 32)


@kernel(cache=True, launch_bounds=_BOUNDS)
def post(  # type: ignore[no-untyped-def]
    sets, came, parts, are_places, form, counts, own_count, lists, columns,
    column_count, numbers, number_count, room, total, there, own, notes, stored,
):  # fmt: skip
    """Store rows of changed vertices, and numbers, at all ranks; raise flags.

    ``sets[0]`` and ``sets[1]`` are the sets of one or two parts, and `came` the sets to
    which `take` adds; with `are_places`, the first set is of positions in the lists.
    Rows are stored in a `form`, and their bytes are added to `stored`. With `counts`
    the first number is `total`: the number of own vertices of the first set, less
    `TOO_LARGE` after a fault. A warp takes one of the chunks of `lists`. The last block
    to finish stores the numbers, in `room` bytes, and raises the flags.
    """
    lane, chunk = int32(cuda.laneid), uint32(cuda.grid(1) >> 5)
    links = lists.links
    if cuda.grid(1) == 0:
        now = clock_ns()
        notes[WORK] += now - notes[SINCE]
        notes[SINCE] = now
    _begin_sets(sets[0], came[0], came[1], counts, own_count, own)
    # The condition is warp-uniform.
    if chunk < lists.count and not _is_idle(sets, parts, form, links, chunk):
        link, words = links[chunk, _LINK], links[chunk, _WORDS]
        slot = (own[GENERATION] + int64(1)) & int64(1)
        first, end = int32(links[chunk, _FROM]), int32(links[chunk, _TO])
        number = lists.numbers[uint32(first * 32 + lane)]
        is_changed = are_places or _is_in(sets[0], number)
        following = number
        if first + 1 < end:
            following = lists.numbers[uint32((first + 1) * 32 + lane)]
        for word in range(first, end):
            # Prefetch the bits of the next word, and vertex numbers of the word after.
            follows, behind = False, following
            if word + 1 < end and not are_places:
                follows = _is_in(sets[0], following)
            if word + 2 < end:
                behind = lists.numbers[uint32((word + 2) * 32 + lane)]
            place = int64(word) - links[chunk, _FIRST]
            for part in range(parts):
                is_set = is_changed
                if are_places:
                    is_set = warp.test_bit(sets[0], uint32(word * 32 + lane))
                elif part == 1:
                    is_set = _is_in(sets[1], number)
                found = warp.group_bits(is_set, 32)
                # Computed again each time, to save registers.
                bits = _bits_of(there, link, slot, words) + part * _aligned(words)
                size = _store_bits(found, bits + place * 4, form)
                if form <= MS:
                    found = warp.group_bits(number >= 0, 32)
                if found:
                    rows = there[link, BASE] + slot * there[link, BYTES] + room
                    row = copy_all(
                        found, part, number, columns, column_count, rows, words, place,
                        True, notes,
                    )  # fmt: skip
                    size += row * int32(warp.count_bits(found))
                if lane == 0 and size != 0:
                    stripe = int64(form) * STRIPES + int64(word) % STRIPES
                    at = stripe * there.shape[0] + link
                    cuda.atomic.add(stored, at, int64(size))
            number, is_changed, following = following, follows, behind
    cuda.syncthreads()
    is_last = int32(0)
    # After the barrier, the fence of one thread covers the stores of its whole block.
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        before_it = cuda.atomic.add(own, DONE, int64(1))
        if before_it == cuda.gridDim.x - 1:
            # Loads of `own`, `notes` and `stored` below follow the increments of `DONE`
            # by all blocks, and with these their atomics and stores.
            cuda.threadfence()
            is_last = int32(1)
            own[DONE] = int64(0)
            if counts:
                here = cuda.atomic.add(own, COUNT, int64(0))
                if cuda.atomic.add(notes, FAULT, int64(0)) != 0:
                    here -= int64(TOO_LARGE)
                total[0], own[COUNT] = here, int64(0)
    if cuda.syncthreads_or(is_last):
        _post_numbers(numbers, number_count, there, own, stored)
        cuda.syncthreads()
        if is_last:
            _raise_flags(there, own)


@device_function
def _post_numbers(numbers, count, there, own, stored):  # type: ignore[no-untyped-def]
    """Store the numbers of this rank at all ranks, itself included, by one block.

    A warp takes one array for one rank, so that loads of several arrays overlap.
    """
    slot = (own[GENERATION] + int64(1)) & int64(1)
    lane, ranks = int32(cuda.laneid), int32(there.shape[0])
    warps = int32(cuda.blockDim.x) >> 5
    for pair in range(int32(cuda.threadIdx.x) >> 5, int32(count) * ranks, warps):
        number, rank = pair // ranks, pair % ranks
        values, item = numbers[number, _VALUES], numbers[number, _ITEM]
        begin, entries = numbers[number, _BEGIN], numbers[number, _ENTRIES]
        base = there[rank, BASE] + slot * there[rank, BYTES] + begin
        for place in range(lane, entries, int32(32)):
            copy_unit(values + place * item, base + place * item, item)
        if lane == 0:
            at = int64(NUMBERS * STRIPES) * ranks + rank
            cuda.atomic.add(stored, at, entries * item)


@kernel(cache=True, launch_bounds=_BOUNDS_TAKING)
def take(  # type: ignore[no-untyped-def]
    came, parts, are_places, reports_loss, lists, columns, column_count, numbers,
    number_count, room, total, here, own, alarm, limit_ns, notes,
):  # fmt: skip
    """Copy received rows to listed vertices, and add these to the sets of parts.

    With `are_places`, sets stay as they are. The first block waits for every rank, even
    without rows for this one, and combines the numbers. With `reports_loss`, `total`
    becomes -1 - rank if a rank is lost. A warp of the other blocks takes a chunk of
    `lists`.
    """
    if cuda.blockIdx.x == 0:
        _take_numbers(numbers, number_count, here, own, alarm, limit_ns)
        if reports_loss and cuda.threadIdx.x == 0:
            # Atomically: a plain load may return the value that `_wait` has loaded.
            lost = cuda.atomic.add(own, LOST, int64(0))
            if lost != 0:
                total[0] = -lost
        if cuda.threadIdx.x == 0:
            notes[SINCE] = clock_ns()
        return
    lane, links = int32(cuda.laneid), lists.links
    chunk = uint32(cuda.grid(1) - cuda.blockDim.x) >> uint32(5)
    if chunk >= lists.count:
        return
    link, size = links[chunk, _LINK], links[chunk, _WORDS]
    _wait(here, link, own, alarm, limit_ns)
    if own[LOST] != 0:
        return
    slot = own[GENERATION] & int64(1)
    rows = here[link, BASE] + slot * here[link, BYTES] + room
    first, end = int32(links[chunk, _FROM]), int32(links[chunk, _TO])
    for part in range(parts):
        # A lane takes the bits of a word: a chunk has at most 32 words.
        bits = uint32(0)
        if first + lane < end:
            place = int64(first + lane) - links[chunk, _FIRST]
            begin = _bits_of(here, link, slot, size) + part * _aligned(size)
            bits = _taken(begin + place * 4)
        following, coming = int32(-1), uint32(warp.broadcast(int32(bits), 0, 32))
        if coming != 0:
            following = lists.numbers[uint32(first * 32 + lane)]
        for word in range(first, end):
            number, found, coming = following, coming, uint32(0)
            if word + 1 < end:  # prefetch for the next word
                coming = uint32(
                    warp.broadcast(int32(bits), int32(word + 1 - first), 32)
                )
            if coming != 0:
                following = lists.numbers[uint32((word + 1) * 32 + lane)]
            if found == 0:
                continue
            # Form `ALL` has rows of all vertices: keep those of ghosts.
            found &= warp.group_bits(number >= 0, 32)
            if not are_places and part == 0:
                _add_listed(came[0], found, number)
            elif not are_places:
                _add_listed(came[1], found, number)
            place = int64(word) - links[chunk, _FIRST]
            copy_all(
                found, part, number, columns, column_count, rows, size, place, False,
                notes,
            )  # fmt: skip


@device_function
def _add_listed(words, found, number):  # type: ignore[no-untyped-def]
    """Add the vertices at marked positions of a word of a list, by a whole warp.

    Ghosts of a rank have consecutive numbers, which fit into two words of the set.
    """
    lane = int32(cuda.laneid)
    is_set = (found >> uint32(lane)) & uint32(1) != 0
    first = int32(warp.broadcast(number, 0, 32))
    follows = first >= 0 and number == first + lane
    if warp.group_all(not is_set or follows, 32):
        # Not lane 0, see `memory.set_bits`.
        if lane == int32(warp.trailing_zeros(found)):
            place, behind = uint32(first) >> uint32(5), uint32(first) & uint32(31)
            cuda.atomic.or_(words, place, uint32(found << behind))
            rest = uint32(0)
            if behind != 0:
                rest = uint32(found >> (uint32(32) - behind))
            if rest != 0:
                cuda.atomic.or_(words, uint32(place + uint32(1)), rest)
    elif is_set:
        warp.set_bit(words, uint32(number))


@device_function
def _taken(address):  # type: ignore[no-untyped-def]
    """Return a word of bits, and clear it, by one lane."""
    found = load_at(address, uint32)
    if found != 0:
        store_at(address, uint32(0), uint32)
    return found


@device_function
def _take_numbers(numbers, count, here, own, alarm, limit_ns):  # type: ignore[no-untyped-def]
    """Wait for all ranks, and combine their numbers in rank order, by one block."""
    warps = cuda.blockDim.x >> 5
    for rank in range(cuda.threadIdx.x >> 5, here.shape[0], warps):
        _wait(here, rank, own, alarm, limit_ns)
    cuda.syncthreads()
    for number in range(count):
        kind = numbers[number, _KIND]
        if kind == 0:
            _combine_all(numbers, number, here, own, float32)
        elif kind == 1:
            _combine_all(numbers, number, here, own, float64)
        elif kind == 2:
            _combine_all(numbers, number, here, own, int8)
        elif kind == 3:
            _combine_all(numbers, number, here, own, int16)
        elif kind == 4:
            _combine_all(numbers, number, here, own, int32)
        elif kind == 5:
            _combine_all(numbers, number, here, own, int64)
        elif kind == 6:
            _combine_all(numbers, number, here, own, uint8)
        elif kind == 7:
            _combine_all(numbers, number, here, own, uint16)
        elif kind == 8:
            _combine_all(numbers, number, here, own, uint32)
        else:
            _combine_all(numbers, number, here, own, uint64)
    cuda.syncthreads()


@device_function
def _combine_all(numbers, number, here, own, dtype):  # type: ignore[no-untyped-def]
    """Combine the entries of an array over all ranks, in rank order."""
    slot, item = own[GENERATION] & int64(1), numbers[number, _ITEM]
    operator, begin = numbers[number, _OPERATOR], numbers[number, _BEGIN]
    values, entries = numbers[number, _VALUES], numbers[number, _ENTRIES]
    for entry in range(cuda.threadIdx.x, entries, cuda.blockDim.x):
        place = begin + entry * item
        found = load_at(here[0, BASE] + slot * here[0, BYTES] + place, dtype)
        for rank in range(1, here.shape[0]):
            base = here[rank, BASE] + slot * here[rank, BYTES]
            found = _combined(found, load_at(base + place, dtype), operator)
        store_at(values + entry * item, found, dtype)


@device_function
def _combined(first, second, operator):  # type: ignore[no-untyped-def]
    """Return the sum (0), product (1), minimum (2) or maximum (3); NaN propagates."""
    if operator == 0:
        return first + second
    if operator == 1:
        return first * second
    if first != first or second != second:  # the sum is NaN, too
        return first + second
    if operator == 2:
        return first if first < second else second
    return second if first < second else first


@kernel(cache=True)
def begin_clock(notes):  # type: ignore[no-untyped-def]
    """Reset the clock: only later launches count as work."""
    if cuda.grid(1) == 0:
        notes[WORK], notes[SINCE] = int64(0), clock_ns()


@kernel(cache=True, launch_bounds=_BOUNDS)
def combine_rows(  # type: ignore[no-untyped-def]
    target, width, item, count, here, words, operation, own, alarm, limit_ns, notes
):
    """Combine rows that ranks have posted for own vertices, in the order of ranks.

    The list of each rank has all own vertices, in `count` words; a warp takes a word.
    `operation` is an index into `OPERATIONS`; `words` gets the set of vertices for
    which rows have arrived.
    """
    lane, word = int32(cuda.laneid), int32(cuda.grid(1) >> 5)
    for rank in range(here.shape[0]):
        _wait(here, rank, own, alarm, limit_ns)
    if cuda.grid(1) == 0:
        notes[SINCE] = clock_ns()
    if word >= count or own[LOST] != 0:
        return
    slot, any_found = own[GENERATION] & int64(1), uint32(0)
    begin = int64(word) * 32 * width * item
    for rank in range(here.shape[0]):
        base = here[rank, BASE] + slot * here[rank, BYTES]
        found = uint32(0)
        if lane == 0:
            found = _taken(_bits_of(here, rank, slot, count) + int64(word) * 4)
        found = uint32(warp.broadcast(int32(found), 0, 32))
        any_found |= found
        for entry in range(lane, int32(32) * width, int32(32)):
            row = entry // width
            if (found >> uint32(row)) & uint32(1):
                v, f = uint32(word * 32 + row), uint32(entry - row * width)
                value = load_at(base + begin + int64(entry) * item, target.dtype)
                combine_entry(target, v, f, value, operation)
    if lane == 0 and any_found:
        words[uint32(word)] = any_found
