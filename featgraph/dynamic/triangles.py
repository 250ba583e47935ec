"""Triangles that come and go with the edges of an undirected graph.

A triangle has come if one of its edges has, and is counted in the present rows. It has
gone if one of its edges has, and is counted in the old rows: the present ones, less
the edges that came, plus those that went. Of the changed edges of a triangle, the one
with the least key counts it. Of the two rows of an edge, the longer one is marked, once
for all edges at its vertex, and the shorter one is walked.

Sets of edges are sorted arrays of keys ``u << 32 | v``, with both directions of each.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit

__all__ = ["add_triangles"]

Array = NDArray[Any]
Pairs = tuple[Array, Array]
Rows = tuple[Array, Array, Array]
_NONE = np.empty(0, np.int64)


def add_triangles(
    rows: Rows, inserted: Pairs, deleted: Pairs, counts: Array
) -> tuple[int, int] | None:
    """Add the triangles that have come to counts, and take off those that have gone.

    Parameters
    ----------
    rows : tuple of ndarray
        Starts, stops and ends of the present rows.
    inserted, deleted : pair of ndarray
        Sources and targets of the edges that came and went since the counts, each once.
    counts : ndarray of int64, shape (V,)
        How many triangles each vertex was a corner of. Without a meaning where None is
        returned.

    Returns
    -------
    total, walked : int
        How many more triangles there are, and how many entries of rows were read; None
        if an edge that came has copies.
    """
    came, went = _keys(*inserted), _keys(*deleted)
    marks = np.zeros(counts.size, np.int32)
    gained = _count(*rows, *_turned(rows, came), came, _NONE, _NONE, 1, counts, marks)
    if gained[0] < 0:
        return None
    marks = np.zeros(counts.size, np.int32)
    lost = _count(*rows, *_turned(rows, went), went, came, went, -1, counts, marks)
    return int(gained[0] - lost[0]), int(gained[1] + lost[1])


def _keys(sources: Array, targets: Array) -> Array:
    """Return the set of some edges, without loops."""
    u, v = (ends[sources != targets].astype(np.int64) for ends in (sources, targets))
    return np.sort(np.concatenate([u << 32 | v, v << 32 | u]))


def _turned(rows: Rows, keys: Array) -> Pairs:
    """Return the ends of the edges with longer rows, which ascend, and the others."""
    u, v = keys >> 32, keys & 0xFFFFFFFF
    of_u, of_v = (rows[1][ends] - rows[0][ends] for ends in (u, v))
    longer = (of_u > of_v) | ((of_u == of_v) & (u > v))
    return u[longer], v[longer]


@jit
def _row(keys: Array, vertex: Any) -> tuple[Any, Any]:
    """Return the range of the edges of a vertex in a set."""
    first = np.searchsorted(keys, vertex << 32)
    return first, first + np.searchsorted(keys[first:], vertex + 1 << 32)


@jit
def _is_in(keys: Array, u: Any, v: Any) -> Any:
    """Whether a set has an edge."""
    key = u << 32 | v
    place = np.searchsorted(keys, key)
    return place < keys.size and keys[place] == key


@jit
def _add(own: Array, a: Any, b: Any, w: Any, sign: int, counts: Array) -> int:
    """Count a triangle, unless another changed edge than that of a and b does so."""
    key = min(a, b) << 32 | max(a, b)
    for end in (a, b):
        low, high = min(end, w), max(end, w)
        if low << 32 | high < key and _is_in(own, low, high):
            return 0
    counts[a] += sign
    counts[b] += sign
    counts[w] += sign
    return 1


@jit
def _count(
    starts: Array, stops: Array, ends: Array, longer: Array, shorter: Array,
    own: Array, without: Array, beside: Array, sign: int, counts: Array, marks: Array,
) -> tuple[int, int]:  # fmt: skip
    """Count the triangles with an edge of a set; return them, and entries read.

    Rows are without the edges of one set, and have those of another one beside. The
    first number is negative if an edge of the set is not in the rows exactly once.
    """
    total, walked, marked = 0, 0, -1
    for i in range(longer.size):
        a, b = longer[i], shorter[i]
        if a != marked:
            marked, mark = a, i + 1
            for slot in range(starts[a], stops[a]):
                marks[ends[slot]] = mark
            walked += stops[a] - starts[a]
            first, end = _row(without, a)
            for place in range(first, end):
                marks[without[place] & 0xFFFFFFFF] = 0
            first, end = _row(beside, a)
            for place in range(first, end):
                marks[beside[place] & 0xFFFFFFFF] = mark
        copies = 0
        for slot in range(starts[b], stops[b]):
            w = np.int64(ends[slot])
            copies += w == a
            is_corner = marks[w] == mark and w != a and w != b
            if is_corner and not _is_in(without, b, w):
                total += _add(own, a, b, w, sign, counts)
        walked += stops[b] - starts[b]
        if sign > 0 and copies != 1:
            return -1, walked
        first, end = _row(beside, b)
        for place in range(first, end):
            w = beside[place] & 0xFFFFFFFF
            if marks[w] == mark and w != a:
                total += _add(own, a, b, w, sign, counts)
    return total, walked
