"""Lines of generated source, with their indentation, and where each came from."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer"]

_WIDTH = 88
#: The left side may be an element: ``d.x[v, f] = ``.
_ASSIGNMENT = re.compile(r"(\s*(?:return|[\w., \[\]()]+? [+|*]?=)) (.+[^:])$")
_CONDITION = re.compile(r"(\s*(?:if|elif|while)) (.+):$")
_OPERATOR = re.compile(r" (\+|-|\*|/|\*\*|\||&|or|and|if|else|>|<|!=|==) ")


class Writer:
    """Collects the lines of a generated module.

    Attributes
    ----------
    lines : list of str
        The text so far.
    origins : dict
        Generated line number -> ``(file, line)`` of the user's code it came from.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[int, tuple[str, int]] = {}
        self.depth = 0

    def line(self, text: str = "", origin: tuple[str, int] | None = None) -> None:
        """Append one line at the current indentation.

        A statement of a function gets the brackets that `ast.unparse` places, so that
        one thing has one text whichever printer wrote it. Long calls and tuples are
        wrapped.
        """
        if text.startswith("#") and not text.isprintable():
            # A comment names a file, and a new line in that name would end it.
            text = text.encode("unicode_escape").decode()
        if self.depth and text:
            text = unparsed(text)
        for part in _wrapped("    " * self.depth + text) if text else [""]:
            self.lines.append(part)
            if origin is not None:
                self.origins[len(self.lines)] = origin

    @contextmanager
    def block(
        self, header: str, origin: tuple[str, int] | None = None
    ) -> Iterator[None]:
        """Append `header` and indent what follows."""
        self.line(header, origin)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    @property
    def text(self) -> str:
        """What was written."""
        return "\n".join(self.lines) + "\n"


def unparsed(line: str) -> str:
    """Return a line of a function as `ast.unparse` writes it.

    Comments, docstrings and ``else:`` stay as they are.
    """
    if line.lstrip().startswith(("#", '"', "else:")):
        return line
    code, mark, comment = line.partition("  # ")
    statement = code.lstrip()
    indent = code[: len(code) - len(statement)]
    is_elif = statement.startswith("elif ")
    statement = statement.removeprefix("el") if is_elif else statement
    whole = f"{statement} pass" if statement.endswith(":") else statement
    text, *_ = ast.unparse(ast.parse(whole)).split("\n")
    return f"{indent}{'el' if is_elif else ''}{text}{mark}{comment}"


def _wrapped(line: str) -> list[str]:
    """Break a line that is too long, inside brackets.

    A long right-hand side is put into parentheses, and so is a long condition.
    """
    if len(line) <= _WIDTH or line.lstrip().startswith("#"):
        return [line]
    if line.lstrip().startswith('"'):
        return _wrapped_docstring(line)
    indent = " " * (len(line) - len(line.lstrip()))
    assignment = _ASSIGNMENT.match(line)
    head, value = assignment.groups() if assignment else ("", "")
    is_block = line.lstrip().startswith(("def ", "if ", "for ", "Data"))
    if value and not is_block and not _is_kind(value, ast.Tuple):
        return [f"{head} (", *_filled(value, indent + "    ", 1), f"{indent})"]
    condition = _CONDITION.match(line)
    if condition and _is_kind(condition[2], ast.BoolOp):
        line = f"{condition[1]} ({condition[2]}):"
    return _filled(line.lstrip(), indent, 0)


def _is_kind(text: str, kind: type[ast.expr]) -> bool:
    """Return whether an expression as a whole is of a kind."""
    return isinstance(ast.parse(text, mode="eval").body, kind)


def _wrapped_docstring(line: str) -> list[str]:
    """Break the first line of a docstring; a lone one gets its end on a new line."""
    indent = " " * (len(line) - len(line.lstrip()))
    text = line.strip().removesuffix('"""')
    lines = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    is_closed = line.rstrip().endswith('"""')
    return [*lines, f'{indent}"""'] if is_closed else lines


def _filled(text: str, indent: str, depth: int) -> list[str]:
    """Fill lines with `text`; break at commas and operators inside brackets."""
    lines: list[str] = []
    first, inside = True, depth > 0
    while True:
        lead = indent if first or inside else indent + "    "
        if len(lead) + len(text) <= _WIDTH:
            return [*lines, lead + text]
        cut, depth_there, deeper = -1, 0, 99
        open_now = depth
        for place, letter in enumerate(text[: _WIDTH - len(lead)]):
            open_now += (letter in "([{") - (letter in ")]}")
            breakable = (
                letter == " "
                and place > 8
                and open_now > 0
                and (text[place - 1] == "," or _OPERATOR.match(text, place))
            )
            if breakable and open_now <= deeper:
                cut, depth_there, deeper = place, open_now, open_now
        if cut < 0:
            return [*lines, lead + text]
        lines.append(lead + text[:cut].rstrip())
        text, depth, first = text[cut:].lstrip(), depth_there, False
