"""How the rows of neighbors are intersected, in words (0012)."""

from __future__ import annotations

from featgraph.fold.schedules.mapping import Mapping

__all__ = ["describe_intersection"]


def describe_intersection(mapping: Mapping) -> str:
    """Return the mapping of a triangle phase in words."""
    if mapping.schedule == "merge":
        return "one thread a row, merged with the rows of its members"
    if mapping.span == 1 and not mapping.hubs and mapping.schedule == "mark":
        return "one thread a row, whose members are marked"
    lanes = f"{mapping.span} lanes" if mapping.span > 1 else "one thread"
    hubs = ", a block and a bitmap for each long row" if mapping.hubs else ""
    return f"{lanes}, searching the shorter of two rows in the longer{hubs}"
