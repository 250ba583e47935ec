"""The assumed cost of launching a recorded superstep from the host."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.recording import cuda_trace
from featgraph.runtime.recording.cuda_trace import RecordedSuperstep

#: A kernel, and the read of a count behind it.
OPERATIONS = (("set_words", 64, 0, 1), ("read", 8, 64, 8))


class Made:
    """Operations that take no time."""

    def __init__(self, operations: Any, *, beside: bool) -> None:
        del operations, beside

    def launch(self, behind: Any = None) -> None: ...

    def wait(self) -> None: ...


@pytest.fixture
def superstep(monkeypatch: pytest.MonkeyPatch) -> RecordedSuperstep:
    monkeypatch.setattr(cuda_trace.time, "perf_counter", lambda: 0.0)
    landed = np.zeros(cuda_trace.LANDED, np.int64)
    return RecordedSuperstep(OPERATIONS, landed, Made, Made)


def test_a_superstep_with_none_behind_it_costs_more(
    superstep: RecordedSuperstep,
) -> None:
    """The device waits, too, so that a loop pays sooner."""
    lost = []
    for is_last in (False, True, False, True):
        superstep.launch()
        superstep.wait(is_last=is_last)
        lost.append(superstep.lost)
    few, many = lost[0], lost[1] - lost[0]
    assert 0 < 4 * few < many
    np.testing.assert_allclose(np.diff(lost), [many, few, many])


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 1.0])
def test_ranks_make_graphs_behind_as_many_launches(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """However long each takes there: what one makes all others wait for."""
    clock, made = itertools.count(), []
    monkeypatch.setattr(cuda_trace.time, "perf_counter", lambda: next(clock) * seconds)
    landed = np.zeros(cuda_trace.LANDED, np.int64)

    def record(operations: Any, *, beside: bool) -> Made:
        made.append(len(launches))
        return Made(operations, beside=beside)

    launches: list[float] = []
    operations = (OPERATIONS[0], (cuda_trace.TURN, None), OPERATIONS[1])
    superstep = RecordedSuperstep(operations, landed, Made, record)
    monkeypatch.setattr(RecordedSuperstep, "recording_seconds", seconds)
    for _ in range(20):
        superstep.launch()
        superstep.wait(is_last=True)
        launches.append(superstep.lost)
    assert made == [10]
    np.testing.assert_allclose(np.diff(launches), launches[0])
