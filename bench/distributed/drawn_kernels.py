"""Loops over edges that are drawn, and over marks of where they lead.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.interrupts import jit

__all__ = ["count_marks", "count_words", "mark_cells"]

_Array: TypeAlias = NDArray[Any]


@jit
def count_words(u: _Array, v: _Array, directed: bool, into: _Array) -> None:
    """Count in-edges by the word of their target."""
    for e in range(u.size):
        into[v[e] >> 5] += 1
        if not directed and u[e] != v[e]:
            into[u[e] >> 5] += 1


@jit
def mark_cells(
    u: _Array, v: _Array, directed: bool, first: int, cells: _Array, marks: _Array
) -> None:
    """Mark, of sources from `first` on, the cells that their edges lead to."""
    for e in range(u.size):
        place = u[e] - first
        if 0 <= place < marks.shape[0]:
            cell = cells[v[e] >> 5]
            marks[place, cell >> 6] |= np.uint64(1) << np.uint64(cell & 63)
        if not directed:
            place = v[e] - first
            if 0 <= place < marks.shape[0]:
                cell = cells[u[e] >> 5]
                marks[place, cell >> 6] |= np.uint64(1) << np.uint64(cell & 63)


@jit
def count_marks(
    marks: _Array,
    first: int,
    cells: _Array,
    owners: _Array,
    ghosts: _Array,
    elsewhere: _Array,
) -> None:
    """Count of each number of ranks the ghosts of each, and own ones elsewhere.

    `owners` has for each number of ranks who owns each cell: cells ascend, and so do
    ranks.
    """
    last = np.empty(owners.shape[0], np.int32)
    for place in range(marks.shape[0]):
        own = cells[(first + place) >> 5]
        last[:] = -1
        for word in range(marks.shape[1]):
            rest = marks[place, word]
            while rest:
                low = rest & (~rest + np.uint64(1))
                rest ^= low
                bit, at = 0, low
                for step in (32, 16, 8, 4, 2, 1):
                    if at >> np.uint64(step):
                        at >>= np.uint64(step)
                        bit += step
                cell = word * 64 + bit
                for number in range(owners.shape[0]):
                    rank = owners[number, cell]
                    if rank != last[number]:
                        last[number] = rank
                        if rank != owners[number, own]:
                            ghosts[number, rank] += 1
                            elsewhere[number, owners[number, own]] += 1
