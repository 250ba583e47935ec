"""A warp goes through the edges of consecutive vertices side by side (segments)."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import replace
from typing import ClassVar

from featgraph.errors import PlanError
from featgraph.fold.schedules.base import Binding, KernelShape, Scope
from featgraph.fold.schedules.lanes import LaneSchedule, lanes_of
from featgraph.fold.schedules.mapping import WARP, Mapping, Work
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body

__all__ = ["WarpSegmentationSchedule"]

OPTION = "edges_at_a_time"
#: Edges that a lane has on the way: of one, two and four, four were 1.3 to 2.4 times
#: faster than one with scalars (prototype, NVIDIA H200).
AT_A_TIME = 4
#: Values of a lane that edges on the way may take, each as many as it has features.
MOST_ON_THE_WAY = 8


class WarpSegmentationSchedule(LaneSchedule):
    """Lanes that share an edge have a vertex, and take any edge of the warp's vertices.

    Prefix sums of the degrees tell by binary search whose an edge is. What lanes take
    of a row is combined by shuffles into what the lanes of its vertex have. Vertices
    that are not due have no edges. Hubs are left to blocks.
    """

    name = "warp_segmentation"
    options: ClassVar[Dict[str, tuple[int, ...]]] = {OPTION: (1, 2, 4)}
    modules = ("segments",)

    def choose(self, mapping: Mapping, work: Work, given: Dict[str, int]) -> Mapping:
        """Have lanes that share an edge have a vertex, too."""
        if not work.sweeps_edges:
            return mapping
        if work.leaves_matrices:
            raise PlanError(
                "the warp_segmentation schedule cannot hold matrices in memory",
                where="schedule='warp_segmentation'",
                fix="ask for schedule='lanes'",
            )
        fit = max(MOST_ON_THE_WAY // mapping.copies, 1)
        at_a_time = given.get(OPTION, min(AT_A_TIME, 1 << (fit.bit_length() - 1)))
        return replace(
            mapping, schedule=self.name, span=mapping.lanes, unroll=at_a_time
        )

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        rows = WARP // mapping.lanes
        more = f" x {mapping.unroll}" if mapping.unroll > 1 else ""
        loads = f" in loads of {mapping.piece}" if mapping.piece > 1 else ""
        hubs = ", a block for each hub" if mapping.hubs else ""
        return (
            f"{rows} vertices a warp, whose edges lie side by side: {rows}{more} of "
            f"them at a time, {mapping.lanes} lanes x {mapping.copies} features"
            f"{loads}{hubs} (FA)"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        binding = super().bind(mapping, shape)
        at_a_time = mapping.unroll if shape.kind == "vertex" else 1
        rows = WARP // mapping.lanes
        together = Walk("together", rows, "slot", "warp", at_a_time)
        alone = replace(binding.walk, at_a_time=1)
        scopes = {**binding.scopes, "row": Scope(WARP)}
        return replace(binding, walk=alone, together=together, scopes=scopes)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        return lanes_of(binding, "cuda.laneid") + self._each(node, binding, shape)
