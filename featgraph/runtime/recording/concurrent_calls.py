"""Operations of a superstep that are put aside while they are those of a known one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Aside"]


class Aside:
    """What a superstep is expected to ask for, and how far it has come.

    The device is asked for nothing until the superstep asks for something else, and
    then for all of it; or until it has asked for everything, up to the read of its
    count. Then `instead` may have that and what follows run in another way.

    Parameters
    ----------
    expected : tuple
        Operations, the last of which reads a count.
    instead : callable
        Returns what is read, an array of words, or None where it has done nothing.
    """

    def __init__(
        self, expected: tuple[tuple[Any, ...], ...], instead: Callable[[], Any]
    ) -> None:
        self._expected, self._count = expected, 0
        self.instead = instead

    def takes(self, operation: tuple[Any, ...]) -> bool:
        """Whether an operation is the one that is expected next, which is over then."""
        count, self._count = self._count, self._count + 1
        expected = self._expected
        return count < len(expected) and bool(expected[count] == operation)
