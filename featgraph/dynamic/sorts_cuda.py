"""Barriers, prefix sums, radix sorts and searches inside a launch, on the GPU.

`d` is `kernels_cuda.Passes`. ``d.blocks`` blocks share a pass, and `meet` is a barrier
for them: one for all blocks of the launch, or ``syncthreads`` if a single block runs.
"""

from __future__ import annotations

from featgraph.cuda.dialect import (
    acquire,
    cuda,
    device_function,
    fence,
    int32,
    int64,
    uint32,
)
from featgraph.device.warp import FULL_WARP, lower_bound, sum_before

#: Threads and warps of a block: with up to 96 registers a thread, one block fills a
#: multiprocessor. Then the most values of a digit.
THREADS, WARPS, DIGITS = 640, 20, 256
#: Counters of digits: one for each value and warp.
COUNTS = 5120
#: Threads of a block of kernels that copy edges, with up to 84 registers.
COPY_THREADS = 768


@device_function
def meet_grid(d):  # type: ignore[no-untyped-def]
    """Synchronize all blocks of a launch; each sees the writes of the others.

    Launches of more than one block have equally many, so that `gate` is a multiple of
    that at first.
    """
    cuda.syncthreads()
    if cuda.gridDim.x > 1:
        if cuda.threadIdx.x == 0:
            fence()
            count = int64(cuda.gridDim.x)
            behind = cuda.atomic.add(d.gate, 0, int64(1)) // count * count + count
            while acquire(d.gate, 0) < behind:
                pass
        cuda.syncthreads()


@device_function
def meet(d):  # type: ignore[no-untyped-def]
    """Wait for all threads that share a pass; each sees the writes of the others."""
    if d.blocks > 1:
        meet_grid(d)
    else:
        cuda.syncthreads()


@device_function
def threads(d):  # type: ignore[no-untyped-def]
    """Return how many threads share a pass."""
    return int64(d.blocks) * cuda.blockDim.x


@device_function
def share(count, d):  # type: ignore[no-untyped-def]
    """Return the numbers below a count that this warp has: from, to."""
    warps = threads(d) >> 5
    each = (int64(count) + warps - 1) // warps
    low = min((cuda.grid(1) >> 5) * each, int64(count))
    return low, min(low + each, int64(count))


@device_function
def share_of_grid(count, step):  # type: ignore[no-untyped-def]
    """Return the numbers below a count that this warp of the launch has: from, to.

    The first one is a multiple of `step`, or the count.
    """
    least = (cuda.gridsize(1) >> 5) * step
    each = (int64(count) + least - 1) // least * step
    low = min((cuda.grid(1) >> 5) * each, int64(count))
    return low, min(low + each, int64(count))


@device_function
def block_sums(own, parts):  # type: ignore[no-untyped-def]
    """Return the sum over a block's threads before this one, and over all of them."""
    lane, warp = int32(cuda.threadIdx.x) & 31, int32(cuda.threadIdx.x) >> 5
    here = sum_before(int64(own)) + own
    cuda.syncthreads()
    if lane == 31:
        parts[warp] = here
    cuda.syncthreads()
    before = total = int64(0)
    for other_warp in range(int32(cuda.blockDim.x) >> 5):
        if other_warp == warp:
            before = total
        total += parts[other_warp]
    return before + here - own, total


@device_function
def spread(values, count, d, parts):  # type: ignore[no-untyped-def]
    """Replace values by their exclusive prefix sums, behind and before a barrier.

    Each warp has consecutive values, and its lanes take 32 of them at a time.
    """
    meet(d)
    lane = int32(cuda.threadIdx.x) & 31
    low, high = share(count, d)
    own = base = int64(0)
    for place in range(low + lane, high, 32):
        own += values[place]
    ahead, total = block_sums(own, parts)
    if d.blocks > 1:
        if cuda.threadIdx.x == 0:
            d.totals[cuda.blockIdx.x] = total
        meet(d)
        here = int64(0)
        for block in range(cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x):
            here += d.totals[block]
        _, base = block_sums(here, parts)
    base += cuda.shfl_sync(FULL_WARP, ahead, 0)
    own = values[low + lane] if low + lane < high else int64(0)
    for begin in range(low, high, 32):
        place = begin + lane
        # Loaded here, so that the sums below do not wait for memory.
        later = values[place + 32] if place + 32 < high else int64(0)
        before = sum_before(own)
        if place < high:
            values[place] = base + before
        base += cuda.shfl_sync(FULL_WARP, before + own, 31)
        own = later
    meet(d)


@device_function
def bits_of(most):  # type: ignore[no-untyped-def]
    """Return the number of bits of the numbers from 0 to `most`, 1 or more."""
    bits = int32(1)
    while (int64(most) >> bits) > 0:
        bits += 1
    return bits


@device_function
def digits_of(bits):  # type: ignore[no-untyped-def]
    """Return the number of digits of keys with `bits` bits, and the bits of a digit."""
    width = int32(5)  # a thread of the block for each value of a digit
    while width < 8 and (int32(1) << width) < cuda.blockDim.x:
        width += 1
    count = (int32(bits) + width - 1) // width
    return count, (int32(bits) + count - 1) // count


@device_function
def _sort_key(keys, through, place, step, row, d):  # type: ignore[no-untyped-def]
    """Return the sorted number at a place, and its key, for one step of a sort."""
    number, key = int64(place), int64(0)
    if step > 0 or through >= 0:
        number = int64(d.work[row + 1, place])
    if step > 0:
        key = int64(d.work[row, place])
    elif through >= 0:
        key = int64(d.work[keys, d.work[through, number]])
    else:
        key = int64(d.work[keys, number])
    return number, key


@device_function
def _sum_digits(used, d):  # type: ignore[no-untyped-def]
    """Replace the count of each value of a digit by its sum in the blocks before.

    A warp of the launch has a value. The sum over all blocks is put behind them.
    """
    lane = int32(cuda.threadIdx.x) & 31
    for value in range(cuda.grid(1) >> 5, used, threads(d) >> 5):
        before = int64(0)
        for base in range(0, d.blocks, 32):
            block, count = base + lane, int64(0)
            if block < d.blocks:
                count = d.digits[value, block]
            here = sum_before(count)
            if block < d.blocks:
                d.digits[value, block] = before + here
            before += cuda.shfl_sync(FULL_WARP, here + count, 31)
        if lane == 0:
            d.digits[value, d.blocks] = before
    meet(d)


@device_function
def sort(  # type: ignore[no-untyped-def]
    keys, through, into, spare, count, bits, d, counts, parts
):
    """Sort the numbers 0 to `count` - 1 by keys of `bits` bits, stably.

    A radix sort from the last digit to the first. Sorted keys are left in row `into` of
    `d.work`, and numbers in the row behind it; row `spare` and the one behind it are
    overwritten. Keys are in row `keys`. If `through` is a row, numbers are read from
    behind `spare` at first, and number n has key ``keys[through[n]]``.

    Each warp has consecutive places, and counts the values of a digit there. After a
    barrier, the prefix sums of all counts are where its keys with each value begin.
    """
    lane, warp = int32(cuda.threadIdx.x) & 31, int32(cuda.threadIdx.x) >> 5
    steps, width = digits_of(bits)
    warps = int32(cuda.blockDim.x) >> 5
    used, lower = int32(1) << width, (uint32(1) << uint32(lane)) - uint32(1)
    thread, own = int32(cuda.threadIdx.x), warp * DIGITS
    size, all_warps = int32(count), int32(d.blocks) * warps
    each = (size + all_warps - 1) // all_warps
    low = min((int32(cuda.blockIdx.x) * warps + warp) * each, size)
    high = min(low + each, size)
    for step in range(steps):
        to, source, shift = int64(into), int64(spare), uint32(step * width)
        if (steps - 1 - step) & 1 != 0:
            to, source = int64(spare), int64(into)
        for k in range(thread, warps * DIGITS, cuda.blockDim.x):
            counts[k] = 0
        cuda.syncthreads()
        for place in range(low + lane, high, 32):
            _, key = _sort_key(keys, through, place, step, source, d)
            digit = int32((uint32(key) >> shift) & uint32(used - 1))
            cuda.atomic.add(counts, own + digit, 1)
        cuda.syncthreads()
        here, base = int64(0), int64(0)
        if thread < used:
            for other in range(warps):
                here += counts[other * DIGITS + thread]
            if d.blocks > 1:
                d.digits[thread, cuda.blockIdx.x] = here
        meet(d)
        if d.blocks > 1:
            _sum_digits(used, d)
            if thread < used:
                base = d.digits[thread, cuda.blockIdx.x]
                here = d.digits[thread, d.blocks]
        before, _ = block_sums(here, parts)
        if thread < used:
            base += before
            for other in range(warps):
                here = int64(counts[other * DIGITS + thread])
                counts[other * DIGITS + thread] = base
                base += here
        cuda.syncthreads()
        found = key = int64(0)
        if low + lane < high:
            found, key = _sort_key(keys, through, low + lane, step, source, d)
        for begin in range(low, high, 32):
            place, digit, next_found, next_key = begin + lane, int32(-1), found, key
            if place + 32 < high:  # loaded here, so that the ranks do not wait for it
                next_found, next_key = _sort_key(
                    keys, through, place + 32, step, source, d
                )
            if place < high:
                digit = int32((uint32(key) >> shift) & uint32(used - 1))
            alike = uint32(cuda.match_any_sync(FULL_WARP, digit))
            rank, target = int32(cuda.popc(uint32(alike & lower))), int32(0)
            if place < high:
                target = counts[own + digit] + rank
            cuda.syncwarp()
            if place < high:
                if rank == 0:
                    counts[own + digit] = target + int32(cuda.popc(alike))
                d.work[to, target], d.work[to + 1, target] = key, found
            found, key = next_found, next_key
            cuda.syncwarp()
        meet(d)


@device_function
def row_at(at, count, number, row):  # type: ignore[no-untyped-def]
    """Return the row of a number: the last one that begins at it or before.

    `row` is a row that begins at the number or before, mostly a near one, or -1.
    """
    low, high, step = max(int64(row), int64(0)), int64(count), int64(1)
    if row >= 0:
        high = low + 1
        while high < count and at[high] <= number:
            low, high, step = high, min(high + step, int64(count)), step + step
    return lower_bound(at, low, high, number + 1) - 1


@device_function
def lane_of(ends, number):  # type: ignore[no-untyped-def]
    """Return the first lane whose `ends` is above a number; the last one if none is.

    `ends` ascends with lanes. All lanes of a warp must call this, each for a number.
    """
    found, step = int32(0), int32(16)
    while step > 0:
        if cuda.shfl_sync(FULL_WARP, ends, found + step - 1) <= number:
            found += step
        step >>= 1
    return found
