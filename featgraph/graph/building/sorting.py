"""Orders of integers: a radix sort, or one pass where they are a permutation.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["order_of", "sorted_keys"]

_Array: TypeAlias = NDArray[Any]
#: Bits that a pass sorts by: 2,048 places that are written at once stay in a cache.
_BITS = 11


def order_of(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the places of integers from 0 on in ascending order; equal ones as found.

    Notes
    -----
    O(N) for each 11 bits of the highest, and 24 bytes an entry.
    """
    count = keys.size
    dtype = np.int32 if count < 1 << 31 else np.int64
    highest = int(keys.max(initial=0))
    if highest == count - 1:
        places = np.full(count, -1, dtype)
        if _is_permutation(keys, places):
            return places
    low = count.bit_length()
    numbered = keys.astype(np.int64) << low | np.arange(count)
    return (sorted_keys(numbered, low, highest + 1) & (1 << low) - 1).astype(dtype)


def sorted_keys(keys: NDArray[Any], low: int, bound: int) -> NDArray[Any]:
    """Sort int64 keys stably by their bits from `low` on, which are below `bound`.

    `keys` is used up.
    """
    to = np.empty_like(keys)
    for shift in range(low, low + int(bound - 1).bit_length(), _BITS):
        _sort_by(keys, to, shift)
        keys, to = to, keys
    return keys


@jit
def _is_permutation(keys: _Array, places: _Array) -> bool:
    """Store the place of each key; False where one comes twice, or is negative."""
    for i in range(keys.size):
        if keys[i] < 0 or places[keys[i]] >= 0:
            return False
        places[keys[i]] = i
    return True


@jit
def _sort_by(keys: _Array, to: _Array, shift: int) -> None:
    """Sort stably by some bits of the keys."""
    mask = (1 << _BITS) - 1
    at = np.zeros(mask + 2, np.int64)
    for i in range(keys.size):
        at[((keys[i] >> shift) & mask) + 1] += 1
    for digit in range(mask):
        at[digit + 1] += at[digit]
    for i in range(keys.size):
        digit = (keys[i] >> shift) & mask
        to[at[digit]] = keys[i]
        at[digit] += 1
