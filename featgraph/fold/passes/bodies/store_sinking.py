"""Work that functions do in vain where they return False.

Behind a False verdict the kernel puts the old entries back. What a function has stored
before would be stored twice, and a load in front of it be made again. And a function
that leaves with its first statement has no use for what was gathered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.passes.bodies.facts import FunctionFacts
from featgraph.fold.passes.bodies.nodes import Define, GoOn
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Operate,
    Whole,
    assigned_names,
    names_read,
    narrowed,
)
from featgraph.fold.tree.statements import Body, copied, every

__all__ = ["leaving_test", "reads_what_it_changes", "with_sunk_stores"]


def with_sunk_stores(facts: FunctionFacts, node: Define) -> Define:
    """Put the last stores of next entries under the verdict, where nothing minds."""
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
    """Return the verdict that a function returns last, beside entries of its edge."""
    value = node.value if isinstance(node, ast.Return) else None
    return value.elts[0] if isinstance(value, ast.Tuple) else value


def _all_wait(before: Body, stores: Body) -> bool:
    """Return whether next entries may be stored over the current ones.

    All that touches them are stores that wait for the verdict. And what is stored is
    read in front of these alone, and of the same feature: copies of a statement, and
    lanes, have features of their own, and nothing else keeps them in step.
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
    """Whether an entry is that of the vertex, and of the feature at hand."""
    names = [i.id if isinstance(i, ast.Name) else None for i in access.indices]
    return names == ["v", "f"]


def reads_what_it_changes(function: Analysed) -> bool:
    """Whether a lane may read what another one has written, or not yet."""
    reads = {(a.name, a.version) for a in function.accesses if a.mode == "read"}
    changes = {(a.name, a.version) for a in function.accesses if a.mode != "read"}
    return bool(reads & changes)


def _may_wait(
    statement: ast.stmt, restored: Sequence[str], behind: Sequence[ast.stmt]
) -> bool:
    """Whether nothing of what stands behind a store minds when it is made."""
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
    """Return (property, version) of the accesses among nodes."""
    return {(n.name, n.version) for n in nodes if isinstance(n, Access | Whole)}


def leaving_test(function: Analysed) -> ast.expr | None:
    """Return the test with which a vertex function leaves first, if it is simple.

    Such a test reads entries of the vertex as they stand, without features, and
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
