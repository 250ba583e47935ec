"""Compiled loops over send lists, positions and rows; imported when first needed.

A *position* is an index into a send list; positions ascend. Rows are matrices of whole
units (uint8 to uint64), so that one loop copies properties of all dtypes. Loops never
write out of bounds: those that read bytes of another rank check each position before
they store it.

With a wire dtype, reals are rounded once to 16 bits, to nearest, ties to even. Integer
arithmetic on bits makes results independent of libraries and processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint8, uint16, uint64

from featgraph.base.store import njit

__all__ = [
    "TYPES",
    "count_escapes",
    "gather_rows",
    "list_changed",
    "pack_bits",
    "pack_gaps",
    "round_rows",
    "scatter_rows",
    "unpack_bits",
    "unpack_gaps",
    "widen",
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
        if gap >= 15:  # shorter gaps have no escape of any width
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
    # At most 7 bits wait for a byte, beside the 24 of an entry.
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
    # Bytes or bits that are left belong to no gap.
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


#: Wire dtype -> bits of the fraction and of the exponent.
TYPES = {"float16": (10, 5), "bfloat16": (7, 8)}
#: The same for float32 and float64, by bytes.
_SOURCES = {4: (23, 8), 8: (52, 11)}


def round_rows(
    source: Any, numbers: Any, positions: Any, out: Any, wire_dtype: str
) -> int:
    """Round the rows ``source[numbers[positions]]`` to 16 bits.

    Parameters
    ----------
    source : array of float32 or float64, shape (N, K)
    numbers, positions : arrays of integers
    out : array of uint16, shape (positions, K)
    wire_dtype : str
        One of `TYPES`.

    Returns
    -------
    int
        A row of `source` with a finite value that is too large; -1 if there is none.
    """
    bits = source.view(f"u{source.dtype.itemsize}")
    sizes = *_SOURCES[source.dtype.itemsize], *TYPES[wire_dtype]
    return int(_round_rows(bits, numbers, positions, out, sizes))


def widen(rows: Any, dtype: Any, wire_dtype: str) -> Any:
    """Return rows of 16 bits as reals of another dtype, exactly."""
    with np.errstate(invalid="ignore"):  # NaN with any bits
        if wire_dtype == "float16":
            return rows.view(np.float16).astype(dtype)
        wide = rows.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).astype(dtype, copy=False)


@njit(cache=True, nogil=True, error_model="numpy")
def _round_rows(source, numbers, positions, out, sizes):  # type: ignore[no-untyped-def]
    too_large = int64(-1)
    from_fraction, from_exponent, to_fraction, to_exponent = sizes
    infinite = ((int64(1) << to_exponent) - 1) << to_fraction
    finite = (int64(1) << (from_exponent + from_fraction)) - (int64(1) << from_fraction)
    for row in range(positions.size):
        number = int64(numbers[positions[row]])
        for column in range(source.shape[1]):
            bits = int64(source[number, column])
            narrow = _narrow(bits, sizes)
            out[row, column] = uint16(narrow)
            size = bits & ((int64(1) << (from_exponent + from_fraction)) - 1)
            if narrow & 0x7FFF == infinite and size < finite:
                too_large = number
    return too_large


@njit(cache=True, nogil=True, error_model="numpy")
def _narrow(bits, sizes):  # type: ignore[no-untyped-def]
    """Return the bits of the nearest number in the narrow type."""
    from_fraction, from_exponent, to_fraction, to_exponent = sizes
    sign = int64(uint64(bits) >> uint64(from_fraction + from_exponent)) & 1
    exponent = (bits >> from_fraction) & ((int64(1) << from_exponent) - 1)
    fraction = bits & ((int64(1) << from_fraction) - 1)
    sign <<= to_fraction + to_exponent
    infinite = ((int64(1) << to_exponent) - 1) << to_fraction
    shift = int64(from_fraction - to_fraction)
    if exponent == (int64(1) << from_exponent) - 1:
        is_nan = int64(fraction != 0)
        return sign | infinite | (fraction >> shift) | (is_nan << (to_fraction - 1))
    if exponent == 0:  # a subnormal number, or zero
        exponent = int64(1)
    else:
        fraction |= int64(1) << from_fraction
    exponent += (int64(1) << (to_exponent - 1)) - (int64(1) << (from_exponent - 1))
    if exponent < 1:  # subnormal in the narrow dtype
        shift += 1 - exponent
        exponent = int64(1)
        if shift > from_fraction + 2:
            return sign
    whole = fraction >> shift
    rest = fraction & ((int64(1) << shift) - 1)
    half = int64(1) << (shift - 1)
    whole += int64(rest > half or (rest == half and whole & 1 == 1))
    # The first bit of a normal fraction counts as one more of the exponent.
    return sign | min(((exponent - 1) << to_fraction) + whole, infinite)
