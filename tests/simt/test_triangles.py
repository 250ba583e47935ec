"""Generated kernels of triangle functions, lane by lane on an emulated GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import _cuda, reference

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold import cuda_long_rows
from featgraph.runtime import cuda_device, launcher
from tests.programs.triangles import PROGRAMS, make_state
from tests.simt.gpu import Gpu, emulated_gpu

#: Small, so that a graph of 50 vertices has all cases: rows left to blocks, members
#: with a lower rank than the bitmap has, and more of them than there are sums.
SMALL = {"BITMAP_WORDS": 1, "SUM_BYTES": 96, "HUB_LANES": 4, "HUB_THREADS": 64}
LONG_ROW = 6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    for name, value in SMALL.items():
        monkeypatch.setattr(cuda_long_rows, name, value)
    for module in (cuda_device, launcher):
        monkeypatch.setattr(module, "LONG_ROW", LONG_ROW)
    with emulated_gpu() as made:
        yield made


def graph_of(rng: np.random.Generator, count: int = 50) -> fg.Graph:
    """A dense core, sparse elsewhere, self-loops, and vertices of degree 0."""
    pairs = np.array([*itertools.combinations(range(count - 2), 2)])
    dense = (pairs < 22).all(axis=1)
    pairs = pairs[rng.random(len(pairs)) < np.where(dense, 0.8, 0.08)]
    loops = np.array([[0, 0], [30, 30]])
    ends = rng.permutation(np.concatenate([pairs, loops]))
    ids = rng.permutation(count)
    return fg.Graph.from_edges(*ids[ends].T, vertex_count=count, directed=False)


@pytest.mark.parametrize("is_partial", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("schedule", ["mark", "search"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees(
    name: str, schedule: str, is_partial: bool, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph = graph_of(rng)
    upper = np.diff(graph.oriented.upper.row_offsets)
    assert upper.max() >= 2 * LONG_ROW
    state = fg.State(graph, **make_state(graph, rng))
    foldmap = fg.foldmap(*PROGRAMS[name].program.functions)
    active: Any = rng.random(graph.vertex_count) < 0.1 if is_partial else None
    outcome = reference.superstep(
        foldmap.program, *reference.from_state(state), active=active
    )
    made = foldmap(state, active_in=active, target="cuda", schedule=schedule)
    assert made == outcome.active_out
    for each, value in outcome.values.items():
        np.testing.assert_array_equal(state[each], value, err_msg=each)
    blocks = any(kernel.endswith("_hubs") for kernel in gpu.by_dialect)
    assert blocks == (schedule == "mark" and name != "behind_edges")
