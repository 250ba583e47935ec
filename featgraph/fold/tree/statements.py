"""Statements that passes build: Python's own, from templates, and what marks them.

A nest mixes Python's statements with nodes of its own (`nodes.py`), so that
`ast.NodeTransformer` walks both. Parts of a node that are neither statements nor
expressions are names and numbers: a tree can be copied and compared without what they
stand for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

Body = list[ast.stmt]

#: Nodes of syntax trees of which Python has a single instance.
SHARED = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
#: Where these stand.
_NO_NODES = frozenset({"ctx", "op", "ops"})

_Tree = TypeVar("_Tree", bound=ast.AST)


class Node(ast.stmt):
    """A statement of the nest that is not Python's; subclasses are dataclasses."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """List all parts as fields of the syntax tree, so that visitors reach them."""
        cls._fields = tuple(cls.__annotations__)


class _Parts(dict[type[ast.AST], tuple[str, ...]]):
    """Class of node -> its fields in which nodes may stand; most have none."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        ends = issubclass(kind, ast.Name | ast.Constant)
        fields = [] if ends else [n for n in kind._fields if n not in _NO_NODES]
        return self.setdefault(kind, tuple(fields))


_PARTS = _Parts()


class Rewriting(ast.NodeTransformer):
    """A pass, or a part of one: methods ``visit_X`` return the replacement of a node X.

    Their results are those of Python's own class. Each pass of each kernel walks trees,
    so fields without nodes are skipped, and a method is looked up once for each class.
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Return a node with what becomes of its parts."""
        for name in _PARTS[type(node)]:
            value = getattr(node, name, None)
            if isinstance(value, list):
                value[:] = _rewritten(value, self)
            elif isinstance(value, ast.AST):
                new = _become(value, self)
                if new is None:
                    delattr(node, name)
                elif new is not value:
                    setattr(node, name, new)
        return node

    def over(self, body: Iterable[ast.AST]) -> Body:
        """Return statements as they are behind this pass."""
        out: Body = []
        for node in body:
            new = _become(node, self)
            out += new if isinstance(new, list) else [new]
        return out


#: Class of a pass and of a node -> the method that returns its replacement.
_METHODS: dict[tuple[type[Rewriting], type[ast.AST]], Callable[[Any, Any], Any]] = {}


def _become(node: ast.AST, rewriting: Rewriting) -> Any:
    """Return the replacement of a node."""
    asked = type(rewriting), type(node)
    method = _METHODS.get(asked)
    if method is None:
        method = getattr(asked[0], f"visit_{asked[1].__name__}", None)
        if method is None or method is ast.NodeVisitor.visit_Constant:
            # Python's own looks for methods by names of older releases.
            method = asked[0].generic_visit
        _METHODS[asked] = method
    return method(rewriting, node)


def _rewritten(values: list[Any], rewriting: Rewriting) -> list[Any]:
    """Return a list with what becomes of the nodes in it."""
    out: list[Any] = []
    for value in values:
        if not isinstance(value, ast.AST):
            out.append(value)
            continue
        new = _become(value, rewriting)
        if isinstance(new, list):
            out += new
        elif new is not None:
            out.append(new)
    return out


class _Filled(Rewriting):
    """Puts bodies and expressions where a template names them."""

    def __init__(self, parts: Mapping[str, Body | ast.expr]) -> None:
        self.parts = parts

    def visit_Expr(self, node: ast.Expr) -> ast.AST | Body:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        part = self.parts.get(name)
        return part if isinstance(part, list) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        part = self.parts.get(node.id)
        return copied(part) if isinstance(part, ast.AST) else node


def code(text: str, **parts: Body | ast.expr) -> Body:
    """Return the statements of a template.

    A name in capitals stands for a body, or for an expression, which may stand in
    several places. Lines of the template are no lines of the user's: see `placed`.
    """
    statements = [copied(statement) for statement in _parsed(text)]
    return _Filled(parts).over(statements) if parts else statements


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Body:
    return placed(ast.parse(text).body)


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """Return the expression of a template; a name in capitals stands for another."""
    made = copied(_parsed_expression(text))
    return cast("ast.expr", _Filled(parts).visit(made)) if parts else made


@lru_cache(maxsize=4096)
def _parsed_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def when(
    tests: Sequence[str | ast.expr], body: Body, orelse: Sequence[ast.stmt] = ()
) -> Body:
    """Return `body` under the conjunction of those of `tests` that are not empty."""
    values = [expression(t) if isinstance(t, str) else t for t in tests if t != ""]
    if not body and not orelse:
        return []
    if not values:
        return body
    flat: list[ast.expr] = []
    for value in values:
        joined = isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And)
        flat += value.values if joined else [value]  # type: ignore[attr-defined]
    test = flat[0] if len(flat) == 1 else ast.BoolOp(ast.And(), flat)
    return [ast.If(test, body, list(orelse))]


def noted(body: Body, note: str) -> Body:
    """Return `body` with a remark behind its first line."""
    body[0].note = note  # type: ignore[attr-defined]
    return body


def note_of(node: ast.AST) -> str:
    """Return the remark behind the first line of a statement; "" without one."""
    return str(getattr(node, "note", ""))


def agreed(body: Body, company: str) -> Body:
    """Return `body`, whose first statement all lanes of `company` enter, or none.

    `company` is "warp" or "block". Lanes may meet in no other branch or loop.
    """
    body[0].company = company  # type: ignore[attr-defined]
    return body


def agrees(node: ast.AST) -> str:
    """Return which lanes enter a branch or loop together; "" where each decides."""
    return str(getattr(node, "company", ""))


def assigned(names: str, value: ast.expr) -> ast.stmt:
    """Return the assignment of an expression to names, ``*x,`` among them."""
    [statement] = code(f"{names} = None")
    cast("ast.Assign", statement).value = value
    return statement


def placed(body: Body, node: ast.AST | None = None) -> Body:
    """Return statements as those of the user's line of `node`; of none without it."""
    for statement in every(body):
        if isinstance(statement, ast.stmt):
            statement.lineno = getattr(node, "lineno", 0)
    return body


def copied(node: _Tree) -> _Tree:
    """Return a tree of its own; what is no part of the syntax is shared."""
    kind = type(node)
    new = kind.__new__(kind)
    held = vars(new)
    held.update(vars(node))
    for name in _PARTS[kind]:
        value = held.get(name)
        if isinstance(value, ast.AST):
            held[name] = copied(value)
        elif isinstance(value, list):
            held[name] = [copied(v) if isinstance(v, ast.AST) else v for v in value]
    return new


def every(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of a body, at any depth, but operators and uses of names."""
    for statement in body:
        found = [statement]
        for node in found:  # which grows
            yield node
            for name in _PARTS[type(node)]:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [part for part in value if isinstance(part, ast.AST)]
