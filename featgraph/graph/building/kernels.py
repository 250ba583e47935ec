"""Loops over edges on the host: rows, orientation, repeated edges, and orders.

Rows come from a counting sort, O(V + E), in place except for the result. `offsets`
first holds the *end* of each row. The loop traverses the edges backward and decrements
a row's entry before each store. This fills the row from its last slot to its first, so
that slots keep the given order (a stable sort), and leaves the begins of rows in
`offsets`. No cursors are needed. Repeating the loop with a copy of the ends finds the
slot of every given edge again, so that no edge-to-slot map is needed either.

An undirected edge that is not a self-loop has a slot in the rows of both its vertices.

Orientation traverses the vertices in degree order, which fills every row in ascending
order without a sort. Repeated edges are found in rows, by a hash table for each row.
Integers are ordered by a radix sort, or in one pass if they are a permutation.
Components are found by one thread.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit
from featgraph.cuda.values import in_pieces, offset_dtype

_Array: TypeAlias = NDArray[Any]


@jit
def count_one(rows: _Array, counts: _Array) -> None:
    """Add one to the count of each edge's row."""
    for i in range(rows.size):
        counts[rows[i]] += 1


@jit
def count_both(sources: _Array, targets: _Array, counts: _Array) -> None:
    """Count each edge at both ends, a self-loop once."""
    for i in range(sources.size):
        counts[targets[i]] += 1
        if sources[i] != targets[i]:
            counts[sources[i]] += 1


@jit
def to_ends(offsets: _Array) -> None:
    """Replace V counts and a zero by the ends of rows; the last entry becomes E."""
    total = 0
    for v in range(offsets.size):
        total += offsets[v]
        offsets[v] = total


@jit
def _take_last(ends: _Array, row: Any) -> Any:
    """Return the last free slot of a row, and move the end of the row to it."""
    slot = ends[row] - 1
    ends[row] = slot
    return slot


@jit
def fill_columns(
    rows: _Array, others: _Array, offsets: _Array, columns: _Array
) -> None:
    """Store the other end of each edge; ends of rows in `offsets` become starts."""
    for i in range(rows.size - 1, -1, -1):
        columns[_take_last(offsets, rows[i])] = others[i]


@jit
def fill_columns_both(
    sources: _Array, targets: _Array, offsets: _Array, columns: _Array
) -> None:
    """`fill_columns` for undirected edges: each is also stored at its source."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        columns[_take_last(offsets, v)] = u
        if u != v:
            columns[_take_last(offsets, u)] = v


@jit
def fill_given(rows: _Array, ends: _Array, given: _Array) -> None:
    """Store the row in given order of each slot; `ends` become starts of rows."""
    for i in range(rows.size - 1, -1, -1):
        given[_take_last(ends, rows[i])] = i


@jit
def fill_given_both(
    sources: _Array, targets: _Array, ends: _Array, given: _Array
) -> None:
    """`fill_given` for undirected edges: the twin of edge i has row E_given + i."""
    count = sources.size
    for i in range(count - 1, -1, -1):
        u, v = sources[i], targets[i]
        given[_take_last(ends, v)] = i
        if u != v:
            given[_take_last(ends, u)] = count + i


@jit
def fill_twins(sources: _Array, targets: _Array, ends: _Array, twins: _Array) -> None:
    """Pair the two slots of each undirected edge; a self-loop with itself."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        slot = twin = _take_last(ends, v)
        if u != v:
            twin = _take_last(ends, u)
        twins[slot] = twin
        twins[twin] = slot


@jit
def fill_out_ids(
    sources: _Array, targets: _Array, in_ends: _Array, ends: _Array, ids: _Array
) -> None:
    """Store the CSC slot of each edge where `fill_columns` puts it in the CSR."""
    for i in range(sources.size - 1, -1, -1):
        in_slot = _take_last(in_ends, targets[i])
        ids[_take_last(ends, sources[i])] = in_slot


@jit
def fill_incident_ids(
    sources: _Array, targets: _Array, in_ends: _Array, ends: _Array, ids: _Array
) -> None:
    """Store the CSC slot of each edge where `fill_columns_both` puts the edge."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        in_slot = _take_last(in_ends, v)
        ids[_take_last(ends, v)] = in_slot
        if u != v:
            ids[_take_last(ends, u)] = in_slot


@jit
def put_rows(values: _Array, given: _Array, first: int, last: int, out: _Array) -> None:
    """Copy values of edges `first` to `last` to given order; drop rows beyond `out`."""
    for edge in range(first, last):
        row = given[edge]
        if row < out.shape[0]:
            for feature in range(out.shape[1]):
                out[row, feature] = values[edge, feature]


# -- orientation by degree


@jit
def count_upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array, counts: _Array
) -> None:
    """Count the upper neighbors of each vertex, by degree order."""
    for v in range(in_offsets.size - 1):
        for e in range(in_offsets[v], in_offsets[v + 1]):
            low = degree_order[sources[e]]
            if low < degree_order[v]:
                counts[low] += 1


@jit
def fill_upper(
    in_offsets: _Array,
    sources: _Array,
    vertices: _Array,
    degree_order: _Array,
    offsets: _Array,
    cursors: _Array,
    columns: _Array,
    edge_ids: _Array,
) -> int:
    """Fill the rows of upper neighbors; return a repeated edge, or -1."""
    for high in range(vertices.size):
        v = vertices[high]
        for e in range(in_offsets[v], in_offsets[v + 1]):
            low = degree_order[sources[e]]
            if low < high:
                slot = cursors[low]
                if slot > offsets[low] and columns[slot - 1] == high:
                    return int(e)
                columns[slot] = high
                edge_ids[slot] = e
                cursors[low] = slot + 1
    return -1


@jit
def fill_both(
    upper_offsets: _Array,
    upper_columns: _Array,
    upper_edges: _Array,
    cursors: _Array,
    columns: _Array,
    edge_ids: _Array,
) -> None:
    """Fill the rows of all neighbors: lower ones, then upper ones."""
    for low in range(upper_offsets.size - 1):
        for slot in range(upper_offsets[low], upper_offsets[low + 1]):
            high = upper_columns[slot]
            place = cursors[high]
            columns[place] = low
            edge_ids[place] = upper_edges[slot]
            cursors[high] = place + 1
    for low in range(upper_offsets.size - 1):
        place = cursors[low]
        for slot in range(upper_offsets[low], upper_offsets[low + 1]):
            columns[place] = upper_columns[slot]
            edge_ids[place] = upper_edges[slot]
            place += 1


@jit
def fill_lower(
    upper_offsets: _Array,
    upper_columns: _Array,
    cursors: _Array,
    columns: _Array,
    slots: _Array,
) -> None:
    """Fill the rows of lower neighbors, with the slots of their edges in `upper`."""
    for low in range(upper_offsets.size - 1):
        for slot in range(upper_offsets[low], upper_offsets[low + 1]):
            high = upper_columns[slot]
            place = cursors[high]
            columns[place] = low
            slots[place] = slot
            cursors[high] = place + 1


@jit
def measure_work(offsets: _Array, columns: _Array, work: _Array) -> None:
    """Set the work of each row: 1 + its length + parts of rows intersected with it."""
    for row in range(work.size):
        work[row] = 1 + offsets[row + 1] - offsets[row]
    for low in range(work.size):
        for slot in range(offsets[low], offsets[low + 1]):
            work[columns[slot]] += offsets[low + 1] - slot


# -- repeated edges

#: 2**32 divided by the golden ratio: multiples of it are spread evenly over a table.
_GOLDEN = 2654435769


def repeated_edges(
    low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return edges with equal ends: `groups` of `find_repeats`."""
    lengths = np.zeros(int(low.max()) + 1, offset_dtype(low.size))
    count_one(low, lengths)

    def fill(stops: _Array, ends: _Array, given: _Array) -> None:
        fill_columns(low, high, stops.copy(), ends)
        fill_given(low, stops.copy(), given)

    return find_repeats(lengths, fill, low.size)[1]


def find_repeats(
    lengths: _Array, fill: Callable[..., None], count: int
) -> tuple[Any, tuple[NDArray[Any], NDArray[np.int64]]]:
    """Find edges that have the same end as others in their row.

    Parameters
    ----------
    lengths
        The length of each row, of which repeats are subtracted.
    fill : callable
        ``fill(stops, ends, given)`` stores the end of each slot, and the number of its
        edge, or `count` more for a twin, in given order within a row.
    count : int
        The number of edges.

    Returns
    -------
    rows : tuple of arrays
        Starts, stops, ends, the entries of `given`, and the first slot in the row with
        the same end as each slot.
    groups : pair of arrays
        The edges that are given more than once, by group, in given order within one;
        and where each group begins. Groups of edges with twins are listed for each row.
    """
    stops = np.cumsum(lengths, dtype=lengths.dtype)
    starts, size = stops - lengths, int(stops[-1])
    ends, given = np.empty(size, np.int32), np.empty(size, stops.dtype)
    fill(stops, ends, given)
    firsts = np.empty_like(given)

    def find(first: int, last: int) -> None:
        _find_firsts(first, last, starts, stops, ends, firsts, lengths)

    in_pieces(starts.size, ends.nbytes, find)
    rows, repeats = (starts, stops, ends, given, firsts), size - int(lengths.sum())
    order, begins = np.empty(2 * repeats, given.dtype), np.empty(repeats, np.int64)
    edges, groups = _list_groups(*rows, lengths, count, order, begins)
    return rows, (order[:edges], begins[:groups])


@jit
def _find_firsts(
    first: int, last: int, starts: _Array, stops: _Array, ends: _Array, firsts: _Array,
    lengths: _Array,
) -> None:  # fmt: skip
    """Store `firsts` and `lengths` of some rows.

    A hash table has the place of the first edge with each end, or -1.
    """
    table = np.empty(0, starts.dtype)
    for row in range(first, last):
        start, size = np.int64(starts[row]), 2
        count = np.int64(stops[row]) - start
        while size < 2 * count:
            size *= 2
        if size > table.size:
            table = np.empty(size, starts.dtype)
        table[:size] = -1
        lengths[row] = count
        for place in range(count):
            end = ends[start + place]
            at = (np.int64(end) * _GOLDEN >> 15) & (size - 1)
            while table[at] >= 0 and ends[start + table[at]] != end:
                at = (at + 1) & (size - 1)
            if table[at] < 0:
                table[at] = place
            else:
                lengths[row] -= 1
            firsts[start + place] = start + table[at]


@jit
def _list_groups(
    starts: _Array, stops: _Array, ends: _Array, given: _Array, firsts: _Array,
    lengths: _Array, count: int, order: _Array, begins: _Array,
) -> tuple[int, int]:  # fmt: skip
    """Store the groups of `find_repeats`; return the number of edges and of groups."""
    edges = groups = 0
    for row in range(starts.size):
        start, stop = np.int64(starts[row]), np.int64(stops[row])
        if stop - start == lengths[row]:
            continue
        places = np.zeros(stop - start, np.int64)  # first the sizes of groups
        for slot in range(start, stop):
            places[firsts[slot] - start] += 1
        for first in range(places.size):
            size, places[first] = places[first], -1
            if size > 1:
                places[first] = begins[groups] = edges
                edges, groups = edges + size, groups + 1
        for slot in range(start, stop):
            first = firsts[slot] - start
            if places[first] >= 0:
                order[places[first]] = given[slot] - count * (given[slot] >= count)
                places[first] += 1
    return edges, groups


@jit
def take_firsts(
    to: _Array, new_ends: _Array, new_given: _Array, starts: _Array, stops: _Array,
    ends: _Array, given: _Array, firsts: _Array,
) -> None:  # fmt: skip
    """Copy the first edge with each end in a row; row v begins at ``to[v]`` then."""
    for row in range(starts.size):
        at = to[row]
        for slot in range(starts[row], stops[row]):
            if firsts[slot] == slot:
                new_ends[at], new_given[at] = ends[slot], given[slot]
                at += 1


@jit
def add_repeats(
    weights: _Array, order: _Array, starts: _Array, sums: _Array, rough: _Array
) -> None:
    """Sum the weights of each group in the type of `sums`, and as floats in `rough`.

    A large difference of the two shows an overflow of integers.
    """
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
    """Store the least or greatest weight of each group; the first of equal ones."""
    for group in range(starts.size):
        end = starts[group + 1] if group + 1 < starts.size else order.size
        found = weights[order[starts[group]]]
        for place in range(starts[group] + 1, end):
            weight = weights[order[place]]
            if (weight < found) if least else (weight > found):
                found = weight
        chosen[group] = found


# -- orders of integers

#: Bits of a digit of the radix sort: its 2,048 write positions stay in a cache.
_BITS = 11


def order_of(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the stable ascending order of nonnegative integers.

    Notes
    -----
    O(N) time per 11 bits of the highest, and 24 bytes an entry.
    """
    count = keys.size
    dtype = np.int32 if count < 1 << 31 else np.int64
    highest = int(keys.max(initial=0))
    if highest == count - 1:
        places = np.full(count, -1, dtype)
        if _is_permutation(keys, places):
            return places
    low = count.bit_length()
    if highest.bit_length() + low > 63:  # key and place do not fit one integer
        return np.argsort(keys, kind="stable").astype(dtype)
    numbered = keys.astype(np.int64) << low | np.arange(count)
    return (sorted_keys(numbered, low, highest + 1) & (1 << low) - 1).astype(dtype)


def sorted_keys(keys: NDArray[Any], low: int, bound: int) -> NDArray[Any]:
    """Sort int64 keys stably by their bits from `low` on, which are below `bound`.

    `keys` is overwritten.
    """
    to = np.empty_like(keys)
    for shift in range(low, low + int(bound - 1).bit_length(), _BITS):
        _sort_by(keys, to, shift)
        keys, to = to, keys
    return keys


@jit
def _is_permutation(keys: _Array, places: _Array) -> bool:
    """Store the place of each key; return False for repeated or negative keys."""
    for i in range(keys.size):
        if keys[i] < 0 or places[keys[i]] >= 0:
            return False
        places[keys[i]] = i
    return True


@jit
def _sort_by(keys: _Array, to: _Array, shift: int) -> None:
    """Sort stably by the digit of the keys at a bit."""
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


# -- components


#: Edges of each vertex that are joined first, and samples to find the largest tree.
_FIRST, _VOTES = 2, 1024


@jit
def label_components(
    starts: _Array, stops: _Array, columns: _Array, labels: _Array
) -> None:
    """Label each vertex with the smallest vertex of its component.

    Rows have each edge at both ends. ``labels[v] <= v`` is the parent of v in a tree.
    First, two edges of each vertex are joined, which mostly yields one large tree. Its
    vertices then need no further joins, since the others join their own edges.
    O(V + E), mostly O(V).

    M. Sutton, T. Ben-Nun, A. Barak, "Optimizing Parallel Graph Connectivity
    Computation via Subgraph Sampling", IPDPS 2018 (Afforest).
    """
    count, largest = labels.size, -1
    labels[:] = np.arange(count)
    for turn in range(2):
        for v in range(count):
            start, stop = np.int64(starts[v]), np.int64(stops[v])
            middle = min(start + _FIRST, stop)
            if turn == 0:
                stop = middle
            elif labels[v] == largest:
                continue
            else:
                start = middle
            for place in range(start, stop):
                a, b = labels[v], labels[np.uint32(columns[place])]
                while a != b:
                    if a < b:
                        a, b = b, a
                    above = labels[a]
                    labels[a] = min(above, b)
                    if above == a:
                        break
                    a = above
        for v in range(count):  # ascending: the label of v's parent is a root already
            labels[v] = labels[labels[v]]
        votes = 0
        for v in range(0, count, count // _VOTES + 1):
            if votes == 0:
                largest = labels[v]
            votes += 1 if labels[v] == largest else -1


@jit
def label_strong_components(
    starts: _Array, stops: _Array, columns: _Array, labels: _Array
) -> None:
    """Label vertices of label -1 with the smallest vertex of their strong component.

    A depth-first search numbers vertices from 1 on. ``low`` of a vertex is the smallest
    number that it reaches among vertices without a known component, and larger than all
    numbers if its component is known. A vertex whose ``low`` is still its own number
    after all its edges is the root of its component; the other members are at the end
    of ``waiting``. O(V + E) time, 21 bytes per vertex.

    D. J. Pearce, "A Space-Efficient Algorithm for Finding Strongly Connected
    Components", Information Processing Letters 116, 2016 (PEA_FIND_SCC3).
    """
    count = labels.size
    low = np.where(labels < 0, np.int32(0), np.int32(count + 1))
    path, waiting = np.empty(count, np.int32), np.empty(count, np.int32)
    places, is_lowered = np.empty(count, np.int64), np.empty(count, np.bool_)
    found = waits = 0
    for root in range(count):
        if low[root] != 0:
            continue
        depth, u = 0, root
        while depth >= 0:
            if low[u] == 0:
                found += 1
                low[u], path[depth] = found, u
                places[depth], is_lowered[depth] = starts[u], False
            place, stop, least = places[depth], stops[u], low[u]
            v = u
            while place < stop and v == u:
                end = columns[place]
                if low[end] == 0:
                    v = end
                elif low[end] < least:
                    least, is_lowered[depth] = low[end], True
                place += 1
            low[u], places[depth] = least, place
            if v != u:
                depth, u = depth + 1, v
                continue
            waiting[waits] = u
            waits += 1
            if not is_lowered[depth]:
                first, begin = u, waits
                while begin > 0 and low[waiting[begin - 1]] >= least:
                    begin -= 1
                    first = min(first, waiting[begin])
                for place in range(begin, waits):
                    low[waiting[place]] = count + 1
                    labels[waiting[place]] = first
                waits, least = begin, count + 1
            depth -= 1
            if depth >= 0:
                u = path[depth]
                if least < low[u]:
                    low[u], is_lowered[depth] = least, True
