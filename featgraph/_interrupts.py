"""Interrupts that wait: until a state is of one superstep, until a module is whole.

So does Python's collector, where other ranks would wait for it.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import threading
from typing import Any

__all__ = ["deferred_interrupts", "import_whole", "rare_collections"]

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


#: Within runs of ranks full collections come so many times as rarely.
_RARER = 100


class _Thresholds:
    """Those of the collector, of which a process has one for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = self._raised = (0, 0, 0)

    def raise_last(self) -> None:
        """Have full collections come rarely, until `restore` is called as often."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = young, middle, old = gc.get_threshold()
                self._raised = young, middle, _RARER * old
                gc.set_threshold(*self._raised)

    def restore(self) -> None:
        """Have them come as before, unless someone else has set thresholds since."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)


_thresholds = _Thresholds()


class rare_collections:
    """Have Python's full collections wait until the end, or until many are due.

    One takes as long as there are objects, 0.4 s where Numba and PyTorch are loaded,
    and each rank comes to it at another superstep, for which all others wait. What is
    due comes behind the run. Without `are_rare`, do nothing.
    """

    __slots__ = ("_are_rare",)

    def __init__(self, are_rare: bool = True) -> None:
        self._are_rare = are_rare

    def __enter__(self) -> None:
        if self._are_rare:
            _thresholds.raise_last()

    def __exit__(self, *error: object) -> None:
        if self._are_rare:
            _thresholds.restore()
