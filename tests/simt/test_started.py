"""Runs that begin with a recorded loop have the results of runs by the host."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base.config import config
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.loops import replay
from featgraph.runtime.loops import replay as started_module
from featgraph.runtime.loops.replay import StartedLoop
from featgraph.runtime.recording.control import DeviceLoop
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_watched_loops import VERTICES, have_loops, weigh

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """Count what runs: whatever runs for nothing, or twice, is seen."""
    d.runs[v] = d.runs[v] + 1
    d.x_next[v, f] = d.base[v, f] + d.mean[v, f] * d.share
    return abs(d.x_next[v, f] - d.x[v, f]) > d.least[v]


@fg.reduce(into="change", combine="max")
def change(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.x_next[v, f] - d.x[v, f])


step, watched = fg.foldmap(weigh, settle), fg.foldmap(weigh, settle, change)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with emulated_gpu() as made:
        have_loops(monkeypatch)
        yield made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each run that was to begin with a loop, whether it has."""
    begun: list[bool] = []
    run = StartedLoop.run

    def note(self: StartedLoop) -> Any:
        begun.append(False)
        words = run(self)
        begun[-1] = words is not None
        return words

    monkeypatch.setattr(StartedLoop, "run", note)
    return begun


def ring() -> fg.Graph:
    ends = np.arange(VERTICES)
    return fg.Graph.from_edges(ends, (ends + 1) % VERTICES, directed=False)


def made_state(
    graph: fg.Graph, seed: int, least: float = -1.0, share: float = 1.0
) -> fg.State:
    """Return a State in which a vertex commits what moves it by more than `least`."""
    rng = np.random.default_rng(seed)
    return fg.State(
        graph,
        base=fg.vertex_property(rng.random((VERTICES, 1))),
        x=fg.vertex_property(rng.random((VERTICES, 1)), iterated=True),
        runs=fg.vertex_property(np.zeros(VERTICES, np.int32)),
        least=fg.vertex_property(np.full(VERTICES, least)), share=share,
    )  # fmt: skip


def record(state: fg.State, **options: Any) -> tuple[Any, ...]:
    """Return the values after a run, and after one that resumes from it."""
    foldmap = watched if "until" in options else step
    found: list[Any] = []
    for more in (options, {"max_supersteps": 3}):
        done = fg.iterate(foldmap, state, target="cuda", **more)
        assert len(done.seconds) == done.supersteps
        assert min(done.seconds) > 0
        found += [done.active_counts, done.converged, done.directions, state.superstep]
        found += [state["x"].tolist(), state["runs"].tolist()]
    return tuple(found)


def by_host(state: fg.State, **options: Any) -> tuple[Any, ...]:
    """Return the same without replay."""
    config.replay, before = False, config.replay
    try:
        return record(state, **options)
    finally:
        config.replay = before


def record_started(make: Any, begun: list[bool], **options: Any) -> tuple[Any, ...]:
    """Return the record of a run that has begun with a loop.

    Each State has the memory of the one before, which is gone.
    """
    for _ in range(3):
        begun.clear()
        done = record(make(), **options)
        if begun and begun[0]:
            return done
    raise AssertionError("no run has begun with a loop")


CASES = [(2, None), (5, None), (6, 0.2), (6, 9.0)]


@pytest.mark.drawn(2)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("limit", "bound"), CASES)
def test_a_run_begins_with_a_loop(
    limit: int, bound: float | None, started: list[bool]
) -> None:
    """Of other values, to any limit and bound, it leaves what the host would."""
    graph, options = ring(), {"max_supersteps": 6}
    if bound is not None:
        options["until"] = fg.below("change", -1.0)
    record_started(lambda: made_state(graph, 1), started, **options)
    options["max_supersteps"] = limit
    if bound is not None:
        options["until"] = fg.below("change", bound)
    meant = by_host(made_state(graph, 9), **options)
    found = record_started(lambda: made_state(graph, 9), started, **options)
    assert found == meant


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("least", [0.05, 9.0])
def test_vertices_that_do_not_commit_end_the_loop(
    least: float, started: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording covers all vertices; a late check changes no value."""
    graph = ring()
    for late in (0.0, np.inf):
        monkeypatch.setattr(replay, "_MOST_LATE", late)
        record_started(lambda: made_state(graph, 1), started, max_supersteps=6)
        state = made_state(graph, 5, least)
        started.clear()
        fg.iterate(step, state, target="cuda", max_supersteps=30)
        assert started[0]
        other = made_state(graph, 5, least)
        monkeypatch.setattr(config, "replay", False)
        fg.iterate(step, other, target="cuda", max_supersteps=30)
        monkeypatch.setattr(config, "replay", True)
        np.testing.assert_array_equal(state["x"], other["x"])
        assert state.superstep == other.superstep


@pytest.mark.usefixtures("gpu")
def test_what_is_put_aside_is_launched_where_it_is_something_else(
    started: list[bool],
) -> None:
    """A scalar is another one, sets are not free, or elsewhere: all is done, once."""
    graph, options = ring(), {"max_supersteps": 6}
    record_started(lambda: made_state(graph, 9), started, **options)
    for share in (0.5, 0.25):
        meant = by_host(made_state(graph, 9, share=share), **options)
        started.clear()
        assert record(made_state(graph, 9, share=share), **options) == meant
        assert True not in started[:1]
    begin = StartedLoop.__init__

    def refusing(self: StartedLoop, *given: Any) -> None:
        begin(self, *given[:-1], lambda taken, pools: False)

    for place, name, other in (
        (StartedLoop, "__init__", refusing),
        (started_module, "held_sets", lambda buffers: frozenset({("x", 5)})),
    ):
        record_started(lambda: made_state(graph, 9), started, **options)
        meant = by_host(made_state(graph, 8, 0.05), **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, other)
            started.clear()
            assert record(made_state(graph, 8, 0.05), **options) == meant
        assert started
        assert not any(started)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_a_whole_superstep(gpu: Gpu, started: list[bool]) -> None:
    """Completed supersteps are counted; a later call resumes from them."""
    graph, is_done = ring(), DeviceLoop.is_done
    record_started(lambda: made_state(graph, 9), started, max_supersteps=6)
    polls: list[Any] = []

    def interrupting(self: DeviceLoop) -> bool:
        polls.append(self)
        if len(polls) == 2:
            signal.raise_signal(signal.SIGINT)
        return is_done(self)

    state = made_state(graph, 7)
    started.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceLoop, "is_done", interrupting)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(step, state, target="cuda", max_supersteps=40)
    assert gpu.running is None
    assert started == [True]
    assert 1 < state.superstep < 40
    other = made_state(graph, 7)
    fg.iterate(step, other, target="cuda", max_supersteps=state.superstep)
    assert record(state, max_supersteps=4) == record(other, max_supersteps=4)


@pytest.mark.usefixtures("gpu")
def test_behind_an_error_every_vertex_is_due(started: list[bool]) -> None:
    graph = ring()
    record_started(lambda: made_state(graph, 9), started, max_supersteps=6)
    state, read = made_state(graph, 7), DeviceLoop.read

    def failing(self: DeviceLoop) -> Any:
        read(self)
        raise fg.DeviceError("the driver is not well")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceLoop, "read", failing)
        with pytest.raises(fg.DeviceError, match="not well"):
            fg.iterate(step, state, target="cuda", max_supersteps=6)
    done = fg.iterate(step, state, target="cuda", max_supersteps=2)
    assert done.active_counts == [VERTICES] * 2
