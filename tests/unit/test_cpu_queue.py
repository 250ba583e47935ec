"""Supersteps in one compiled loop leave what they leave one by one (0018)."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.bfs import bfs, verify_bfs
from featgraph.algorithms.k_core import k_core, verify_k_core
from featgraph.algorithms.sssp import sssp, verify_sssp
from featgraph.algorithms.strong_components import (
    strongly_connected_components,
    verify_strongly_connected_components,
)
from featgraph.device import queue_cpu
from featgraph.fold.plan.worklist import is_queued
from featgraph.program.signature import GENERATED, LOOPS
from featgraph.runtime.devices.choose import CpuDevice
from featgraph.runtime.devices.cpu_loops import list_set
from featgraph.runtime.loops import worklist
from tests.programs.queued import QUEUED, settle, unseen
from tests.strategies import examples, graphs, seeds

#: How many edges may lead out of active vertices: none, some, all there are.
MOST_EDGES = st.sampled_from([0, 5, 40, 1 << 20])


@contextmanager
def in_a_loop(most_edges: int, most_supersteps: int = 1 << 14) -> Iterator[None]:
    """Let graphs of any size run in compiled loops; -1 for not at all.

    Memory whose first values loops do not read starts with other values than zero.
    """

    def empty(self: CpuDevice, shape: Any, dtype: str) -> Any:
        return np.full(shape, 77, dtype)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CpuDevice, "empty", empty)
        smallest = 1 << 60 if most_edges < 0 else 0
        patched.setattr(worklist, "SMALLEST_GRAPH", smallest)
        patched.setattr(worklist, "_most_edges", lambda *given: most_edges)
        patched.setattr(worklist, "_MOST_SUPERSTEPS", most_supersteps)
        yield


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
def test_vertices_of_a_set_are_listed(share: float, rng: np.random.Generator) -> None:
    words = rng.integers(0, 1 << 32, 50, np.uint32)
    words[rng.random(50) < share] = 0xFFFFFFFF
    found = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    listed = np.zeros(found.size, np.uint32)
    assert list_set(words, listed) == found.size
    np.testing.assert_array_equal(listed, found)


@fg.gather(into="low", combine="min", sources="active")
def lowest_rank(f, u, v, e, d):
    return d.rank[u, f]


@fg.vertex
def note_rank(f, v, d):
    d.seen_next[v, f] = d.low[v, f]
    return d.low[v, f] < d.seen[v, f]


#: Does not write the key that it hands on.
look = fg.foldmap(lowest_rank, note_rank)


def make(name: str, graph: fg.Graph, seed: int) -> tuple[Any, fg.State, str | None]:
    step, state_of, key, k = QUEUED[name]
    values = state_of(graph, k, np.random.default_rng(seed))
    return step, fg.State(graph, **values), key


def run(step: Any, state: fg.State, **options: Any) -> fg.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return fg.iterate(step, state, target="cpu", **options)


def record(run: fg.Run) -> tuple[Any, ...]:
    """Return the record of a run without times and directions."""
    return (
        run.supersteps, run.converged, run.active_counts, run.aggregates,
        run.thresholds, len(run.seconds), len(run.directions),
    )  # fmt: skip


def same(one: fg.State, other: fg.State) -> None:
    assert one.superstep == other.superstep
    for name in one.signature:
        assert np.array_equal(one[name], other[name], equal_nan=True), name


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", sorted(QUEUED))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_loop_leaves_what_supersteps_leave(name: str, data: st.DataObject) -> None:
    graph, seed = data.draw(graphs()), data.draw(seeds)
    limit, more = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 60))
    delta = data.draw(st.sampled_from([0.125, 0.5, 4.0]))
    most_edges, batch = data.draw(MOST_EDGES), data.draw(st.sampled_from([2, 1 << 14]))
    picked = np.random.default_rng(seed).random(graph.vertex_count) < 0.3
    for near in (False, True):
        found = []
        for most in (-1, most_edges):
            step, state, key = make(name, graph, seed)
            # Which contribution a gather takes first is not defined.
            options: dict[str, Any] = {"deterministic": True}
            if near and key is not None:
                options["near_far"] = fg.NearFar(key, delta=delta)
            with in_a_loop(most, batch):
                runs = [
                    run(step, state, active=picked, max_supersteps=limit, **options),
                    run(step, state, max_supersteps=more, **options),
                    run(step, state, active=~picked, max_supersteps=3, **options),
                ]
            found.append((state, [record(r) for r in runs]))
        (one, records), (other, other_records) = found
        same(one, other)
        assert records == other_records


def test_most_of_a_search_runs_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    call = worklist.CpuQueue._call

    def counting(self: worklist.CpuQueue, values: list[Any]) -> Any:
        calls.append(self.queue.name)
        return call(self, values)

    monkeypatch.setattr(worklist.CpuQueue, "_call", counting)
    monkeypatch.setattr(CpuDevice, "launch", None)  # not to be called
    ends = np.arange(4000)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    step, state, _ = make("search", graph, 3)
    with in_a_loop(1 << 20):
        done = run(step, state, active=state["level"].min(axis=1) == 0)
    assert set(calls) == {"supersteps_0"}
    assert len(calls) < 3
    assert set(done.directions) == {"push"}
    assert done.supersteps > 500


@pytest.mark.parametrize("batch", [3, 1 << 14])
def test_edges_are_counted(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fg.graph.generators.grid(9, 7)
    ran, edges = worklist.CpuQueue.run_several, []

    def counted(self: Any, *arguments: Any) -> Any:
        done = ran(self, *arguments)
        edges.append(0 if done is None else done.edges)
        return done

    monkeypatch.setattr(worklist.CpuQueue, "run_several", counted)
    with in_a_loop(1 << 20, batch):
        found = bfs(graph, 5, target="cpu")
    assert found.converged
    assert sum(edges) == graph.edge_count  # each vertex passes on once
    assert len(edges) >= found.supersteps / batch


def test_vertices_wait_where_that_is_optional_and_fast() -> None:
    graph = fg.graph.generators.grid(9, 7)
    optional = fg.NearFar("distance", optional=True)
    looks: list[dict[str, Any]] = [
        {"record_active": True}, {"until": lambda s: False}, {"asynchronous": True},
        {"change_driven": True},
    ]  # fmt: skip
    found = []
    for most, options in [(-1, {}), (1 << 20, {}), *[(1 << 20, x) for x in looks]]:
        step, state, _ = make("paths", graph, 4)
        begin = state["distance"].min(axis=1) == 0
        with in_a_loop(most):
            done = run(step, state, active=begin, near_far=optional, **options)
        assert bool(done.thresholds) == (most > 0 and not options)
        found.append(state["distance"])
    assert all(np.array_equal(found[0], other) for other in found)


def test_searches_stay_in_the_loop_on_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pull on all threads reads fewer edges, but finds due vertices among all."""
    graph = SimpleNamespace(vertex_count=325_729, edge_count=2_180_216)

    def most(threads: int, stops: bool) -> int:
        monkeypatch.setattr(numba, "get_num_threads", lambda: threads)
        plan = SimpleNamespace(phases=[SimpleNamespace(stops=stops)])
        step = SimpleNamespace(bound=SimpleNamespace(graph=graph), plan=plan)
        return worklist._most_edges(step, waits=False)

    assert most(1, stops=True) > graph.edge_count
    assert most(1, stops=False) == graph.edge_count // 2
    assert 200_000 < most(2, stops=True) < graph.edge_count
    assert most(16, stops=True) == worklist.MOST_EDGES


def test_a_search_of_few_edges_prepares_no_single_superstep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop runs any superstep of such a graph: a pull and its sets are not made."""
    ends = np.random.default_rng(3).integers(0, 20_000, (2, 40_000))
    graph = fg.Graph.from_edges(*ends, vertex_count=20_000)
    monkeypatch.setattr(worklist, "is_ready", None)
    found = bfs(graph, 0, target="cpu")
    verify_bfs(graph, 0, found.levels, found.parents)
    monkeypatch.setattr(worklist, "MOST_EDGES", 10)
    monkeypatch.setattr(worklist, "_MOST_STOPPING", 10)
    monkeypatch.setattr(worklist, "_MOST_PER_VERTEX", 0)
    with pytest.raises(TypeError):
        bfs(graph, 0, target="cpu")


@pytest.mark.parametrize("most_edges", [-1, 1 << 20])
def test_each_stage_begins_with_its_first_key(most_edges: int) -> None:
    graph = fg.graph.generators.grid(9, 7)
    step, state, _ = make("paths", graph, 4)
    begin = state["distance"].min(axis=1) == 0
    ends: list[int] = []

    def again(run: fg.Run, state: fg.State) -> Any:
        ends.append(run.supersteps)
        return begin if len(ends) == 1 else None

    with in_a_loop(most_edges):
        near_far = fg.NearFar("distance", delta=0.25)
        done = run(step, state, active=begin, near_far=near_far, then=again)
    assert done.converged
    assert done.thresholds[0] == done.thresholds[ends[0]] == 0.25
    assert done.active_counts[ends[0] :] == [0] * (done.supersteps - ends[0])


def test_a_delta_in_the_loop_is_small() -> None:
    graph = fg.graph.generators.grid(9, 7)
    first = []
    for most in (-1, 1 << 20):
        step, state, _ = make("paths", graph, 4)
        begin = state["distance"].min(axis=1) == 0
        with in_a_loop(most):
            done = run(step, state, active=begin, near_far=fg.NearFar("distance"))
        first.append(done.thresholds[0])
    degree = graph.edge_count / graph.vertex_count
    assert np.isclose(first[1], 2 / 32 * first[0])
    assert np.isclose(first[1], 2 * state["length"].mean() / degree)


def test_a_key_that_no_loop_has_moves_as_ever() -> None:
    graph = fg.graph.generators.grid(9, 7)
    rank = fg.vertex_property(np.zeros((63, 2), np.float32), iterated=True)
    seen = fg.vertex_property(np.full((63, 2), 9, np.float32), iterated=True)
    for optional in (False, True):
        for most in (-1, 1 << 20):
            state = fg.State(graph, rank=rank, seen=seen)
            near_far = fg.NearFar("rank", optional=optional)
            with in_a_loop(most):
                done = run(look, state, active=[0], near_far=near_far)
            assert done.converged
            degree = graph.edge_count / graph.vertex_count
            assert done.thresholds[:1] == ([] if optional else [32 / degree])


@pytest.mark.slow
@given(graph=graphs(), most_edges=MOST_EDGES, seed=seeds)
@examples(10, 25)
def test_algorithms_in_the_loop_are_right(
    graph: fg.Graph, most_edges: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    source = int(rng.integers(graph.vertex_count))
    weights = rng.integers(0, 6, graph.given_edge_count) / np.float32(4)
    apart = graph.sources != graph.targets
    simple = fg.Graph.from_edges(
        graph.sources[apart], graph.targets[apart],
        vertex_count=graph.vertex_count, directed=graph.directed,
    )  # fmt: skip
    with in_a_loop(most_edges):
        levels = bfs(graph, source, target="cpu")
        paths = sssp(graph, source, weights=weights, target="cpu")
        cores = k_core(simple, target="cpu").core_numbers
        components = strongly_connected_components(graph, target="cpu").labels
    verify_bfs(graph, source, levels.levels, levels.parents)
    verify_sssp(
        graph, source, paths.distances, paths.predecessors, weights=weights
    )  # fmt: skip
    verify_k_core(simple, cores)
    verify_strongly_connected_components(graph, components)
    with in_a_loop(-1):
        near = {"near_far": None}
        distances = sssp(graph, source, weights=weights, target="cpu", **near).distances
    assert np.array_equal(distances, paths.distances)


def test_directions_are_recorded_superstep_by_superstep() -> None:
    """A hub in the middle of a path: too many edges for the loop, but for it only."""
    ends = np.arange(60)
    leaves = np.arange(61, 161)
    graph = fg.Graph.from_edges(
        np.concatenate([ends, np.full(100, 30)]), np.concatenate([ends + 1, leaves]),
        directed=False,
    )  # fmt: skip
    with in_a_loop(50):
        found = bfs(graph, 0, target="cpu")
    # The hub is reached by the 30th superstep, and passes what it has in the 31st.
    assert found.run.directions == ["push"] * 30 + ["pull"] * 2 + ["push"] * 29
    assert found.levels[:61].tolist() == list(range(61))


@pytest.mark.parametrize("most_edges", [0, 1 << 20])
def test_each_look_sees_every_superstep(most_edges: int) -> None:
    ends = np.arange(100)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    with in_a_loop(most_edges):
        step, state, _ = make("search", graph, 3)
        seen: list[int] = []
        run(step, state, callback=lambda r, s: seen.append(s.superstep))
        assert seen == list(range(1, len(seen) + 1))
        step, state, _ = make("search", graph, 3)
        done = run(step, state, record_active=True)
        assert done.active_sets is not None
        assert [len(a) for a in done.active_sets] == done.active_counts
        step, state, _ = make("search", graph, 3)
        assert run(step, state, until=lambda s: s.superstep >= 7).supersteps == 7


def test_a_write_from_outside_makes_everything_due() -> None:
    ends = np.arange(200)
    graph = fg.Graph.from_edges(ends, ends + 1)
    step, state, _ = make("paths", graph, 1)
    distance = np.full((201, 2), np.inf)
    distance[150] = 0
    with in_a_loop(1 << 20):
        state["distance"] = distance
        run(step, state, active=[150])
        changed = state["distance"]
        changed[0] = 0
        state["distance"] = changed
        assert run(step, state).converged
    length = np.concatenate([[0], np.cumsum(state["length"])])
    assert np.array_equal(state["distance"][:150, 0], length[:150])


def test_several_foldmaps_run_in_turn() -> None:
    graph = fg.graph.generators.grid(9, 7)
    results = []
    for most in (-1, 1 << 20):
        step, state, _ = make("search", graph, 2)
        again = fg.foldmap(unseen, QUEUED["search"][0].program.functions[1], settle)
        with in_a_loop(most):
            results.append((record(run([step, again], state)), state))
    assert results[0][0] == results[1][0]
    same(results[0][1], results[1][1])


@pytest.mark.parametrize("name", sorted(QUEUED))
def test_names_are_reserved(name: str) -> None:
    """A function of the user's must not be called as a local of the loop is."""
    step, state, _ = make(name, fg.graph.generators.grid(3, 3), 0)
    kernel = step.fold(state, target="cpu")
    known = {f.name for f in step.program.functions} | set(dir(builtins))
    for into in (f.into for f in step.program.functions if f.kind.gathers):
        known |= {into, f"{into}_source"}
    found = 0
    for node in ast.parse(kernel.source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if re.match(r"goes_on_0|supersteps?_0", node.name) is None:
            continue
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        used = {n for n in used if re.match(r"rows_of_|.*_\d+$", n) is None}
        # The user's expressions are printed in the inner functions only.
        reserved = GENERATED | (LOOPS if node.name == "supersteps_0" else set())
        assert used <= known | reserved
        found += 1
    assert found >= 2


@fg.gather(into="total", combine="sum", sources="active")
def sums(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="total", combine="max", sources="active")
def largest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="total", combine="max")
def largest_of_all(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="total", combine="max", sources="active")
def counted(f, u, v, e, d):
    return d.x[u, f] + d.superstep


@fg.vertex
def take(f, v, d):
    d.x_next[v, f] = d.total[v, f]
    return d.total[v, f] > d.x[v, f]


@pytest.mark.parametrize(
    ("gather", "options", "expected"),
    [
        (largest, {}, True),
        (largest, {"deterministic": True}, True),
        (largest, {"direction": "pull"}, False),
        (largest, {"direction": "push"}, False),
        (largest, {"folding": False}, False),
        (sums, {}, False),  # a sum that rounds
        (largest_of_all, {}, False),
        (counted, {}, False),
    ],
)
def test_what_is_printed_as_a_loop(gather: Any, options: Any, expected: bool) -> None:
    kernel = fg.foldmap(gather, take).fold(k=2, target="cpu", **options)
    assert is_queued(kernel.plan) == expected
    assert (kernel.kernel_source.queue is not None) == expected


@given(seed=seeds, delta=st.sampled_from([0.5, 3.0, 100.0]))
@settings(max_examples=30, deadline=None)
def test_far_vertices_wait_once(seed: int, delta: float) -> None:
    """Split what is announced again and again, and hold it against sets."""
    rng = np.random.default_rng(seed)
    count = 20
    keys = rng.integers(0, 12, (count, 2)).astype(np.float64)
    keys[rng.random(count) < 0.1] = np.nan
    near, far = np.empty(count, np.uint32), np.empty(2 * count, np.uint32)
    waits, far_count, limit = np.zeros(count, np.uint8), 0, -np.inf
    waiting: set[int] = set()
    for _ in range(12):
        announced = np.flatnonzero(rng.random(count) < 0.3).astype(np.uint32)
        keys[announced] -= rng.integers(0, 3, (announced.size, 1))
        pending = waiting | set(announced.tolist())
        expected = {v for v in pending if not (keys[v] > limit).all()}
        if not expected and pending:
            first = min((k for v in pending for k in keys[v] if k == k), default=np.inf)
            limit_expected = first + delta
            expected = {v for v in pending if not (keys[v] > limit_expected).all()}
        else:
            limit_expected = limit
        number, far_count, limit = queue_cpu.split(
            keys, 1.0, delta, limit, announced, announced.size, near, far, far_count,
            waits,
        )  # fmt: skip
        assert sorted(near[:number]) == sorted(expected)
        waiting = pending - expected
        assert set(np.flatnonzero(waits).tolist()) == waiting
        assert waiting <= set(far[:far_count].tolist())
        assert limit == limit_expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"callback": lambda run, state: None}, "callback="),
        ({"until": lambda state: False}, "until="),
        ({"record_active": True}, "record_active="),
        ({"direction": "pull"}, "direction='pull'"),
        ({}, ""),
    ],
)
def test_a_run_records_why_it_was_not_in_the_loop(options: Any, expected: str) -> None:
    step, state, _ = make("search", fg.graph.generators.grid(9, 7), 3)
    with in_a_loop(1 << 20):
        done = run(step, state, max_supersteps=2, **options)
    assert expected in done.refused.get("worklist", "")
    assert ("worklist" in done.refused) == bool(expected)
    assert done.refused["replay"] == "cpu has no launches to record"
    assert "not by replay: cpu has no" in done.explain()


def test_a_run_of_a_small_graph_or_several_foldmaps_records_it() -> None:
    step, state, _ = make("search", fg.graph.generators.grid(9, 7), 3)
    assert "too few" in run(step, state, max_supersteps=1).refused["worklist"]
    with in_a_loop(1 << 20):
        done = run([step, step], state, max_supersteps=2)
    assert done.refused["worklist"] == "2 foldmaps take turns"
