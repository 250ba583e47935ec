"""Control flow where one lane has a vertex with all of its edges: tests are branches.

`PulledEdges` runs edge functions on the edges that gathers walk, in front of the
gathers, and `StoreForwarding` passes entries that they write to gathers in registers
(docs/design/0004-pulled-edges.md). `Diverge` then lowers tests to branches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import cast

from featgraph.base.dataclass import replace
from featgraph.fold.kinds.base import along_edge
from featgraph.fold.passes.bodies.stores import is_piecewise
from featgraph.fold.passes.nests.blocks import in_blocks_of
from featgraph.fold.passes.nests.facts import NestFacts, RowFacts
from featgraph.fold.passes.nests.gathers import announced
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.tree.layout import Pairs, Walk
from featgraph.fold.tree.nodes import (
    Ahead,
    Begin,
    BeginPatch,
    Contribute,
    Copy,
    Degree,
    FindDue,
    FinishPatch,
    ForEdges,
    FromRow,
    Gathers,
    Incremental,
    Mark,
    Meet,
    Only,
    Ordered,
    Passed,
    Pull,
    Reached,
    Restore,
    Returned,
    Run,
    Share,
    Stop,
    Then,
    ToMemory,
    ToRow,
    Verdict,
    is_seldom,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    code,
    contains,
    copied,
    every,
    expression,
    when,
)

__all__ = [
    "Diverge",
    "DivergeRows",
    "PulledEdges",
    "StoreForwarding",
    "found_due",
    "passed",
]


class PulledEdges(Rewriting):
    """Run edge functions on edges from their sources, in front of gathers."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts

    def visit_Gathers(self, node: Gathers) -> Body:
        """Initialize the flag that an edge of the vertex has passed."""
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
    """Pass next entries of an edge in registers from its function to gathers.

    The function returns them behind its verdict. An edge that does not pass keeps the
    current entries; all entries are stored once. So a sweep over all vertices leaves no
    stale entries, and loads of the next edge do not wait for a store.
    """

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts
        self.forwarded = facts.context.forwarded

    def visit_ForEdges(self, node: ForEdges) -> ForEdges:
        """Load entries in front of the function, and store them behind it."""
        pulled, *rest = node.body
        if not (isinstance(pulled, Only) and contains(pulled, Run)):
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
        """Return the number of features in one load of a row."""
        piece, width = self.facts.binding.features.vector_width, self.facts.phase.width
        return (
            piece if is_piecewise(self.facts.plan.analysis, name, width, piece) else 1
        )


class _Taken(Rewriting):
    """Replace next entries by returned ones in the statements of an edge."""

    def __init__(self, forwarded: dict[str, str]) -> None:
        self.forwarded = forwarded

    def visit_Passed(self, node: Passed) -> Passed:
        """Select the returned entries where the edge passes."""
        rows = enumerate(self.forwarded.values())
        node.body += [Returned(own, number) for number, own in rows]
        return node

    def visit_Restore(self, node: Restore) -> Body:
        """Remove the restore: an edge that does not pass keeps its entries."""
        return []


def passed(node: Passed) -> Body:
    """Return statements where an edge passes, for all lanes that share it."""
    found = code(f"{node.prefix}edge_passed = True")
    return when(["alive"], [*found, *node.body])


def found_due(facts: NestFacts, wanted: str = "") -> Body:
    """Return statements that set whether a vertex is due behind pulled edges."""
    due, allowed = (f"{facts.intrinsics}.test_bit({w}, v)" for w in ("due", "allowed"))
    # A vertex that is due already is not marked again, unless targets become active.
    again = "" if facts.plan.facts.tells_targets else " and not is_due"
    alive = f"is_due or (edge_passed and {allowed})"
    if wanted:
        alive = f"{wanted} and ({alive})"
    return code(f"is_due = {due}\nis_target = edge_passed{again}\nalive = {alive}")


class DivergeRows(Rewriting):
    """Lower sweeps and walks over edges."""

    def __init__(self, facts: RowFacts) -> None:
        self.rows, self.layout = facts, facts.layout
        self.binding = facts.binding

    def visit_Then(self, node: Then) -> Body:
        """Put the body under the test of the verdict."""
        return when(["alive"], self.over(node.body))

    def visit_Only(self, node: Only) -> Body:
        """Execute the body where the test holds."""
        return when([node.test], self.over(node.body))

    def visit_Degree(self, node: Degree) -> Body:
        """Bind the row."""
        degree = code(f"{node.name} = {self.layout.degree}")
        return self.layout.row(node.vertex) + degree

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Walk all edges of the vertex of a lane."""
        layout, body = self.rows.layout_along(node.along), self.over(node.body)
        row = layout.row(node.vertex)
        return row + layout.edges(node.vertex, self.binding.walk, node.part, body)


class Diverge(DivergeRows):
    """Lower tests of a phase to branches: lanes are independent."""

    def __init__(self, facts: NestFacts) -> None:
        super().__init__(facts)
        self.facts = facts

    def over(self, body: Iterable[ast.AST]) -> Body:
        """Merge the restore of entries into the else branch of a passed edge.

        With a test of its own, a pulled edge took 48 registers in place of 44
        (`opinions`, rows summed in blocks, K = 1, sm_90): paths were duplicated.
        """
        out: Body = []
        before: ast.AST | None = None
        for node in body:
            new = super().over([node])
            if isinstance(node, Restore) and isinstance(before, Mark | Passed):
                [verdict, restored] = cast("list[ast.If]", [out[-1], *new])
                verdict.orelse += restored.body
            else:
                out += new
            before = node
        return out

    def visit_Begin(self, node: Begin) -> Body:
        """Copy entries; swept vertices start alive unless they leave early."""
        alive: Body = code("alive = True")
        if node.leaves is not None:
            alive = [
                ast.Assign([ast.Name("alive")], ast.UnaryOp(ast.Not(), node.leaves))
            ]
        return [*([Copy(node.names, node.entity)] if node.names else []), *alive]

    def visit_Run(self, node: Run) -> Body:
        """Bind the verdict of a function."""
        return [Verdict("alive", node.function)]

    def visit_Mark(self, node: Mark) -> Body:
        """Store the state of the edge."""
        return when(["alive"], node.passed, node.stopped)

    def visit_Restore(self, node: Restore) -> Body:
        """Put entries back where the verdict is False."""
        return when(["not alive"], [Copy(node.names, node.entity)])

    def visit_Passed(self, node: Passed) -> Body:
        """Mark an edge as passed."""
        return passed(node)

    def visit_FindDue(self, node: FindDue) -> Body:
        """Test whether the vertex is due by itself or by an edge."""
        return found_due(self.facts)

    def visit_Reached(self, node: Reached) -> Body:
        """Set the flag that an edge leads from an active source."""
        return code("is_reached = True")

    def visit_Ordered(self, node: Ordered) -> Body:
        """Do nothing: a lane sees its own writes."""
        return []

    def visit_Share(self, node: Share) -> Body:
        """Do nothing: a lane has all entries."""
        return []

    def visit_Meet(self, node: Meet) -> Body:
        """Store collected results; other synchronizations of one lane are empty."""
        several = self.binding.scopes[node.scope].lanes > 1
        return [node] if several or node.what == "collect" else []

    def visit_Ahead(self, node: Ahead) -> Body:
        """Put the loads and functions of an edge in front of its other statements.

        Loads stand behind the test: in front of it, a thread took 94 registers in place
        of 90 (`messages`, K = 4, sm_90).
        """
        runs = code("runs_edge = TEST", TEST=node.pulled.test)
        node.pulled.test = expression("runs_edge")
        return self.over([*runs, *node.loads, node.pulled])

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Walk all edges of the vertex of a lane."""
        if node.along:
            return super().visit_ForEdges(node)
        return self._edges(node, self.binding.walk)

    def visit_Incremental(self, node: Incremental) -> Body:
        """Patch aggregates, or recompute them from all edges."""
        facts = self.facts
        one_by_one = replace(self.binding.walk, at_a_time=1)
        patched: Body = [BeginPatch(f) for f in node.functions]
        if node.patched:
            patched += self._edges(node.patch, one_by_one)
        patched += [FinishPatch(f) for f in node.patched]
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
        out += code(f"is_patched = not {facts.intrinsics}.test_bit(stale, v)")
        out += when(["is_patched"], patched) + when(["not is_patched"], anew)
        return out + [s for f, s in stores.items() if f in node.patched]

    def _edges(self, node: ForEdges, walk: Walk) -> Body:
        """Return the walk of a lane over the edges of its vertex.

        Several edges are in flight only if no branch delays the loads of the next edge.
        """
        walk = replace(walk, numbers_late=is_seldom(node))
        several = walk.at_a_time > 1 and not self._is_looped(node.body)
        pairs = self._pairs(node.body) if several else None
        body = self.over(node.body)
        if pairs is not None or not several or _has_branch(body):
            walk = replace(walk, at_a_time=1, pairs=pairs)
        row = self.layout.row(node.vertex)
        return row + in_blocks_of(self.facts, node, walk, body)

    def _is_looped(self, body: Body) -> bool:
        """Whether statements of an edge loop over features or matrix elements."""
        taken = [n.function for n in every(body) if isinstance(n, Contribute)]
        homes = {home_of(self.facts, self.facts.filled(f).name).shape for f in taken}
        return self.binding.features.is_looped or "matrix" in homes

    def _pairs(self, body: Body) -> Pairs | None:
        """Return the walk over two edges at a time, one of them prefetched."""
        # Copies: the loop behind the pairs lowers the same statements.
        ahead, *rest = map(copied, body)
        if not isinstance(ahead, Ahead):
            return None
        untested = _Untested().over([ahead.pulled])
        first, behind = self.over([*ahead.loads, *untested]), self.over(rest)
        if _has_branch(behind):
            return None
        return Pairs(ahead.where, first, behind, ahead.names)


class _Untested(Rewriting):
    """Remove tests that are known to hold."""

    def visit_Only(self, node: Only) -> Body:
        """Return the body without its test."""
        return self.over(node.body)


def _has_branch(body: Body) -> bool:
    """Whether a branch delays the loads of the next edge."""
    return any(isinstance(node, ast.If | Stop) for node in every(body))
