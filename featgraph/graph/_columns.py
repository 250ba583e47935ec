"""Out-edges, and all edges, of every vertex: with edge ids, and without.

Ids take as much memory again, and lead to the CSC, which must be there. Who does not
ask for an edge, as breadth-first search does not, needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featgraph.graph.adjacency import Adjacency

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["incident_columns", "incident_edges", "out_columns", "out_edges"]


def out_edges(graph: Structure) -> Adjacency:
    """Return the CSR; its slots lead to the CSC by their ids."""
    rows = out_columns(graph)
    if not graph.directed:
        return Adjacency(rows.row_offsets, rows.column_indices, graph.twins)
    from featgraph.graph import _build

    ids = _build.build_out_ids(graph._edges, graph.in_edges, rows)
    return Adjacency(rows.row_offsets, rows.column_indices, ids)


def out_columns(graph: Structure) -> Adjacency:
    """Return the CSR without edge ids."""
    if not graph.directed:
        return graph.in_edges
    cache = graph._cache
    if "out_columns" not in cache:
        from featgraph.graph import _build

        cache["out_columns"] = _build.build_out_columns(graph._edges)
    return cache["out_columns"]  # type: ignore[no-any-return]


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
