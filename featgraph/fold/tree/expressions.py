"""Nodes that the middle end adds to Python's syntax tree.

They are `ast.expr` subclasses, so that `ast.NodeTransformer` and `copy.deepcopy` walk
them like any other node. Only `printer` turns them back into Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

from featgraph.program.operations import Collaborative, Operation


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

    Comparisons there are made for one real type each: `of_real` says that it is one.
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


Node = TypeVar("Node", bound=ast.AST)


def copy_location(new: Node, old: ast.AST) -> Node:
    """Give `new` the line of `old`."""
    return ast.copy_location(new, old)


def narrowed(node: object, kind: type[Node]) -> Node:
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
