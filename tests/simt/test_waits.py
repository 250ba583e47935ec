"""A superstep that may go either way waits once for the GPU, and so do near and far."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms import bfs, connected_components, sssp
from featgraph.base.config import config
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.program.active import word_count
from featgraph.runtime.devices import cuda_device, cuda_sets
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops import foldmap_run, worklist_cuda
from featgraph.runtime.memory.buffers import buffers_of
from tests.simt.gpu import Gpu, emulated_gpu
from tests.strategies import graphs


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worklist_cuda, "WANTED", 1 << 30)  # no compiled loop
        patch.setattr(config, "compile_behind", False)
        yield made


def hubs(count: int = 40) -> fg.Graph:
    """Return a few vertices with most edges, and many on paths behind them."""
    rng = np.random.default_rng(5)
    targets = rng.integers(0, count, 3 * count)
    sources = rng.integers(0, 3, 3 * count)
    ends = np.arange(count - 1)
    u, v = np.concatenate([sources, ends]), np.concatenate([targets, ends + 1])
    return fg.Graph.from_edges(
        u, v, vertex_count=count, directed=False, weights=np.full(len(u), 1.0)
    )


def waits(gpu: Gpu, call: Any) -> tuple[Any, int]:
    """Return a call's result, and the number of waits of the host for the GPU."""
    before = len(gpu.downloads)
    return call(), len(gpu.downloads) - before


def shorter_ways(graph: fg.Graph, run: fg.Run, width: int) -> list[str]:
    """Return how supersteps go that are behind others: by the edges out of A.

    As many edges may be pulled as can lead into so many vertices.
    """
    into, found = graph.in_degree.max(), []
    fixed = graph.vertex_count * width // 4
    for committed in (run.active_sets or [])[:-1]:
        count, pushed = len(committed), graph.out_degree[committed.mask].sum()
        reached = min(graph.edge_count, count * (into + 1) * into)
        pulled = min(graph.edge_count, (pushed + count) * into)
        pushes = reached > fixed and pulled > 8 * pushed + fixed
        found.append("push" if pushes else "pull")
    return found


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ["bfs", "sssp", "sssp of many"])
def test_a_superstep_waits_once(gpu: Gpu, name: str) -> None:
    graph = hubs()
    call = {
        "bfs": lambda **o: bfs(graph, 39, deterministic=True, **o),
        "sssp": lambda **o: sssp(graph, 39, near_far=None, **o),
        "sssp of many": lambda **o: sssp(graph, [39, 7], near_far=None, **o),
    }[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featgraph.runtime.loops.worklist.SMALLEST_GRAPH", 1 << 60)
        meant = call(target="cpu")
    call(target="cuda")
    found, count = waits(gpu, lambda: call(target="cuda"))
    recorded = call(target="cuda", record_active=True).run
    width = 2 if name == "sssp of many" else 1
    assert recorded.directions[1:] == shorter_ways(graph, recorded, width)
    assert found.run.directions == recorded.directions
    assert {"push", "pull"} == set(found.run.directions)
    assert found.run.active_counts == meant.run.active_counts
    # One for each superstep; the first is not behind one that could tell.
    assert count <= found.supersteps + 1
    for key in ("levels", "distances", "parents", "predecessors"):
        if hasattr(meant, key):
            np.testing.assert_array_equal(getattr(found, key), getattr(meant, key))


def test_nothing_is_counted_where_no_push_can_be_shorter(gpu: Gpu) -> None:
    """As few edges as a push costs at least, or too few active vertices."""
    graph = hubs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foldmap_run, "least_pulled", lambda plan, graph: graph.edge_count)
        before = len(gpu.by_driver)
        found, count = waits(gpu, lambda: bfs(graph, 39, target="cuda"))
    launched = set(gpu.by_driver[before:])
    assert set(found.run.directions) == {"pull"}
    assert not launched & {"count"}
    assert count <= found.supersteps


def test_components_wait_once_a_superstep(gpu: Gpu) -> None:
    graph = hubs()
    call = lambda **o: connected_components(graph, method="propagate", **o)  # noqa: E731
    call(target="cuda")
    found, count = waits(gpu, lambda: call(target="cuda"))
    # One more is the count of components.
    assert count <= found.supersteps + 2
    np.testing.assert_array_equal(found.labels, call(target="cpu").labels)


@settings(max_examples=6)
@given(graphs(), st.integers(0, 2**32 - 1), st.sampled_from([0.03, 0.3, 1.0]))
def test_how_far_a_set_reaches_is_counted_in_one_wait(
    gpu: Gpu, graph: fg.Graph, seed: int, share: float
) -> None:
    device, count = choose_device("cuda"), graph.vertex_count
    mask = np.random.default_rng(seed).random(count) < share
    state = fg.State(graph, x=fg.vertex_property(0.0))
    arrays = buffers_of(state, device).graph
    active = device.sets.upload(fg.ActiveSet(count, mask).words)
    reach = device.sets.reach(active, arrays)
    (number, _), waited = waits(
        gpu, lambda: device.sets.count_and_look(active, (), reach)
    )
    assert (number, waited) == (mask.sum(), 1)
    assert reach.pushed == graph.out_degree[mask].sum()
    assert active.size == word_count(count)


def test_hubs_are_reached_in_both_ways(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are for blocks."""
    for module in (cuda_device, cuda_sets):
        monkeypatch.setattr(module, "HUB_DEGREE", 30)
    count = 70
    others = np.arange(1, count)
    for u, v in ((others, 0 * others), (0 * others, others)):
        graph = fg.Graph.from_edges(u, v, vertex_count=count)
        for chosen, edges in itertools.product(([0], [5]), (0, 1 << 20)):
            mask = np.isin(np.arange(count), chosen)
            state = fg.State(graph, x=fg.vertex_property(0.0))
            device = choose_device("cuda")
            arrays = buffers_of(state, device).graph
            active = device.sets.upload(fg.ActiveSet(count, mask).words)
            base = device.sets.expand(active, arrays, edges=edges)
            due = mask.copy()
            due[v[mask[u]]] = True
            found = fg.ActiveSet.from_words(count, device.download(base)).mask
            np.testing.assert_array_equal(found, due)


# -- near and far


@pytest.mark.slow
def test_near_and_far_wait_twice(gpu: Gpu) -> None:
    """Once for the near vertices and their number; once for the committed ones."""
    graph, near = hubs(), fg.NearFar("distance", delta=0.2)
    weights = np.random.default_rng(2).random(graph.given_edge_count)
    call = lambda **o: sssp(graph, 39, weights=weights, near_far=near, **o)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featgraph.runtime.loops.worklist.SMALLEST_GRAPH", 1 << 60)
        meant = call(target="cpu")
    call(target="cuda")
    found, count = waits(gpu, lambda: call(target="cuda"))
    assert found.run.thresholds == meant.run.thresholds
    assert found.run.active_counts == meant.run.active_counts
    assert len(set(found.run.thresholds)) > 2
    assert count <= 2 * found.supersteps + 2
    np.testing.assert_array_equal(found.distances, meant.distances)


KEYS = [0.0, 1.5, -2.0, 7.0, float("inf"), -float("inf"), float("nan")]


@settings(max_examples=12)
@given(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=40),
    st.sampled_from([1.0, -1.0]),
    st.sampled_from([-float("inf"), -3.0, 0.0, 2.0, float("inf")]),
    st.integers(0, 2**32 - 1),
)
def test_the_limit_moves_as_the_host_moves_it(
    gpu: Gpu, keys: list[float], sign: float, limit: float, seed: int
) -> None:
    values, delta = np.array(keys, np.float32), 1.75
    mask = np.random.default_rng(seed).random(len(keys)) < 0.5
    found = {}
    for name in ("cpu", "cuda"):
        device = choose_device(name)
        words = device.sets.upload(fg.ActiveSet(len(keys), mask).words)
        array = device.upload(values)
        near, count, moved, number = device.keys.nearest(
            words, array, (1, sign), limit, delta, lambda near: None
        )
        shown = fg.ActiveSet.from_words(len(keys), device.download(near)).mask
        found[name] = shown.tolist(), count, moved
        assert number == mask.sum()
    assert found["cpu"] == found["cuda"]
    shown, count, moved = found["cuda"]
    assert count == sum(shown)
    assert (count > 0) == mask.any()
    within = ~(sign * values > moved)
    assert shown == (mask & within).tolist()


def test_near_keys_are_within_delta_of_the_first(gpu: Gpu) -> None:
    values, found = np.array([7.0, 1.5, 0.0, 1.75, 3.0], np.float32), {}
    for name in ("cpu", "cuda"):
        device = choose_device(name)
        words = device.sets.upload(fg.ActiveSet(5, "all").words)
        near, *bounds = device.keys.nearest(
            words, device.upload(values), (1, 1.0), -3.0, 1.75, lambda near: None
        )
        found[name] = np.array(device.download(near)).tolist(), bounds
    assert found["cpu"] == found["cuda"] == ([0b01110], [3, 1.75, 5])
