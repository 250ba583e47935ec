"""Loops that orient a graph by degree.

Walking the vertices by their degree order fills every row in ascending order: no
row is sorted. Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

_Array: TypeAlias = NDArray[Any]


@jit
def count_upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array, counts: _Array
) -> None:
    """Count, for each vertex by degree, its neighbors above."""
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
    """Fill the rows of neighbors above; return a repeated edge, or -1."""
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
    """Fill the rows of all neighbors: those below come first."""
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
    """Fill the rows of neighbors below, with the slots of their edges in `upper`."""
    for low in range(upper_offsets.size - 1):
        for slot in range(upper_offsets[low], upper_offsets[low + 1]):
            high = upper_columns[slot]
            place = cursors[high]
            columns[place] = low
            slots[place] = slot
            cursors[high] = place + 1


@jit
def measure_work(offsets: _Array, columns: _Array, work: _Array) -> None:
    """Set the work of each row: its length, and that of rows intersected with it."""
    for row in range(work.size):
        work[row] = 1 + offsets[row + 1] - offsets[row]
    for low in range(work.size):
        for slot in range(offsets[low], offsets[low + 1]):
            work[columns[slot]] += offsets[low + 1] - slot
