"""Compiling in the background: the queue, and runs in the meantime (0045)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms import bfs, sssp
from featgraph.runtime.loops import background, worklist
from featgraph.runtime.loops.background import CompileQueue, Function, Job
from tests.strategies import examples, graphs, seeds

ROOT = Path(__file__).parents[2]


class Gate:
    """A part that compiles until it is opened; remembers on which thread."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()
        self.thread: int | None = None

    def __call__(self) -> None:
        self.thread = threading.get_ident()
        self.begun.set()
        assert self.opened.wait(60)


@pytest.fixture
def behind() -> Iterator[CompileQueue]:
    made = CompileQueue()
    yield made
    made.stop()


def refuse() -> None:
    raise ValueError("no such register")


def test_nothing_is_compiled_before_it_begins(behind: CompileQueue) -> None:
    on: list[int] = []

    def prepare() -> list[Callable[[], None]]:
        on.append(threading.get_ident())
        return [gate, gate]

    gate, job = Gate(), Job("a kernel", prepare)
    for _ in range(2):
        behind.add(job)
    assert not on
    behind.begin()
    assert on == [threading.get_ident()]  # once, and where the run is
    assert gate.begun.wait(60)
    assert not job.is_done
    gate.opened.set()
    behind.wait()
    assert job.is_done
    assert gate.thread != threading.get_ident()


def test_jobs_come_one_after_the_other(behind: CompileQueue) -> None:
    found: list[int] = []
    for number in range(20):
        behind.add(Job("", lambda n=number: [lambda: found.append(n)]))
        behind.begin()
    behind.wait()
    assert found == list(range(20))


def test_what_takes_long_waits_until_runs_compile_nothing(
    behind: CompileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "QUIET_S", 0.01)
    compiled, has_begun, begun = iter([1, 2, 3, 3, 4]), [], threading.Event()

    def firsts() -> int:
        has_begun.append(begun.is_set())
        return next(compiled)

    behind.add(Job("", lambda: [begun.set], firsts))
    behind.begin()
    assert begun.wait(60)
    assert has_begun == [False] * 4


@pytest.mark.parametrize("ends", [False, True])
def test_waiting_or_ending_does_not_wait_for_quiet(
    ends: bool, behind: CompileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "QUIET_S", 600.0)
    job, was_read = Job("", lambda: [lambda: None]), threading.Event()
    job.firsts = lambda: len([was_read.set()])
    behind.add(job)
    behind.begin()
    assert was_read.wait(60)
    behind.stop() if ends else behind.wait()
    assert job.is_done is not ends


@pytest.mark.parametrize("users", [5e-3, 1e-5])
@pytest.mark.parametrize("changed", [None, 2e-3])
def test_runs_get_the_interpreter_soon(
    users: float, changed: float | None, behind: CompileQueue
) -> None:
    before, gate = sys.getswitchinterval(), Gate()
    try:
        sys.setswitchinterval(users)
        behind.add(Job("", lambda: [gate]))
        behind.begin()
        assert gate.begun.wait(60)
        assert sys.getswitchinterval() == pytest.approx(min(users, 1e-4))
        if changed is not None:
            sys.setswitchinterval(changed)
        thread = behind._thread
        gate.opened.set()
        behind.wait()
        if thread is not None:
            thread.join(60)
        assert sys.getswitchinterval() == pytest.approx(changed or users)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("fails_in", ["prepare", "part"])
def test_an_error_is_warned_of_once_and_the_next_job_compiled(
    fails_in: str, behind: CompileQueue
) -> None:
    failing = Job("the kernel of step", refuse if fails_in == "prepare" else list)
    if fails_in == "part":
        failing.prepare = lambda: [refuse]
    good = Job("another", lambda: [lambda: None])
    for job in (failing, good):
        behind.add(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        behind.begin()
        behind.wait()
    assert {w.category for w in caught} == {fg.CompilationWarning}
    assert [str(w.message) for w in caught] == [
        "the kernel of step could not be compiled; runs go on without it: "
        "ValueError: no such register"
    ]
    assert good.is_done
    assert not failing.is_done
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        behind.begin()
        behind.wait()


def test_the_end_gives_up_what_is_being_compiled() -> None:
    """Also if a library catches the first interrupt."""
    behind, begun, left = CompileQueue(), threading.Event(), threading.Event()

    def compile_for_ever() -> None:
        try:
            begun.set()
            while True:
                threading.Event().wait(0.001)
        except BaseException:
            while True:
                threading.Event().wait(0.001)

    behind.add(Job("", lambda: [compile_for_ever, left.set]))
    behind.add(Job("", lambda: [left.set]))
    behind.begin()
    assert begun.wait(60)
    thread = behind._thread
    behind.stop()
    assert thread is not None
    assert not thread.is_alive()
    assert not left.is_set()
    behind.add(Job("", lambda: [left.set]))
    behind.begin()
    assert not left.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_goes_on_with_a_thread_of_its_own(behind: CompileQueue) -> None:
    gate, done = Gate(), [False, False]
    jobs = [
        Job("", lambda: [gate, lambda: done.__setitem__(0, True)]),
        Job("", lambda: [lambda: done.__setitem__(1, True)]),
    ]
    for job in jobs:
        behind.add(job)
    behind.begin()
    assert gate.begun.wait(60)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        behind.forget_thread()
        gate.opened.set()
        behind.wait()
        os.write(write, bytes([*done, *(job.is_done for job in jobs)]))
        os._exit(0)
    gate.opened.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(read, 4) == bytes([1, 1, 1, 1])
    os.close(read)
    os.close(write)
    behind.wait()
    assert done == [True, True]


# -- what runs do meanwhile


class Compiling:
    """Stands in for the compiler: a missing kernel is ready on command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.behind = Gate(), CompileQueue()
        missing = [Function(False, self.gate)]
        monkeypatch.setattr(fg.config, "compile_behind", True)
        monkeypatch.setattr(background, "_jobs", WeakKeyDictionary())
        patch = monkeypatch.setattr
        patch(background, "functions_of", lambda superstep, forms: missing)
        monkeypatch.setattr(background, "set_functions_of", lambda superstep: [])
        for module in (background, "featgraph.runtime.iterate"):
            name = module if isinstance(module, str) else module.__name__
            monkeypatch.setattr(f"{name}.COMPILER", self.behind)

    def finish(self) -> None:
        self.gate.opened.set()
        self.behind.wait()


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    made = Compiling(monkeypatch)
    yield made
    made.gate.opened.set()
    made.behind.stop()


@pytest.fixture(scope="module")
def graph() -> fg.Graph:
    """Connected hubs and thousands of leaves: R-MAT, both ways."""
    drawn = fg.graph.generators.rmat(11, 16, seed=4)
    return fg.Graph.from_edges(
        drawn.sources, drawn.targets, vertex_count=drawn.vertex_count, directed=False
    )


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("featgraph.runtime.loops.worklist.SMALLEST_GRAPH", 1 << 60)


def search(graph: fg.Graph, **options: Any) -> Any:
    source = int(np.argsort(graph.in_degree)[graph.vertex_count // 2])
    return bfs(graph, source, target="cpu", deterministic=True, **options)


@pytest.mark.usefixtures("one_by_one")
def test_a_run_goes_on_in_the_direction_that_it_has(
    graph: fg.Graph, compiling: Compiling
) -> None:
    first = search(graph)
    assert set(first.run.directions) == {"pull"}
    assert compiling.gate.begun.wait(60)
    assert set(search(graph).run.directions) == {"pull"}
    # A direction that is given by name is compiled at once.
    assert set(search(graph, direction="push").run.directions) == {"push"}
    compiling.finish()
    second = search(graph)
    assert set(second.run.directions) == {"pull", "push"}
    for name in ("levels", "parents"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert first.run.active_counts == second.run.active_counts


@pytest.mark.usefixtures("one_by_one")
def test_a_long_run_does_not_wait_for_its_end(
    graph: fg.Graph, compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featgraph.runtime.iterate.LONG", 2)
    weights = np.random.default_rng(2).integers(1, 99, graph.given_edge_count) / 4
    begun: list[bool] = []

    def look(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 3:
            assert compiling.gate.begun.wait(60)
            compiling.finish()
        begun.append(compiling.gate.begun.is_set())

    given = {"weights": weights, "near_far": None, "callback": look}
    found = sssp(graph, 1, target="cpu", **given).run.directions
    assert not begun[0]
    assert "push" not in found[:3]
    assert "push" in found[3:]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loop_goes_on_where_single_supersteps_are_missing(
    weighted: bool,
    graph: fg.Graph,
    compiling: Compiling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worklist, "MOST_EDGES", 500)
    monkeypatch.setattr(worklist, "_most_edges", lambda *given: 500)

    def call() -> Any:
        if not weighted:
            return search(graph)
        weights = np.random.default_rng(2).integers(1, 99, graph.given_edge_count) / 4
        return sssp(graph, 1, weights=weights, target="cpu", near_far=None)

    first = call()
    assert set(first.run.directions) == {"push"}
    assert len(first.run.directions) == len(first.run.seconds) == first.supersteps
    compiling.finish()
    second = call()
    assert "pull" in second.run.directions
    assert first.run.active_counts == second.run.active_counts
    for name in ("distances", "predecessors") if weighted else ("levels", "parents"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_a_loop_leaves_large_graphs_to_single_supersteps(
    graph: fg.Graph, compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklist, "_most_edges", lambda *given: 500)
    monkeypatch.setattr(worklist, "_MOST_ALONE", graph.edge_count - 1)
    assert "pull" in search(graph).run.directions


@fg.gather(into="ways", combine="sum", sources="active")
def ways_here(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.paths[u, f] + d.length[e]


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    d.paths_next[v, f] = (d.paths[v, f] + d.ways[v, f]) % 1009
    return d.ways[v, f] % 3 != 0


COUNTS = fg.foldmap(ways_here, add_up)


@given(graphs(), seeds, st.integers(0, 5))
@examples(6, 12)
def test_results_do_not_depend_on_when_it_switches(
    graph: fg.Graph, seed: int, ready_from: int
) -> None:
    """Sums of integers, searches and paths, with kernels that come at any superstep."""
    rng = np.random.default_rng(seed)
    length = rng.integers(0, 9, graph.given_edge_count)
    paths = rng.integers(0, 99, (graph.vertex_count, 1)).astype(np.int32)
    answers: list[Any] = []
    for first in (0, ready_from, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            calls = count(-first)
            name = "featgraph.runtime.loops.foldmap_run"
            patch.setattr(f"{name}.is_push_shorter", lambda *given: True)
            patch.setattr(f"{name}.least_pulled", lambda *given: -1)
            patch.setattr(f"{name}.is_ready", lambda *_, calls=calls: next(calls) >= 0)
            state = fg.State(
                graph,
                paths=fg.vertex_property(paths.copy(), iterated=True),
                length=fg.edge_property(length.astype(np.int32)),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                run = fg.iterate(
                    COUNTS, state, active=[0], max_supersteps=6, target="cpu"
                )
            found = bfs(graph, 0, target="cpu", deterministic=True)
            ways = sssp(graph, 0, weights=length, target="cpu")
            if first == ready_from and run.supersteps:
                switched = ["pull"] * min(first, run.supersteps)
                assert run.directions[: len(switched)] == switched
            answers.append(
                [state["paths"], found.levels, found.parents, ways.distances,
                 ways.predecessors, run.active_counts, found.run.active_counts]
            )  # fmt: skip
    for other in answers[1:]:
        for one, two in zip(answers[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


# -- a process of its own, in which nothing is compiled yet

FRESH = """
import sys, time
import numpy as np
import featgraph as fg
from featgraph.algorithms.bfs import bfs, step
from featgraph.runtime.loops import background

drawn = fg.graph.generators.rmat(int(sys.argv[1]), 16, seed=4)
graph = fg.Graph.from_edges(
    drawn.sources, drawn.targets, vertex_count=drawn.vertex_count, directed=False
)
source = int(np.argsort(graph.in_degree)[graph.vertex_count // 2])

def search():
    return bfs(graph, source, target="cpu", deterministic=True)

first = search()
print(*sorted(set(first.run.directions)))
if len(sys.argv) > 2:
    thread = background.COMPILER._thread
    assert thread is not None and thread.is_alive()
    sys.exit(3)
background.COMPILER.wait()
second = search()
print(*sorted(set(second.run.directions)))
assert np.array_equal(first.levels, second.levels)
assert np.array_equal(first.parents, second.parents)
# By types alone, which are those of the calls: no function is compiled twice.
count = 0
for name, module in sys.modules.items():
    if name.startswith("featgraph_kernel_"):
        for value in vars(module).values():  # but what the compiler inlines
            if hasattr(value, "overloads") and "no_cpython_wrapper" not in str(
                value.targetoptions
            ):
                assert len(value.overloads) <= 1, (value, list(value.overloads))
                count += len(value.overloads)
assert count > 2
"""


def in_a_process(folder: Path, *given: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "FEATGRAPH_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "NUMBA_NUM_THREADS": "2",
    }
    return subprocess.run(
        [sys.executable, "-c", FRESH, *given],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("scale", "had"), [("9", "pull"), ("14", "push")], ids=["single", "loop"]
)
def test_a_process_compiles_one_direction_first(
    scale: str, had: str, tmp_path: Path
) -> None:
    if had == "pull":
        done = in_a_process(tmp_path, scale, "ends")  # at once, and says nothing
        assert (done.returncode, done.stderr, done.stdout) == (3, "", f"{had}\n")
    done = in_a_process(tmp_path, scale)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [had, "pull push"]
    # Another process finds both in the store.
    done = in_a_process(tmp_path, scale)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["pull push", "pull push"]
