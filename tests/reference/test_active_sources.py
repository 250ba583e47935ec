"""Gathers from active sources in runs whose vertices begin somewhere (S5, S8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.graph import generators

V = 70
ACTIVE = [3, 40, 41]


@fg.gather(into="low", combine="min", sources="active")
def lowest(f, u, v, e, d):
    return d.x[u, f] + d.cost[e]


@fg.gather(into="fixed", combine="max")
def highest_cost(f, u, v, e, d):
    return d.cost[e]


@fg.vertex
def adopt(f, v, d):
    low = max(d.low[v, f], d.fixed[v] - 9)
    if low < d.x[v, f]:
        d.x_next[v, f] = low
    return low < d.x[v, f]


spread = fg.foldmap(lowest, highest_cost, adopt)


def make_graph() -> fg.Graph:
    """Return a graph with a hub."""
    rng = np.random.default_rng(5)
    sources, targets = rng.integers(0, V, (2, 260))
    return fg.Graph.from_edges(sources, np.where(rng.random(260) < 0.2, 7, targets))


WHOLE = make_graph()
COST = np.random.default_rng(6).integers(1, 9, WHOLE.given_edge_count)
START = np.random.default_rng(7).integers(0, 40, (V, 2)).astype(np.int32)
NEAR = fg.NearFar("x", delta=2)


def run(graph: fg.Graph, **options: Any) -> tuple[Any, fg.Run]:
    state = fg.State(
        graph, x=fg.vertex_property(START, iterated=True), cost=fg.edge_property(COST)
    )
    found = fg.iterate(spread, state, active=ACTIVE, **options)
    assert found.converged
    return state["x"], found


@pytest.fixture(scope="module")
def meant() -> Any:
    state = fg.State(
        WHOLE, x=fg.vertex_property(START, iterated=True), cost=fg.edge_property(COST)
    )
    given = reference.from_state(state)
    active = np.isin(np.arange(V), ACTIVE)
    plain = reference.iterate(spread.program, *given, active=active)
    early = reference.iterate(spread.program, *given, active=active, asynchronous=True)
    np.testing.assert_array_equal(early.values["x"], plain.values["x"])
    everywhere = reference.iterate(spread.program, *given)
    assert (everywhere.values["x"] != plain.values["x"]).any()
    return plain.values["x"]


OPTIONS: dict[str, dict[str, Any]] = {
    "asynchronous": {"asynchronous": True},
    "near_far": {"near_far": NEAR},
    "both": {"asynchronous": True, "near_far": NEAR},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_inactive_sources_are_not_read(name: str, meant: Any, target: str) -> None:
    found, _ = run(WHOLE, target=target, **OPTIONS[name])
    np.testing.assert_array_equal(found, meant)


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "thread"},
    {"schedule": "lanes"},
    {"schedule": "virtual_warp", "lanes_per_vertex": 2},
    {"schedule": "warp_segmentation"},
    {"schedule": "block"},
)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
@pytest.mark.drawn(2)
@pytest.mark.parametrize("given", SCHEDULES, ids=lambda given: given["schedule"])
def test_no_schedule_reads_them(given: dict[str, Any], meant: Any) -> None:
    from tests.simt.gpu import emulated_gpu

    options = given | {"asynchronous": True, "record_active": True}
    with emulated_gpu():
        found, record = run(make_graph(), target="cuda", **options)
        recorded = [len(each) for each in record.active_sets]
    np.testing.assert_array_equal(found, meant)
    assert recorded == record.active_counts, "a kernel wrote to a set of another"


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_do_not_read_them(name: str, meant: Any) -> None:
    for inner in ([9, 45], [30]):
        cuts = [0, *inner, V]
        found = run_ranks(
            len(cuts) - 1,
            lambda _, cuts=cuts: run(
                fg.distribute(WHOLE, cuts=cuts), target="cpu", **OPTIONS[name]
            )[0],
        )
        for values in found:
            np.testing.assert_array_equal(values, meant)


def test_a_vertex_is_active_from_its_commit_on() -> None:
    """One superstep brings a label through, as without the restriction."""
    graph = generators.path_graph(V, directed=True)
    state = fg.State(
        graph,
        x=fg.vertex_property(np.arange(100, 100 + V, dtype=np.int32), iterated=True),
    )

    @fg.gather(into="low", combine="min", sources="active")
    def before(f, u, v, e, d):
        return d.x[u]

    @fg.vertex
    def take(f, v, d):
        d.x_next[v] = d.low[v]
        return d.low[v] < d.x[v]

    step = fg.foldmap(before, take)
    given = reference.from_state(state)
    active = np.arange(V) == 5
    early = reference.superstep(step.program, *given, active=active, asynchronous=True)
    assert early.values["x"].tolist()[4:8] == [104, 105, 105, 107]
    found = fg.iterate(step, state, active=[5], target="cpu", asynchronous=True)
    assert found.active_counts == [V - 6, 0]
    assert state["x"].tolist() == [*range(100, 105), *[105] * (V - 5)]
