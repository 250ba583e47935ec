"""First pass: a user function's syntax tree with every name resolved.

After it, properties are `Access`, `Whole` and `Scalar` nodes, operations `Operate`,
`Atomic` and `Identity` nodes, and captured numbers constants; every other name is a
parameter or local. Python that cannot be folded raises here, with its file and line.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from featgraph.base.dataclass import dataclass
from featgraph.fold.syntax.arithmetic import integer_literal
from featgraph.fold.syntax.names import Names, rename_locals
from featgraph.fold.syntax.resolve_calls import Calls
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Identity,
    Operate,
    Whole,
    assigned_names,
    copied,
    every,
    narrowed,
    test_of,
)
from featgraph.program.source import FunctionSource

__all__ = ["Resolved", "resolve_function"]

#: Statements that can be folded.
_STATEMENTS = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.If,
    ast.For,
    ast.While,
    ast.Return,
    ast.Expr,
    ast.Pass,
    ast.Break,
    ast.Continue,
)
#: Class of a statement -> its keyword, where the name of the class is another.
_WRITTEN = {
    "AsyncFor": "async for",
    "AsyncFunctionDef": "async def",
    "AsyncWith": "async with",
    "ClassDef": "class",
    "Delete": "del",
    "FunctionDef": "nested def",
    "ImportFrom": "import",
    "TryStar": "try",
}


@dataclass
class Resolved:
    """A function after name resolution; `tree` is a copy, which may be changed."""

    source: FunctionSource
    tree: ast.FunctionDef

    @property
    def parameters(self) -> tuple[str, ...]:
        """New names of the parameters."""
        return tuple(argument.arg for argument in self.tree.args.args)


def resolve_function(
    source: FunctionSource,
    roles: tuple[str, ...],
    captured: Mapping[str, Any],
    names: Names,
    *,
    nothing: bool = False,
    data: bool = False,
    returns: bool = True,
) -> Resolved:
    """Resolve the names of one function.

    Parameters
    ----------
    source : FunctionSource
        The parsed user function, helper or collaborative operation.
    roles : tuple of str
        New names of its parameters, canonical ones for user functions.
    captured : mapping
        Free name, or dotted name, -> frozen value.
    names : Names
        The meaning of ``d.name``.
    nothing : bool, optional
        Whether it may return ``fg.nothing``.
    data : bool, optional
        Whether the parameter ``d`` is the state.
    returns : bool, optional
        Whether the function returns a value. If not, as in triangle functions, the
        resolved function returns True.

    Raises
    ------
    UserFunctionError
        For unsupported Python, unknown names and properties, captured arrays.
    """
    tree = copied(source.tree)
    tree.decorator_list = []
    if not returns:
        _end_with_true(source, tree)
    _check_statements(source, tree.body)
    rename_locals(tree, roles, names.taken)
    tree.args = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(r) for r in roles],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    tree = _Resolver(source, captured, names, roles, data).visit(tree)
    _check_nothing(source, tree, nothing)
    _check_rows(source, tree, names.kinds)
    _check_bound(source, tree.body, frozenset(roles), assigned_names(tree))
    if not _always_returns(tree.body):
        raise source.error(
            "a path through this function ends without return",
            tree,
            got="None",
            expected="a value on every path",
            fix="add a return at the end",
        )
    return Resolved(source, tree)


def _check_statements(source: FunctionSource, body: list[ast.stmt]) -> None:
    """Raise for statements that cannot be folded."""
    for node in every(body):
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            name = type(node).__name__
            raise source.error(
                f"{_WRITTEN.get(name, name.lower())} statements cannot be folded",
                node,
                expected="assignments, if, for over range, while, return",
            )
        if isinstance(node, ast.Return) and node.value is None:
            raise source.error(
                "return without a value",
                node,
                expected="a value on every path",
                fix="return True or False, or what is contributed",
            )
        if isinstance(node, ast.For | ast.While) and node.orelse:
            raise source.error(
                "else behind a loop cannot be folded",
                node,
                fix="set a flag in the loop and test it",
            )


def _end_with_true(source: FunctionSource, tree: ast.FunctionDef) -> None:
    """Make a function without a value return True; raise if it returns a value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Return):
            continue
        if node.value is not None:
            raise source.error(
                "this function decides nothing and returns nothing",
                node,
                got=ast.unparse(node),
                fix="write `return` alone, or leave it out",
            )
        node.value = ast.copy_location(ast.Constant(True), node)
    last = ast.copy_location(ast.Return(ast.Constant(True)), tree.body[-1])
    tree.body.append(ast.fix_missing_locations(last))


def _always_returns(body: list[ast.stmt]) -> bool:
    """Return whether all paths return; loops count as paths that go on."""
    for statement in body:
        if isinstance(statement, ast.Return):
            return True
        if (
            isinstance(statement, ast.If)
            and _always_returns(statement.body)
            and _always_returns(statement.orelse)
        ):
            return True
    return False


def _check_nothing(source: FunctionSource, tree: ast.AST, allowed: bool) -> None:
    """Raise for an ``fg.nothing`` that is not returned, or not `allowed`."""
    returned: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None and allowed:
            pending = [node.value]
            while pending:
                value = pending.pop()
                if isinstance(value, ast.IfExp):
                    pending += [value.body, value.orelse]
                returned.add(id(value))
    for node in ast.walk(tree):
        if isinstance(node, Identity) and id(node) not in returned:
            raise source.error(
                "fg.nothing is no value",
                node,
                expected="`return fg.nothing` in a gather or reduce",
                fix="return it from the gather, or use a number",
            )


def _check_rows(
    source: FunctionSource, tree: ast.AST, kinds: Mapping[str, str]
) -> None:
    """Raise for whole rows and matrices that are not in an argument of an operation."""
    nodes = list(every([tree]))
    calls = (node for node in nodes if isinstance(node, Operate))
    given = {id(part) for call in calls for part in every(call.args)}
    for node in (n for n in nodes if isinstance(n, Access | Whole)):
        if id(node) in given or not (isinstance(node, Whole) or node.is_row):
            continue
        name = f"d.{node.name}"
        first = {"vertex": ["v"], "into": ["v"], "edge": ["e"]}
        indices = first.get(kinds.get(node.name, ""), [])
        indices += ["i", "f"] if isinstance(node, Whole) else ["f"]
        raise source.error(
            f"{name} as a whole is no value",
            node,
            expected=f"{name}[{', '.join(indices)}], or the whole as an argument "
            "of an operation",
        )


#: Locals that are bound on every path to a statement; None if no path reaches it.
Bound = frozenset[str] | None


def _check_bound(
    source: FunctionSource, body: list[ast.stmt], bound: Bound, names: set[str]
) -> Bound:
    """Raise for locals that some path reads before it binds them.

    The locals bound behind `body` are returned. Loops are assumed to run at least once.
    """
    for node in body:
        if bound is None:
            return None
        if isinstance(node, ast.If):
            _check_read(source, node.test, bound, names)
            ends = [
                _check_bound(source, side, bound, names)
                for side in (node.body, node.orelse)
            ]
            reached = [end for end in ends if end is not None]
            bound = frozenset.intersection(*reached) if reached else None
        elif isinstance(node, ast.For | ast.While):
            _check_read(source, test_of(node), bound, names)
            if isinstance(node, ast.For):
                bound |= assigned_names(node.target)
            end = _check_bound(source, node.body, bound, names)
            bound = bound if end is None else end
        elif isinstance(node, ast.Break | ast.Continue):
            return None
        else:
            _check_read(source, node, bound, names)
            bound |= assigned_names(node)
            if isinstance(node, ast.Return):
                return None
    return bound


def _check_read(
    source: FunctionSource, node: ast.AST, bound: frozenset[str], names: set[str]
) -> None:
    """Raise if `node` reads a local in `names` that is not bound."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Name)
            and isinstance(inner.ctx, ast.Load)
            and inner.id in names - bound
        ):
            raise source.error(
                f"{inner.id!r} has no value yet on some path to here",
                inner,
                fix="give it a value before the condition",
            )


class _Resolver(Calls):
    """Replaces names and attributes by nodes of `tree.statements`, in statements."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.locals |= assigned_names(node)
        node.body = [self.visit(s) for s in node.body if not _is_docstring(s)]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) != 1:
            raise self.source.error(
                "assign to one name at a time", node, got=ast.unparse(node)
            )
        node.value = self.visit(node.value)
        node.targets = [self._target(node.targets[0])]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            raise self.source.error("an annotation without a value", node)
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.visit_Assign(ast.copy_location(plain, node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.Assign:
        read = copied(node.target)
        read.ctx = ast.Load()
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        plain = ast.Assign(targets=[node.target], value=value)
        return self.visit_Assign(ast.copy_location(plain, node))

    def _target(self, target: ast.expr) -> ast.expr:
        """Return a resolved target: a local, or an access to a property."""
        if isinstance(target, ast.Name):
            if self.has_data and target.id in self.parameters:
                raise self.source.error(
                    "a parameter cannot be assigned",
                    target,
                    got=self.given.get(target.id, target.id),
                    fix="use a new name",
                )
            return target
        if isinstance(target, ast.Subscript):
            access = self.visit(target)
            if isinstance(access, Access):
                return access
        raise self.source.error(
            "cannot assign to this",
            target,
            got=ast.unparse(target),
            expected="a local name, or d.name[...]",
            fix="one assignment a line" if isinstance(target, ast.Tuple) else None,
        )

    def visit_For(self, node: ast.For) -> ast.For:
        call = node.iter
        # A captured `range` may be any function.
        is_range = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and not self.is_local(call.func)
            and self.captured.get(call.func.id, builtins.range) is builtins.range
            and call.func.id == "range"
            and not call.keywords
        )
        if not is_range or not isinstance(node.target, ast.Name):
            raise self.source.error(
                "only loops over range can be folded",
                node,
                got=f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}",
                expected="for name in range(...)",
            )
        self._target(node.target)
        call = narrowed(call, ast.Call)
        if not 1 <= len(call.args) <= 3:
            raise self.source.error("range takes one to three numbers", node)
        call.args = [self.visit(argument) for argument in call.args]
        if len(call.args) == 3 and integer_literal(call.args[2]) == 0:
            raise self.source.error(
                "range with step 0",
                node,
                got=ast.unparse(node.iter),
                expected="a step that is not 0",
                fix="for i in range(a, b) counts up, range(b, a, -1) down",
            )
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        node.value = self.visit(node.value)
        if not isinstance(node.value, Atomic):
            raise self.source.error(
                "this statement has no effect",
                node,
                fix="assign its value or remove it",
            )
        return node


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
