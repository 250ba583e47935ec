"""A fixed number of lanes shares each vertex (virtual warp-centric)."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from typing import ClassVar

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.schedules.lanes import LaneSchedule, leaves_matrices
from featgraph.fold.schedules.mapping import Mapping, Work

__all__ = ["VirtualWarpSchedule"]

OPTION = "lanes_per_vertex"
LANES = (2, 4, 8, 16, 32)
#: Features that a lane takes, at most, where more lanes would take fewer each.
MOST_FEATURES = 16


class VirtualWarpSchedule(LaneSchedule):
    """Schedule "lanes" with a given number of lanes for each vertex.

    Lanes first share the features of an edge; the rest take edges side by side. If the
    features need more lanes than given, each lane takes more of them.
    """

    name = "virtual_warp"
    finds_due = False
    options: ClassVar[Dict[str, tuple[int, ...]]] = {OPTION: LANES}

    def check(self, options: Dict[str, int]) -> None:
        """Raise if the number of lanes is missing."""
        if OPTION not in options:
            raise PlanError(
                "virtual_warp needs the number of lanes for each vertex; the "
                "default, once called so, is now called 'lanes'",
                where="schedule=",
                got="schedule='virtual_warp' without lanes_per_vertex",
                expected=f"{OPTION}={', '.join(map(str, LANES))}",
                fix=f"use schedule='lanes', or set {OPTION}=8",
            )

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping with the given lanes, if the phase sweeps edges."""
        if not work.sweeps_edges:
            return mapping
        count = options[OPTION]
        mapping = replace(_narrowed(mapping, work.width, count), schedule=self.name)
        why = work.custom if work.pulls else ""
        if leaves_matrices(mapping, work):
            why = "matrices in memory"
        if count > mapping.lanes_per_edge and why:
            raise PlanError(
                "lanes cannot share the edges of a vertex here: the combine has "
                "no reduction by shuffles",
                where=why,
                got=f"{OPTION}={count}",
                expected=f"the lanes that share {work.width} features: "
                f"{mapping.lanes_per_edge}",
                fix="use schedule='lanes'",
            )
        return replace(mapping, lanes_per_vertex=count)


def _narrowed(mapping: Mapping, width: int, most: int) -> Mapping:
    """Return a mapping in which no more than `most` lanes share an edge."""
    if mapping.lanes_per_edge <= most:
        return mapping
    pieces = -(-width // mapping.vector_width)
    features = mapping.vector_width * -(-pieces // most)
    if features > MOST_FEATURES:
        least = next(n for n in LANES if n * MOST_FEATURES >= width or n == LANES[-1])
        raise PlanError(
            "too few lanes for so many features",
            where=f"{OPTION}=",
            got=f"{most} lanes for K = {width}, {features} features each",
            expected=f"at most {MOST_FEATURES} features a lane",
            fix=f"set {OPTION}={least}, or use schedule='lanes'",
        )
    return replace(mapping, lanes_per_edge=most, features_per_lane=features)
