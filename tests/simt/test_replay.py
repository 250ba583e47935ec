"""Supersteps from recordings do what the host would have had the device do."""

from __future__ import annotations

import gc
import signal
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.activity import ACTIVITY
from featgraph.runtime.loops import replay
from featgraph.runtime.recording.cuda_trace import RecordedSuperstep
from tests.simt.gpu import Gpu, Recording, emulated_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)  # lanes take their time
    # Once call by call, then as graphs.
    monkeypatch.setattr(RecordedSuperstep, "_pays", lambda self: self._launching > 0)
    with emulated_gpu() as made:
        yield made


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.gather(into="mean", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[u, f] * d.weight[e]


@fg.vertex
def blend(f, v, d):  # type: ignore[no-untyped-def]
    new = d.base[v, f] + d.mean[v, f]
    d.share_next[v, f] = new
    return abs(new - d.share[v, f]) > 1e-4


@fg.vertex
def clock(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = d.superstep
    return d.superstep < 12


@fg.vertex
def adopt_and_tick(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    d.clock_next[v] = d.clock[v] + 1
    return d.low[v] < d.label[v] or d.clock[v] < d.busy


@fg.gather(into="now", combine="max")
def read_clock(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.clock[u]


@fg.vertex
def pulse(f, v, d):  # type: ignore[no-untyped-def]
    d.clock_next[v] = d.now[v] + 1
    return (v == 0 or d.now[v] == d.busy) and d.now[v] < d.busy + 10


@fg.vertex
def visit(f, v, d):  # type: ignore[no-untyped-def]
    d.visits[v] = d.visits[v] + 1
    d.mark_next[v] = d.mark[v] + 1
    return v == 0 and d.mark[v] < d.busy + 8


@fg.gather(into="heard", combine="sum", sources="active")
def hear(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u] + 1


@fg.vertex
def pass_on(f, v, d):  # type: ignore[no-untyped-def]
    d.visits[v] = d.visits[v] + d.heard[v]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


busy_steps = fg.foldmap(lowest, adopt_and_tick)
pulses = [fg.foldmap(read_clock, pulse), fg.foldmap(visit)]
active_sums = fg.foldmap(lowest, hear, pass_on)
labels, shares = fg.foldmap(lowest, adopt), fg.foldmap(weigh, blend)
VERTICES = 34


def path_state(step: int = 1) -> fg.State:
    """Return labels of which the least goes along a path, a vertex a superstep."""
    ends = np.arange(VERTICES - 1)
    graph = fg.Graph.from_edges(ends, ends + 1, vertex_count=VERTICES, directed=False)
    return fg.State(
        graph,
        label=fg.vertex_property(
            np.arange(VERTICES, dtype=np.int32)[::step].copy(), iterated=True
        ),
    )


def shares_state() -> fg.State:
    """Return shares that settle in some twenty supersteps, not all at once."""
    rng = np.random.default_rng(4)
    source, target = rng.integers(0, VERTICES, (2, 70))
    graph = fg.Graph.from_edges(source, target, vertex_count=VERTICES)
    weight = 0.7 / np.maximum(graph.in_degree, 1)[target]
    base = rng.random((VERTICES, 2)).astype(np.float32)
    return fg.State(
        graph,
        share=fg.vertex_property(np.zeros_like(base), iterated=True),
        base=fg.vertex_property(base),
        weight=fg.edge_property(weight.astype(np.float32)),
    )


def halves(step: fg.FoldMap) -> list[fg.FoldMap]:
    even = np.arange(VERTICES) % 2 == 0
    return [step.on(even), step.on(~even)]


def _counted(graph: fg.Graph, label: Any, busy: int) -> fg.State:
    """Return labels with clocks, and counters that are written in place."""
    zeros = np.zeros(VERTICES, np.int32)
    return fg.State(
        graph,
        label=fg.vertex_property(label.astype(np.int32), iterated=True),
        clock=fg.vertex_property(zeros.copy(), iterated=True),
        mark=fg.vertex_property(zeros.copy(), iterated=True),
        visits=fg.vertex_property(zeros.copy()),
        busy=busy,
    )


def busy_state(busy: int) -> fg.State:
    """Return a path on which all vertices commit in so many supersteps, then few."""
    return _counted(path_state().graph, 9 * (np.arange(VERTICES) > 0), busy)


def hub_state(busy: int) -> fg.State:
    """Return a hub that activates all other vertices, which commit at once one time."""
    ends = np.zeros(VERTICES, int), np.arange(VERTICES)
    graph = fg.Graph.from_edges(*ends, vertex_count=VERTICES)
    return _counted(graph, np.arange(VERTICES), busy)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "labels": (labels, path_state, {}),
    "from one vertex": (labels, path_state, {"active": [0]}),
    "all vertices": (labels, path_state, {"change_driven": False}),
    "pushed": (labels, path_state, {"direction": "push"}),
    "kept": (labels, path_state, {"change_driven": True}),
    "in place": (labels, partial(path_state, -1), {"asynchronous": True}),
    "shares": (shares, shares_state, {}),
    "shares, all": (shares, shares_state, {"change_driven": False}),
    "shares, kept": (shares, shares_state, {"change_driven": True}),
    "shares, proven": (
        shares, shares_state, {"change_driven": True, "recompute_every": 13},
    ),
    "all, then few": (busy_steps, partial(busy_state, 10), {}),
    "all, then few, odd": (busy_steps, partial(busy_state, 11), {}),
    "everything in turn": (pulses, partial(hub_state, 14), {"active": [0]}),
    "everything in turn, odd": (pulses, partial(hub_state, 15), {"active": [0]}),
    "active sums": (active_sums, partial(busy_state, 0), {"active": [0]}),
    "in turn": (halves(shares), shares_state, {}),
    "in turn, kept": (halves(shares), shares_state, {"change_driven": True}),
    "along a path, in turn": (halves(labels), path_state, {}),
    "along a path, in turn, kept": (
        halves(labels), path_state, {"change_driven": True},
    ),
    "in turn, all": (halves(shares), shares_state, {"change_driven": False}),
}  # fmt: skip
#: Decisions change where "auto" decides.
LATE = [(c, n) for c in CASES for n in (0, np.inf) if not (n and CASES[c][2])]


def run(case: str, replays: bool, limits: list[int]) -> tuple[fg.State, list[Any]]:
    """Return the state behind calls with limits of supersteps, and their records."""
    steps, make_state, options = CASES[case]
    state, records = make_state(), []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        patch.setattr(fg.config, "replay", replays)
        for limit in limits:
            done = fg.iterate(
                steps, state, target="cuda", max_supersteps=limit, **options
            )
            options = {k: v for k, v in options.items() if k != "active"}
            records.append((
                done.supersteps, done.converged, done.active_counts, done.directions,
                done.aggregates, len(done.seconds), state.superstep,
            ))  # fmt: skip
    return state, records


@pytest.mark.drawn(20)
@pytest.mark.parametrize(("case", "late"), LATE)
def test_replayed_runs_are_those_of_the_host(
    case: str, late: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, records and what stays due, also where limits cut a cycle."""
    monkeypatch.setattr(replay, "_MOST_LATE", late)
    limits = [1000] if case.startswith("everything") else [14, 3, 1000]
    meant, records = run(case, False, limits)
    assert not gpu.recordings
    replayed, others = run(case, True, limits)
    assert others == records
    for name in meant:
        np.testing.assert_array_equal(replayed[name], meant[name], err_msg=name)
    assert sum(r.launched for r in gpu.recordings) > 1
    assert not gpu.waiting


@fg.vertex
def adopt_below(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = d.low[v]
    return d.low[v] < d.label[v] and v < d.wall


@pytest.mark.parametrize("replays", [False, True])
def test_a_stage_is_not_replayed_in_the_next(replays: bool, gpu: Gpu) -> None:
    """A recording has the scalars and the sets of its own stage."""
    made, first = path_state(), 15
    state = fg.State(
        made.graph, label=fg.vertex_property(made["label"], iterated=True), wall=first
    )

    def lower(run: fg.Run, state: fg.State) -> Any:
        if state["wall"] == VERTICES:
            return None
        state["wall"] = VERTICES
        return [first - 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "replay", replays)
        step = fg.foldmap(lowest, adopt_below)
        done = fg.iterate(step, state, active=[0], target="cuda", then=lower)
    assert (state["label"] == 0).all()
    ones = [1] * (first - 1), [1] * (VERTICES - first)
    assert done.active_counts == [*ones[0], 0, *ones[1], 0]
    assert bool(gpu.recordings) == replays


def test_what_reads_the_superstep_s_number_is_replayed(gpu: Gpu) -> None:
    """It is in memory of the device."""
    state = path_state()
    done = fg.iterate(fg.foldmap(clock), state, target="cuda")
    assert done.supersteps == 13
    assert (state["label"] == 11).all()
    assert gpu.recordings


@fg.vertex
def adopt_at(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    d.clock_next[v] = d.superstep
    return d.low[v] < d.label[v]


def test_numbers_of_supersteps_are_those_of_the_host(gpu: Gpu) -> None:
    state = busy_state(0)
    fg.iterate(fg.foldmap(lowest, adopt_at), state, active=[0], target="cuda")
    assert list(state["clock"][1:]) == list(range(VERTICES - 1))
    assert gpu.recordings


def test_a_callback_sees_every_superstep(gpu: Gpu) -> None:
    state, seen = path_state(), []
    fg.iterate(
        labels, state, target="cuda",
        callback=lambda run, s: seen.append(int((s["label"] == 0).sum())),
    )  # fmt: skip
    assert seen == [*range(2, VERTICES + 1), VERTICES]
    assert not gpu.recordings


@pytest.mark.parametrize("at", [5, 6, 7])
def test_behind_an_interrupt_a_state_is_of_one_superstep(at: int, gpu: Gpu) -> None:
    state, wait, waited = busy_state(30), Recording.wait, []

    def interrupted(self: Recording) -> None:
        wait(self)
        waited.append(self)
        if len(waited) == at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recording, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(busy_steps, state, target="cuda")
    assert not gpu.waiting
    number = state.superstep
    assert 10 < number < 30
    assert ACTIVITY.phase == "all, from a recording"
    assert ACTIVITY.superstep == number - 1
    assert set(state["clock"]) == {number}
    assert (state["label"] == 0).sum() == number + 1


@fg.vertex
def adopt_and_count(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


def goes_on(step: fg.FoldMap, state: fg.State, meant: fg.State) -> None:
    """See that an interrupted search left a superstep whole, and goes on from there."""
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(
            step, meant, active=[0], target="cpu", max_supersteps=state.superstep
        )
    for name in ("label", "runs"):
        np.testing.assert_array_equal(state[name], meant[name])
    run = fg.iterate(step, state, target="cuda")
    assert (state["label"] == 0).all()
    assert max(run.active_counts) == 1  # no other vertex was made due


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [5, 6])
def test_an_interrupt_waits_for_the_end_of_a_cycle(at: int, gpu: Gpu) -> None:
    """No superstep runs twice, in which functions count in place."""
    ends, count = np.arange(VERTICES - 1), fg.vertex_property(np.zeros(VERTICES, int))
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    states = []
    for _ in range(2):
        label = fg.vertex_property(np.arange(VERTICES, dtype=np.int32), iterated=True)
        states.append(fg.State(graph, label=label, runs=count))
    state, meant = states
    step, launch = fg.foldmap(lowest, adopt_and_count), RecordedSuperstep.launch
    launched: list[RecordedSuperstep] = []

    def interrupting(self: RecordedSuperstep) -> None:
        launch(self)
        launched.append(self)
        if len(launched) == at:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedSuperstep, "launch", interrupting)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(step, state, active=[0], target="cuda")
    assert not gpu.waiting
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    goes_on(step, state, meant)


def test_threads_do_not_write_to_each_other_s_sets(gpu: Gpu) -> None:
    """Sets of one thread's replay are not lent while it is on its way."""
    from featgraph.runtime.devices.cuda_device import cuda_device

    device = cuda_device()
    mine = {id(device.sets.empty(2)) for _ in range(3)}
    theirs: list[int] = []
    thread = threading.Thread(target=lambda: theirs.append(id(device.sets.empty(2))))
    thread.start()
    thread.join()
    assert id(device.sets.empty(2)) in mine  # nothing holds it, so it is used again
    assert theirs[0] not in mine


def refuse(driver: Any, operations: Any, beside: bool) -> Any:
    raise fg.DeviceError("no memory for a graph")


def test_sets_of_a_state_that_is_gone_go_to_the_next(gpu: Gpu) -> None:
    """And what is still held of them stays as it is."""
    from featgraph.runtime.devices.cuda_device import cuda_device

    recorder: Any = cuda_device().recorder
    first, second, third = path_state(), path_state(), path_state()
    for state in (first, second):
        fg.iterate(labels, state, active=[0], target="cuda")
        assert (state["label"] == 0).all()
    pools = [{id(p) for p in s.residency.pools} for s in (first, second)]
    assert not pools[0] & pools[1]
    words = [id(w) for p in first.residency.pools for w in p[2]]
    held = first.residency.pools[0][2][0]
    before = np.array(cuda_device().download(held))
    del first, state
    gc.collect()
    fg.iterate(labels, third, active=[0], target="cuda")
    assert (third["label"] == 0).all()
    assert {id(p) for p in third.residency.pools} == pools[0]
    now = [id(w) for p in third.residency.pools for w in p[2]]
    assert set(words) <= set(now)
    np.testing.assert_array_equal(cuda_device().download(held), before)
    assert not recorder._spare


def test_what_cannot_be_repeated_is_run_by_the_host(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featgraph.runtime.devices.cuda_device import cuda_device

    recorder: Any = cuda_device().recorder
    monkeypatch.setattr(recorder, "_repeat", refuse)
    free = list(recorder._free)
    state = path_state()
    assert fg.iterate(labels, state, active=[0], target="cuda").supersteps == VERTICES
    assert recorder._free == free


def test_what_no_graph_can_be_made_of_is_launched_call_by_call(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featgraph.runtime.devices.cuda_device import cuda_device

    recorder: Any = cuda_device().recorder
    monkeypatch.setattr(recorder, "_record", refuse)
    monkeypatch.setattr(recorder, "_loop_seconds", np.inf)  # no loop pays
    state = path_state()
    done = fg.iterate(labels, state, active=[0], target="cuda")
    assert (done.supersteps, done.converged) == (VERTICES, True)
    assert (state["label"] == 0).all()
    assert len(gpu.recordings) == 4  # two supersteps, each with its count
    assert all(r.launched > 10 and not r.is_graph for r in gpu.recordings)


def _count_by_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose last entry counts the supersteps that the host runs."""
    from featgraph.runtime.devices.cuda_device import cuda_device

    recorder: Any = cuda_device().recorder
    by_host, begin = [0], recorder.begin

    def count(pools: Any, aside: Any = None) -> None:
        by_host[-1] += 1
        begin(pools, aside)

    monkeypatch.setattr(recorder, "begin", count)
    return by_host


@pytest.mark.drawn(2)
@pytest.mark.parametrize("case", ["labels", "in turn"])
def test_a_run_finds_what_was_recorded_by_an_earlier_one(
    case: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the same State, though it was written and another one runs in between."""
    by_host = _count_by_host(monkeypatch)
    by_host.clear()
    steps = labels if case == "labels" else halves(labels)
    state, other = path_state(), path_state()
    first = np.array(state["label"])
    made = []
    for _ in range(5):
        state["label"] = first
        by_host.append(0)
        fg.iterate(steps, state, target="cuda", active=[0])
        assert (state["label"] == 0).all()
        made.append(len(gpu.recordings))
        by_host.append(0)
        fg.iterate(labels, other, target="cuda", active=[20], max_supersteps=1000)
    assert by_host[4] < by_host[0] < VERTICES
    # As many as the run before the last, which began with the same of two buffers.
    assert by_host[6] == by_host[2] < by_host[0]
    assert by_host[8] == by_host[4]
    assert made[4] == made[3] == made[2] == made[1]
    assert {r.is_graph for r in gpu.recordings if r.launched} == {False, True}


def test_where_all_are_due_the_number_of_active_ones_ends_no_replay(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_host = _count_by_host(monkeypatch)
    done = fg.iterate(shares, shares_state(), target="cuda", change_driven=False)
    assert done.active_counts[3] > VERTICES / 2 > 4 > done.active_counts[-3]
    assert done.supersteps > 20
    assert by_host == [6]  # until a cycle has come round, and one without due vertices


def test_an_interrupt_leaves_everything_due(gpu: Gpu) -> None:
    """Launched work has run; the next call resumes from it."""
    state, wait, raised = path_state(), Recording.wait, []

    def interrupted(self: Recording) -> None:
        wait(self)
        if max(r.launched for r in gpu.recordings) == 5 and not raised:
            raised.append(True)
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recording, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(labels, state, target="cuda")
    assert not gpu.waiting
    assert 0 < (state["label"] == 0).sum() < VERTICES
    assert fg.iterate(labels, state, target="cuda").converged
    assert (state["label"] == 0).all()
