"""Lanes have rows of their own, and share those that are long."""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.schedules.base import Binding, KernelShape
from featgraph.fold.schedules.lanes import LaneSchedule
from featgraph.fold.schedules.mapping import WARP, Mapping
from featgraph.fold.tree.layout import Walk

__all__ = ["ALONE", "ApartSchedule"]

#: Edges of a row that one lane takes alone.
ALONE = 8


class ApartSchedule(LaneSchedule):
    """A lane has a vertex; the whole warp comes to one that has many edges.

    For sets of which nothing is known, and no more is done than a bit is set.
    """

    name = "apart"
    is_asked_for = False

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        walk = Walk("apart", WARP, alone=ALONE)
        return replace(super().bind(mapping, shape), walk=walk)
