"""Decimal numbers to the nearest double, without a decimal in between.

A number is an integer w of up to 19 digits times a power of ten. The product of w with
128 bits of the power of five decides, but in cases that are left to whoever has more
digits (Lemire, Number parsing at a gigabyte per second, 2021, algorithm 1). Import this
module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["double_bits"]

_Array: TypeAlias = NDArray[Any]

_LEAST, _MOST = -342, 308
_HALF = np.uint64(0xFFFFFFFF)


def _power_of_five(exponent: int) -> int:
    """Return the 128 most significant bits; of a reciprocal, rounded up."""
    power: int = 5 ** abs(exponent)
    width = power.bit_length()
    if exponent >= 0:
        return power << (128 - width) if width <= 128 else power >> (width - 128)
    found = (1 << (width + 127)) // power + 1
    if exponent < -27:  # truncated behind more bits than the others have
        found = (1 << (2 * width + 128)) // power + 1
    return found >> max(found.bit_length() - 128, 0)


_POWERS = np.array(
    [
        divmod(_power_of_five(exponent), 1 << 64)
        for exponent in range(_LEAST, _MOST + 1)
    ],
    np.uint64,
)


@jit
def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the upper and the lower half of a product of two words."""
    bits = np.uint64(32)
    a_low, a_high, b_low, b_high = a & _HALF, a >> bits, b & _HALF, b >> bits
    low = a_low * b_low
    one = a_high * b_low + (low >> bits)
    other = a_low * b_high + (one & _HALF)
    high = a_high * b_high + (one >> bits) + (other >> bits)
    return high, (other << bits) | (low & _HALF)


@jit
def _leading_zeros(x: Any) -> int:
    """Return how many bits of a word are before its first."""
    count = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if x >> np.uint64(64 - shift) == 0:
            x <<= np.uint64(shift)
            count += shift
    return count


@jit
def double_bits(digits: Any, exponent: int) -> tuple[bool, Any]:
    """Return whether a number is found, and the bits of its double.

    Parameters
    ----------
    digits : uint64
        Not zero.
    exponent : int
        Of ten.

    Returns
    -------
    is_found : bool
        False for doubles that are subnormal or infinite, and where 128 bits of the
        power of five do not decide.
    bits : uint64
    """
    nothing = np.uint64(0)
    if exponent < _LEAST or exponent > _MOST:
        return False, nothing
    zeros = _leading_zeros(digits)
    word = digits << np.uint64(zeros)
    upper, lower = _POWERS[exponent - _LEAST, 0], _POWERS[exponent - _LEAST, 1]
    high, low = _product(word, upper)
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _product(word, lower)
        low += more
        if low < more:
            high += np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (exponent < -27 or exponent > 55):
        return False, nothing
    top = high >> np.uint64(63)
    shift = top + np.uint64(9)
    mantissa = high >> shift
    # floor(log2(10**exponent)), and the bias of doubles.
    power = ((217706 * exponent) >> 16) + 63 + int(top) - zeros + 1023
    if power <= 0:
        return False, nothing
    # Half way between two doubles: to the even one.
    is_exact = low <= np.uint64(1) and -4 <= exponent <= 23
    if is_exact and mantissa & np.uint64(3) == 1 and mantissa << shift == high:
        mantissa &= ~np.uint64(1)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        power += 1
    if power >= 2047:
        return False, nothing
    mantissa &= np.uint64((1 << 52) - 1)
    return True, mantissa | (np.uint64(power) << np.uint64(52))
