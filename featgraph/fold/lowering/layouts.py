"""The layouts that a graph's edges may have in memory, by name."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.plan.layout import Rows
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.tree.layout import AdjacencyLayout, Csr

__all__ = ["LAYOUTS", "layout_along", "layout_of", "types_of"]


def _csr(rows: Rows, place_type: str, number_type: str) -> Csr:
    return Csr(rows.offsets, rows.ends, rows.edges, place_type, number_type)


#: `GraphTraits.layout` -> what makes one, from rows and the types of places and of
#: numbers of edges. Names of arrays begin as those in `Rows` do: by that the runtime
#: tells that they are the graph's.
LAYOUTS: dict[str, Callable[[Rows, str, str], AdjacencyLayout]] = {"csr": _csr}


def layout_along(rows: Rows, traits: GraphTraits, target: str) -> AdjacencyLayout:
    """Return how the edges of some rows are found."""
    make = LAYOUTS[traits.layout]
    if target == "cpu":
        return make(rows, "", "")
    if traits.wide_offsets:
        return make(rows, "", "uint64")
    return make(rows, "int32", "uint32")


def layout_of(plan: FoldPlan, phase: Phase) -> AdjacencyLayout:
    """Return how edges are found: the rows that the phase goes along."""
    return layout_along(phase.rows, plan.traits, plan.target)


def types_of(plan: FoldPlan) -> tuple[str, str]:
    """Return the types of places and of numbers of edges; "" where Python's will do."""
    if plan.target == "cpu":
        return "", ""
    return ("int64", "uint64") if plan.traits.wide_offsets else ("int32", "uint32")
