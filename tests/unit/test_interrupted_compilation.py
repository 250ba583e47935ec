"""An interrupt while a kernel is compiled is raised at once, and breaks nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from tests.strategies import examples

#: Makes each program another one, whose kernel nothing has compiled.
_numbers = count(1)
_GRAPH = fg.Graph.from_edges([0, 1], [1, 0])


def make(number: int) -> Any:
    @fg.gather(into="low", combine="min")
    def lowest(f, u, v, e, d):
        return d.x[u] + number

    @fg.vertex
    def lower(f, v, d):
        d.x_next[v] = min(d.x[v], d.low[v])
        return d.low[v] < d.x[v]

    return fg.foldmap(lowest, lower)


def distances(step: Any, **options: Any) -> list[float]:
    state = fg.State(_GRAPH, x=fg.vertex_property([0.0, 1e9], iterated=True))
    fg.iterate(step, state, target="cpu", **options)
    return state["x"].tolist()  # type: ignore[no-any-return]


class Events:
    """Interrupts the process at one of the events that it counts.

    On the thread of the compiler it goes on once the interrupt has been raised on the
    main one, so a caller that hears of it only when all is compiled fails.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted, self.count = wanted, 0
        self.raised = threading.Event()

    def happen(self) -> None:
        self.count += 1
        if self.count == self.wanted:
            os.kill(os.getpid(), signal.SIGINT)
            if threading.current_thread() is not threading.main_thread():
                assert self.raised.wait(60)

    def on_start(self, _: Any) -> None:
        self.happen()

    on_end = on_start

    def profile(self, frame: FrameType, kind: str, _: Any) -> None:
        if kind == "call":
            self.happen()


@contextmanager
def llvm_events(events: Events) -> Iterator[None]:
    """Count modules that LLVM hands over through ctypes, which drops exceptions."""
    from numba.core.registry import cpu_target

    engine = cpu_target.target_context.codegen()._engine
    notify = engine._ee._object_cache_notify

    def hand_over(*arguments: Any) -> Any:
        events.happen()
        return notify(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._ee, "_object_cache_notify", hand_over)
        yield


@contextmanager
def compiler_events(events: Events) -> Iterator[None]:
    """Count passes of the compiler, and what LLVM hands over."""
    from numba.core import event

    class Passes(event.Listener):  # type: ignore[misc]
        on_start, on_end = events.on_start, events.on_end

    passes = Passes()
    event.register("numba:run_pass", passes)
    try:
        with llvm_events(events):
            yield
    finally:
        event.unregister("numba:run_pass", passes)


@contextmanager
def caller_events(events: Events) -> Iterator[None]:
    """Count calls of functions of Python on the thread that waits for the compiler."""
    sys.setprofile(events.profile)
    try:
        yield
    finally:
        sys.setprofile(None)


Counted = Callable[[Events], AbstractContextManager[None]]


@cache
def event_count(where: Counted, **options: Any) -> int:
    """Return how many events the first call of a program has."""
    trial = Events(-1)
    distances(make(next(_numbers)), **options)  # compiles what all programs share
    with where(trial):
        distances(make(next(_numbers)), **options)
    assert trial.count > (0 if where is llvm_events else 50)
    return trial.count


def interrupt(where: Counted, moment: float, **options: Any) -> None:
    """Interrupt the first call of a program; the next call has the right result."""
    number = next(_numbers)
    step = make(number)
    events = Events(1 + int(0.9 * moment * event_count(where, **options)))
    try:
        with where(events):
            distances(step, **options)
        assert events.count < events.wanted, "the interrupt was lost"
    except KeyboardInterrupt:
        events.raised.set()
    assert distances(step, **options) == [0, number]


@pytest.fixture(autouse=True)
def interrupts_are_raised() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_stored() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "cache", False)
        yield


@pytest.mark.parametrize("moment", [0, 1])
def test_an_interrupt_in_a_callback_of_llvm_is_not_lost(moment: float) -> None:
    interrupt(llvm_events, moment)


@pytest.mark.parametrize("options", [{}, {"asynchronous": True}])
@examples(1, 200)
@given(moment=st.floats(0, 1))
def test_an_interrupt_of_the_compiler_is_raised_at_once(
    options: dict[str, Any], moment: float
) -> None:
    interrupt(compiler_events, moment, **options)


@examples(3, 200)
@given(moment=st.floats(0, 1))
def test_an_interrupt_of_the_caller_is_raised_at_once(moment: float) -> None:
    interrupt(caller_events, moment)
