"""Statements of Python as lines; the only place where a nest becomes text."""

from __future__ import annotations

import ast

from featgraph.fold.printing.writer import Writer
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import Body, note_of

__all__ = ["head_of", "line_of", "print_body"]


def print_body(writer: Writer, body: Body, file: str = "") -> None:
    """Write the lines of statements.

    Parameters
    ----------
    file : str
        The user's file that they come from; "" for those of a nest.
    """
    for node in body:
        _print(writer, node, file)


def _print(writer: Writer, node: ast.stmt, file: str) -> None:
    note = f"  # {note_of(node)}" if note_of(node) else ""
    line = getattr(node, "lineno", 0) if file else 0
    origin = (file, line) if line else None
    if isinstance(node, Comment):
        writer.line(f"# {node.text}")
    elif isinstance(node, ast.If | ast.While | ast.For):
        with writer.block(f"{head_of(node)}:{note}", origin):
            print_body(writer, node.body, file)
        if node.orelse:
            with writer.block("else:"):
                print_body(writer, node.orelse, file)
    else:
        writer.line(line_of(node) + note, origin)


def head_of(node: ast.If | ast.While | ast.For) -> str:
    """Return the line with which a branch or a loop begins, without the colon."""
    if isinstance(node, ast.For):
        return f"for {_listed(node.target)} in {ast.unparse(node.iter)}"
    word = "if" if isinstance(node, ast.If) else "while"
    return f"{word} {ast.unparse(node.test)}"


def line_of(node: ast.stmt) -> str:
    """Return a statement of one line."""
    if isinstance(node, ast.Assign):
        targets = " = ".join(_listed(target) for target in node.targets)
        return f"{targets} = {_listed(node.value)}"
    return ast.unparse(ast.fix_missing_locations(node))


def _listed(node: ast.expr) -> str:
    """Return an expression; several values stand without brackets."""
    if isinstance(node, ast.Tuple) and len(node.elts) > 1:
        return ", ".join(ast.unparse(part) for part in node.elts)
    return ast.unparse(node)
