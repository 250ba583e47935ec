"""Ranks that have no vertices: how many there are, and that they get all results."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms import bfs, connected_components, pagerank
from featgraph.distributed import run_ranks
from featgraph.graph.formats.convert import write_graph
from featgraph.ranks.engines import messages
from tests.strategies import seeds

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
V = 200
ENDS = np.random.default_rng(3).integers(0, V, (2, 600))
ORDERS = ["given", "spread", "locality"]


def make_graph() -> fg.Graph:
    return fg.Graph.from_edges(*ENDS, vertex_count=V, directed=False)


@fg.gather(into="low", combine="min")
def low_x(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_low(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v]


@fg.reduce(into="total", combine="sum")
def total_of(f, v, d):
    return d.x[v]


lowest = fg.foldmap(low_x, take_low, total_of)


def require_all_sent(graph: fg.Graph) -> None:
    """Check that rank 0 has sent all of its results after a call."""
    if graph.ranks is not None:
        engine = graph.ranks.engine
        before = engine.exchanges
        engine.barrier()
        assert engine.exchanges == before + 1


@settings(deadline=None)
@given(
    ranks=st.integers(2, 4),
    most=st.sampled_from([1, 3, 256]),
    seed=seeds,
    order=st.sampled_from(ORDERS),
)
def test_what_follows_gets_all_results(
    ranks: int, most: int, seed: int, order: str
) -> None:
    whole, x = make_graph(), np.random.default_rng(seed).integers(0, 900, V)

    def program(graph: fg.Graph) -> list[Any]:
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        results: list[Any] = []

        def note(run: fg.Run, state: fg.State) -> None:
            results.append((run.active_counts[-1], state["total"]))
            if seed % 3 == 0:
                results.append(state["x"].tolist())

        run = fg.iterate(lowest, state, callback=note, record_active=True)
        require_all_sent(graph)
        assert run.active_sets is not None
        results += [len(one) for one in run.active_sets]
        committed = lowest(state, active_in=[1, 2])
        require_all_sent(graph)
        results += [len(committed)]
        require_all_sent(graph)
        results += [committed.vertices.tolist()]
        return [*results, state["x"].tolist(), state["total"], run.supersteps]

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, order=order, ranks=1)
        assert graph.shard.own == (0 if engine.rank else V)
        found = program(graph)
        with pytest.raises(fg.PlanError, match="get none"):
            fg.iterate(
                lowest,
                fg.State(graph, x=fg.vertex_property(x, iterated=True)),
                repartition="auto",
            )
        return found

    with mock.patch.object(messages, "MOST_RESULTS", most):
        found = run_ranks(ranks, on_a_rank)
    assert found == [program(whole)] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_algorithms(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # By the clock, rank 0 would send its results more often on a loaded machine.
    monkeypatch.setattr(messages, "MOST_S", np.inf)
    whole = make_graph()
    alone = pagerank(whole).ranks, bfs(whole, 3).levels

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks=ranks)
        assert graph.shard.partition.working == ranks
        begun, result = engine.exchanges, pagerank(graph)
        assert result.run.working == (None if ranks == 3 else ranks)
        assert ("ranks at work" in repr(result.run)) == (ranks < 3)
        assert ("the first" in result.run.explain()) == (ranks < 3)
        found = result.ranks, bfs(graph, 3).levels
        parts = connected_components(graph).labels
        return found, parts, engine.exchanges - begun

    for (values, levels), parts, exchanges in run_ranks(3, on_a_rank):
        np.testing.assert_array_equal(values, alone[0])
        np.testing.assert_array_equal(levels, alone[1])
        np.testing.assert_array_equal(parts, connected_components(whole).labels)
        # More than 30 supersteps, of two exchanges each where ranks work together.
        assert (exchanges < 25) == (ranks == 1)


def test_ranks_that_went_different_ways() -> None:
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, ranks=1)
        state = fg.State(graph, x=fg.vertex_property(1, iterated=True))
        if engine.rank:
            fg.iterate(lowest, state, max_supersteps=1)
        else:
            lowest(state)

    with pytest.raises((fg.RankMismatchError, fg.WorkerLostError)):
        run_ranks(2, on_a_rank)


def test_what_rank_0_raises_ends_the_others() -> None:
    whole = make_graph()

    def stop(run: fg.Run, state: fg.State) -> None:
        raise ValueError("enough")

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, ranks=1)
        state = fg.State(graph, x=fg.vertex_property(1, iterated=True))
        fg.iterate(lowest, state, callback=None if engine.rank else stop)
        return state["total"]

    with pytest.raises(ValueError, match="enough"):
        run_ranks(2, on_a_rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_graphs_that_are_read(ranks: int, tmp_path: Path) -> None:
    whole = make_graph()
    path = tmp_path / "graph.fgs"
    write_graph(whole, path)
    alone = bfs(whole, 3).levels

    def on_a_rank(engine: Any) -> Any:
        read: Any = fg.read_graph(path, partition="edges", ranks=ranks)
        ends = np.array_split(ENDS, 3, axis=1)[engine.rank]
        made: Any = fg.Graph.from_edges(
            *ends, vertex_count=V, directed=False, partition="edges", ranks=ranks
        )
        assert {g.shard.partition.working for g in (read, made)} == {ranks}
        return bfs(read, 3).levels, bfs(made, 3).levels

    for found in run_ranks(3, on_a_rank):
        for levels in found:
            np.testing.assert_array_equal(levels, alone)


def test_a_distributed_graph_gets_vertices_on_fewer_ranks_and_on_all() -> None:
    whole = make_graph()
    alone = bfs(whole, 3).levels

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole)
        few: Any = fg.distribute(graph, ranks=1)
        many: Any = fg.distribute(few, ranks=3)
        assert (few.keeps_idle, many.keeps_idle) == (True, False)
        np.testing.assert_array_equal(bfs(few, 3).levels, alone)
        np.testing.assert_array_equal(bfs(many, 3).levels, alone)
        return few.shard.own, many.shard.partition.working

    assert run_ranks(3, on_a_rank) == [(V, 3), (0, 3), (0, 3)]


@pytest.mark.parametrize("number", [0, 3, True, "some", "auto", 1.5])
def test_numbers_that_are_none(number: Any) -> None:
    def on_a_rank(engine: Any) -> Any:
        return fg.distribute(make_graph(), ranks=number)

    with pytest.raises(fg.GraphInputError, match="1 to 2"):
        run_ranks(2, on_a_rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_are_not_chosen(ranks: int) -> None:
    """On a single rank, too, and for graphs that are made in parts."""

    def in_parts(engine: Any) -> Any:
        given = {"vertex_count": V, "partition": "edges", "ranks": "auto"}
        return fg.Graph.from_edges(*ENDS, **given)

    for make in (lambda _: fg.distribute(make_graph(), ranks="auto"), in_parts):  # type: ignore[arg-type]
        with pytest.raises(fg.GraphInputError, match=r"(?s)'auto'.*ranks=1"):
            run_ranks(ranks, make)


def test_any_number_is_taken_by_a_single_rank() -> None:
    def on_a_rank(engine: Any) -> int:
        return fg.distribute(make_graph(), ranks=4).vertex_count

    assert run_ranks(1, on_a_rank) == [V]


def test_waits_are_recorded_on_several_ranks_only() -> None:
    whole = make_graph()
    assert pagerank(whole, target="cpu").run.waits == []

    def on_a_rank(_: object) -> tuple[int, list[float], list[float]]:
        run = pagerank(fg.distribute(whole), target="cpu").run
        return run.supersteps, run.waits, run.seconds

    for supersteps, waits, seconds in run_ranks(2, on_a_rank):
        assert len(waits) == supersteps
        for wait, second in zip(waits, seconds, strict=True):
            assert 0 < wait < second


def test_ranks_that_differ() -> None:
    def on_a_rank(engine: Any) -> Any:
        return fg.distribute(make_graph(), ranks=1 + engine.rank)

    with pytest.raises(fg.GraphInputError, match="ranks= differs"):
        run_ranks(2, on_a_rank)


def test_cuts_and_ranks() -> None:
    with pytest.raises(fg.GraphInputError, match="one of the two"):
        fg.distribute(make_graph(), ranks=1, cuts=[0, V])
