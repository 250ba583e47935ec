"""Exclusive functions on CUDA, lane by lane: one block, so that it waits for none."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.config import config
from featgraph.fold.kinds import table as kinds
from featgraph.fold.passes.bodies import predication
from featgraph.fold.schedules import exclusive_locks
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from featgraph.fold.schedules.exclusive_groups import LevelSchedule, SerialSchedule
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.tree.statements import code
from tests.programs.exclusive import (
    CASES,
    LEARN,
    PROGRAMS,
    SERIAL,
    TWO_SIDES,
    check_levels,
    check_run,
    graph_of,
    run,
    schedules_of,
    state_of,
)
from tests.reference.test_exclusive_runs import (
    test_explain_has_the_figures_of_what_is_prepared,
)
from tests.simt import lanes
from tests.simt.gpu import Gpu, emulated_gpu, pauses


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made, pytest.MonkeyPatch.context() as patch:
        for schedule in (ExclusiveSchedule, exclusive_locks.TicketedSchedule):
            patch.setattr(schedule, "resident", 1)
        yield made


def _be_impatient(gpu: Gpu, patch: pytest.MonkeyPatch, most_ns: int = 1) -> None:
    """Have waits of more than some ns end with an error."""
    queues = gpu.emulator.load("from featgraph.device import queue_cuda").queue_cuda
    patch.setattr(queues, "LONGEST_WAIT", most_ns)
    patch.setattr(queues, "POLLS", 2)


@pytest.mark.drawn(40)
@pytest.mark.parametrize(("name", "kind", "schedule"), CASES)
def test_runs_are_serialisable(
    name: str, kind: str, schedule: str, rng: np.random.Generator
) -> None:
    more = schedules_of(name, kind)[schedule]
    for k in (1, 3, 8, 10):
        graph = graph_of(kind, 9, 16, int(rng.integers(1 << 30)))
        state, told = run(name, graph, k, "cuda", **more)
        check_run(name, state, told)
        if schedule in SERIAL:
            meant, _ = run(name, graph, k, "cuda", schedule="serial")
            np.testing.assert_array_equal(state["x"], meant["x"])


@pytest.mark.parametrize("k", [1, 4, 7, 16])
def test_learns(k: int) -> None:
    check_levels(graph_of("undirected", 9, 16, k), k, "cuda")


# -- planted faults, each of which is seen


def _merged(found: Any) -> Any:
    return found._replace(groups=np.delete(found.groups, 1))


def _off_by_one(found: Any) -> Any:
    groups = found.groups.copy()
    groups[1:-1] -= 1  # the last edge of each level is in the next one
    return found._replace(groups=groups)


def _lost(found: Any) -> Any:
    groups = found.groups.copy()
    groups[-1] -= 1
    return found._replace(order=found.order[:-1], groups=groups)


def _twice(found: Any) -> Any:
    order = found.order.copy()
    order[-1] = order[0]
    return found._replace(order=order)


@pytest.mark.parametrize("fault", [_merged, _off_by_one, _lost, _twice])
@pytest.mark.parametrize("schedule", [LevelSchedule, SerialSchedule])
def test_faults_of_groups_are_seen(
    fault: Any, schedule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if schedule is SerialSchedule and fault in {_merged, _off_by_one}:
        pytest.skip("it has one group")
    groups = schedule.groups
    monkeypatch.setattr(
        schedule, "groups", lambda self, edges: fault(groups(self, edges))
    )
    seen = 0
    for seed in range(3):
        graph = graph_of("directed", 5, 14, seed)
        state, told = run("mix_all", graph, 8, "cuda", schedule=schedule.name)
        try:
            check_run("mix_all", state, told)
        except (AssertionError, ValueError):
            seen += 1
    assert seen == 3


@pytest.mark.parametrize(
    ("program", "kind", "old", "new"),
    [
        ("mix_all", "directed", "or (conflicts == 3 and u != v)", "or conflicts == 3"),
        ("filtered", "directed", "all_sources or ", "True or "),
        ("filtered", "directed", "set_bit(targets, {end})", "set_bit(targets, v)"),
    ],
)
def test_faults_of_the_nest_are_seen(
    program: str, kind: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(inspect.getfile(kinds)).read_text(encoding="utf-8")
    assert old in text
    own: dict[str, Any] = {"__name__": kinds.__name__}
    exec(compile(text.replace(old, new), kinds.__file__, "exec"), own)  # noqa: S102
    monkeypatch.setitem(vars(kinds.EXCLUSIVE), "nest", own["_nest_exclusive"])
    graph = fg.Graph.from_edges([0, 3, 2, 2, 1, 5], [1, 2, 2, 0, 4, 4])
    step = fg.foldmap(*PROGRAMS[program].program.functions)
    monkeypatch.setitem(PROGRAMS, program, step)
    state, told = run(program, graph, 3, "cuda", schedule="levels")
    with pytest.raises(AssertionError):
        check_run(program, state, told)


@fg.edge(exclusive=True)
def mix_half(f, u, v, e, d):
    a = d.x[u, f]
    b = d.x[v, f]
    n = d.n[u]
    m = d.n[v]
    s = fg.feature_sum(a ^ b)
    if s % 2 == 0:
        d.n[u] = 3 * n + m + 1
    d.x[u, f] = 31 * a + b + d.w[e] + s
    d.runs[e] = d.runs[e] + 1
    return True


@pytest.mark.parametrize("schedule", ["levels", "edge_locked", "ticketed"])
def test_a_half_of_updates_that_is_dropped_is_seen(schedule: str) -> None:
    """Those of targets: both ends conflict by what is read and written at sources."""
    graph = fg.Graph.from_edges([0, 3, 2, 2, 1, 5], [1, 2, 2, 0, 4, 4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROGRAMS, "mix_all", fg.foldmap(mix_half))
        state, told = run("mix_all", graph, 3, "cuda", schedule=schedule)
        check_run("mix_all", state, told)
    with pytest.raises(AssertionError):
        check_run("mix_all", state, told)


SLOW = ("levels", "serial", "matching_edges", "edge_locked", "ticketed",
        "node_locked", "hybrid", "hubs apart")  # fmt: skip


@pytest.mark.drawn(8)
@pytest.mark.parametrize("schedule", SLOW)
@pytest.mark.parametrize("k", [1, 8])
def test_lanes_that_take_their_time(schedule: str, k: int) -> None:
    kind = "sides" if schedule in TWO_SIDES else "directed"
    more = schedules_of("mix_all", kind)[schedule]
    for seed in range(5):
        graph = graph_of(kind, 6, 14, seed)
        with pauses(seed):
            state, told = run("mix_all", graph, k, "cuda", **more)
        check_run("mix_all", state, told)


_HOLD = "held = queues.hold(locks, lower, upper)"
_TRY = "got = queues.hold(locks, other, other)"
_EDGES = {"schedule": "edge_locked", "tries": 2}
_NODES = {"schedule": "node_locked"}
_TICKETS = {"schedule": "ticketed"}
_APART = {"schedule": "hybrid", "hubs": 2, "tries": 1}
_FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no lock": (_EDGES, _HOLD, "held = True"),
    "one lock": (
        _EDGES, "v if conflicts & 2 else u", "u if conflicts & 1 else v",
    ),
    "early release": (
        _EDGES, _HOLD, f"{_HOLD}\nif held:\n    queues.release(locks, lower, upper)"
    ),
    "rows loaded before the locks are held": (
        _EDGES, _HOLD, f"d = queues.load(d, u, v)\n{_HOLD}"
    ),
    "deferred and lost": (
        _EDGES, "(turn + 1) & 3, int64(1))", "(turn + 1) & 3, int64(0))"
    ),
    "run twice": (_EDGES, "+ slot] = at", "+ slot] = slot"),
    "no wait": (_TICKETS, "held = has_turns and", "held = inside_edge and"),
    "a ticket skipped": (
        _TICKETS, "has_turns = queues.has_turn(locks, v", "_ = queues.has_turn(locks, v"
    ),
    "a self-loop that passes two tickets": (
        _TICKETS, "and (u != v or conflicts == 2)", ""
    ),
    "no lock of another end": (_NODES, _TRY, "got = True"),
    "another end released early": (
        _NODES, _TRY, f"{_TRY}\nif got:\n    queues.release(locks, other, other)"
    ),
    "left of a vertex, and lost": (_NODES, "deferred[slot] = place", "slot += 0"),
    "left, and not counted": (_NODES, "int64(left))", "int64(0))"),
    "left, and run twice": (_NODES, "locks[vertex] = left", "locks[vertex] = left + 1"),
    "a row that the next edge does not see": (_NODES, "held = own == 0", "held = True"),
    "another edge deferred": (
        {"schedule": "hybrid"}, ".shape[0] + slot] = place", ".shape[0] + slot] = slot"
    ),
    "hubs without locks": (_APART, _HOLD, "held = True"),
}  # fmt: skip


class _Early:
    """Entries of a property as they are loaded now; stores go to memory."""

    def __init__(self, stored: Any, *places: Any) -> None:
        self.stored = getattr(stored, "stored", stored)
        self.loaded = {place: self.stored[place] for place in places}

    def __getitem__(self, place: Any) -> Any:
        return self.loaded[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self.stored[place] = value


def _load(drawn: np.random.Generator, d: Any, u: Any, v: Any) -> Any:
    """Load the rows of an edge, of one feature, and let other warps run edges."""
    d = d._replace(x=_Early(d.x, (u, 0), (v, 0)), n=_Early(d.n, u, v))
    for _ in range(drawn.geometric(0.01)):
        lanes.pause()
    return d


def _alter(old: str, new: str, patch: pytest.MonkeyPatch) -> list[bool]:
    """Plant a fault in schedules, and have `mix_all` folded anew.

    Return a list that gets, for each text that is folded, whether it has the fault.
    """
    found: list[bool] = []

    def altered(text: str, **parts: Any) -> Any:
        found.append(old in text)
        return code(text.replace(old, new), **parts)

    patch.setattr(exclusive_locks, "code", altered)
    step = fg.foldmap(*PROGRAMS["mix_all"].program.functions)
    patch.setitem(PROGRAMS, "mix_all", step)
    return found


@pytest.mark.parametrize("fault", _FAULTS)
def test_faults_of_locks_are_seen(
    fault: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, old, new = _FAULTS[fault]
    planted = _alter(old, new, monkeypatch)
    queues = gpu.emulator.load("from featgraph.device import queue_cuda").queue_cuda
    load = partial(_load, np.random.default_rng(0))
    monkeypatch.setattr(queues, "load", load, raising=False)
    if more is _TICKETS:  # edges that wait for a ticket that has passed
        _be_impatient(gpu, monkeypatch, 10**9)
    has_sides = more["schedule"] in {"node_locked", "hybrid"}
    graph = graph_of("sides" if has_sides else "directed", 5, 80, 1)  # of two warps
    for seed in range(5):
        with pauses(seed):
            state, told = run("mix_all", graph, 1, "cuda", **more)
        with pytest.raises((AssertionError, ValueError, fg.KernelFaultError)):
            check_run("mix_all", state, told)
    assert any(planted)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(
    ("schedule", "old", "new", "why"),
    [
        ("edge_locked", _HOLD, "held = False", "ran none"),
        ("node_locked", _TRY, "got = False", "ran none"),
        ("hybrid", "queues.hold(", "False and queues.hold(", "ran none"),
        (
            "ticketed",
            "has_turns = is_first or not conflicts & 1",
            "has_turns = False",
            "waited for 60 s",
        ),
    ],
)
def test_kernels_that_stall_end_with_an_error(
    schedule: str, old: str, new: str, why: str, loops: bool, gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    graph = graph_of("sides", 6, 14, 1)
    state = state_of(graph, 3)
    with pytest.MonkeyPatch.context() as patch:
        _alter(old, new, patch)
        _be_impatient(gpu, patch)
        step = PROGRAMS["mix_all"]
        more: dict[str, Any] = {"target": "cuda", "schedule": schedule}
        if schedule in {"edge_locked", "hybrid"}:
            more["tries"] = 2  # soon deferred
        if not loops:
            step(state, **more)
        with pytest.raises(fg.KernelFaultError, match="before all edges ran") as caught:
            _ = fg.iterate(step, state, supersteps=4, **more) if loops else state["x"]
    assert caught.value.where == f"schedule={schedule!r}"
    assert why in caught.value.got
    assert "make it anew" in caught.value.fix
    state, told = run("mix_all", graph, 3, "cuda", schedule=schedule)
    check_run("mix_all", state, told)


@pytest.mark.parametrize("schedule", ["levels", "edge_locked", "node_locked", "hybrid"])
def test_blocks_that_do_not_come_end_with_an_error(
    schedule: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are run one by one here, so none comes to the others."""
    never = property(lambda block: False, lambda block, looks: None)
    monkeypatch.setattr(lanes.Block, "looks", never, raising=False)
    monkeypatch.setattr(type(SCHEDULES[schedule]), "blocks", lambda *_: 2)
    _be_impatient(gpu, monkeypatch)
    state = state_of(graph_of("sides", 6, 14, 1), 3)
    step = fg.foldmap(*PROGRAMS["mix_all"].program.functions)
    with pytest.raises(fg.KernelFaultError, match="a worker waited for 60 s") as caught:
        fg.iterate(step, state, supersteps=2, target="cuda", schedule=schedule)
    assert caught.value.where == f"schedule={schedule!r}"


@fg.edge(exclusive=True)
def count(f, u, v, e, d):
    d.x[u, f] = d.x[v, f] + 1
    d.n[u] = d.n[u] + 1
    return True


@pytest.mark.parametrize("at_once", [False, True])
def test_entries_that_lanes_store_at_once_are_seen(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        keeps = predication._LateStores
        monkeypatch.setattr(keeps, "over", lambda _, body: body)
    graph = graph_of("directed", 5, 9, 1)
    state = state_of(graph, 8 if at_once else 7)  # another width is another text
    before = state["n"]
    fg.foldmap(count)(state, target="cuda")
    assert np.array_equal(state["n"] - before, graph.out_degree) is not at_once


@pytest.mark.parametrize("schedule", ["levels", "block_diagonal", "ticketed"])
def test_runs_of_many_supersteps_agree_with_the_cpu(schedule: str) -> None:
    graph, more = graph_of("sides", 9, 16, 2), schedules_of("mix", "sides")[schedule]
    found = {}
    for target in ("cpu", "cuda"):
        state = state_of(graph, 5)
        with pytest.warns(fg.ConvergenceWarning):
            run = fg.iterate(
                PROGRAMS["mix_all"], state, target=target, max_supersteps=7, **more
            )
        assert run.supersteps == 7
        found[target] = state
    for name in ("x", "n", "runs"):
        np.testing.assert_array_equal(found["cpu"][name], found["cuda"][name])
    assert found["cuda"]["runs"].tolist() == [7] * graph.given_edge_count


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("schedule", ["levels", "edge_locked"])
def test_an_interrupt_waits_for_the_end_of_the_sweep(
    schedule: str, at: int, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, begun, launch = state_of(graph_of("sides", 9, 16, 2), 5), [], gpu.launch

    def interrupting(handle: Any, *arguments: Any) -> None:
        launch(handle, *arguments)
        if "exclusive_phase" in gpu.by_driver[-1]:
            begun.append(handle)
            if len(begun) == at:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "launch", interrupting)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(
                PROGRAMS["mix_all"], state, target="cuda", schedule=schedule,
                supersteps=7,
            )  # fmt: skip
    assert at <= state.superstep <= at + 1  # a cycle of two may be recorded
    assert state["runs"].tolist() == [state.superstep] * state.graph.given_edge_count


def test_explain_has_figures() -> None:
    test_explain_has_the_figures_of_what_is_prepared("cuda")


def test_memory_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("sides", 9, 16, 1)
    state, step = state_of(graph, 3), PROGRAMS["mix"]
    before = {name: state[name] for name in state}
    monkeypatch.setattr(config, "memory_limit", 10**6)
    for schedule in ("auto", "serial", "blocks", "edge_locked", "ticketed"):
        with pytest.raises(fg.PlanError, match="for a whole graph") as caught:
            step(state, target="cuda", schedule=schedule)
        error = caught.value
        assert "mix" in error.where
        assert "under config.memory_limit" in error.got
        assert error.expected == "no memory limit"
        assert error.fix == "use no memory limit for a new State, or target='cpu'"
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values)
    monkeypatch.setattr(config, "memory_limit", None)
    state, told = run("mix", graph, 3, "cuda", schedule="levels")
    check_run("mix", state, told)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32"])
def test_values_of_edges_are_those_of_the_cpu(dtype: str) -> None:
    """Of any type that an edge may have; another test has copies that go stale."""
    graph = graph_of("sides", 8, 14, 1)
    rows = np.random.default_rng(4).normal(0, 0.5, (8, 5))
    found = []
    for target in ("cpu", "cuda"):
        state = fg.State(
            graph, x=fg.vertex_property(rows), bias=fg.vertex_property(np.zeros(8)),
            rating=fg.edge_property(np.zeros(14, dtype)), mean=0.5, rate=0.05,
            ridge=0.1,
        )  # fmt: skip

        def change(run: fg.Run, state: fg.State) -> None:
            state["rating"] = (np.arange(14) % (2 + run.supersteps)).astype(dtype)

        state["rating"] = (np.arange(14) % 3).astype(dtype)
        with pytest.warns(fg.ConvergenceWarning):
            fg.iterate(
                LEARN, state, target=target, schedule="block_diagonal",
                block_vertices=3, max_supersteps=4, callback=change,
            )  # fmt: skip
        found.append(np.array(state["x"]))
    np.testing.assert_allclose(*found, 1e-5, 1e-6)
