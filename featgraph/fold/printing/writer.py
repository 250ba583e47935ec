"""Lines of a generated module, with their indentation, and where each came from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["WIDTH", "Writer", "filled"]

#: Longest line of a module.
WIDTH = 88
_OPERATOR = re.compile(r" (\+|-|\*|/|\*\*|\||&|or|and|if|else|>|<|!=|==) ")

Origin = tuple[str, int]


class Writer:
    """Collects the lines of a generated module.

    Attributes
    ----------
    lines : list of str
        The text so far.
    origins : dict
        Generated line number -> ``(file, line)`` of the user's code it came from.
    written : dict
        A function without its name -> the first that was written so.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[int, Origin] = {}
        self.written: dict[str, str] = {}
        self.depth = 0

    @property
    def indent(self) -> str:
        """What lines begin with."""
        return "    " * self.depth

    def line(self, text: str = "", origin: Origin | None = None) -> None:
        """Append one line at the current indentation; a long one is broken."""
        if text.startswith("#"):
            # A comment names a file, and a new line in that name would end it.
            printable = text.isprintable()
            text = text if printable else text.encode("unicode_escape").decode()
            self.add([self.indent + text], origin)
        elif text.startswith('"'):
            self.add(_filled_docstring(text, self.indent), origin)
        else:
            self.add(filled(text, self.indent) if text else [""], origin)

    def add(self, lines: Sequence[str], origin: Origin | None = None) -> None:
        """Append lines as they are."""
        for line in lines:
            self.lines.append(line)
            if origin is not None:
                self.origins[len(self.lines)] = origin

    @contextmanager
    def block(self, header: str, origin: Origin | None = None) -> Iterator[None]:
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


def _filled_docstring(text: str, indent: str) -> list[str]:
    """Break the first line of a docstring; a lone one gets its end on a new line."""
    if len(indent) + len(text) <= WIDTH:
        return [indent + text]
    lines = textwrap.wrap(
        text.removesuffix('"""'), WIDTH, initial_indent=indent, subsequent_indent=indent
    )
    return [*lines, f'{indent}"""'] if text.endswith('"""') else lines


def filled(text: str, indent: str, depth: int = 0) -> list[str]:
    """Fill lines with `text`; break at commas and operators inside brackets.

    Parameters
    ----------
    depth : int
        Brackets that are open in front of it; further lines are not indented then.
    """
    lines: list[str] = []
    first, inside = True, depth > 0
    while True:
        lead = indent if first or inside else indent + "    "
        if len(lead) + len(text) <= WIDTH:
            return [*lines, lead + text]
        cut, depth_there, deeper = -1, 0, 99
        open_now = depth
        for place, letter in enumerate(text[: WIDTH - len(lead)]):
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
