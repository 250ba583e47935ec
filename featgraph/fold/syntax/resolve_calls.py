"""Name resolution in expressions, and of calls.

`Expressions` replaces properties and captured names by nodes of `tree.statements`, and
raises for expressions that cannot be folded. `Calls` adds calls of operations, atomics,
mathematical functions and helpers. `resolve` derives the pass over statements from it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from featgraph.base.errors import UserFunctionError
from featgraph.fold.syntax.arithmetic import literal_value
from featgraph.fold.syntax.names import (
    BUILTIN_ARRAYS,
    BUILTIN_SCALARS,
    Names,
    argument_counts,
    math_name,
)
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Helper,
    Identity,
    MathCall,
    Operate,
    Scalar,
    Whole,
    copy_location,
)
from featgraph.program.operations import SEMIRINGS, Collaborative, Nothing, Operation
from featgraph.program.source import FunctionSource, plain_function
from featgraph.program.state import unknown_name

__all__ = ["Calls"]

#: Nodes that can be folded if their parts can.
_ALLOWED = (
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.stmt,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
#: Names of unsupported expressions in errors.
_CALLED = {
    "Await": "await",
    "Dict": "a dict",
    "DictComp": "a comprehension",
    "FormattedValue": "an f-string",
    "GeneratorExp": "a generator expression",
    "JoinedStr": "an f-string",
    "Lambda": "a lambda",
    "List": "a list",
    "ListComp": "a comprehension",
    "NamedExpr": "an assignment expression (:=)",
    "Set": "a set",
    "SetComp": "a comprehension",
    "Slice": "a slice",
    "Starred": "a starred expression",
    "Tuple": "a tuple",
}
_INT64 = range(-(2**63), 2**63)


class Expressions(ast.NodeTransformer):
    """Replaces names and attributes by nodes of `tree.statements`, in expressions.

    Attributes
    ----------
    captured : mapping
        Free name, or dotted name, -> frozen value.
    names : Names
        Meanings of ``d.name``.
    given : dict
        New name of a parameter -> name that the user gave.
    has_data : bool
        Whether the parameter ``d`` is the state.
    locals : set of str
        Parameters and assigned names.
    """

    def __init__(
        self,
        source: FunctionSource,
        captured: Mapping[str, Any],
        names: Names,
        parameters: tuple[str, ...],
        has_data: bool,
    ) -> None:
        self.source = source
        self.captured = captured
        self.names = names
        self.parameters = frozenset(parameters)
        self.given = dict(zip(parameters, source.parameters, strict=False))
        self.has_data = has_data
        self.locals = set(parameters)

    def is_local(self, node: ast.Name) -> bool:
        """Return whether a name is a parameter or local, not a captured name."""
        return node.id in self.locals and not getattr(node, "is_free", False)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Resolve a name."""
        if self.is_local(node):
            if node.id == "d" and self.has_data:
                raise self.source.error(
                    "d cannot be used as a value",
                    node,
                    fix="index a property: d.name[v, f]",
                )
            return node
        return _captured(self.source, node, self._value(node))

    def _value(self, node: ast.Name) -> Any:
        if node.id not in self.captured:
            raise self.source.error(
                f"the name {node.id!r} means nothing here",
                node,
                fix="define it, or spell it as it is defined",
            )
        return self.captured[node.id]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Resolve a property or a captured object."""
        if self._is_data(node.value):
            return self._bare_property(node)
        value = self._object(node)
        return _captured(self.source, node, value)

    def _is_data(self, node: ast.expr) -> bool:
        return (
            self.has_data
            and isinstance(node, ast.Name)
            and node.id == "d"
            and self.is_local(node)
        )

    def _object(self, node: ast.expr) -> Any:
        """Return the captured object of a name or a chain of attributes."""
        if isinstance(node, ast.Name):
            if self.is_local(node):
                raise self.source.error(
                    "a local value cannot be called", node, got=node.id
                )
            return self._value(node)
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            dotted = ast.unparse(node)
            if dotted in self.captured:
                return self.captured[dotted]
            try:
                return getattr(owner, node.attr)
            except AttributeError:
                raise self.source.error(
                    f"{ast.unparse(node)} does not exist", node
                ) from None
        raise self.source.error("unsupported expression", node, got=ast.unparse(node))

    def _bare_property(self, node: ast.Attribute) -> ast.expr:
        """Return ``d.name`` without indices: a scalar, or a whole vector or matrix."""
        name = node.attr
        if name in BUILTIN_SCALARS or self.names.kinds.get(name) == "scalar":
            return copy_location(Scalar(name), node)
        base = self._base_name(name, node)[0]
        if name == base and self.names.kinds.get(name) == "vector":
            return _whole(name, [], self.names.ranks[name], node)
        raise self.source.error(
            f"d.{name} needs indices",
            node,
            expected=self.names.index_hint(base),
        )

    def _base_name(self, name: str, node: ast.AST) -> tuple[str, str]:
        """Return the property of a field of ``d``, and "now" or "next"; or raise."""
        known = self.names.kinds
        if name in known or name in BUILTIN_ARRAYS:
            return name, "now"
        if name.endswith("_next") and name[:-5] in known:
            base = name[:-5]
            if base not in self.names.iterated:
                raise self.source.error(
                    f"{base!r} is not iterated, so there is no {name!r}",
                    node,
                    fix=f"declare {base}=fg.vertex_property(..., iterated=True)",
                )
            return base, "next"
        spellings = [*known, *BUILTIN_SCALARS, *BUILTIN_ARRAYS]
        spellings += [f"{n}_next" for n in self.names.iterated]
        error = unknown_name(name, spellings, self.source.where(node))
        raise UserFunctionError(
            error.what, where=error.where, expected=error.expected, fix=error.fix
        )

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Resolve an indexed property."""
        if isinstance(node.value, ast.Attribute) and self._is_data(node.value.value):
            name, version = self._base_name(node.value.attr, node)
            kind = self.names.kinds.get(name)
            if kind == "scalar":
                raise self.source.error(
                    f"d.{name} is a scalar and takes no index", node
                )
            indices = self._indices(node.slice)
            rank = 1 if name in BUILTIN_ARRAYS else self.names.ranks[name]
            if len(indices) == rank:
                return copy_location(Access(name, version, indices), node)
            # A whole row, or the current entries of a whole matrix.
            if len(indices) == 1 and (rank == 2 or (rank == 3 and version == "now")):
                return _whole(name, indices, rank, node, version)
            raise self.source.error(
                f"wrong number of indices for d.{node.value.attr}",
                node,
                got=ast.unparse(node),
                expected=self.names.index_hint(name),
            )
        owner = self.visit(node.value)
        if isinstance(owner, Operate | ast.Name):
            node.value = owner
            elements = self._indices(node.slice)
            if len(elements) != 2:
                raise self.source.error(
                    "an element of a matrix has two indices",
                    node,
                    got=ast.unparse(node.slice),
                    expected="[i, f]",
                )
            node.slice = ast.Tuple(elements, ast.Load())
            return node
        raise self.source.error(
            "only properties, and matrices made by outer and inverse, can be indexed",
            node,
            got=ast.unparse(node),
            expected="d.name[...]",
        )

    def _indices(self, node: ast.expr) -> list[ast.expr]:
        elements = node.elts if isinstance(node, ast.Tuple) else [node]
        for element in elements:
            if isinstance(element, ast.Slice | ast.Starred):
                raise self.source.error("slices cannot be folded", node)
        return [self.visit(element) for element in elements]

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Return a number; raise for other constants."""
        if not isinstance(node.value, bool | int | float):
            raise self.source.error(
                "only numbers can be folded",
                node,
                got=repr(node.value),
                expected="int, float or bool",
            )
        if isinstance(node.value, bool):
            return node
        return _number(self.source, node.value, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """Return -2**63 unchanged: its operand, 2**63, does not fit 64 bits."""
        least = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        if least and node.operand.value == 2**63:  # type: ignore[attr-defined]
            return node
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> Any:
        """Resolve the parts of a node; raise if the node cannot be folded."""
        if not isinstance(node, _ALLOWED):
            name = type(node).__name__
            raise self.source.error(
                f"{_CALLED.get(name, name)} cannot be folded",
                node,
                got=_shown(node),
                expected="numbers, locals, properties, calls of what can be folded",
            )
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops
        ):
            raise self.source.error(
                "in and is cannot be folded",
                node,
                got=ast.unparse(node),
                fix="compare with == or !=",
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            raise self.source.error("@ cannot be folded", node, fix="use fg.matvec")
        visited = super().generic_visit(node)
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            value = literal_value(node)
            if value is not None and value not in _INT64:
                _number(self.source, value, node)
        return visited


def _whole(
    name: str,
    indices: list[ast.expr],
    rank: int,
    node: ast.expr,
    version: str = "now",
) -> ast.expr:
    """Return a whole row, as an access to its element f, or a whole matrix."""
    if rank - len(indices) == 2:
        return copy_location(Whole(name, indices), node)
    row = [*indices, ast.Name("f", ast.Load())]
    element = copy_location(Access(name, version, row), node)
    element.is_row = True
    return element


def _shown(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__


def _captured(source: FunctionSource, node: ast.expr, value: Any) -> ast.expr:
    """Return the constant for a captured value."""
    if isinstance(value, bool | np.bool_):
        return copy_location(ast.Constant(bool(value)), node)
    if isinstance(value, int | float | np.integer | np.floating):
        plain = value.item() if isinstance(value, np.generic) else value
        return _number(source, plain, node)
    if isinstance(value, Nothing):
        return copy_location(Identity(), node)
    shown = ast.unparse(node)
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "shape"):
        raise source.error(
            f"{shown} is a captured array",
            node,
            got=type(value).__name__,
            expected="numbers, functions and featgraph operations",
            fix=f"give it to fg.State({shown}=...) and read d.{shown}[...]",
        )
    raise source.error(
        f"{shown} cannot be used in a folded function",
        node,
        got=type(value).__name__,
        expected="numbers, functions and featgraph operations",
    )


def _number(source: FunctionSource, value: float, node: ast.expr) -> ast.expr:
    """Return a constant; a negative one as ``-`` of a constant, as Python parses it."""
    if isinstance(value, int) and value not in _INT64:
        raise source.error(
            "this integer does not fit 64 bits",
            node,
            got=value
            if abs(value) < 10**40
            else f"{value:.3e}"
            if abs(value) < 10**300  # a float holds no more than 1.8e308
            else "an integer of more than 300 digits",
            expected="-2**63 <= value < 2**63",
            fix="use a float",
        )
    if value < 0:
        inner = copy_location(ast.Constant(-value), node)
        return copy_location(ast.UnaryOp(ast.USub(), inner), node)
    return copy_location(ast.Constant(value), node)


class Calls(Expressions):
    """Replaces names and attributes by nodes of `tree.statements`, in calls, too."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Resolve a call."""
        called = self._object(node.func)
        if isinstance(called, Operation) and called.name.startswith("atomic."):
            return self._atomic(node, called)
        if isinstance(called, Operation | Collaborative):
            return self._operate(node, called)
        if node.keywords:
            raise self.source.error("keyword arguments cannot be folded here", node)
        args = [self.visit(argument) for argument in node.args]
        name = math_name(called)
        if name is not None:
            fewest, most = argument_counts(name)
            if not fewest <= len(args) <= most:
                raise self.source.error(
                    f"wrong number of arguments for {name}",
                    node,
                    got=ast.unparse(node),
                    expected=fewest if fewest == most else f"at least {fewest}",
                )
            return copy_location(MathCall(name, args), node)
        plain = plain_function(called)
        if isinstance(plain, FunctionType):
            return copy_location(Helper(plain, args), node)
        raise self.source.error(
            f"{ast.unparse(node.func)} cannot be called in a folded function",
            node,
            expected=(
                "functions of math, abs, min, max, plain functions, featgraph "
                "operations"
            ),
        )

    def _operate(self, node: ast.Call, called: Operation | Collaborative) -> ast.expr:
        """Return the call of an operation, its arguments bound to parameters."""
        if isinstance(called, Collaborative):
            parameters: tuple[str, ...] = called.source.parameters
            required = len(parameters) - len(called.defaults)
        else:
            parameters = called.parameters + called.options
            required = len(called.parameters)
        bound = dict(zip(parameters, node.args, strict=False))
        for word in node.keywords:
            if word.arg is None or word.arg not in parameters or word.arg in bound:
                raise self.source.error(
                    f"{called.name} has no such parameter",
                    node,
                    got=word.arg,
                    expected=", ".join(parameters),
                )
            bound[word.arg] = word.value
        if len(node.args) > len(parameters) or any(
            p not in bound for p in parameters[:required]
        ):
            raise self.source.error(
                f"wrong arguments for {called.name}",
                node,
                got=ast.unparse(node),
                expected=f"({', '.join(parameters)})",
            )
        args = [self.visit(bound[p]) for p in parameters[:required]]
        options: dict[str, int] = {}
        extra: list[ast.expr] = []
        defaults = dict(zip(parameters[required:], _defaults(called), strict=False))
        for name in parameters[required:]:
            value = bound.get(name, defaults.get(name))
            if value is None or (
                isinstance(value, ast.Constant) and value.value is None
            ):
                continue
            if name == "semiring" and isinstance(called, Operation):
                options[name] = len(extra)
                extra.append(self._semiring(value))
                continue
            resolved = self.visit(value)
            # In an operation of the user's, a parameter may be bound to a constant.
            constant = isinstance(resolved, ast.Constant) or (
                isinstance(resolved, ast.Name) and not self.has_data
            )
            if name in {"group", "spd"} and not constant:
                raise self.source.error(
                    f"{name}= must be a constant", node, got=ast.unparse(value)
                )
            options[name] = len(extra)
            extra.append(resolved)
        return copy_location(Operate(called, args, options, extra), node)

    def _semiring(self, node: ast.expr) -> ast.expr:
        """Return the name of a semiring, given as text or by a captured name."""
        word = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name | ast.Attribute):
            word = self._object(node)
        if word not in SEMIRINGS:
            raise self.source.error(
                "semiring= must be the name of a semiring",
                node,
                got=ast.unparse(node),
                expected=", ".join(map(repr, SEMIRINGS)),
            )
        return copy_location(ast.Constant(str(word)), node)

    def _atomic(self, node: ast.Call, called: Operation) -> ast.expr:
        """Return an atomic operation on an entry of a property."""
        if len(node.args) != 3 or node.keywords:
            raise self.source.error(
                f"wrong arguments for {called.name}",
                node,
                expected="(d.name, index, value)",
            )
        where, index, value = node.args
        if not (isinstance(where, ast.Attribute) and self._is_data(where.value)):
            raise self.source.error(
                "an atomic operation updates a property",
                node,
                got=ast.unparse(where),
                expected="d.name",
            )
        name, version = self._base_name(where.attr, node)
        if version == "next" or self.names.kinds.get(name) not in {"vertex", "edge"}:
            raise self.source.error(
                "an atomic operation updates a property in place",
                node,
                got=f"d.{where.attr}",
            )
        indices = self._indices(index)
        if len(indices) != self.names.ranks[name]:
            raise self.source.error(
                f"wrong number of indices for d.{name}",
                node,
                got=ast.unparse(index),
                expected=self.names.index_hint(name),
            )
        op = called.name.removeprefix("atomic.")
        return copy_location(Atomic(op, name, indices, self.visit(value)), node)


def _defaults(called: Operation | Collaborative) -> list[ast.expr]:
    """Return the default values of a user's operation as constants."""
    if isinstance(called, Operation):
        return []
    for value in called.defaults:
        if value is not None and not isinstance(value, bool | int | float):
            raise called.source.error(
                "a default value must be a number or None",
                got=type(value).__name__,
            )
    tree = called.source.tree
    return [ast.copy_location(ast.Constant(v), tree) for v in called.defaults]
