"""Interrupts that wait: until a state is of one superstep, until a module is whole."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["deferred_interrupts", "import_whole"]


@contextmanager
def deferred_interrupts(defers: bool = True) -> Iterator[list[int]]:
    """Defer interrupts until the end; give the list of those that have come.

    Without `defers`, do nothing.

    Python looks for signals behind every call, so nothing else could tell whether a
    superstep had been launched when one came.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT) if defers else None
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


def import_whole(name: str) -> Any:
    """Import a module, all of it: interrupts wait until it is there.

    Python forgets a package whose import was interrupted, but not the modules of it
    that were imported by then, so that a second import finds them and leaves the
    package without them. For Numba that lasts as long as the process.
    """
    known = sys.modules.get(name)
    if known is not None:
        spec = getattr(known, "__spec__", None)
        if not getattr(spec, "_initializing", False):
            return known
    with deferred_interrupts():
        return importlib.import_module(name)
