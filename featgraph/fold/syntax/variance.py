"""Fourth pass: find values that differ between the features of a vertex or edge.

A value varies if it depends on `f`, or was assigned under a condition that does. A
collaborative call, and a return in front of one, must not be under such a condition:
the lanes of a vertex would diverge.
"""

from __future__ import annotations

import ast

from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.normal_form import has_collective
from featgraph.fold.tree.expressions import Atomic, Operate, assigned_names
from featgraph.program.source import FunctionSource

__all__ = ["find_varying", "loop_varies", "returns_apart", "returns_varying", "varies"]


def find_varying(source: FunctionSource, body: list[ast.stmt]) -> frozenset[str]:
    """Return the local names whose values vary over the features; `f` is one of them.

    Raises
    ------
    UserFunctionError
        For a collaborative call under a varying condition, or behind a return under
        one.
    """
    names: set[str] = {"f"}
    while True:
        before = len(names)
        _mark(body, names, under_varying=False)
        if len(names) == before:
            break
    _check(source, body, names)
    return frozenset(names)


def varies(node: ast.AST, names: set[str] | frozenset[str]) -> bool:
    """Return whether `node` differs between features, given the names that do."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, Atomic):
        return True  # each feature gets its own old value
    if isinstance(node, Operate) and node.is_collective:
        return primitive_of(node).varies(node, lambda operand: varies(operand, names))
    return any(varies(child, names) for child in ast.iter_child_nodes(node))


def loop_varies(node: ast.For | ast.While, names: set[str] | frozenset[str]) -> bool:
    """Return whether features may leave a loop or iteration at different times."""
    test = node.iter if isinstance(node, ast.For) else node.test
    return varies(test, names) or any(
        isinstance(inner, ast.If)
        and varies(inner.test, names)
        and any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(inner))
        for inner in ast.walk(node)
    )


def _mark(body: list[ast.stmt], names: set[str], under_varying: bool) -> None:
    for node in body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Name) and (
                under_varying or varies(node.value, names)
            ):
                names.add(target.id)
        elif isinstance(node, ast.If):
            inside = under_varying or varies(node.test, names)
            _mark(node.body, names, inside)
            _mark(node.orelse, names, inside)
        elif isinstance(node, ast.While):
            inside = under_varying or loop_varies(node, names)
            _mark(node.body, names, inside)
        elif isinstance(node, ast.For):
            inside = under_varying or loop_varies(node, names)
            if inside:
                names |= assigned_names(node.target)
            _mark(node.body, names, inside)


def _check(source: FunctionSource, body: list[ast.stmt], names: set[str]) -> None:
    """Refuse collective calls that not all lanes reach."""
    parted: ast.stmt | None = None
    for node in body:
        if not has_collective(node):
            if returns_apart(node, names):
                parted = node
            continue
        if parted is not None:
            raise source.error(
                "a collaborative call behind a return that only some features take",
                node,
                got=f"return at line {parted.lineno}",
                fix=(
                    "compute the call first, or make the condition the same for all "
                    "features (any_feature, all_features)"
                ),
            )
        if isinstance(node, ast.If | ast.For):
            test = node.test if isinstance(node, ast.If) else node.iter
            if varies(test, names):
                raise source.error(
                    "a collaborative call under a condition that is not uniform",
                    node,
                    got="a condition that depends on f",
                    expected=(
                        "a condition that is the same for all features of the vertex"
                    ),
                    fix=(
                        "wrap the condition in any_feature or all_features, or move "
                        "the call out"
                    ),
                )
            if isinstance(node, ast.For) and _leaves(node):
                raise source.error(
                    "break, continue and return cannot be used in a loop with "
                    "collaborative calls",
                    node,
                )
            _check(source, node.body, names)
            _check(source, node.orelse, names)


def returns_apart(node: ast.stmt, names: set[str] | frozenset[str]) -> bool:
    """Return whether `node` has a return that only some features take."""
    if isinstance(node, ast.If | ast.While | ast.For):
        test = node.iter if isinstance(node, ast.For) else node.test
        has_return = any(isinstance(inner, ast.Return) for inner in ast.walk(node))
        if has_return and varies(test, names):
            return True
        children = [*node.body, *node.orelse]
        return any(returns_apart(child, names) for child in children)
    return False


def returns_varying(body: list[ast.stmt], varying: frozenset[str]) -> bool:
    """Return whether the value of a function differs between features."""
    returns = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Return)]
    if any(r.value is not None and varies(r.value, varying) for r in returns):
        return True
    branches = [
        n
        for s in body
        for n in ast.walk(s)
        if isinstance(n, ast.If | ast.For | ast.While)
    ]
    return any(
        varies(b.iter if isinstance(b, ast.For) else b.test, varying)
        and any(isinstance(n, ast.Return) for n in ast.walk(b))
        for b in branches
    )


def _leaves(node: ast.For) -> bool:
    return any(
        isinstance(inner, ast.Break | ast.Continue | ast.Return)
        for inner in ast.walk(node)
    )
