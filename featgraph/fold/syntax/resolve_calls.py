"""Name resolution of calls: operations, atomics, mathematics, helpers."""

from __future__ import annotations

import ast
from types import FunctionType

from featgraph.fold.syntax.names import argument_counts, math_name
from featgraph.fold.syntax.nodes import Atomic, Helper, MathCall, Operate, copy_location
from featgraph.fold.syntax.resolve_expressions import Expressions
from featgraph.program.operation import Collaborative, Operation
from featgraph.program.operations import SEMIRINGS
from featgraph.program.source import plain_function

__all__ = ["Calls"]


class Calls(Expressions):
    """Turns names and attributes into nodes of the middle end: calls."""

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
