"""Words of a text file one after another, each with its place for error messages."""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

from featgraph.graph.formats.text import Text

__all__ = ["Tokens"]

# Longer words are refused: they are neither numbers nor names.
_LONGEST = 1000
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Tokens:
    """A cursor over the words of a file.

    Parameters
    ----------
    text : Text
    pattern : compiled regular expression of bytes
        Matches one word; a group named ``skip`` matches text between words.
    """

    def __init__(self, text: Text, pattern: re.Pattern[bytes]) -> None:
        self.text = text
        self._matches = pattern.finditer(text.data)
        self._next: re.Match[bytes] | None = None
        self._advance()

    def _advance(self) -> None:
        for match in self._matches:
            if match.lastgroup != "skip":
                self._next = match
                return
        self._next = None

    @property
    def position(self) -> int:
        """The first byte of the next word."""
        return len(self.text.data) if self._next is None else self._next.start()

    @property
    def left_bytes(self) -> int:
        """The number of bytes from the next word on."""
        return len(self.text.data) - self.position

    @property
    def at_end(self) -> bool:
        """Whether no word is left."""
        return self._next is None

    def peek(self) -> bytes:
        """Return the next word, empty at the end, without consuming it."""
        return b"" if self._next is None else self._next[0]

    def take(self, expected: str) -> bytes:
        """Return the next word, and consume it."""
        if self._next is None:
            self.fail("the file ends early", expected=expected)
        word = self._next[0]
        if len(word) > _LONGEST:
            self.fail("word too long", expected=expected)
        self._advance()
        return word

    def skip(self, word: bytes, where: str) -> None:
        """Consume `word`, which must be next."""
        if self.peek().lower() != word:
            self.fail(f"malformed {where}", expected=repr(word.decode()))
        self._advance()

    def count(self, what: str, low: int, high: int) -> int:
        """Return the next word as an integer in [low, high]."""
        word = self.peek()
        expected = f"{what}: {low} to {high}" if high < 10**18 else f"{what}: {low} ..."
        is_plain = word.isdigit() and len(word) <= 19
        if not is_plain or not low <= int(word) <= high:
            self.fail(f"not a {what}", expected=expected)
        self._advance()
        return int(word)

    def probability(self, what: str) -> float:
        """Return the next word as a finite, nonnegative number."""
        word = self.peek()
        value = math.nan
        if len(word) <= _LONGEST and _NUMBER.fullmatch(word):
            value = float(word)
        if not 0 <= value < math.inf:
            self.fail(f"not a {what}", expected="a finite number, 0 or more")
        self._advance()
        return value

    def fail(self, what: str, position: int | None = None, **parts: Any) -> NoReturn:
        """Raise FileFormatError at the next word, or at `position`."""
        at = self.position if position is None else position
        if at >= len(self.text.data):
            parts.setdefault("got", "the end of the file")
        self.text.fail(what, at, **parts)
