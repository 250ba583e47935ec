"""Interrupts: deferred where they would cut a superstep or an import, or kept away.

``deferred_interrupts``   SIGINT waits until a State is of one superstep
``import_whole``          SIGINT waits until a module is imported
``shielded``              all signals: a call runs on a thread that handles none
``njit``                  Numba's, whose functions are compiled in that way

Python handles signals on the main thread, between any two of its instructions. Within
a compiler that is not safe: LLVM calls back through ctypes, which drops exceptions, and
Numba's own tables may be left half filled. The calling thread therefore waits for the
compiler, and only the wait is interrupted.

Full collections of Python's are deferred as well, where other ranks would wait for one.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import functools
import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = [
    "BACKGROUND",
    "Stopped",
    "compiled_aside",
    "deferred_interrupts",
    "holds_compiler",
    "import_whole",
    "njit",
    "rare_collections",
    "shielded",
    "stop_threads",
    "stops_at_exit",
]

_T = TypeVar("_T")

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
        module = importlib.import_module(name)
        _spare_linear_algebra()
        return module


def _spare_linear_algebra() -> None:
    """Keep Numba from importing SciPy's linear algebra when it first compiles.

    Numba imports `scipy.linalg`, which takes 0.17 s, to find out whether the host has a
    BLAS. Whether SciPy is installed says as much. ``np.dot`` in a function imports it
    as before, when that function is compiled.
    """
    cpu: Any = sys.modules.get("numba.core.cpu")
    if cpu is None or "numba.np.arraymath" in sys.modules:
        return
    load = cpu.CPUContext.load_additional_registries
    if load.__module__ == __name__:
        return

    def load_without(context: Any) -> None:
        linalg: Any = importlib.import_module("numba.np.linalg")
        ensure_blas, linalg.ensure_blas = linalg.ensure_blas, _find_scipy
        try:
            load(context)
        finally:
            linalg.ensure_blas = ensure_blas
            cpu.CPUContext.load_additional_registries = load

    cpu.CPUContext.load_additional_registries = load_without


def _find_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")


#: So often, in s, a thread that waits for a shielded call looks for signals that the
#: system has delivered to another thread, which does not wake it.
_LOOKS_S = 0.1
#: So often, in s, a thread that compiles is told that the process ends: library code
#: may not hear it at once.
_AGAIN_S = 0.25

#: Threads that must leave the compiler before the process ends, and whether each is in
#: it now: LLVM does not survive the end of the interpreter.
_in_compiler: weakref.WeakKeyDictionary[threading.Thread, Callable[[], bool]] = (
    weakref.WeakKeyDictionary()
)


#: The name of the thread that compiles behind calls. No call waits for it.
BACKGROUND = "featgraph compiler"


class Stopped(BaseException):
    """Ends what a thread compiles: the process ends."""


def shielded(call: Callable[[], _T]) -> _T:
    """Run a call to its end where no signal handler can cut it short; return its value.

    The main thread hands the call to a thread of its own and waits. An interrupt is
    raised out of the wait, at once. The call then goes on to its end by itself, so it
    must do no harm when its caller is gone: what a compiler makes is there for the next
    call. Other threads handle no signals, and make the call themselves.

    Parameters
    ----------
    call : callable
        Takes no arguments. It must need no lock that the calling thread holds.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: list[_T] = []
    errors: list[BaseException] = []
    # A bare lock, which the thread only releases: an interrupt can leave the lock
    # within an Event or a Future held for good.
    unfinished = threading.Lock()
    unfinished.acquire()
    context = contextvars.copy_context()

    def run() -> None:
        stops_at_exit(threading.current_thread(), unfinished.locked)
        with contextlib.suppress(Stopped):
            try:
                result.append(context.run(call))
            except BaseException as error:
                errors.append(error)
            finally:
                unfinished.release()

    # A daemon, so that the end of Python reaches `stop_threads`, and waits no longer.
    thread = threading.Thread(target=run, name="featgraph shielded", daemon=True)
    try:
        with deferred_interrupts():
            thread.start()
    except RuntimeError:  # there can be no more threads, as when Python ends
        return call()
    while not unfinished.acquire(timeout=_LOOKS_S):
        pass
    if errors:
        raise errors.pop()
    return result.pop()


def holds_compiler() -> bool:
    """Whether this thread has the compiler's lock, for which another would wait."""
    lock: Any = importlib.import_module("numba.core.compiler_lock")
    return bool(lock.global_compiler_lock.is_locked())


def compiled_aside(function: Any) -> Any:
    """Have a function of Numba compile, or load its code, in a shielded call.

    Parameters
    ----------
    function : numba.core.dispatcher.Dispatcher

    Returns
    -------
    Dispatcher
        The same.
    """
    if "_compile_for_args" in vars(function):  # several modules import it
        return function
    compile_ = function._compile_for_args  # by this name its C code calls it

    @functools.wraps(compile_)
    def compile_aside(*arguments: Any, **named: Any) -> Any:
        if holds_compiler():
            return compile_(*arguments, **named)
        return shielded(functools.partial(compile_, *arguments, **named))

    function._compile_for_args = compile_aside
    return function


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return Numba's decorator with some options; functions are compiled aside."""
    decorate = import_whole("numba").njit(**options)
    return lambda function: compiled_aside(decorate(function))


def stops_at_exit(thread: threading.Thread, is_busy: Callable[[], bool]) -> None:
    """Have a thread stopped before the process ends, wherever it is busy."""
    _in_compiler[thread] = is_busy


def stop_threads(*threads: threading.Thread) -> None:
    """Raise `Stopped` in threads, or all, until they have left the compiler."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda given: _report(hook, given)
    while alive := [t for t in threads or list(_in_compiler) if t.is_alive()]:
        for thread in alive:
            is_busy = _in_compiler.get(thread)
            if is_busy is not None and is_busy() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped)
                )
        alive[0].join(_AGAIN_S)


def _report(hook: Callable[[Any], Any], given: Any) -> None:
    """Report an error that nothing can handle, but for what has ended a callback."""
    if given.exc_type is not Stopped:
        hook(given)


atexit.register(stop_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_compiler.clear)  # it has none of the threads


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
