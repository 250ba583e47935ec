"""Trials: warmed up, taken in turn, so that a drift of the machine meets all alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

__all__ = [
    "Contender",
    "interleave",
    "join_compilers",
    "time_call",
    "time_events",
    "wait_for_gpu",
    "with_answers",
]


def _nothing() -> None: ...


@dataclass
class Contender:
    """What is timed.

    Attributes
    ----------
    name : str
    call : callable
        The timed region.
    before : callable
        Outside it, before each trial: resets the state.
    threads : int or None
        Numba's threads during the call.
    """

    name: str
    call: Callable[[], Any]
    before: Callable[[], Any] = _nothing
    threads: int | None = None


def with_answers(result: Any) -> Any:
    """Return an algorithm's result when its answers have been read.

    They are arrays of the host then, as those of peers are.
    """
    if is_dataclass(result):
        for answer in fields(result):
            getattr(result, answer.name)
    return result


def join_compilers() -> None:
    """Wait for what is compiled behind runs, which later ones take."""
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


def interleave(
    contenders: list[Contender], repeat: int, warm_up: int = 2
) -> dict[tuple[str, int | None], list[float]]:
    """Return ms of each trial, by name and threads; one trial of each in turn."""
    import numba

    trials: dict[tuple[str, int | None], list[float]] = {
        (c.name, c.threads): [] for c in contenders
    }
    most = numba.get_num_threads()
    for number in range(warm_up + repeat):
        for contender in contenders:
            contender.before()
            numba.set_num_threads(contender.threads or most)
            taken = time_call(contender.call)
            join_compilers()
            numba.set_num_threads(most)
            if number >= warm_up:
                trials[contender.name, contender.threads].append(taken)
    return trials


def time_events(call: Callable[[], Any], launches: int) -> tuple[float, float]:
    """Return (device ms, host ms) of one of so many calls back to back.

    The first is between two events on the default stream, which holds what the host
    could not hide, too; the second is what the host took to submit.
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
