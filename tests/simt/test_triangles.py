"""Generated kernels of triangle functions, lane by lane on an emulated GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.printing import cuda
from featgraph.fold.schedules import intersect_rows
from featgraph.runtime.devices import cuda_device, protocol
from tests.programs.triangles import PROGRAMS, make_state
from tests.simt.gpu import Gpu, emulated_gpu

#: Small, so that a small graph has all cases: rows left to blocks, members in several
#: words of the bitmap and further down than it has, more members than sums.
SMALL = {"BITMAP_WORDS": 2, "SUM_BYTES": 96, "BITMAP_LANES": 4}
THREADS = {"HUB_THREADS": 64}
LONG_ROW = 8


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    for module, sizes in ((intersect_rows, SMALL), (cuda, THREADS)):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)
    for module in (cuda_device, protocol):
        monkeypatch.setattr(module, "LONG_ROW", LONG_ROW)
    with emulated_gpu() as made:
        yield made


def graph_of(rng: np.random.Generator, count: int, share: float = 0.3) -> fg.Graph:
    """Most vertices with many neighbors, some with few or none, and self-loops."""
    pairs = np.array([*itertools.combinations(range(count - 2), 2)])
    pairs = pairs[rng.random(len(pairs)) < np.where(pairs.min(axis=1) < 5, 0.05, share)]
    ends = rng.permutation(np.concatenate([pairs, np.array([[0, 0], [30, 30]])]))
    ids = rng.permutation(count)
    return fg.Graph.from_edges(*ids[ends].T, vertex_count=count, directed=False)


def agrees(
    name: str, graph: fg.Graph, schedule: str, active: Any, rng: np.random.Generator
) -> None:
    state = fg.State(graph, **make_state(graph, rng))
    foldmap = fg.foldmap(*PROGRAMS[name].program.functions)
    outcome = reference.superstep(
        foldmap.program, *reference.from_state(state), active=active
    )
    made = foldmap(state, active_in=active, target="cuda", schedule=schedule)
    assert made == outcome.active_out
    for each, value in outcome.values.items():
        np.testing.assert_array_equal(state[each], value, err_msg=each)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("is_partial", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_searched_rows(
    name: str, is_partial: bool, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph = graph_of(rng, 40)
    active = rng.random(40) < 0.1 if is_partial else None
    agrees(name, graph, "search", active, rng)
    assert not any(kernel.endswith("_hubs") for kernel in gpu.by_dialect)


@pytest.mark.parametrize(
    ("name", "is_partial"),
    [("everywhere", False), ("otherwise", False), ("filters", True)],
)
def test_long_rows(
    name: str, is_partial: bool, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph = graph_of(rng, 84, 0.2)
    rows = graph.oriented.upper
    long = np.flatnonzero(np.diff(rows.row_offsets) >= LONG_ROW)
    base = 84 - 32 * SMALL["BITMAP_WORDS"]
    first = rows.column_indices[rows.row_offsets[long]]
    assert (first < base).any()
    assert np.diff(rows.row_offsets).max() > SMALL["SUM_BYTES"] // 16
    agrees(name, graph, "mark", rng.random(84) < 0.1 if is_partial else None, rng)
    assert any(kernel.endswith("_hubs") for kernel in gpu.by_dialect)


def test_changed_edges_superstep_after_superstep(
    gpu: Gpu, rng: np.random.Generator
) -> None:
    """Lists and sets go from one superstep to the next; some sources are not active."""
    graph = graph_of(rng, 40)
    state = fg.State(graph, **make_state(graph, rng))
    state["at_edge"] = rng.integers(0, 9, state["at_edge"].shape, np.int32)
    foldmap = fg.foldmap(*PROGRAMS["behind_changed_edges"].program.functions)
    for share in (1.0, 0.4, 0.0, 0.4, 1.0, 0.7):
        active = rng.random(40) < share
        outcome = reference.superstep(
            foldmap.program, *reference.from_state(state), active=active
        )
        assert foldmap(state, active_in=active, target="cuda") == outcome.active_out
        for each, value in outcome.values.items():
            np.testing.assert_array_equal(state[each], value, err_msg=each)
