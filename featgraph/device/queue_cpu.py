"""Lists of vertices in the compiled loop over few vertices, on the CPU (0018).

The parts of the loop that do not depend on the program: `refresh` copies ``_next``
entries, and `split` divides announced vertices into near and far ones. A list is an
array of distinct vertices, and a count.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, njit

__all__ = ["refresh", "split"]

# The functions allocate nothing, and need no reference counts of Numba (_nrt).
_njit = njit(cache=True, error_model="numpy", _nrt=False)


@_njit
def refresh(next_, current, vertices, count):  # type: ignore[no-untyped-def]
    """Copy the rows of some vertices; both arrays are contiguous, of shape (V, ...)."""
    if count == 0:
        return
    width = current.size // current.shape[0]
    to, from_ = next_.reshape(next_.size), current.reshape(current.size)
    if width == 1:
        for place in range(count):
            v = int64(vertices[place])
            to[v] = from_[v]
    else:
        for place in range(count):
            first = int64(vertices[place]) * width
            for f in range(width):
                to[first + f] = from_[first + f]


@_njit
def _is_near(keys, first, width, sign, limit):  # type: ignore[no-untyped-def]
    """Whether any key of a vertex is within the limit; NaN counts as near."""
    far = 0
    for f in range(width):
        far += sign * float64(keys[first + f]) > limit
    return far < width


@_njit
def _compact(far, far_count, waits):  # type: ignore[no-untyped-def]
    """Drop entries of `far` that no longer wait, and repeated ones; return the length.

    An entry waits if its flag in `waits` is set.
    """
    kept = 0
    for place in range(far_count):
        v = int64(far[place])
        if waits[v] != 0:
            waits[v] = 0
            far[kept] = v
            kept += 1
    for place in range(kept):
        waits[int64(far[place])] = 1
    return kept


@_njit
def split(  # type: ignore[no-untyped-def]
    keys, sign, delta, limit, announced, count, near, far, far_count, waits
):
    """Split announced vertices: `near` ones run next, and `far` ones wait.

    If no vertex is near, the limit moves to `delta` beyond the first waiting key. `far`
    has room for each vertex twice, and may have outdated entries; `waits` has a flag
    for each waiting vertex. Return the lengths of `near` and `far`, and the limit.
    """
    width = keys.size // max(keys.shape[0], 1)
    flat = keys.reshape(keys.size)
    # A vertex that becomes near leaves its entry in `far`, and may be added again.
    if far_count + count > far.size:
        far_count = _compact(far, far_count, waits)
    near_count = 0
    for place in range(count):
        v = int64(announced[place])
        if _is_near(flat, v * width, width, sign, limit):
            near[near_count] = v
            near_count += 1
            waits[v] = 0
        elif waits[v] == 0:
            waits[v] = 1
            far[far_count] = v
            far_count += 1
    if near_count == 0 and far_count > 0:
        far_count = _compact(far, far_count, waits)
    if near_count > 0 or far_count == 0:
        return near_count, far_count, limit
    first = np.inf
    for place in range(far_count):
        for f in range(width):
            key = sign * float64(flat[int64(far[place]) * width + f])
            if key < first:
                first = key
    limit = first + delta
    kept = 0
    for place in range(far_count):
        v = int64(far[place])
        if _is_near(flat, v * width, width, sign, limit):
            near[near_count] = v
            near_count += 1
            waits[v] = 0
        else:
            far[kept] = v
            kept += 1
    return near_count, kept, limit
