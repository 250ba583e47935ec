"""Lines of generated source, with their indentation, and where each came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer"]

_WIDTH = 88


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
        """Append one line at the current indentation; long calls and tuples are wrapped."""
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
        return "\n".join(self.lines) + "\n"


def _wrapped(line: str) -> list[str]:
    """Break a line behind a comma (or before an operator) inside brackets; comments are left alone."""
    if len(line) <= _WIDTH or line.lstrip().startswith(("#", '"')):
        return [line]
    indent = len(line) - len(line.lstrip())
    depth, cut, shallow = 0, -1, 99
    for place, letter in enumerate(line):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth and letter in ", " and indent < place < _WIDTH - 1:
            breakable = letter == "," or line[place + 1 : place + 3] in {"+ ", "- ", "* ", "/ ", "an", "or", "if", "el"}
            if breakable and depth <= shallow:
                cut, shallow = place + 1, depth
    if cut < 0:
        return [line]
    rest = " " * (indent + 4) + line[cut:].strip()
    return [line[:cut].rstrip(), *_wrapped(rest)] if len(rest) < len(line) else [line]
