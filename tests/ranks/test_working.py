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
from featgraph.graph import grid
from featgraph.graph.formats.convert import write_graph
from featgraph.ranks.cost import working as model
from featgraph.ranks.cost.machine import Curve, Machine
from featgraph.ranks.cost.times import Work, superstep_times
from featgraph.ranks.engines import ahead
from featgraph.ranks.expected import chosen
from featgraph.ranks.moving import numbers
from tests.strategies import seeds

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
V = 200
ENDS = np.random.default_rng(3).integers(0, V, (2, 600))
ORDERS = ["given", "spread", "locality"]


def make_graph() -> fg.Graph:
    return fg.Graph.from_edges(*ENDS, vertex_count=V, directed=False)


def machine_of(edge_s: float, latency_s: float, byte_s: float = 1e-9) -> Machine:
    """Return a machine of which only edges, exchanges and bytes take time."""
    flat, none = Curve.flat({1: edge_s}), Curve.flat({1: 0.0})
    link = fg.model.links.Link.of("test", latency_s, 1 / byte_s)
    return Machine("test", flat, flat, none, none, fixed_s=1e-6, links=(link,))


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


def require_told(graph: fg.Graph) -> None:
    """Have nothing left, behind a call, that rank 0 has not told the others."""
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
        told: list[Any] = []

        def note(run: fg.Run, state: fg.State) -> None:
            told.append((run.active_counts[-1], state["total"]))
            if seed % 3 == 0:
                told.append(state["x"].tolist())

        run = fg.iterate(lowest, state, callback=note, record_active=True)
        require_told(graph)
        assert run.active_sets is not None
        told += [len(one) for one in run.active_sets]
        committed = lowest(state, active_in=[1, 2])
        require_told(graph)
        told += [len(committed)]
        require_told(graph)
        told += [committed.vertices.tolist()]
        return [*told, state["x"].tolist(), state["total"], run.supersteps]

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

    with mock.patch.object(ahead, "MOST_RESULTS", most):
        found = run_ranks(ranks, on_a_rank)
    assert found == [program(whole)] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_algorithms(ranks: int) -> None:
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


@pytest.mark.parametrize(
    ("edge_s", "latency_s", "meant"),
    [(1e-9, 1e-3, 1), (1e-3, 1e-9, 4), (1e-5, 4e-4, 4)],
)
def test_the_model_chooses(edge_s: float, latency_s: float, meant: int) -> None:
    whole, machine = make_graph(), machine_of(edge_s, latency_s)
    assert model.Choice(machine, machine.links[0], 4).for_graph(whole, "given") == meant

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks="auto")
        return graph.shard.partition.working, graph.keeps_idle

    with mock.patch.object(chosen, "calibrate", return_value=machine):
        assert run_ranks(4, on_a_rank) == [(meant, meant < 4)] * 4


def test_idle_ranks_are_waited_for_where_several_work() -> None:
    whole, machine = make_graph(), machine_of(1e-9, 1e-3)
    link = fg.model.links.Link("test", ((0, 1e-3), (1e9, 1.0)), peer_s=1e-4)
    counts = fg.distributed.forecast(whole, [1, 2]).counts
    for count, peers in zip(counts, ([0, 0], [1, 7]), strict=True):
        work = Work.whole(count)
        near, far = (model.Choice(machine, link, n).seconds(work) for n in (3, 9))
        alone = superstep_times(work, machine, link).seconds
        assert near - alone == pytest.approx(2e-4 * peers[0])
        assert far - alone == pytest.approx(2e-4 * peers[1])


@given(
    st.integers(1, 9),
    st.floats(1e-9, 1e-4),
    st.floats(1e-6, 1e-2),
    st.floats(1e-12, 1e-7),
)
def test_bounds_hold_what_is_counted(
    size: int, edge_s: float, latency_s: float, byte_s: float
) -> None:
    machine = machine_of(edge_s, latency_s, byte_s)
    choice = model.Choice(machine, machine.links[0], size)
    least, most = choice.for_size(V, 1200)
    assert 1 <= least <= most <= size
    assert {least, most} <= set(model.numbers_of_ranks(size))
    slow = model.Choice(machine_of(edge_s, 1e3), machine.links[0], size)
    assert slow.for_size(V, 1)[0] == 1 or latency_s < 1


@pytest.mark.parametrize("is_work", [True, False])
def test_what_has_run_corrects_the_model(is_work: bool) -> None:
    whole, machine = make_graph(), machine_of(1e-9, 1e-3)

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks="auto")
        few = graph.shard.partition.working
        state = fg.State(graph, x=fg.vertex_property(np.arange(V), iterated=True))
        run = fg.iterate(lowest, state)
        # Functions that take long; or whatever is active, supersteps that do.
        active = [V, *run.active_counts[:-1]]
        run.seconds = [count if is_work else 1.0 for count in active]
        graph = fg.distribute(graph, ranks="auto", after=run)
        many = graph.shard.partition.working
        levels = bfs(graph, 3).levels
        graph = fg.distribute(graph, ranks=1)
        return few, many, levels.tolist(), graph.shard.own

    with mock.patch.object(chosen, "calibrate", return_value=machine):
        found = run_ranks(3, on_a_rank)
    levels, many = bfs(whole, 3).levels.tolist(), 3 if is_work else 1
    assert found == [(1, many, levels, 0 if rank else V) for rank in range(3)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("told", [[1, 3, 2], [3, 1], [2, 3, 1], [2, 1, 2]])
@pytest.mark.parametrize("name", ["levels", "ranks"])
def test_other_ranks_work_within_a_run(told: list[int], name: str) -> None:
    """As many as the first supersteps say, and later ones."""
    whole = grid(6, 40) if name == "levels" else make_graph()
    calls = {
        "levels": lambda g, **o: bfs(g, 3, target="cpu", **o),
        "ranks": lambda g, **o: pagerank(
            g, max_supersteps=50, tol=0, target="cpu", **o
        ),
    }
    alone = getattr(calls[name](whole), name)

    def again(of: Any, run: Any, since: int) -> chosen.Chosen:
        looks = {5: 1, 20: 2}[run.supersteps]
        assert since == (0 if looks == 1 else 5)
        assert of.shard.partition.working == told[looks - 1]
        return chosen.Chosen(told[min(looks, len(told) - 1)], 1e3, 1.0)

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks=told[0])
        graph.chooses = True
        found = calls[name](graph, repartition="auto")
        run = found.run
        last = run.graph.shard.partition
        assert [p.superstep for p in run.partitions] == [5, 20][: len(told) - 1]
        assert last.working == told[-1]
        assert run.graph.keeps_idle == (told[-1] < 3)
        assert run.working == (None if told[-1] == 3 else told[-1])
        assert graph.shard.partition.working == told[0]
        return getattr(found, name)

    with mock.patch.object(numbers, "chosen_again", again):
        for found in run_ranks(3, on_a_rank):
            np.testing.assert_array_equal(found, alone)


def test_a_run_that_takes_as_long_as_foretold_moves_nothing() -> None:
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks=1)
        graph.chooses = True
        found = pagerank(
            graph, max_supersteps=30, tol=0, target="cpu", repartition="auto"
        )
        return len(found.run.partitions), found.run.graph

    with mock.patch.object(chosen, "calibrate", return_value=machine_of(1e-9, 1e-3)):
        assert run_ranks(3, on_a_rank) == [(0, None)] * 3


def test_a_gain_of_less_than_moving_costs_moves_nothing() -> None:
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks=1)
        graph.chooses = True
        found = pagerank(
            graph, max_supersteps=9, tol=0, target="cpu", repartition="auto"
        )
        return len(found.run.partitions)

    little = chosen.Chosen(3, 2e-9, 1e-9)
    with mock.patch.object(numbers, "chosen_again", return_value=little):
        assert run_ranks(3, on_a_rank) == [0] * 3


@pytest.mark.parametrize(("edge_s", "meant"), [(1e-12, 1), (1e-2, 3)])
def test_seconds_of_the_rank_that_leads_are_what_counts(
    edge_s: float, meant: int
) -> None:
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, ranks=1)
        run = bfs(graph, 3, target="cpu").run
        # Followers wait for what they are told.
        run.seconds = [
            (edge_s if engine.rank == 0 else 9.0) * max(count, 1)
            for count in run.active_counts
        ]
        found = chosen.chosen_again(graph, run)
        return found.number, found.now_s >= found.then_s

    machine = machine_of(1e-9, 1e-4)
    with mock.patch.object(chosen, "calibrate", return_value=machine):
        assert run_ranks(3, on_a_rank) == [(meant, True)] * 3


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


@pytest.mark.parametrize("asked", [0, 3, True, "some", 1.5])
def test_numbers_that_are_none(asked: Any) -> None:
    def on_a_rank(engine: Any) -> Any:
        return fg.distribute(make_graph(), ranks=asked)

    with pytest.raises(fg.GraphInputError, match="1 to 2"):
        run_ranks(2, on_a_rank)


def test_ranks_that_differ() -> None:
    def on_a_rank(engine: Any) -> Any:
        return fg.distribute(make_graph(), ranks=1 + engine.rank)

    with pytest.raises(fg.GraphInputError, match="different numbers"):
        run_ranks(2, on_a_rank)


def test_cuts_and_ranks() -> None:
    with pytest.raises(fg.GraphInputError, match="one of the two"):
        fg.distribute(make_graph(), ranks=1, cuts=[0, V])
