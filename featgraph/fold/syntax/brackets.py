"""Brackets around text that stands beside an operator."""

from __future__ import annotations

import ast

__all__ = ["as_part"]

#: What holds together beside any operator, and beside plus.
_ATOMS = (ast.Name, ast.Call, ast.Subscript, ast.Attribute, ast.Constant)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def as_part(text: str, operator: str) -> str:
    """Put an expression in parentheses if it would fall apart beside an operator.

    Parameters
    ----------
    text : str
        Printed, for one copy or feature.
    operator : {"or", "and", "+", "*"}
        What it is to stand beside. What holds beside "or" holds in a condition, too.
    """
    node = ast.parse(text, mode="eval").body
    holds = isinstance(node, _ATOMS)
    if operator == "or":
        holds = not isinstance(node, ast.IfExp)
    elif operator == "and":
        is_either = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        holds = not (isinstance(node, ast.IfExp) or is_either)
    elif operator == "+" and isinstance(node, ast.BinOp):
        holds = isinstance(node.op, _ARITHMETIC)
    elif operator == "+" and isinstance(node, ast.UnaryOp):
        holds = not isinstance(node.op, ast.Not)
    return text if holds else f"({text})"
