"""Reports of a bench on slow calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from bench.distributed import tracing
from bench.distributed.tracing import Tracer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(tracing.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def driver(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made: Any = ModuleType("some_driver")

    def takes(seconds: float) -> int:
        clock[0] += seconds
        return 0

    made.cuMemAlloc = takes
    made.cuLaunchKernel = takes
    made.cuuint64_t = int
    monkeypatch.setitem(sys.modules, "some_driver", made)
    return made


@pytest.fixture
def tracer(driver: ModuleType) -> Iterator[Tracer]:
    made = Tracer(["some_driver"])
    yield made
    gc.callbacks.remove(made._collected)


def test_calls_and_gaps_that_take_long_are_told(
    driver: Any, tracer: Tracer, clock: list[float]
) -> None:
    driver.cuMemAlloc(1.0)  # before it is asked to look
    tracer.begin()
    driver.cuLaunchKernel(1e-5)
    driver.cuMemAlloc(0.01)
    clock[0] += 0.5
    assert driver.cuLaunchKernel(1e-5) == 0
    told = tracer.end()
    assert told["counts"] == {"cuLaunchKernel": 2, "cuMemAlloc": 1}
    alloc, gap = told["events"]
    assert alloc[1:3] == [pytest.approx(10.0), "cuMemAlloc"]
    assert gap[1:3] == [pytest.approx(500.0), "nothing before cuLaunchKernel"]
    assert "test_calls_and_gaps_that_take_long_are_told" in gap[3]
    assert told["spent_ms"] == {"cuMemAlloc": pytest.approx(10.0)}


def test_what_was_told_is_not_told_again(driver: Any, tracer: Tracer) -> None:
    tracer.begin()
    driver.cuMemAlloc(1.0)
    assert tracer.end()["events"]
    tracer.begin()
    assert tracer.end() == {"counts": {}, "spent_ms": {}, "events": []}


def test_collections_are_told(
    tracer: Tracer, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer.begin()
    tracer._collected("start", {"generation": 2})
    clock[0] += 0.3
    tracer._collected("stop", {"generation": 2})
    told = tracer.end()
    assert told["counts"]["collector 2"] == 1
    assert [event[2] for event in told["events"]] == ["collector 2"]
