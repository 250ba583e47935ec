"""Adjacencies, edge maps and degrees of a checked edge list, by loops on the host.

`few` has the same functions in NumPy, for graphs so small that compiling loops takes
longer, and `fetch` for edges on a GPU, which builds the arrays there; all return the
same bits. `build_in_edges` comes first: its slots are the edge ids of all maps.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.cuda.values import offset_dtype
from featgraph.graph.building import kernels
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze

#: Builds the CSC, or returns the cached one.
BuildCsc: TypeAlias = Callable[[], Adjacency]


def build_in_edges(edges: EdgeList) -> Adjacency:
    """Build the CSC: row v lists the sources of v's in-edges in given order."""
    if not edges.directed:
        return build_incident_columns(edges)
    offsets = np.zeros(edges.vertex_count + 1, offset_dtype(edges.edge_count))
    columns = np.empty(edges.edge_count, np.int32)
    kernels.count_one(edges.targets, offsets)
    kernels.to_ends(offsets)
    kernels.fill_columns(edges.targets, edges.sources, offsets, columns)
    return Adjacency(freeze(offsets), freeze(columns), None)


def build_incident_columns(edges: EdgeList) -> Adjacency:
    """Build rows that list each edge at both of its ends, a self-loop once.

    For an undirected graph, these are the CSC; for a directed one, they have no edge
    ids.
    """
    twice = int(np.count_nonzero(edges.sources != edges.targets))
    slot_count = edges.given_count + twice
    offsets = np.zeros(edges.vertex_count + 1, offset_dtype(slot_count))
    columns = np.empty(slot_count, np.int32)
    kernels.count_both(edges.sources, edges.targets, offsets)
    kernels.to_ends(offsets)
    kernels.fill_columns_both(edges.sources, edges.targets, offsets, columns)
    return Adjacency(freeze(offsets), freeze(columns), None)


def build_incident_ids(
    edges: EdgeList, in_edges: BuildCsc, incident: Adjacency
) -> NDArray[Any]:
    """Map each slot of the incident edges of a directed graph to its edge id."""
    ends = _ends(in_edges()), _ends(incident)
    ids = np.empty(incident.column_indices.size, ends[0].dtype)
    kernels.fill_incident_ids(edges.sources, edges.targets, *ends, ids)
    return freeze(ids)


def build_out_columns(edges: EdgeList) -> Adjacency:
    """Build the CSR of a directed graph, without the edge ids of its slots."""
    edge_count = edges.sources.size
    offsets = np.zeros(edges.vertex_count + 1, offset_dtype(edge_count))
    columns = np.empty(edge_count, np.int32)
    kernels.count_one(edges.sources, offsets)
    kernels.to_ends(offsets)
    kernels.fill_columns(edges.sources, edges.targets, offsets, columns)
    return Adjacency(freeze(offsets), freeze(columns), None)


def build_out_ids(edges: EdgeList, in_edges: BuildCsc, out: Adjacency) -> NDArray[Any]:
    """Map each slot of the CSR of a directed graph to its CSC slot.

    An undirected graph needs none: both of its adjacencies list, at v, the edges of v
    in given order, so they are equal and CSR slot s is the twin of CSC slot s.
    """
    ends = _ends(in_edges()), _ends(out)
    ids = np.empty(out.column_indices.size, ends[0].dtype)
    kernels.fill_out_ids(edges.sources, edges.targets, *ends, ids)
    return freeze(ids)


def build_given_index(edges: EdgeList, in_edges: BuildCsc) -> NDArray[Any]:
    """Map each edge id to its row in given order (twin of i: E_given + i)."""
    rows = edges.sources.size * (1 if edges.directed else 2)
    given = np.empty(edges.edge_count, offset_dtype(rows))
    ends = _ends(in_edges())
    if edges.directed:
        kernels.fill_given(edges.targets, ends, given)
    else:
        kernels.fill_given_both(edges.sources, edges.targets, ends, given)
    return freeze(given)


def build_twins(edges: EdgeList, in_edges: BuildCsc) -> NDArray[Any]:
    """Map each edge id of an undirected graph to that of the reverse edge."""
    ends = _ends(in_edges())
    twins = np.empty(edges.edge_count, ends.dtype)
    kernels.fill_twins(edges.sources, edges.targets, ends, twins)
    return freeze(twins)


def build_degree(edges: EdgeList, side: str) -> NDArray[Any]:
    """Count the "in" or "out" edges of each vertex without building an adjacency."""
    counts = np.zeros(edges.vertex_count, offset_dtype(edges.edge_count))
    if not edges.directed:
        kernels.count_both(edges.sources, edges.targets, counts)
    else:
        kernels.count_one(edges.targets if side == "in" else edges.sources, counts)
    return freeze(counts)


def _ends(adjacency: Adjacency) -> NDArray[Any]:
    """Return a copy of the ends of rows, which the loops decrement."""
    return np.array(adjacency.row_offsets[1:])
