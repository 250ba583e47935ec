"""Trials, warmed up and interleaved: a drift of the machine affects all equally."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np


def _nothing() -> None: ...


class Budget:
    """The time that a bench has, and lines with the time that has passed.

    Parameters
    ----------
    seconds : float, optional
        Behind these, nothing starts.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._begun, self._seconds = time.perf_counter(), seconds

    @property
    def passed(self) -> float:
        """The s since the beginning."""
        return time.perf_counter() - self._begun

    @property
    def left(self) -> float:
        """The s that are left."""
        return self._seconds - self.passed

    def print(self, text: str) -> None:
        """Print a line with the time."""
        print(f"[{self.passed:6.1f} s] {text}", flush=True)

    def allows(self, cell: str, share: float = 1.0) -> bool:
        """Return whether a cell may start within a share of the time; print if not."""
        is_time = self.passed <= share * self._seconds
        if not is_time:
            self.print(f"no time left for {cell}")
        return is_time


@dataclass
class Contender:
    """A call that is timed in turn with others.

    Attributes
    ----------
    name : str
    call : callable
        The timed region.
    before : callable
        Outside it, before each trial: resets the state.
    threads : int or None
        Numba's threads during the call.
    fields : dict
        Further fields of its line.
    trials : list of float
        ms, by `interleave`.
    answer : object
        The last result of the call.
    """

    name: str
    call: Callable[[], Any]
    before: Callable[[], Any] = _nothing
    threads: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    trials: list[float] = field(default_factory=list)
    answer: Any = None

    def run(self) -> None:
        """Call, and keep the answer."""
        self.answer = self.call()

    def time_both(self, target: str) -> Any:
        """Return ms by both clocks; the earlier answer is freed before."""
        self.answer = None
        return time_both(self.run, target)


def with_answers(result: Any) -> Any:
    """Return an algorithm's result when its answers have been read.

    They are arrays of the host then, as those of peers are.
    """
    if is_dataclass(result):
        for answer in fields(result):
            getattr(result, answer.name)
    return result


def join_compilers() -> None:
    """Wait until kernels that are compiled behind runs are there for later ones."""
    from featgraph.runtime.loops.background import COMPILER

    COMPILER.wait()


def wait_for_gpu(target: str) -> None:
    """Wait until the GPU is idle, if that is the target."""
    if target == "cuda":
        from featgraph.cuda.dialect import cuda

        cuda.synchronize()


def time_call(call: Callable[[], Any]) -> float:
    """Return the wall time of a call in ms."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def time_both(call: Callable[[], Any], target: str = "cpu") -> Any:
    """Return ms of a call until the target is idle, by the clock and of processors."""
    begun = np.array([time.perf_counter(), time.process_time()])
    call()
    wait_for_gpu(target)
    return ([time.perf_counter(), time.process_time()] - begun) * 1e3


def by_clocks(taken: list[Any]) -> tuple[list[float], dict[str, float]]:
    """Return trials of `time_both` by the clock, and the median of processors' time."""
    clock, processors = np.array(taken).T
    return clock.tolist(), {"processor_ms": float(np.median(processors))}


def interleave(contenders: list[Contender], repeat: int, warm_up: int = 2) -> None:
    """Add the trials and the last answer to each contender; one trial each in turn."""
    import numba

    most = numba.get_num_threads()
    for number in range(warm_up + repeat):
        for contender in contenders:
            contender.before()
            contender.answer = None  # freed outside the timed region
            numba.set_num_threads(contender.threads or most)
            taken = time_call(contender.run)
            join_compilers()
            numba.set_num_threads(most)
            if number >= warm_up:
                contender.trials.append(taken)


def time_calls(
    call: Callable[[], Any],
    repeat: int,
    *,
    target: str = "cpu",
    warm_up: int = 0,
    limit_s: float = math.inf,
) -> list[float]:
    """Return ms of calls until the target is idle, no further ones after `limit_s`.

    Calls that warm up are not counted; behind each of them, all that was to be compiled
    is.
    """
    for _ in range(warm_up):
        time_both(call, target)
        join_compilers()
    trials: list[float] = []
    while len(trials) < repeat and sum(trials) < 1e3 * limit_s:
        wait_for_gpu(target)
        trials.append(float(time_both(call, target)[0]))
    return trials


def time_batches(
    call: Callable[[], Any],
    repeat: int,
    batch_ms: float,
    *,
    least: int = 2,
    reset: Callable[[], Any] | None = None,
    limit_s: float = math.inf,
) -> tuple[list[float], list[float], int]:
    """Return device ms and host ms of a call, trial by trial, and calls of a trial.

    A trial is a batch of calls back to back: as many as take about `batch_ms`, at least
    `least` and at most 20. Trials of more than `limit_s` end.
    """
    once = max(time_events(call, least)[0], 1e-3)
    launches = int(max(least, min(20, batch_ms / once)))
    both: list[tuple[float, float]] = []
    budget = Budget(limit_s)
    while len(both) < repeat and (not both or budget.left >= 0):
        if reset is not None:
            reset()
            call()  # uploads values that were reset
        both.append(time_events(call, launches))
    return [b[0] for b in both], [b[1] for b in both], launches


def time_events(call: Callable[[], Any], launches: int) -> tuple[float, float]:
    """Return (device ms, host ms) of one of so many calls back to back.

    The first is between two events on the default stream, with host time that is
    not hidden; the second is the host's time to submit.
    """
    from featgraph.cuda.dialect import cuda

    begin, end = cuda.event(timing=True), cuda.event(timing=True)
    cuda.synchronize()
    started = time.perf_counter()
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    host = (time.perf_counter() - started) * 1e3
    end.synchronize()
    return cuda.event_elapsed_time(begin, end) / launches, host / launches
