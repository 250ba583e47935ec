"""Kernels that mark the entries of cut edges (CUDA): a lane has a place of a list.

The lists are those of `featgraph.ranks.gpu.links`. A warp takes a word.
"""

from numba import int32, uint32

from featgraph._cuda import cuda, kernel
from featgraph.device import warp

__all__ = ["mark_differing", "mark_members"]


@kernel(cache=True)
def mark_members(members, numbers, marks):  # type: ignore[no-untyped-def]
    """Mark the places of lists at which there is a number that a set has.

    Where a list ends within a word, numbers are negative.
    """
    lane = int32(cuda.laneid)
    for word in range(cuda.grid(1) >> 5, marks.size, cuda.gridsize(1) >> 5):
        number = numbers[uint32(word * 32 + lane)]
        is_set = number >= 0 and warp.test_bit(members, uint32(number))
        found = warp.group_bits(is_set, 32)
        if lane == 0:
            marks[uint32(word)] = found


@kernel(cache=True)
def mark_differing(marks, numbers, now, before, width, found):  # type: ignore[no-untyped-def]
    """Of marked places, mark those whose rows differ between two buffers.

    Rows have `width` entries, unsigned integers of their size: 0.0 is not -0.0.
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
