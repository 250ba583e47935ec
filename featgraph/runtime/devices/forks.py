"""Numba's threads: one kernel at a time has them, and a forked process may not.

GNU's OpenMP, which Numba takes unless told otherwise, cannot start threads in a child
of a process that has used it: Numba ends such a child. Kernels then run on the thread
that calls them, chunk by chunk, with the same bits. Other threading layers survive a
fork, and so do processes that are spawned.

Kernels let go of Python's lock, so that other threads hand over bytes meanwhile. Not
every threading layer takes two parallel kernels at once, and none gains by it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

__all__ = ["all_threads", "is_single_threaded"]

#: How long a fork waits for another thread that compiles: the child could never take
#: the lock that this thread holds.
_PATIENCE_S = 60.0

_lost_threads = False
_all_threads = threading.Lock()
_held: Any = None


def is_single_threaded() -> bool:
    """Whether this process must not start Numba's threads."""
    return _lost_threads


def all_threads() -> threading.Lock:
    """Return the lock that whoever runs a kernel on Numba's threads holds."""
    return _all_threads


def _hold_compiler() -> None:
    global _held
    known = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(getattr(known, "global_compiler_lock", None), "_lock", None)
    _held = lock if lock is not None and lock.acquire(timeout=_PATIENCE_S) else None


def _release_compiler() -> None:
    global _held
    lock, _held = _held, None
    if lock is not None:
        lock.release()


def _begin_child() -> None:
    global _lost_threads, _all_threads
    _release_compiler()
    _all_threads = threading.Lock()  # whoever held it is not here
    layer: Any = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(layer, "_is_initialized", False) and layer._threading_layer == "omp":
        _lost_threads = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_compiler,
        after_in_parent=_release_compiler,
        after_in_child=_begin_child,
    )
