"""Loops that find edges with the same ends, and combine their weights as given.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.cuda.values import in_pieces, offset_dtype
from featgraph.graph.building import kernels
from featgraph.graph.building.jit import jit

__all__ = ["add_repeats", "choose_of_repeats", "in_order_of_ends"]

_Array: TypeAlias = NDArray[Any]
#: Rows of at most so many edges are sorted by insertion.
_SHORT = 32


def in_order_of_ends(
    low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return edges sorted stably by `low`, then `high`, and where each pair begins."""
    count, dtype = low.size, offset_dtype(low.size)
    offsets = np.zeros(int(low.max()) + 2, dtype)
    kernels.count_one(low, offsets)
    kernels.to_ends(offsets)
    order, ends = np.empty(count, dtype), np.empty(count, np.int32)
    _fill_rows(low, high, offsets, order, ends)
    begins = np.empty(count, np.bool_)

    def sort(first: int, last: int) -> None:
        _sort_rows(first, last, offsets, ends, order, begins)

    in_pieces(offsets.size - 1, ends.nbytes, sort)
    return order, np.flatnonzero(begins)


@jit
def _fill_rows(
    rows: _Array, others: _Array, offsets: _Array, order: _Array, ends: _Array
) -> None:
    """Store number and other end of each edge; `offsets` turns from ends to starts."""
    for i in range(rows.size - 1, -1, -1):
        slot = offsets[rows[i]] - 1
        offsets[rows[i]] = slot
        order[slot], ends[slot] = i, others[i]


@jit
def _sort_rows(
    first: int, last: int, offsets: _Array, ends: _Array, order: _Array, begins: _Array
) -> None:
    """Sort some rows stably by their ends, and mark the first edge of each pair."""
    for row in range(first, last):
        start, stop = offsets[row], offsets[row + 1]
        if stop - start > _SHORT:
            places = np.argsort(ends[start:stop], kind="mergesort")
            ends[start:stop] = ends[start:stop][places]
            order[start:stop] = order[start:stop][places]
        else:
            for slot in range(start + 1, stop):
                end, edge, at = ends[slot], order[slot], slot
                while at > start and ends[at - 1] > end:
                    ends[at], order[at] = ends[at - 1], order[at - 1]
                    at -= 1
                ends[at], order[at] = end, edge
        for slot in range(start, stop):
            begins[slot] = slot == start or ends[slot] != ends[slot - 1]


@jit
def add_repeats(
    weights: _Array, order: _Array, starts: _Array, sums: _Array, rough: _Array
) -> None:
    """Add up each group in the type of `sums`, and roughly as floats."""
    for group in range(starts.size):
        end = starts[group + 1] if group + 1 < starts.size else order.size
        sums[group] = rough[group] = 0
        for place in range(starts[group], end):
            sums[group] += weights[order[place]]
            rough[group] += weights[order[place]]


@jit
def choose_of_repeats(
    weights: _Array, order: _Array, starts: _Array, least: bool, chosen: _Array
) -> None:
    """Keep the least, or the most, of each group: the first of equals."""
    for group in range(starts.size):
        end = starts[group + 1] if group + 1 < starts.size else order.size
        found = weights[order[starts[group]]]
        for place in range(starts[group] + 1, end):
            weight = weights[order[place]]
            if (weight < found) if least else (weight > found):
                found = weight
        chosen[group] = found
