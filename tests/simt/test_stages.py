"""Stages in the loop of one kernel leave what the host leaves (0098)."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.loops import worklist_cuda
from tests.programs.staged import STAGED
from tests.simt.gpu import Gpu
from tests.simt.test_queue import in_a_loop, record, same
from tests.strategies import graphs, seeds

#: Those that a loop of a GPU runs.
LOOPED = {"peeling", "countdown", "walls"}
NAMES = sorted(STAGED)


@contextmanager
def in_loops(most: int, **options: Any) -> Iterator[Gpu]:
    """Give a GPU that runs loops, and those with stages, at once."""
    with in_a_loop(most, **options) as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worklist_cuda.CudaQueue, "_is_there", lambda *given: True)
        yield gpu


def run(name: str, graph: fg.Graph, seed: int, by: str, **options: Any) -> Any:
    """Run a program on the GPU, or on the CPU; return the State and the record."""
    step, stage, state_of, _ = STAGED[name]
    state = fg.State(graph, **state_of(graph, np.random.default_rng(seed)))
    target = "cpu" if by == "cpu" else "cuda"

    def call(run: fg.Run | None, state: fg.State) -> Any:
        return stage(state, target=target)

    options = {"deterministic": True, "target": target} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        then = stage if by == "loop" else call
        active = call(None, state)
        return state, fg.iterate(step, state, active=active, then=then, **options)


def looped(gpu: Gpu) -> int:
    """Return how many loops with a stage were launched."""
    return (gpu.by_dialect + gpu.by_driver).count("supersteps_and_stages_0")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", sorted(LOOPED))
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_loop_leaves_what_the_host_leaves(name: str, data: st.DataObject) -> None:
    graph, seed = data.draw(graphs()), data.draw(seeds)
    limit, most = data.draw(st.integers(0, 12)), data.draw(st.sampled_from([12, 4096]))
    logged = data.draw(st.sampled_from([3, 1 << 10]))
    away = data.draw(st.sampled_from([0.0, 1e9]))
    one, ran = run(name, graph, seed, "cpu", max_supersteps=limit)
    with in_loops(most, logged=logged, away=away):
        other, ran_other = run(name, graph, seed, "loop", max_supersteps=limit)
        same(one, other)
    assert record(ran) == record(ran_other)


@pytest.mark.parametrize("name", NAMES)
def test_which_stages_run_in_a_loop(name: str) -> None:
    graph = fg.graph.generators.grid(5, 4)
    one, ran = run(name, graph, 3, "cpu")
    with in_loops(4096) as gpu:
        other, ran_other = run(name, graph, 3, "loop")
        if name != "sums of reals":  # targets round otherwise
            same(one, other)
            assert record(ran) == record(ran_other)
    assert looped(gpu) == (name in LOOPED)


def test_a_limit_is_met_before_a_stage() -> None:
    """Limits at every superstep: no stage runs behind the last one."""
    for limit in range(1, 14):
        graph = fg.graph.generators.grid(3, 2)
        one, ran = run("walls", graph, 3, "cpu", max_supersteps=limit)
        with in_loops(4096) as gpu:
            other, ran_other = run("walls", graph, 3, "loop", max_supersteps=limit)
            same(one, other)
        assert record(ran) == record(ran_other)
        assert looped(gpu) == (limit > 1)
    assert ran.converged


def test_until_the_loop_is_compiled_the_host_runs_stages() -> None:
    graph = fg.graph.generators.grid(5, 4)
    one, ran = run("peeling", graph, 3, "cpu")
    with in_loops(4096) as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worklist_cuda.CudaQueue, "_is_there", lambda *given: False)
        other, ran_other = run("peeling", graph, 3, "loop")
        same(one, other)
    assert not looped(gpu)
    assert record(ran) == record(ran_other)


@pytest.mark.usefixtures("interruptible")
def test_behind_an_interrupt_everything_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fg.graph.generators.grid(5, 4)
    end = worklist_cuda.CudaQueue._run

    def interrupted(self: Any, *given: Any) -> Any:
        done = end(self, *given)
        signal.raise_signal(signal.SIGINT)
        return done

    step, stage, state_of, _ = STAGED["peeling"]
    state = fg.State(graph, **state_of(graph, np.random.default_rng(1)))
    with in_loops(4096):
        first = stage(state, target="cuda")
        with monkeypatch.context() as patched:
            patched.setattr(worklist_cuda.CudaQueue, "_run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fg.iterate(step, state, active=first, target="cuda", then=stage)
        whole, _ = run("peeling", graph, 1, "loop")
        assert state.superstep == whole.superstep
        assert np.array_equal(state["core"], whole["core"])
        again = fg.iterate(step, state, target="cuda", max_supersteps=5)
        assert again.active_counts == [0]  # all were due, and no one is left
