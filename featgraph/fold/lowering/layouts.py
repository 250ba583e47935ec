"""The layouts that a graph's edges may have in memory, by name."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.tree.layout import AdjacencyLayout, Csr

__all__ = ["LAYOUTS", "layout_of", "types_of"]


def _csr(phase: Phase, place_type: str, number_type: str) -> Csr:
    rows = phase.rows
    return Csr(rows.offsets, rows.ends, rows.edges, place_type, number_type)


#: `GraphTraits.layout` -> what makes one, from a phase and the types of places and of
#: numbers of edges. Names of arrays begin as those in `Rows` do: by that the runtime
#: tells that they are the graph's.
LAYOUTS: dict[str, Callable[[Phase, str, str], AdjacencyLayout]] = {"csr": _csr}


def layout_of(plan: FoldPlan, phase: Phase) -> AdjacencyLayout:
    """Return how edges are found: the rows that the phase goes along."""
    place_type, number_type = types_of(plan)
    if plan.traits.wide_offsets:
        place_type = ""  # offsets are wide already
    return LAYOUTS[plan.traits.layout](phase, place_type, number_type)


def types_of(plan: FoldPlan) -> tuple[str, str]:
    """Return the types of places and of numbers of edges; "" where Python's will do."""
    if plan.target == "cpu":
        return "", ""
    return ("int64", "uint64") if plan.traits.wide_offsets else ("int32", "uint32")
