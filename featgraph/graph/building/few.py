"""Adjacencies and edge maps of few edges, by NumPy: nothing has to be compiled.

The functions are those of `featgraph.graph.building.build`, and so is what they return.
Each sorts anew, which takes NumPy a millisecond for numbers of 16 bits; Numba takes a
second until its first loop runs, and a GPU needs none of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.cuda.values import offset_dtype
from featgraph.graph.building.adjacency import Adjacency
from featgraph.graph.building.edges import EdgeList, freeze

__all__ = [
    "build_degree",
    "build_given_index",
    "build_in_edges",
    "build_incident_columns",
    "build_incident_ids",
    "build_out_columns",
    "build_out_ids",
    "build_twins",
    "sum_ends",
    "sum_weights",
]


def sum_ends(edges: EdgeList) -> NDArray[np.uint64]:
    """Return the sums over edges that a digest of their ends is made of."""
    from featgraph.graph.building import build  # loads Numba

    return build.sum_ends(edges)


def sum_weights(edges: EdgeList) -> NDArray[np.uint64]:
    """Return those that a digest of weights is made of."""
    from featgraph.graph.building import build  # loads Numba

    return build.sum_weights(edges)


def build_in_edges(edges: EdgeList) -> Adjacency:
    """Build the CSC."""
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

    Entry 2 i is edge i at its target, 2 i + 1 at its source. In rows along both, as
    those of an undirected graph are, a self-loop has the first alone.
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
    # Of numbers of 16 bits NumPy's stable sort is one by digits.
    entries = entries[np.argsort(rows.astype(np.uint16), kind="stable")]
    offsets = np.zeros(edges.vertex_count + 1, offset_dtype(rows.size))
    np.cumsum(np.bincount(rows, minlength=edges.vertex_count), out=offsets[1:])
    return Adjacency(freeze(offsets), freeze(others[entries]), None), entries


def _ids(edges: EdgeList) -> NDArray[Any]:
    """Return the edge id of each edge of a directed graph, as given."""
    rows, entries = _rows(edges, "in")
    ids = np.empty(edges.given_count, rows.row_offsets.dtype)
    ids[entries >> 1] = np.arange(entries.size)
    return ids
