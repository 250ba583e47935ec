"""Runs that evaluate all vertices where most are due: nothing but time may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms.label_propagation import step as label_propagation
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops import foldmap_run as steps
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from featgraph.runtime.superstep import directions
from tests.bank import BY_NAME


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Have the CPU sweep, too; gets whether each superstep did."""
    monkeypatch.setattr(steps, "SWEEPING_TARGETS", {"cpu"})
    decisions: list[bool] = []
    decide = FoldmapRun._sweeps_all

    def noted(self: FoldmapRun, count: int | None) -> bool:
        decisions.append(decide(self, count))
        return decisions[-1]

    monkeypatch.setattr(FoldmapRun, "_sweeps_all", noted)
    return decisions


def labels(count: int, edges: int) -> fg.State:
    rng = np.random.default_rng(7)
    ends = rng.integers(0, count, (2, edges))
    graph = fg.Graph.from_edges(*ends, vertex_count=count, directed=False)
    seeds = rng.random(count) < 0.1
    label = np.where(seeds[:, None], np.eye(3)[rng.integers(0, 3, count)], 0)
    return fg.State(
        graph,
        label=fg.vertex_property(label.astype(np.float32), iterated=True),
        clamped=fg.vertex_property(seeds),
        weight=fg.edge_property(1.0),
        alpha=0.85,
        epsilon=1e-3,
    )


def make_steps(foldmaps: list[Any], state: fg.State, options: Any) -> list[FoldmapRun]:
    device = choose_device("cpu")
    made = [FoldmapRun(foldmap, state, device, options, None) for foldmap in foldmaps]
    steps.connect_runs(made)
    return made


def run(state: fg.State, **options: Any) -> tuple[list[int], Any]:
    done = fg.iterate(label_propagation, state, target="cpu", **options)
    return done.active_counts, state["label"]


def test_the_same_vertices_commit_the_same(
    swept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(labels(500, 1500))
    assert True in swept
    assert swept[-1] is False  # few are active at the end
    monkeypatch.setattr(steps, "SWEEPING_TARGETS", set())
    expected = run(labels(500, 1500))
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])


def test_a_small_graph_is_swept_to_the_end(
    swept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(labels(500, 1500))
    monkeypatch.setattr(directions, "FEWEST_TO_SKIP", (500 + 2 * 1500) * 3 + 1)
    swept.clear()
    small = run(labels(500, 1500))
    assert swept[-1]
    assert small[0] == found[0]
    np.testing.assert_array_equal(small[1], found[1])


def test_not_before_all_have_been_evaluated(swept: list[bool]) -> None:
    run(labels(500, 1500), active=range(0, 500, 2))
    assert len(swept) > 5
    assert True not in swept


def test_not_where_the_caller_chooses(swept: list[bool]) -> None:
    for change_driven in (True, False):
        run(labels(500, 1500), change_driven=change_driven)
    assert True not in swept


@fg.vertex
def count_down(f, v, d):
    d.x_next[v] = d.x[v] - 1
    return d.x[v] > d.superstep


@pytest.mark.parametrize(
    ("name", "expected"),
    [("label_propagation", True), ("pagerank", True), ("belief_propagation", False),
     ("in_place", False), ("edge_atomics", False), ("count_down", False)],
)  # fmt: skip
def test_not_where_a_change_may_be_silent(name: str, expected: bool) -> None:
    if name == "count_down":
        graph = fg.Graph.from_edges([0, 1], [1, 2])
        state = fg.State(graph, x=fg.vertex_property([3, 1, 2], iterated=True))
        foldmaps: Any = [fg.vertexmap(count_down)]
    else:
        program = BY_NAME[name]
        rng = np.random.default_rng(5)
        ends = rng.integers(0, 40, (2, 160))
        directed = not program.undirected
        graph = fg.Graph.from_edges(*ends, vertex_count=40, directed=directed)
        state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))
        foldmaps = list(program.foldmaps)
    made = make_steps(foldmaps, state, {})
    assert not any(step.may_sweep_all for step in made)  # the CPU never does
    assert all(step.plan.facts.is_announced for step in made) is expected


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u, f]


@fg.vertex
def adopt(f, v, d):
    d.label_next[v, f] = min(d.label[v, f], d.low[v, f])
    return d.low[v, f] < d.label[v, f]


@pytest.mark.parametrize(
    ("foldmap", "direction", "expected"),
    [(label_propagation, "pull", True), (label_propagation, "push", False),
     (fg.foldmap(lowest, adopt), "push", True)],
)  # fmt: skip
def test_not_where_a_push_rounds_in_any_order(
    foldmap: Any, direction: str, expected: bool, swept: list[bool]
) -> None:
    options = {"direction": direction}
    made = make_steps([foldmap], labels(50, 150), options)
    assert made[0].may_sweep_all is expected
    assert made[0].announces is expected  # which replays ask
    fg.iterate(foldmap, labels(50, 150), target="cpu", **options)
    assert (True in swept) is expected
