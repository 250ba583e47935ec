"""Edges of a graph, grouped by vertex."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass

__all__ = ["Adjacency"]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The edges of every vertex: its in-edges, its out-edges, or both.

    The type of `Graph.in_edges` (CSC), `Graph.out_edges` (CSR) and
    `Graph.incident_edges`. Slots ``row_offsets[v]`` to ``row_offsets[v + 1]`` belong to
    vertex v, in the order in which the edges were given. All arrays are read-only.

    Attributes
    ----------
    row_offsets : ndarray of int32 or int64, shape (V + 1,)
        int64 only where the number of slots is 2**31 - 1 or more.
    column_indices : ndarray of int32, one a slot
        The vertex at the other end: the source in the CSC, the target in the CSR.
    edge_ids : ndarray, dtype of the CSC's `row_offsets`, one a slot, or None
        The edge id of each slot. None in the CSC, whose slots *are* the edge ids.
    """

    row_offsets: NDArray[Any]
    column_indices: NDArray[np.int32]
    edge_ids: NDArray[Any] | None
