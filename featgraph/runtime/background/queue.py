"""What is compiled behind runs: one queue, and the thread that goes through it (0045).

A run that could do with a kernel which does not exist goes on without it, and asks for
it here. Compiling begins when that run is over, or has gone on for long: the compiler
has one lock, for which a run would wait where it compiles something itself. What is for
a GPU waits until no run has compiled anything for a while: it takes seconds there.
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

from featgraph.base.errors import CompilationWarning
from featgraph.base.interrupts import (
    BACKGROUND,
    Stopped,
    deferred_interrupts,
    stop_threads,
    stops_at_exit,
)

__all__ = ["COMPILER", "LONG", "BehindRuns", "Job"]

#: Supersteps behind which a run is so long that what it has asked for is compiled while
#: it runs: it has compiled what it takes itself by then.
LONG = 32
#: So long, in s, runs have compiled nothing when a job begins that is told what they
#: do. A call of an algorithm soon runs what it runs behind its loop.
QUIET_S = 0.25
#: So long, in s, the thread keeps the interpreter while others want it. A search
#: on a GPU lets go of it a hundred times, and waited 5 ms each time it wanted it back.
_KEEPS_S = 1e-4

Part = Callable[[], Any]


class Job:
    """Something that runs do without until it is compiled.

    Parameters
    ----------
    what : str
        What it is, for a warning.
    prepare : callable
        Returns calls that compile it part by part. It is called on a thread that runs,
        and may print modules: two threads that make syntax trees at a time end in a
        SystemError of Python 3.11, up to 3.11.4.
    firsts : callable, optional
        Returns how often runs may have compiled so far. The job begins once they have
        not for `QUIET_S`.

    Attributes
    ----------
    is_asked : bool
        Whether a queue has been asked for it.
    is_done : bool
        Whether it has been compiled.
    error : Exception or None
        Why it could not be.
    """

    def __init__(
        self,
        what: str,
        prepare: Callable[[], Sequence[Part]],
        firsts: Callable[[], int] | None = None,
    ) -> None:
        self.what = what
        self.prepare, self.firsts = prepare, firsts
        self.is_asked = self.is_done = False
        self.error: Exception | None = None


class BehindRuns:
    """A queue of jobs, and a thread that goes through it while there are any.

    Attributes
    ----------
    ended : int
        How many jobs have been compiled, or could not be.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._changed = threading.Condition()
        #: What was asked for; its parts are not prepared.
        self._asked: list[Job] = []
        self._queue: deque[tuple[Job, Sequence[Part]]] = deque()
        self._current: Job | None = None
        #: Of which no one has been told.
        self._failed: list[Job] = []
        self._thread: threading.Thread | None = None
        self._is_over = False
        #: How many wait until all is compiled.
        self._waiting = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked for that is not compiled."""
        return not self._asked and not self._queue and self._current is None

    def ask(self, job: Job) -> None:
        """Have something compiled, once, from the next `begin` on."""
        if job.is_asked:
            return
        job.is_asked = True
        with self._changed:
            self._asked.append(job)

    def begin(self) -> None:
        """Have all that was asked for compiled; does not wait for it.

        It is called on a thread that runs, which is told what could not be compiled.
        """
        self._tell()
        if not self._asked:
            return
        with self._changed:
            asked, self._asked = self._asked, []
        # No interrupt between what was taken from one list, and is not in the other.
        with deferred_interrupts():
            for job in asked:
                try:
                    parts = job.prepare()
                except Exception as error:  # the run that asked does without
                    self._fail(job, error)
                    continue
                with self._changed:
                    self._queue.append((job, parts))
            self._start()

    def wait(self) -> None:
        """Wait until all that was asked for is compiled, or could not be."""
        self.begin()
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                while self._queue or self._current is not None:
                    self._changed.wait()
            finally:
                self._waiting -= 1
        self._tell()

    def stop(self) -> None:
        """Give up what is not compiled, for the process ends."""
        with self._changed:
            self._is_over = True
            self._asked.clear()
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            stop_threads(thread)

    def forget_thread(self) -> None:
        """Go on in a child of a fork, which has no thread: ask for its jobs again."""
        self._changed = threading.Condition()
        left = [job for job, _ in self._queue]
        if self._current is not None:
            left.insert(0, self._current)
        self._asked = left + self._asked
        self._queue, self._current, self._thread = deque(), None, None
        self._waiting = 0

    def _fail(self, job: Job, error: Exception) -> None:
        with self._changed:
            job.error, job.prepare = error, tuple
            self._failed.append(job)

    def _tell(self) -> None:
        """Warn, once, of each job that has failed."""
        while self._failed:
            job = self._failed.pop()
            warnings.warn(
                f"{job.what} could not be compiled, and runs go on without: "
                f"{type(job.error).__name__}: {job.error}",
                CompilationWarning,
                stacklevel=4,
            )

    def _start(self) -> None:
        """Start the thread, unless it runs or nothing is left for it."""
        with self._changed:
            if self._thread is not None or not self._queue or self._is_over:
                return
            # A daemon, so that Python's end reaches `stop` and does not wait for it.
            self._thread = threading.Thread(
                target=self._work, name=BACKGROUND, daemon=True
            )
            stops_at_exit(self._thread, lambda: self._current is not None)
            self._thread.start()

    def _work(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _KEEPS_S))
        ours = sys.getswitchinterval()
        try:
            while self._compile_next():
                pass
        except Stopped:
            pass
        finally:
            if sys.getswitchinterval() == ours:  # nobody has set another one meanwhile
                sys.setswitchinterval(before)

    def _compile_next(self) -> bool:
        """Compile what is first in the queue; False if it is empty."""
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
            job.prepare = tuple  # what it holds may go
        except Exception as error:
            self._fail(job, error)
        finally:
            with self._changed:
                self._current = None
                self.ended += 1
                self._changed.notify_all()
        return True

    def _wait_for_quiet(self, job: Job) -> None:
        """Wait until runs compile nothing, unless someone waits for the job."""
        before, now = None, job.firsts and job.firsts()
        with self._changed:
            while now != before and not self._waiting and not self._is_over:
                self._changed.wait_for(lambda: self._waiting or self._is_over, QUIET_S)
                before, now = now, job.firsts and job.firsts()
            if self._is_over:
                raise Stopped


#: That of this process.
COMPILER = BehindRuns()
atexit.register(COMPILER.stop)
# Before it: another thread may hold the lock for which this one waits.
atexit.register(stop_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COMPILER.forget_thread)
