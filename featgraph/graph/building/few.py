"""Adjacencies, edge maps and orientation of few edges, by NumPy without compilation.

The functions have the names, parameters and results of those in
`featgraph.graph.building.build` and of the orientation loops in
`featgraph.graph.building.kernels`. Each function sorts the edges again, which takes
NumPy a millisecond, since ids fit 16 bits (`edges.FEW`). Numba takes a second until its
first loop runs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze

__all__ = [
    "build_degree",
    "build_given_index",
    "build_in_edges",
    "build_incident_columns",
    "build_incident_ids",
    "build_out_columns",
    "build_out_ids",
    "build_twins",
]


def build_in_edges(edges: EdgeList) -> Adjacency:
    """Build the CSC: row v lists the sources of v's in-edges in given order."""
    return _rows(edges, "in")[0]


def build_incident_columns(edges: EdgeList) -> Adjacency:
    """Build the rows that list each edge at both ends, without edge ids."""
    return _rows(edges, "both")[0]


def build_incident_ids(edges: EdgeList, *_: object) -> NDArray[Any]:
    """Map each slot of the incident edges of a directed graph to its edge id."""
    return freeze(_ids(edges)[_rows(edges, "both")[1] >> 1])


def build_out_columns(edges: EdgeList) -> Adjacency:
    """Build the CSR of a directed graph, without the edge ids of its slots."""
    return _rows(edges, "out")[0]


def build_out_ids(edges: EdgeList, *_: object) -> NDArray[Any]:
    """Map each slot of the CSR of a directed graph to its CSC slot."""
    return freeze(_ids(edges)[_rows(edges, "out")[1] >> 1])


def build_given_index(edges: EdgeList, _: object) -> NDArray[Any]:
    """Map each edge id to its row in given order (twin of i: E_given + i)."""
    entries = _rows(edges, "in")[1]
    rows = edges.given_count * (1 if edges.directed else 2)
    is_twin = 0 if edges.directed else entries & 1
    given = (entries >> 1) + is_twin * edges.given_count
    return freeze(given.astype(offset_dtype(rows)))


def build_twins(edges: EdgeList, _: object) -> NDArray[Any]:
    """Map each edge id of an undirected graph to that of the reverse edge."""
    rows, entries = _rows(edges, "in")
    slots = np.empty(2 * edges.given_count, rows.row_offsets.dtype)
    slots[entries] = np.arange(entries.size)
    loops = 2 * np.flatnonzero(edges.sources == edges.targets)
    slots[loops + 1] = slots[loops]
    return freeze(slots[entries ^ 1])


def build_degree(edges: EdgeList, side: str) -> NDArray[Any]:
    """Count the "in" or "out" edges of each vertex."""
    return freeze(np.diff(_rows(edges, side)[0].row_offsets))


def _rows(edges: EdgeList, along: str) -> tuple[Adjacency, NDArray[Any]]:
    """Return rows along "in", "out" or "both" edges, and the entry of each slot.

    Entry 2 i is edge i at its target, 2 i + 1 at its source. In rows along both, which
    include all rows of undirected graphs, a self-loop has only the first entry.
    """
    at = np.stack([edges.targets, edges.sources], axis=1).ravel()
    others = np.stack([edges.sources, edges.targets], axis=1).ravel()
    if along == "both" or not edges.directed:
        is_slot = at != others
        is_slot[::2] = True
        entries = np.flatnonzero(is_slot)
    else:
        entries = np.arange(along == "out", at.size, 2)
    rows = at[entries]
    # For 16-bit numbers, NumPy's stable sort is a radix sort.
    entries = entries[np.argsort(rows.astype(np.uint16), kind="stable")]
    offsets = np.zeros(edges.vertex_count + 1, offset_dtype(rows.size))
    np.cumsum(np.bincount(rows, minlength=edges.vertex_count), out=offsets[1:])
    return Adjacency(freeze(offsets), freeze(others[entries]), None), entries


def _ids(edges: EdgeList) -> NDArray[Any]:
    """Return the edge id of each edge of a directed graph, in given order."""
    rows, entries = _rows(edges, "in")
    ids = np.empty(edges.given_count, rows.row_offsets.dtype)
    ids[entries >> 1] = np.arange(entries.size)
    return ids


# -- orientation by degree


_Array: TypeAlias = NDArray[Any]


def count_upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array, counts: _Array
) -> None:
    """Count the upper neighbors of each vertex, by degree order."""
    low, _, _ = _upper(in_offsets, sources, degree_order)
    counts += np.bincount(low, minlength=counts.size).astype(counts.dtype)


def fill_upper(
    in_offsets: _Array, sources: _Array, _: _Array, degree_order: _Array, *rows: _Array
) -> int:
    """Fill the rows of upper neighbors; return a repeated edge, or -1."""
    *_offsets, columns, edge_ids = rows
    low, high, edges = _upper(in_offsets, sources, degree_order)
    order = np.lexsort((edges, high, low))
    columns[:], edge_ids[:] = high[order], edges[order]
    is_same = (np.diff(low[order]) == 0) & (np.diff(columns) == 0)
    again = 1 + np.flatnonzero(is_same)
    if not again.size:
        return -1
    # The repeated edge that the loop of `kernels` finds: it visits `high` ascending.
    return int(edge_ids[again[np.lexsort((edge_ids[again], columns[again]))[0]]])


def fill_both(
    upper_offsets: _Array,
    upper_columns: _Array,
    upper_edges: _Array,
    cursors: _Array,
    columns: _Array,
    edge_ids: _Array,
) -> None:
    """Fill the rows of all neighbors: lower ones, then upper ones."""
    low = _row_of_slots(upper_offsets)
    rows = np.concatenate([low, upper_columns])
    others = np.concatenate([upper_columns, low])
    order = np.lexsort((others, rows))
    columns[:] = others[order]
    edge_ids[:] = np.concatenate([upper_edges, upper_edges])[order]


def fill_lower(
    upper_offsets: _Array,
    upper_columns: _Array,
    cursors: _Array,
    columns: _Array,
    slots: _Array,
) -> None:
    """Fill the rows of lower neighbors, with the slots of their edges in `upper`."""
    slots[:] = np.argsort(upper_columns, kind="stable")
    columns[:] = _row_of_slots(upper_offsets)[slots]


def measure_work(offsets: _Array, columns: _Array, work: _Array) -> None:
    """Set the work of each row: 1 + its length + parts of rows intersected with it."""
    work[:] = 1 + np.diff(offsets)
    behind = offsets[1:][_row_of_slots(offsets)] - np.arange(columns.size)
    np.add.at(work, columns, behind)


def _upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array
) -> tuple[_Array, _Array, _Array]:
    """Return lower end, higher end (places in degree order) and id of each edge up."""
    low, high = degree_order[sources], degree_order[_row_of_slots(in_offsets)]
    edges = np.flatnonzero(low < high)
    return low[edges], high[edges], edges


def _row_of_slots(offsets: _Array) -> _Array:
    """Return the row of each slot."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
