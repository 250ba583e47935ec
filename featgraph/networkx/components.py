"""Connected components, in the order of NetworkX.

NetworkX orders components by their first node. A component's label is its smallest
vertex, and vertices are numbered in the order of nodes, so ascending labels give the
same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import networkx as nx
import numpy as np

from featgraph.algorithms.connected_components import (
    connected_components as featgraph_connected_components,
)
from featgraph.algorithms.strong_components import strongly_connected_components
from featgraph.networkx.graph import NetworkXGraph

__all__ = [
    "connected_components",
    "is_connected",
    "is_strongly_connected",
    "is_weakly_connected",
    "node_connected_component",
    "number_connected_components",
    "number_strongly_connected_components",
    "number_weakly_connected_components",
    "weakly_connected_components",
]


def _sets(graph: NetworkXGraph) -> Iterator[set[Hashable]]:
    if len(graph) == 0:
        return
    labels = featgraph_connected_components(graph.topology).labels
    order = np.argsort(labels, kind="stable")
    nodes = graph.named(order)
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    ends = [*cuts.tolist(), len(nodes)]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield set(nodes[begin:end])


def _count(graph: NetworkXGraph) -> int:
    return featgraph_connected_components(graph.topology).count if len(graph) else 0


def _is_one(graph: NetworkXGraph) -> bool:
    if len(graph) == 0:
        raise nx.NetworkXPointlessConcept(
            "Connectivity is undefined for the null graph."
        )
    return _count(graph) == 1


def connected_components(G: NetworkXGraph) -> Iterator[set[Hashable]]:
    """Yield components; `networkx.connected_components`."""
    yield from _sets(G)


def number_connected_components(G: NetworkXGraph) -> int:
    """Count components; `networkx.number_connected_components`."""
    return _count(G)


def is_connected(G: NetworkXGraph) -> bool:
    """Return whether there is one component; `networkx.is_connected`."""
    return _is_one(G)


def node_connected_component(G: NetworkXGraph, n: Any) -> set[Hashable]:
    """Return the component of a node; `networkx.node_connected_component`."""
    vertex = G.index[n]
    labels = featgraph_connected_components(G.topology).labels
    return set(G.named(np.flatnonzero(labels == labels[vertex])))


def weakly_connected_components(G: NetworkXGraph) -> Iterator[set[Hashable]]:
    """Yield components; `networkx.weakly_connected_components`."""
    yield from _sets(G)


def number_weakly_connected_components(G: NetworkXGraph) -> int:
    """Count components; `networkx.number_weakly_connected_components`."""
    return _count(G)


def is_weakly_connected(G: NetworkXGraph) -> bool:
    """Return whether there is one component; `networkx.is_weakly_connected`."""
    return _is_one(G)


def number_strongly_connected_components(G: NetworkXGraph) -> int:
    """Count components; `networkx.number_strongly_connected_components`."""
    return strongly_connected_components(G.topology).count if len(G) else 0


def is_strongly_connected(G: NetworkXGraph) -> bool:
    """Return whether there is one component; `networkx.is_strongly_connected`."""
    if len(G) == 0:
        raise nx.NetworkXPointlessConcept(
            "Connectivity is undefined for the null graph."
        )
    return bool(number_strongly_connected_components(G) == 1)
