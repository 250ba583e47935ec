"""Where an emulated GPU finds its memory."""

from __future__ import annotations

import bisect
import weakref
from typing import Any

__all__ = ["Pieces"]


class Pieces:
    """Pieces of memory that are allocated; found by an address within."""

    def __init__(self) -> None:
        self._pieces: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        #: Where they begin, in order; some of them are gone.
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, start: int, piece: Any) -> None:
        """Note memory that has been allocated; nothing else lies there by now."""
        self._pieces[start] = piece
        place = bisect.bisect_left(self._starts, start)
        if self._starts[place : place + 1] != [start]:
            self._starts.insert(place, start)

    def at(self, address: int, size: int) -> tuple[int, Any] | None:
        """Return where memory begins that has some bytes, and it; None: none has."""
        while place := bisect.bisect_right(self._starts, address):
            start = self._starts[place - 1]
            piece = self._pieces.get(start)
            if piece is not None:
                has_them = address + size <= start + piece.size
                return (start, piece) if has_them else None
            del self._starts[place - 1]
        return None
