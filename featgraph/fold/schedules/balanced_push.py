"""Warps take equal shares of the edges of all sources (Onyx's balanced push)."""

from __future__ import annotations

from collections.abc import Mapping as Dict

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.schedules.base import Binding, GraphArray, KernelShape
from featgraph.fold.schedules.grids import LaunchSizes
from featgraph.fold.schedules.lanes import LaneSchedule, lanes_of
from featgraph.fold.schedules.mapping import WARP, Mapping, Work
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body

__all__ = ["BalancedPushSchedule"]


class BalancedPushSchedule(LaneSchedule):
    """Distribute edges equally over warps, by prefix sums of the degrees of sources.

    Each warp takes the same number of edges, wherever rows begin and end, so there are
    no hubs. Lanes that share the features of an edge find its source by binary search.
    """

    name = "balanced_push"
    modules = ("segments",)
    forms = ()

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
                "balanced_push shares out the edges along which sources write, and "
                "these gathers are pulled",
                where="schedule='balanced_push'",
                expected="direction='push', and change_driven=False in a run",
                fix="add direction='push', or use schedule='warp_segmentation'",
            )
        return mapping

    def arrays(self, mapping: Mapping, form: str = "plain") -> tuple[GraphArray, ...]:
        """Return the list of sources, its prefix sums of degrees, and its length."""
        names = ("share_rows", "share_begins", "share_count")
        return tuple(map(GraphArray, names))

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
