"""Exclusive functions on CUDA, lane by lane: one block, so that it waits for none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import _cuda

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.config import config
from featgraph.fold.functions import predication
from featgraph.fold.kinds import exclusive as nests
from featgraph.fold.schedules import exclusive_locks
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from featgraph.fold.schedules.exclusive_groups import LevelSchedule
from featgraph.fold.schedules.exclusive_tasks import SerialSchedule
from featgraph.fold.tree.statements import code
from tests.programs.exclusive import (
    PROGRAMS,
    check_learning,
    check_run,
    graph_of,
    run,
    state_of,
)
from tests.reference.test_exclusive_runs import (
    SERIAL,
    schedules_of,
    test_explain_has_the_figures_of_what_is_prepared,
)
from tests.simt.gpu import emulated_gpu, pauses


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    with emulated_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExclusiveSchedule, "resident", 1)
        yield


CASES = [
    (name, kind, schedule)
    for name in PROGRAMS
    for kind in ("directed", "undirected", "sides")
    for schedule in schedules_of(name, kind)
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("name", "kind", "schedule"), CASES)
def test_runs_are_serialisable(
    name: str, kind: str, schedule: str, rng: np.random.Generator
) -> None:
    more: dict[str, Any] = {"schedule": schedule, **schedules_of(name, kind)[schedule]}
    for k in (1, 3, 8, 10):
        graph = graph_of(kind, 9, 16, int(rng.integers(1 << 30)))
        state, told = run(name, graph, k, "cuda", **more)
        check_run(name, state, told)
        if schedule in SERIAL:
            meant, _ = run(name, graph, k, "cuda", schedule="serial")
            np.testing.assert_array_equal(state["x"], meant["x"])


@pytest.mark.parametrize("k", [1, 4, 7, 16])
def test_learns(k: int) -> None:
    graph = graph_of("undirected", 9, 16, k)
    found = [
        check_learning(graph, k, "cuda", schedule=schedule)
        for schedule in ("serial", "levels")
    ]
    for name in ("x", "bias"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


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
    text = Path(inspect.getfile(nests)).read_text(encoding="utf-8")
    assert old in text
    own: dict[str, Any] = {"__name__": nests.__name__}
    exec(compile(text.replace(old, new), nests.__file__, "exec"), own)  # noqa: S102
    monkeypatch.setitem(vars(nests.EXCLUSIVE), "nest", own["_nest"])
    graph = fg.Graph.from_edges([0, 3, 2, 2, 1, 5], [1, 2, 2, 0, 4, 4])
    step = fg.foldmap(*PROGRAMS[program].program.functions)
    monkeypatch.setitem(PROGRAMS, program, step)
    state, told = run(program, graph, 3, "cuda", schedule="levels")
    with pytest.raises(AssertionError):
        check_run(program, state, told)


@pytest.mark.parametrize(
    "schedule", ["levels", "serial", "matching_edges", "edge_locked", "ticketed"]
)
@pytest.mark.parametrize("k", [1, 8])
def test_lanes_that_take_their_time(schedule: str, k: int) -> None:
    for seed in range(5):
        graph = graph_of("directed", 6, 14, seed)
        with pauses(seed):
            state, told = run("mix_all", graph, k, "cuda", schedule=schedule)
        check_run("mix_all", state, told)


_HOLD = "held = queues.hold(locks, lower, upper, tries)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_HOLD, "held = True"),
        ("other = order_ranks[v] if conflicts & 2 else order_ranks[u]", "other = one"),
        (_HOLD, f"{_HOLD}\nif held:\n    queues.release(locks, lower, upper)"),
        ("(turn + 1) & 3, int64(1))", "(turn + 1) & 3, int64(0))"),
        ("+ place] = at", "+ place] = place"),
        (
            'out += self.told("has_turns", binding)',
            'out += code("has_turns = waits")',
        ),
    ],
    ids=[
        "no lock",
        "one lock",
        "early release",
        "deferred and lost",
        "run twice",
        "no wait",
    ],
)
def test_faults_of_locks_are_seen(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def altered(text: str, **parts: Any) -> Any:
        return code(text.replace(old, new), **parts)

    texts = inspect.getsource(exclusive_locks)
    assert old in texts
    monkeypatch.setattr(exclusive_locks, "code", altered)
    step = fg.foldmap(*PROGRAMS["mix_all"].program.functions)
    monkeypatch.setitem(PROGRAMS, "mix_all", step)
    graph = graph_of("directed", 5, 14, 1)
    more: dict[str, Any] = {"schedule": "edge_locked", "tries": 2}
    if "has_turns" in old:
        more = {"schedule": "ticketed"}
    for seed in range(5):
        with pauses(seed):
            state, told = run("mix_all", graph, 1, "cuda", **more)
        with pytest.raises((AssertionError, ValueError)):
            check_run("mix_all", state, told)


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


@pytest.mark.parametrize("schedule", ["levels", "blocks", "ticketed"])
def test_runs_of_many_supersteps_agree_with_the_cpu(schedule: str) -> None:
    graph = graph_of("sides", 9, 16, 2)
    found = {}
    for target in ("cpu", "cuda"):
        state = state_of(graph, 5)
        more: dict[str, Any] = {"parts": 2} if schedule == "blocks" else {}
        with pytest.warns(fg.ConvergenceWarning):
            run = fg.iterate(
                PROGRAMS["mix_all"], state, target=target, max_supersteps=7,
                schedule=schedule, **more,
            )  # fmt: skip
        assert run.supersteps == 7
        found[target] = state
    for name in ("x", "n", "runs"):
        np.testing.assert_array_equal(found["cpu"][name], found["cuda"][name])
    assert found["cuda"]["runs"].tolist() == [7] * graph.given_edge_count


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
