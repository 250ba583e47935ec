"""First pass: a user function's syntax tree with every name resolved.

After it, properties are `Access`, `Whole` and `Scalar` nodes, operations are `Operate`, `Atomic` and `Identity`, captured numbers
are constants, and every other name is a local. What cannot be folded is refused here, with its line.
"""

from __future__ import annotations

import ast
import copy
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from featgraph.errors import UserFunctionError
from featgraph.fold.nodes import (
    Access,
    Atomic,
    Helper,
    Identity,
    MathCall,
    Operate,
    Scalar,
    Whole,
    assigned_names,
    copy_location,
)
from featgraph.program.operations import Collaborative, Nothing, Operation
from featgraph.program.source import FunctionSource, plain_function
from featgraph.program.state import unknown_name

__all__ = ["CANONICAL", "Names", "Resolved", "resolve_function"]

#: Parameter names of generated functions, by role.
CANONICAL = ("i", "f", "u", "v", "e", "d")

MATH_FUNCTIONS = frozenset(
    "sqrt exp log log1p expm1 sin cos tan tanh sinh cosh asin acos atan atan2 pow floor ceil fabs isnan isinf "
    "isfinite hypot erf".split()
)
_BUILTINS = {abs: "abs", min: "min", max: "max", float: "float", int: "int", bool: "bool"}
_NUMPY_ALIASES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "power": "pow", "abs": "abs",
                  "absolute": "abs", "minimum": "min", "maximum": "max", "float32": "float", "float64": "float",
                  "int32": "int", "int64": "int"}  # fmt: skip
BUILTIN_SCALARS = frozenset({"superstep", "vertex_count", "edge_count", "feature_count"})
BUILTIN_ARRAYS = frozenset({"in_degree", "out_degree"})

_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.If, ast.For, ast.While, ast.Return, ast.Expr, ast.Pass, ast.Break,
    ast.Continue,
)  # fmt: skip
#: Locals that would hide what generated code uses are renamed.
_HIDDEN = frozenset(
    "K lane live data warp math cuda result moved prange range abs min max float32 float64 int32 int64 uint32 linalg cpu".split()
)


@dataclass(frozen=True)
class Names:
    """What ``d.name`` may mean in one function.

    Attributes
    ----------
    ranks : mapping
        Property, temporary or vector name -> number of indices.
    kinds : mapping
        Name -> "vertex", "edge", "vector", "scalar" or "into".
    iterated : frozenset of str
        Names with a ``_next``.
    """

    ranks: Mapping[str, int]
    kinds: Mapping[str, str]
    iterated: frozenset[str]


@dataclass
class Resolved:
    """A function after name resolution; `tree` is a copy of its own."""

    source: FunctionSource
    tree: ast.FunctionDef


def resolve_function(
    source: FunctionSource,
    roles: tuple[str, ...],
    captured: Mapping[str, Any],
    names: Names,
) -> Resolved:
    """Resolve the names of one function.

    Parameters
    ----------
    source : FunctionSource
        The parsed user function, helper or collaborative operation.
    roles : tuple of str
        Canonical names of its parameters; its own names for helpers and collaborative operations.
    captured : mapping
        Free name -> frozen value.
    names : Names
        The meaning of ``d.name``.

    Raises
    ------
    UserFunctionError
        For unsupported Python, unknown names and properties, captured arrays.
    """
    tree = copy.deepcopy(source.tree)
    tree.decorator_list = []
    _check_statements(source, tree.body)
    if roles:
        _rename_locals(source, tree, roles)
    tree.args = ast.arguments(
        posonlyargs=[], args=[ast.arg(r) for r in roles], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    tree = _Resolver(source, captured, names, set(roles)).visit(tree)
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
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            raise source.error(
                f"{type(node).__name__.lower()} statements cannot be folded",
                node,
                expected="assignments, if, for over range, while, return",
            )
        if isinstance(node, ast.Return) and node.value is None:
            raise source.error("return without a value", node, fix="return True or False")
        if isinstance(node, ast.For | ast.While) and node.orelse:
            raise source.error("else behind a loop cannot be folded", node)


def _always_returns(body: list[ast.stmt]) -> bool:
    for statement in body:
        if isinstance(statement, ast.Return):
            return True
        if isinstance(statement, ast.If) and statement.orelse:
            if _always_returns(statement.body) and _always_returns(statement.orelse):
                return True
    return False


def _rename_locals(
    source: FunctionSource, tree: ast.FunctionDef, roles: tuple[str, ...]
) -> None:
    """Give parameters their canonical names and locals names that hide nothing."""
    mapping = dict(zip((a.arg for a in tree.args.args), roles, strict=True))
    taken = set(roles)
    for count, name in enumerate(sorted(assigned_names(tree) - set(mapping))):
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and len(name) < 64
        fresh = name if plain else f"local_{count}"
        if fresh in CANONICAL or fresh in _HIDDEN or re.search(r"_\d+$", fresh) or fresh.startswith("_"):
            fresh = f"{fresh.strip('_') or 'unused'}_"
        while fresh in taken:
            fresh += "_"
        taken.add(fresh)
        mapping[name] = fresh
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in mapping:
            node.id = mapping[node.id]


class _Resolver(ast.NodeTransformer):
    """Turns names and attributes into nodes of the middle end."""

    def __init__(
        self,
        source: FunctionSource,
        captured: Mapping[str, Any],
        names: Names,
        parameters: set[str],
    ) -> None:
        self.source = source
        self.captured = captured
        self.names = names
        self.locals = set(parameters)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.locals |= assigned_names(node)
        body: list[ast.stmt] = []
        for statement in node.body:
            if _is_docstring(statement):
                continue
            body.append(self.visit(statement))
        node.body = body
        return node

    # -- statements

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) != 1:
            raise self.source.error("assign to one name at a time", node)
        node.value = self.visit(node.value)
        node.targets = [self._target(node.targets[0])]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            raise self.source.error("an annotation without a value", node)
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.visit_Assign(ast.copy_location(plain, node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.Assign:
        read = copy.deepcopy(node.target)
        for inner in ast.walk(read):
            if hasattr(inner, "ctx") and inner is read:
                inner.ctx = ast.Load()
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        plain = ast.Assign(targets=[node.target], value=value)
        return self.visit_Assign(ast.copy_location(plain, node))

    def _target(self, target: ast.expr) -> ast.expr:
        if isinstance(target, ast.Name):
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
        )

    def visit_For(self, node: ast.For) -> ast.For:
        call = node.iter
        is_range = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
            and not call.keywords
        )
        if not is_range or not isinstance(node.target, ast.Name):
            raise self.source.error(
                "only loops over range can be folded", node, expected="for name in range(...)"
            )
        assert isinstance(call, ast.Call)
        call.args = [self.visit(argument) for argument in call.args]
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        node.value = self.visit(node.value)
        if not isinstance(node.value, Atomic):
            raise self.source.error(
                "this statement has no effect", node, fix="assign its value or remove it"
            )
        return node

    # -- expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.locals:
            if node.id == "d":
                raise self.source.error(
                    "d cannot be used as a value", node, fix="index a property: d.name[v, f]"
                )
            return node
        return self._captured(node, self._value(node))

    def _value(self, node: ast.Name) -> Any:
        if node.id not in self.captured:
            raise self.source.error(
                f"the name {node.id!r} means nothing here", node, fix="define it, or spell it as it is defined"
            )
        return self.captured[node.id]

    def _captured(self, node: ast.expr, value: Any) -> ast.expr:
        if isinstance(value, bool | np.bool_):
            return copy_location(ast.Constant(bool(value)), node)
        if isinstance(value, int | float | np.integer | np.floating):
            plain = value.item() if isinstance(value, np.generic) else value
            return _number(plain, node)
        if isinstance(value, Nothing):
            return copy_location(Identity(), node)
        shown = ast.unparse(node)
        if hasattr(value, "__cuda_array_interface__") or hasattr(value, "shape"):
            raise self.source.error(
                f"{shown} is a captured array",
                node,
                got=type(value).__name__,
                expected="numbers, functions and featgraph operations",
                fix=f"give it to fg.State({shown}=...) and read d.{shown}[...]",
            )
        raise self.source.error(
            f"{shown} cannot be used in a folded function",
            node,
            got=type(value).__name__,
            expected="numbers, functions and featgraph operations",
        )

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self._is_data(node.value):
            return self._bare_property(node)
        value = self._object(node)
        return self._captured(node, value)

    def _is_data(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == "d" and "d" in self.locals

    def _object(self, node: ast.expr) -> Any:
        """Return the Python object that a captured name or a chain of attributes means."""
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                raise self.source.error("a local value cannot be called", node, got=node.id)
            return self._value(node)
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            try:
                return getattr(owner, node.attr)
            except AttributeError:
                raise self.source.error(
                    f"{ast.unparse(node)} does not exist", node
                ) from None
        raise self.source.error(
            "unsupported expression", node, got=ast.unparse(node)
        )

    def _bare_property(self, node: ast.Attribute) -> ast.expr:
        name = node.attr
        if name in BUILTIN_SCALARS or self.names.kinds.get(name) == "scalar":
            return copy_location(Scalar(name), node)
        base = self._base_name(name, node)[0]
        raise self.source.error(
            f"d.{name} needs indices",
            node,
            expected=self._index_hint(base),
        )

    def _base_name(self, name: str, node: ast.AST) -> tuple[str, str]:
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

    def _index_hint(self, name: str) -> str:
        kind = self.names.kinds.get(name, "vertex")
        first = {"vertex": ["v"], "into": ["v"], "edge": ["e"], "vector": []}.get(kind, ["v"])
        rank = 1 if name in BUILTIN_ARRAYS else self.names.ranks[name]
        rest = {0: [], 1: ["f"], 2: ["i", "f"]}.get(rank - len(first), ["f"])
        return f"d.{name}[{', '.join(first + rest)}]"

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and self._is_data(node.value.value):
            name, version = self._base_name(node.value.attr, node)
            kind = self.names.kinds.get(name)
            if kind == "scalar":
                raise self.source.error(f"d.{name} is a scalar and takes no index", node)
            indices = self._indices(node.slice)
            rank = 1 if name in BUILTIN_ARRAYS else self.names.ranks[name]
            if len(indices) == rank:
                return copy_location(Access(name, version, indices), node)
            if len(indices) == 1 and rank > 1 and kind != "vector" and version == "now":
                return copy_location(Whole(name, indices), node)
            raise self.source.error(
                f"wrong number of indices for d.{node.value.attr}",
                node,
                got=ast.unparse(node),
                expected=self._index_hint(name),
            )
        owner = self.visit(node.value)
        if isinstance(owner, Operate | ast.Name):
            node.value = owner
            elements = self._indices(node.slice)
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
        if not isinstance(node.value, bool | int | float):
            raise self.source.error(
                "only numbers can be folded", node, got=repr(node.value)
            )
        return _number(node.value, node) if not isinstance(node.value, bool) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        called = self._object(node.func)
        if isinstance(called, Operation) and called.name.startswith("atomic."):
            return self._atomic(node, called)
        if isinstance(called, Operation | Collaborative):
            return self._operate(node, called)
        if node.keywords:
            raise self.source.error("keyword arguments cannot be folded here", node)
        args = [self.visit(argument) for argument in node.args]
        name = _math_name(called)
        if name is not None:
            return copy_location(MathCall(name, args), node)
        plain = plain_function(called)
        if isinstance(plain, FunctionType):
            return copy_location(Helper(plain, args), node)
        raise self.source.error(
            f"{ast.unparse(node.func)} cannot be called in a folded function",
            node,
            expected="functions of math, abs, min, max, plain functions, featgraph operations",
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
        if len(node.args) > len(parameters) or any(p not in bound for p in parameters[:required]):
            raise self.source.error(
                f"wrong arguments for {called.name}", node, got=ast.unparse(node), expected=f"({', '.join(parameters)})"
            )
        args = [self.visit(bound[p]) for p in parameters[:required]]
        options: dict[str, int] = {}
        extra: list[ast.expr] = []
        for name in parameters[required:]:
            value = bound.get(name)
            if value is None or (isinstance(value, ast.Constant) and value.value is None):
                continue
            resolved = self.visit(value)
            constant = isinstance(resolved, ast.Constant) or (
                isinstance(resolved, ast.Name) and "d" not in self.locals
            )
            if name in {"group", "spd"} and not constant:
                raise self.source.error(
                    f"{name}= must be a constant", node, got=ast.unparse(value)
                )
            options[name] = len(extra)
            extra.append(resolved)
        return copy_location(Operate(called, args, options, extra), node)

    def _atomic(self, node: ast.Call, called: Operation) -> ast.expr:
        if len(node.args) != 3 or node.keywords:
            raise self.source.error(
                f"wrong arguments for {called.name}", node, expected="(d.name, index, value)"
            )
        where, index, value = node.args
        if not (isinstance(where, ast.Attribute) and self._is_data(where.value)):
            raise self.source.error(
                "an atomic operation updates a property", node, got=ast.unparse(where), expected="d.name"
            )
        name, version = self._base_name(where.attr, node)
        if version == "next" or self.names.kinds.get(name) not in {"vertex", "edge"}:
            raise self.source.error(
                "an atomic operation updates a property in place", node, got=f"d.{where.attr}"
            )
        indices = self._indices(index)
        if len(indices) != self.names.ranks[name]:
            raise self.source.error(
                f"wrong number of indices for d.{name}", node, got=ast.unparse(index), expected=self._index_hint(name)
            )
        op = called.name.removeprefix("atomic.")
        return copy_location(Atomic(op, name, indices, self.visit(value)), node)

    def generic_visit(self, node: ast.AST) -> Any:
        allowed = (
            ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.stmt, ast.operator, ast.unaryop,
            ast.boolop, ast.cmpop, ast.expr_context,
        )  # fmt: skip
        if not isinstance(node, allowed):
            raise self.source.error(
                f"{type(node).__name__} cannot be folded", node, got=_shown(node)
            )
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops
        ):
            raise self.source.error("in and is cannot be folded", node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            raise self.source.error("@ cannot be folded", node, fix="use fg.matvec")
        return super().generic_visit(node)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _number(value: float, node: ast.expr) -> ast.expr:
    """Return a constant; negative numbers as a negation, so that unparse and parse agree."""
    if isinstance(value, float) and not math.isfinite(value):
        return copy_location(ast.Constant(value), node)
    if value < 0:
        inner = copy_location(ast.Constant(-value), node)
        return copy_location(ast.UnaryOp(ast.USub(), inner), node)
    return copy_location(ast.Constant(value), node)


def _math_name(called: Any) -> str | None:
    try:
        if called in _BUILTINS:
            return _BUILTINS[called]
    except TypeError:  # unhashable
        return None
    name = getattr(called, "__name__", "")
    if getattr(math, name, None) is called and name in MATH_FUNCTIONS:
        return name
    if getattr(np, name, None) is called:
        name = _NUMPY_ALIASES.get(name, name)
        if name in MATH_FUNCTIONS or name in _BUILTINS.values():
            return name
    return None
