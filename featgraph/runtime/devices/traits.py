"""What plans depend on of a graph."""

from __future__ import annotations

import weakref

import numpy as np

from featgraph.fold.plan import schedules
from featgraph.fold.plan.schedules import GraphTraits
from featgraph.graph import Graph
from featgraph.runtime.devices.protocol import HUB_DEGREE

__all__ = ["graph_traits", "needs_wide_positions"]

#: No block works on more edges at a time: it has at most that many threads.
_MOST_SLOTS = 1024


def needs_wide_positions(edge_count: int) -> bool:
    """Whether positions of edges need 64 bits in a kernel.

    A position may step past the end of its row by the edges that a block works on at a
    time, so 32 bits do not quite reach as far as they do for the offsets themselves.
    """
    return edge_count >= 2**31 - _MOST_SLOTS


_traits: weakref.WeakKeyDictionary[Graph, GraphTraits] = weakref.WeakKeyDictionary()


def graph_traits(graph: Graph) -> GraphTraits:
    """Return what plans depend on of a graph."""
    known = _traits.get(graph)
    if known is not None:
        return known
    top = max(int(graph.in_degree.max(initial=0)), int(graph.out_degree.max(initial=0)))
    _traits[graph] = made = GraphTraits(
        typical_degree=_typical_degree(graph),
        has_hubs=top >= HUB_DEGREE,
        wide_offsets=needs_wide_positions(graph.edge_count),
        undirected=not graph.directed,
        wide_both=graph.directed and needs_wide_positions(2 * graph.edge_count),
        long_rows=top > schedules.SUM_BLOCK,
    )
    return made


def _typical_degree(graph: Graph) -> int:
    """Return the in-degree at three quarters of the edges, down to a power of two."""
    ends = np.cumsum(
        np.bincount(graph.in_degree) * np.arange(graph.in_degree.max() + 1)
    )
    quartile = int(np.searchsorted(ends, 0.75 * graph.edge_count))
    return min(64, 1 << max(quartile.bit_length() - 1, 0))
