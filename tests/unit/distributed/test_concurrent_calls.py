"""Concurrent calls on a background thread: results, errors, interrupts, release."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from featgraph.ranks.engines.processes import ConcurrentCalls, Released


@pytest.fixture
def aside() -> Iterator[ConcurrentCalls]:
    made = ConcurrentCalls("aside of a test")
    yield made
    made.close(20)
    names = [thread.name for thread in threading.enumerate()]
    assert "aside of a test" not in names


def test_a_call_returns_and_raises(aside: ConcurrentCalls) -> None:
    here = threading.get_ident()
    assert aside.run(threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        aside.run(lambda: 1 // 0)
    assert aside.run(lambda: 7) == 7


def test_nothing_of_a_call_is_kept(aside: ConcurrentCalls) -> None:
    message = np.zeros(8)
    known = weakref.ref(message)

    def call(held: Any = message) -> int:
        return int(held.size)

    assert aside.run(call) == 8
    aside.run(lambda: None)  # the thread has left the one before
    del message, call
    assert known() is None


def test_waiting_ranks_are_released(aside: ConcurrentCalls) -> None:
    begun, ends, found = threading.Event(), threading.Event(), []

    def wait() -> None:
        try:
            aside.run(lambda: begun.set() or ends.wait(20))
        except Released as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(20)
    aside.release()
    thread.join(20)
    assert not thread.is_alive()
    assert len(found) == 1
    with pytest.raises(Released):
        aside.run(lambda: 7)
    aside.close(0)  # which does not wait for the call
    ends.set()


def test_an_interrupted_call_gives_the_next_one_nothing(aside: ConcurrentCalls) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    ends, before = threading.Event(), signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None

    def call() -> int:
        signal.pthread_kill(main, signal.SIGUSR1)
        ends.wait(20)
        return 1

    try:
        with pytest.raises(KeyboardInterrupt):
            aside.run(call)
    finally:
        signal.signal(signal.SIGUSR1, before)
    ends.set()
    assert aside.run(lambda: 2) == 2
