"""Stable sorts and sums on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.arrays import memory, radix
from featgraph.arrays.values import offset_dtype

__all__ = ["RADIX_BITS", "scanned", "sort_stably"]

#: Bits of a digit, at most 8.
RADIX_BITS = 8
#: Blocks of a kernel whose blocks take a chunk each: 8 a multiprocessor of an H200.
_BLOCKS = 1056


def sort_stably(keys: Any, bound: int, values: Any = None) -> tuple[Any, Any]:
    """Sort keys, and values with them; equal keys keep their order.

    A radix sort, least digit first: time and memory are O(N) a digit.

    Parameters
    ----------
    keys : array of int32, shape (N,)
        Integers in [0, bound). It keeps its contents.
    bound : int
    values : array of int32 or int64, shape (N,), optional
        Default: the places of the keys, int32 where they fit.

    Returns
    -------
    keys, values : arrays of shape (N,)
        New ones.
    """
    count = keys.size
    dtype = offset_dtype(count) if values is None else values.dtype
    bits = max((bound - 1).bit_length(), 1)
    passes = -(-bits // RADIX_BITS)
    digit = -(-bits // passes)
    made = [
        (memory.empty((count,), np.int32), memory.empty((count,), dtype))
        for _ in range(min(passes, 2))
    ]
    if count == 0:
        return made[0]
    tile = memory.BLOCK * radix.STEPS
    chunk = -(-count // (_BLOCKS * tile)) * tile
    blocks = -(-count // chunk)
    counts = memory.empty((blocks << digit,), np.int32)
    is_numbered = values is None
    given = keys, made[0][1] if is_numbered else values
    for number in range(passes):
        target, shift = made[number % 2], number * digit
        memory.launch(
            radix.count_digits, blocks, given[0], shift, 1 << digit, chunk, counts
        )
        bases, _ = scanned(counts)
        memory.launch(
            radix.scatter, blocks, *given, is_numbered, shift, digit, chunk, bases,
            *target,
        )  # fmt: skip
        given, is_numbered = target, False
    return given


def scanned(values: Any) -> tuple[Any, Any]:
    """Return the sums before each of some integers, int64, and that of all, (1,)."""
    sums = memory.empty(values.shape, np.int64)
    chunk = -(-values.size // (_BLOCKS * memory.BLOCK)) * memory.BLOCK
    blocks = max(-(-values.size // max(chunk, 1)), 1)
    totals, total = memory.empty((blocks,), np.int64), memory.empty((1,), np.int64)
    memory.launch(radix.add_chunks, blocks, values, chunk, totals)
    memory.launch(radix.add_totals, 1, totals, total)
    memory.launch(radix.scan_chunks, blocks, values, chunk, totals, sums)
    return sums, total
