"""Rows and stores of functions: vector accesses, sunk stores, forwarded entries.

*Rows.* A lane with several features loads ``d.label[u, f]`` for all of them at once,
into variables that replace the accesses. `with_rows` finds these accesses: the function
must make them on every path, so that no load is wasted, and K must be a multiple of the
features of one load, or rows must be padded.

*Sinking.* Where a function returns False, the kernel restores the old entries. A store
in front of the verdict would be overwritten, so the last stores move behind it.

*Forwarding.* A pulled edge function writes ``d.msg_next[e, f]``, and gathers behind it
read that entry on the same edge, in the same lane. The function then returns the
entry; the kernel selects the old one if the verdict is False, stores once, and passes
the value to the gathers (docs/design/0004-pulled-edges.md).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from featgraph.fold.analysis.access import INDEXED
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    is_matrix,
    needs_guard,
    takes_active,
    temporaries_of,
)
from featgraph.fold.passes.bodies.facts import BodyFacts, Context
from featgraph.fold.passes.bodies.memory import Memory, array_of, lowered
from featgraph.fold.passes.bodies.nodes import Define, GoOn, Key, LoadRows, Row
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.syntax.names import unused_name
from featgraph.fold.syntax.normal_form import varies
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Cast,
    Operate,
    Rewriting,
    Whole,
    assigned_names,
    contains,
    copied,
    copy_location,
    every,
    is_reversed,
    name_of,
    names_read,
    narrowed,
)
from featgraph.program.signature import PropertyKind

__all__ = [
    "arrays_of_copy", "can_store", "find_forwarded", "is_piecewise", "leaving_test",
    "reads_what_it_changes", "returning_entries", "row_key", "stores_rows", "with_rows",
    "with_sunk_stores",
]  # fmt: skip


def is_piecewise(analysis: Analysis, name: str, width: int, piece: int) -> bool:
    """Return whether lanes can load rows of a property in pieces of several features.

    The property must have K features, whose rows have the stride of the mapping.
    """
    type_ = analysis.signature.get(name)
    if piece == 1 or type_ is None or type_.kind.value not in {"vertex", "edge"}:
        return False
    size = np.dtype(analysis.real if type_.dtype == "real" else type_.dtype).itemsize
    return type_.item_shape == (width,) and size in {4, 8}


def with_rows(facts: BodyFacts, node: Define) -> Define:
    """Load rows that are read on every path, or take them as arguments."""
    function, mapping, feature = facts.function, facts.mapping, "f"
    if node.form == "feature" and is_matrix(function) and facts.form == "feature":
        mapping, feature = mapping.of_column(facts.context.width), "i"
    goes_on = node.form == "unrolled" and facts.predicated
    rows = _find_rows(facts, node.body, mapping, feature, goes_on)
    if node.form == "feature" and function.kind.gathers and facts.form == "feature":
        rows = _with_forwarded(rows, facts)
    by_key = {row.key: row for row in rows}
    for access in [n for n in every(node.body) if isinstance(n, Access)]:
        key = row_key(access, facts.memory, feature)
        row = by_key.get(key) if key is not None else None
        access.row = row.name if row is not None else ""
    if node.form == "unrolled":
        node.body = [LoadRows(rows), *node.body] if rows else node.body
    else:
        node.rows = rows
        node.more += tuple(row.name for row in rows)
        node.body = _Taken().over(node.body)
    return node


class _Taken(Rewriting):
    """Replace accesses to rows by arguments."""

    def visit_Access(self, node: Access) -> ast.expr:
        """Return the loaded entry."""
        return ast.Name(node.row, ast.Load()) if node.row else node


def row_key(node: Access, memory: Memory, feature: str = "f") -> Key | None:
    """Return the key of the row of an access; None if it is no ``[.., f]``."""
    if len(node.indices) != 2 or node.version == INDEXED:
        return None
    entity, last = node.indices
    place = "twin" if is_reversed(entity) else name_of(entity)
    if name_of(last) != feature or place not in {"twin", "u", "v", "e"}:
        return None
    return ast.unparse(array_of(node, memory)), place


def _find_rows(
    facts: BodyFacts, body: Body, mapping: Mapping, feature: str, goes_on: bool
) -> tuple[Row, ...]:
    """Return the rows that `body` reads on every path, in order of first access.

    Parameters
    ----------
    mapping : Mapping
        Gives the number of features of one load.
    feature : str
        Index over features: "f", or "i" of a matrix.
    goes_on : bool
        Whether lanes execute statements behind a return, as in predicated functions.
        Rows of the own vertex or edge count behind a return in any case: the function
        runs once for them, and most often to its end.
    """
    function, analysis, memory = facts.function, facts.analysis, facts.memory
    if (
        mapping.vector_width == 1
        or facts.context.checked is not None
        or function.is_scalar
    ):
        return ()
    # An exclusive function reads entries before its first write to them.
    written = set() if function.kind.exclusive else _written_rows(function.body)
    own = "e" if function.kind.writes_edges else "v"
    if function.kind.gathers:
        own = ""  # runs for each edge: a load behind a return might be wasted each time
    taken = analysis.names | {helper.name for helper in analysis.helpers}
    found: dict[Key, Row] = {}
    for node, behind_return in _certain(body):
        key = row_key(node, memory, feature)
        if key is None or key in found or node.name in memory.temporaries:
            continue
        if behind_return and not goes_on and key[1] != own:
            continue
        if (node.name, node.version) in written or (node.name, "any") in written:
            continue
        if not is_piecewise(analysis, node.name, memory.width, mapping.vector_width):
            continue
        name = unused_name(f"{key[0].removeprefix('d.')}_{key[1]}", taken)
        taken.add(name)
        index = ast.unparse(lowered(node.indices[0], memory))
        found[key] = Row(key, name, index)
    return tuple(found.values())


def _written_rows(body: Body | tuple[ast.stmt, ...]) -> set[tuple[str, str]]:
    """Return (name, version) of assigned arrays; version "any" for atomics."""
    written: set[tuple[str, str]] = set()
    for node in every(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], Access):
            written.add((node.targets[0].name, node.targets[0].version))
        elif isinstance(node, Atomic):
            written.add((node.name, "any"))
    return written


def _certain(body: Body) -> Iterator[tuple[Access, bool]]:
    """Yield the accesses on every path, and whether a return may precede each.

    Accesses under a condition or in a loop are not on every path.
    """
    behind_return = False
    for statement in body:
        if isinstance(statement, ast.Assign | ast.Return):
            parts = [] if statement.value is None else [statement.value]
        elif isinstance(statement, ast.If | ast.While):
            parts = [statement.test]
        elif isinstance(statement, ast.For):
            parts = [statement.iter]
        else:
            parts = list(ast.iter_child_nodes(statement))  # type: ignore[arg-type]
        for part in parts:
            for access in _certain_in(part):
                yield access, behind_return
        behind_return = behind_return or contains(statement, ast.Return)


def _certain_in(node: ast.AST) -> Iterator[Access]:
    """Yield the accesses of an expression that are always evaluated.

    Those are in ``t`` of ``a if t else b``, in ``a`` of ``a and b``, and in ``a`` and
    ``b`` of ``a < b < c``.
    """
    if isinstance(node, Access):
        yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp):
        children = [node.test]
    elif isinstance(node, ast.BoolOp):
        children = children[1:2]  # the operator is first
    elif isinstance(node, ast.Compare):
        children = [node.left, node.comparators[0]]
    for child in children:
        yield from _certain_in(child)


def _with_forwarded(rows: tuple[Row, ...], facts: BodyFacts) -> tuple[Row, ...]:
    """Add the rows of forwarded edge entries that a gather reads."""
    reads = {a.name for a in facts.function.accesses if a.version == "next"}
    in_registers = [
        Row((f"d.{name}_next", "e"), own, "e", own)
        for name, own in facts.context.forwarded.items()
        if name in reads
    ]
    keys = {row.key for row in in_registers}
    return (*(row for row in rows if row.key not in keys), *in_registers)


def arrays_of_copy(name: str, commits: bool) -> tuple[str, str]:
    """Return the arrays that a copy of entries writes and reads.

    Where a function returns False, current entries go to the next buffer; a commit
    copies in the other direction.
    """
    current, next_ = f"d.{name}", f"d.{name}_next"
    return (current, next_) if commits else (next_, current)


def can_store(facts: BodyFacts, node: ast.stmt) -> bool:
    """Return whether an assignment to a row can use vector stores.

    Its value must not read the entries that it writes: copies would otherwise have to
    run one after the other.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], Access):
        return False
    target = node.targets[0]
    own = row_key(target, facts.memory)
    if facts.context.checked is not None or own is None:
        return False
    if contains(node.value, Atomic):
        return False
    for inner in every([node.value]):
        if isinstance(inner, Access | Whole) and inner.name == target.name:
            same = isinstance(inner, Access) and row_key(inner, facts.memory) == own
            if not same and inner.version == target.version:
                return False
    return is_piecewise(facts.analysis, target.name, facts.memory.width, facts.piece)


def with_sunk_stores(facts: BodyFacts, node: Define) -> Define:
    """Move the last stores of next entries under the verdict, where that is safe."""
    function = facts.function
    # Lanes that read entries which other lanes write may find different verdicts.
    may_disagree = facts.predicated and reads_what_it_changes(function)
    if not facts.context.cuda or facts.context.checked is not None:
        return node
    if may_disagree or isinstance(node.body[-1], GoOn):
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
    """Return the verdict of the last return, without the entries of an edge."""
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
    return list(map(name_of, access.indices)) == ["v", "f"]


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
    if any(contains(node, Atomic) for node in (statement, *behind)):
        return False
    if (target.name, "next") in _entries(every(behind)):
        return False
    stores = (other for other in behind if isinstance(other, ast.Assign))
    changed = _entries(target for store in stores for target in store.targets)
    bound = set().union(*map(assigned_names, behind))
    reads = _entries(every([statement])) - {(target.name, "next")}
    return not (reads & changed or names_read(statement) & bound)


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
    if contains(first.test, Atomic | Operate | Whole):
        return None
    for node in every([first.test]):
        if isinstance(node, Access):
            is_own = len(node.indices) == 1 and isinstance(node.indices[0], ast.Name)
            if not is_own or node.version != "now":
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
        return {}  # so do gathers with a walk of their own
    signature = plan.analysis.signature
    names = {n for n in phase.restores if signature[n].kind is PropertyKind.EDGE}
    if names & set(phase.copies) or names != _written(context, phase, edges[0]):
        return {}
    if not all(_reads_own(context, f, names) for f in gathers):
        return {}
    taken, forwarded = plan.analysis.names, {}
    for name in sorted(names):
        forwarded[name] = unused_name(f"next_{name}", taken)
        taken.add(forwarded[name])
    return forwarded


def stores_rows(context: Context, function: Analysed) -> bool:
    """Return whether a function without collaborative calls is unrolled for its stores.

    It must be straight-line code, with an assignment that vector stores can do.
    """
    if not function.kind.writes or function.is_scalar:
        return False
    straight = all(isinstance(s, ast.Assign) for s in function.body[:-1])
    facts = BodyFacts(context, function, "unrolled")
    return straight and any(can_store(facts, s) for s in function.body)


def _written(context: Context, phase: Phase, function: Analysed) -> set[str]:
    """Return properties whose next entry is written once on every path and not read."""
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
        plain = not needs_guard(statement, context.analysis)
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
    nodes = (n for n in every(function.body) if isinstance(n, Access | Whole))
    return sum((n.name, n.version) == (name, "next") for n in nodes)


def _reads_own(context: Context, function: Analysed, names: set[str]) -> bool:
    """Whether a gather reads next entries of its own edge and feature only."""
    memory = context.memory(function)
    nodes = (n for n in every(function.body) if isinstance(n, Access))
    read = [n for n in nodes if n.version == "next" and n.name in names]
    if any(row_key(node, memory) != (f"d.{node.name}_next", "e") for node in read):
        return False
    wide = not function.collective and not is_matrix(function)
    return not read or (wide and not function.is_scalar)


def returning_entries(facts: BodyFacts, node: Define) -> Define:
    """Make an edge function return next entries in place of storing them."""
    forwarded = facts.context.forwarded if facts.function.kind.writes_edges else {}
    if not forwarded:
        return node
    # A single copy is named like copy 0 of several.
    names = {n: own if facts.count > 1 else f"{own}_0" for n, own in forwarded.items()}
    types = {name: _stored_type(facts, name) for name in names}
    straight = all(isinstance(s, ast.Assign) for s in node.body[:-1])
    starts: Body = []
    for name, own in {} if straight else names.items():  # an early return needs values
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
