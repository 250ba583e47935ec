"""Lanes share a vertex, and meet: a test is a mask where something behind it meets.

Shuffles and votes take all lanes of a warp. So those without work go along on a valid
vertex and edge, and masks keep what they compute out of every result.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import Called, ForEdges, Only, Push, Sweep
from featgraph.fold.tree.statements import Body, Rewriting, code, every, when

__all__ = ["Converge"]

#: Nodes that take what a function contributes.
TAKES = (Push,)


class Converge(Rewriting):
    """Masks instead of branches, for all lanes that share a vertex."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.layout = facts, facts.layout
        self.binding = facts.binding

    def visit_Sweep(self, node: Sweep) -> Sweep:
        """Find the row of each lane's vertex; lanes without one have no edges."""
        out = self.layout.row(node.vertex)
        if self.binding.own:
            own = self.binding.own.format(self.layout.degree)
            out += code(f"{node.wanted} = {node.wanted} and {own}")
        if self.binding.uninvited:
            out += self.layout.narrowed(node.wanted)
        node.body = out + self.over(node.body)
        return node

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Let each lane go its own way, or in rounds where functions make shuffles."""
        walk = self.binding.walk
        takes = [n for n in every(node.body) if isinstance(n, TAKES)]
        if any(self.facts.shuffles(n.function) for n in takes):
            body = self._masked(node.body)
            walk = replace(walk, form="rounds")
        else:
            body = self.over(node.body)
        return self.layout.edges(node.vertex, walk, node.part, body)

    def visit_Only(self, node: Only) -> Body:
        """Go through the body where the test holds: nothing in it meets."""
        return when([node.test], self.over(node.body))

    def _masked(self, body: Body) -> Body:
        """Return a body that all lanes go through; those inside take what it has."""
        out: Body = []
        takes: Body = []
        for node in body:
            if isinstance(node, Only):
                test = ast.unparse(node.test)
                out += code(f"inside_edge = inside_edge and {test}")
                out += self._masked(node.body)
            elif isinstance(node, TAKES):
                if self.facts.shuffles(node.function):
                    into = f"new_{self.facts.filled(node.function).name}"
                    out.append(Called(node.function, "inside_edge", into))
                takes.append(node)
            else:
                out.append(node)
        return out + when(["inside_edge"], takes)
