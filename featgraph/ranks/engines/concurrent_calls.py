"""Blocking calls that cannot be interrupted, made on a thread of their own.

Gloo blocks within a transfer, and not every failure ends the wait: a transfer that had
begun when its connection broke is waited for until the timeout. So only a thread that
can be abandoned waits within Gloo.
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
    """The wait for a call was abandoned; its thread may block in it forever."""


class Aside:
    """A thread that makes blocking calls, one at a time.

    The thread that waits for a result can be interrupted, and released by another one.

    Parameters
    ----------
    name : str
        The name of the thread, which is started by the first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[tuple[int, Callable[[], Any]] | None] = SimpleQueue()
        #: Number, result and error of a call; None: stop waiting.
        self._answers: SimpleQueue[tuple[int, Any, BaseException | None] | None]
        self._answers = SimpleQueue()
        self._numbers = itertools.count()
        self._is_released = False

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function on the thread; return its result, or raise its error.

        Raises
        ------
        Released
            If `release` has been called, before or during the call.
        """
        if threading.current_thread() is self._thread:  # within another call
            return function()
        return self.answer(self.ask(function))  # type: ignore[no-any-return]

    def ask(self, function: Callable[[], Any]) -> int:
        """Begin to call a function; return the number of the call for `answer`."""
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
        """Return the result of the last call begun by `ask`, or raise its error."""
        while (answer := self._answers.get()) is not None:
            number, result, error = answer
            if number == asked:  # else of a call whose wait was interrupted
                if error is not None:
                    raise error
                return result
        raise Released

    def release(self) -> None:
        """Make present and later calls of `run` raise Released; from any thread."""
        self._is_released = True
        self._answers.put(None)

    def close(self, seconds: float) -> None:
        """End the thread, and wait for it for at most `seconds`.

        A thread in a call that does not return is abandoned.
        """
        self.release()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Make one call, and keep no reference to it: it may have large arrays."""
        asked = self._asked.get()
        if asked is None:
            return False
        number, function = asked
        try:
            self._answers.put((number, function(), None))
        except BaseException as error:  # raised by `answer`
            self._answers.put((number, None, error))
        return True
