"""The layouts that a graph's edges may have in memory, by name.

`Runs` is the layout of a graph that changes: the row of a vertex is a run of slots in a
pool, and two arrays say where each run begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.plan.layout import Rows
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.tree.layout import AdjacencyLayout, Csr, WalkedByPlace
from featgraph.fold.tree.statements import Body, code

__all__ = ["LAYOUTS", "Runs", "layout_along", "layout_of", "types_of"]

#: The array with the edge of each edge's reverse.
TWINS = "edge_twin"


@dataclass(frozen=True)
class Runs(WalkedByPlace):
    """Rows that are runs of slots in a pool, in any order; a place is a slot.

    The start of an empty row is a slot of the pool. Slots in no row have some vertex
    and some number, too.

    Attributes
    ----------
    prefix : str
        The first part of the names of its arrays.
    ends : str
        The vertex at the other end of each slot's edge.
    numbers : str
        The number of each edge; "" where it is the slot, or none is used.
    twins : str
        The number of each twin, where rows lead to the other ends of twins.
    """

    prefix: str
    ends: str
    numbers: str
    place_type: str = ""
    number_type: str = ""
    twins: str = ""

    @classmethod
    def of(cls, rows: Rows, place_type: str, number_type: str) -> Runs:
        """Return the layout of some rows."""
        prefix = f"{rows.offsets.removesuffix('offsets')}run"
        has_ids = rows.finds_edges and not rows.by_slot
        numbers = f"{prefix}_ids" if has_ids else ""
        twins = TWINS if has_ids and rows.edges == TWINS else ""
        return cls(prefix, f"{prefix}_ends", numbers, place_type, number_type, twins)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that a kernel is given."""
        bounds = f"{self.prefix}_starts", f"{self.prefix}_stops"
        return (*bounds, self.ends, *filter(None, [self.numbers, self.twins]))

    @property
    def vertex_count(self) -> str:
        """Text of the number of rows."""
        return f"{self.prefix}_starts.size"

    def row(self, vertex: str) -> Body:
        """Bind the row of a vertex."""
        starts, stops, *_ = self.arrays
        return code(f"start, stop = {starts}[{vertex}], {stops}[{vertex}]")

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        """Return the slot of the edge at a place, and its number."""
        at = self._number(place)
        return [], at, self._number_at(at)

    def slot_at(self, slot: str) -> tuple[str, str, str]:
        """Return the end and the number that a slot has: copies alone ask all slots."""
        return "", f"{self.ends}[{slot}]", self._number_at(self._number(slot))

    def _number_at(self, number: str) -> str:
        """Return the number of the edge in a slot."""
        for array in filter(None, (self.numbers, self.twins)):
            number = self._number(f"{array}[{number}]")
        return number


def _csr(rows: Rows, place_type: str, number_type: str) -> Csr:
    return Csr(rows.offsets, rows.ends, rows.edges, place_type, number_type)


#: `GraphTraits.layout` -> what makes one, from rows and the types of places and of
#: numbers of edges. Names of arrays begin as those in `Rows` do: by that the runtime
#: tells that they are the graph's.
LAYOUTS: dict[str, Callable[[Rows, str, str], AdjacencyLayout]] = {
    "csr": _csr,
    "runs": Runs.of,
}


def layout_along(rows: Rows, traits: GraphTraits, target: str) -> AdjacencyLayout:
    """Return how the edges of some rows are found."""
    make = LAYOUTS[traits.layout]
    if traits.undirected and rows.edges in {"out_edges", "row_edges"}:
        rows = replace(rows, edges=rows.edges if make is _csr else TWINS)
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
