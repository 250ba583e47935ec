"""Orders of integers: a radix sort, or one pass where they are a permutation.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["order_of"]

_Array: TypeAlias = NDArray[Any]
#: Bits that a pass sorts by: 2,048 places that are written at once stay in a cache.
_BITS = 11


def order_of(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the places of integers from 0 on in ascending order; equal ones as found.

    Notes
    -----
    O(N) for each 11 bits of the highest, and twice the memory of keys and places.
    """
    count = keys.size
    dtype = np.int32 if count < 1 << 31 else np.int64
    order = np.arange(count, dtype=dtype)
    highest = int(keys.max(initial=0))
    if highest == count - 1:
        places = np.full(count, -1, dtype)
        if _is_permutation(keys, places):
            return places
    turns = (keys.copy(), order), (np.empty_like(keys), np.empty_like(order))
    for shift in range(0, highest.bit_length(), _BITS):
        _sort_by(*turns[0], *turns[1], shift)
        turns = turns[1], turns[0]
    return turns[0][1]


@jit
def _is_permutation(keys: _Array, places: _Array) -> bool:
    """Store the place of each key; False where one comes twice, or is negative."""
    for i in range(keys.size):
        if keys[i] < 0 or places[keys[i]] >= 0:
            return False
        places[keys[i]] = i
    return True


@jit
def _sort_by(
    keys: _Array, order: _Array, keys_to: _Array, order_to: _Array, shift: int
) -> None:
    """Sort stably by some bits of the keys."""
    mask = (1 << _BITS) - 1
    at = np.zeros(mask + 2, np.int64)
    for i in range(keys.size):
        at[((keys[i] >> shift) & mask) + 1] += 1
    for digit in range(mask):
        at[digit + 1] += at[digit]
    for i in range(keys.size):
        digit = (keys[i] >> shift) & mask
        keys_to[at[digit]], order_to[at[digit]] = keys[i], order[i]
        at[digit] += 1
