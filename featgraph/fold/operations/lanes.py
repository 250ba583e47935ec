"""What operations over named copies share: shuffles, identities, registers."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.operations.contexts import Unrolled
from featgraph.fold.tree.statements import expression

__all__ = ["in_registers", "member", "named", "wide"]


def named(name: str) -> ast.expr:
    """Return a name as an expression."""
    return ast.Name(name, ast.Load())


def wide(value: ast.expr, node: ast.expr, copies: Unrolled) -> ast.expr:
    """Return an operand for a shuffle: the same type on all lanes, so int64."""
    return value if copies.type_of(node) == "real" else expression("int64(X)", X=value)


def in_registers(copies: Unrolled, values: Sequence[ast.expr]) -> list[ast.expr]:
    """Give each value a name of its own, for lanes to read."""
    names = [copies.fresh("register") for _ in values]
    for name, value in zip(names, values, strict=True):
        copies.line(f"{name} = X", X=value)
    return [named(name) for name in names]


def member(copies: Unrolled, registers: list[ast.expr], feature: ast.expr) -> ast.expr:
    """Return the value of `feature`, which another lane may have."""
    count = copies.count
    lane = expression(f"int32(F // {count})", F=feature)
    parts = [
        expression(f"warp.broadcast(X, LANE, {copies.lanes})", X=x, LANE=lane)
        for x in registers
    ]
    chosen = parts[-1]
    for j in range(count - 2, -1, -1):
        test = expression(f"F % {count} == {j}", F=feature)
        parts_ = {"TEST": test, "X": parts[j], "OTHER": chosen}
        chosen = expression("cuda.selp(TEST, X, OTHER)", **parts_)
    return chosen
