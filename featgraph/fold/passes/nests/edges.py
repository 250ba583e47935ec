"""Passes over pulled edges: what edge functions do on an edge in front of gathers.

docs/design/0004-pulled-edges.md has the rules.
"""

from __future__ import annotations

import ast

from featgraph.fold.kinds.base import along_edge
from featgraph.fold.passes.bodies.vector_access import is_piecewise
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.tree.nodes import (
    Ahead,
    ForEdges,
    FromRow,
    Gathers,
    Only,
    Ordered,
    Passed,
    Pull,
    Restore,
    Returned,
    Run,
    ToRow,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    code,
    every,
    expression,
    when,
)

__all__ = ["PulledEdges", "StoreForwarding", "found_due", "passed"]


class PulledEdges(Rewriting):
    """Runs edge functions on edges from their sources, in front of gathers."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def visit_Gathers(self, node: Gathers) -> Body:
        """Find whether an edge of the vertex passes."""
        if not any(isinstance(part, Pull) for part in node.edges.body):
            return [node]
        node.edges.body = self.over(node.edges.body)
        return [*code("edge_passed = False"), node]

    def visit_Pull(self, node: Pull) -> Only:
        """Run functions on an edge from a source."""
        body = along_edge(self.facts, [Passed()])
        if node.is_read:
            body.append(Ordered("e"))
        test = f"all_sources or {self.facts.intrinsics}.test_bit(sources, u)"
        return Only(expression(test), body)


class StoreForwarding(Rewriting):
    """Has next entries of an edge stay in registers, from its function to gathers.

    The function returns them behind its verdict. An edge that does not pass keeps the
    current ones; all are stored once. So a sweep over all vertices leaves no entry to
    refresh, and what the next edge reads need not wait for a store.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.forwarded = facts.context.forwarded

    def visit_ForEdges(self, node: ForEdges) -> ForEdges:
        """Load entries in front of the function, and store them behind it."""
        pulled, *rest = node.body
        runs = any(isinstance(part, Run) for part in every([pulled]))
        if not (runs and isinstance(pulled, Only)):
            return node
        loads, stores = list[ast.stmt](), list[ast.stmt]()
        for name, own in self.forwarded.items():
            count = self._at_once(name)
            loads.append(FromRow(own, f"d.{name}", "e", count))
            stores.append(ToRow(own, f"d.{name}_next", "e", count))
        names = tuple(f"*{own}" for own in self.forwarded.values())
        _Taken(self.forwarded).visit(pulled)
        node.body = [Ahead(loads, pulled, "all_sources", names), *stores, *rest]
        return node

    def _at_once(self, name: str) -> int:
        """Return how many features of a row are loaded at once."""
        piece, width = self.facts.binding.features.vector_width, self.facts.phase.width
        return (
            piece if is_piecewise(self.facts.plan.analysis, name, width, piece) else 1
        )


class _Taken(Rewriting):
    """Takes entries that a function returns, within what is done for an edge."""

    def __init__(self, forwarded: dict[str, str]) -> None:
        self.forwarded = forwarded

    def visit_Passed(self, node: Passed) -> Passed:
        """Take what the function has returned, where the edge passes."""
        rows = enumerate(self.forwarded.values())
        node.body += [Returned(own, number) for number, own in rows]
        return node

    def visit_Restore(self, node: Restore) -> Body:
        """Put nothing back: what does not pass has its entries still."""
        return []


def passed(node: Passed) -> Body:
    """Return what is done where an edge passes, by all lanes that share it."""
    found = code(f"{node.prefix}edge_passed = True")
    return when(["alive"], [*found, *node.body])


def found_due(facts: Facts, wanted: str = "") -> Body:
    """Return what says whether a vertex is due behind pulled edges."""
    due, allowed = (f"{facts.intrinsics}.test_bit({w}, v)" for w in ("due", "allowed"))
    # What is due anyway need not be told again, unless targets are active behind.
    again = "" if facts.plan.facts.tells_targets else " and not is_due"
    alive = f"is_due or (edge_passed and {allowed})"
    if wanted:
        alive = f"{wanted} and ({alive})"
    return code(f"is_due = {due}\nis_target = edge_passed{again}\nalive = {alive}")
