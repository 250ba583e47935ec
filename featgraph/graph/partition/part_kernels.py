"""Loops over a rank's edges, before and after they are sent to their owners.

The vertices of a rank are a bitvector, with the number of set bits before each of its
words: two bits per vertex. The local number of a vertex is the number of bits set
before its own. Each word has one owner, since ranges of ranks begin at multiples of 32,
so that no loop branches on the owner of an edge's other end.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.interrupts import jit

_Array: TypeAlias = NDArray[Any]


@jit
def add_into(
    sources: _Array, targets: _Array, is_directed: bool, shift: int, counts: _Array
) -> None:
    """Count edges by target, shifted right; twins of undirected edges count, too."""
    for i in range(targets.size):
        counts[targets[i] >> shift] += 1
        if not is_directed and sources[i] != targets[i]:
            counts[sources[i] >> shift] += 1


@jit
def count_own(ends: _Array, counts: _Array) -> None:
    """Count the edge ends at each own vertex, by local number."""
    for v in ends:
        if v < counts.size:
            counts[v] += 1


@jit
def count_owners(ends: _Array, owners: _Array, counts: _Array) -> None:
    """Count ends by the owners of their words."""
    for u in ends:
        counts[owners[u >> 5]] += 1


@jit
def list_by_owner(
    ends: _Array, owners: _Array, first: int, bounds: _Array, found: _Array
) -> None:
    """List the places of ends, from `first` on, grouped by owner.

    `bounds` has the begin of each owner's group in `found`, and afterwards its end.
    """
    for i in range(ends.size):
        owner = owners[ends[i] >> 5]
        found[bounds[owner]] = first + i
        bounds[owner] += 1


@jit
def count_both_owners(
    sources: _Array, targets: _Array, owners: _Array, counts: _Array
) -> None:
    """Count edges by owner of the target, and by owner of the source if it differs."""
    for i in range(sources.size):
        one, other = owners[targets[i] >> 5], owners[sources[i] >> 5]
        counts[one] += 1
        if one != other:
            counts[other] += 1


@jit
def list_by_both_owners(
    sources: _Array, targets: _Array, owners: _Array, bounds: _Array, found: _Array
) -> None:
    """List the places of edges by these owners; `bounds` as for `list_by_owner`."""
    for i in range(sources.size):
        one, other = owners[targets[i] >> 5], owners[sources[i] >> 5]
        found[bounds[one]] = i
        bounds[one] += 1
        if one != other:
            found[bounds[other]] = i
            bounds[other] += 1


@jit
def list_at(
    sources: _Array,
    targets: _Array,
    first: int,
    last: int,
    is_both: bool,
    found: _Array,
) -> int:
    """List the places of edges with the target, or any end, in a range; count them."""
    count = 0
    for i in range(targets.size):
        at = first <= targets[i] < last
        at |= is_both and first <= sources[i] < last
        found[count] = i
        count += at
    return count


@jit
def mark(ends: _Array, words: _Array) -> None:
    """Set the bit of each vertex."""
    for u in ends:
        words[u >> 5] |= np.uint32(1) << np.uint32(u & 31)


@jit
def _ones(word: Any) -> int:
    """Count the bits of a word."""
    x = np.uint32(word)
    x = x - ((x >> np.uint32(1)) & np.uint32(0x55555555))
    x = (x & np.uint32(0x33333333)) + ((x >> np.uint32(2)) & np.uint32(0x33333333))
    x = (x + (x >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
    return int(np.uint32(x * np.uint32(0x01010101)) >> np.uint32(24))


@jit
def count_words(words: _Array, before: _Array) -> int:
    """Store the number of set bits before each word; return the total."""
    total = 0
    for i in range(words.size):
        before[i] = total
        total += _ones(words[i])
    return total


@jit
def list_members(words: _Array, found: _Array) -> None:
    """List the vertices whose bits are set, ascending."""
    count = 0
    for i in range(words.size):
        if words[i] != 0:
            for bit in range(32):
                if (words[i] >> np.uint32(bit)) & np.uint32(1):
                    found[count] = i * 32 + bit
                    count += 1


@jit
def localize(ends: _Array, words: _Array, before: _Array) -> None:
    """Replace each vertex by its local number.

    `before` has the number of the first bit of each word; words may be in any order.
    """
    for i in range(ends.size):
        u = ends[i]
        below = (np.uint32(1) << np.uint32(u & 31)) - np.uint32(1)
        ends[i] = before[u >> 5] + _ones(words[u >> 5] & below)


@jit
def survey_degrees(degrees: _Array, bound: int, most: _Array, short: _Array) -> None:
    """Find the highest degree, overall and below a bound; count low degrees."""
    highest, below = most[0], most[1]
    for i in range(degrees.size):
        degree = degrees[i]
        highest = max(highest, degree)
        if degree < bound:
            below = max(below, degree)
        if degree < short.size:
            short[degree] += 1
    most[0], most[1] = highest, below
