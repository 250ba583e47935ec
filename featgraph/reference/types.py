"""The result type of a gather or reduce, by inspection of its syntax tree.

It decides the identity of min and max, and whether a sum is exact. Four types, each of
which includes the ones before: ``"bool"``, ``"int32"``, ``"int64"``, ``"real"``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from featgraph.program.functions import GatherFunction, ReduceFunction
from featgraph.program.operation import Collaborative, Operation
from featgraph.program.program import Program
from featgraph.program.signature import PropertyType, Real
from featgraph.program.source import FunctionSource, plain_function

__all__ = ["storage_dtype", "value_type"]

_ORDER = ("bool", "int32", "int64", "real")
#: Built-in numbers; degrees and other names that the State does not have are int32.
_BUILT_IN = dict.fromkeys(
    ("superstep", "vertex_count", "living_count", "edge_count"), "int64"
)
_TRUTHS = {"bool", "isnan", "isinf", "isfinite"}


def value_type(
    program: Program,
    function: GatherFunction | ReduceFunction,
    names: Mapping[str, PropertyType],
) -> str:
    """Return the type of the results of `function`."""
    types = dict.fromkeys(function.source.parameters, "int32")
    typing = _Typing(program, names, function.source.parameters[-1])
    return typing.returned(function.function, function.source, types)


def storage_dtype(type_: str, real: Real) -> str:
    """Return the storage dtype of a type."""
    return real if type_ == "real" else type_


def _join(types: list[str]) -> str:
    return max(types, key=_ORDER.index, default="bool")


def _of_dtype(dtype: str) -> str:
    if dtype in {"bool", "real"}:
        return dtype
    if dtype.startswith("float"):
        return "real"
    return "int64" if dtype in {"int64", "uint32"} else "int32"


def _of_constant(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "real"


class _Typing:
    """The types of the expressions of one function and of the helpers it calls."""

    def __init__(
        self, program: Program, names: Mapping[str, PropertyType], data: str | None
    ) -> None:
        self.program = program
        self.names = names
        self.data = data
        self.locals: dict[str, str] = {}
        self.captured: Mapping[str, Any] = {}

    def returned(
        self,
        function: Callable[..., Any],
        source: FunctionSource,
        parameters: dict[str, str],
    ) -> str:
        """Return the join of all return values; locals join what they are given."""
        self.captured = self.program.captured.get(plain_function(function), {})
        self.locals = dict(parameters)
        before: dict[str, str] = {}
        while before != self.locals:
            before = dict(self.locals)
            for node in ast.walk(source.tree):
                self._assignment(node)
        returns = [n.value for n in ast.walk(source.tree) if isinstance(n, ast.Return)]
        return _join([self.of(value) for value in returns if value is not None])

    def _assignment(self, node: ast.AST) -> None:
        if isinstance(node, ast.For):
            self._bind(node.target, "int64")
        elif isinstance(node, ast.Assign):
            self._bind(node.targets[0], self.of(node.value))
        elif isinstance(node, ast.AugAssign):
            real = isinstance(node.op, ast.Div)
            self._bind(node.target, "real" if real else self.of(node.value))

    def _bind(self, target: ast.expr, type_: str) -> None:
        if isinstance(target, ast.Name):
            self.locals[target.id] = _join([self.locals.get(target.id, "bool"), type_])

    def of(self, node: ast.expr) -> str:
        """Return the type of an expression."""
        if isinstance(node, ast.Constant):
            return _of_constant(node.value)
        if isinstance(node, ast.Name) and node.id in self.locals:
            return self.locals[node.id]
        if isinstance(node, ast.Subscript):
            return self.of(node.value)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._of_name(node)
        if isinstance(node, ast.Compare):
            return "bool"
        if isinstance(node, ast.BoolOp):
            return _join([self.of(value) for value in node.values])
        if isinstance(node, ast.UnaryOp):
            return (
                "bool" if isinstance(node.op, ast.Not) else self._number(node.operand)
            )
        if isinstance(node, ast.BinOp):
            both = _join([self.of(node.left), self.of(node.right), "int64"])
            negated = isinstance(node.right, ast.UnaryOp)
            inverse = negated and isinstance(node.right.op, ast.USub)  # type: ignore[attr-defined]
            real = isinstance(node.op, ast.Div)
            real |= isinstance(node.op, ast.Pow) and inverse
            return "real" if real else both
        if isinstance(node, ast.IfExp):
            return _join([self.of(node.body), self.of(node.orelse)])
        return self._of_call(node) if isinstance(node, ast.Call) else "real"

    def _number(self, node: ast.expr) -> str:
        return _join([self.of(node), "int64"])

    def _of_name(self, node: ast.Name | ast.Attribute) -> str:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.data
        ):
            known = self.names.get(node.attr.removesuffix("_next"))
            if known is None:
                return _BUILT_IN.get(node.attr, "int32")
            return _of_dtype(known.arithmetic)
        value = self._object(node)
        if isinstance(value, bool | int | float):
            return _of_constant(value)
        return "bool"  # fg.nothing: any type holds it

    def _object(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.captured.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._object(node.value), node.attr, None)
        return None

    def _of_call(self, node: ast.Call) -> str:
        called = self._object(node.func)
        plain = plain_function(called)
        if isinstance(called, Collaborative):
            return self._of_helper(called.function, called.source, node)
        if isinstance(plain, FunctionType) and plain in self.program.helpers:
            return self._of_helper(plain, self.program.helpers[plain], node)
        if isinstance(called, Operation):
            return self._of_operation(called, node)
        name = getattr(called, "__name__", "")
        if name in _TRUTHS:
            return "bool"
        if name == "int":
            return "int64"
        if name == "abs":
            return self._number(node.args[0])
        if called in (min, max):
            return _join([self.of(argument) for argument in node.args])
        return "real"

    def _of_operation(self, called: Operation, node: ast.Call) -> str:
        if called.gives == "operand":
            return self.of(node.args[0])
        if called.gives == "number":
            return self._number(node.args[0])
        return "int64" if called.gives == "edge" else called.gives

    def _of_helper(
        self, function: Callable[..., Any], source: FunctionSource, node: ast.Call
    ) -> str:
        types = dict.fromkeys(source.parameters, "bool")
        given = [self.of(argument) for argument in node.args]
        types |= dict(zip(source.parameters, given, strict=False))
        inner = _Typing(self.program, self.names, None)
        return inner.returned(function, source, types)
