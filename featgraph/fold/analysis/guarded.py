"""What lanes without work must not do where all lanes take part.

A group of lanes whose vertex is not due, or has returned, goes through the straight
line of a function with the others. It reads what lies at valid places (its vertex and
edge are clamped), but nothing that the program promises only where the function runs:
``d.x[d.parent[v], f]`` behind ``if d.parent[v] < 0: return False``, or the end of a
while loop.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from featgraph.fold.analysis.analyse import HelperFunction
from featgraph.fold.tree.expressions import Access, Atomic, Helper, Whole, is_reversed

__all__ = ["needs_guard"]

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
