"""Directions chosen in each superstep: which, and that nothing else differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import bfs, sssp
from featgraph.fold.analysis.changes import is_announced
from featgraph.runtime.devices.cpu_sweeps import CpuSets
from tests.programs.combines import nearest_active, note_news, tell, tell_all


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are made for supersteps that do not run in a compiled loop."""
    monkeypatch.setattr("featgraph.runtime.loops.worklist.SMALLEST_GRAPH", 1 << 60)


@pytest.fixture(scope="module")
def graph() -> fg.Graph:
    """Connected hubs and thousands of leaves: R-MAT, both ways."""
    drawn = fg.graph.generators.rmat(11, 16, seed=4)
    return fg.Graph.from_edges(
        drawn.sources, drawn.targets, vertex_count=drawn.vertex_count, directed=False
    )


def expected_directions(graph: fg.Graph, run: fg.Run, source: int) -> list[str]:
    """Return the cheaper direction of each superstep, counted in NumPy."""
    into, out = (
        np.diff(graph.in_edges.row_offsets),
        np.diff(graph.out_edges.row_offsets),
    )
    active = np.arange(graph.vertex_count) == source
    found = []
    for committed in run.active_sets or []:
        due = active.copy()
        for one, other in (
            (graph.sources, graph.targets),
            (graph.targets, graph.sources),
        ):
            due[other[active[one]]] = True
        pushes = into[due].sum() > 8 * out[active].sum() + graph.vertex_count // 4
        found.append("push" if pushes else "pull")
        active = committed.mask
    return found


def search(graph: fg.Graph, source: int, **options: Any) -> Any:
    return bfs(
        graph, source, target="cpu", deterministic=True, record_active=True, **options
    )


def test_edges_are_counted_where_that_may_decide(
    graph: fg.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push of an eighth of all edges is not shorter, whatever would be pulled."""
    source = int(np.argmax(graph.in_degree))
    edges_of, counted = CpuSets.edges_of, []

    def counting(self: CpuSets, words: Any, arrays: Any, along: str) -> int:
        counted.append((along, edges_of(self, words, arrays, along)))
        return counted[-1][1]

    monkeypatch.setattr(CpuSets, "edges_of", counting)
    run = search(graph, source).run
    outs = [count for along, count in counted if along == "out"]
    most = (graph.edge_count - graph.vertex_count // 4) / 8
    assert any(count >= most for count in outs)
    # The next count is of edges that a pull would read, or of the next superstep.
    followed = [
        counted[n + 1 : n + 2] for n, one in enumerate(counted) if one[0] == "out"
    ]
    for count, behind in zip(outs, followed, strict=True):
        assert (count < most) == (bool(behind) and behind[0][0] == "in")
    assert run.directions == expected_directions(graph, run, source)


@pytest.mark.slow
def test_a_search_takes_the_shorter_way(graph: fg.Graph) -> None:
    source = int(np.argsort(graph.in_degree)[graph.vertex_count // 2])
    both = search(graph, source)
    assert both.run.directions == expected_directions(graph, both.run, source)
    assert set(both.run.directions) == {"push", "pull"}
    for direction in ("pull", "push"):
        one = search(graph, source, direction=direction)
        assert set(one.run.directions) == {direction}
        assert np.array_equal(one.levels, both.levels)
        assert np.array_equal(one.parents, both.parents)
        assert one.run.active_counts == both.run.active_counts


def test_paths_are_the_same_bit_for_bit(
    graph: fg.Graph, target: str, rng: np.random.Generator
) -> None:
    weights = rng.random(graph.given_edge_count)
    source = int(np.argsort(graph.in_degree)[graph.vertex_count // 2])
    results = {
        direction: sssp(
            graph, source, weights=weights, target=target, direction=direction
        )
        for direction in ("auto", "pull", "push")
    }
    assert set(results["auto"].run.directions) == {"push", "pull"}
    for result in results.values():
        assert np.array_equal(result.distances, results["auto"].distances)
        assert np.array_equal(result.predecessors, results["auto"].predecessors)


def test_a_grid_is_pulled(target: str) -> None:
    side = np.arange(900).reshape(30, 30)
    ends = [(side[:, :-1], side[:, 1:]), (side[:-1], side[1:])]
    sources, targets = (np.concatenate([e[i].ravel() for e in ends]) for i in (0, 1))
    grid = fg.Graph.from_edges(sources, targets, directed=False)
    result = bfs(grid, 0, target=target)
    assert result.supersteps == 59
    assert set(result.run.directions) == {"pull"}


def _state(graph: fg.Graph, dtype: Any) -> fg.State:
    count = graph.vertex_count
    return fg.State(
        graph,
        open=fg.edge_property(True),
        level=fg.vertex_property(np.zeros((count, 2), dtype), iterated=True),
        size=fg.vertex_property(np.zeros(count, np.float32)),
        source=fg.vertex_property(np.zeros(count, np.int32), iterated=True),
    )


@pytest.mark.parametrize(
    ("functions", "dtype", "options", "expected"),
    [
        ((tell, nearest_active), np.int32, {}, True),
        ((tell, nearest_active), np.int32, {"direction": "pull"}, False),
        ((tell, nearest_active), np.float32, {}, False),  # a sum that rounds
        ((tell, nearest_active, tell_all, note_news), np.int32, {}, False),
    ],
    ids=["exact", "asked for", "rounds", "all sources"],
)
def test_what_may_be_pushed(
    functions: Any, dtype: Any, options: Any, expected: bool, graph: fg.Graph
) -> None:
    step = fg.foldmap(*functions)
    kernel = step.fold(_state(graph, dtype), target="cpu", **options)
    assert kernel.plan.facts.may_push == expected


def test_wide_keys_are_pulled(graph: fg.Graph) -> None:
    result = sssp(graph, 0, dtype=np.float64, target="cpu")
    assert set(result.run.directions) == {"pull"}


def test_few_edges_are_not_counted(
    graph: fg.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a few vertices reach can pay for a push."""
    ends = np.arange(4095)
    path = fg.Graph.from_edges(ends, ends + 1)

    def refuse(*arguments: Any) -> bool:
        raise AssertionError("counted")

    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.is_push_shorter", refuse)
    assert bfs(path, 4000, target="cpu").supersteps == 96
    with pytest.raises(AssertionError, match="counted"):
        bfs(graph, 0, target="cpu")


def test_vertices_that_are_not_due_hear_nothing_new(graph: fg.Graph) -> None:
    """Evaluated all the same, as on a GPU, they would combine what is not active."""
    kernel = fg.foldmap(tell, tell_all).fold(_state(graph, np.int32), target="cpu")
    of_active, of_all = kernel.plan.analysis.functions
    assert not is_announced(of_active)
    assert is_announced(of_all)
