"""Updates of triangle counts from the changed edges of an undirected graph.

A triangle is new if one of its edges was inserted: it is found in the present rows. A
triangle is lost if one of its edges was deleted: it is found in the old rows, which are
the present ones without the inserted edges and with the deleted ones. A triangle with
several changed edges is counted at the one with the least key.

For an edge, the neighbors of the end with the longer row are marked, once for all edges
of that vertex, and the other row is searched for marked vertices.

Sets of edges are sorted arrays of keys ``u << 32 | v``, with both directions of each.
Example: inserting (0, 2) into the path 0 - 1 - 2 marks the neighbors of 0, and finds 1
in the row of 2: one new triangle, whose three corners each gain one.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit

__all__ = ["Counter", "add_triangles"]

Array = NDArray[Any]
Pairs = tuple[Array, Array]
Rows = tuple[Array, Array, Array]
_NONE = np.empty(0, np.int64)


def add_triangles(
    count: Counter, inserted: Pairs, deleted: Pairs, dead: Array
) -> tuple[int, int] | str:
    """Add new triangles to the counts of their corners, and subtract lost ones.

    Parameters
    ----------
    count : Counter
        With the present rows, and the counts before. These stay if a reason is
        returned.
    inserted, deleted : pair of ndarray
        Sources and targets of the edges inserted and deleted since the counts were
        right, each edge once.
    dead : ndarray
        Vertices that were deleted since then, where counts are 0 already.

    Returns
    -------
    total, walked : int
        The increase of the number of triangles, and the number of edges read. The
        reason to count anew if an inserted edge has copies, or if that takes less time.
    """
    came, went, none = map(count.placed, (_keys(*inserted), _keys(*deleted), _NONE))
    if count.takes_long(came, went):
        return "changed edges are in too many paths of two edges"
    count.add(went, came, went, -1)
    count.clear(dead)
    count.add(came, none, none, 1)
    total, matches = count.found()
    if 2 * matches != came.size:
        count.add(came, none, none, -1)
        count.add(went, came, went, 1)
        count.clear(dead)
        return "an edge has copies"
    return total, count.walked


class Counter:
    """The triangles of sets of edges in rows of the host.

    Parameters
    ----------
    pool : RowPool
        Rows along "in" of an undirected graph.
    counts : ndarray of int64, shape (V,)
        The number of triangles at each vertex.

    Attributes
    ----------
    walked : int
        The number of edges read.
    """

    def __init__(self, pool: Any, counts: Any) -> None:
        self._rows, self._counts = (pool.starts, pool.stops, pool.ends), counts
        self._total = self._matches = self.walked = 0

    def placed(self, keys: Array) -> Any:
        """Return sorted keys where the rows are."""
        return keys

    def takes_long(self, came: Any, went: Any) -> bool:
        """Return whether counting anew takes less time."""
        return False

    def clear(self, vertices: Array) -> None:
        """Set the counts of some vertices to 0."""
        self._counts[vertices] = 0

    def add(self, own: Any, without: Any, beside: Any, sign: int) -> None:
        """Add `sign` to the counts of all triangles with an edge in the set `own`.

        The rows are taken without the edges in `without`, and with those in `beside`.
        """
        ends, marks = _turned(self._rows, own), np.zeros(self._counts.size, np.int32)
        triangles, walked, matches = _count(
            *self._rows, *ends, own, without, beside, sign, self._counts, marks
        )
        self._total, self.walked = self._total + triangles, self.walked + walked
        self._matches += matches if sign > 0 else 0

    def found(self) -> tuple[int, int]:
        """Return the sum of what was added, and how often added edges are in rows."""
        return self._total, self._matches


def _keys(sources: Array, targets: Array) -> Array:
    """Return the sorted keys of edges in both directions, without loops."""
    u, v = (ends[sources != targets].astype(np.int64) for ends in (sources, targets))
    return np.sort(np.concatenate([u << 32 | v, v << 32 | u]))


def _turned(rows: Rows, keys: Array) -> Pairs:
    """Return the end of each edge with the longer row, ascending, and the other end."""
    u, v = keys >> 32, keys & 0xFFFFFFFF
    of_u, of_v = (rows[1][ends] - rows[0][ends] for ends in (u, v))
    longer = (of_u > of_v) | ((of_u == of_v) & (u > v))
    return u[longer], v[longer]


@jit
def _row(keys: Array, vertex: Any) -> tuple[Any, Any]:
    """Return begin and end of the keys of edges from a vertex."""
    first = np.searchsorted(keys, vertex << 32)
    return first, first + np.searchsorted(keys[first:], vertex + 1 << 32)


@jit
def _is_in(keys: Array, u: Any, v: Any) -> Any:
    """Return whether a set has an edge."""
    key = u << 32 | v
    place = np.searchsorted(keys, key)
    return place < keys.size and keys[place] == key


@jit
def _add(own: Array, a: Any, b: Any, w: Any, sign: int, counts: Array) -> int:
    """Add `sign` to corners, unless an edge with a lesser key in `own` does."""
    key = min(a, b) << 32 | max(a, b)
    for end in (a, b):
        low, high = min(end, w), max(end, w)
        if low << 32 | high < key and _is_in(own, low, high):
            return 0
    counts[a] += sign
    counts[b] += sign
    counts[w] += sign
    return sign


@jit
def _count(
    starts: Array, stops: Array, ends: Array, longer: Array, shorter: Array,
    own: Array, without: Array, beside: Array, sign: int, counts: Array, marks: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Add `sign` to the counts of all triangles with an edge in the set `own`.

    Returns the sum of the signs, and the numbers of edges read and of edges of `own` in
    their rows.
    """
    total, walked, matches, marked = 0, 0, 0, -1
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
        for slot in range(starts[b], stops[b]):
            w = np.int64(ends[slot])
            matches += w == a
            is_corner = marks[w] == mark and w != a and w != b
            if is_corner and not _is_in(without, b, w):
                total += _add(own, a, b, w, sign, counts)
        walked += stops[b] - starts[b]
        first, end = _row(beside, b)
        for place in range(first, end):
            w = beside[place] & 0xFFFFFFFF
            if marks[w] == mark and w != a:
                total += _add(own, a, b, w, sign, counts)
    return total, walked, matches
