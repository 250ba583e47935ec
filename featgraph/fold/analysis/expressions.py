"""Properties of single expressions: their type, and whether they need a guard.

Lanes whose vertex is not due, or has returned, execute a function together with the
other lanes of their warp. Their vertex and edge are clamped to valid ids, so they may
read at these. A read that is valid only where the function runs needs a guard:
``d.x[d.parent[v], f]`` behind ``if d.parent[v] < 0: return False``. So does a loop that
might not end.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from featgraph.fold.analysis.analyse import Analysed, Analysis, HelperFunction
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.arithmetic import join
from featgraph.fold.syntax.types import type_of_dtype
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Scalar,
    Whole,
    is_reversed,
)

__all__ = ["is_real_matrix", "needs_guard", "operand_type"]


def operand_type(node: ast.expr, function: Analysed, analysis: Analysis) -> str:
    """Return the type of an expression after `assign_types`."""
    if isinstance(node, Cast):
        return "real" if node.to == "real" else "int64"
    if isinstance(node, ast.Name):
        return function.variables.get(node.id, "int64")
    if isinstance(node, Identity):
        return "bool"  # of the type of what it stands beside
    if isinstance(node, Access | Whole | Scalar):
        return _stored_type(node.name, analysis)
    if isinstance(node, ast.Compare | ast.BoolOp):
        return "bool"
    if isinstance(node, Operate):
        return primitive_of(node).operation.gives
    if isinstance(node, Helper):
        return node.returns
    if isinstance(node, Numeric):
        return node.type_
    if isinstance(node, MathCall) and node.name not in {"min", "max", "abs"}:
        return "real"
    if isinstance(node, ast.Constant):
        return "bool" if isinstance(node.value, bool) else "int64"
    if isinstance(node, ast.Subscript):
        return "real"
    if isinstance(node, ast.IfExp):
        children: list[ast.expr] = [node.body, node.orelse]
    else:
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        children = [node.left]
    found = join(*(operand_type(c, function, analysis) for c in children))
    return (
        found if found == "real" or isinstance(node, ast.IfExp | MathCall) else "int64"
    )


def is_real_matrix(node: ast.expr, function: Analysed, analysis: Analysis) -> bool:
    """Return whether a matrix is given whole, and stored in the real type."""
    if not isinstance(node, Whole):
        return False
    type_ = analysis.signature.get(node.name)
    if type_ is not None:
        return type_.dtype in {analysis.real, "real"}
    return operand_type(node, function, analysis) == "real"


def _stored_type(name: str, analysis: Analysis) -> str:
    if name in analysis.entries:
        name = analysis.entries[name].of
    if name in analysis.temporaries:
        return analysis.temporaries[name].type
    if name.endswith("_source") and name[:-7] in analysis.temporaries:
        return "int32"
    if name in analysis.signature:
        return type_of_dtype(analysis.signature[name].arithmetic)
    for function in analysis.functions:
        if function.kind.reduces and function.into == name:
            return function.returns
    return "int64"


_ROLES = frozenset({"f", "u", "v", "e"})


def needs_guard(node: ast.AST, helpers: Mapping[str, HelperFunction]) -> bool:
    """Return whether `node` may run only where its function does."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.While):
            return True
        if isinstance(inner, ast.For) and not all(
            map(_is_constant, ast.walk(inner.iter))
        ):
            return True
        if isinstance(inner, ast.Assign) and any(
            isinstance(n, Atomic) for n in ast.walk(inner.value)
        ):
            return True
        if isinstance(inner, Helper) and _may_hang(helpers.get(inner.emitted), helpers):
            return True
        if isinstance(inner, Access | Whole | Atomic) and not all(
            map(_is_valid, inner.indices)
        ):
            return True
    return False


def _is_constant(node: ast.AST) -> bool:
    is_range = isinstance(node, ast.Name) and node.id == "range"
    return is_range or isinstance(node, ast.Constant | ast.Call | ast.expr_context)


def _may_hang(
    helper: HelperFunction | None, helpers: Mapping[str, HelperFunction]
) -> bool:
    return helper is not None and any(needs_guard(s, helpers) for s in helper.body)


def _is_valid(index: ast.expr) -> bool:
    """Whether an index is always in range: a role, a constant, the reverse edge."""
    return (
        isinstance(index, ast.Constant)
        or is_reversed(index)
        or (isinstance(index, ast.Name) and index.id in _ROLES)
    )
