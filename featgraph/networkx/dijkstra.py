"""Shortest paths by weight, in the order in which Dijkstra's algorithm settles nodes.

A kernel computes the distances. NetworkX orders nodes by distance, and nodes with equal
distances by discovery. An edge is *tight* if it is the last one of a shortest path. A
node is discovered along its first tight edge, and edges are scanned source by source,
in the order of the sources, row by row. `finish` reproduces this order.

A tight edge between nodes with equal distances would make their order depend on itself.
Such edges need weights that are zero or lost in rounding. These calls are declined: the
functions raise NotImplementedError, and NetworkX runs its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt

from featgraph.algorithms.sssp import sssp
from featgraph.networkx.graph import NetworkXGraph, Weights
from featgraph.networkx.paths import MAX_EXACT, in_order, levels_from

__all__ = [
    "Found",
    "addable",
    "entries_of",
    "found_by",
    "found_by_levels",
    "lengths_of_paths",
    "multi_source_dijkstra_path_length",
    "paths_of",
    "require_exact",
    "search",
    "single_source_dijkstra",
    "single_source_dijkstra_path",
    "single_source_dijkstra_path_length",
]

Array = npt.NDArray[Any]


class Found(NamedTuple):
    """The result of a search.

    Attributes
    ----------
    order : ndarray of int64, shape (n,)
        The vertices that were reached, in the order in which NetworkX settles them.
    distances : list of int or float, length n
        Their distances, as Python numbers.
    tight : tuple of ndarray
        Sources and targets of tight edges between reached vertices.
    """

    order: Array
    distances: list[Any]
    tight: tuple[Array, Array]


def search(
    graph: NetworkXGraph, sources: Array, attribute: Any, cutoff: float | None
) -> Found:
    """Find the vertices within `cutoff` of the nearest of distinct sources."""
    weights = graph.weights_of(attribute)
    farthest = math.inf if cutoff is None else cutoff
    if weights is None:
        depth = (
            0 if farthest < 0 else farthest if farthest == math.inf else int(farthest)
        )
        return found_by_levels(graph, sources, levels_from(graph, sources, depth))
    values = addable(weights, attribute)
    run = sssp(graph.topology, sources, weights=values, together=True, dtype=np.float64)
    return found_by(graph, sources, weights, run.distances, attribute, farthest)


def found_by_levels(graph: NetworkXGraph, sources: Array, levels: Array) -> Found:
    """Return the result of a search whose edges have length one, from levels."""
    order = np.concatenate(list(in_order(graph, levels, sources)))
    u, v, _ = entries_of(graph)
    tight = (levels[u] >= 0) & (levels[v] == levels[u] + 1)
    return Found(order, levels[order].tolist(), (u[tight], v[tight]))


def addable(weights: Weights, attribute: Any) -> Array:
    """Return weights in float64 whose sums equal NetworkX's in type and value."""
    if weights.is_mixed:
        raise NotImplementedError(f"{attribute!r} of several types: sums would differ")
    return weights.finite(attribute)


def require_exact(weights: Weights, distances: Array) -> None:
    """Raise NotImplementedError if a sum of integers could have been rounded."""
    last = distances.max(initial=0, where=np.isfinite(distances))
    largest = weights.values.max(initial=0)
    if weights.are_integers and last + float(largest) >= MAX_EXACT:
        raise NotImplementedError("distances of more than 53 bits")


def found_by(
    graph: NetworkXGraph,
    sources: Array,
    weights: Weights,
    distances: Array,
    attribute: Any,
    farthest: float = math.inf,
) -> Found:
    """Return the result for vertices within `farthest`, from distances."""
    require_exact(weights, distances)
    values = addable(weights, attribute)
    u, v, edge = entries_of(graph)
    is_tight = np.isfinite(distances[u]) & (distances[u] + values[edge] == distances[v])
    is_tight &= u != v
    order = finish(graph, distances, sources, np.flatnonzero(is_tight), u, v)
    # Sources have the integer distance zero, and are within any cutoff.
    order = order[(distances[order] <= farthest) | np.isin(order, sources)]
    found = distances[order]
    listed = found.astype(np.int64 if weights.are_integers else np.float64).tolist()
    listed[: sources.size] = [0] * sources.size
    return Found(order, listed, (u[is_tight], v[is_tight]))


def finish(
    graph: NetworkXGraph,
    distances: Array,
    sources: Array,
    tight: Array,
    u: Array,
    v: Array,
) -> Array:
    """Return the vertices with finite distances in NetworkX's order.

    Parameters
    ----------
    graph : NetworkXGraph
    distances : ndarray of float64, shape (V,)
    sources : ndarray
        Vertices at distance zero, in their order.
    tight : ndarray
        Indices of tight edges among the entries of all rows.
    u, v : ndarray
        Both ends of all entries.
    """
    order = np.argsort(distances, kind="stable")
    order = order[: np.count_nonzero(np.isfinite(distances))]
    rank = np.empty(len(graph), np.int64)
    rank[order] = np.arange(order.size)
    rank[sources] = np.arange(sources.size)
    sorted_distances = distances[order]
    is_new = np.append(True, sorted_distances[1:] != sorted_distances[:-1])
    group = np.cumsum(is_new) - 1
    begins = np.append(np.flatnonzero(is_new), order.size)
    group_of = np.full(len(graph), -1)
    group_of[order] = group
    if (group_of[u[tight]] == group_of[v[tight]]).any():
        raise NotImplementedError("weights of zero, or so small that sums do not grow")
    has_ties = np.diff(begins) > 1
    has_ties[0] = False  # the sources
    tight = tight[has_ties[group_of[v[tight]]]]
    tight = tight[np.argsort(group_of[v[tight]], kind="stable")]
    cuts = np.searchsorted(group_of[v[tight]], np.arange(begins.size))
    for tied in np.flatnonzero(has_ties):
        entries = tight[cuts[tied] : cuts[tied + 1]]
        # Entries are numbered along rows, and rows are scanned by the rank of sources.
        met = v[entries[np.lexsort((entries, rank[u[entries]]))]]
        _, first = np.unique(met, return_index=True)
        rank[met[np.sort(first)]] = np.arange(begins[tied], begins[tied + 1])
    ordered = np.empty_like(order)
    ordered[rank[order]] = order
    return ordered


def entries_of(graph: NetworkXGraph) -> tuple[Array, Array, Array]:
    """Return both ends and the given edge of the entries of all rows.

    Each of several repeated edges has an entry; these entries are adjacent.
    """
    offsets, neighbors = graph.neighbors
    rows = np.repeat(np.arange(len(graph)), np.diff(offsets))
    given = np.arange(graph.number_of_edges())
    if graph.is_directed() and neighbors.size == given.size:
        return rows, neighbors, given
    low, high = np.minimum(rows, neighbors), np.maximum(rows, neighbors)
    ends = graph.sources.astype(np.int64), graph.targets.astype(np.int64)
    if graph.is_directed():
        low, high = rows, neighbors
    else:
        ends = np.minimum(*ends), np.maximum(*ends)
    # Both ends are below 2**31: one int64 has the pair, and sorts like it.
    wanted, keys = low.astype(np.int64) << 32 | high, ends[0] << 32 | ends[1]
    by_key = np.argsort(keys, kind="stable")
    first = np.searchsorted(keys[by_key], wanted)
    repeats = np.searchsorted(keys[by_key], wanted, "right") - first
    at = np.repeat(first - np.cumsum(repeats) + repeats, repeats)
    edge = by_key[at + np.arange(at.size)]
    return np.repeat(rows, repeats), np.repeat(neighbors, repeats), edge


def _start(graph: NetworkXGraph, sources: Iterable[Hashable]) -> Array:
    for source in sources:
        if source not in graph:
            raise nx.NodeNotFound(f"Node {source} not found in graph")
    return np.array([graph.index[source] for source in dict.fromkeys(sources)])


def multi_source_dijkstra_path_length(
    G: NetworkXGraph, sources: Any, cutoff: float | None = None, weight: Any = "weight"
) -> dict[Hashable, Any]:
    """Return distances from the nearest source node.

    See `networkx.multi_source_dijkstra_path_length`.
    """
    if not sources:
        raise ValueError("sources must not be empty")
    return lengths_of_paths(G, search(G, _start(G, sources), weight, cutoff))


def single_source_dijkstra_path_length(
    G: NetworkXGraph,
    source: Hashable,
    cutoff: float | None = None,
    weight: Any = "weight",
) -> dict[Hashable, Any]:
    """Return distances from a node; `networkx.single_source_dijkstra_path_length`."""
    return lengths_of_paths(G, search(G, _start(G, {source}), weight, cutoff))


def single_source_dijkstra_path(
    G: NetworkXGraph,
    source: Hashable,
    cutoff: float | None = None,
    weight: Any = "weight",
) -> dict[Hashable, list[Hashable]]:
    """Find paths from one node; `networkx.single_source_dijkstra_path`."""
    return paths_of(G, search(G, _start(G, {source}), weight, cutoff))


def single_source_dijkstra(
    G: NetworkXGraph,
    source: Hashable,
    target: Hashable | None = None,
    cutoff: float | None = None,
    weight: Any = "weight",
) -> tuple[dict[Hashable, Any], dict[Hashable, list[Hashable]]]:
    """Find lengths and paths; `networkx.single_source_dijkstra`."""
    found = search(G, _start(G, {source}), weight, cutoff)
    return lengths_of_paths(G, found), paths_of(G, found)


def lengths_of_paths(graph: NetworkXGraph, found: Found) -> dict[Hashable, Any]:
    """Return the distance of each node that a search has found, in its order."""
    return dict(zip(graph.named(found.order), found.distances, strict=True))


def paths_of(graph: NetworkXGraph, found: Found) -> dict[Hashable, list[Hashable]]:
    """Return paths from one source, along the first tight edge into each node."""
    rank = np.full(len(graph), len(graph))
    rank[found.order] = np.arange(found.order.size)
    u, v = found.tight
    before = np.full(len(graph), len(graph))
    np.minimum.at(before, v, rank[u])
    nodes = graph.named(found.order)
    paths: list[list[Hashable]] = [[nodes[0]]]
    for node, place in zip(nodes[1:], before[found.order][1:].tolist(), strict=True):
        paths.append([*paths[place], node])
    return dict(zip(nodes, paths, strict=True))
