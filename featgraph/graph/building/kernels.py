"""Counting sort of edges into rows, O(V + E), in place but for the result.

All loops share one idea. `offsets` first holds the *end* of each row; walking the edges
backward and stepping a row's entry down before each store fills the row from its last
slot to its first, so slots keep the given order (a stable sort) and `offsets` ends as
the row starts. No cursor array is needed. Repeating the walk with a copy of the ends
finds the slot of every given edge again, so no edge-to-slot map is kept either.

An undirected edge that is no self-loop takes a slot in the row of each of its vertices.
Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

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
    """Turn counts (V of them and a zero) into row ends; the last becomes E."""
    total = 0
    for v in range(offsets.size):
        total += offsets[v]
        offsets[v] = total


@jit
def fill_columns(
    rows: _Array, others: _Array, offsets: _Array, columns: _Array
) -> None:
    """Store the other end of each edge; `offsets` turns from ends into starts."""
    for i in range(rows.size - 1, -1, -1):
        slot = offsets[rows[i]] - 1
        offsets[rows[i]] = slot
        columns[slot] = others[i]


@jit
def fill_columns_both(
    sources: _Array, targets: _Array, offsets: _Array, columns: _Array
) -> None:
    """`fill_columns` for undirected edges: each is also stored at its source."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        slot = offsets[v] - 1
        offsets[v] = slot
        columns[slot] = u
        if u != v:
            slot = offsets[u] - 1
            offsets[u] = slot
            columns[slot] = v


@jit
def fill_given(rows: _Array, ends: _Array, given: _Array) -> None:
    """Store at each slot which given edge it is; `ends` is used up."""
    for i in range(rows.size - 1, -1, -1):
        slot = ends[rows[i]] - 1
        ends[rows[i]] = slot
        given[slot] = i


@jit
def fill_given_both(
    sources: _Array, targets: _Array, ends: _Array, given: _Array
) -> None:
    """`fill_given` for undirected edges: the twin of edge i is row E_given + i."""
    count = sources.size
    for i in range(count - 1, -1, -1):
        u, v = sources[i], targets[i]
        slot = ends[v] - 1
        ends[v] = slot
        given[slot] = i
        if u != v:
            slot = ends[u] - 1
            ends[u] = slot
            given[slot] = count + i


@jit
def fill_twins(sources: _Array, targets: _Array, ends: _Array, twins: _Array) -> None:
    """Pair the two slots of each undirected edge; a self-loop with itself."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        slot = ends[v] - 1
        ends[v] = slot
        twin = slot
        if u != v:
            twin = ends[u] - 1
            ends[u] = twin
        twins[slot] = twin
        twins[twin] = slot


@jit
def fill_out_ids(
    sources: _Array, targets: _Array, in_ends: _Array, ends: _Array, ids: _Array
) -> None:
    """Store the CSC slot of each edge where `fill_columns` puts it in the CSR."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        in_slot = in_ends[v] - 1
        in_ends[v] = in_slot
        slot = ends[u] - 1
        ends[u] = slot
        ids[slot] = in_slot


@jit
def fill_incident_ids(
    sources: _Array, targets: _Array, in_ends: _Array, ends: _Array, ids: _Array
) -> None:
    """Store the CSC slot of each edge where `fill_columns_both` puts the edge."""
    for i in range(sources.size - 1, -1, -1):
        u, v = sources[i], targets[i]
        in_slot = in_ends[v] - 1
        in_ends[v] = in_slot
        slot = ends[v] - 1
        ends[v] = slot
        ids[slot] = in_slot
        if u != v:
            slot = ends[u] - 1
            ends[u] = slot
            ids[slot] = in_slot


@jit
def put_rows(values: _Array, given: _Array, first: int, last: int, out: _Array) -> None:
    """Put the rows of some edges where they were given, if `out` has such rows."""
    for edge in range(first, last):
        row = given[edge]
        if row < out.shape[0]:
            for feature in range(out.shape[1]):
                out[row, feature] = values[edge, feature]
