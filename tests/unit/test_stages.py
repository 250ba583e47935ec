"""Foldmaps as ``then=``: loops run them as the host would, on every target (0098)."""

from __future__ import annotations

import ast
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.fold.plan.plan import VERTICES
from featgraph.runtime.loops import worklist
from tests.programs.staged import STAGED
from tests.strategies import graphs, seeds
from tests.unit.test_cpu_queue import MOST_EDGES, in_a_loop, record, same

NAMES = sorted(STAGED)


def make(name: str, graph: fg.Graph, seed: int) -> tuple[Any, Any, fg.State]:
    step, stage, state_of, _ = STAGED[name]
    return step, stage, fg.State(graph, **state_of(graph, np.random.default_rng(seed)))


def called(stage: Any, target: str = "cpu") -> Any:
    """Return a function that calls a stage, as a user's own would."""
    return lambda run, state: stage(state, target=target)


def run(name: str, graph: fg.Graph, seed: int, by: str, **options: Any) -> Any:
    """Run a program from its first stage on; return the State and the record."""
    step, stage, state = make(name, graph, seed)
    options = {"deterministic": True, "target": "cpu"} | options
    then = stage if by == "loop" else called(stage, options["target"])
    if options.pop("begins", True) or name == "peeling":  # its k is that of a stage
        options["active"] = stage(state, target=options["target"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return state, fg.iterate(step, state, then=then, **options)


def grid() -> fg.Graph:
    return fg.graph.generators.grid(9, 7)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of stages of each call of a compiled loop."""
    ran, found = worklist.CpuQueue._run, list[int]()

    def counted(self: Any, *given: Any) -> Any:
        done = ran(self, *given)
        found.append(done.stages)
        return done

    monkeypatch.setattr(worklist.CpuQueue, "_run", counted)
    return found


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_loop_leaves_what_the_host_leaves(name: str, data: st.DataObject) -> None:
    graph, seed = data.draw(graphs()), data.draw(seeds)
    limit, more = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 60))
    most_edges, batch = data.draw(MOST_EDGES), data.draw(st.sampled_from([2, 1 << 14]))
    begins = data.draw(st.booleans())
    found = []
    for by, most in (("host", -1), ("host", most_edges), ("loop", most_edges)):
        with in_a_loop(most, batch):
            given = {"max_supersteps": limit, "begins": begins}
            state, first = run(name, graph, seed, by, **given)
            step, stage, _ = make(name, graph, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                then = stage if by == "loop" else called(stage)
                second = fg.iterate(
                    step, state, target="cpu", max_supersteps=more, then=then,
                    deterministic=True,
                )  # fmt: skip
            found.append((state, record(first), record(second)))
    for state, *records in found[1:]:
        same(found[0][0], state)
        assert records == list(found[0][1:])


@pytest.mark.parametrize("name", NAMES)
def test_which_stages_run_in_a_loop(name: str, staged: list[int]) -> None:
    with in_a_loop(1 << 20):
        _, done = run(name, grid(), 3, "loop")
    assert done.converged
    assert bool(sum(staged)) == STAGED[name][3]
    if STAGED[name][3]:  # the last stage commits nothing, and ends the call
        assert len([n for n in staged if n]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_met_before_a_stage(name: str, staged: list[int]) -> None:
    """Limits at every superstep: no stage runs behind the last one."""
    with in_a_loop(1 << 20):
        _, whole = run(name, grid(), 3, "loop")
        for limit in range(whole.supersteps + 2):
            found = [
                run(name, grid(), 3, by, max_supersteps=limit)
                for by in ("host", "loop")
            ]
            (one, ran), (other, ran_other) = found
            same(one, other)
            assert record(ran) == record(ran_other)


def test_stages_of_many_words_and_chunks(
    staged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of reals have the bits of sums chunk by chunk."""
    monkeypatch.setattr("featgraph.runtime.devices.host_arrays.SMALLEST_CHUNK", 64)
    graph = fg.graph.generators.rmat(10, 4, seed=5, directed=False)
    for name in NAMES:
        found = []
        for by in ("host", "loop"):
            with in_a_loop(1 << 20):
                found.append(run(name, graph, 1, by))
        (one, ran), (other, ran_other) = found
        same(one, other)
        assert record(ran) == record(ran_other)
    assert sum(staged) > 20


@pytest.mark.parametrize(
    "look", [{"callback": lambda r, s: None}, {"until": lambda s: False},
             {"record_active": True}],
)  # fmt: skip
def test_what_looks_at_each_superstep_has_the_host_run_stages(
    look: dict[str, Any], staged: list[int]
) -> None:
    with in_a_loop(1 << 20):
        one, ran = run("peeling", grid(), 1, "host", **look)
        other, ran_other = run("peeling", grid(), 1, "loop", **look)
    assert not staged
    same(one, other)
    assert record(ran) == record(ran_other)


@pytest.mark.parametrize(
    ("name", "lists"),
    [("peeling", [True, True]), ("sums of reals", [False, True, True])],
)
def test_sweeps_of_a_stage_go_over_lists(name: str, lists: list[bool]) -> None:
    """A sum of reals goes over words, in the order of the host."""
    _, stage, state = make(name, grid(), 1)
    source = stage.fold(state, target="cpu").in_form(VERTICES).source
    found = {
        node.name: "due[place]" in ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("sweep_")
    }
    assert list(found.values()) == lists
    assert "in_parallel" not in source


def test_a_stage_on_some_vertices_is_called_by_the_host(staged: list[int]) -> None:
    step, stage, state = make("peeling", grid(), 1)
    some = np.arange(63) % 5 > 0
    with in_a_loop(1 << 20):
        first = stage.on(some)(state, target="cpu")
        fg.iterate(step, state, active=first, target="cpu", then=stage.on(some))
    assert not sum(staged)
    assert (state["core"][some] > 0).all()


def test_a_result_that_is_elsewhere_is_made_by_the_host_first(
    staged: list[int],
) -> None:
    """Another value of that name stands where the stage has its results."""
    found = []
    for by in ("host", "loop"):
        step, stage, state = make("peeling", grid(), 1)
        first = stage(state, target="cpu")
        state["k"] = np.array([2])
        then = stage if by == "loop" else called(stage)
        with in_a_loop(1 << 20, 3):
            done = fg.iterate(step, state, active=first, target="cpu", then=then)
        found.append((state, record(done)))
    same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert not staged[0]


@pytest.mark.usefixtures("interruptible")
def test_behind_an_interrupt_everything_is_due(
    monkeypatch: pytest.MonkeyPatch, staged: list[int]
) -> None:
    call = worklist.CpuQueue._call

    def interrupted(self: Any, values: list[Any]) -> None:
        call(self, values)
        signal.raise_signal(signal.SIGINT)

    step, stage, state = make("searches", grid(), 1)
    first = stage(state, target="cpu")
    with in_a_loop(1 << 20), monkeypatch.context() as patched:
        patched.setattr(worklist.CpuQueue, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(step, state, active=first, target="cpu", then=stage)
    whole, _ = run("searches", grid(), 1, "host")
    assert state.superstep == whole.superstep
    assert np.array_equal(state["label"], whole["label"])
    assert np.array_equal(state["root"], whole["root"])
    again = fg.iterate(step, state, target="cpu", max_supersteps=9)
    assert again.converged
    assert again.active_counts == [0]  # all were due, and it was found


@pytest.mark.parametrize("name", ["peeling", "searches", "sums of reals"])
def test_a_run_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    graph = fg.graph.generators.rmat(8, 4, seed=5, directed=False)
    with in_a_loop(1 << 20, 2):
        whole, ran = run(name, graph, 1, "loop")
        given = {"checkpoint": tmp_path / "run", "every": 0.0}
        limit = ran.supersteps // 2
        run(name, graph, 1, "loop", max_supersteps=limit, **given)
        state, done = run(name, graph, 1, "loop", **given)
    same(whole, state)
    assert done.supersteps == ran.supersteps
    assert done.active_counts == ran.active_counts


def test_stages_run_on_graphs_that_change(staged: list[int]) -> None:
    rng = np.random.default_rng(4)
    ends = rng.integers(0, 90, (2, 300))
    apart = ends[:, ends[0] != ends[1]]
    graph = fg.DynamicGraph.from_edges(*apart, directed=False, target="cpu")
    for _ in range(3):
        batch = rng.integers(0, 90, (2, 9))
        graph.insert_edges(*batch[:, batch[0] != batch[1]])
        found = []
        for by in ("host", "loop"):
            with in_a_loop(1 << 20):
                found.append(run("peeling", graph, 1, by))  # type: ignore[arg-type]
        (one, ran), (other, ran_other) = found
        same(one, other)
        assert record(ran) == record(ran_other)
    assert sum(staged) > 3


def test_an_error_of_a_stage_is_raised_when_it_runs() -> None:
    @fg.vertex
    def reads_nothing(f, v, d):
        return d.missing[v] > 0

    step, stage, state = make("peeling", grid(), 1)
    first = stage(state, target="cpu")
    wrong = fg.foldmap(reads_nothing)
    with in_a_loop(1 << 20):
        with pytest.warns(fg.ConvergenceWarning):
            fg.iterate(step, state, active=first, target="cpu", then=wrong,
                       max_supersteps=2)  # fmt: skip
        with pytest.raises(fg.UserFunctionError, match="missing"):
            fg.iterate(step, state, target="cpu", then=wrong)
