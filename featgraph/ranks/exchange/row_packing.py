"""Compiled loops over send lists, positions and rows; imported when first needed.

A *position* is an index into a send list; positions ascend. Rows are matrices of whole
units (uint8 to uint64), so that one loop copies properties of all dtypes.

Loops never write out of bounds: those that read bytes of another rank check each
position before they store it.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from featgraph.base.interrupts import njit

__all__ = [
    "count_escapes",
    "gather_rows",
    "list_changed",
    "pack_bits",
    "pack_gaps",
    "scatter_rows",
    "unpack_bits",
    "unpack_gaps",
]


@njit(cache=True, nogil=True, error_model="numpy")
def list_changed(words, numbers, positions):  # type: ignore[no-untyped-def]
    """List the positions whose vertex is in a set; return their count.

    `positions` has one entry more than `numbers`: each position is written, and
    overwritten by the next one unless its bit is set.
    """
    count = 0
    for position in range(numbers.size):
        number = int64(numbers[position])
        positions[count] = position
        count += int64((words[number >> 5] >> (number & 31)) & 1)
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def count_escapes(positions):  # type: ignore[no-untyped-def]
    """Count the escapes for gaps of 4, 8, ... 24 bits; see `pack_gaps`."""
    found = np.zeros(6, np.int64)
    before = int64(-1)
    for position in positions:
        gap = int64(position) - before - 1
        before = int64(position)
        if gap >= 15:
            found[0] += gap // 15
            found[1] += gap // 255
            found[2] += gap // 4095
            found[3] += gap // 65535
            found[4] += gap // 1048575
            found[5] += gap // 16777215
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def pack_gaps(positions, bits, out):  # type: ignore[no-untyped-def]
    """Write the gaps between positions, in entries of `bits` bits, lower bits first.

    A gap is the number of positions between two listed ones. An entry with the largest
    value is an escape: the gap continues in the next entry.
    """
    most = (int64(1) << bits) - 1
    held, filled, at = uint64(0), int64(0), int64(0)
    before = int64(-1)
    for position in positions:
        gap = int64(position) - before - 1
        before = int64(position)
        goes_on = True
        while goes_on:
            goes_on = gap >= most
            entry = min(gap, most)
            gap -= entry
            held |= uint64(entry) << uint64(filled)
            filled += bits
            while filled >= 8:
                out[at] = uint8(held & uint64(255))
                held >>= uint64(8)
                filled -= 8
                at += 1
    if filled > 0:
        out[at] = uint8(held & uint64(255))


@njit(cache=True, nogil=True, error_model="numpy")
def unpack_gaps(data, bits, size, positions):  # type: ignore[no-untyped-def]
    """Decode gaps to positions below `size`; return whether the bytes are valid."""
    most = (int64(1) << bits) - 1
    held, filled, at = uint64(0), int64(0), int64(0)
    position = int64(-1)
    for number in range(positions.size):
        position += 1
        goes_on = True
        while goes_on:
            while filled < bits:
                if at >= data.size:
                    return False
                held |= uint64(data[at]) << uint64(filled)
                filled += 8
                at += 1
            entry = int64(held & uint64(most))
            held >>= uint64(bits)
            filled -= bits
            position += entry
            if position >= size:
                return False
            goes_on = entry == most
        positions[number] = position
    return at == data.size and held == uint64(0)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_bits(positions, out):  # type: ignore[no-untyped-def]
    """Set the bits of positions, in bytes that are zero."""
    for position in positions:
        out[position >> 3] |= uint8(1) << uint8(position & 7)


@njit(cache=True, nogil=True, error_model="numpy")
def unpack_bits(data, size, positions):  # type: ignore[no-untyped-def]
    """List the positions whose bit is set; return their count.

    `positions` has one entry more than the list, as in `list_changed`.
    """
    count = 0
    for position in range(size):
        positions[count] = position
        count += int64((data[position >> 3] >> (position & 7)) & 1)
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def gather_rows(source, numbers, positions, out):  # type: ignore[no-untyped-def]
    """Copy the rows ``source[numbers[positions]]`` to `out`."""
    for row in range(positions.size):
        number = int64(numbers[positions[row]])
        for unit in range(source.shape[1]):
            out[row, unit] = source[number, unit]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter_rows(rows, positions, first, out):  # type: ignore[no-untyped-def]
    """Copy rows to the rows ``first + positions`` of `out`."""
    for row in range(positions.size):
        place = first + int64(positions[row])
        for unit in range(out.shape[1]):
            out[place, unit] = rows[row, unit]
