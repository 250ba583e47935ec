"""One lane has a vertex and all of its edges: a test is a branch."""

from __future__ import annotations

from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import ForEdges, Only
from featgraph.fold.tree.statements import Body, Rewriting, when

__all__ = ["Diverge"]


class Diverge(Rewriting):
    """Each lane goes its own way: it leaves what it has no work in."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.layout = facts, facts.layout
        self.binding = facts.binding

    def visit_Only(self, node: Only) -> Body:
        """Go through the body where the test holds."""
        return when([node.test], self.over(node.body))

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Go through all edges of the lane's vertex."""
        row = self.layout.row(node.vertex)
        body, walk = self.over(node.body), self.binding.walk
        return row + self.layout.edges(node.vertex, walk, node.part, body)
