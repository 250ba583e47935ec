"""Sets that loops of the device record, and play back, are those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.devices import cuda_arrays
from featgraph.runtime.loops import recorded_sets, replay
from featgraph.runtime.recording import cuda_trace
from tests.simt.gpu import Gpu, emulated_gpu

VERTICES = 70


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU on which loops pay at once, with logs of a few sets."""
    monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)
    monkeypatch.setattr(replay, "_MOST_AWAY", np.inf)
    monkeypatch.setattr(cuda_trace, "_LOOP_SECONDS", 0.0)
    monkeypatch.setattr(cuda_arrays, "_TOGETHER", 4)
    with emulated_gpu() as made:
        yield made


@fg.gather(into="near", combine="max")
def levels_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.level[u]


@fg.vertex
def be_reached(f, v, d):  # type: ignore[no-untyped-def]
    d.level_next[v] = d.superstep - d.begun + 1
    return d.level[v] < 0 and d.near[v] >= 0


@fg.gather(into="behind", combine="sum", along="out")
def sums_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.total[u]


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    d.total_next[v] = d.behind[v] + v + d.last - d.superstep
    return v % 3 != d.dropped


reach = fg.foldmap(levels_of_neighbors, be_reached)
sweep = fg.foldmap(sums_of_neighbors, add_up)


def fresh(dropped: int = 3) -> fg.State:
    """Return a State of a path with some longer steps, which begins at vertex 0."""
    ends = np.arange(VERTICES - 1)
    sources, targets = np.append(ends, [3, 20]), np.append(ends + 1, [5, 23])
    graph = fg.Graph.from_edges(sources, targets, directed=False)
    level = fg.vertex_property(-1, at=[0], entries=0, iterated=True)
    total = fg.vertex_property(0, iterated=True)
    return fg.State(graph, level=level, total=total, begun=0, last=0, dropped=dropped)


def there_and_back(target: str, dropped: int) -> tuple[Any, ...]:
    """Search, and go back over the sets; return all that this leaves."""
    state = fresh(dropped)
    run = fg.iterate(reach, state, active=[0], record_active=True, target=target)
    sets = run.active_sets or []
    state["last"] = state.superstep + len(sets)
    back = fg.iterate(sweep, state, due=sets[::-1], target=target)
    assert run.converged
    assert back.converged
    found = [one.vertices.tolist() for one in sets]
    return (
        found, [len(one) for one in sets], run.active_counts, back.active_counts,
        state["level"].tolist(), state["total"].tolist(), state.superstep,
    )  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dropped", [3, 1])
@pytest.mark.parametrize("sizes", [(64, 16, 1 << 14), (24, 8, 20), (64, 16, 3)])
def test_they_are_those_of_the_cpu(
    sizes: tuple[int, ...], dropped: int, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one log and in several, also where they are too small for any loop.

    A vertex that returns False is played all the same.
    """
    for name, size in zip(("_MOST_WHOLE", "_FEWEST", "_MOST_SETS"), sizes, strict=True):
        monkeypatch.setattr(recorded_sets, name, size)
    found = there_and_back("cuda", dropped)
    assert found == there_and_back("cpu", dropped)
    if sizes[-1] > 3:
        assert sum(loop.ran for loop in gpu.loops) > VERTICES // 2


@fg.vertex
def be_odd(f, v, d):  # type: ignore[no-untyped-def]
    d.total_next[v] = d.total[v] + 1
    return d.level[v] % 8 == 5


def test_foldmaps_in_turn_may_commit_nothing(gpu: Gpu) -> None:
    """An empty set within a run is in no log."""
    found = {}
    for target in ("cpu", "cuda"):
        run = fg.iterate(
            [reach, fg.foldmap(be_odd)], fresh(), active=[0], record_active=True,
            target=target, supersteps=60,
        )  # fmt: skip
        sets = [one.vertices.tolist() for one in run.active_sets or []]
        assert [] in sets[:40]
        found[target] = sets, run.active_counts
    assert found["cuda"] == found["cpu"]
    assert gpu.loops


def test_a_log_is_used_again_when_its_sets_are_gone(gpu: Gpu) -> None:
    state = fresh()
    first = fg.iterate(reach, state, active=[0], record_active=True, target="cuda")
    kept = first.active_sets or []
    memory = [kept[0]._held[0].pairs]  # type: ignore[index]
    for is_same in (False, True):
        state["level"] = np.where(np.arange(VERTICES) == 9, 0, -1)
        run = fg.iterate(reach, state, active=[9], record_active=True, target="cuda")
        sets = run.active_sets or []
        memory.append(sets[0]._held[0].pairs)  # type: ignore[index]
        assert (memory[-1] is memory[-2]) == is_same
        del run, sets
    alone = fg.iterate(reach, fresh(), active=[0], record_active=True, target="cpu")
    assert kept == alone.active_sets


def test_sets_go_through_the_host_where_something_looks(gpu: Gpu) -> None:
    seen: list[int] = []
    state = fresh()
    run = fg.iterate(
        reach, state, active=[0], record_active=True, target="cuda",
        callback=lambda run, _: seen.append(len(run.active_sets or [])),
    )  # fmt: skip
    assert seen == list(range(1, run.supersteps + 1))
    assert not gpu.loops
