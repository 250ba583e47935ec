"""Loops of supersteps on the device leave what the host would have left."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.activity import ACTIVITY
from featgraph.runtime.devices import cuda_arrays, cuda_device
from featgraph.runtime.loops import foldmap_run as step
from featgraph.runtime.loops import replay
from featgraph.runtime.recording import cuda_trace
from featgraph.runtime.recording.control import DeviceLoop
from featgraph.runtime.superstep.foldmap import FoldMap
from tests.bank import BY_NAME
from tests.simt.gpu import ConditionalLoop, Gpu, emulated_gpu
from tests.simt.test_replay import (
    LATE,
    VERTICES,
    adopt_and_count,
    busy_state,
    busy_steps,
    goes_on,
    labels,
    lowest,
    path_state,
    run,
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU on which loops pay at once, and may take as long as lanes do."""
    monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)
    monkeypatch.setattr(replay, "_MOST_AWAY", np.inf)
    monkeypatch.setattr(cuda_trace, "_LOOP_SECONDS", 0.0)
    monkeypatch.setattr(cuda_arrays, "_TOGETHER", 4)
    with emulated_gpu() as made:
        yield made


def looped(gpu: Gpu) -> int:
    """Return how many supersteps loops have run."""
    return sum(loop.ran for loop in gpu.loops)


@pytest.mark.drawn(32)
@pytest.mark.parametrize("away", [0.0, np.inf])
@pytest.mark.parametrize(("case", "late"), LATE)
def test_looped_runs_are_those_of_the_host(
    case: str, late: float, away: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, records and what stays due, also where limits or time cut a cycle."""
    monkeypatch.setattr(replay, "_MOST_LATE", late)
    monkeypatch.setattr(replay, "_MOST_AWAY", away)
    limits = [1000] if case.startswith("everything") else [14, 3, 1000]
    meant, records = run(case, False, limits)
    assert not gpu.loops
    found, others = run(case, True, limits)
    assert others == records
    for name in meant:
        np.testing.assert_array_equal(found[name], meant[name], err_msg=name)
    assert looped(gpu) > 0
    assert gpu.running is None
    assert not gpu.waiting


@pytest.mark.parametrize("odd", [0, 1])
def test_a_limit_is_met_exactly(odd: int, gpu: Gpu) -> None:
    """And a loop takes most of the supersteps below it."""
    for limit in range(10 + odd, VERTICES, 8):
        state = path_state()
        with pytest.warns(fg.ConvergenceWarning):
            done = fg.iterate(
                labels, state, target="cuda", active=[0], max_supersteps=limit
            )
        assert done.supersteps == state.superstep == limit
        assert done.active_counts == [1] * limit
        assert (state["label"] == 0).sum() == limit + 1
        assert len(done.seconds) == limit
        assert min(done.seconds) > 0
    assert looped(gpu) > VERTICES


@fg.gather(into="sum_around", combine="sum")
def add_up(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_a_part(f, v, d):
    d.x_next[v] = (d.x[v] + d.sum_around[v]) * 0.25
    return v > 3


def test_to_begin_a_loop_folds_no_kernel(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few active vertices another one would run, which never are."""
    monkeypatch.setattr(step, "FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr(step, "FEWEST_A_VERTEX", 0)
    prepare, given_options = FoldMap.prepare, []

    def prepared(self: FoldMap, *given: Any, **named: Any) -> Any:
        given_options.extend(named.values())
        return prepare(self, *given, **named)

    monkeypatch.setattr(FoldMap, "prepare", prepared)
    ends, x = np.arange(39), fg.vertex_property(np.ones(40), iterated=True)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    averages, state = fg.foldmap(add_up, take_a_part), fg.State(graph, x=x)
    options: dict[str, Any] = {"target": "cuda", "max_supersteps": 24}
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(averages, state, **options)
    assert looped(gpu) > 8
    assert given_options == []
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(averages, state, active=[9], **options | {"max_supersteps": 1})
    assert given_options != [], "where they are few it is asked for"


def test_the_host_waits_once_in_sixteen_supersteps(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_MOST_LATE", np.inf)
    state = path_state()
    fg.iterate(labels, state, target="cuda", active=[0])
    state["label"] = np.arange(VERTICES, dtype=np.int32)
    launched = sum(r.launched for r in gpu.recordings)
    before, reads = looped(gpu), len(gpu.downloads)
    done = fg.iterate(labels, state, target="cuda", active=[0])
    assert done.supersteps == VERTICES
    assert ACTIVITY.phase == "all, in a loop of the GPU"
    assert 0 < ACTIVITY.superstep - state.superstep + VERTICES < 6
    assert looped(gpu) - before >= VERTICES - 6
    assert sum(r.launched for r in gpu.recordings) == launched
    assert len(gpu.downloads) - reads <= 5


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_interrupt_ends_a_loop_behind_a_cycle(at: int, gpu: Gpu) -> None:
    """No superstep runs twice, nor is any lost; what is due stays what it was."""
    ends, count = np.arange(VERTICES - 1), fg.vertex_property(np.zeros(VERTICES, int))
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    first = np.arange(VERTICES, dtype=np.int32)
    state, meant = (
        fg.State(
            graph, runs=count, label=fg.vertex_property(first, iterated=True)
        )
        for _ in range(2)
    )  # fmt: skip
    step, is_done, polls = fg.foldmap(lowest, adopt_and_count), DeviceLoop.is_done, []

    def interrupting(self: DeviceLoop) -> bool:
        polls.append(self)
        if len(polls) == at:
            signal.raise_signal(signal.SIGINT)
        return is_done(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceLoop, "is_done", interrupting)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(step, state, active=[0], target="cuda")
    assert gpu.running is None
    assert 4 * at <= looped(gpu) <= 4 * (at + 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    goes_on(step, state, meant)


@pytest.mark.parametrize("at", [1, 4])
def test_behind_an_error_a_state_is_of_one_superstep(at: int, gpu: Gpu) -> None:
    """All are due then, and a later call goes on from there."""
    state, is_done, polls = busy_state(30), ConditionalLoop.is_done, []

    def failing(self: ConditionalLoop) -> bool:
        polls.append(self)
        if len(polls) == at:
            raise fg.DeviceError("the driver is not well")
        return is_done(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConditionalLoop, "is_done", failing)
        with pytest.raises(fg.DeviceError, match="not well"):
            fg.iterate(busy_steps, state, target="cuda")
    assert gpu.running is None
    number = state.superstep
    assert number > 4
    assert state["clock"].min() == min(number, 30)
    assert (state["label"] == 0).sum() == min(number + 1, VERTICES)
    assert fg.iterate(busy_steps, state, target="cuda").converged
    assert (state["label"] == 0).all()


def test_where_no_loop_can_be_made_the_host_goes_on(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featgraph.runtime.devices import cuda_arrays

    refused: list[Any] = []

    def refuse(driver: Any, supersteps: Any, has_gates: bool) -> Any:
        refused.append(supersteps)
        raise fg.DeviceError("no conditional nodes")

    monkeypatch.setattr(cuda_arrays, "ConditionalLoop", refuse)
    state = path_state()
    done = fg.iterate(labels, state, active=[0], target="cuda")
    assert (done.supersteps, done.converged) == (VERTICES, True)
    assert (state["label"] == 0).all()
    assert len(refused) == 1
    assert sum(r.launched for r in gpu.recordings) > VERTICES


#: Programs of the bank that run for a while on a path, and repeat.
LONG = ("label_propagation", "bfs", "components", "along_both", "offers")


@st.composite
def runs(draw: st.DrawFn) -> Any:
    """Draw a program of the bank, a path with some edges more, and a limit."""
    program = BY_NAME[draw(st.sampled_from(LONG))]
    count = draw(st.integers(10, 20))
    more = st.lists(st.integers(0, count - 1), max_size=3)
    ends = [*range(count - 1), *draw(more)]
    shift = draw(st.integers(1, 4))
    targets = [*range(1, count), *((end + shift) % count for end in ends[count - 1 :])]
    graph = fg.Graph.from_edges(
        ends, targets, vertex_count=count, directed=not program.undirected
    )
    return program, graph, draw(st.integers(8, 40)), draw(st.booleans())


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_programs_of_the_bank_loop_as_the_host_runs_them() -> None:
    counts = []

    @settings(max_examples=8)
    @given(runs(), st.sampled_from([0.0, np.inf]), st.randoms(use_true_random=False))
    def agrees(drawn: Any, away: float, random: Any) -> None:
        program, graph, limit, is_dense = drawn
        seed, found = random.randrange(1000), []
        options = {"change_driven": False} if is_dense else {}
        with pytest.MonkeyPatch.context() as patch, emulated_gpu() as gpu:
            patch.setattr(replay, "_MOST_SECONDS", np.inf)
            patch.setattr(replay, "_MOST_AWAY", away)
            patch.setattr(cuda_arrays, "_TOGETHER", 2)
            for seconds in (np.inf, 0.0):
                assert not gpu.loops
                recorder: Any = cuda_device.cuda_device().recorder
                patch.setattr(recorder, "_loop_seconds", seconds)
                rng = np.random.default_rng(seed)
                state = fg.State(graph, **program.make_state(graph, 2, rng))
                found.append((_iterate(program, state, limit, options), state))
            counts.append(looped(gpu))
            (record, state), (meant, other) = found[1], found[0]
            assert record == meant
            for name in state:
                np.testing.assert_array_equal(state[name], other[name], err_msg=name)

    agrees()
    assert sum(counts) > 8


def _iterate(program: Any, state: fg.State, limit: int, options: Any) -> Any:
    """Return the record of a run, or the kind of the error that refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        try:
            done = fg.iterate(
                list(program.foldmaps), state, target="cuda", max_supersteps=limit,
                **options,
            )  # fmt: skip
        except fg.PlanError as error:
            return type(error)
    return (
        done.supersteps, done.converged, done.active_counts, done.directions,
        done.aggregates, len(done.seconds), state.superstep,
    )  # fmt: skip
