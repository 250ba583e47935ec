"""Breadth-first search and connected components, in the order of NetworkX.

A kernel computes the levels of a search. `in_order` derives the order in which NetworkX
discovers the vertices of a level, from the order of the previous level and of its
dictionaries. `lengths_of` reads lengths of edges for searches by weight.

NetworkX orders components by their first node. A component's label is its smallest
vertex, and vertices are numbered in the order of nodes, so ascending labels give the
same order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms._paths import first_lost_length
from featgraph.algorithms.strong_components import strongly_connected_components
from featgraph.networkx.graph import NetworkXGraph

__all__ = [
    "MAX_EXACT",
    "bfs_layers",
    "connected_components",
    "descendants_at_distance",
    "is_connected",
    "is_strongly_connected",
    "is_weakly_connected",
    "lengths_of",
    "node_connected_component",
    "number_connected_components",
    "number_strongly_connected_components",
    "number_weakly_connected_components",
    "single_source_shortest_path_length",
    "weakly_connected_components",
]


Array = npt.NDArray[Any]


def in_order(graph: NetworkXGraph, levels: Array, first: Array) -> Iterator[Array]:
    """Yield the vertices of each level in the order in which NetworkX discovers them.

    A search scans the rows of a level in order, and each row in its own order.

    Parameters
    ----------
    graph : NetworkXGraph
    levels : ndarray of int, shape (V,)
        -1 for vertices that are not reached.
    first : ndarray of int
        The vertices of level 0, in order.
    """
    return (layer for layer, _ in met_in_order(graph, levels, first))


def met_in_order(
    graph: NetworkXGraph, levels: Array, first: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield the vertices of each level, and the vertex in whose row each was found.

    Vertices of level 0 are their own predecessors.
    """
    offsets, neighbors = graph.neighbors
    place = np.empty(len(levels), np.int64)
    last = int(levels.max(initial=0))
    layer = first
    yield layer, first
    for level in range(1, last + 1):
        begin, degree = offsets[layer], offsets[layer + 1] - offsets[layer]
        # Entries of all rows of the layer: 0, 1, 2, ... shifted to each row's begin.
        shift = np.repeat(begin - np.cumsum(degree) + degree, degree)
        met = neighbors[np.arange(shift.size) + shift]
        is_next = levels[met] == level
        met, row = met[is_next], np.repeat(layer, degree)[is_next]
        # Stored in reverse, so that the first occurrence of a vertex is stored last.
        place[met[::-1]] = np.arange(met.size)[::-1]
        is_first = place[met] == np.arange(met.size)
        layer = met[is_first].astype(np.int64)
        yield layer, row[is_first]


def levels_from(graph: NetworkXGraph, sources: Array, depth: float | None) -> Array:
    """Return the level of every vertex; -1 if not reached, or deeper than `depth`."""
    limit = None
    if depth is not None and depth < len(graph):
        limit = max(math.ceil(depth), 0)
    found = algorithms.bfs(graph.topology, sources, together=True, max_depth=limit)
    return np.asarray(found.levels)


def single_source_shortest_path_length(
    G: NetworkXGraph, source: Hashable, cutoff: float | None = None
) -> dict[Hashable, int]:
    """Count edges; `networkx.single_source_shortest_path_length`."""
    if source not in G:
        raise nx.NodeNotFound(f"Source {source} is not in G")
    start = np.array([G.index[source]])
    layers = list(in_order(G, levels_from(G, start, cutoff), start))
    sizes = [layer.size for layer in layers]
    lengths = np.repeat(np.arange(len(layers)), sizes).tolist()
    return dict(zip(G.named(np.concatenate(layers)), lengths, strict=True))


def bfs_layers(G: NetworkXGraph, sources: Any) -> Iterator[list[Hashable]]:
    """Search from one node or several; `networkx.bfs_layers`."""
    if sources in G:
        sources = [sources]
    begin = list(set(sources))
    for source in begin:
        if source not in G:
            raise nx.NetworkXError(f"The node {source} is not in the graph.")
    if begin:
        start = np.array([G.index[source] for source in begin])
        for layer in in_order(G, levels_from(G, start, None), start):
            yield G.named(layer)


def descendants_at_distance(
    G: NetworkXGraph, source: Hashable, distance: int
) -> set[Hashable]:
    """Return the nodes of one level; `networkx.descendants_at_distance`."""
    if source not in G:
        raise nx.NetworkXError(f"The node {source} is not in the graph.")
    if distance < 0 or distance != int(distance):
        return set()
    levels = levels_from(G, np.array([G.index[source]]), distance)
    return set(G.named(np.flatnonzero(levels == distance)))


# -- lengths of edges


#: Sums of integers below are exact in float64.
MAX_EXACT = 2**53


def lengths_of(graph: NetworkXGraph, attribute: str | None) -> npt.NDArray[Any] | None:
    """Return finite, nonnegative lengths in float64; None if all are one.

    Raises
    ------
    NotImplementedError
        If a path could be so long that integers are rounded, or that a positive length
        is lost in rounding. NetworkX sums integers exactly, and its result then depends
        on the order of its search.
    """
    weights = graph.weights_of(attribute)
    if weights is None:
        return None
    values = weights.finite(attribute)
    longest = len(graph) * values.max(initial=0)
    if (weights.are_integers or weights.is_mixed) and longest >= MAX_EXACT:
        raise NotImplementedError("sums of lengths of more than 53 bits")
    if first_lost_length(fg.given_array(values), len(graph)) is not None:
        raise NotImplementedError(f"values of {attribute!r} lost in rounding")
    return values


def connected_components(G: NetworkXGraph) -> Iterator[set[Hashable]]:
    """Yield components, in the order of their first nodes."""
    if len(G) == 0:
        return
    labels = algorithms.connected_components(G.topology).labels
    order = np.argsort(labels, kind="stable")
    nodes = G.named(order)
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    ends = [*cuts.tolist(), len(nodes)]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield set(nodes[begin:end])


def number_connected_components(G: NetworkXGraph) -> int:
    """Count components; `networkx.number_connected_components`."""
    return algorithms.connected_components(G.topology).count if len(G) else 0


def is_connected(G: NetworkXGraph) -> bool:
    """Return whether there is one component; `networkx.is_connected`."""
    _require_nodes(G)
    return number_connected_components(G) == 1


def _require_nodes(graph: NetworkXGraph) -> None:
    if len(graph) == 0:
        raise nx.NetworkXPointlessConcept(
            "Connectivity is undefined for the null graph."
        )


def node_connected_component(G: NetworkXGraph, n: Any) -> set[Hashable]:
    """Return the component of a node; `networkx.node_connected_component`."""
    vertex = G.index[n]
    labels = algorithms.connected_components(G.topology).labels
    return set(G.named(np.flatnonzero(labels == labels[vertex])))


# NetworkX has functions of other names for directed graphs. The components of the
# algorithm are weak ones if a graph is directed.
weakly_connected_components = connected_components
number_weakly_connected_components = number_connected_components
is_weakly_connected = is_connected


def number_strongly_connected_components(G: NetworkXGraph) -> int:
    """Count components; `networkx.number_strongly_connected_components`."""
    return strongly_connected_components(G.topology).count if len(G) else 0


def is_strongly_connected(G: NetworkXGraph) -> bool:
    """Return whether there is one component; `networkx.is_strongly_connected`."""
    _require_nodes(G)
    return number_strongly_connected_components(G) == 1
