"""Schedules whose turns are groups of edges without conflicts.

A barrier stands between groups. Any worker takes any edge of a group.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from featgraph.fold.schedules.exclusive import OWN, EdgesToGroup, ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import EdgeSweep

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


#: In matchings, what a group takes beside its barrier and its update: the last ones are
#: thin, and one worker looks up all their edges (0.3 to 1.2 us, H200, 2026-11-28).
THIN_US = 0.8


def in_groups(
    sweep: EdgeSweep, groups: float, more_us: float = THIN_US
) -> tuple[float, float]:
    """Return a barrier for each group, and a chain of an update in each."""
    groups = min(groups, sweep.sizes.edges)
    return groups, groups * (sweep.free_us + more_us)


class LevelSchedule(ExclusiveSchedule):
    """An edge is in the level behind the last one before it at its ends.

    The result is that of `serial`, bit by bit.
    """

    name = "levels"
    does = "levels that keep the order at each vertex, one after the other"
    prepare_ns = 80

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the levels; all edges where none conflict."""
        from featgraph.graph.views.edge_orders import levels

        if not edges.conflicts:
            return at_once(edges)
        ends = edges.sources, edges.targets, edges.order
        return levels(*ends, edges.vertex_count, edges.conflicts)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the levels: in shuffled order 1.01 to 1.13 d."""
        return in_groups(sweep, 1.05 * sweep.degree, 0.0)


class MatchingEdgeSchedule(ExclusiveSchedule):
    """Maximal matchings of all edges that are left (AGM-E)."""

    name = "matching_edges"
    does = "maximal matchings, one after the other"
    prepare_ns = 260

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the matchings; all edges where none conflict."""
        from featgraph.graph.views.edge_orders import matching_edges

        if not edges.conflicts:
            return at_once(edges)
        ends = edges.sources, edges.targets, edges.order
        return matching_edges(*ends, edges.vertex_count, edges.conflicts)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the matchings: first fit takes d on real ratings."""
        return in_groups(sweep, sweep.degree)


class MatchingNodeSchedule(ExclusiveSchedule):
    """The same matchings, by blocks of vertices of the second side (AGM-N)."""

    name = "matching_nodes"
    needs_sides = True
    options = MappingProxyType({"block_vertices": OWN})
    does = "maximal matchings, block of vertices by block"
    prepare_ns = 350

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the matchings of each block."""
        from featgraph.graph.views import edge_orders

        ends = edges.sources, edges.targets, edges.order
        sizes = edges.vertex_count, edges.first
        matchings = getattr(edge_orders, self.name)
        return matchings(*ends, *sizes, block_vertices(edges))  # type: ignore[no-any-return]

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the matchings that some edge of a block is in."""
        sizes = sweep.sizes
        most = max(-(-sizes.vertices[1] // BLOCK_VERTICES) * sweep.degree, 1)
        # Fewer than of edges at random: blocks of light vertices have few colors.
        return in_groups(sweep, most * -math.expm1(-0.4 * sizes.edges / most))


class SubgraphMatchingSchedule(MatchingNodeSchedule):
    """Matchings of each block of vertices, by falling degree, by itself (SGM)."""

    name = "subgraph_matching"
    does = "maximal matchings of each block of vertices by itself"

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the matchings: block by block, the highest degree of each."""
        # The sum of d / (1 + i / c) over every T-th vertex i, where edges are that
        # over all: 5,843 for 5,528 (ml-1m, T = 256), 894 for 947 (ml-100k).
        return in_groups(sweep, sweep.degree + sweep.sizes.edges / BLOCK_VERTICES)


class DiagonalSchedule(ExclusiveSchedule):
    """Edges with equal v - u (Diag)."""

    name = "diagonal"
    needs_sides = True
    does = "the diagonals v - u that have edges, one after the other"
    prepare_ns = 120

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the diagonals."""
        from featgraph.graph.views.edge_orders import diagonal

        return diagonal(edges.sources, edges.targets, edges.order)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of all diagonals, or of those that are known to have edges."""
        return in_groups(sweep, sweep.sizes.diagonals_of(1), 0.0)


class RacySchedule(ExclusiveSchedule):
    """All edges at once, without exclusion (Hogwild)."""

    name = "racy"
    is_asked_for = False
    is_repeatable = False
    resident = 8
    does = "all edges at once, without exclusion"
    prepare_ns = 60

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group."""
        return at_once(edges)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return none."""
        return 0.0, 0.0
