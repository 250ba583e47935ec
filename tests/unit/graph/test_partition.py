"""Partitions and shards, against their definition, edge by edge."""

from __future__ import annotations

import pickle
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph import Partition, Shard, grid, uniform
from tests.strategies import graphs, seeds

ORDERS = ("given", "spread", "locality", "array")


@st.composite
def cut_anywhere(draw: st.DrawFn, graph: fg.Graph) -> list[int]:
    """Draw cuts at any vertices: empty parts, parts of one vertex, more than V."""
    inner = draw(st.lists(st.integers(0, graph.vertex_count), max_size=6))
    return [0, *sorted(inner), graph.vertex_count]


@st.composite
def sharded(draw: st.DrawFn) -> tuple[fg.Graph, list[Shard]]:
    """Draw a graph and its shards, with cuts of ours and of anyone's."""
    graph = draw(graphs())
    order: Any = draw(st.sampled_from(ORDERS))
    if order == "array":
        order = np.random.default_rng(draw(seeds)).permutation(graph.vertex_count)
    if draw(st.booleans()):
        return graph, graph.partition(order, cuts=draw(cut_anywhere(graph)))
    balance = draw(st.sampled_from([(1, 8, 0), (1, 0, 0), (0, 1, 0), (1, 8, 5)]))
    parts = draw(st.sampled_from([1, 2, 3, 4, 7, 130]))
    return graph, graph.partition(order, parts, balance=balance)


@given(sharded())
def test_every_edge_is_in_the_shard_of_its_target(
    drawn: tuple[fg.Graph, list[Shard]],
) -> None:
    graph, shards = drawn
    edge_ids = np.concatenate([np.array(shard.edge_ids, int) for shard in shards])
    assert (np.sort(edge_ids) == np.arange(graph.edge_count)).all()
    offsets, columns = graph.in_edges.row_offsets, graph.in_edges.column_indices
    for shard in shards:
        rows = shard.local.in_edges
        assert shard.local.directed
        assert (shard.local.given_index == np.arange(shard.local.edge_count)).all()
        assert rows.row_offsets[shard.own] == shard.local.edge_count
        for v in range(shard.own):
            whole = slice(*offsets[shard.numbers[v] :][:2])
            here = slice(*rows.row_offsets[v:][:2])
            assert list(shard.edge_ids[here]) == list(range(whole.start, whole.stop))
            sources = shard.numbers[rows.column_indices[here]]
            assert sources.tolist() == columns[whole].tolist()


@given(graphs(directed=False), st.data())
def test_edges_of_an_undirected_graph_have_their_twins(
    graph: fg.Graph, data: st.DataObject
) -> None:
    order = data.draw(st.sampled_from(["given", "spread"]))
    cuts = data.draw(cut_anywhere(graph))
    count = graph.given_edge_count
    for shard in graph.partition(order, cuts=cuts, along="both"):
        local = shard.local
        assert not local.directed
        given = graph.given_index[np.array(shard.edge_ids, int)]
        assert (given[: local.given_edge_count] < count).all()
        whole_ids = given[local.given_index]
        numbers, own = shard.numbers, shard.own
        own_edges = local.in_edges.row_offsets[own]
        assert own_edges == sum(graph.in_degree[numbers[:own]])
        for v in range(numbers.size):
            row = slice(*graph.in_edges.row_offsets[numbers[v] :][:2])
            here = slice(*local.in_edges.row_offsets[v:][:2])
            ends = graph.in_edges.column_indices[row]
            has = slice(None) if v < own else np.isin(ends, numbers[:own])
            columns = local.in_edges.column_indices[here]
            assert numbers[columns].tolist() == ends[has].tolist()
            assert whole_ids[here].tolist() == graph.given_index[row][has].tolist()


@given(graphs(directed=True), st.data())
def test_rows_of_both_directions_are_those_of_the_whole(
    graph: fg.Graph, data: st.DataObject
) -> None:
    order = data.draw(st.sampled_from(["given", "spread"]))
    cuts = data.draw(cut_anywhere(graph))
    for shard in graph.partition(order, cuts=cuts, along="both"):
        local = shard.local
        ids = np.array(shard.edge_ids, int)[local.given_index]
        for side in ("in_edges", "out_edges", "incident_edges"):
            whole, here = getattr(graph, side), getattr(local, side)
            slots = np.arange(graph.edge_count), np.arange(local.edge_count)
            if whole.edge_ids is not None:
                slots = whole.edge_ids, here.edge_ids
            for v in range(shard.own):
                row = slice(*whole.row_offsets[shard.numbers[v] :][:2])
                own = slice(*here.row_offsets[v:][:2])
                ends = shard.numbers[here.column_indices[own]]
                assert ends.tolist() == whole.column_indices[row].tolist()
                assert ids[slots[1][own]].tolist() == slots[0][row].tolist()


@given(sharded())
def test_own_vertices_come_first_and_then_ghosts_by_owner(
    drawn: tuple[fg.Graph, list[Shard]],
) -> None:
    graph, shards = drawn
    place = {v: i for i, v in enumerate(order_of(shards[0]))}
    for rank, shard in enumerate(shards):
        assert shard.rank == rank
        own, ghosts = np.split(shard.numbers, [shard.own])
        assert own.tolist() == owned(shard.partition, rank)
        sources = graph.in_edges.column_indices[list(shard.edge_ids)]
        expected = sorted(set(sources.tolist()) - set(own.tolist()), key=place.get)
        assert ghosts.tolist() == expected
        assert shard.ghosts[0] == shard.own
        assert shard.ghosts[-1] == shard.numbers.size == shard.local.vertex_count
        for peer in range(len(shards)):
            theirs = shard.numbers[shard.ghosts[peer] : shard.ghosts[peer + 1]]
            assert set(theirs.tolist()) <= set(owned(shard.partition, peer))
            assert peer != rank or not theirs.size


@given(sharded())
def test_send_lists_are_what_peers_have_as_ghosts(
    drawn: tuple[fg.Graph, list[Shard]],
) -> None:
    _, shards = drawn
    for shard in shards:
        for peer, listed in zip(shards, shard.send_lists, strict=True):
            begin, end = peer.ghosts[shard.rank : shard.rank + 2]
            there = peer.numbers[begin:end]
            assert (listed < shard.own).all()
            assert shard.numbers[listed].tolist() == there.tolist()


@given(sharded())
def test_local_numbers_lead_back(drawn: tuple[fg.Graph, list[Shard]]) -> None:
    graph, shards = drawn
    everybody = np.arange(graph.vertex_count)
    for shard in shards:
        local = shard.locals_of(everybody)
        expected = np.full(graph.vertex_count, -1)
        expected[shard.numbers] = np.arange(shard.numbers.size)
        assert local.tolist() == expected.tolist()
        assert shard.locals_of([]).tolist() == []
        assert shard.locals_of([-1, graph.vertex_count]).tolist() == [-1, -1]


@given(sharded())
def test_all_ranks_have_the_whole(drawn: tuple[fg.Graph, list[Shard]]) -> None:
    graph, shards = drawn
    partition = shards[0].partition
    assert sum(shard.own for shard in shards) == graph.vertex_count
    for shard in shards:
        assert shard.partition is partition
        assert shard.vertex_count == graph.vertex_count
        assert shard.edge_count == graph.edge_count
        assert shard.directed == graph.directed
        assert shard.digest == graph.digest
        assert f"rank {shard.rank} of {len(shards)}" in repr(shard)
    owners = partition.owner(np.arange(graph.vertex_count))
    expected = np.empty(graph.vertex_count, int)
    for rank in range(len(shards)):
        expected[owned(partition, rank)] = rank
    assert owners.tolist() == expected.tolist()


def order_of(shard: Shard) -> list[int]:
    order = shard.partition.order
    return list(range(shard.vertex_count)) if order is None else order.tolist()


def owned(partition: Partition, rank: int) -> list[int]:
    order = partition.order
    vertices = np.arange(partition.vertex_count) if order is None else order
    return vertices[partition.cuts[rank] : partition.cuts[rank + 1]].tolist()


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("order", ["given", "spread"])
def test_shards_have_the_weights_of_their_edges(directed: bool, order: str) -> None:
    rng = np.random.default_rng(5)
    u, v, weights = rng.integers(0, 70, 300), rng.integers(0, 70, 300), rng.random(300)
    graph = fg.Graph.from_edges(u, v, weights=weights, directed=directed)
    whole = graph.expand_edge_values(graph.weights)
    for shard in graph.partition(order, 3):
        expected = whole[list(shard.edge_ids)]
        assert shard.local.weights.tolist() == expected.tolist()


@pytest.mark.parametrize("order", ORDERS[:3])
@pytest.mark.parametrize("balance", [(1, 8, 0), (1, 0, 0), (0, 1, 0), (1, 8, 3)])
def test_chosen_cuts_balance_work_at_whole_words(order: str, balance: Any) -> None:
    graph = uniform(5000, 60000, seed=3)
    shards = graph.partition(order, 7, balance=balance)
    cuts = shards[0].partition.cuts
    assert not (cuts[:-1] % 32).any()
    work = np.array([work_of(shard, balance) for shard in shards])
    word = 32 * (balance[0] * 40 + balance[1])
    assert work.max() <= work.mean() + word


def work_of(shard: Shard, balance: Any) -> float:
    ghosts = shard.numbers.size - shard.own
    return float(np.dot(balance, (shard.local.edge_count, shard.own, ghosts)))


@pytest.mark.parametrize("order", ["given", "locality"])
@pytest.mark.parametrize("seed", range(2))
def test_ghosts_that_weigh_something_are_balanced(order: str, seed: int) -> None:
    # Most sources are near, so that a range takes in what were ghosts of it before. A
    # word more never weighs less, if a ghost does not weigh more than a vertex.
    rng = np.random.default_rng(seed)
    targets = np.sort(rng.integers(0, 1000, 4000) ** 2 // 1000)
    sources = np.clip(targets + rng.integers(-50, 400, 4000), 0, 999)
    graph = fg.Graph.from_edges(sources, targets, vertex_count=1000)
    balance = (1, 8, 8)
    shards = graph.partition(order, 3, balance=balance)
    most = max(work_of(shard, balance) for shard in shards)
    assert most <= least_work(graph, shards[0].partition, balance) * (1 + 1 / 256)


def least_work(graph: fg.Graph, partition: Partition, balance: Any) -> float:
    """Return the most work of a part for the best of all cuts between words."""
    count, order = graph.vertex_count, partition.order
    words = list(range(0, count, 32))
    return min(
        max(
            work_of(shard, balance)
            for shard in graph.partition(order_or_given(order), cuts=[0, *cuts, count])
        )
        for cuts in combinations_with_replacement(words, partition.parts - 1)
    )


def order_or_given(order: Any) -> Any:
    return "given" if order is None else order


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("order", ORDERS[:3])
def test_more_parts_than_words_leave_some_empty(count: int, order: str) -> None:
    graph = uniform(count, 4 * count, seed=1)
    shards = graph.partition(order, 5)
    assert len(shards) == 5
    assert sum(shard.own for shard in shards) == count
    for shard in shards:
        if not shard.own:
            assert shard.numbers.size == shard.local.edge_count == 0
            assert shard.locals_of([0]).tolist() == [-1]


def test_spread_deals_hubs_out() -> None:
    degree = np.r_[np.full(8, 100), np.ones(1016, int)]
    targets = np.repeat(np.arange(1024), degree)
    sources = np.random.default_rng(0).integers(0, 1024, targets.size)
    graph = fg.Graph.from_edges(sources, targets, vertex_count=1024)
    edges = [s.local.edge_count for s in graph.partition("spread", 4)]
    assert max(edges) - min(edges) <= 1
    assert np.ptp([s.local.edge_count for s in graph.partition(parts=4)]) > 100


def test_a_hub_has_a_part_to_itself_but_for_a_word() -> None:
    degree = np.r_[np.ones(500, int), 600, np.ones(523, int)]
    targets = np.repeat(np.arange(1024), degree)
    sources = np.random.default_rng(0).integers(0, 1024, targets.size)
    graph = fg.Graph.from_edges(sources, targets, vertex_count=1024)
    shards = graph.partition("spread", 8, balance=(1, 0, 0))
    edges = [shard.local.edge_count for shard in shards]
    assert max(edges) <= 600 + 32 + 16
    assert sorted(edges)[-2] <= 1023 / 7 + 32


@pytest.mark.parametrize("order", ["locality", "metis"])
def test_orders_find_what_is_near_in_a_shuffled_grid(order: str) -> None:
    if order == "metis":
        pytest.importorskip("pymetis", reason="METIS is optional: featgraph[metis]")
    lattice = grid(40, 40)
    mixed = np.random.default_rng(2).permutation(1600)
    graph = fg.Graph.from_edges(
        mixed[lattice.sources], mixed[lattice.targets], directed=False
    )
    given, found = (
        sum(s.numbers.size - s.own for s in graph.partition(o, 4))
        for o in ("given", order)
    )
    assert found < given / 5


def test_a_sweep_keeps_components_together() -> None:
    # Two rings, their vertices in turn, and vertices without edges between them.
    u = np.r_[np.arange(0, 192, 3), np.arange(1, 192, 3)]
    v = np.r_[np.roll(np.arange(0, 192, 3), -1), np.roll(np.arange(1, 192, 3), -1)]
    graph = fg.Graph.from_edges(u, v, vertex_count=192)
    shards = graph.partition("locality", cuts=[0, 64, 128, 192])
    assert [sorted(set(s.numbers % 3)) for s in shards[:2]] in ([[0], [1]], [[1], [0]])
    assert (shards[2].numbers % 3 == 2).all()
    assert all(s.numbers.size == s.own for s in shards)


def test_metis_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(fg.FeatGraphError, match=r"pip install 'featgraph\[metis\]'"):
        uniform(64, 100, seed=1).partition("metis", 2)


@pytest.mark.parametrize("directed", [True, False])
def test_metis_takes_loops_and_parallel_edges(directed: bool) -> None:
    pytest.importorskip("pymetis", reason="METIS is optional: featgraph[metis]")
    rng = np.random.default_rng(7)
    u, v = rng.integers(0, 90, (2, 2000))
    graph = fg.Graph.from_edges(u, v, vertex_count=97, directed=directed)
    shards = graph.partition("metis", 3)
    assert not (shards[0].partition.cuts[:-1] % 32).any()
    assert sum(shard.local.edge_count for shard in shards) == graph.edge_count
    assert [s.own for s in graph.partition("metis", 50)].count(0) >= 46


def test_partitions_are_compared_and_pickled() -> None:
    cuts, order = [0, 3, 5], [4, 3, 2, 1, 0]
    found = [Partition(cuts), Partition([0, 2, 5]), Partition(cuts, order)]
    assert len({partition.digest for partition in found}) == 3
    assert Partition(np.array(cuts)).digest == found[0].digest
    again = pickle.loads(pickle.dumps(found[2]))
    assert again.digest == found[2].digest
    assert not again.cuts.flags.writeable
    assert not again.order.flags.writeable
    assert "in an order of its own" in repr(again)
    with pytest.raises(fg.GraphInputError, match="there is no such vertex"):
        again.owner([5])


BAD = {
    "begin": ({"cuts": [1, 5, 10]}, "cuts: not cuts", "begin with 0"),
    "descend": ({"cuts": [0, 7, 5, 10]}, r"cuts\[1\] = 7, cuts\[2\] = 5", "sort"),
    "end": ({"cuts": [0, 5, 9]}, "another graph", "parts=n chooses"),
    "one": ({"cuts": [0]}, "shape", r"\[0, V\]"),
    "flat": ({"cuts": [[0, 10]]}, "shape", r"\[0, V\]"),
    "real": ({"cuts": [0.0, 10.0]}, "not integers", "integer"),
    "empty": ({"cuts": [0, 0]}, r"cuts\[-1\] = 0", "number of vertices"),
    "both": ({"cuts": [0, 10], "parts": 1}, "one of the two", "leave parts out"),
    "none": ({}, "not a number of parts", "parts=4"),
    "zero": ({"parts": 0}, "not a number of parts", "parts=4"),
    "negative": ({"parts": -1}, "not a number of parts", "parts=4"),
    "fraction": ({"parts": 2.5}, "not a number of parts", "parts=4"),
    "flag": ({"parts": True}, "not a number of parts", "parts=4"),
    "name": ({"parts": 2, "order": "metric"}, "no such order", "'metis', or an array"),
    "short": ({"parts": 2, "order": [0, 1]}, r"shape \(2,\)", "each of 0..9 once"),
    "twice": ({"parts": 2, "order": [0] * 10}, "vertex 0 10 times", "argsort"),
    "outside": ({"parts": 2, "order": range(1, 11)}, r"order\[9\] = 10", "argsort"),
    "pair": ({"parts": 2, "balance": (1, 8)}, "balance: not the weights", "balance="),
    "minus": ({"parts": 2, "balance": (1, -8, 0)}, "not the weights", "balance="),
    "free": ({"parts": 2, "balance": (0, 0, 1)}, "not the weights", "balance="),
}


@pytest.mark.parametrize(("options", "problem", "fix"), BAD.values(), ids=BAD)
def test_errors_of_bad_input_name_a_fix(options: Any, problem: str, fix: str) -> None:
    graph = fg.graph.path_graph(10)
    with pytest.raises(fg.GraphInputError, match=problem) as raised:
        graph.partition(**options)
    assert raised.match(fix)
