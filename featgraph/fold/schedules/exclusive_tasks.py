"""Schedules whose workers take tasks: edges that run one after the other."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from featgraph.fold.schedules.exclusive import OWN, EdgesToGroup, ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import EdgeSweep
from featgraph.fold.schedules.exclusive_groups import BLOCK_VERTICES, block_vertices

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups

__all__ = ["BlockDiagonalSchedule", "BlocksSchedule", "RowsSchedule", "SerialSchedule"]

#: Parts of each side on the CPU, and most of them on CUDA.
CPU_PARTS, MOST_PARTS = 32, 1024
#: Of more parts, blocks have no number in 32 bits.
MOST_NUMBERED = 46340
#: What a round takes until its first edges run, beside its barrier (us).
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
    """Return how many parts of each side there are on CUDA."""
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
        from featgraph.graph.views.edge_orders import blocks, by_target

        parts = edges.options.get("parts", CPU_PARTS)
        if not (edges.on_cpu or "parts" in edges.options):
            both = edges.sources, edges.targets
            most = max(np.bincount(ends).max(initial=1) for ends in both)
            parts = int(parts_of(len(edges.order), int(most)))
        # A thread has several edges on the way, if they do not wait for one row: with
        # the edges of a target in a row, a sweep of ml-1m took 13 ms, and takes 4.
        both, order = (edges.sources, edges.targets), edges.order
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
        # seven shapes of `bench.sgd.shapes`; far off where few diagonals have edges.
        chain = (3 * sweep.degree + even + 3 * turns) * sweep.held_us
        return turns, chain + turns * START_US


class RowsSchedule(ExclusiveSchedule):
    """Each vertex at the end that conflicts has its edges run by one worker.

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
