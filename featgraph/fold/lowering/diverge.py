"""One lane has a vertex and all of its edges: a test is a branch."""

from __future__ import annotations

import ast
from dataclasses import replace

from featgraph.fold.lowering.blocks import in_blocks_of
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.gathers import announced
from featgraph.fold.lowering.homes import home_of
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import (
    Begin,
    BeginPatch,
    Contribute,
    Copy,
    FinishPatch,
    ForEdges,
    Kept,
    Mark,
    Meet,
    Only,
    Ordered,
    Restore,
    Run,
    Share,
    Stop,
    Then,
    ToMemory,
    Verdict,
    is_seldom,
)
from featgraph.fold.tree.statements import Body, Rewriting, code, every, when

__all__ = ["Diverge"]


class Diverge(Rewriting):
    """Each lane goes its own way: it leaves what it has no work in."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.layout = facts, facts.layout
        self.binding = facts.binding

    def visit_Begin(self, node: Begin) -> Body:
        """Copy entries; what is swept is alive, if nothing has it leave at once."""
        alive: Body = code("alive = True")
        if node.leaves is not None:
            alive = [
                ast.Assign([ast.Name("alive")], ast.UnaryOp(ast.Not(), node.leaves))
            ]
        return [*([Copy(node.names, node.entity)] if node.names else []), *alive]

    def visit_Then(self, node: Then) -> Body:
        """Go on where the verdict is True."""
        return when(["alive"], self.over(node.body))

    def visit_Run(self, node: Run) -> Body:
        """Take the verdict of a function."""
        return [Verdict("alive", node.function)]

    def visit_Mark(self, node: Mark) -> Body:
        """Say what became of the edge."""
        return when(["alive"], node.passed, node.stopped)

    def visit_Restore(self, node: Restore) -> Body:
        """Put entries back where the verdict is False."""
        return when(["not alive"], [Copy(node.names, node.entity)])

    def visit_Ordered(self, node: Ordered) -> Body:
        """Do nothing: a lane sees what it wrote."""
        return []

    def visit_Share(self, node: Share) -> Body:
        """Do nothing: a lane has all entries."""
        return []

    def visit_Meet(self, node: Meet) -> Body:
        """Do nothing where a lane is alone."""
        return [node] if self.binding.scopes[node.scope].lanes > 1 else []

    def visit_Only(self, node: Only) -> Body:
        """Go through the body where the test holds."""
        return when([node.test], self.over(node.body))

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Go through all edges of the lane's vertex."""
        return self._edges(node, self.binding.walk)

    def visit_Kept(self, node: Kept) -> Body:
        """Patch aggregates, or take them anew from all edges."""
        facts = self.facts
        one_by_one = replace(self.binding.walk, at_a_time=1)
        held: Body = [BeginPatch(f) for f in node.functions]
        if node.patched:
            held += self._edges(node.patch, one_by_one)
        held += [FinishPatch(f) for f in node.patched]
        anew = [
            part
            for s in node.anew
            for part in (
                self._edges(s, one_by_one)
                if isinstance(s, ForEdges)
                else self.over([s])
            )
        ]
        stores = {f: ToMemory(facts.filled(f).name) for f in node.functions}
        anew += [s for f, s in stores.items() if f not in node.patched]
        out: Body = [announced(facts, f) for f in node.functions]
        out += code(f"is_patched = not {facts.library}.test_bit(stale, v)")
        out += when(["is_patched"], held) + when(["not is_patched"], anew)
        return out + [s for f, s in stores.items() if f in node.patched]

    def _edges(self, node: ForEdges, walk: Walk) -> Body:
        walk = replace(walk, numbers_late=is_seldom(node))
        body = self.over(node.body)
        nodes = list(every(body))
        if any(isinstance(n, ast.If | Stop) for n in nodes) or self._is_looped(nodes):
            walk = replace(walk, at_a_time=1)
        row = self.layout.row(node.vertex)
        return row + in_blocks_of(self.facts, node, walk, body)

    def _is_looped(self, nodes: list[ast.AST]) -> bool:
        """Whether what takes an edge loops over features, or over elements."""
        taken = [n.function for n in nodes if isinstance(n, Contribute)]
        homes = {home_of(self.facts, self.facts.filled(f).name).shape for f in taken}
        return self.binding.features.is_looped or "matrix" in homes
