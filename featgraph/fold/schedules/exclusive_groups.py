"""Schedules whose turns are groups of edges without conflicts.

A barrier stands between groups. Any worker takes any edge of a group.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from featgraph.fold.schedules.exclusive import OWN, EdgesToGroup, ExclusiveSchedule

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups

__all__ = [
    "DiagonalSchedule", "LevelSchedule", "MatchingEdgeSchedule", "MatchingNodeSchedule",
    "RacySchedule", "SubgraphMatchingSchedule",
]  # fmt: skip

#: Vertices of a block, unless `block_vertices` says how many.
BLOCK_VERTICES = 256


def block_vertices(edges: EdgesToGroup) -> int:
    """Return T, the vertices of a block."""
    return edges.options.get("block_vertices", BLOCK_VERTICES)


def at_once(edges: EdgesToGroup) -> EdgeGroups:
    """Return all edges as one group."""
    from featgraph.graph.views.edge_orders import EdgeGroups

    return EdgeGroups(edges.order, np.array([0, len(edges.order)]))


class LevelSchedule(ExclusiveSchedule):
    """An edge is in the level behind the last one before it at its ends.

    The result is that of `serial`, bit by bit.
    """

    name = "levels"
    does = "levels that keep the order at each vertex, one after the other"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the levels; all edges where none conflict."""
        from featgraph.graph.views.edge_orders import levels

        if not edges.conflicts:
            return at_once(edges)
        ends = edges.sources, edges.targets, edges.order
        return levels(*ends, edges.vertex_count, edges.conflicts)


class MatchingEdgeSchedule(ExclusiveSchedule):
    """Maximal matchings of all edges that are left (AGM-E)."""

    name = "matching_edges"
    does = "maximal matchings, one after the other"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the matchings; all edges where none conflict."""
        from featgraph.graph.views.edge_orders import matching_edges

        if not edges.conflicts:
            return at_once(edges)
        ends = edges.sources, edges.targets, edges.order
        return matching_edges(*ends, edges.vertex_count, edges.conflicts)


class MatchingNodeSchedule(ExclusiveSchedule):
    """The same matchings, by blocks of vertices of the second side (AGM-N)."""

    name = "matching_nodes"
    needs_sides = True
    options = MappingProxyType({"block_vertices": OWN})
    does = "maximal matchings, block of vertices by block"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the matchings of each block."""
        from featgraph.graph.views import edge_orders

        ends = edges.sources, edges.targets, edges.order
        sizes = edges.vertex_count, edges.first
        matchings = getattr(edge_orders, self.name)
        return matchings(*ends, *sizes, block_vertices(edges))  # type: ignore[no-any-return]


class SubgraphMatchingSchedule(MatchingNodeSchedule):
    """Matchings of each block of vertices, by falling degree, by itself (SGM)."""

    name = "subgraph_matching"
    does = "maximal matchings of each block of vertices by itself"


class DiagonalSchedule(ExclusiveSchedule):
    """Edges with equal v - u (Diag)."""

    name = "diagonal"
    needs_sides = True
    does = "the diagonals v - u that have edges, one after the other"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the diagonals."""
        from featgraph.graph.views.edge_orders import diagonal

        return diagonal(edges.sources, edges.targets, edges.order)


class RacySchedule(ExclusiveSchedule):
    """All edges at once, without exclusion (Hogwild)."""

    name = "racy"
    is_asked_for = False
    is_repeatable = False
    resident = 8
    does = "all edges at once, without exclusion"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group."""
        return at_once(edges)
