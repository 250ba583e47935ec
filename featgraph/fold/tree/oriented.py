"""Rows of an undirected graph whose edges lead to the end of higher degree (0012).

Vertices go by their degree order there. Rows are sorted by that, so that they can be
searched and merged; the rows of an `AdjacencyLayout` are in any order.
"""

from __future__ import annotations

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.layout import Csr
from featgraph.fold.tree.statements import Body, code, expression, when

__all__ = ["Oriented", "SortedRows"]


@dataclass(frozen=True)
class SortedRows(Csr):
    """Rows by degree order, ascending; a place is one in memory, and known by that."""

    def start(self, vertex: str) -> str:
        """Return the text of where the row of a vertex begins."""
        return f"{self.offsets}[{vertex}]"

    def stop(self, vertex: str) -> str:
        """Return the text of where the row of a vertex ends."""
        return f"{self.offsets}[{vertex} + 1]"

    def end_at(self, place: str) -> str:
        """Return the text of the degree order at a place."""
        return f"{self.ends}[{self._number(place)}]"

    def edge(self, place: str) -> str:
        """Return the text of the edge at a place."""
        return self.edge_at(place)[2]

    def upper_place(self, place: str) -> str:
        """Return, of the rows below, where the edge at a place is in those above."""
        return f"{self.numbers}[{self._number(place)}]"


@dataclass(frozen=True)
class Oriented:
    """Arguments of kernels that find triangles: the rows of an oriented graph.

    Attributes
    ----------
    upper, lower, both : SortedRows
        Of each vertex, the neighbors of higher degree; those of lower, with the places
        of these edges in `upper`; all.
    intrinsics : str
        Module of bits.
    number_type : str
        Type of numbers of edges; "" where Python's will do.
    within : str
        Test that edge ``{0}`` is one of those among which triangles are looked for; ""
        where all are.
    asks_twins : bool
        Whether that looks at both directions.
    passed : str
        Test that edge ``{0}`` passed, in either direction, where triangles run that
        have such an edge, though rows are swept; "" where none is asked.
    in_parts : bool
        Whether these are the rows that a rank has of a graph in parts: some vertices
        begin triangles there, and some are in the middle.
    """

    upper: SortedRows
    lower: SortedRows
    both: SortedRows
    intrinsics: str
    number_type: str = ""
    within: str = ""
    asks_twins: bool = False
    passed: str = ""
    in_parts: bool = False

    @property
    def filtered_by(self) -> tuple[str, ...]:
        """Names of the arrays that `within` takes, beside the property."""
        if self.passed:
            return ("edge_state", "edge_twin")
        return ("edge_twin",) if self.asks_twins else ()

    def vertex(self, order: str) -> str:
        """Return the text of the vertex at a place by degree."""
        return f"order_vertex[{order}]"

    def order(self, vertex: str) -> str:
        """Return the text of the degree order of a vertex."""
        return f"degree_order[{vertex}]"

    def twin(self, edge: str) -> str:
        """Return the text of the other direction of an edge."""
        twin = f"edge_twin[{edge}]"
        return f"{self.number_type}({twin})" if self.number_type else twin

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the sets of vertices that begin triangles, and are in the middle."""
        return ("triangle_begins", "triangle_middles") if self.in_parts else ()

    def elsewhere(self) -> Body:
        """Have a loop go on where a triangle is another rank's, or batch's, to find."""
        if not self.in_parts:
            return []
        begins, middles = self.parts
        test = f"{self.intrinsics}.test_bit"
        own = f"{test}({begins}, u) and {test}({middles}, v)"
        return when([f"not ({own})"], code("continue"))

    def is_active(self, vertex: str) -> str:
        """Return the test that a vertex is active."""
        return f"{self.intrinsics}.test_bit(active, {vertex})"

    def is_within(self, edge: str) -> str:
        """Return the test that triangles may have an edge; "" where they may."""
        return self.within.format(edge)

    def skipped(self, edge: str) -> Body:
        """Have a loop go on where triangles may not have an edge."""
        if not self.within:
            return []
        return when([f"not ({self.is_within(edge)})"], code("continue"))

    def found(self, other: str, mine: str, body: Body, is_within: bool = False) -> Body:
        """Return `body` where the vertex at ``high`` closes a triangle that runs.

        It is at a place of u's row and at one of v's. Where `is_within`, the edge to v
        may be one of its edges.
        """
        out = code(
            f"e_uw = {self.upper.edge(other)}\n"
            f"e_vw = {self.upper.edge(mine)}\n"
            f"w = {self.vertex('high')}"
        )
        tests = [
            self.is_within("e_uw"),
            *([] if is_within else [self.is_within("e_vw")]),
        ]
        runs = expression(f"both_active or {self.is_active('w')}")
        if self.passed:
            asked = (self.passed.format(edge) for edge in ("e_uv", "e_uw", "e_vw"))
            runs = expression(" or ".join(asked))
        return out + when([*tests, runs], body)

    def some_active(self, vertex: str) -> Body:
        """Find whether a vertex, or any in its row above, ``start`` on, is active."""
        upper = self.upper
        active = self.is_active(self.vertex(upper.end_at("position")))
        return code(
            f"is_active = all_active or {self.is_active(vertex)}\n"
            "some_active = is_active\n"
            "position = start\n"
            "while not some_active and position < stop:\n"
            f"    some_active = {active}\n"
            f"    position = {upper.place('position + 1')}"
        )
