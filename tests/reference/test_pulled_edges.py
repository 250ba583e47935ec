"""Edge functions along in-edges: folded, apart, and as the interpreter has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from tests.bank import BY_NAME
from tests.programs.common import signed
from tests.strategies import active_sets, graphs, seeds

APART = {"folding": False}
#: Shrinking runs the interpreter for minutes.
PHASES = tuple(p for p in Phase if p is not Phase.shrink)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("name", "k"), [("offers", 3), ("notes", 3)])
def test_restricted_supersteps_in_a_row(name: str, k: int, target: str) -> None:
    """Any A and any restriction in turn: what was not run on is never stale."""
    program = BY_NAME[name]
    directed = False if program.undirected else None

    @settings(max_examples=10, phases=PHASES)
    @given(graphs(max_edges=60, directed=directed), seeds, st.data())
    def agrees(graph: fg.Graph, seed: int, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        values = program.make_state(graph, k, rng)
        folded, apart = fg.State(graph, **values), fg.State(graph, **values)
        for _ in range(6):
            active = data.draw(active_sets(graph))
            on = data.draw(active_sets(graph)) or fg.ActiveSet(graph, "all")
            foldmap = data.draw(st.sampled_from(program.foldmaps))
            outcome = reference.superstep(
                foldmap.program, *reference.from_state(folded), active=active, on=on
            )
            options = data.draw(st.sampled_from([{}, APART]))
            made = foldmap.on(on)(folded, active_in=active, target=target, **options)
            also = foldmap.on(on)(apart, active_in=active, target=target, **APART)
            assert made == outcome.active_out
            assert also == made
            for name, value in outcome.values.items():
                np.testing.assert_array_equal(folded[name], value, err_msg=name)
                np.testing.assert_array_equal(apart[name], value, err_msg=name)

    agrees()


@fg.reduce(into="crowd", combine="sum")
def crowd_of(f, v, d):
    return 1 if d.price[v, f] > 0 else 0


@fg.edge
def bid(f, u, v, e, d):
    d.bid_next[e, f] = d.price[u, f] + d.crowd[f] % 3
    d.bids[e, f] = d.bids[e, f] + 1
    return d.bid_next[e, f] < d.bid[e, f]


@fg.gather(into="lowest", combine="min")
def lowest_bid(f, u, v, e, d):
    return d.bid_next[e, f]


@fg.vertex
def settle(f, v, d):
    d.price_next[v, f] = max(d.lowest[v, f], d.floor) if d.in_degree[v] > 0 else 0
    return d.price_next[v, f] < d.price[v, f]


bidding = fg.foldmap(crowd_of, bid, lowest_bid, settle)


def _bid_state(graph: fg.Graph, rng: Any) -> dict[str, Any]:
    rows = graph.given_edge_count * (1 if graph.directed else 2)
    return {
        "price": fg.vertex_property(signed(rng, graph.vertex_count, 2), iterated=True),
        "bid": fg.edge_property(np.full((rows, 2), 9, np.int32), iterated=True),
        "bids": fg.edge_property(np.zeros((rows, 2), np.int32)),
        "floor": -9,
    }


@pytest.mark.drawn(3)
@pytest.mark.parametrize("options", [{}, APART, {"direction": "push"}])
def test_a_changed_reduction_makes_every_edge_due(
    options: dict[str, Any], target: str
) -> None:
    """S7: edge functions run everywhere, too; `bids` counts how often."""

    @settings(max_examples=10, phases=PHASES)
    @given(graphs(max_edges=60), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **_bid_state(graph, rng))
        expected = reference.iterate(bidding.program, *reference.from_state(state))
        run = fg.iterate(bidding, state, target=target, **options)
        assert run.supersteps == expected.supersteps
        for name, value in expected.values.items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)

    agrees()


@fg.edge
def copy_of_leader(f, u, v, e, d):
    d.seen_next[e] = d.rank[d.leader[u]]
    return d.seen_next[e] > d.seen[e]


@fg.gather(into="top", combine="max")
def top_seen(f, u, v, e, d):
    return d.seen_next[e]


@fg.vertex
def follow(f, v, d):
    d.rank_next[v] = max(d.rank[v], d.top[v])
    return d.top[v] > d.rank[v]


@pytest.mark.parametrize("options", [{}, APART])
def test_a_foreign_read_makes_every_edge_due(
    options: dict[str, Any], target: str
) -> None:
    """S6: a leader may be active where no source of an edge is."""
    following = fg.foldmap(copy_of_leader, top_seen, follow)

    @settings(max_examples=10, phases=PHASES)
    @given(graphs(max_edges=60, directed=True), seeds, st.data())
    def agrees(graph: fg.Graph, seed: int, data: st.DataObject) -> None:
        rng, count = np.random.default_rng(seed), graph.vertex_count
        state = fg.State(
            graph,
            rank=fg.vertex_property(signed(rng, count), iterated=True),
            leader=fg.vertex_property(rng.integers(0, count, count).astype(np.int32)),
            seen=fg.edge_property(
                np.full(graph.given_edge_count, -99, np.int32), iterated=True
            ),
        )
        active = data.draw(active_sets(graph))
        expected = reference.superstep(
            following.program, *reference.from_state(state), active=active
        )
        made = following(state, active_in=active, target=target, **options)
        assert made == expected.active_out
        for name in ("rank", "seen"):
            np.testing.assert_array_equal(state[name], expected.values[name])

    agrees()
