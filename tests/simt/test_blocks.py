"""Sums in blocks, lane by lane: rows are cut after one or two edges of a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.passes.nests import blocks
from featgraph.fold.plan import planner
from featgraph.fold.printing import cuda
from tests.simt.case import Case
from tests.simt.emulator import launch
from tests.simt.held_programs import DISTANCES, REDUCED
from tests.simt.kept import KEPT_BY_NAME, KeptRun
from tests.simt.programs import BY_NAME
from tests.simt.test_kernels import Run, tiny_graph

SMALL = (21, 60)
VARIANTS: dict[str, dict[str, Any]] = {
    "fa": {},
    "hubs": {"hubs": True},
    "nfa": {"feature_parallel": False},
}
#: Own combines, pulled edges, matrices, shuffles in gathers, reduces, several sums.
NAMES = (
    "combines",
    "filtered_notes",
    "least_squares",
    "messages",
    "pagerank",
    "semirings",
)
SLOW_IN_HUBS = {"filtered_notes", "semirings"}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SUM_BLOCK", 2)
    # Of K = 12, eight edges at a time: 16 are a block.
    monkeypatch.setattr(cuda, "HUB_THREADS", 32)


def run_of(case: Case, variant: str, k: int, monkeypatch: pytest.MonkeyPatch) -> Run:
    if variant == "hubs":
        monkeypatch.setattr(planner, "SUM_BLOCK", 1)
    return Run(case, k, size=SMALL, long_rows=True, **VARIANTS[variant])


@pytest.mark.drawn(8)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_programs_in_blocks(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_NAME[name]
    if variant == "hubs" and name in SLOW_IN_HUBS:
        pytest.skip("32 lanes of a block take seconds")
    run = run_of(case, variant, 12 if variant == "hubs" else 4, monkeypatch)
    assert any(p.mapping.block for p in run.kernels.plan.phases)
    run.check()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("k", [1, 8, 33])
@pytest.mark.parametrize("variant", VARIANTS)
def test_widths_in_blocks(
    k: int, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(BY_NAME["label_propagation"], variant, k, monkeypatch)
    assert "block_sums_0" in run.kernels.text
    run.check()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("k", [1, 3, 12])
@pytest.mark.parametrize("long_rows", [False, True])
def test_matrices_of_all_vertices(long_rows: bool, k: int) -> None:
    run = Run(REDUCED, k, size=SMALL, long_rows=long_rows)
    own = "block_tiles.leave_part(" if k > 1 else "for element in range("
    assert own in run.kernels.text
    run.check()


@pytest.mark.parametrize("k", [1, 3, 12])
def test_matrices_of_all_vertices_by_element(k: int) -> None:
    run = Run(DISTANCES, k, size=SMALL)
    assert "for element in range(" in run.kernels.text
    run.check()


def test_a_wrong_share_of_the_vertices_is_seen() -> None:
    run = Run(DISTANCES, 3, size=SMALL)
    own = "first_vertex, stride = (int32(cuda.blockIdx.x), "
    assert own in run.kernels.text
    with pytest.raises(AssertionError):
        run.check(run.kernels.text.replace(own, "first_vertex, stride = (int32(0), "))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["label_propagation", "every_combine", "turn"])
def test_kept_sums_in_blocks(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "SUM_BLOCK", 1 if variant == "hubs" else 2)
    case, k = KEPT_BY_NAME[name], 4
    graph = tiny_graph(case.undirected, *SMALL, np.random.default_rng(k))
    KeptRun(case, k, graph, long_rows=True, **VARIANTS[variant]).check()


@fg.reduce(into="differences", combine="sum", matrix=True)
def differences(i, f, v, d):
    return abs(d.x[v, i] - d.x[v, f])


@fg.reduce(into="widest", combine="max", matrix=True)
def widest(i, f, v, d):
    return d.x[v, i] - d.x[v, f]


@pytest.mark.parametrize("reduce", [differences, widest])
def test_elements_side_by_side_are_combined_pairwise(reduce: Any) -> None:
    """A block combines eight elements of a matrix, each as one alone."""
    k = 24
    partials = np.random.default_rng(1).standard_normal((5, k * k)).astype(np.float32)
    rows, combine = partials.copy(), {"sum": np.add, "max": np.maximum}
    while len(rows) > 1:
        half = (len(rows) + 1) // 2
        rest = rows[half:]
        rows = rows[:half]
        rows[: len(rest)] = combine[reduce.combine.name](rows[: len(rest)], rest)
    text = fg.foldmap(reduce).fold(k=k, target="cuda").source
    assert k * k >= blocks.MANY
    assert f"cuda.gridDim.x * {blocks.TOGETHER}" in text
    found = np.full(k * k, np.nan, np.float32)
    launch(text, "reduce_phase_0_finish", 3, 128, (partials, found))
    np.testing.assert_array_equal(found, rows[0])
