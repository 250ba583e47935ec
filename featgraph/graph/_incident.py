"""All edges of every vertex, whichever way they go, with and without edge ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featgraph.graph.adjacency import Adjacency

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["incident_columns", "incident_edges"]


def incident_edges(graph: Structure) -> Adjacency:
    """Return the rows that list each edge at both of its ends, a self-loop once."""
    if not graph.directed:
        return graph.in_edges
    cache = graph._cache
    if "incident_edges" not in cache:
        from featgraph.graph import _build

        rows = incident_columns(graph)
        ids = _build.build_incident_ids(graph._edges, graph.in_edges, rows)
        cache["incident_edges"] = Adjacency(rows.row_offsets, rows.column_indices, ids)
    return cache["incident_edges"]  # type: ignore[no-any-return]


def incident_columns(graph: Structure) -> Adjacency:
    """Return the same rows without edge ids: half of the memory, and no CSC."""
    if not graph.directed:
        return graph.in_edges
    cache = graph._cache
    if "incident_columns" not in cache:
        from featgraph.graph import _build

        twice = int(np.count_nonzero(graph.sources != graph.targets))
        count = graph.given_edge_count + twice
        cache["incident_columns"] = _build.build_incident_columns(graph._edges, count)
    return cache["incident_columns"]  # type: ignore[no-any-return]
