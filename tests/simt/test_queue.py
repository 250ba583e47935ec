"""Supersteps in one kernel leave what they leave one by one (0042)."""

from __future__ import annotations

import ast
import builtins
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.algorithms.bfs import verify_bfs
from featgraph.cuda import launch as cuda_launch
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import WORKLIST
from featgraph.program.signature import GENERATED, LOOPS
from featgraph.runtime.devices import cuda_device
from featgraph.runtime.loops import foldmap_run as steps
from featgraph.runtime.loops import worklist_cuda
from featgraph.runtime.loops.background import COMPILER, Job
from featgraph.runtime.superstep.bound import BoundState
from tests.programs.queued import QUEUED
from tests.simt.gpu import Gpu, emulated_gpu
from tests.strategies import graphs, seeds

#: Threads of the one block that runs: two warps, since lanes take their time.
THREADS = 64
#: Sources and edges that a superstep may have: none, some, all there are.
MOST = st.sampled_from([0, 12, 60, 1 << 12])


def loop_of(kernel: Kernel) -> Kernel:
    """Return the kernel of the loop, for few threads."""
    source = kernel.in_form(WORKLIST).kernel_source
    assert source.queue is not None
    assert source.queue.entry is not None
    entry = replace(source.queue.entry, block=THREADS)
    return Kernel(replace(source, queue=replace(source.queue, entry=entry)))


@contextmanager
def in_a_loop(most: int, logged: int = 1 << 10, away: float = 1e9) -> Iterator[Gpu]:
    """Give a GPU that runs loops at once; -1 for never."""
    known: dict[Kernel, Kernel] = {}

    def find(self: worklist_cuda.CudaQueue) -> Kernel | None:
        kernel = self._step.kernel
        if kernel not in known:
            known[kernel] = loop_of(kernel)
        return known[kernel] if most >= 0 else None

    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worklist_cuda, "MOST_ACTIVE", max(most, 1))
        patch.setattr(worklist_cuda, "_MOST_AWAY", away)
        patch.setattr(worklist_cuda.CudaQueue, "_find_kernel", find)
        patch.setattr(worklist_cuda, "LOGGED", logged)
        yield gpu


def make(name: str, graph: fg.Graph, seed: int) -> tuple[Any, fg.State]:
    """Return a foldmap, and its State; real numbers are of 32 bits."""
    step, state_of, _, k = QUEUED[name]
    values: dict[str, Any] = state_of(graph, k, np.random.default_rng(seed))
    state = fg.State(graph, **values)
    reals = {n for n, t in state.signature.items() if t.dtype == "float64"}
    for each in reals:
        given = values[each]
        kind = getattr(fg, f"{state.signature[each].kind.value}_property", None)
        if kind is None:
            values[each] = np.float32(given)
            continue
        type_ = state.signature[each]
        more = {"iterated": True} if type_.iterated else {}
        if type_.kind.value == "edge":
            more["per_direction"] = not type_.shared
        values[each] = kind(np.asarray(state[each], np.float32), **more)
    return step, fg.State(graph, **values)


def run(step: Any, state: fg.State, target: str, **options: Any) -> fg.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return fg.iterate(step, state, target=target, **options)


def record(run: fg.Run) -> tuple[Any, ...]:
    """Return the record of a run without times and directions."""
    return (
        run.supersteps, run.converged, run.active_counts, run.aggregates,
        run.thresholds, len(run.seconds), len(run.directions),
    )  # fmt: skip


def same(one: fg.State, other: fg.State) -> None:
    assert one.superstep == other.superstep
    for name in one.signature:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def loops(gpu: Gpu) -> int:
    """Return how many loops were launched."""
    return (gpu.by_dialect + gpu.by_driver).count("supersteps_0")


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", sorted(QUEUED))
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_the_loop_leaves_what_supersteps_leave(name: str, data: st.DataObject) -> None:
    """Also where it is entered and left again, and where limits and time cut it."""
    graph, seed = data.draw(graphs()), data.draw(seeds)
    limit, most = data.draw(st.integers(2, 6)), data.draw(MOST)
    delta = data.draw(st.sampled_from([0.125, 0.5, 4.0]))
    logged, away = data.draw(st.sampled_from([(2, 1e9), (99, 1e9), (99, 0.0)]))
    picked = np.random.default_rng(seed).random(graph.vertex_count) < 0.3
    step, meant = make(name, graph, seed)
    # Which contribution a gather takes first is not defined.
    calls = [
        {"active": picked, "max_supersteps": limit, "deterministic": True},
        {"max_supersteps": 40, "deterministic": True},
        {"active": ~picked, "max_supersteps": 3, "deterministic": True},
    ]
    key = QUEUED[name][2]
    if key is not None and data.draw(st.booleans()):
        calls = [{**call, "near_far": fg.NearFar(key, delta=delta)} for call in calls]
    expected = [record(run(step, meant, "cpu", **call)) for call in calls]
    with in_a_loop(most, logged, away):
        step, state = make(name, graph, seed)
        found = [record(run(step, state, "cuda", **call)) for call in calls]
        same(state, meant)
    assert found == expected


def path_state(count: int = 90) -> tuple[Any, fg.State]:
    ends = np.arange(count - 1)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    level = np.full((count, 1), 1 << 20, np.int32)
    level[0] = 0
    values = {n: fg.vertex_property(level.copy(), iterated=True) for n in LEVELS}
    return QUEUED["search"][0], fg.State(graph, **values)


LEVELS = ("level", "parent")


def test_a_run_is_one_launch() -> None:
    with in_a_loop(1 << 10) as gpu:
        step, state = path_state()
        done = run(step, state, "cuda", active=[0])
        assert loops(gpu) == 1
        assert state["level"].ravel().tolist() == list(range(90))
    assert done.active_counts == [1] * 89 + [0]
    assert done.directions == ["push"] * 90
    assert min(done.seconds) >= 0


def test_a_log_of_many_thresholds_leaves_the_other_words() -> None:
    ends = np.arange(89)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    with in_a_loop(1 << 10) as gpu:
        found = algorithms.sssp(
            graph, 0, near_far=fg.NearFar("distance", 4.0), target="cuda"
        )
        assert loops(gpu) >= 1
        np.testing.assert_array_equal(np.asarray(found.distances), np.arange(90))
    assert len(found.run.thresholds) == found.run.supersteps >= 90
    assert found.run.thresholds[-1] > found.run.thresholds[0]


@pytest.mark.parametrize("limit", [2, 3, 17])
def test_a_limit_is_met_exactly(limit: int) -> None:
    with in_a_loop(1 << 10):
        step, state = path_state()
        done = run(step, state, "cuda", active=[0], max_supersteps=limit)
        assert done.supersteps == state.superstep == limit
        assert (state["level"] < 1 << 20).sum() == limit + 1
        assert run(step, state, "cuda").supersteps == 90 - limit


def test_it_is_left_where_many_edges_are_and_entered_behind() -> None:
    """A hub in the middle of a path: too many edges for the loop, but for it only."""
    ends, leaves = np.arange(20), np.arange(21, 121)
    with in_a_loop(50) as gpu:
        graph = fg.Graph.from_edges(
            np.concatenate([ends, np.full(100, 10)]),
            np.concatenate([ends + 1, leaves]), directed=False,
        )  # fmt: skip
        level = np.full((121, 1), 1 << 20, np.int32)
        level[0] = 0
        values = {n: fg.vertex_property(level.copy(), iterated=True) for n in LEVELS}
        state = fg.State(graph, **values)
        done = run(QUEUED["search"][0], state, "cuda", active=[0])
        assert loops(gpu) == 2
    assert done.directions == ["push"] * 10 + ["pull"] * 2 + ["push"] * 9


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_whole_supersteps(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = cuda_launch.Launches.__call__

    def interrupting(self: Any, kernel: Any, *arguments: Any) -> None:
        launch(self, kernel, *arguments)
        if kernel.py_func.__name__ == "supersteps_0":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cuda_launch.Launches, "__call__", interrupting)
    with in_a_loop(1 << 10, logged=7):
        step, state = path_state()
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(step, state, active=[0], target="cuda")
        assert state.superstep == 7
        assert (state["level"] < 1 << 20).sum() == 8
        monkeypatch.setattr(cuda_launch.Launches, "__call__", launch)
        run(step, state, "cuda")
        assert state["level"].ravel().tolist() == list(range(90))


def test_memory_is_given_up_where_a_loop_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: worklist_cuda.QueueMemory, *given: Any) -> None:
        raise fg.DeviceError("the device is gone")

    with in_a_loop(1 << 10):
        step, state = path_state()
        with monkeypatch.context() as patch:
            patch.setattr(worklist_cuda.QueueMemory, "read", fail)
            with pytest.raises(fg.DeviceError, match="is gone"):
                fg.iterate(step, state, active=[0], target="cuda")
        step, state = path_state()
        run(step, state, "cuda", active=[0])
        assert state["level"].ravel().tolist() == list(range(90))


@pytest.mark.parametrize("when", ["launched", "read"])
def test_a_state_goes_on_behind_a_loop_that_fails(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Writes of a failed loop may be incomplete: all vertices are due afterwards."""
    launch = cuda_launch.Launches.__call__

    def failing(self: Any, kernel: Any, *arguments: Any) -> None:
        if kernel.py_func.__name__ == "supersteps_0":
            raise fg.DeviceError("a launch failed")
        launch(self, kernel, *arguments)

    def lost(self: worklist_cuda.QueueMemory, *given: Any) -> None:
        raise fg.DeviceError("a read failed")

    with in_a_loop(1 << 10, logged=7):
        step, state = path_state()
        run(step, state, "cuda", active=[0], max_supersteps=5)
        with monkeypatch.context() as patch:
            if when == "read":
                patch.setattr(worklist_cuda.QueueMemory, "read", lost)
            else:
                patch.setattr(cuda_launch.Launches, "__call__", failing)
            with pytest.raises(fg.DeviceError, match=f"{when[:4]}.* failed"):
                fg.iterate(step, state, target="cuda")
        # It says how many supersteps are known to have run, and these have.
        known = state.superstep
        assert 5 <= known <= 6
        reached = int((state["level"] < 1 << 20).sum())
        assert reached > known
        assert reached == known + 1 or when == "read"
        assert state["level"].ravel()[:reached].tolist() == list(range(reached))
        done = run(step, state, "cuda")
        assert done.converged
        assert state.superstep == known + done.supersteps
        assert state["level"].ravel().tolist() == list(range(90))


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled yet, and runs have it compiled behind them."""
    monkeypatch.setattr(fg.config, "compile_behind", True)
    for known in ("_wanted", "_jobs"):
        monkeypatch.setattr(worklist_cuda, known, WeakKeyDictionary())


@pytest.mark.usefixtures("anew")
def test_it_is_compiled_behind_the_first_run() -> None:
    with emulated_gpu() as gpu:
        step, state = path_state(12)
        done = run(step, state, "cuda", active=[0])
        COMPILER.wait()
        assert gpu.compiled_ahead.count("supersteps_0") == 1
        assert loops(gpu) == 0
        [kernel] = done.kernels
        assert worklist_cuda.is_compiled(kernel)
        step, state = path_state(12)
        run(step, state, "cuda", active=[0])
        assert loops(gpu) > 0
        assert "supersteps_0" not in gpu.by_dialect  # launched as it was compiled
        assert gpu.compiled_ahead.count("supersteps_0") == 1
        assert state["level"].ravel().tolist() == list(range(12))


@pytest.mark.usefixtures("anew")
def test_runs_of_few_supersteps_have_it_compiled_together() -> None:
    compiled = []
    with emulated_gpu() as gpu:
        while not compiled or compiled[-1] == 0:
            step, state = path_state(4)  # supersteps 1, 2 and 3, and an idle one
            run(step, state, "cuda", active=[0])
            COMPILER.wait()
            compiled.append(gpu.compiled_ahead.count("supersteps_0"))
    assert 2 <= len(compiled) <= 6
    assert compiled[-1] == 1


@pytest.mark.usefixtures("anew")
def test_runs_that_compile_something_themselves_come_first() -> None:
    """They would wait for the compiler; so would what another job has made possible."""
    compiled = []
    with emulated_gpu() as gpu:
        launches, may_end = cuda_device.cuda_device().launches, threading.Event()

        def search() -> None:
            step, state = path_state(4)
            run(step, state, "cuda", active=[0])
            compiled.append(gpu.compiled_ahead.count("supersteps_0"))

        for _ in range(6):
            search()
            launches.firsts += 1
        COMPILER.add(Job("another", lambda: [may_end.wait]))
        COMPILER.begin()
        for _ in range(6):
            search()
        may_end.set()
        COMPILER.wait()
        search()
        assert compiled == [0] * 13
        for _ in range(3):
            search()
            COMPILER.wait()
        search()
    assert compiled[-1] == 1


@pytest.mark.usefixtures("anew")
def test_a_loop_that_cannot_be_compiled_is_warned_of_and_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Gpu, kernel: Any, types: Any) -> None:
        raise RuntimeError("ptxas fatal: too many registers")

    monkeypatch.setattr(Gpu, "ahead", refuse)
    with emulated_gpu() as gpu:
        step, state = path_state(12)
        run(step, state, "cuda", active=[0])
        with pytest.warns(fg.CompilationWarning, match="loop over few.*registers"):
            COMPILER.wait()
        step, state = path_state(12)
        run(step, state, "cuda", active=[0])
        assert loops(gpu) == 0
        assert state["level"].ravel().tolist() == list(range(12))


def test_a_look_at_each_superstep_keeps_it_away() -> None:
    with in_a_loop(1 << 10) as gpu:
        step, state = path_state(12)
        done = run(step, state, "cuda", active=[0], until=lambda s: False)
        assert loops(gpu) == 0
    assert done.refused["worklist"] == "until= inspects each superstep"


@pytest.mark.parametrize("name", [*sorted(QUEUED), "one edge"])
def test_names_are_reserved(name: str) -> None:
    """A function of the user's must not be called as a local of the loop is."""
    if name == "one edge":
        step, state = path_state(9)
    else:
        step, state = make(name, fg.graph.generators.grid(3, 3), 0)
    module = ast.parse(step.fold(state, target="cuda").in_form(WORKLIST).source)
    known = {f.name for f in step.program.functions} | set(dir(builtins))
    for into in (f.into for f in step.program.functions if f.kind.gathers):
        known |= {into, f"{into}_source"}
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or node.name in known:
            continue
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        used = {n for n in used if re.match(r"entries_of_|.*_\d+$", n) is None}
        # The user's functions are printed in others alone.
        is_own = re.match("begin|first_key|is_near|refill|supersteps", node.name)
        assert used <= known | GENERATED | (LOOPS if is_own else set())


def test_wide_keys_are_refused() -> None:
    graph, rng = fg.graph.generators.grid(3, 3), np.random.default_rng(0)
    step, state_of, _, k = QUEUED["paths"]
    state = fg.State(graph, **state_of(graph, k, rng))
    why = step.fold(state, target="cuda").plan.facts.not_queued
    assert why.startswith("a key of 64 bits")


# -- vertices that one edge settles


@fg.vertex
def is_low(f, v, d):
    return d.height[v, f] < d.top


@fg.gather(into="lifted", combine="any", sources="active", first=True)
def lifts(f, u, v, e, d):
    return d.height[u, f] % 3 != 1


@fg.vertex
def rise(f, v, d):
    if not d.lifted[v, f]:
        return False
    d.height_next[v, f] = d.height[v, f] + 1
    return True


rising = fg.foldmap(is_low, lifts, rise)


@given(graphs(), seeds, MOST, st.sampled_from([1, 9]))
@settings(max_examples=8, deadline=None)
def test_sources_that_go_on_wait_for_all_edges(
    graph: fg.Graph, seed: int, most: int, top: int
) -> None:
    """With `top` = 1 no vertex that has risen goes on; with 9 most do."""
    rng = np.random.default_rng(seed)
    height = rng.integers(0, 2, (graph.vertex_count, 1))
    picked = height[:, 0] >= min(top, 2 - (top == 9))
    found = []
    for target in ("cpu", "cuda"):
        given = fg.vertex_property(height.astype(np.int32), iterated=True)
        state = fg.State(graph, height=given, top=top)
        with in_a_loop(most) as gpu:
            done = run(rising, state, target, active=picked, max_supersteps=20)
            found.append((state["height"].tolist(), done.active_counts))
            entered = loops(gpu)
    assert found[0] == found[1]
    assert entered > 0 or most == 0 or not picked.any() or found[0][1][:1] == [0]


@pytest.mark.parametrize(("most", "leaves"), [(40, 0), (1 << 12, 0), (1 << 12, 1300)])
def test_each_vertex_is_settled_once(most: int, leaves: int) -> None:
    """By whichever edge; in a loop without what gathers fill, nor a list of the met.

    All lanes of a warp list a row of many edges, here behind those of 62 sources more.
    """
    rng = np.random.default_rng(3)
    ends = rng.integers(0, 60, (2, 150))
    hub, near = np.full(leaves, 63), np.full(64 if leaves else 0, 5)
    star = [[*hub, *near], [*np.arange(64, 64 + leaves), *np.arange(near.size)]]
    graph = fg.Graph.from_edges(
        *np.concatenate([ends, star], axis=1).astype(np.int64),
        vertex_count=64 + leaves,
        directed=False,
    )
    meant = algorithms.bfs(graph, 5, target="cpu")
    with in_a_loop(most) as gpu:
        for _ in range(2):  # marks are as they were
            result = algorithms.bfs(graph, 5, target="cuda")
            verify_bfs(graph, 5, result.levels, result.parents)
            np.testing.assert_array_equal(result.levels, meant.levels)
            assert result.run.active_counts == meant.run.active_counts
        assert loops(gpu) > 0
    [kernel] = result.run.kernels
    queue = kernel.in_form(WORKLIST).kernel_source.queue
    assert queue.marks_steps
    assert queue.memory == ()


def test_it_is_entered_where_few_edges_lead_out() -> None:
    """Many vertices at the end of a search, which have no more than an edge each."""
    hub, leaves, behind = 0, np.arange(1, 201), np.arange(201, 401)
    clique = np.stack(np.triu_indices(120, 1)) + 401  # edges for a mean degree
    ends = [np.full(200, hub), leaves, clique[0]], [leaves, behind, clique[1]]
    u, v = (np.concatenate(part) for part in ends)
    graph = fg.Graph.from_edges(u, v, vertex_count=521)
    assert 200 * graph.edge_count / graph.vertex_count > 500
    level = np.full((521, 1), 1 << 20, np.int32)
    level[hub] = 0
    with in_a_loop(500) as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "least_pulled", lambda plan, graph: 0)
        values = {n: fg.vertex_property(level.copy(), iterated=True) for n in LEVELS}
        state = fg.State(graph, **values)
        calls = {"active": np.isin(np.arange(521), [hub])}
        with patch.context() as first:
            first.setattr(worklist_cuda.CudaQueue, "wants", lambda *_: False)
            run(QUEUED["search"][0], state, "cuda", max_supersteps=1, **calls)
        assert loops(gpu) == 0
        run(QUEUED["search"][0], state, "cuda")
        assert loops(gpu) == 1
    assert (state["level"][leaves] == 1).all()
    assert (state["level"][behind] == 2).all()


def test_the_next_state_finds_the_loop_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one between them has run no loop; another graph has its own."""
    ends = np.arange(12), (np.arange(12) * 7 + 1) % 13
    graphs = [fg.Graph.from_edges(*ends, vertex_count=13) for _ in range(2)]
    bound: list[Kernel] = []
    init = BoundState.__init__

    def note(self: BoundState, kernel: Kernel, *given: Any) -> None:
        bound.append(kernel)
        init(self, kernel, *given)

    monkeypatch.setattr(BoundState, "__init__", note)
    active = np.arange(13) < 3

    def bindings_of(graph: fg.Graph, seed: int, most: int = 40) -> int:
        """Return the number of bindings made for a run on a new State."""
        step, meant = make("search", graph, seed)
        _, state = make("search", graph, seed)
        run(step, meant, "cpu", active=active, max_supersteps=most)
        bound.clear()
        run(step, state, "cuda", active=active, max_supersteps=most)
        count = len(bound)
        same(state, meant)
        return count

    with in_a_loop(1 << 12) as gpu:
        assert bindings_of(graphs[0], 0) == 2  # plain, and of the loop
        before = loops(gpu)
        assert bindings_of(graphs[0], 1) == 0
        assert loops(gpu) > before
        before = loops(gpu)
        assert bindings_of(graphs[0], 2, most=1) == 0  # too few for a loop
        assert loops(gpu) == before
        assert bindings_of(graphs[0], 3) == 0
        assert bindings_of(graphs[1], 3) == 2
