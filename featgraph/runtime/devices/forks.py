"""Numba's threads: used by one kernel at a time, and not in a forked process.

GNU's OpenMP, Numba's default layer, cannot start threads in a child of a process that
has used it: Numba ends such a child. Kernels then run on the calling thread, chunk by
chunk, with the same bits. Other threading layers survive a fork, and so do spawned
processes.

Kernels release the GIL, so that other threads exchange bytes meanwhile. Not every
threading layer supports two parallel kernels at once, and none gains by it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

__all__ = ["all_threads", "is_single_threaded"]

#: Most seconds that a fork waits for a thread that compiles: the child could never
#: acquire the lock that this thread holds.
_PATIENCE_S = 60.0

_lost_threads = False
_all_threads = threading.Lock()
_held: Any = None


def is_single_threaded() -> bool:
    """Whether this process must not start Numba's threads."""
    return _lost_threads


def all_threads() -> threading.Lock:
    """Return the lock to hold while a kernel runs on Numba's threads."""
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
    _all_threads = threading.Lock()  # its holder does not exist in the child
    layer: Any = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(layer, "_is_initialized", False) and layer._threading_layer == "omp":
        _lost_threads = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_compiler,
        after_in_parent=_release_compiler,
        after_in_child=_begin_child,
    )
