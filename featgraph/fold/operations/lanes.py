"""Text that operations over named copies share: shuffles, identities, held values."""

from __future__ import annotations

import ast

from featgraph.fold.operations.contexts import Unrolled

__all__ = ["hold", "member", "wide"]


def wide(text: str, node: ast.expr, copies: Unrolled) -> str:
    """Return an operand for a shuffle: the same type on all lanes, so int64."""
    return text if copies.type_of(node) == "real" else f"int64({text})"


def hold(copies: Unrolled, texts: list[str]) -> list[str]:
    """Give each text a name of its own."""
    held = [copies.fresh("held") for _ in texts]
    for name, text in zip(held, texts, strict=True):
        copies.line(f"{name} = {text}")
    return held


def member(copies: Unrolled, held: list[str], feature: str) -> str:
    """Return the value of `feature`, which another lane may hold."""
    count = copies.count
    lane = f"int32({feature} // {count})"
    parts = [f"warp.broadcast({name}, {lane}, {copies.lanes})" for name in held]
    text = parts[-1]
    for j in range(count - 2, -1, -1):
        text = f"cuda.selp({feature} % {count} == {j}, {parts[j]}, {text})"
    return text
