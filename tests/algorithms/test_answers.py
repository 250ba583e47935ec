"""Answers of results: where they are, when they are copied, and what pickles have."""

from __future__ import annotations

import copy
import importlib
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import _cuda
from featgraph.algorithms import bfs, connected_components, sssp, sswp

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.simt.gpu import Gpu, emulated_gpu

V = 40
ENDS = np.arange(V - 1)
GRAPH = fg.Graph.from_edges(ENDS, ENDS + 1, weights=np.arange(1.0, V))
#: Attribute -> what has it.
RUNS: dict[str, Callable[..., Any]] = {
    "levels": lambda **o: bfs(GRAPH, 3, **o),
    "parents": lambda **o: bfs(GRAPH, [3, 5, 3], **o),
    "distances": lambda **o: sssp(GRAPH, [3, 5], together=True, **o),
    "predecessors": lambda **o: sssp(GRAPH, 3, **o),
    "labels": lambda **o: connected_components(GRAPH, **o),
    "widths": lambda **o: sswp(GRAPH, [3, 5], **o),
}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RUNS)
def test_an_answer_is_copied_once(gpu: Gpu, name: str, where: str) -> None:
    result = RUNS[name](target=where, max_supersteps=V)
    lent = result.view(name)
    found = getattr(result, name)
    assert type(found) is np.ndarray
    assert getattr(result, name) is found
    assert found.flags.writeable
    assert found.flags.c_contiguous
    assert (found.shape, found.dtype) == (lent.shape, lent.dtype)
    np.testing.assert_array_equal(np.asarray(lent), found)
    if where == "cpu":
        assert not np.shares_memory(np.asarray(lent), found)
    again = result.view(name)
    assert hasattr(again, "__cuda_array_interface__") == (where == "cuda")
    np.testing.assert_array_equal(np.asarray(again), found)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RUNS)
def test_copies_have_arrays(gpu: Gpu, name: str, where: str) -> None:
    result = RUNS[name](target=where)
    for other in (
        pickle.loads(pickle.dumps(result)),
        copy.copy(result),
        copy.deepcopy(result),
        replace(result, vertex_names=None),
    ):
        names = {field.name for field in fields(result)}
        assert set(vars(other)) == names
        assert type(other.view(name)) is np.ndarray
        np.testing.assert_array_equal(getattr(other, name), getattr(result, name))
    assert f"{name}=array(" in repr(result)


def test_results_are_frozen_and_say_what_they_have() -> None:
    result = bfs(GRAPH, 3, target="cpu")
    with pytest.raises(FrozenInstanceError):
        result.levels = np.zeros(V)  # type: ignore[misc]
    for name in ("run", "missing", "_levels_source"):
        with pytest.raises(fg.FeatGraphError, match="no such array"):
            result.view(name)
    assert not hasattr(type(result), "levels")  # a field without a default


def test_the_number_of_components_follows_from_labels() -> None:
    result = connected_components(GRAPH, method="propagate", target="cpu")
    assert "labels" not in vars(result)
    assert result.count == 1
    assert result.labels.tolist() == [0] * V
    assert set(vars(result)) == {field.name for field in fields(result)}


def test_what_a_callback_kept_may_be_used_again() -> None:
    kept: list[fg.State] = []
    result = bfs(GRAPH, 3, target="cpu", callback=lambda _, state: kept.append(state))
    assert kept[0]["level"][-1, 0] == V - 4
    levels = result.levels.tolist()
    kept[0]["level"] = kept[0]["parent"] = 0
    assert result.levels.tolist() == levels
    with pytest.raises(fg.StateError, match=r"result\.parents: .* overwritten"):
        _ = result.parents


def around_the_run(
    monkeypatch: pytest.MonkeyPatch, module: Any, search: Callable[[], Any]
) -> tuple[Any, int, int]:
    """Return what a call returns, and the bytes it takes before and behind its run."""
    run, taken = module.iterate_recorded, [0, 0]

    def watched(*arguments: Any, **options: Any) -> Any:
        taken[0] = tracemalloc.get_traced_memory()[1]
        found = run(*arguments, **options)
        tracemalloc.reset_peak()
        taken[1] = tracemalloc.get_traced_memory()[0]
        return found

    search()
    monkeypatch.setattr(module, "iterate_recorded", watched)
    tracemalloc.start()
    try:
        result = search()
        taken[1] = tracemalloc.get_traced_memory()[1] - taken[1]
        return result, *taken
    finally:
        tracemalloc.stop()


def test_a_search_makes_no_array_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing over the vertices is made but by the supersteps."""
    count = 1 << 17
    ends = np.arange(1000)
    graph = fg.Graph.from_edges(ends, ends + 1, vertex_count=count)
    module = importlib.import_module("featgraph.algorithms.bfs")
    found, before, behind = around_the_run(
        monkeypatch, module, lambda: bfs(graph, 0, target="cpu")
    )
    assert before < count
    assert behind < count
    assert found.levels[1000] == 1000


def test_a_search_uploads_its_sources(gpu: Gpu) -> None:
    RUNS["levels"](target="cuda")
    del gpu.uploads[:]
    reads = gpu.reads
    result = RUNS["parents"](target="cuda", max_supersteps=2 * V)
    assert max(gpu.uploads) < 4 * V
    del gpu.uploads[:]
    assert gpu.reads > reads
    assert result.parents[4].tolist() == [3, -1, 3]
    assert not gpu.uploads
