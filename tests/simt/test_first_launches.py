"""Kernels that first calls launch are among those that ``featgraph warm`` stores.

Keys are compared: the module of a function, whose name has the digest of its text, and
the types of its arguments. Nothing is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms
from featgraph.cuda import arrays, dialect, sorting
from featgraph.graph.building import edges

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cli import kernels
from featgraph.dynamic import gpu_memory, gpu_pools
from featgraph.runtime import warming
from featgraph.runtime.loops import replay
from featgraph.runtime.recording import cuda_trace
from tests.simt.gpu import Gpu, StridedArray, emulated_gpu
from tests.simt.test_stages import in_loops
from tests.unit.test_warm import type_of

#: Thresholds at which a GPU builds rows, and sorts with several blocks.
AS_LARGE_ON_GPU = [(edges, "MANY_EDGES", 0), (edges, "FEW", 0), (sorting, "_FEW", 4)]
#: Thresholds at which loops on the GPU pay at once, however long lanes take.
AS_LOOPS = [
    (replay, "_MOST_SECONDS", np.inf), (replay, "_MOST_AWAY", np.inf),
    (cuda_trace, "_LOOP_SECONDS", 0.0),
]  # fmt: skip
ALGORITHMS = ("als", "bfs", "connected-components", "label-propagation", "pagerank")
Key = tuple[str, str, str]


def key(function: Any, types: Iterable[Any]) -> Key:
    """Return the key under which the store has code of a function."""
    plain = function.py_func
    return plain.__module__, plain.__qualname__, repr(tuple(types))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Key]]:
    """Collect the keys of kernels that are launched or compiled on an emulated GPU."""
    found: set[Key] = set()
    compiled, ahead = Gpu.compiled, Gpu.ahead

    def launch(self: Gpu, kernel: Any, arguments: Any) -> Any:
        found.add(key(kernel, map(type_of, arguments)))
        return compiled(self, kernel, arguments)

    def prepare(self: Gpu, kernel: Any, types: Any) -> Any:
        found.add(key(kernel, types))
        return ahead(self, kernel, types)

    monkeypatch.setattr(Gpu, "compiled", launch)
    monkeypatch.setattr(Gpu, "ahead", prepare)
    yield found
    assert found


def own_keys() -> set[Key]:
    return {key(*each) for each in warming.own_kernels()}


def check(launched: set[Key], stored: set[Key]) -> None:
    others = sorted(launched - stored)
    assert not others, "\n".join(map(" ".join, others))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command run on few small graphs, whose traits alone count."""
    rated = kernels._ratings()[:12, :8].tocsr()
    monkeypatch.setattr(kernels, "_VERTICES", 30)
    monkeypatch.setattr(kernels, "_LONG", 20)
    monkeypatch.setattr(kernels, "_ratings", lambda: rated)
    graphs = [(False, False, False, True), (True, True, True, False)]
    monkeypatch.setattr(kernels, "product", lambda *_, **__: graphs)
    monkeypatch.setattr(warming, "_all_traits", lambda own: [own])


def call(name: str, k: int) -> None:
    """Run an algorithm on the emulated GPU, as the command runs it on the CPU."""
    for given, options in kernels._given(name, k):
        getattr(algorithms, name.replace("-", "_"))(*given, **options, target="cuda")


def stored_for(name: str) -> set[Key]:
    """Return the keys of kernels that the command stores for an algorithm."""
    for_gpu = warming.ForGpu()
    for as_large in (False, True):
        with warming.storing(for_gpu, as_large=as_large):
            kernels._run_algorithm(name, 3)
    found = for_gpu.kernels.functions
    return own_keys() | {(module, own, repr(types)) for module, own, types in found}


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_programs(
    name: str, launched: set[Key], small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_for(name)
    for settings in (AS_LOOPS, [*warming._AS_LARGE, *AS_LARGE_ON_GPU]):
        with emulated_gpu(), monkeypatch.context() as patch:
            for owner, threshold, value in settings:
                patch.setattr(owner, threshold, value)
            call(name, 3)
    check(launched, stored)


def test_loops_with_a_stage(launched: set[Key], small: None) -> None:
    stored = stored_for("k-core")
    with in_loops(4096):
        call("k-core", 3)
    assert "supersteps_and_stages_0" in {name for _, name, _ in launched}
    check(launched, stored)


OTHERS = ("betweenness-centrality", "hits", "k-truss", "sgd-factorization",
          "triangle-count")  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_graph_arrays(
    name: str, launched: set[Key], small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, threshold, value in AS_LARGE_ON_GPU:
        monkeypatch.setattr(owner, threshold, value)
    with emulated_gpu():
        call(name, 3)
    check(own_launches(launched), own_keys())


def test_windows_of_rows(launched: set[Key], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of many lengths are taken in the order of their lengths, by windows."""
    for owner, threshold, value in [*warming._AS_LARGE, *AS_LARGE_ON_GPU]:
        monkeypatch.setattr(owner, threshold, value)
    drawn = fg.graph.generators.rmat(6, 16, seed=4)
    with emulated_gpu():
        ends = drawn.sources, drawn.targets
        graph = fg.Graph.from_edges(*ends, directed=False, duplicates="first")
        algorithms.pagerank(graph, target="cuda")
    assert "mark_windows" in {name for _, name, _ in launched}
    check(own_launches(launched), own_keys())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weight", [np.float32, np.float64, None])
def test_graphs_given_on_the_gpu(
    dtype: Any,
    weight: Any,
    launched: set[Key],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, threshold, value in AS_LARGE_ON_GPU:
        monkeypatch.setattr(owner, threshold, value)
    with emulated_gpu():
        for directed in (False, True):
            ends = rng.integers(0, 9, (2, 20)).astype(dtype)
            graph = fg.Graph.from_edges(
                *map(StridedArray, ends),
                weights=weight and StridedArray(rng.random(20).astype(weight)),
                vertex_count=9,
                directed=directed,
            )
            algorithms.sssp(graph, 0, target="cuda")
    check(own_launches(launched), own_keys())


@pytest.mark.parametrize("few", [4096, 0])
def test_batches_of_graphs_that_change(
    few: int, launched: set[Key], rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of arrays of both memories, with columns, edges that leave, and vertices."""
    monkeypatch.setattr(gpu_pools, "FEW", few)
    monkeypatch.setattr(arrays, "multiprocessors", lambda: 2)
    monkeypatch.setattr(gpu_pools, "THREADS", 32)
    for owner, threshold, value in AS_LARGE_ON_GPU:
        monkeypatch.setattr(owner, threshold, value)
    with emulated_gpu():
        for directed, dtype in ((True, np.float32), (False, np.float64)):
            graph = fg.DynamicGraph.from_edges(
                *rng.integers(0, 20, (2, 60)), weights=rng.random(60).astype(dtype),
                vertex_count=20, directed=directed, target="cuda",
                duplicates="last" if directed else "sum",
            )  # fmt: skip
            graph.neighbors(0)
            for place in (np.asarray, StridedArray):
                ends = rng.integers(0, 20, (2, 8)).astype(np.int32)
                weights = place(rng.random(8).astype(dtype))
                graph.insert_edges(*map(place, ends), weights=weights)
                graph.delete_edges(*map(place, ends[:, :4]))
            graph.insert_vertices(3)
            graph.delete_vertices([1, 2])
            graph.update([3, 4], [4, 5], [True, False], weights=np.ones(2, dtype))
            algorithms.bfs(graph, 0, target="cuda")
    names = {name for module, name, _ in launched if "dynamic" in module}
    assert {"plan_batch" if few else "match", "apply_batch", "list_edges"} <= names
    stored = {key(*each) for each in gpu_memory.own_kernels()}
    check(own_launches(launched), own_keys() | stored)


def own_launches(launched: set[Key]) -> set[Key]:
    """Return the launches of the package's own kernels."""
    return {each for each in launched if each[0].startswith("featgraph.")}
