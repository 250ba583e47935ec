"""Interrupts, deferred or shielded where they would leave an inconsistent state.

``deferred_interrupts``   delay SIGINT until a State belongs to one superstep
``import_whole``          delay SIGINT until a module is imported
``shielded``              run a call on a thread that handles no signals
``with_shielded_compilation`` shield the compilation of a function

Python runs signal handlers on the main thread, between any two bytecode instructions.
Within a compiler this is not safe: LLVM calls back through ctypes, which drops
exceptions, and Numba's tables may be left incomplete. The main thread therefore waits
for a compiler on another thread, and only the wait is interrupted.

Full garbage collections are deferred as well, where other ranks would wait for them.
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
    "deferred_interrupts",
    "holds_compiler",
    "import_whole",
    "rare_collections",
    "shielded",
    "stop_threads",
    "stops_at_exit",
    "with_shielded_compilation",
]

_T = TypeVar("_T")

# The C module below `signal`, which looks up each handler in an enumeration: that takes
# longer than everything else in `deferred_interrupts`.
_bare: Any = importlib.import_module("_signal")


class deferred_interrupts:
    """Defer SIGINT until the end of a block; the block gets a list of those received.

    On other threads than the main one, this does nothing.

    Python checks for signals after every call. An undeferred handler could run between
    the launch of a superstep and the update of the State, with no way to detect which.
    """

    __slots__ = ("_before", "_came")

    def __enter__(self) -> list[int]:
        self._came: list[int] = []
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
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
    """Import a module with interrupts deferred until it is complete.

    Python drops a package whose import was interrupted, but keeps its submodules that
    were imported by then. A second import finds these in `sys.modules` and does not
    bind them to the package, which for Numba lasts until the process ends.
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

    Numba imports `scipy.linalg`, which takes 0.17 s, to check that the host has a BLAS.
    Here the check is that SciPy is installed. A compiled function with ``np.dot`` still
    imports it.
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


#: Interval in s at which a thread that waits for a shielded call polls for signals: the
#: system may deliver one to another thread, which does not wake the waiting one.
_POLL_S = 0.1
#: Interval in s at which `Stopped` is raised again in a compiling thread: library code
#: may catch the exception, or run long before it is raised.
_AGAIN_S = 0.25

#: Thread -> whether it is in the compiler now. All must have left it before the process
#: ends: LLVM does not survive the end of the interpreter.
_in_compiler: weakref.WeakKeyDictionary[threading.Thread, Callable[[], bool]] = (
    weakref.WeakKeyDictionary()
)


#: Name of the thread that compiles in the background. No call waits for it.
BACKGROUND = "featgraph compiler"


class Stopped(BaseException):
    """Raised in a compiling thread when the process ends."""


def shielded(call: Callable[[], _T]) -> _T:
    """Run a call on a thread that handles no signals; return its value.

    The main thread starts a new thread for the call and waits. An interrupt ends the
    wait at once, while the call runs to its end. The call must therefore be safe
    without its caller, as a compilation is, whose result serves the next call. Other
    threads handle no signals, and make the call themselves.

    Parameters
    ----------
    call : callable
        Takes no arguments, and needs no lock that the calling thread holds.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: list[_T] = []
    errors: list[BaseException] = []
    # A bare lock, which the new thread only releases: an interrupt could leave the lock
    # within an Event or a Future acquired for ever.
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

    # A daemon: the interpreter does not join it, and `stop_threads` runs at exit.
    thread = threading.Thread(target=run, name="featgraph shielded", daemon=True)
    try:
        with deferred_interrupts():
            thread.start()
    except RuntimeError:  # no new thread can start, as while the interpreter exits
        return call()
    while not unfinished.acquire(timeout=_POLL_S):
        pass
    if errors:
        raise errors.pop()
    return result.pop()


def holds_compiler() -> bool:
    """Whether this thread holds Numba's compiler lock."""
    lock: Any = importlib.import_module("numba.core.compiler_lock")
    return bool(lock.global_compiler_lock.is_locked())


def with_shielded_compilation(function: Any) -> Any:
    """Make a Numba function compile, or load its code, in a shielded call.

    Parameters
    ----------
    function : numba.core.dispatcher.Dispatcher

    Returns
    -------
    Dispatcher
        The same object.
    """
    if "_compile_for_args" in vars(function):  # done already
        return function
    compile_ = function._compile_for_args  # Numba's C code calls it by this name

    @functools.wraps(compile_)
    def compile_shielded(*arguments: Any, **named: Any) -> Any:
        if holds_compiler():
            return compile_(*arguments, **named)
        return shielded(functools.partial(compile_, *arguments, **named))

    function._compile_for_args = compile_shielded
    return function


def stops_at_exit(thread: threading.Thread, is_busy: Callable[[], bool]) -> None:
    """Register a thread to be stopped before the process ends, while it is busy."""
    _in_compiler[thread] = is_busy


def stop_threads(*threads: threading.Thread) -> None:
    """Raise `Stopped` in threads until they end; by default in all registered ones."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: _report(hook, unraisable)
    while alive := [t for t in threads or list(_in_compiler) if t.is_alive()]:
        for thread in alive:
            is_busy = _in_compiler.get(thread)
            if is_busy is not None and is_busy() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped)
                )
        alive[0].join(_AGAIN_S)


def _report(hook: Callable[[Any], Any], unraisable: Any) -> None:
    """Report an unraisable exception, unless it is a `Stopped` in a callback."""
    if unraisable.exc_type is not Stopped:
        hook(unraisable)


atexit.register(stop_threads)
if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads.
    os.register_at_fork(after_in_child=_in_compiler.clear)


#: Factor on the interval between full collections during runs on several ranks.
_RARER = 100


class _RareCollections:
    """Make full garbage collections `_RARER` times as rare within a block.

    A full collection takes time in proportion to all objects: 0.4 s with Numba and
    PyTorch loaded. Each rank would run it in another superstep, and all other ranks
    would wait. A collection that is due runs after the block. All threads share the
    thresholds of the collector: the last block that ends restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = self._raised = (0, 0, 0)

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = young, middle, old = gc.get_threshold()
                self._raised = young, middle, _RARER * old
                gc.set_threshold(*self._raised)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            # Thresholds that other code has set since stay.
            if self._users == 0 and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)


rare_collections = _RareCollections()
