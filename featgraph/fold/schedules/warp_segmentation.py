"""Schedules in which a warp walks the edges of several vertices together.

`WarpSegmentationSchedule` takes consecutive vertices (segments).
`BalancedPushSchedule` gives warps equal shares of the edges of all sources (Onyx's
balanced push).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping as Dict
from typing import ClassVar

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.schedules.base import Binding, GraphArray, KernelShape, Scope
from featgraph.fold.schedules.lanes import (
    FEW_LONG_ROWS,
    LaneSchedule,
    lanes_of,
    leave_idle,
    leaves_matrices,
    marked,
)
from featgraph.fold.schedules.mapping import (
    WARP,
    LaunchSizes,
    Mapping,
    Work,
    bounded,
    resident_blocks,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["BalancedPushSchedule", "WarpSegmentationSchedule"]

#: Option of "warp_segmentation": edges of a lane in flight.
OPTION = "edges_at_a_time"
#: Edges of a lane in flight: of one, two and four, four were 1.3 to 2.4 times faster
#: than one with scalars (prototype, NVIDIA H200).
AT_A_TIME = 4
#: Most values of a lane for edges in flight: each edge takes one for each feature.
MOST_ON_THE_WAY = 8
#: Approximate rounds of a warp over the edges of its window, if each group of lanes
#: takes one edge a round: with scalars 1024 edges, half of the longest row that is no
#: hub. Smaller windows have fewer vertices than groups on graphs of even degrees.
ROUNDS = 32

#: Least typical degrees, without and with keys and sources, for which segments are
#: chosen on a graph with many long rows (K = 1). On graphs of 16 to 64 (uniform, R-MAT,
#: web-NotreDame, kron21), components, circuits, heat, neural networks and PageRank took
#: 0.72 to 0.95 of the time of lanes; on a Delaunay graph (4), 1.35 to 1.76. Paths,
#: whose keys have sources and whose supersteps have few vertices, took 0.83 to 0.86 on
#: graphs of 64, 1.06 to 1.12 on those of 16 and 32 (NVIDIA H200,
#: bench/results/schedules-gpu-supersteps.jsonl).
LEAST_DEGREE, LEAST_DEGREE_OF_KEYS = 16, 64
#: Time of segments over that of lanes, in these cases.
COST = 0.84
#: Resident blocks for windows of scalars, and bytes of a scalar. So many blocks leave a
#: thread 48 registers, as many as the walk over a window took by itself; bounded to
#: them, the second walk, along one long row, takes no more (sm_90).
WINDOW_BLOCKS, SCALAR_BYTES = 10, 4


class WarpSegmentationSchedule(LaneSchedule):
    """Each group of lanes owns a vertex, and processes edges of any vertex of the warp.

    A warp has a window of consecutive vertices: as many as it has groups of lanes, or
    fewer, so that windows have similar numbers of edges. Binary search in prefix sums
    of the degrees finds the vertex of an edge. Shuffles combine contributions to a row
    into the lanes of its vertex. Rows of vertices that are not due count as empty. Hubs
    are left to blocks.
    """

    name = "warp_segmentation"
    options: ClassVar[Dict[str, tuple[int, ...]]] = {OPTION: (1, 2, 4)}
    modules = ("segments",)
    finds_due = False

    def cost(self, work: Work) -> float:
        """Return its cost, finite where walking several vertices together pays.

        Keys with sources double the shuffles, which only long rows make up for, and
        early exits have no effect.
        """
        least = LEAST_DEGREE_OF_KEYS if work.has_keys else LEAST_DEGREE
        fits = work.pulls and work.width == 1 and work.is_plain
        fits = fits and not (work.forced or work.keeps_state)
        pays = work.rows_of_longest >= FEW_LONG_ROWS and work.typical_degree >= least
        return COST if fits and pays else math.inf

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping: a group of lanes for an edge is that of a vertex."""
        if not work.sweeps_edges:
            return mapping
        if leaves_matrices(mapping, work):
            raise PlanError(
                "the warp_segmentation schedule cannot hold matrices in memory",
                where="schedule='warp_segmentation'",
                fix="use schedule='lanes'",
            )
        # In padded rows, the masks of features take registers, too: with two features a
        # lane of 33, and four edges in flight, the walk of a random walker spilled
        # (sm_90).
        padded = mapping.is_padded(work.width)
        fit = max(MOST_ON_THE_WAY // (mapping.features_per_lane + padded), 1)
        fit = 1 << (fit.bit_length() - 1)
        at_a_time = options.get(OPTION, min(AT_A_TIME, fit))
        at_a_time = min(at_a_time, fit) if padded else at_a_time
        return replace(
            mapping,
            schedule=self.name,
            lanes_per_vertex=mapping.lanes_per_edge,
            unroll=at_a_time,
            window=0
            if mapping.lanes_per_edge == WARP
            else ROUNDS * (WARP // mapping.lanes_per_edge),
        )

    def tune(self, mapping: Mapping, work: Work) -> Mapping:
        """Return its mapping with a bound on registers, for both walks of a kernel."""
        is_one = work.pulls and work.is_plain and not work.has_keys
        if is_one and mapping.window and work.width * work.size <= SCALAR_BYTES:
            return bounded(mapping, WINDOW_BLOCKS)
        return bounded(mapping, resident_blocks(mapping, work))

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the list of the first vertices of all windows."""
        if not mapping.window or frontier_form != "plain":
            return ()
        rows = WARP // mapping.lanes_per_edge
        return (GraphArray("windows", f"{{windows}} {rows} {mapping.window}"),)

    def places(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of threads with work: one warp for each window."""
        if not self.arrays(mapping):
            return super().places(mapping, sizes)
        return (int(sizes.argument("windows").size) - 1) * WARP

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        rows = WARP // mapping.lanes_per_edge
        window = f" or {mapping.window} edges" if mapping.window else ""
        more = f" x {mapping.unroll}" if mapping.unroll > 1 else ""
        return (
            f"{rows} vertices{window} a warp, side by side: {rows}{more} edges at a "
            f"time, {mapping.shares}{mapping.of_hubs} (FA)"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = super().bind(mapping, shape)
        at_a_time = mapping.unroll if shape.pulls else 1
        rows = WARP // mapping.lanes_per_edge
        together = Walk("together", rows, "edge_lane", "warp", at_a_time)
        alone = replace(binding.walk, at_a_time=1)
        scopes = {**binding.scopes, "row": Scope(WARP)}
        return replace(binding, walk=alone, together=together, scopes=scopes)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        out = lanes_of(binding, "cuda.laneid")
        if shape.frontier_form != "plain" or binding.features.lanes == WARP:
            return out + self._each(node, binding, shape)
        return out + self._windows(node, binding, shape)

    def _windows(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the warp-uniform loop over windows."""
        body, vertex = node.body, node.vertex
        if binding.features.lanes == 1:
            for flag, words in node.marks:
                body = body + code(f"warp.set_bits_from({words}, first_vertex, {flag})")
        else:
            body = body + marked(node, binding, shape)
        is_due = f" and warp.test_bit({node.words}, index)" if node.words else ""
        each = code(
            "first_vertex = windows[window]\n"
            "window_end = windows[window + 1]\n"
            "index = int32(first_vertex + edge_lane)\n"
            f"{node.wanted} = index < window_end{is_due}"
        )
        each += leave_idle(node, "return" if shape.covers else "continue")
        each += code(f"{vertex} = min(index, int32(window_end - 1))") + body
        if shape.covers:
            out = code("window = int32(cuda.grid(1) >> 5)")
            end = noted([ast.Return()], "the whole warp: it has no window")
            out += agreed(when(["window >= windows.size - 1"], end), "warp")
            return out + each
        loop = code(
            "for window in range(int32(cuda.grid(1) >> 5), int32(windows.size - 1), "
            "int32(cuda.gridsize(1) >> 5)):\n    BODY",
            BODY=each,
        )
        return agreed(loop, "warp")


class BalancedPushSchedule(LaneSchedule):
    """Distribute edges equally over warps, by prefix sums of the degrees of sources.

    Each warp takes the same number of edges, wherever rows begin and end, so there are
    no hubs. Lanes that share the features of an edge find its source by binary search.
    """

    name = "balanced_push"
    modules = ("segments",)
    frontier_forms = ()
    #: The list of sources, its prefix sums of degrees, and its length.
    lists = tuple(map(GraphArray, ("share_rows", "share_begins", "share_count")))

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping, for phases in which sources push along edges."""
        if work.from_sources:
            return replace(
                mapping,
                schedule=self.name,
                lanes_per_vertex=mapping.lanes_per_edge,
                hubs=False,
                lists_rows=True,
            )
        if work.sweeps_edges:
            raise PlanError(
                "the balanced_push schedule divides the edges that sources push along, "
                "but these gathers are pulled",
                where="schedule='balanced_push'",
                expected="direction='push', and change_driven=False in a run",
                fix="add direction='push', or use schedule='warp_segmentation'",
            )
        return mapping

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks that share the edges."""
        return sizes.shared_out(sizes.edges * mapping.lanes_per_vertex)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return (
            "equal shares of edges a warp, "
            f"{WARP // mapping.lanes_per_edge} of them at a time, {mapping.shares} (FA)"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = super().bind(mapping, shape)
        edges = WARP // mapping.lanes_per_edge
        together = Walk("together", edges, "edge_lane", "warp", is_shared=True)
        return replace(binding, together=together)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges; the list replaces the loop over vertices."""
        return lanes_of(binding, "cuda.laneid") + node.body
