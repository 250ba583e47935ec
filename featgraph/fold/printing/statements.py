"""Statements of Python as lines; the only place where a tree becomes text.

A statement is unparsed once: what stands in brackets of its own where a line is long is
told by the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from featgraph.fold.printing.writer import WIDTH, Writer, filled
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import Body, expression, note_of

__all__ = [
    "head_of",
    "line_of",
    "make_function",
    "print_body",
    "print_function",
    "print_once",
]

_Block = ast.If | ast.While | ast.For


def make_function(
    decorator: str, name: str, arguments: Iterable[str], doc: str, body: Body
) -> ast.FunctionDef:
    """Return a function of the module; `decorator` and `doc` may be ""."""
    given = [ast.arg(argument) for argument in arguments]
    first: Body = [ast.Expr(ast.Constant(doc))] if doc else []
    return ast.FunctionDef(
        name=name,
        args=ast.arguments([], given, None, [], [], None, []),
        body=[*first, *body],
        decorator_list=[expression(decorator)] if decorator else [],
        lineno=0,
    )


def print_function(writer: Writer, node: ast.FunctionDef, file: str = "") -> None:
    """Write a function, two lines below what stands in front of it.

    Parameters
    ----------
    file : str
        The user's file that it comes from; "" for kernels.
    """
    writer.line()
    writer.line()
    if file:
        writer.line(f"# {file}:{node.lineno}")
    for decorator in node.decorator_list:
        writer.line(f"@{ast.unparse(decorator)}")
    header = f"def {node.name}({ast.unparse(node.args)}):"
    with writer.block(header, (file, node.lineno) if file else None):
        print_body(writer, node.body, file)


def print_once(writer: Writer, node: ast.FunctionDef) -> None:
    """Write a kernel, or where the same has been written, that by this name, too.

    Each function is compiled, as soon as it is called.
    """
    text = ast.unparse(node).replace(f"def {node.name}(", "def (", 1)
    known = writer.written.setdefault(text, node.name)
    if known == node.name:
        print_function(writer, node)
        return
    for line in ("", "", f"{node.name} = {known}"):
        writer.line(line)


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
    line = getattr(node, "lineno", 0) if file else 0
    origin = (file, line) if line else None
    if isinstance(node, Comment):
        writer.line(f"# {node.text}")
    elif isinstance(node, _Block):
        with writer.block(_header(node, len(writer.indent)), origin):
            print_body(writer, node.body, file)
        if node.orelse:
            with writer.block("else:"):
                print_body(writer, node.orelse, file)
    elif doc := _doc_of(node):
        writer.line(f'"""{doc}"""')
    else:
        writer.add(_lines(node, writer.indent), origin)


def _doc_of(node: ast.stmt) -> str:
    """Return the text of a docstring; "" for other statements."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return ""


def _header(node: _Block, depth: int) -> str:
    """Return the line with which a branch or a loop begins; it may be too long."""
    note = _note(node)
    header = f"{head_of(node)}:{note}"
    if depth + len(header) <= WIDTH or isinstance(node, ast.For):
        return header
    if not isinstance(node.test, ast.BoolOp):
        return header
    word, test = header.split(" ", 1)[0], ast.unparse(node.test)
    return f"{word} ({test}):{note}"


def _lines(node: ast.stmt, indent: str) -> list[str]:
    """Return the lines of a statement that has no body.

    The right-hand side of a long one is put into brackets.
    """
    text = line_of(node) + _note(node)
    if len(indent) + len(text) <= WIDTH:
        return [indent + text]
    value = _right_of(node)
    if value is None or isinstance(value, ast.Tuple):
        return filled(text, indent)
    right = ast.unparse(value) + _note(node)
    head = indent + text.removesuffix(right)
    return [f"{head}(", *filled(right, indent + "    ", 1), f"{indent})"]


def _right_of(node: ast.stmt) -> ast.expr | None:
    """Return what may stand in brackets of its own."""
    if isinstance(node, ast.AugAssign):
        return (
            node.value if isinstance(node.op, ast.Add | ast.Mult | ast.BitOr) else None
        )
    return node.value if isinstance(node, ast.Assign | ast.Return) else None


def _note(node: ast.stmt) -> str:
    return f"  # {note_of(node)}" if note_of(node) else ""


def head_of(node: _Block) -> str:
    """Return the line with which a branch or a loop begins, without the colon."""
    if isinstance(node, ast.For):
        bare: ast.stmt = ast.For(node.target, node.iter, [], [], lineno=0)
    else:
        bare = type(node)(node.test, [], [])
    return ast.unparse(bare).removesuffix(":")


def line_of(node: ast.stmt) -> str:
    """Return a statement of one line."""
    if isinstance(node, ast.Assign) and not hasattr(node, "lineno"):
        node.lineno = 0  # unparse asks for it
    return ast.unparse(node)
