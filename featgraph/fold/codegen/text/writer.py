"""Lines of generated source, with their indentation, and where each came from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer"]

_WIDTH = 88
#: The left side may be an element: ``d.x[v, f] = ``.
_ASSIGNMENT = re.compile(r"(\s*(?:return|[\w., \[\]()]+? [+|*]?=)) (?!\()(.+[^:])$")
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

        Long calls and tuples are wrapped.
        """
        if text.startswith("#") and not text.isprintable():
            # A comment names a file, and a new line in that name would end it.
            text = text.encode("unicode_escape").decode()
        for part in _wrapped("    " * self.depth + text) if text else [""]:
            self.lines.append(part)
            if origin is not None:
                self.origins[len(self.lines)] = origin

    def complete(self, place: int, text: str) -> None:
        """Put `text` in the place of a line; lines behind it must have no origin."""
        self.lines[place : place + 1] = _wrapped(text)

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


def _wrapped(line: str) -> list[str]:
    """Break a line that is too long, inside brackets.

    A long right-hand side is put into parentheses.
    """
    if len(line) <= _WIDTH or line.lstrip().startswith("#"):
        return [line]
    if line.lstrip().startswith('"'):
        return _wrapped_docstring(line)
    indent = " " * (len(line) - len(line.lstrip()))
    assignment = _ASSIGNMENT.match(line)
    if assignment and not line.lstrip().startswith(("def ", "if ", "for ", "Data")):
        head, value = assignment.groups()
        return [f"{head} (", *_filled(value, indent + "    ", 1), f"{indent})"]
    return _filled(line.lstrip(), indent, 0)


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
