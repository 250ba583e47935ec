"""Entries of an edge that stay in registers from the edge function to the gathers.

A pulled edge function writes ``d.msg_next[e, f]``, and the gathers behind it read that
on the same edge, in the same lane or thread. So the function returns what it computed;
the kernel takes the old entry where the verdict is False, stores once, and hands it to
the gathers. docs/design/0004-pulled-edges.md has the rules.
"""

from __future__ import annotations

import ast

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.expressions import needs_guard
from featgraph.fold.analysis.gathers import is_matrix, takes_active, temporaries_of
from featgraph.fold.passes.bodies.facts import Context, FunctionFacts
from featgraph.fold.passes.bodies.nodes import Define
from featgraph.fold.passes.bodies.vector_access import can_store, row_key
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.expressions import Access, Cast, Whole, copy_location, narrowed
from featgraph.fold.tree.statements import Body, Rewriting
from featgraph.program.names import GENERATED
from featgraph.program.signature import PropertyKind

__all__ = ["find_forwarded", "returning_entries", "stores_rows"]


def find_forwarded(context: Context, plan: FoldPlan, phase: Phase) -> dict[str, str]:
    """Return the edge properties that are forwarded -> the name of a kernel's copies.

    None are, unless all that the edge function writes of an iterated property can be.
    """
    members = plan.functions_of(phase)
    edges = [f for f in members if f.kind.writes_edges]
    gathers = [f for f in members if f.kind.gathers]
    alone = phase.kind.pulls_edges and len(edges) == 1 and not plan.incremental.reads
    in_loops = phase.mapping.is_looped  # over arrays, which are no registers
    if not alone or in_loops or context.checked is not None:
        return {}
    if any(temporaries_of(g, plan.analysis) for g in gathers):
        return {}  # a second pass over the edges reads them from memory
    if len({takes_active(g) for g in gathers}) > 1:
        return {}  # so do gathers that go over the edges apart
    signature = plan.analysis.signature
    names = {n for n in phase.restores if signature[n].kind is PropertyKind.EDGE}
    if names & set(phase.copies) or names != _written(context, phase, edges[0]):
        return {}
    if not all(_reads_own(context, f, names) for f in gathers):
        return {}
    taken = plan.analysis.emitted | set(signature) | GENERATED
    taken |= {n for f in plan.analysis.functions for n in (*f.variables, f.name)}
    forwarded = {}
    for name in sorted(names):
        own = f"next_{name}"
        while own in taken:
            own += "_"
        taken.add(own)
        forwarded[name] = own
    return forwarded


def stores_rows(context: Context, function: Analysed) -> bool:
    """Return whether a function without collaborative calls has named copies.

    So it has where it goes straight on and a lane can store what it assigns in pieces.
    """
    if not function.kind.writes or function.is_scalar:
        return False
    straight = all(isinstance(s, ast.Assign) for s in function.body[:-1])
    facts = FunctionFacts(context, function, "unrolled")
    return straight and any(can_store(facts, s) for s in function.body)


def _written(context: Context, phase: Phase, function: Analysed) -> set[str]:
    """Return what the function writes once, for certain, and never reads back."""
    memory = context.memory(function)
    if function.is_scalar or not (
        function.collective or stores_rows(context, function)
    ):
        return set()
    if not all(_goes_straight(s, function.varying) for s in function.body[:-1]):
        return set()
    if not isinstance(function.body[-1], ast.Return):
        return set()
    found: set[str] = set()
    for statement in function.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, Access) or target.version != "next":
            continue
        type_ = context.analysis.signature[target.name]
        fits = row_key(target, memory) == (f"d.{target.name}_next", "e")
        plain = not needs_guard(
            statement, {h.name: h for h in context.analysis.helpers}
        )
        known = type_.dtype in {"real", "float32", "float64", "int32", "int64"}
        if fits and plain and known and type_.item_shape == (phase.width,):
            found.add(target.name)
    return {n for n in found if _touched(function, n) == 1}


def _goes_straight(node: ast.stmt, varying: frozenset[str]) -> bool:
    """Whether a statement assigns, or only leaves with False for all features."""
    if not isinstance(node, ast.If):
        return isinstance(node, ast.Assign)
    if all(isinstance(s, ast.Assign) for s in (*node.body, *node.orelse)):
        return True
    value = node.body[0].value if isinstance(node.body[0], ast.Return) else None
    is_false = isinstance(value, ast.Constant) and value.value is False
    return is_false and not node.orelse and not varies(node.test, varying)


def _touched(function: Analysed, name: str) -> int:
    """Return how often a function touches the next entries of a property."""
    return sum(
        isinstance(node, Access | Whole)
        and node.name == name
        and node.version == "next"
        for statement in function.body
        for node in ast.walk(statement)
    )


def _reads_own(context: Context, function: Analysed, names: set[str]) -> bool:
    """Whether a gather reads next entries of this edge and feature only, if any."""
    memory = context.memory(function)
    read = [
        node
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, Access) and node.version == "next" and node.name in names
    ]
    if any(row_key(node, memory) != (f"d.{node.name}_next", "e") for node in read):
        return False
    wide = not function.collective and not is_matrix(function)
    return not read or (wide and not function.is_scalar)


def returning_entries(facts: FunctionFacts, node: Define) -> Define:
    """Have an edge function return the entries that the kernel stores."""
    forwarded = facts.context.forwarded if facts.function.kind.writes_edges else {}
    if not forwarded:
        return node
    # Without other copies, a lane's only one has its number as well.
    names = {n: own if facts.count > 1 else f"{own}_0" for n, own in forwarded.items()}
    types = {name: _stored_type(facts, name) for name in names}
    straight = all(isinstance(s, ast.Assign) for s in node.body[:-1])
    starts: Body = []
    for name, own in {} if straight else names.items():  # it may leave early
        zero = Cast(types[name], ast.Constant(0))
        starts.append(ast.Assign([ast.Name(own, ast.Store())], zero))
    node.varying |= set(names.values())
    node.body = [*starts, *_Returning(names, types).over(node.body)]
    return node


def _stored_type(facts: FunctionFacts, name: str) -> str:
    dtype = facts.analysis.signature[name].dtype
    return facts.context.real if dtype == "real" else dtype


class _Returning(Rewriting):
    """Names what is written to next entries, and returns it behind the verdict."""

    def __init__(self, names: dict[str, str], types: dict[str, str]) -> None:
        self.names, self.types = names, types

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Keep an entry."""
        [target] = node.targets
        is_next = isinstance(target, Access) and target.version == "next"
        if not is_next or narrowed(target, Access).name not in self.names:
            return node
        name = narrowed(target, Access).name
        value = Cast(self.types[name], node.value)
        own = ast.Name(self.names[name], ast.Store())
        return copy_location(ast.Assign([own], value), node)

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Return all features of the entries."""
        own = [ast.Name(name, ast.Load()) for name in self.names.values()]
        entries = [ast.Starred(name, ast.Load()) for name in own]
        verdict = narrowed(node.value, ast.expr)
        node.value = ast.Tuple([verdict, *entries], ast.Load())
        return node
