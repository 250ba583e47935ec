"""Interrupts around supersteps in one compiled loop lose nothing (0018)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.runtime.devices import cpu_loops
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops.worklist import CpuQueue
from featgraph.runtime.memory.buffers import buffers_of
from tests.unit.test_cpu_queue import in_a_loop, make, record, run, same


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("supersteps", [4, 5])
def test_an_interrupt_loses_nothing(
    near: bool, supersteps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = np.arange(300)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    options: dict[str, Any] = {}
    if near:
        options["near_far"] = fg.NearFar("distance", delta=0.5)
    step, expected, _ = make("paths", graph, 5)
    begin = np.flatnonzero(expected["distance"].min(axis=1) == 0)
    with in_a_loop(-1):
        run(step, expected, active=begin)
    step, state, _ = make("paths", graph, 5)
    call = CpuQueue._call

    def interrupted(self: CpuQueue, values: list[Any]) -> Any:
        call(self, values)
        raise KeyboardInterrupt

    with in_a_loop(1 << 20, supersteps):
        monkeypatch.setattr(CpuQueue, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(step, state, active=begin, **options)
        monkeypatch.setattr(CpuQueue, "_call", call)
        assert state.superstep == supersteps
        assert not any(
            array.any()
            for (name, *_), array in buffers_of(
                state, choose_device("cpu")
            ).temporaries.items()
            if name in {"queue marks", "queue waits"}
        )
        done = run(step, state, **options)
    assert done.converged
    assert near or done.active_counts[0] > 0
    assert np.array_equal(state["distance"], expected["distance"])


@pytest.mark.parametrize("near", [False, True])
def test_an_interrupt_before_the_loop_changes_nothing(
    near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it is compiled: what is due stays due, and nothing else is."""
    graph = fg.graph.generators.grid(9, 7)
    options: dict[str, Any] = {}
    if near:
        options["near_far"] = fg.NearFar("distance", delta=0.5)
    step, expected, _ = make("paths", graph, 5)
    _, state, _ = make("paths", graph, 5)

    begin = np.flatnonzero(expected["distance"].min(axis=1) == 0)

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with in_a_loop(1 << 20):
        whole = run(step, expected, active=begin, **options)
        with monkeypatch.context() as patched:
            patched.setattr(CpuQueue, "_call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(step, state, active=begin, **options)
        assert state.superstep == 0
        done = run(step, state, **options)
    assert done.supersteps > 1
    assert set(done.directions) == {"push"}  # all threads pull what is due everywhere
    assert record(done) == record(whole)
    same(state, expected)


@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize("name", ["fill_set", "fill_waiting"])
def test_an_interrupt_behind_the_loop_loses_no_vertex(
    name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    graph = fg.Graph.from_edges(*rng.integers(0, 300, (2, 900)), vertex_count=300)
    options: dict[str, Any] = {"near_far": fg.NearFar("distance", delta=0.5)}
    step, expected, _ = make("paths", graph, 5)
    _, state, _ = make("paths", graph, 5)
    begin = np.flatnonzero(expected["distance"].min(axis=1) == 0)
    calls: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return filling(*arguments)

    filling = getattr(cpu_loops, name)
    with in_a_loop(1 << 20, 2):
        run(step, expected, active=begin, **options)
        with monkeypatch.context() as patched:
            patched.setattr(cpu_loops, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(step, state, active=begin, **options)
        assert state.superstep > 0
        assert run(step, state, **options).converged
    assert np.array_equal(state["distance"], expected["distance"])
