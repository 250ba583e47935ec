"""Comparisons of argmin and argmax, order of triangle corners, checks of patches.

`for_target` compiles the functions; `featgraph.device.warp` and `featgraph.device.cpu`
export them under the same names. No function calls another, so each compiles alone.

An arg-combine keeps a pair (key, source). Source -1 is *none* and loses against every
source; a NaN key (one that is not itself) counts as none; on equal keys the smallest
source wins. The identity is (+inf or the largest integer, -1) for argmin, (-inf or the
smallest integer, -1) for argmax.

====================================================  ================================
``wins_min(key, source, best_key, best_source)``      bool: replaces the best pair
``wins_max(key, source, best_key, best_source)``      bool
``pack_min_float32(key, source)``, ``.._int32``       int64, merged by *atomic min*
``pack_max_float32(key, source)``, ``.._int32``       int64, merged by *atomic min* too
``unpack_min_float32(packed)``, ``.._int32``          (key, int32 source)
``unpack_max_float32(packed)``, ``.._int32``          (key, int32 source)
``sort_triangle(low, high, third, edge, to_low,       (u, v, w, e_uv, e_uw, e_vw): the
to_high)``                                            ends of an edge and a third vertex
                                                      by degree
``sum_holds(stored, patch, change)``                  bool; floats of one type
``is_normal(x)``                                      bool; float32 or float64
====================================================  ================================

A packed pair is an int64: the key's order in the high half, the source in the low half,
so that the smaller int64 is the better pair. Fill accumulators with
`PACKED_NONE_FLOAT32` or `PACKED_NONE_INT32`; they unpack to the identity.
"""

import math

import numpy as np
from numba import int32, int64, uint32

# Packed (+inf, -1) for argmin and (-inf, -1) for argmax: the same number.
PACKED_NONE_FLOAT32 = 0x7F800000_FFFFFFFF
PACKED_NONE_INT32 = 0x7FFFFFFF_FFFFFFFF

# Mask of all bits of a float32 but its sign; mask of the source in a packed pair.
_MAGNITUDE = 0x7FFFFFFF
_LOW_HALF = 0xFFFFFFFF


def wins_min(key, source, best_key, best_source):
    """Return whether (key, source) replaces the best pair of an argmin."""
    if source < 0 or key != key:
        return False
    if best_source < 0 or key < best_key:
        return True
    return key == best_key and source < best_source


def wins_max(key, source, best_key, best_source):
    """Return whether (key, source) replaces the best pair of an argmax."""
    if source < 0 or key != key:
        return False
    if best_source < 0 or key > best_key:
        return True
    return key == best_key and source < best_source


def pack_min_float32(key, source):
    """Pack a float32 key and its source for an argmin; NaN packs as none."""
    if source < 0 or key != key:
        return int64(PACKED_NONE_FLOAT32)
    bits = int64(np.float32(key).view(np.int32))
    if bits == -_MAGNITUDE - 1:
        bits = int64(0)  # -0.0 ties with 0.0
    order = bits if bits >= 0 else bits ^ _MAGNITUDE
    return int64((order << 32) | (source & _LOW_HALF))


def pack_max_float32(key, source):
    """Pack a float32 key and its source for an argmax; NaN packs as none."""
    if source < 0 or key != key:
        return int64(PACKED_NONE_FLOAT32)
    bits = int64(np.float32(key).view(np.int32))
    if bits == -_MAGNITUDE - 1:
        bits = int64(0)  # -0.0 ties with 0.0
    order = bits if bits >= 0 else bits ^ _MAGNITUDE
    return int64((~order << 32) | (source & _LOW_HALF))


def pack_min_int32(key, source):
    """Pack an int32 key and its source for an argmin."""
    if source < 0:
        return int64(PACKED_NONE_INT32)
    return int64((int64(key) << 32) | (source & _LOW_HALF))


def pack_max_int32(key, source):
    """Pack an int32 key and its source for an argmax."""
    if source < 0:
        return int64(PACKED_NONE_INT32)
    return int64((~int64(key) << 32) | (source & _LOW_HALF))


def unpack_min_float32(packed):
    """Return the float32 key and the source of an argmin."""
    order = int64(packed) >> 32
    bits = np.int32(order if order >= 0 else order ^ _MAGNITUDE)
    return bits.view(np.float32), int32(uint32(packed))


def unpack_max_float32(packed):
    """Return the float32 key and the source of an argmax."""
    order = ~(int64(packed) >> 32)
    bits = np.int32(order if order >= 0 else order ^ _MAGNITUDE)
    return bits.view(np.float32), int32(uint32(packed))


def unpack_min_int32(packed):
    """Return the int32 key and the source of an argmin."""
    return int32(int64(packed) >> 32), int32(uint32(packed))


def unpack_max_int32(packed):
    """Return the int32 key and the source of an argmax."""
    return int32(~(int64(packed) >> 32)), int32(uint32(packed))


def sort_triangle(low, high, third, edge, to_low, to_high):
    """Sort the corners of a triangle by degree order; return corners and edges.

    `edge` joins `low` and `high`, which are sorted; `to_low` and `to_high` join these
    to `third`.
    """
    if third < low:
        return third, low, high, to_low, to_high, edge
    if third < high:
        return low, third, high, to_low, edge, to_high
    return low, high, third, edge, to_low, to_high


# -- patched aggregates


#: Range of products that may be divided by a factor to take it back. Products outside
#: may be denormal or near overflow, and have lost bits.
_LEAST, _MOST = np.float32(1e-30), np.float32(1e30)


def sum_holds(stored, patch, change):
    """Whether ``stored + patch`` is about as accurate as a newly computed sum.

    `change` is the sum of the absolute values of the differences in `patch`. It may be
    at most 16 times the result, so that cancellation loses no more than four bits.
    False for infinite and NaN sums.
    """
    left = abs(stored + patch)
    left = left + left
    left = left + left
    left = left + left
    left = left + left
    return abs(stored) + change <= left and math.isfinite(left)


def is_normal(x):
    """Whether a product can be divided by a factor: nonzero, and far from overflow."""
    return abs(x) >= _LEAST and abs(x) <= _MOST


def for_target(compiled):
    """Return all functions by name, compiled by a decorator."""
    functions = (
        wins_min, wins_max, pack_min_float32, pack_max_float32, pack_min_int32,
        pack_max_int32, unpack_min_float32, unpack_max_float32, unpack_min_int32,
        unpack_max_int32, sort_triangle, sum_holds, is_normal,
    )  # fmt: skip
    return {function.__name__: compiled(function) for function in functions}
