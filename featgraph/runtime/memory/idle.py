"""What was bound to States that are gone, for the next ones on their graph (0068)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

__all__ = ["Idle"]

#: Keys, and things of one key, that are kept at a time.
_MOST_KEYS, _MOST_OF_A_KEY = 64, 4


class Idle:
    """Things that are bound to a graph on a device, and to no State any more.

    A State ends in any thread, and within whatever allocates there: nothing here waits
    for a lock, and each change of a list is one call.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, list[Any]] = {}
        self._is_over = False

    def take(self, key: Hashable) -> Any | None:
        """Return a thing that is nobody else's from here on; None if there is none."""
        found = self._things.get(key)
        if not found:
            return None
        try:
            return found.pop()
        except IndexError:  # another thread has it
            return None

    def give(self, key: Hashable, thing: Any) -> None:
        """Keep a thing for the next State; where there are many, it goes."""
        if self._is_over:
            return
        if key not in self._things and len(self._things) >= _MOST_KEYS:
            self._things.clear()
        found = self._things.setdefault(key, [])
        if len(found) < _MOST_OF_A_KEY:
            found.append(thing)

    def clear(self) -> None:
        """Let go of all of them."""
        self._things.clear()

    def end(self) -> None:
        """Let go of all of them, and keep none that comes: of a State that is left."""
        self._is_over = True
        self._things.clear()

    def __len__(self) -> int:
        return sum(map(len, list(self._things.values())))
