"""Loopback ranks: in turn, repeatable, and never left waiting for each other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import Engine, current_engine, run_ranks
from featgraph.ranks.engines.loopback import _Baton
from tests.strategies import seeds


def rank_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("featgraph rank")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in rank_threads():
        thread.join(10)
    assert not rank_threads()


@given(st.integers(1, 5), seeds)
def test_ranks_run_in_turn(size: int, seed: int) -> None:
    rounds = int(np.random.default_rng(seed).integers(0, 4))
    log = []

    def program(engine: Engine) -> None:
        for number in range(rounds):
            log.append((number, engine.rank))
            engine.barrier()
        log.append((rounds, engine.rank))

    run_ranks(size, program)
    assert log == [(n, rank) for n in range(rounds + 1) for rank in range(size)]


def test_one_rank_runs_at_a_time() -> None:
    running = threading.Lock()

    def program(engine: Engine) -> None:
        for _ in range(20):
            assert running.acquire(blocking=False)
            sum(range(20_000))  # long enough for Python to switch threads
            running.release()
            engine.barrier()

    run_ranks(3, program)


def test_code_finds_the_engine_of_its_rank() -> None:
    assert current_engine().size == 1

    def program(engine: Engine) -> bool:
        engine.barrier()
        inner = run_ranks(2, lambda e: (e is current_engine(), e.size))
        return inner == [(True, 2)] * 2 and current_engine() is engine

    assert run_ranks(3, program) == [True] * 3
    assert current_engine().size == 1


def test_settings_of_the_caller_hold_on_ranks() -> None:
    def divide(engine: Engine) -> float:
        return float(np.ones(1)[0] / np.zeros(1)[0])

    with np.errstate(divide="ignore"):
        assert run_ranks(2, divide) == [np.inf] * 2


WAYS: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "another call": (
        lambda e: e.barrier(),
        r"barrier\(\), its exchange 2",
    ),
    "another operator": (
        lambda e: e.all_reduce(np.ones(3), "min"),
        r"all_reduce\(min of float64\[3\]\), its exchange 2",
    ),
    "another size": (
        lambda e: e.all_reduce(np.ones(4), "sum"),
        r"all_reduce\(sum of float64\[4\]\), its exchange 2",
    ),
    "another dtype": (
        lambda e: e.all_reduce(np.ones(3, "f4"), "sum"),
        r"all_reduce\(sum of float32\[3\]\), its exchange 2",
    ),
    "another purpose": (
        lambda e: e.all_reduce(np.ones(3), "sum", about="degrees"),
        r"all_reduce\(sum of float64\[3\]\), its exchange 2, for degrees",
    ),
    "one call more": (
        lambda e: (e.all_reduce(np.ones(3), "sum"), e.barrier()),
        "rank 2 calls barrier",
    ),
    "an early return": (
        lambda e: None,
        "rank 2 has come to its end, after 1 exchange",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_went_different_ways_are_named(way: str) -> None:
    call, text = WAYS[way]
    seen: dict[int, str] = {}

    def program(engine: Engine) -> None:
        engine.barrier()
        try:
            if engine.rank == 2:
                call(engine)
            else:
                engine.all_reduce(np.ones(3), "sum")
        except fg.RankMismatchError as error:
            seen[engine.rank] = str(error)
            raise

    with pytest.raises(fg.RankMismatchError, match=text) as raised:
        run_ranks(4, program)
    shown = str(raised.value)
    assert "rank 2 went another way than ranks 0, 1 and 3" in shown
    assert raised.value.rank == 2
    if way == "one call more":
        assert "ranks 0, 1 and 3 have come to their end, after 2 exchanges" in shown
    else:
        assert "ranks 0, 1 and 3 call all_reduce(sum of float64[3]), its ex" in shown
        assert set(seen) == ({0, 1, 3} if way == "an early return" else {0, 1, 2, 3})
    assert set(seen.values()) == {shown}


def test_arrays_for_ranks_must_have_rows_alike() -> None:
    def program(engine: Engine) -> None:
        rows = np.ones((2, 3 + engine.rank))
        engine.all_to_allv([rows, rows])

    with pytest.raises(fg.RankMismatchError, match=r"float64\[\*, 3\].*\[\*, 4\]"):
        run_ranks(2, program)


@given(st.integers(2, 5), seeds)
def test_what_one_rank_raises_ends_all(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    failing, at = int(rng.integers(size)), int(rng.integers(4))
    seen: dict[int, fg.WorkerLostError] = {}

    def program(engine: Engine) -> None:
        for number in range(5):
            if engine.rank == failing and number == at:
                raise ValueError(f"row {number} is bad")
            try:
                engine.barrier()
            except fg.WorkerLostError as error:
                seen[engine.rank] = error
                raise

    with pytest.raises(ValueError, match=f"row {at} is bad") as raised:
        run_ranks(size, program)
    assert raised.value.__notes__ == [f"on rank {failing} of {size}"]
    # Ranks behind it that had not begun never do.
    late = range(failing + 1, size) if at == 0 else range(0)
    assert set(seen) == set(range(size)) - {failing} - set(late)
    for error in seen.values():
        assert error.rank == failing
        assert f"rank {failing} of {size} failed" in str(error)
        assert f"ValueError: row {at} is bad" in str(error)


def test_an_engine_takes_no_call_behind_a_failure() -> None:
    def program(engine: Engine) -> int:
        if engine.rank == 1:
            raise KeyError("x")
        caught = 0
        for _ in range(3):
            try:
                engine.barrier()
            except fg.WorkerLostError:
                caught += 1
        assert caught == 3
        return caught

    with pytest.raises(KeyError):
        run_ranks(2, program)


def test_a_mismatch_may_be_caught() -> None:
    def program(engine: Engine) -> str:
        try:
            engine.barrier(about=str(engine.rank))
        except fg.RankMismatchError:
            return "caught"
        return "missed"

    assert run_ranks(3, program) == ["caught"] * 3


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_interrupt_ends_all_ranks(rank: int) -> None:
    interrupted, sent = [], []

    def program(engine: Engine) -> None:
        try:
            engine.barrier()
            while True:
                if engine.rank == rank and not sent:
                    sent.append(True)
                    os.kill(os.getpid(), signal.SIGINT)
                engine.barrier()
        except KeyboardInterrupt:
            interrupted.append(engine.rank)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_ranks(3, program)
    assert sorted(interrupted) == [0, 1, 2]


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_does_not_wait() -> None:
    go_on = threading.Event()

    class Twice(_Baton):
        @property
        def refusal(self) -> Any:
            return self.__dict__.get("refusal")

        @refusal.setter
        def refusal(self, value: Any) -> None:
            self.__dict__["refusal"] = value
            if value is not None:
                os.kill(os.getpid(), signal.SIGINT)

    def program(engine: Engine) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert go_on.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featgraph.ranks.engines.loopback._Baton", Twice)
        with pytest.raises(KeyboardInterrupt):
            run_ranks(2, program)
    assert rank_threads()  # they end at their next exchange
    go_on.set()


def test_an_engine_is_used_by_its_rank_alone() -> None:
    kept: list[Engine] = []

    def lend(engine: Engine) -> None:
        kept.append(engine)
        engine.barrier()
        if engine.rank == 1:
            with pytest.raises(fg.DistributedError, match="outside of its rank"):
                kept[0].barrier()

    run_ranks(2, lend)
    with pytest.raises(fg.DistributedError, match="outside of its rank"):
        kept[0].barrier()


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (0, "size out of range"),
        (-1, "size out of range"),
        (2.0, "not an integer"),
        (True, "not an integer"),
        (None, "not an integer"),
    ],
)
def test_what_is_no_number_of_ranks(size: Any, what: str) -> None:
    with pytest.raises(fg.ArgumentError, match=f"size=: {what}\n"):
        run_ranks(size, lambda engine: None)
