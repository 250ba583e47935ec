"""Interrupts that wait: until a state is of one superstep, until a module is whole."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from typing import Any

__all__ = ["deferred_interrupts", "import_whole"]

# What `signal` wraps: that looks for each handler among members of an enumeration,
# which takes longer than all else that is done here.
_bare: Any = importlib.import_module("_signal")


class deferred_interrupts:
    """Defer interrupts until the end; give the list of those that have come.

    Without `defers`, do nothing. Another thread than the first one handles none.

    Python looks for signals behind every call, so nothing else could tell whether a
    superstep had been launched when one came.
    """

    __slots__ = ("_before", "_came", "_defers")

    def __init__(self, defers: bool = True) -> None:
        self._defers = defers

    def __enter__(self) -> list[int]:
        self._came: list[int] = []
        self._before: Any = None
        if self._defers and threading.current_thread() is threading.main_thread():
            before = self._before = _bare.getsignal(signal.SIGINT)
            if before is not None:
                came = self._came
                _bare.signal(signal.SIGINT, lambda number, _: came.append(number))
        return self._came

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            return
        _bare.signal(signal.SIGINT, self._before)
        if self._came:
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
