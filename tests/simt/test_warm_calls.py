"""Driver calls of a warm call of each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms as of
from featgraph.base.config import config
from featgraph.cuda import dialect
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops import replay
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording import cuda_trace

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.simt.gpu import Gpu, StridedArray, emulated_gpu

COUNT = 24


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "compile_behind", False)
        # Supersteps of an emulator take long, and are to be recorded all the same.
        patch.setattr(replay, "_MOST_SECONDS", 1e9)
        patch.setattr(replay, "_MOST_AWAY", 1e9)
        # Neither graphs nor loops pay, however long a launch takes here.
        patch.setattr(cuda_trace.RecordedSuperstep, "recording_seconds", np.inf)
        patch.setattr(cuda_trace, "_LOOP_SECONDS", np.inf)
        yield made


def on_gpu(values: Any) -> StridedArray:
    """Return an array of another library on the GPU."""
    return StridedArray(np.ascontiguousarray(values))


def made_graph() -> fg.Graph:
    ends = np.random.default_rng(1).integers(0, COUNT, (2, 60))
    return fg.Graph.from_edges(
        *ends, vertex_count=COUNT, directed=False, duplicates="first"
    )


def calls() -> dict[str, Callable[[], Any]]:
    """Return calls with arrays on the GPU, by name."""
    graph, rng = made_graph(), np.random.default_rng(2)
    weights = on_gpu(rng.random(graph.given_edge_count, np.float32) + np.float32(0.5))
    column = on_gpu(rng.random(COUNT) + 0.1)
    columns = on_gpu(rng.random((COUNT, 3)) + 0.1)
    labels = on_gpu(rng.integers(-1, 3, COUNT))
    few: dict[str, Any] = {"max_supersteps": 6, "target": "cuda"}
    return {
        "bfs": lambda: of.bfs(graph, 0, target="cuda"),
        "sssp": lambda: of.sssp(graph, 0, weights=weights, target="cuda"),
        "pagerank": lambda: of.pagerank(
            graph, personalization=column, weights=weights, tol=0.0, **few
        ),
        "katz_centrality": lambda: of.katz_centrality(
            graph, alpha=1e-6, beta=column, weights=weights, tol=1e-30, **few
        ),
        "heat_simulation": lambda: of.heat_simulation(
            graph, columns, conductivities=weights, epsilon=0.0, **few
        ),
        "label_propagation": lambda: of.label_propagation(
            graph, labels, weights=weights, epsilon=0.0, **few
        ),
    }


#: Program -> waits for the GPU of a warm call, and arrays that the host sends. All that
#: is checked of a caller's array takes one wait.
MOST = {
    "bfs": (6, 0),
    "sssp": (7, 0),
    "pagerank": (9, 1),
    "katz_centrality": (7, 0),
    "heat_simulation": (9, 0),
    "label_propagation": (4, 0),
}


@pytest.mark.drawn(3)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", MOST)
def test_a_warm_call_takes_few_operations(gpu: Gpu, name: str) -> None:
    """Nothing by the dialect, which inspects types and wraps arrays at each launch.

    Nor is a superstep recorded again: what arrays are given does not move others.
    """
    call = calls()[name]
    for _ in range(4):  # the result of one is held during the next
        result = call()
    before = [len(gpu.by_dialect), len(gpu.recordings)]
    waits, sent = len(gpu.downloads), len(gpu.uploads)
    result = call()
    assert result.run.supersteps > 0
    now = [len(gpu.by_dialect), len(gpu.recordings)]
    assert now == before, gpu.by_dialect[before[0] :]
    found = len(gpu.downloads) - waits, len(gpu.uploads) - sent
    assert found == MOST[name]


def first_calls() -> dict[str, Callable[[], Any]]:
    """Return calls of programs that have many phases, by name."""
    graph, rng = made_graph(), np.random.default_rng(3)
    ratings = sparse.csr_array(np.where(rng.random((9, 7)) < 0.5, 1.5, 0.0))
    weights = rng.random(graph.given_edge_count)
    held = np.where(rng.random(COUNT) < 0.5, np.nan, 1.0)
    few: dict[str, Any] = {"max_supersteps": 3, "target": "cuda"}
    return {
        "als": lambda: of.als(ratings, factors=2, iterations=2, target="cuda"),
        "hits": lambda: of.hits(graph, weights=weights, max_iter=3, target="cuda"),
        "circuit_simulation": lambda: of.circuit_simulation(
            graph, held, conductances=weights, **few
        ),
    }


#: Program -> kernels of its own that its first call has compiled: each takes a second.
KERNELS = {"als": 7, "hits": 8, "circuit_simulation": 8}


@pytest.mark.drawn(3)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", KERNELS)
def test_a_first_call_compiles_few_kernels(gpu: Gpu, name: str) -> None:
    call, before = first_calls()[name], len(gpu.by_dialect)
    call()
    first = [kernel for kernel in gpu.by_dialect[before:] if "_phase_" in kernel]
    assert len(first) == KERNELS[name], first


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_a_known_cycle_is_joined_behind_one_superstep(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless something holds a set that the next superstep would take."""
    recorder: Any = choose_device("cuda").recorder
    begin, by_host = recorder.begin, [0]

    def count(*given: Any) -> None:
        by_host[-1] += 1
        begin(*given)

    monkeypatch.setattr(recorder, "begin", count)
    graph = made_graph()
    few: dict[str, Any] = {"target": "cuda", "tol": 0.0, "max_supersteps": 7}
    monkeypatch.setattr(config, "replay", False)
    expected = of.pagerank(graph, **few).ranks
    monkeypatch.setattr(config, "replay", True)
    next_pool: dict[int, list[Any]] = {}
    may_join = replay.ReplayLoop._may_join

    def note(loop: Any, following: Any) -> bool:
        buffers = buffers_of(loop._run_state.state, loop._run_state.device)
        next_pool.update(buffers.pools[0])
        return may_join(loop, following)

    monkeypatch.setattr(replay.ReplayLoop, "_may_join", note)
    for _ in range(4):
        by_host.append(0)
        np.testing.assert_array_equal(of.pagerank(graph, **few).ranks, expected)
    assert by_host[-1] == 1 < by_host[1]
    held = [words for sets in next_pool.values() for words in sets]
    for words in held:
        words.view()[...] = 0xAB
    by_host.append(0)
    np.testing.assert_array_equal(of.pagerank(graph, **few).ranks, expected)
    assert held
    assert by_host[-1] > 1
    assert all((words.view() == 0xAB).all() for words in held)
