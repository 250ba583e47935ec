"""What a triangle function adds to, returned for the kernel to add up.

A function adds to properties of three vertices and three edges. A kernel comes to many
triangles of one vertex or edge after the other, and what is added there goes to memory
once. `with_sums` has a function return what it would have added.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from featgraph.fold.analysis.sums import Sum, added_by, find_sums
from featgraph.fold.functions.facts import FunctionFacts
from featgraph.fold.functions.nodes import Define
from featgraph.fold.syntax.nodes import Atomic
from featgraph.fold.tree.statements import Body, Rewriting, code, noted, placed
from featgraph.program.signature import Signature

__all__ = ["with_sums"]


def with_sums(facts: FunctionFacts, node: Define) -> Define:
    """Return a function that adds to locals, and returns these."""
    sums = find_sums(facts.function, facts.analysis.signature)
    starts: Body = []
    for each in sums:
        start = code(f"{each.name} = {each.zero}")
        starts += noted(start, f"into d.{each.into}[{each.role}]")
    node.body = starts + _Added(sums, facts.analysis.signature).over(node.body)
    return node


class _Added(Rewriting):
    """Replaces additions to memory by additions to the locals that are returned."""

    def __init__(self, sums: tuple[Sum, ...], signature: Signature) -> None:
        self.sums, self.signature = sums, signature
        self.numbered = {replace(s, number=0): s for s in sums}

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Add to a local."""
        found = added_by(node, self.signature)
        added = None if found is None else self.numbered.get(found)
        if added is None or not isinstance(node.value, Atomic):
            return node
        [more] = code(added.plus("MORE"), MORE=node.value.value)
        return ast.copy_location(more, node)

    def visit_Return(self, node: ast.Return) -> Body:
        """Return the locals."""
        returned = ", ".join(each.name for each in self.sums)
        return placed(code(f"return {returned}"), node)
