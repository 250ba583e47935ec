"""Kernels compiled in the background while runs do without them (0045).

A run that would profit from a kernel that is not compiled yet goes on without it and
adds a `Job` to the queue `COMPILER`. The queue's thread starts compiling when the run
has ended or has become long: Numba's compiler has one global lock, for which a run that
compiles something itself would wait. Jobs for a GPU start only after runs have compiled
nothing for a while, since compiling takes seconds there.

`is_ready` finds the functions that a superstep would call. They are compiled from the
types of their arguments alone, before the first call. A call with other types compiles
again, so that a wrong type here costs time and never changes a result.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from featgraph.base.config import config
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import CompilationWarning
from featgraph.base.interrupts import (
    BACKGROUND,
    Stopped,
    deferred_interrupts,
    import_whole,
    stop_threads,
    stops_at_exit,
)
from featgraph.base.store import is_stored
from featgraph.fold.compiling.kernel import Kernel
from featgraph.runtime.devices.cpu_sweeps import is_single_threaded
from featgraph.runtime.devices.protocol import BoundEntry, RowKernel
from featgraph.runtime.superstep.frontier import Frontier
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["COMPILER", "LONG", "CompileQueue", "Job", "is_ready"]

#: Supersteps after which jobs are compiled while the run goes on: by then it has
#: compiled all kernels that it cannot do without.
LONG = 32
#: Time, in s, without a compilation in any run before a job with `firsts` begins: an
#: algorithm compiles its last kernels soon after its loop.
QUIET_S = 0.25
#: Switch interval of the interpreter, in s, while the thread compiles. A search on a
#: GPU releases the interpreter lock a hundred times, and waited for it 5 ms, Python's
#: default interval, each time.
_KEEPS_S = 1e-4

Part = Callable[[], Any]


class Job:
    """A kernel to compile in the background.

    Parameters
    ----------
    what : str
        Name of the kernel, for a warning.
    prepare : callable
        Returns functions that compile the kernel part by part. It is called on the
        thread of a run and may print modules: two threads that build syntax trees at a
        time end in a SystemError of Python 3.11, up to 3.11.4.
    firsts : callable, optional
        Returns how many kernels runs may have compiled so far. The job begins once this
        number has not changed for `QUIET_S`.

    Attributes
    ----------
    is_queued : bool
        Whether the job has been added to a queue.
    is_done : bool
        Whether the kernel has been compiled.
    error : Exception or None
        The error that compiling raised.
    """

    def __init__(
        self,
        what: str,
        prepare: Callable[[], Sequence[Part]],
        firsts: Callable[[], int] | None = None,
    ) -> None:
        self.what = what
        self.prepare, self.firsts = prepare, firsts
        self.is_queued = self.is_done = False
        self.error: Exception | None = None


class CompileQueue:
    """A queue of jobs, and a thread that compiles them until the queue is empty.

    Attributes
    ----------
    ended : int
        Number of jobs that have been compiled or have failed.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._changed = threading.Condition()
        #: Added jobs whose parts are not prepared.
        self._added: list[Job] = []
        self._queue: deque[tuple[Job, Sequence[Part]]] = deque()
        self._current: Job | None = None
        #: Failed jobs that no warning has named yet.
        self._failed: list[Job] = []
        self._thread: threading.Thread | None = None
        self._is_over = False
        #: Number of callers of `wait`.
        self._waiting = 0

    @property
    def is_idle(self) -> bool:
        """Whether every job of the queue has ended."""
        return not self._added and not self._queue and self._current is None

    def add(self, job: Job) -> None:
        """Add a job, once; it is compiled from the next `begin` on."""
        if job.is_queued:
            return
        job.is_queued = True
        with self._changed:
            self._added.append(job)

    def begin(self) -> None:
        """Start compiling all added jobs, without waiting for them.

        It is called on the thread of a run, which warns of jobs that have failed.
        """
        self._warn_of_failures()
        if not self._added:
            return
        with self._changed:
            added, self._added = self._added, []
        # An interrupt between taking a job from one list and adding it to the other
        # would lose the job.
        with deferred_interrupts():
            for job in added:
                try:
                    parts = job.prepare()
                except Exception as error:  # the run goes on without the kernel
                    self._fail(job, error)
                    continue
                with self._changed:
                    self._queue.append((job, parts))
            self._start()

    def wait(self) -> None:
        """Wait until all added jobs have been compiled or have failed."""
        self.begin()
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                while self._queue or self._current is not None:
                    self._changed.wait()
            finally:
                self._waiting -= 1
        self._warn_of_failures()

    def stop(self) -> None:
        """Drop all jobs and stop the thread, at the end of the process."""
        with self._changed:
            self._is_over = True
            self._added.clear()
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            stop_threads(thread)

    def forget_thread(self) -> None:
        """Queue unfinished jobs again in a forked child, which has no such thread."""
        self._changed = threading.Condition()
        left = [job for job, _ in self._queue]
        if self._current is not None:
            left.insert(0, self._current)
        self._added = left + self._added
        self._queue, self._current, self._thread = deque(), None, None
        self._waiting = 0

    def _fail(self, job: Job, error: Exception) -> None:
        """Store the error of a job, of which the next `begin` warns."""
        with self._changed:
            job.error, job.prepare = error, tuple
            self._failed.append(job)

    def _warn_of_failures(self) -> None:
        """Warn, once, of each job that has failed."""
        while self._failed:
            job = self._failed.pop()
            warnings.warn(
                f"{job.what} could not be compiled; runs go on without it: "
                f"{type(job.error).__name__}: {job.error}",
                CompilationWarning,
                stacklevel=4,
            )

    def _start(self) -> None:
        """Start the thread, unless it runs or nothing is left for it."""
        with self._changed:
            if self._thread is not None or not self._queue or self._is_over:
                return
            # A daemon, so that the interpreter's exit calls `stop` and does not wait.
            self._thread = threading.Thread(
                target=self._work, name=BACKGROUND, daemon=True
            )
            stops_at_exit(self._thread, lambda: self._current is not None)
            self._thread.start()

    def _work(self) -> None:
        """Compile jobs until the queue is empty; the target of the thread."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _KEEPS_S))
        ours = sys.getswitchinterval()
        try:
            while self._compile_next():
                pass
        except Stopped:
            pass
        finally:
            if sys.getswitchinterval() == ours:  # unless other code has set one
                sys.setswitchinterval(before)

    def _compile_next(self) -> bool:
        """Compile the first job of the queue; return False if the queue is empty."""
        with self._changed:
            if not self._queue:
                self._thread = None
                self._changed.notify_all()
                return False
            job, parts = self._queue.popleft()
            self._current = job
        try:
            self._wait_for_quiet(job)
            for part in parts:
                part()
            job.is_done = True
            job.prepare = tuple  # frees what the closure refers to
        except Exception as error:
            self._fail(job, error)
        finally:
            with self._changed:
                self._current = None
                self.ended += 1
                self._changed.notify_all()
        return True

    def _wait_for_quiet(self, job: Job) -> None:
        """Wait until runs have compiled nothing for `QUIET_S`, or `wait` is called."""
        before, now = None, job.firsts and job.firsts()
        with self._changed:
            while now != before and not self._waiting and not self._is_over:
                self._changed.wait_for(lambda: self._waiting or self._is_over, QUIET_S)
                before, now = now, job.firsts and job.firsts()
            if self._is_over:
                raise Stopped


#: The queue of this process.
COMPILER = CompileQueue()
atexit.register(COMPILER.stop)
# Runs before `stop` (last in, first out): another thread may hold the lock that `stop`
# waits for.
atexit.register(stop_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COMPILER.forget_thread)


#: Kernel -> key of forms and sets -> job; None if all functions are compiled.
_jobs: WeakKeyDictionary[Kernel, dict[tuple[object, ...], Job | None]] = (
    WeakKeyDictionary()
)


def is_ready(
    superstep: Superstep,
    frontier_forms: Sequence[str],
    *,
    with_sets: bool = False,
    queues: bool = True,
) -> bool:
    """Whether a superstep of vertex and push phases runs without a long compilation.

    Parameters
    ----------
    superstep : Superstep
    frontier_forms : sequence of str
        The frontier form of the kernel of each phase.
    with_sets : bool, optional
        Include the functions that find due vertices (CPU).
    queues : bool, optional
        Queue a job for the functions that are not compiled.
    """
    if not config.compile_behind:
        return True
    jobs = _jobs.setdefault(superstep.kernel, {})
    # A graph of one chunk is swept by another function than one of several.
    are_cut = [entry.is_cut for entry in _entries(superstep, frontier_forms)]
    key = (*frontier_forms, with_sets, *are_cut)
    if key not in jobs:
        functions = functions_of(superstep, frontier_forms)
        if with_sets:
            functions += set_functions_of(superstep)
        missing = [f.compile for f in functions if not f.is_compiled]
        made = Job(repr(superstep.kernel), lambda: missing, _firsts(superstep.device))
        jobs[key] = made if missing else None
    job = jobs[key]
    if job is None:
        return True
    if queues:
        COMPILER.add(job)
    return job.is_done


def _firsts(device: Any) -> Callable[[], int] | None:
    """Return `Job.firsts` for a GPU; None on the CPU, where jobs begin at once."""
    return None if device.name == "cpu" else lambda: int(device.launches.firsts)


def _entries(superstep: Superstep, frontier_forms: Sequence[str]) -> list[BoundEntry]:
    """Return the entries of all phases, each phase in its frontier form."""
    pairs = zip(superstep.phases, frontier_forms, strict=True)
    return [entry for own, form in pairs for entry in own.entries(form)]


#: Sets that vertex and push phases take.
_SETS = ("active_sources", "due", "passed")


@dataclass(frozen=True)
class Function:
    """A function of a kernel, with the argument types to compile it for.

    Attributes
    ----------
    is_compiled : bool
        Whether it is compiled in this process, or stored by another one.
    compile : callable
        Compiles it, on any thread.
    """

    is_compiled: bool
    compile: Callable[[], Any]


def functions_of(superstep: Superstep, frontier_forms: Sequence[str]) -> list[Function]:
    """Return the functions that vertex and push phases call in these forms."""
    bound = superstep.bound
    bound.arrive()
    entries = _entries(superstep, frontier_forms)
    if superstep.device.name == "cpu":
        data = _typeof(bound.data(Frontier(), None))
        return [f for entry in entries for f in _of_cpu(entry, data)]
    return [_of_cuda(entry, superstep) for entry in entries]


def set_functions_of(superstep: Superstep) -> list[Function]:
    """Return the functions that find due vertices and count edges (CPU)."""
    words, place = _words(), _typeof(0)
    list_, graph = _list(), superstep.bound.buffers.graph
    few = graph.kernel("reach_few", "out")
    found = [
        _numba(few.function, (words, list_, words, list_, place, *_rows(few))),
        *_of_rows(graph.kernel("reach", "out"), words),
        *_of_rows(graph.kernel("find", "in"), words),
    ]
    for along in ("in", "out"):
        count = graph.kernel("count", along)
        found.append(_numba(count.function, (words, list_, *_rows(count))))
    return found


def _of_cuda(entry: BoundEntry, superstep: Superstep) -> Function:
    """Return the CUDA function of an entry."""
    device: Any = superstep.device
    types = entry.kernel.signature(entry.entry, superstep.kernel.module)
    launches = device.launches
    function = entry.function
    is_there = launches.is_prepared(function) or is_stored(function, types)
    return Function(is_there, lambda: launches.prepare(function, types))


def _of_cpu(entry: BoundEntry, data: Any) -> list[Function]:
    """Return the functions that sweep one chunk and, if needed, all chunks."""
    signatures = import_whole("featgraph.fold.compiling.signatures")
    known = dict.fromkeys(_SETS, _words()) | {"d": data}
    known |= signatures.own_types(entry.entry)
    places, given = entry.place, entry.fill(known)
    if "swept_words" in places:
        given[places["swept_words"]] = _list()
    is_cut = entry.is_cut and not is_single_threaded()
    numba = import_whole("numba")
    types = [v if isinstance(v, numba.types.Type) else numba.typeof(v) for v in given]
    whole = [_numba(entry.function, types)] if is_cut else []
    del types[places["chunks"]]
    return [_numba(entry.sweep, (*[numba.int64] * 3, *types)), *whole]


def _of_rows(kernel: RowKernel, words: Any) -> list[Function]:
    """Return the functions of a kernel over two sets: for one chunk and for all."""
    bounds, rows = [import_whole("numba").int64] * 3, _rows(kernel)
    found = [_numba(kernel.function, (*bounds, words, words, *rows))]
    if not (kernel.is_one_chunk or is_single_threaded()):
        chunks = _typeof(kernel.chunks)
        found.append(_numba(kernel.in_chunks, (chunks, words, words, *rows)))
    return found


def _numba(function: Any, types: Sequence[Any]) -> Function:
    """Return an njit function with the types to compile it for."""
    given = tuple(types)
    is_there = given in function.overloads or is_stored(function, given)
    return Function(is_there, lambda: function.compile(given))


def _rows(kernel: RowKernel) -> list[Any]:
    return [_typeof(array) for array in kernel.rows]


def _words() -> Any:
    """Return the Numba type of a vertex set."""
    return import_whole("numba").uint32[::1]


def _list() -> Any:
    """Return the Numba type of a list of word indices."""
    return import_whole("numba").int64[::1]


def _typeof(value: Any) -> Any:
    return import_whole("numba").typeof(value)
