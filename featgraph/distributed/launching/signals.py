"""Signals that are to end the launcher: noted, so that it can end ranks first."""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Signals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Notes signals within a block, instead of what they did before.

    Attributes
    ----------
    seen : list of int
        Which have come, in their order.
    file : socket
        Can be read from when one has come; `drain` empties it.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._wake, self.file = socket.socketpair()
        for end in (self._wake, self.file):
            end.setblocking(False)
        self._before: dict[int, Any] = {}
        self._fd = -1

    def __enter__(self) -> Signals:
        self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in _NUMBERS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wake.close()
        self.file.close()

    def drain(self) -> None:
        """Have `file` wait for the next signal."""
        with contextlib.suppress(BlockingIOError):
            while self.file.recv(4096):
                pass

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)
