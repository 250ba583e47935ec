"""Stable radix sort and prefix sums on the GPU, with their kernels.

`sort_stably` sorts by one digit of the keys per pass: `count_digits` counts the keys of
each digit by chunk, `scanned` turns the counts into positions, and `scatter` moves keys
and values there. `scanned` sums chunks, scans the sums with one block, and adds them to
the prefix sums within chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.cuda import arrays
from featgraph.cuda.dialect import (
    cuda,
    device_function,
    int32,
    int64,
    kernel,
    uint16,
    uint32,
)
from featgraph.cuda.values import offset_dtype

__all__ = ["RADIX_BITS", "scanned", "sort_stably"]

#: Most bits of a digit.
RADIX_BITS = 8
#: Most blocks of kernels with one chunk per block: 8 per multiprocessor of an H200.
_BLOCKS = 1056
#: Up to this many values are scanned by one block.
_FEW = 2048


def sort_stably(keys: Any, bound: int, values: Any = None) -> tuple[Any, Any]:
    """Sort keys, and values with them; equal keys keep their order.

    Radix sort, least significant digit first: O(N) time and memory per digit.

    Parameters
    ----------
    keys : array of int32, shape (N,)
        Integers in [0, bound); not changed.
    bound : int
    values : array of int32 or int64, shape (N,), optional
        Default: the indices of the keys, int32 if they fit.

    Returns
    -------
    keys, values : arrays of shape (N,)
        New arrays.
    """
    count = keys.size
    dtype = offset_dtype(count) if values is None else values.dtype
    bits = max((bound - 1).bit_length(), 1)
    passes = -(-bits // RADIX_BITS)
    digit = -(-bits // passes)
    made = [  # passes alternate between two buffers
        (arrays.empty((count,), np.int32), arrays.empty((count,), dtype))
        for _ in range(min(passes, 2))
    ]
    if count == 0:
        return made[0]
    tile = arrays.BLOCK * STEPS
    chunk = -(-count // (_BLOCKS * tile)) * tile
    blocks = -(-count // chunk)
    counts = arrays.empty((blocks << digit,), np.int32)
    is_numbered = values is None
    source = keys, made[0][1] if is_numbered else values
    for number in range(passes):
        target, shift = made[number % 2], number * digit
        arrays.launch(count_digits, blocks, source[0], shift, 1 << digit, chunk, counts)
        bases, _ = scanned(counts)
        arrays.launch(
            scatter, blocks, *source, is_numbered, shift, digit, chunk, bases,
            *target,
        )  # fmt: skip
        source, is_numbered = target, False
    return source


def scanned(values: Any) -> tuple[Any, Any]:
    """Return the exclusive prefix sum of integers, int64, and the total, shape (1,)."""
    sums = arrays.empty(values.shape, np.int64)
    total = arrays.empty((1,), np.int64)
    if values.size <= _FEW:
        arrays.launch(scan_few, 1, values, sums, total)
        return sums, total
    chunk = -(-values.size // (_BLOCKS * arrays.BLOCK)) * arrays.BLOCK
    blocks = -(-values.size // chunk)
    totals = arrays.empty((blocks,), np.int64)
    arrays.launch(add_chunks, blocks, values, chunk, totals)
    arrays.launch(scan_few, 1, totals, totals, total)
    arrays.launch(scan_chunks, blocks, values, chunk, totals, sums)
    return sums, total


#: Mask of all lanes of a warp.
FULL_WARP = 0xFFFFFFFF
#: Number of values of a digit, and of borders between the keys of each.
DIGITS = 256
BORDERS = DIGITS + 1
#: Most warps of a block; keys that a lane takes of a tile; most keys of a tile.
WARPS, STEPS = 8, 16
TILE = WARPS * 32 * STEPS
#: Number of bits of a rank, which is less than TILE.
RANK_BITS = 12
#: Most threads of a block.
THREADS = WARPS * 32


@device_function
def _digit(key, shift, used):  # type: ignore[no-untyped-def]
    """Return a digit of a key, in base `used`."""
    return uint32((uint32(key) >> uint32(shift)) & uint32(used - 1))


@kernel(cache=True)
def count_digits(keys, shift, used, chunk, counts):  # type: ignore[no-untyped-def]
    """Count the keys of each digit in a block's chunk.

    Counts are stored at ``counts[digit * blocks + block]``, so that their prefix sum is
    the position of each block's first key of each digit.
    """
    own = cuda.shared.array(DIGITS, int32)
    for digit in range(cuda.threadIdx.x, DIGITS, cuda.blockDim.x):
        own[digit] = 0
    cuda.syncthreads()
    begin = cuda.blockIdx.x * chunk
    end = min(begin + chunk, keys.size)
    for place in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
        cuda.atomic.add(own, _digit(keys[place], shift, used), 1)
    cuda.syncthreads()
    for digit in range(cuda.threadIdx.x, used, cuda.blockDim.x):
        counts[digit * cuda.gridDim.x + cuda.blockIdx.x] = own[digit]


@kernel(cache=True)
def add_chunks(values, chunk, totals):  # type: ignore[no-untyped-def]
    """Set ``totals[block]`` to the sum of a block's chunk."""
    own = cuda.shared.array(1, int64)
    if cuda.threadIdx.x == 0:
        own[0] = 0
    cuda.syncthreads()
    begin = cuda.blockIdx.x * chunk
    here = int64(0)
    for place in range(
        begin + cuda.threadIdx.x, min(begin + chunk, values.size), cuda.blockDim.x
    ):
        here += values[place]
    cuda.atomic.add(own, 0, here)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = own[0]


@device_function
def _summed(parts, own):  # type: ignore[no-untyped-def]
    """Return the inclusive prefix sum of a value over the threads of a block.

    `parts`, in shared memory, holds the sums of all threads until the next call.
    """
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    cuda.syncthreads()  # other threads may still read sums of the call before
    parts[thread] = own
    cuda.syncthreads()
    step = 1
    while step < threads:
        added = int64(0)
        if thread >= step:
            added = parts[thread - step]
        cuda.syncthreads()  # all threads have read before any of them adds
        parts[thread] += added
        cuda.syncthreads()
        step *= 2
    return parts[thread]


@kernel(cache=True)
def scan_few(values, sums, total):  # type: ignore[no-untyped-def]
    """Store the exclusive prefix sum of values, and the total, by one block.

    `sums` may be the same array as `values`.
    """
    parts = cuda.shared.array(THREADS, int64)
    before = int64(0)
    for first in range(0, values.size, cuda.blockDim.x):
        place = first + cuda.threadIdx.x
        own = int64(0)
        if place < values.size:
            own = int64(values[place])
        here = _summed(parts, own)
        if place < values.size:
            sums[place] = before + here - own
        before += parts[cuda.blockDim.x - 1]
    if cuda.threadIdx.x == 0:
        total[0] = before


@kernel(cache=True)
def scan_chunks(values, chunk, totals, sums):  # type: ignore[no-untyped-def]
    """Store the exclusive prefix sum of each block's chunk, plus ``totals[block]``."""
    parts = cuda.shared.array(THREADS, int64)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    begin = cuda.blockIdx.x * chunk
    end = min(begin + chunk, values.size)
    before = totals[cuda.blockIdx.x]
    for first in range(begin, end, threads):
        place = first + thread
        own = int64(0)
        if place < end:
            own = int64(values[place])
        here = _summed(parts, own)
        if place < end:
            sums[place] = before + here - own
        before += parts[threads - 1]


@device_function
def _add_up(begins, used, lane):  # type: ignore[no-untyped-def]
    """Replace counts from entry 1 on by their inclusive prefix sums, by one warp."""
    each = (used + 31) // 32
    first, last = lane * each, min((lane + 1) * each, used)
    total = int32(0)
    for digit in range(first, last):
        total = int32(total + begins[digit + 1])
    sum_here, offset = total, int32(1)
    while offset < 32:
        other = cuda.shfl_up_sync(FULL_WARP, sum_here, offset)
        if lane >= offset:
            sum_here = int32(sum_here + other)
        offset += offset
    before = int32(sum_here - total)
    for digit in range(first, last):
        before = int32(before + begins[digit + 1])
        begins[digit + 1] = before


@kernel(cache=True, launch_bounds=(THREADS, 4))
def scatter(  # type: ignore[no-untyped-def]
    keys, values, is_numbered, shift, bits, chunk, bases, out_keys, out_values
):
    """Scatter keys and values by a digit; equal keys keep their order.

    A block processes its chunk tile by tile: each warp ranks its keys among those of
    the same digit by votes, counts are scanned over the warps, and the tile is written
    digit by digit, so that adjacent threads write adjacent places. With `is_numbered`,
    the value of a key is its index.
    """
    # Number of keys of each digit: in each warp; after the scan, in the warps before.
    counts = cuda.shared.array((WARPS, DIGITS), int32)
    base = cuda.shared.array(DIGITS, int64)  # output place of a digit's next key
    begins = cuda.shared.array(BORDERS, int32)  # place of a digit in the sorted tile
    order = cuda.shared.array(TILE, uint16)  # sorted tile: places of keys in the tile
    ranks = cuda.shared.array(TILE, int32)  # digit, and rank among the warp's keys
    thread, threads = int32(cuda.threadIdx.x), int32(cuda.blockDim.x)
    warp, lane, warps = thread >> 5, thread & 31, threads >> 5
    used = int32(1) << int32(bits)
    size = int32(threads * STEPS)
    lower = (uint32(1) << uint32(lane)) - uint32(1)
    first, end = cuda.blockIdx.x * chunk, min((cuda.blockIdx.x + 1) * chunk, keys.size)
    for digit in range(thread, used, threads):
        base[digit] = bases[digit * cuda.gridDim.x + cuda.blockIdx.x]
    for tile in range(first, end, size):
        here = int32(min(int64(size), end - tile))
        for place in range(thread, warps * used, threads):
            counts[place >> bits, place & (used - 1)] = 0
        cuda.syncthreads()
        own = int32(warp * 32 * STEPS)
        # The same for all lanes of a warp, which vote together.
        last = min(int32(own + 32 * STEPS), (here + 31) & ~31)
        for place in range(own + lane, last, 32):
            digit = uint32(0)
            if place < here:
                digit = _digit(keys[tile + place], shift, used)
            alike = uint32(cuda.ballot_sync(FULL_WARP, place < here))
            for bit in range(bits):
                is_set = (digit >> uint32(bit)) & uint32(1) != 0
                votes = uint32(cuda.ballot_sync(FULL_WARP, is_set))
                alike = uint32(alike & (votes if is_set else votes ^ FULL_WARP))
            before = int32(cuda.popc(uint32(alike & lower)))
            start = counts[warp, digit]
            cuda.syncwarp()  # all lanes have read before the first of a digit adds
            if place < here and before == 0:
                counts[warp, digit] = start + int32(cuda.popc(alike))
            cuda.syncwarp()
            ranks[place] = int32(digit << uint32(RANK_BITS)) | (start + before)
        cuda.syncthreads()
        for digit in range(thread, used, threads):
            total = int32(0)
            for other in range(warps):
                count = counts[other, digit]
                counts[other, digit] = total
                total = int32(total + count)
            begins[digit + 1] = total
        if thread == 0:
            begins[0] = 0
        cuda.syncthreads()
        if warp == 0:
            _add_up(begins, used, lane)
        cuda.syncthreads()
        for place in range(own + lane, min(last, here), 32):
            digit = ranks[place] >> RANK_BITS
            rank = ranks[place] & (TILE - 1)
            order[begins[digit] + counts[warp, digit] + rank] = place
        cuda.syncthreads()
        for place in range(thread, here, threads):
            source = tile + order[place]
            key = keys[source]
            digit = _digit(key, shift, used)
            target = base[digit] + place - begins[digit]
            out_keys[target] = key
            if is_numbered:
                out_values[target] = source
            else:
                out_values[target] = values[source]
        cuda.syncthreads()
        for digit in range(thread, used, threads):
            base[digit] += begins[digit + 1] - begins[digit]
