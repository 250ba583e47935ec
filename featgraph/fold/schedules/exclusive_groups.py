"""Schedules of exclusive functions in groups without conflicts, or in tasks.

There is a barrier between groups, and any worker takes any edge of a group. A *task* is
a list of edges that one worker runs one after the other; tasks of a turn have no
conflicts with each other.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from featgraph.fold.schedules.exclusive import OWN, EdgesToGroup, ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import EdgeSweep

__all__ = [
    "BlockDiagonalSchedule",
    "BlocksSchedule",
    "DiagonalSchedule",
    "LevelSchedule",
    "MatchingEdgeSchedule",
    "MatchingNodeSchedule",
    "RacySchedule",
    "RowsSchedule",
    "SerialSchedule",
    "SubgraphMatchingSchedule",
]

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups


#: Vertices of a block, without the option `block_vertices`.
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
    """Return one barrier a group, and a chain of one update a group."""
    groups = min(groups, sweep.sizes.edges)
    return groups, groups * (sweep.free_us + more_us)


class LevelSchedule(ExclusiveSchedule):
    """The level of an edge is one more than the levels of earlier edges at its ends.

    The result is that of `serial`, bit by bit.
    """

    name = "levels"
    does = "levels that keep the order at each vertex, one after the other"
    prepare_ns = 80

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the levels, or matchings; all edges where none conflict."""
        from featgraph.graph.views import edge_orders

        if not edges.conflicts:
            return at_once(edges)
        ends, grouped = (edges.sources, edges.targets), getattr(edge_orders, self.name)
        return grouped(*ends, edges.order, edges.vertex_count, edges.conflicts)  # type: ignore[no-any-return]

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the levels: in shuffled order 1.01 to 1.13 d."""
        return in_groups(sweep, 1.05 * sweep.degree, 0.0)


class MatchingEdgeSchedule(LevelSchedule):
    """Repeated maximal matchings of the remaining edges (AGM-E)."""

    name = "matching_edges"
    does = "maximal matchings, one after the other"
    prepare_ns = 260

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
        sizes, count = sweep.sizes, max(sweep.sizes.vertices[1], BLOCK_VERTICES)
        # The highest degree of T vertices of V, if V vertices reach d and if numbers of
        # vertices fall exponentially with the degree: 5.96 of 12 on a road, for 6.87.
        mean, share = sizes.edges / count, math.log(BLOCK_VERTICES) / math.log(count)
        most = -(-count // BLOCK_VERTICES) * (mean + (sweep.degree - mean) * share)
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
    is_selectable = False
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


#: Parts of each side on the CPU, and most of them on CUDA.
CPU_PARTS, MOST_PARTS = 32, 1024
#: Of more parts, blocks have no number in 32 bits.
MOST_NUMBERED = 46340
#: Time of a round until its first edges run, beside its barrier (us).
START_US = 3
#: Parts for each E / d_m: no round takes less than the edges of a part's hub.
PARTS_A_HUB = 3


class SerialSchedule(ExclusiveSchedule):
    """One worker runs all edges in the order."""

    name = "serial"
    in_tasks = True
    does = "edges in the order, one after the other"
    prepare_ns = 50

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return one task."""
        from featgraph.graph.views.edge_orders import EdgeGroups

        whole = np.array([0, len(edges.order)])
        return EdgeGroups(edges.order, whole, np.array([0, 1]))

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a chain of all edges."""
        return 0.0, sweep.sizes.edges * sweep.free_us


def parts_of(edges: int, degree: int) -> float:
    """Return the number of parts of each side (CUDA)."""
    return max(min(PARTS_A_HUB * edges / max(degree, 1), MOST_PARTS), 1)


class BlocksSchedule(ExclusiveSchedule):
    """Blocks without a common row or column, in rounds (FPSGD, DSGD).

    Both sides are shuffled and cut into S parts with about equal numbers of edges.
    """

    name = "blocks"
    needs_sides = True
    in_tasks = True
    options = MappingProxyType({"parts": OWN})
    does = "S rounds of S blocks without a common vertex"
    prepare_ns = 122

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return S rounds of S tasks."""
        from featgraph.graph.views.edge_orders import blocks, by_target, degrees_of

        both, order = (edges.sources, edges.targets), edges.order
        parts = edges.options.get("parts", CPU_PARTS)
        if not (edges.on_cpu or "parts" in edges.options):
            degrees = (degrees_of(ends, edges.vertex_count) for ends in both)
            most = max(int(degree.max(initial=1)) for degree in degrees)
            parts = int(parts_of(len(order), most))
        # A thread has several edges on the way, if they do not wait for one row: with
        # the edges of a target in a row, a sweep of ml-1m took 13 ms, and takes 4.
        ends = (*both, order if edges.on_cpu else by_target(edges.targets, order))
        sizes = edges.vertex_count, edges.first, min(max(parts, 1), MOST_NUMBERED)
        return blocks(*ends, *sizes, edges.seed)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the rounds, each as long as its longest block."""
        edges, parts = sweep.sizes.edges, parts_of(sweep.sizes.edges, sweep.degree)
        # The largest of S numbers around E / S^2. With the edges of a hub this is
        # 2.1 / 1.4 / 1.2 d at S = 256 / 512 / 1024, for 2.03 / 1.33 / 1.12.
        longest = edges / parts + math.sqrt(2 * edges * math.log(parts))
        chain = math.hypot(sweep.degree, longest) * sweep.held_us
        return parts, chain + parts * START_US


class BlockDiagonalSchedule(ExclusiveSchedule):
    """Diagonals of blocks of T x T (BlkDiag)."""

    name = "block_diagonal"
    needs_sides = True
    in_tasks = True
    options = MappingProxyType({"block_vertices": OWN})
    does = "diagonals of blocks of vertices, one after the other"
    prepare_ns = 105

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return a turn for each diagonal, and a task for each block."""
        from featgraph.graph.views.edge_orders import block_diagonal

        ends = edges.sources, edges.targets, edges.order
        return block_diagonal(*ends, edges.first, block_vertices(edges))

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return those of the diagonals, each as long as its longest block."""
        sizes, turns = sweep.sizes, sweep.sizes.diagonals_of(BLOCK_VERTICES)
        even = sizes.edges * BLOCK_VERTICES / max(min(sizes.vertices), BLOCK_VERTICES)
        # A block of a hub, an even block, and a few edges of thin diagonals, fitted to
        # seven shapes of `bench.sgd.shapes`; too few where edges gather in few blocks.
        chain = (3 * sweep.degree + even + 3 * turns) * sweep.held_us
        return turns, chain + turns * START_US


class RowsSchedule(ExclusiveSchedule):
    """One worker runs all edges of a vertex at the conflicting end.

    The result is that of `serial`, bit by bit.
    """

    name = "rows"
    in_tasks = True
    fitting = 7  # at most 72 registers
    does = "the edges of each vertex at the end that conflicts, in the order"
    prepare_ns = 90

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return a task for each vertex that has edges."""
        from featgraph.graph.views.edge_orders import rows

        return rows(edges.sources, edges.targets, edges.order, edges.conflicts)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a chain of the longest row."""
        if len(sweep.conflicts) != 1:
            return math.inf, math.inf
        return 0.0, sweep.degree * sweep.held_us
