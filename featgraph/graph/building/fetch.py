"""Adjacencies and edge maps built on the GPU, and copied to the host.

The functions have the names, parameters and results of those in
`featgraph.graph.building.build`; `build_upper` is for `oriented`.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from featgraph.cuda.values import DeviceValues, host_values
from featgraph.graph.building.edges import Adjacency, EdgeList, freeze


def build_in_edges(edges: EdgeList) -> Adjacency:
    """Return the CSC."""
    return _columns(edges, "in")


def build_incident_columns(edges: EdgeList) -> Adjacency:
    """Return the rows that list each edge at both ends, without edge ids."""
    return _columns(edges, "both")


def build_incident_ids(edges: EdgeList, *_: object) -> NDArray[Any]:
    """Return the edge id of each slot of the incident edges of a directed graph."""
    return _fetched(edges.on_gpu.edge_ids("both"))


def build_out_columns(edges: EdgeList) -> Adjacency:
    """Return the CSR of a directed graph, without the edge ids of its slots."""
    return _columns(edges, "out")


def build_out_ids(edges: EdgeList, *_: object) -> NDArray[Any]:
    """Return the edge id of each slot of the CSR of a directed graph."""
    return _fetched(edges.on_gpu.edge_ids("out"))


def build_given_index(edges: EdgeList, _: object) -> NDArray[Any]:
    """Return the row in given order of each edge id."""
    return _fetched(edges.on_gpu.given_index)


def build_twins(edges: EdgeList, _: object) -> NDArray[Any]:
    """Return the edge id of the reverse of each edge of an undirected graph."""
    return _fetched(edges.on_gpu.edge_ids("out"))


def build_degree(edges: EdgeList, side: str) -> NDArray[Any]:
    """Return the number of "in" or "out" edges of each vertex."""
    return _fetched(edges.on_gpu.degrees(side))


def build_upper(edges: EdgeList) -> tuple[NDArray[Any], NDArray[Any], Adjacency]:
    """Return vertices in degree order, the place of each in it, and upper rows."""
    found = edges.on_gpu_oriented
    upper = found.upper
    rows = [_fetched(array) for array in (upper.offsets, upper.orders, upper.edges)]
    vertices, degree_order = _fetched(found.vertices), _fetched(found.degree_order)
    return vertices, degree_order, Adjacency(*rows)


def _columns(edges: EdgeList, along: str) -> Adjacency:
    rows = edges.on_gpu.rows(along)
    return Adjacency(_fetched(rows.offsets), _fetched(rows.ends), None)


def _fetched(array: Any) -> NDArray[Any]:
    return freeze(host_values(DeviceValues(array)))
