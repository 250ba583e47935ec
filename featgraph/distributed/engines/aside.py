"""Calls of a library that cannot be interrupted, on a thread beside those who wait.

Gloo waits for a transfer within itself, and not everything that fails ends such a wait:
what had begun to be sent or received when its connection broke is forgotten, and waited
for until the timeout. So nobody but a thread that can be left there waits within it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Aside", "Released"]

_T = TypeVar("_T")


class Released(Exception):
    """A call is waited for no more; its thread may be within it for ever."""


class Aside:
    """A thread that makes calls, one at a time, for those who wait for their results.

    Whoever waits can be interrupted, and released by another thread.

    Parameters
    ----------
    name : str
        Of the thread, which begins with the first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[tuple[int, Callable[[], Any]] | None] = SimpleQueue()
        #: Number of a call, what it returned and what it raised; None: wait no more.
        self._answers: SimpleQueue[tuple[int, Any, BaseException | None] | None]
        self._answers = SimpleQueue()
        self._numbers = itertools.count()
        self._is_released = False

    def run(self, function: Callable[[], _T]) -> _T:
        """Return what a function returns, or raise what it raises.

        Raises
        ------
        Released
            Where `release` has been called, before or meanwhile.
        """
        if threading.current_thread() is self._thread:  # within another call
            return function()
        return self.answer(self.ask(function))  # type: ignore[no-any-return]

    def ask(self, function: Callable[[], Any]) -> int:
        """Have a function called, and return its number for `answer`."""
        if self._is_released:
            raise Released
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name=self._name, daemon=True
            )
            self._thread.start()
        asked = next(self._numbers)
        self._asked.put((asked, function))
        return asked

    def answer(self, asked: int) -> Any:
        """Return what a function returns that was asked for last, or raise likewise."""
        while (answer := self._answers.get()) is not None:
            number, result, error = answer
            if number == asked:  # not of one whose wait was interrupted
                if error is not None:
                    raise error
                return result
        raise Released

    def release(self) -> None:
        """Have `run` raise, now and from now on; on any thread."""
        self._is_released = True
        self._answers.put(None)

    def close(self, seconds: float) -> None:
        """End the thread, and wait for it for so long.

        One that is within a call that does not return is left there.
        """
        self.release()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Make one call. Nothing of it is kept: it may have large arrays."""
        asked = self._asked.get()
        if asked is None:
            return False
        number, function = asked
        try:
            self._answers.put((number, function(), None))
        except BaseException as error:  # for whoever asked
            self._answers.put((number, None, error))
        return True
