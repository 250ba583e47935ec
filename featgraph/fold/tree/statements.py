"""Python's syntax tree, with statements and expressions of the folder added.

- Statements come from templates (`code`, `expression`, `when`), and `Rewriting` is the
  base class of passes over them. A nest mixes statements of Python with the nodes of
  `nodes.py`, which are `ast.stmt` subclasses, so that one visitor walks both. Fields of
  nodes hold statements, expressions, names and numbers only, no objects of the plan: so
  trees can be copied and compared.
- `Access` and the classes behind it are expressions that `syntax` puts in place of the
  user's: accesses, calls of operations and helpers, casts. They are `ast.expr`
  subclasses. Only `passes/bodies/memory.py` turns them back into Python.

>>> ast.unparse(expression("TEST or not alive", TEST=expression("degree == 0")))
'degree == 0 or not alive'
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, ClassVar, TypeVar, cast

from featgraph.base.dataclass import dataclass, field
from featgraph.program.operations import Collaborative, Operation

__all__ = []

Body = list[ast.stmt]

#: Classes of nodes of which Python keeps one instance, shared by all trees.
SHARED = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
#: Fields that hold these.
_NO_NODES = frozenset({"ctx", "op", "ops"})

_Tree = TypeVar("_Tree", bound=ast.AST)


class Node(ast.stmt):
    """Base of statements of a nest that Python lacks; subclasses are dataclasses."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Make all dataclass fields fields of the tree, so that visitors reach them."""
        cls._fields = tuple(cls.__annotations__)


class _Parts(dict[type[ast.AST], tuple[str, ...]]):
    """Class of node -> fields that may hold nodes, filled at the first look-up."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        ends = issubclass(kind, ast.Name | ast.Constant)
        fields = [] if ends else [n for n in kind._fields if n not in _NO_NODES]
        return self.setdefault(kind, tuple(fields))


_PARTS = _Parts()


class Rewriting(ast.NodeTransformer):
    """A pass, or a part of one: methods ``visit_X`` return the replacement of a node X.

    Same semantics as `ast.NodeTransformer`, but faster, since each pass of each kernel
    walks a tree: fields without nodes are skipped, and the method for a class of nodes
    is looked up once.
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Replace the parts of a node in place, and return the node."""
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
        """Return the statements that the pass makes of a body."""
        out: Body = []
        for node in body:
            new = _become(node, self)
            out += new if isinstance(new, list) else [new]
        return out


#: Class of a pass and of a node -> the method that returns its replacement.
_METHODS: dict[tuple[type[Rewriting], type[ast.AST]], Callable[[Any, Any], Any]] = {}


def _become(node: ast.AST, rewriting: Rewriting) -> Any:
    """Return the replacement of a node: a node, a list of statements, or None."""
    key = type(rewriting), type(node)
    method = _METHODS.get(key)
    if method is None:
        method = getattr(key[0], f"visit_{key[1].__name__}", None)
        if method is None or method is ast.NodeVisitor.visit_Constant:
            # Python's version looks for `visit_Num` and other names of old releases.
            method = key[0].generic_visit
        _METHODS[key] = method
    return method(rewriting, node)


def _rewritten(values: list[Any], rewriting: Rewriting) -> list[Any]:
    """Return a list with its nodes replaced; a replacement may be a list or None."""
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
    """Replace names of a template by bodies and expressions."""

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

    Names in `parts`, in capitals, are replaced by a body (once), or by copies of an
    expression. Statements of a template have the line number 0, not a line of the
    user's file: see `placed`.
    """
    statements = [copied(statement) for statement in _parsed(text)]
    return _Filled(parts).over(statements) if parts else statements


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Body:
    return placed(ast.parse(text).body)


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """Return the expression of a template, with names in `parts` replaced."""
    template = copied(_parsed_expression(text))
    return cast("ast.expr", _Filled(parts).visit(template)) if parts else template


@lru_cache(maxsize=4096)
def _parsed_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def when(
    tests: Sequence[str | ast.expr], body: Body, orelse: Sequence[ast.stmt] = ()
) -> Body:
    """Return `body` in an ``if`` on all `tests` that are not ""; `body` without any."""
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
    """Return `body`; `note` is printed as a comment behind its first line."""
    body[0].note = note  # type: ignore[attr-defined]
    return body


def note_of(node: ast.AST) -> str:
    """Return the comment behind the first line of a statement; "" without one."""
    return str(getattr(node, "note", ""))


def agreed(body: Body, company: str) -> Body:
    """Return `body`, its first statement marked as uniform for `company`.

    All lanes of the company, "warp" or "block", enter that branch or loop, or none
    does. Barriers, votes and shuffles of these lanes may stand in no other branch or
    loop: `passes.verify` checks it.
    """
    body[0].company = company  # type: ignore[attr-defined]
    return body


def agrees(node: ast.AST) -> str:
    """Return for which lanes a branch or loop is uniform; "" for none."""
    return str(getattr(node, "company", ""))


def assigned(names: str, value: ast.expr) -> ast.stmt:
    """Return the assignment of an expression to `names`, e.g. ``a, b`` or ``*x,``."""
    [statement] = code(f"{names} = None")
    cast("ast.Assign", statement).value = value
    return statement


def placed(body: Body, node: ast.AST | None = None) -> Body:
    """Give statements the line number of `node` in the user's file; 0 without it."""
    for statement in every(body):
        if isinstance(statement, ast.stmt):
            statement.lineno = getattr(node, "lineno", 0)
    return body


def copied(node: _Tree) -> _Tree:
    """Return a deep copy of a tree; objects that are no nodes are shared."""
    kind = type(node)
    new = kind.__new__(kind)
    parts = vars(new)
    parts.update(vars(node))
    for name in _PARTS[kind]:
        value = parts.get(name)
        if isinstance(value, ast.AST):
            parts[name] = copied(value)
        elif isinstance(value, list):
            parts[name] = [copied(v) if isinstance(v, ast.AST) else v for v in value]
    return new


def every(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of a body, at any depth, but no instances of `SHARED`."""
    for statement in body:
        pending = [statement]
        for node in pending:  # a queue: the list grows while it is walked
            yield node
            for name in _PARTS[type(node)]:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    pending.append(value)
                elif isinstance(value, list):
                    pending += [part for part in value if isinstance(part, ast.AST)]


# Expressions that Python lacks. `_fields` are the fields that hold expressions.


@dataclass(eq=False)
class Access(ast.expr):
    """``d.name[indices]``: one element of a property, temporary or vector.

    `version` is ``"now"``; ``"next"``, for ``d.name_next``; ``"seen"``, in an
    incremental gather: the value at the last update of the aggregate; or ``"indexed"``,
    for a gathered value at a computed feature, which is read from memory. `is_row` is
    set if the user gave the whole row to an operation. `row` is the name of the
    variables with the loaded row; "" if the row is not loaded.
    """

    _fields = ("indices",)
    name: str
    version: str
    indices: list[ast.expr]
    is_row: bool = False
    row: str = ""


@dataclass(eq=False)
class Whole(ast.expr):
    """``d.name[entity]`` as an argument of an operation: a whole row or matrix."""

    _fields = ("indices",)
    name: str
    indices: list[ast.expr]
    version: str = "now"


@dataclass(eq=False)
class Scalar(ast.expr):
    """``d.name``: a scalar of the State, or a built-in one such as ``d.superstep``."""

    name: str


@dataclass(eq=False)
class Operate(ast.expr):
    """A call of a primitive or composite operation.

    ``extra[options[name]]`` is the value of the option `name`.
    """

    _fields = ("args", "extra")
    operation: Operation | Collaborative
    args: list[ast.expr]
    options: dict[str, int] = field(default_factory=dict)
    extra: list[ast.expr] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation.name

    def option(self, name: str) -> ast.expr | None:
        """Return the expression given for an option, or None."""
        return self.extra[self.options[name]] if name in self.options else None

    def constant(self, name: str) -> Any:
        """Return the value of a constant option, or None."""
        given = self.option(name)
        return given.value if isinstance(given, ast.Constant) else None

    @property
    def is_collective(self) -> bool:
        """Whether all lanes take part: False for operations on an edge (`reverse`)."""
        return not isinstance(self.operation, Operation) or self.operation.collaborative


@dataclass(eq=False)
class Atomic(ast.expr):
    """``fg.atomic.op(d.name, indices, value)``."""

    _fields = ("indices", "value")
    op: str
    name: str
    indices: list[ast.expr]
    value: ast.expr


@dataclass(eq=False)
class Helper(ast.expr):
    """A call of a plain function that the user function captures.

    `emitted` is the name of the specialised helper in the generated module, and
    `returns` the type that it returns; "" before types are known.
    """

    _fields = ("args",)
    function: Callable[..., Any]
    args: list[ast.expr]
    emitted: str = ""
    returns: str = ""


@dataclass(eq=False)
class MathCall(ast.expr):
    """A call of ``math.name`` or of a builtin such as ``abs``, ``min`` and ``max``.

    `of_real` is set if ``min`` or ``max`` compares real numbers.
    """

    _fields = ("args",)
    name: str
    args: list[ast.expr]
    of_real: bool = False


@dataclass(eq=False)
class Numeric(ast.expr):
    """A call of a function of `featgraph.device.numbers`; its result has type `type_`.

    `of_real` is set for comparisons, which have one version for each real type.
    """

    _fields = ("args",)
    name: str
    args: list[ast.expr]
    type_: str = "int64"
    of_real: bool = False


@dataclass(eq=False)
class Cast(ast.expr):
    """A conversion of `value` to the type `to`.

    "real" is the storage type of real numbers, "int" is int64; others are NumPy names.
    """

    _fields = ("value",)
    to: str
    value: ast.expr


class Identity(ast.expr):
    """``fg.nothing`` in a gather: the identity of its combine."""


def contains(node: ast.AST, kinds: type[ast.AST] | UnionType) -> bool:
    """Return whether a tree has a node of some classes."""
    return any(isinstance(part, kinds) for part in every([node]))


def name_of(node: object) -> str:
    """Return the identifier of a name; "" for any other node."""
    return node.id if isinstance(node, ast.Name) else ""


def test_of(node: ast.If | ast.For | ast.While) -> ast.expr:
    """Return the condition of a branch or loop, or the iterable of a `for`."""
    return node.iter if isinstance(node, ast.For) else node.test


def entity_of(node: Access | Whole | Atomic) -> str:
    """Return the name of the vertex or edge of an entry; "" if it is computed."""
    return name_of(node.indices[0]) if node.indices else ""


AnyNode = TypeVar("AnyNode", bound=ast.AST)


def copy_location(new: AnyNode, old: ast.AST) -> AnyNode:
    """Give `new` the line of `old`."""
    return ast.copy_location(new, old)


def narrowed(node: object, kind: type[AnyNode]) -> AnyNode:
    """Return `node`; an earlier pass guarantees its class, `kind`.

    Raises
    ------
    TypeError
        If the node has another class: an earlier pass has a fault.
    """
    if not isinstance(node, kind):
        raise TypeError(f"{type(node).__name__} instead of {kind.__name__}")
    return node


def is_same(a: object, b: object) -> bool:
    """Return whether two trees are equal, except for their locations."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if not isinstance(a, ast.AST) or not isinstance(b, ast.AST):
        return type(a) is type(b) and bool(a == b)  # True is not 1
    parts, others = ({**vars(n)} for n in (a, b))
    for place in (*ast.expr._attributes, "ctx"):
        parts.pop(place, None)
        others.pop(place, None)
    return (
        type(a) is type(b)
        and parts.keys() == others.keys()
        and all(is_same(value, others[name]) for name, value in parts.items())
    )


def is_reversed(node: ast.AST) -> bool:
    """Return whether `node` is the twin of an edge, ``fg.reverse(e)``."""
    return isinstance(node, Operate) and node.name == "reverse"


def is_matrix_sum(node: ast.AST) -> bool:
    """Return whether `node` is a sum or difference of whole matrices."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return False
    return all(
        isinstance(side, Whole) or is_matrix_sum(side)
        for side in (node.left, node.right)
    )


def symbol(node: ast.BinOp) -> str:
    """Return the operator of a sum or difference, "+" or "-"."""
    return "+" if isinstance(node.op, ast.Add) else "-"


def names_read(node: ast.AST) -> set[str]:
    """Return the local names that `node` reads."""
    return _names_in(node, ast.Load)


def assigned_names(node: ast.AST) -> set[str]:
    """Return the local names that `node` binds."""
    return _names_in(node, ast.Store)


def _names_in(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = (part for part in every([node]) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, context)}
