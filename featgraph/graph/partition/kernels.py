"""Loops over the edges of a graph or a rank, for partitions, shards and loading.

While a distributed graph is loaded, the set of a rank's vertices (own and ghosts) is a
bitvector, with the number of set bits before each of its words: two bits per vertex.
The local number of a vertex is the number of bits set before its own, counted owner by
owner. Each word has one owner, since ranges of ranks begin at multiples of 32, so that
no loop branches on the owner of an edge's other end.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

import heapq
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit

_Array: TypeAlias = NDArray[Any]


@jit
def gather_rows(
    offsets: _Array,
    columns: _Array,
    vertices: _Array,
    places: _Array,
    sources: _Array,
    edge_ids: _Array,
) -> None:
    """Copy the rows of some vertices, concatenated, with sources as places."""
    slot = 0
    for v in vertices:
        for e in range(offsets[v], offsets[v + 1]):
            sources[slot] = places[columns[e]]
            edge_ids[slot] = e
            slot += 1


@jit
def collect_ghosts(
    sources: _Array, first: int, last: int, ghost_numbers: _Array, found: _Array
) -> int:
    """Store each source outside of ``first..last`` once; return their number.

    Their entries in `ghost_numbers` become -1; all others must be nonnegative.
    """
    count = 0
    for u in sources:
        if (u < first or u >= last) and ghost_numbers[u] >= 0:
            ghost_numbers[u] = -1
            found[count] = u
            count += 1
    return count


@jit
def renumber(
    sources: _Array, first: int, last: int, ghost_numbers: _Array, local: _Array
) -> None:
    """Convert sources to local numbers; own vertex `first` becomes 0."""
    for i in range(sources.size):
        u = sources[i]
        local[i] = u - first if first <= u < last else ghost_numbers[u]


@jit
def sweep(
    offsets: _Array, columns: _Array, seeds: _Array, seen: _Array, order: _Array
) -> None:
    """Run two breadth-first searches from each unvisited seed.

    The second search, whose order is stored, starts at the last vertex of the first: it
    is far from most others, so that there are many small levels.
    """
    begin = 0
    for seed in seeds:
        if seen[seed]:
            continue
        end, start = begin, seed
        for turn in range(1, 3):
            order[begin] = start
            seen[start] = turn
            end, at = begin + 1, begin
            while at < end:
                v = order[at]
                at += 1
                for e in range(offsets[v], offsets[v + 1]):
                    u = columns[e]
                    if seen[u] < turn:
                        seen[u] = turn
                        order[end] = u
                        end += 1
            start = order[end - 1]
        begin = end


@jit
def fill_parts(
    offsets: _Array,
    columns: _Array,
    vertices: _Array,
    places: _Array,
    work: _Array,
    bound: float,
    mark: _Array,
    stamp: int,
    cuts: _Array,
) -> bool:
    """Assign each part as many words of vertices as fit into `bound`.

    Return whether the parts take all vertices.

    `work` has the weights of an edge, a vertex and a ghost, and the size of a word.
    `mark` has, by place, the stamp of the part that last had a vertex as a ghost;
    `stamp` is larger than all stamps of earlier calls.
    """
    part, first, begin = 0, 0, 0
    word, done, ghosts = int(work[3]), 0.0, 0
    while begin < vertices.size:
        end = min(begin + word, vertices.size)
        edges, more = 0, 0
        for place in range(begin, end):
            v = vertices[place]
            edges += offsets[v + 1] - offsets[v]
            if mark[place] == stamp + part:  # a ghost that becomes an own vertex
                more -= 1
        for place in range(begin, end):
            v = vertices[place]
            for e in range(offsets[v], offsets[v + 1]):
                u = places[columns[e]]
                if (u < first or u >= end) and mark[u] != stamp + part:
                    mark[u] = stamp + part
                    more += 1
        added = edges * work[0] + (end - begin) * work[1]
        if done + added + (ghosts + more) * work[2] <= bound:
            done += added
            ghosts += more
            begin = end
            continue
        if begin == first or part + 1 == cuts.size - 1:
            return False
        part += 1
        cuts[part] = begin
        first, done, ghosts = begin, 0.0, 0
    cuts[part + 1 :] = vertices.size
    return True


@jit
def count_row(
    offsets: _Array,
    columns: _Array,
    vertices: _Array,
    owner: _Array,
    column: _Array,
    seen: _Array,
    first: int,
    has: _Array,
    elsewhere: _Array,
) -> None:
    """Count the sizes of the ranks of one row of a grid; see `Counts`.

    `first` is the first rank of the row, `vertices` are the vertices that the row owns,
    and `column` is the column of each vertex's owner. `seen` has the last row with an
    edge from a vertex.
    """
    width = has.shape[1]
    last_target = np.full(width, -1, np.int64)
    for i in range(vertices.size):
        v = vertices[i]
        for e in range(offsets[v], offsets[v + 1]):
            u = columns[e]
            j = column[u]
            has[0, j] += 1
            if seen[u] != first:
                seen[u] = first
                if owner[u] < first or owner[u] >= first + width:
                    has[1, j] += 1
                    elsewhere[0, owner[u]] += 1
            if last_target[j] != i:  # edges into v follow each other
                last_target[j] = i
                if j != column[v]:
                    has[2, j] += 1
                    elsewhere[1, owner[v]] += 1


@jit
def deal(work: _Array, parts: int, last: int, part: _Array) -> None:
    """Assign each vertex in turn to the part with least work so far.

    The `last` vertices are first divided equally among all parts.
    """
    given = np.zeros(parts)
    for i in range(work.size - last, work.size):
        part[i] = i % parts
        given[part[i]] += work[i]
    waiting = [(given[p], p) for p in range(parts)]
    heapq.heapify(waiting)
    for i in range(work.size - last):
        done, p = waiting[0]
        part[i] = p
        heapq.heapreplace(waiting, (done + work[i], p))


# -- edges before and after they are sent to their owners


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
    """List the places of edges by both owners; `bounds` as for `list_by_owner`."""
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
        # Without a branch: the next edge overwrites one that is not in the range.
        found[count] = i
        count += at
    return count


@jit
def mark(ends: _Array, words: _Array) -> None:
    """Set the bits of vertices in a bitvector."""
    for u in ends:
        words[u >> 5] |= np.uint32(1) << np.uint32(u & 31)


@jit
def _ones(word: Any) -> int:
    """Count the bits of a word."""
    # Sums of two bits, of four and of eight; the product adds up the four bytes.
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
    # The local number is the number of set bits before that of the vertex.
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
