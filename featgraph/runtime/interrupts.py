"""Interrupts that wait until a state is of one superstep again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_back"]


@contextmanager
def held_back(holds: bool = True) -> Iterator[list[int]]:
    """Hold interrupts back until the end; give the list of those that have come.

    Without `holds`, do nothing.

    Python looks for signals behind every call, so nothing else could tell whether a
    superstep had been launched when one came.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT) if holds else None
    if before is None or threading.current_thread() is not threading.main_thread():
        yield came  # another thread handles them
        return
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
