"""A second layout of adjacencies: rows of one or more extents of unequal length.

Extents stand in memory in any order, with spare slots behind each: what a graph that
changes needs. Edges are counted by place in the row, never by slot, so that lanes,
blocks of sums and chunks get the same edges as in CSR.

A row is a piece of a table of extents; these pieces are in any order, too. An extent
has the place behind its last one, and what leads from a place to a slot. A row without
edges has an extent that leads to some edge: lanes that go along in rounds need one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from featgraph.fold.plan.traits import Rows, rows_along
from featgraph.fold.tree.layout import AdjacencyLayout
from featgraph.fold.tree.statements import Body, code

__all__ = ["POISON", "Extents", "arrays_of", "extents_of"]

#: The entry of spare slots: no vertex, and no edge.
POISON = 2**31 - 1
Rng = np.random.Generator


def _prefix(along: str) -> str:
    """Return how the names of arrays along some edges begin."""
    return rows_along(along).offsets.removesuffix("offsets")


@dataclass(frozen=True)
class Extents(AdjacencyLayout):
    """Rows of extents, walked from place 0 to the degree.

    Attributes
    ----------
    prefix : str
        How the names of its arrays begin.
    finds_edges : bool
        Whether a kernel uses the numbers of edges.
    """

    bound: ClassVar[tuple[str, ...]] = ("start", "first_extent", "last_extent")

    prefix: str
    finds_edges: bool
    place_type: str
    number_type: str

    @classmethod
    def of(cls, rows: Rows, place_type: str, number_type: str) -> Extents:
        """Return the layout of some rows."""
        prefix = rows.offsets.removesuffix("offsets")
        return cls(prefix, rows.finds_edges, place_type, number_type)

    def array(self, name: str) -> str:
        return f"{self.prefix}extent_{name}"

    @property
    def ends(self) -> str:
        return self.array("ends")

    @property
    def arrays(self) -> tuple[str, ...]:
        names = ["firsts", "lasts", "places", "shifts", "ends"]
        return tuple(map(self.array, names + ["numbers"] * self.finds_edges))

    @property
    def vertex_count(self) -> str:
        return f"{self.array('firsts')}.size"

    def row(self, vertex: str) -> Body:
        return code(
            f"first_extent = {self.array('firsts')}[{vertex}]\n"
            f"last_extent = {self.array('lasts')}[{vertex}]\n"
            f"start, stop = {self.place('0')}, {self.array('places')}[last_extent]"
        )

    def begin(self) -> Body:
        """Walk with a cursor: places of a lane in a row only grow."""
        return code("extent = first_extent")

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        find = code(
            f"while extent < last_extent and {self.array('places')}[extent] <= {place}:"
            "\n    extent += 1"
        )
        at = self._number(f"{place} + {self.array('shifts')}[extent]")
        number = f"{self.array('numbers')}[{at}]" if self.finds_edges else str(POISON)
        return find, at, self._number(number)

    def slot_at(self, slot: str) -> tuple[str, str, str]:
        """Pass over spare slots."""
        is_edge = f"{self.ends}[{slot}] != {POISON}"
        number = f"{self.array('numbers')}[{slot}]" if self.finds_edges else "0"
        end, own = (
            f"{text} if {is_edge} else 0" for text in (f"{self.ends}[{slot}]", number)
        )
        return is_edge, end, self._number(own)


def extents_of(graph: Any, rng: Rng) -> dict[str, Any]:
    """Return the arrays of all rows of a graph, by name; `rng` draws the extents."""
    adjacencies = {
        "in": graph.in_edges, "out": graph.out_edges, "both": graph.incident_edges
    }  # fmt: skip
    return {
        f"{_prefix(along)}extent_{name}": array
        for along, adjacency in adjacencies.items()
        for name, array in arrays_of(adjacency, rng).items()
    }


def arrays_of(
    adjacency: Any, rng: Rng, most_extents: int = 4, most_spare: int = 3
) -> dict[str, Any]:
    """Return the arrays of some rows: what `Extents` names, without the prefix."""
    offsets, count = adjacency.row_offsets, len(adjacency.row_offsets) - 1
    numbers = adjacency.edge_ids
    numbers = np.arange(offsets[-1]) if numbers is None else numbers
    firsts, lasts = np.zeros((2, count), np.int32)
    places: list[int] = []
    sources: list[range] = []  # where the edges of each extent are in CSR
    for vertex in rng.permutation(count).tolist():
        first, stop = offsets[vertex : vertex + 2].tolist()
        cuts = rng.integers(0, stop - first + 1, rng.integers(most_extents))
        bounds = [0, *sorted(cuts.tolist()), stop - first]
        firsts[vertex] = len(places)
        places += bounds[1:]
        sources += [range(first + a, first + b) for a, b in pairwise(bounds)]
        lasts[vertex] = len(places) - 1
    shifts = np.zeros(len(places), np.int32)
    slots: list[int] = [-1] * int(rng.integers(most_spare + 1))
    for extent in rng.permutation(len(places)).tolist():
        shifts[extent] = len(slots) - (places[extent] - len(sources[extent]))
        slots += [*sources[extent], *[-1] * int(rng.integers(most_spare + 1))]
    source = np.array(slots, np.int64)
    taken = source >= 0
    some_edge = int(np.flatnonzero(taken)[0]) if taken.any() else 0
    for vertex in np.flatnonzero(np.diff(offsets) == 0):
        shifts[firsts[vertex] : lasts[vertex] + 1] = some_edge
    made: dict[str, Any] = {"firsts": firsts, "lasts": lasts, "shifts": shifts}
    made["places"] = np.array(places, np.int32)
    for name, values, kind in (
        ("ends", adjacency.column_indices, np.int32),
        ("numbers", numbers, offsets.dtype),
    ):
        made[name] = np.full(len(slots), POISON, kind)
        made[name][taken] = values[source[taken]]
    return made
