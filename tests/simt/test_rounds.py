"""Warps whose lanes meet at each edge: rounds on the way together, and long rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.plan import planner, schedules
from featgraph.fold.plan.traits import GraphTraits, graph_traits, set_traits
from featgraph.fold.schedules import lanes
from tests.simt.case import Case, vertex
from tests.simt.gpu import Gpu
from tests.simt.programs import BY_NAME
from tests.simt.test_kernels import Run

#: Rows with no round, rounds that are left alone, whole ones and both; of four edges a
#: round, four rounds together, and of eight in the block of the last row.
DEGREES = (0, 1, 4, 15, 16, 17, 35, 64, 66)


@fg.gather(into="told", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.weight[e] * fg.dot(d.x[u], d.x[v]) * d.x[u, f]


@fg.gather(into="most", combine="max")
def furthest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return fg.feature_max(abs(d.x[u, f] - d.x[v, f])) + d.x[u, f]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    d.y[v, f] = fg.norm(d.told[v, f]) + d.told[v, f]
    d.z[v, f] = d.most[v, f]
    return True


step = fg.foldmap(weigh, furthest, keep)


def make_state(k: int = 20) -> fg.State:
    rng = np.random.default_rng(5)
    targets = np.repeat(np.arange(len(DEGREES)), DEGREES)
    sources = rng.integers(0, len(DEGREES), targets.size)
    graph = fg.Graph.from_edges(sources, targets, vertex_count=len(DEGREES))
    rows = rng.normal(size=(len(DEGREES), k)).astype(np.float32)
    return fg.State(
        graph,
        x=fg.vertex_property(rows),
        y=fg.vertex_property(0 * rows),
        z=fg.vertex_property(0 * rows),
        weight=fg.edge_property(rng.random(targets.size).astype(np.float32)),
    )


@pytest.mark.parametrize("in_blocks", [False, True])
def test_rows_of_any_length(
    in_blocks: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are left to blocks; sums are cut into blocks of rounds by option."""
    monkeypatch.setattr(schedules, "SUM_BLOCK", 64)
    monkeypatch.setattr(lanes, "ROUND_THREADS", 64)
    if in_blocks:
        monkeypatch.setattr(planner, "SUM_BLOCK", 4)
    states = make_state(), make_state()
    traits = replace(graph_traits(states[0].graph), typical_degree=64)
    set_traits(states[0].graph, replace(traits, long_rows=True))
    text = step.fold(states[0], target="cuda").source
    assert "whole_rounds" in text
    for state, target in zip(states, ("cuda", "cpu"), strict=True):
        step(state, target=target)
    assert sum("hubs" in name for name in gpu.by_dialect) == 1
    for name in ("y", "z"):
        np.testing.assert_allclose(states[0][name], states[1][name], 2e-5, 1e-5)


def test_rows_that_are_left_to_blocks_are_listed(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the number of edges on that the kernel of the others has as its bound."""
    monkeypatch.setattr(schedules, "SUM_BLOCK", 64)
    state = make_state()
    set_traits(state.graph, GraphTraits(64, long_rows=True))
    plan = step.fold(state, target="cuda").plan
    assert plan.phases[0].mapping.hub_degree == 64
    assert "64 edges or more" in str(plan)


@fg.vertex
def turn(f, v, d):  # type: ignore[no-untyped-def]
    d.y[v, f] = fg.matvec(d.large, d.x[v, f], transpose=True)
    return True


def _with_a_large_matrix(graph: Any, k: int, rng: Any) -> dict[str, Any]:
    rows = rng.normal(size=(graph.vertex_count, k))
    return {
        "large": ("vector", rng.normal(size=(k, k)), False),
        "x": vertex(rows),
        "y": vertex(0 * rows),
    }


@pytest.mark.parametrize("k", [66, 68])
def test_rows_of_a_large_matrix_are_loaded_in_pieces(k: int) -> None:
    """Of its transpose, which fits no shared memory; where pieces divide its rows."""
    run = Run(Case("turn", (turn,), _with_a_large_matrix), k, size=(9, 40))
    loads = run.kernels.text.count("warp.load_row(d.large")
    assert loads == (4 if k == 68 else 0)
    run.check()


def test_one_warp_of_a_block_runs_vertex_functions() -> None:
    run = Run(BY_NAME["label_propagation"], 12, hubs=True)
    kernel = run.kernels.text.split("def vertex_phase_0_hubs")[1]
    assert re.search(r"if thread < 32:\n +moved = ", kernel)
