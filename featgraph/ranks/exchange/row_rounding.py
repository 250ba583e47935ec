"""Rows of reals in 16 bits: rounded once, to nearest, ties to even.

Integer arithmetic on bits, so that results do not depend on libraries or processors.
Imported when first needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint16, uint64

from featgraph.base.interrupts import njit

__all__ = ["TYPES", "round_rows", "widen"]

#: Name -> bits of the fraction and of the exponent.
TYPES = {"float16": (10, 5), "bfloat16": (7, 8)}
#: The same for source dtypes, by bytes.
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
    if exponent < 1:  # subnormal there
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
