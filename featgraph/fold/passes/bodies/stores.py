"""Stores of next entries: sunk behind the verdict, or forwarded to gathers.

*Sinking.* Where a function returns False, the kernel restores the old entries. A store
in front of the verdict would be overwritten, so the last stores move behind it.

*Forwarding.* A pulled edge function writes ``d.msg_next[e, f]``, and gathers behind it
read that entry on the same edge, in the same lane. The function then returns the
entry; the kernel selects the old one if the verdict is False, stores once, and passes
the value to the gathers (docs/design/0004-pulled-edges.md).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.expressions import needs_guard
from featgraph.fold.analysis.gathers import is_matrix, takes_active, temporaries_of
from featgraph.fold.passes.bodies.facts import BodyFacts, Context
from featgraph.fold.passes.bodies.nodes import Define, GoOn
from featgraph.fold.passes.bodies.vector_access import can_store, row_key
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Cast,
    Operate,
    Whole,
    assigned_names,
    copy_location,
    names_read,
    narrowed,
)
from featgraph.fold.tree.statements import Body, Rewriting, copied, every
from featgraph.program.names import GENERATED
from featgraph.program.signature import PropertyKind

__all__ = [
    "find_forwarded",
    "leaving_test",
    "reads_what_it_changes",
    "returning_entries",
    "stores_rows",
    "with_sunk_stores",
]


def with_sunk_stores(facts: BodyFacts, node: Define) -> Define:
    """Move the last stores of next entries under the verdict, where that is safe."""
    function = facts.function
    # Lanes must find the same verdict.
    parts = facts.predicated and reads_what_it_changes(function)
    goes_on = isinstance(node.body[-1], GoOn)
    if not facts.context.cuda or facts.context.checked is not None or goes_on or parts:
        return node
    *before, last = node.body
    verdict = _verdict(last)
    if not isinstance(verdict, ast.Name) or varies(verdict, node.varying):
        return node
    restored = facts.context.restored
    early: Body = []
    late: Body = []
    for statement in reversed(before):
        if _may_wait(statement, restored, [*early, *late]):
            late.insert(0, statement)
        else:
            early.insert(0, statement)
    if late:
        test = copied(verdict)
        stores = ast.copy_location(ast.If(test, late, []), late[0])
        node.body = [*early, stores, last]
        sends = verdict is not narrowed(last, ast.Return).value
        node.waits = not sends and _all_wait([*early, last], late)
    return node


def _verdict(node: ast.stmt) -> ast.expr | None:
    """Return the verdict in the last return, beside entries of the edge."""
    value = node.value if isinstance(node, ast.Return) else None
    return value.elts[0] if isinstance(value, ast.Tuple) else value


def _all_wait(before: Body, stores: Body) -> bool:
    """Return whether next entries may be stored over the current ones.

    Only stores under the verdict may touch the next entries. Stored properties may be
    read only in front of these stores, and only at the same feature: copies of a
    statement, and lanes, have different features and are not synchronized.
    """
    early, late = list(every(before)), list(every(stores))
    stored = {name for name, version in _entries(late) if version == "next"}
    if any(version == "next" for _, version in _entries(early)):
        return False
    if any((name, "now") in _entries(late) for name in stored):
        return False
    found = [n for n in early if isinstance(n, Access | Whole) and n.name in stored]
    return all(isinstance(n, Access) and _is_own(n) for n in found)


def _is_own(access: Access) -> bool:
    """Whether an entry is of the own vertex and the current feature."""
    names = [i.id if isinstance(i, ast.Name) else None for i in access.indices]
    return names == ["v", "f"]


def reads_what_it_changes(function: Analysed) -> bool:
    """Whether a lane may read an entry that another lane writes (a race)."""
    reads = {(a.name, a.version) for a in function.accesses if a.mode == "read"}
    changes = {(a.name, a.version) for a in function.accesses if a.mode != "read"}
    return bool(reads & changes)


def _may_wait(
    statement: ast.stmt, restored: Sequence[str], behind: Sequence[ast.stmt]
) -> bool:
    """Whether a store may move past all statements behind it."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, Access) or target.version != "next":
        return False
    if target.name not in restored:
        return False
    if not all(isinstance(other, ast.Assign) for other in behind):
        return False
    inside = [node for other in behind for node in ast.walk(other)]
    if any(isinstance(node, Atomic) for node in [*inside, *ast.walk(statement)]):
        return False
    if (target.name, "next") in _entries(inside):
        return False
    changed = _entries([t for other in behind for t in _targets(other)])
    bound = set().union(*(assigned_names(other) for other in behind))
    reads = _entries(ast.walk(statement)) - {(target.name, "next")}
    return not (reads & changed or names_read(statement) & bound)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []


def _entries(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Return (property, version) of all accesses in nodes."""
    return {(n.name, n.version) for n in nodes if isinstance(n, Access | Whole)}


def leaving_test(function: Analysed) -> ast.expr | None:
    """Return the test of an early return in the first statement, if it is simple.

    Such a test reads only current entries of the vertex, without features, and
    scalars.
    """
    first = function.body[0]
    if not isinstance(first, ast.If) or first.orelse or len(first.body) != 1:
        return None
    [only] = first.body
    value = only.value if isinstance(only, ast.Return) else None
    if not isinstance(value, ast.Constant) or value.value is not False:
        return None
    for node in ast.walk(first.test):
        if isinstance(node, Access):
            is_own = len(node.indices) == 1 and isinstance(node.indices[0], ast.Name)
            if not is_own or node.version != "now":
                return None
        if isinstance(node, Atomic | Operate | Whole):
            return None
        if isinstance(node, ast.Name) and node.id not in {"v", "d"}:
            return None
    return first.test


def find_forwarded(context: Context, plan: FoldPlan, phase: Phase) -> dict[str, str]:
    """Return the forwarded edge properties -> name of the copies in a kernel.

    The result is empty unless all iterated entries that the edge function writes can
    be forwarded.
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
    """Return whether a function without collective calls has named copies.

    It has if it is straight-line code whose assignments can be stored in pieces.
    """
    if not function.kind.writes or function.is_scalar:
        return False
    straight = all(isinstance(s, ast.Assign) for s in function.body[:-1])
    facts = BodyFacts(context, function, "unrolled")
    return straight and any(can_store(facts, s) for s in function.body)


def _written(context: Context, phase: Phase, function: Analysed) -> set[str]:
    """Return properties written exactly once on every path and never read back."""
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
    """Whether a statement assigns, or returns False for all features at once."""
    if not isinstance(node, ast.If):
        return isinstance(node, ast.Assign)
    if all(isinstance(s, ast.Assign) for s in (*node.body, *node.orelse)):
        return True
    value = node.body[0].value if isinstance(node.body[0], ast.Return) else None
    is_false = isinstance(value, ast.Constant) and value.value is False
    return is_false and not node.orelse and not varies(node.test, varying)


def _touched(function: Analysed, name: str) -> int:
    """Return the number of accesses to next entries of a property."""
    return sum(
        isinstance(node, Access | Whole)
        and node.name == name
        and node.version == "next"
        for statement in function.body
        for node in ast.walk(statement)
    )


def _reads_own(context: Context, function: Analysed, names: set[str]) -> bool:
    """Whether a gather reads next entries of its own edge and feature only."""
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


def returning_entries(facts: BodyFacts, node: Define) -> Define:
    """Return next entries from an edge function in place of storing them."""
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


def _stored_type(facts: BodyFacts, name: str) -> str:
    dtype = facts.analysis.signature[name].dtype
    return facts.context.real if dtype == "real" else dtype


class _Returning(Rewriting):
    """Bind next entries to local variables, and return them behind the verdict."""

    def __init__(self, names: dict[str, str], types: dict[str, str]) -> None:
        self.names, self.types = names, types

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Bind an entry to a local variable."""
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
