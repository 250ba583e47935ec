"""Python's syntax tree: statements that passes build, and expressions of ours.

- Statements come from templates (`code`, `expression`, `when`), and `Rewriting` is the
  base class of passes over them. A nest mixes Python's statements with nodes of its own
  (`nodes.py`), so that `ast.NodeTransformer` walks both. Parts of a node that are
  neither statements nor expressions are names and numbers: a tree can be copied and
  compared without the objects that they stand for.
- The middle end adds expressions: accesses, calls of operations and helpers, casts.
  They are `ast.expr` subclasses, so that `ast.NodeTransformer` and `copy.deepcopy` walk
  them like any other node. Only `passes/bodies/memory.py` turns them back into Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from featgraph.program.operations import Collaborative, Operation

__all__ = []

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
    key = type(rewriting), type(node)
    method = _METHODS.get(key)
    if method is None:
        method = getattr(key[0], f"visit_{key[1].__name__}", None)
        if method is None or method is ast.NodeVisitor.visit_Constant:
            # Python's own looks for methods by names of older releases.
            method = key[0].generic_visit
        _METHODS[key] = method
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


class _Node(ast.expr):
    """An expression that stands at the line of the node it came from."""

    _attributes = ("lineno", "col_offset", "end_lineno", "end_col_offset")

    def __reduce__(self) -> Any:
        """Copy by attributes alone: Python 3.13 also gives ``None`` for each field."""
        return type(self), (), self.__dict__


class Access(_Node):
    """``d.name[indices]``: one element of a property, temporary or vector.

    `version` is ``"now"``, ``"next"`` or, in a gather whose aggregates are kept,
    ``"seen"``: what the property was when they last took it in. Gathered values at
    features that are computed are ``"indexed"``: read from memory.
    """

    _fields = ("indices",)
    indices: list[ast.expr]

    def __init__(
        self, name: str = "", version: str = "now", indices: Any = (), **place: Any
    ) -> None:
        super().__init__(**place)
        self.name = name
        self.version = version
        self.indices = list(indices)
        #: Whether the row was given as a whole.
        self.is_row = False
        #: The name of the loaded features of the row; "" before they are loaded.
        self.row = ""


class Whole(_Node):
    """``d.name[entity]`` given as a whole to an operation: a row or a matrix."""

    _fields = ("indices",)
    indices: list[ast.expr]

    def __init__(self, name: str = "", indices: Any = (), **place: Any) -> None:
        super().__init__(**place)
        self.name = name
        self.version = "now"
        self.indices = list(indices)


class Scalar(_Node):
    """``d.name``: a scalar of the State, or a builtin one such as ``d.superstep``."""

    _fields = ()

    def __init__(self, name: str = "", **place: Any) -> None:
        super().__init__(**place)
        self.name = name


class Operate(_Node):
    """A call of a primitive or composite operation.

    ``options[name]`` is the place of that option in `extra`.
    """

    _fields = ("args", "extra")
    args: list[ast.expr]
    extra: list[ast.expr]

    def __init__(
        self,
        operation: Operation | Collaborative | None = None,
        args: Any = (),
        options: dict[str, int] | None = None,
        extra: Any = (),
        **place: Any,
    ) -> None:
        super().__init__(**place)
        self.operation = operation
        self.args = list(args)
        self.options = options or {}
        self.extra = list(extra)

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation.name if self.operation is not None else ""

    def option(self, name: str) -> ast.expr | None:
        """Return the expression given for an option, or None."""
        return self.extra[self.options[name]] if name in self.options else None

    def constant(self, name: str) -> Any:
        """Return the value of a constant option, or None."""
        given = self.option(name)
        return given.value if isinstance(given, ast.Constant) else None

    @property
    def is_collective(self) -> bool:
        """Whether all lanes take part: all operations but those on an edge."""
        return not isinstance(self.operation, Operation) or self.operation.collaborative


class Atomic(_Node):
    """``fg.atomic.op(d.name, indices, value)``."""

    _fields = ("indices", "value")
    indices: list[ast.expr]
    value: ast.expr

    def __init__(
        self,
        op: str = "",
        name: str = "",
        indices: Any = (),
        value: ast.expr | None = None,
        **place: Any,
    ) -> None:
        super().__init__(**place)
        self.op = op
        self.name = name
        self.indices = list(indices)
        if value is not None:
            self.value = value


def _no_function() -> None:
    """Stand in where a node is made without arguments, as copying does."""


class Helper(_Node):
    """A call of a plain function that the user function captures."""

    _fields = ("args",)
    args: list[ast.expr]

    def __init__(
        self, function: Callable[..., Any] = _no_function, args: Any = (), **place: Any
    ) -> None:
        super().__init__(**place)
        self.function = function
        self.args = list(args)
        #: Name in the generated module, set when the call is specialised.
        self.emitted = ""
        self.returns = ""


class MathCall(_Node):
    """A call of ``math.name`` or of a builtin such as ``abs``, ``min`` and ``max``."""

    _fields = ("args",)
    args: list[ast.expr]

    def __init__(self, name: str = "", args: Any = (), **place: Any) -> None:
        super().__init__(**place)
        self.name = name
        self.args = list(args)
        #: Of min and max: whether they are of real numbers.
        self.of_real = False


class Numeric(_Node):
    """A call of `featgraph.device.numbers`, whose result has the type `type_`.

    Comparisons there are made for one real type each: `of_real` is set for these.
    """

    _fields = ("args",)
    args: list[ast.expr]

    def __init__(
        self,
        name: str = "",
        args: Any = (),
        type_: str = "int64",
        *,
        of_real: bool = False,
        **place: Any,
    ) -> None:
        super().__init__(**place)
        self.name = name
        self.args = list(args)
        self.type_ = type_
        self.of_real = of_real


class Cast(_Node):
    """A conversion of `value` to the storage type (``"real"``), int64 or int32.

    int64 is ``"int"``.
    """

    _fields = ("value",)
    value: ast.expr

    def __init__(
        self, to: str = "", value: ast.expr | None = None, **place: Any
    ) -> None:
        super().__init__(**place)
        self.to = to
        if value is not None:
            self.value = value


class Identity(_Node):
    """``fg.nothing`` in a gather: the identity of its combine."""

    _fields = ()


AnyNode = TypeVar("AnyNode", bound=ast.AST)


def copy_location(new: AnyNode, old: ast.AST) -> AnyNode:
    """Give `new` the line of `old`."""
    return ast.copy_location(new, old)


def narrowed(node: object, kind: type[AnyNode]) -> AnyNode:
    """Return `node`, which an earlier pass has left as a `kind`."""
    if not isinstance(node, kind):
        raise TypeError(f"{type(node).__name__} instead of {kind.__name__}")
    return node


def is_same(a: object, b: object) -> bool:
    """Return whether two trees are equal, except for their locations."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if not isinstance(a, ast.AST) or not isinstance(b, ast.AST):
        return bool(a == b)
    parts, others = ({**vars(n)} for n in (a, b))
    for place in (*_Node._attributes, "ctx"):
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
    """Return whether `node` is a sum or difference of matrices given as a whole."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return False
    return all(
        isinstance(side, Whole) or is_matrix_sum(side)
        for side in (node.left, node.right)
    )


def symbol(node: ast.BinOp) -> str:
    """Return how a sum or difference is written."""
    return "+" if isinstance(node.op, ast.Add) else "-"


def names_read(node: ast.AST) -> set[str]:
    """Return the local names that `node` reads."""
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    }


def assigned_names(node: ast.AST) -> set[str]:
    """Return the local names that `node` binds."""
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
