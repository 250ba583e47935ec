"""Reads of a rank's own part, without communication."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import als, bfs, k_core
from featgraph.cuda.values import host_values
from featgraph.distributed import run_ranks
from featgraph.ranks.exchange.vertex_sets import unpacked
from featgraph.runtime.devices.choose import choose_device

V = 70


def make_graph(directed: bool, loops: bool = False) -> fg.Graph:
    ends = np.random.default_rng(3).integers(0, V, (2, 200))
    ends = ends[:, loops | (ends[0] != ends[1])]
    return fg.Graph.from_edges(*ends, vertex_count=V, directed=directed)


@settings(deadline=None)
@given(st.data(), st.booleans(), st.sampled_from(["given", "spread", "locality"]))
def test_a_state_in_parts(data: st.DataObject, directed: bool, order: str) -> None:
    whole = make_graph(directed, loops=True)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, V), max_size=3))), V]
    x = np.arange(V * 3.0).reshape(V, 3)
    w = np.arange(whole.given_edge_count * (1 if directed else 2))

    def on_a_rank(engine: Any) -> tuple[Any, ...]:
        graph = fg.distribute(whole, order=order, cuts=cuts)
        state = fg.State(
            graph,
            x=fg.vertex_property(x),
            w=fg.edge_property(w, per_direction=not directed),
            factor=2.5,
            vector=np.arange(3.0),
        )
        before = engine.exchanges
        local = {name: state.local(name) for name in state}
        assert len(state) == 4
        assert "w" in repr(state)
        assert engine.exchanges == before
        assert local["factor"] == 2.5
        assert local["vector"].tolist() == [0, 1, 2]
        local["x"] *= 1  # a copy
        return graph.own_vertices, local["x"], graph.own_edges, local["w"]

    vertices, rows, edges, entries = map(
        np.concatenate, zip(*run_ranks(len(cuts) - 1, on_a_rank), strict=True)
    )
    assert np.array_equal(np.sort(vertices), np.arange(V))
    assert np.array_equal(rows, x[vertices])
    assert np.array_equal(np.sort(edges), np.sort(whole.given_index))
    assert np.array_equal(entries, w[edges])


@settings(deadline=None)
@given(st.data(), st.sampled_from(["given", "spread", "locality"]))
def test_entries_beside_one_value(data: st.DataObject, order: str) -> None:
    """A rank has those of its vertices and ghosts, and makes nothing of size V."""
    whole = make_graph(directed=True)
    inner = st.lists(st.integers(0, V), min_size=1, max_size=2)
    cuts = [0, *sorted(data.draw(inner)), V]
    places = st.tuples(st.integers(0, V - 1), st.integers(0, 2))
    at = np.array(data.draw(st.lists(places, max_size=9)), np.int64).reshape(-1, 2)
    x, marked = np.zeros((V, 3)), np.zeros(V, np.bool_)
    marked[at[:, 0]] = True
    for number, place in enumerate(at, 1):  # of those named twice, the last
        x[tuple(place)] = number
    words = np.zeros(V // 32 + 1, np.uint32)
    np.bitwise_or.at(words, at[:, 0] // 32, (1 << at[:, 0] % 32).astype(np.uint32))
    apart = {n: int(words[n]) for n in np.flatnonzero(words)}

    def on_a_rank(_: Any) -> tuple[Any, ...]:
        graph = fg.distribute(whole, order=order, cuts=cuts)
        entries = np.arange(1.0, len(at) + 1)
        given = fg.vertex_property(0.0, shape=(3,), at=tuple(at.T), entries=entries)
        state, numbers = fg.State(graph, x=given), graph.shard.numbers
        exchange = graph.exchange(choose_device("cpu"))
        found = unpacked(exchange.holder.sets.empty(words.size, apart))
        assert np.array_equal(found[: numbers.size], marked[numbers])
        assert not found[numbers.size :].any()
        here = state._columns["x"].values
        assert np.array_equal(host_values(here), x[numbers])
        return graph.own_vertices, state.local("x")

    found = run_ranks(len(cuts) - 1, on_a_rank)
    vertices, rows = map(np.concatenate, zip(*found, strict=True))
    assert np.array_equal(rows, x[vertices])


def test_a_state_on_one_rank() -> None:
    graph = make_graph(directed=True)
    w = np.arange(graph.given_edge_count)
    state = fg.State(graph, x=fg.vertex_property(np.arange(V)), w=fg.edge_property(w))
    assert np.array_equal(state.local("x"), state["x"][graph.own_vertices])
    assert np.array_equal(state.local("w"), w[graph.own_edges])
    with pytest.raises(fg.StateError, match="y"):
        state.local("y")


@pytest.mark.parametrize("is_read", [False, True])
def test_results_in_parts(is_read: bool) -> None:
    whole = make_graph(directed=False)
    alone = bfs(whole, 0).levels

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole, order="spread")
        result, core = bfs(graph, 0), k_core(graph, k=2)
        if is_read:
            assert np.array_equal(result.levels, alone)
        before = engine.exchanges
        assert np.array_equal(result.local("levels"), alone[graph.own_vertices])
        with pytest.raises(fg.FeatGraphError, match=r"read result\.vertices on all"):
            core.local("vertices")
        with pytest.raises(fg.FeatGraphError, match="no such array"):
            result.local("ranks")
        assert engine.exchanges == before

    run_ranks(2, on_a_rank)


def test_results_on_one_rank() -> None:
    graph = make_graph(directed=False)
    result, core = bfs(graph, 0), k_core(graph, k=2)
    assert np.array_equal(result.local("levels"), result.levels)
    assert np.array_equal(core.local("vertices"), core.vertices)
    again = pickle.loads(pickle.dumps(result))
    assert np.array_equal(again.local("levels"), result.levels)
    ratings = sparse.csr_array(np.random.default_rng(0).integers(0, 2, (9, 7)))
    assert als(ratings, factors=2, iterations=2).local("user_factors").shape[1] == 2


@fg.vertex
def note(f, v, d):
    d.noted[v] = v + d.more
    return False


@fg.gather(into="around", combine="sum")
def noted_around(f, u, v, e, d):
    return d.noted[u]


@fg.vertex
def keep_sum(f, v, d):
    d.sums[v] = d.around[v]
    return False


def test_what_was_written_before_it_is_read_has_all_waited() -> None:
    """In several supersteps, each at other vertices, of which none reads it."""
    whole = make_graph(directed=True)
    noting, summing = fg.vertexmap(note), fg.foldmap(noted_around, keep_sum)

    def sums(graph: fg.Graph) -> Any:
        state = fg.State(
            graph,
            noted=fg.vertex_property(0.0),
            sums=fg.vertex_property(0.0),
            more=0.0,
        )
        for turn in range(3):
            state["more"] = float(turn)
            noting(state, active_in=np.arange(turn, V, 4), target="cpu")
        summing(state, target="cpu")
        return state["sums"]

    for found in run_ranks(2, lambda _: sums(fg.distribute(whole, cuts=[0, 40, V]))):
        np.testing.assert_array_equal(found, sums(whole))


def test_exchanges_of_several_ranks_have_the_members_of_one() -> None:
    """A run calls either: `runtime.superstep.exchange` has those of a single rank."""
    from featgraph.ranks.exchange.exchange import GpuBlocks, HostBlocks, RankExchange
    from featgraph.runtime.superstep.exchange import Blocks, exchange_of

    alone = exchange_of(make_graph(True), choose_device("cpu"))
    members = {name for name in dir(alone) if name[0] != "_"}
    assert members - {"device", "holder"} <= {*dir(RankExchange)}
    combines = {name for name in dir(Blocks) if name[0] != "_"}
    assert combines <= {*dir(HostBlocks)} & {*dir(GpuBlocks)}
