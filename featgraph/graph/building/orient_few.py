"""The loops of `orient`, beside this, for few edges: by NumPy, nothing is compiled.

They take and fill the same arrays, but sort entries for their places, and leave cursors
as they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = NDArray[Any]


def count_upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array, counts: _Array
) -> None:
    """Count, for each vertex by degree, its neighbors above."""
    low, _, _ = _upper(in_offsets, sources, degree_order)
    counts += np.bincount(low, minlength=counts.size).astype(counts.dtype)


def fill_upper(
    in_offsets: _Array, sources: _Array, _: _Array, degree_order: _Array, *rows: _Array
) -> int:
    """Fill the rows of neighbors above; return a repeated edge, or -1."""
    *_offsets, columns, edge_ids = rows
    low, high, edges = _upper(in_offsets, sources, degree_order)
    order = np.lexsort((edges, high, low))
    columns[:], edge_ids[:] = high[order], edges[order]
    is_same = (np.diff(low[order]) == 0) & (np.diff(columns) == 0)
    again = 1 + np.flatnonzero(is_same)
    if not again.size:
        return -1
    # The first one in ascending order of `high`.
    return int(edge_ids[again[np.lexsort((edge_ids[again], columns[again]))[0]]])


def fill_both(
    upper_offsets: _Array,
    upper_columns: _Array,
    upper_edges: _Array,
    cursors: _Array,
    columns: _Array,
    edge_ids: _Array,
) -> None:
    """Fill the rows of all neighbors: those below come first."""
    low = _rows(upper_offsets)
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
    """Fill the rows of neighbors below, with the slots of their edges in `upper`."""
    slots[:] = np.argsort(upper_columns, kind="stable")
    columns[:] = _rows(upper_offsets)[slots]


def measure_work(offsets: _Array, columns: _Array, work: _Array) -> None:
    """Set the work of each row: its length, and that of rows intersected with it."""
    work[:] = 1 + np.diff(offsets)
    behind = offsets[1:][_rows(offsets)] - np.arange(columns.size)
    np.add.at(work, columns, behind)


def _upper(
    in_offsets: _Array, sources: _Array, degree_order: _Array
) -> tuple[_Array, _Array, _Array]:
    """Return the lower and upper end of each edge upwards, by degree, and its id."""
    low, high = degree_order[sources], degree_order[_rows(in_offsets)]
    edges = np.flatnonzero(low < high)
    return low[edges], high[edges], edges


def _rows(offsets: _Array) -> _Array:
    """Return the row of each slot."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
