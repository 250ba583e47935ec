"""Values of expressions of literals, as Python has them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

__all__ = ["integer_literal", "literal_value"]

#: Numbers of more bits are not computed; these do not fit a kernel's either.
_MOST_BITS = 200
_TOO_LARGE = 1 << _MOST_BITS
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.RShift: operator.rshift,
}


def integer_literal(node: ast.AST) -> int | None:
    """Return the value of an integer, which may have a sign; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer_literal(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def literal_value(node: ast.AST) -> int | None:
    """Return the integer that an expression of literals is in Python.

    None for anything else, also where Python raises. What is too large to matter is
    2**200 with its sign.
    """
    if isinstance(node, ast.UnaryOp):
        value = literal_value(node.operand)
        if value is None or isinstance(node.op, ast.Not):
            return None
        signs = {ast.USub: -value, ast.UAdd: value, ast.Invert: ~value}
        return signs[type(node.op)]
    if isinstance(node, ast.BinOp):
        left, right = literal_value(node.left), literal_value(node.right)
        if left is None or right is None:
            return None
        return _bounded(_computed(node.op, left, right))
    return integer_literal(node)


def _computed(op: ast.operator, left: int, right: int) -> int | None:
    if isinstance(op, ast.LShift | ast.RShift | ast.Pow) and right < 0:
        return None
    if isinstance(op, ast.LShift | ast.Pow):
        is_power = isinstance(op, ast.Pow)
        bits = left.bit_length() * right if is_power else left.bit_length() + right
        if bits > 2 * _MOST_BITS and abs(left) > is_power:
            return _TOO_LARGE
        if is_power and abs(left) <= 1:
            right = min(right, 2 - right % 2)
        return int(left**right) if is_power else left << right if left else 0
    if isinstance(op, ast.FloorDiv | ast.Mod) and right == 0:
        return None
    operate = _OPERATORS.get(type(op))
    return None if operate is None else operate(left, right)


def _bounded(value: int | None) -> int | None:
    if value is None:
        return None
    return max(min(value, _TOO_LARGE), -_TOO_LARGE)
