"""Foldmaps, records and results go through pickle and copy, and to other processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.compiling.kernel import KernelText
from tests.unit.test_saving import add, approach, make, mix, nearest, paths, run, same


def larger(a, b):
    return a if a > b else b


def plain(f, v, d):
    d.y[v] = d.most[v]
    return False


#: A function that no module has under its own name.
unnamed = fg.vertex(plain)


@fg.gather(into="most", combine=fg.combine(larger, identity=0))
def most(f, u, v, e, d):
    return d.y[u]


@fg.gather(into="low", combine="argmin", along="out", sources="active")
def lowest(f, u, v, e, d):
    return d.y[u]


@fg.triangle(within="kept")
def corner(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.y, u, 1)


@fg.reduce(into="square", matrix=True)
def square(i, f, v, d):
    return d.x[v, i] * d.x[v, f]


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(
    "function", [nearest, approach, add, mix, most, lowest, corner, square]
)
def test_functions_are_found_by_name(function: Any) -> None:
    assert again(function) is function
    assert copy.deepcopy(function) is function
    assert copy.copy(function) is function


def test_foldmaps_are_found_by_name() -> None:
    assert again(paths) is paths
    assert copy.deepcopy({"step": paths})["step"] is paths
    on = again(paths.on([1, 2]))
    assert on.base is paths
    assert on.vertices == [1, 2]


def test_other_foldmaps_are_declared_again() -> None:
    step = fg.foldmap(most, unnamed)
    made = again(step)
    assert made is not step
    assert made.program.functions[0] is most
    assert made.program.functions[1].function is plain
    assert made.program.digest == step.program.digest
    assert again(fg.combine(larger, identity=0)).function is larger
    assert again(fg.program.combines.Combine("sum")).name == "sum"  # type: ignore[attr-defined]
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    states = [fg.State(graph, y=fg.vertex_property([3, 1, 2])) for _ in range(2)]
    for each, state in zip([step, made], states, strict=True):
        each(state, target="cpu")
    same(*states)


def test_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (lowest, corner, square, most):
        # Its name stands for something else.
        monkeypatch.setattr(function, "__qualname__", "again")
        declare, given = function.__reduce__()
        assert declare is type(function)
        assert declare(*given).settings() == function.settings() != {}


def test_local_functions_are_refused() -> None:
    @fg.vertex
    def local(f, v, d):
        return False

    for value in (local, fg.foldmap(local), fg.foldmap(local).on([0])):
        with pytest.raises(
            (AttributeError, pickle.PicklingError), match=r"local object.*local"
        ):
            pickle.dumps(value)
    assert copy.deepcopy(fg.foldmap(local)).program.functions == (local,)


def test_runs_come_back_to_be_read() -> None:
    state = make(fg.Graph.from_edges([0, 1, 2], [1, 2, 0]), 1)
    record = run(paths, state, 50, record_active=True)
    for made in (again(record), copy.deepcopy(record)):
        assert made.active_counts == record.active_counts
        assert made.active_sets == record.active_sets
        assert made.seconds == record.seconds
        assert repr(made) == repr(record)
        assert made.kernels[0].source == record.kernels[0].source
        assert made.kernels[0].explain() == record.kernels[0].explain()
        assert repr(made.kernels[0]) == repr(record.kernels[0])
    assert isinstance(again(record).kernels[0], KernelText)
    assert again(again(record)).kernels == again(record).kernels


def test_a_state_with_what_has_run_on_it(target: str) -> None:
    @fg.vertex
    def local(f, v, d):
        d.x_next[v, f] = d.x[v, f] * 0.5
        return d.x[v, f] > 0.125

    step = fg.foldmap(local)
    state = make(fg.Graph.from_edges([0, 1, 2], [1, 2, 0]), 1)
    run(step, state, 2, target=target)
    made = again([state, state.graph, state])
    assert made[0] is made[2]
    assert made[0].graph is made[1]
    same(made[0], state)
    run(step, state, 5, target=target), run(step, made[0], 5, target=target)
    same(made[0], state)


def work(step: fg.FoldMap, state: fg.State) -> tuple[fg.Run, fg.State]:
    return run(step, state, 100), state


def test_other_processes_run_them() -> None:
    rng = np.random.default_rng(2)
    graph = fg.Graph.from_edges(*rng.integers(0, 60, (2, 200)), vertex_count=60)
    states = [make(graph, seed) for seed in range(2)]
    run(paths, states[0], 1)
    jobs = [(paths, states[0]), (paths.on(np.arange(30)), states[1])]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answers = pool.starmap_async(work, jobs).get(120)
    for (step, state), (record, found) in zip(jobs, answers, strict=True):
        expected = run(step, state, 100)
        assert record.active_counts == expected.active_counts
        same(found, state)
