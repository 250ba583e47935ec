"""Edge functions and twins on one rank and on several, however the graph is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.fold.plan.options import EXCHANGES
from featgraph.reference import from_state, superstep
from tests.strategies import examples

V = 71

# Messages that read their twins, pulled by the gather behind them


@fg.edge
def offer(f, u, v, e, d):
    back = d.msg[fg.reverse(e), f]
    new = (d.x[u, f] * 3 - back + d.msg[e, f] % 3 + d.w[e] + u) % 101
    d.msg_next[e, f] = new
    return (new + v) % 3 > 0


@fg.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):
    return d.msg_next[e, f] * 2 - d.msg[fg.reverse(e), f]


@fg.vertex
def believe(f, v, d):
    d.x_next[v, f] = (d.x[v, f] + d.heard[v, f]) % 97
    return d.heard[v, f] % 4 > 0


# Verdicts of vertices, two phases of edge functions, and twins that are not committed


@fg.vertex
def speak(f, v, d):
    d.calls[v, f] = d.calls[v, f] + 1
    d.x_next[v, f] = d.x[v, f] + 1
    return d.x[v, f] % 3 > 0


@fg.edge
def stamp(f, u, v, e, d):
    d.mark[e, f] = d.mark[e, f] * 2 % 1009 + d.calls[u, f] + v
    d.msg_next[e, f] = d.msg[e, f] + d.x_next[u, f] % 7
    return (d.mark[e, f] + u) % 4 > 0


@fg.edge
def answer(f, u, v, e, d):
    d.seen[e, f] = d.msg_next[fg.reverse(e), f] + d.mark[fg.reverse(e), f] % 5
    return True


@fg.edge
def settle(f, u, v, e, d):
    return (d.seen[fg.reverse(e), f] + v) % 5 > 1


@fg.gather(into="back", combine="max")
def look_back(f, u, v, e, d):
    return d.seen[fg.reverse(e), f] + d.msg[e, f] + (500 if fg.is_twin(e) else 0)


@fg.vertex
def note(f, v, d):
    d.noted[v, f] = d.back[v, f]
    return d.back[v, f] % 3 > 0


# Entries of edges out of a vertex, on directed graphs, too


@fg.edge
def load(f, u, v, e, d):
    d.mark[e, f] = d.mark[e, f] + d.calls[d.pick[u], f] + u * 2
    d.msg_next[e, f] = (d.x[u, f] + d.x[v, f] + d.msg[e, f]) % 53
    return d.msg_next[e, f] % 7 > 0


@fg.gather(into="ahead", combine="sum", along="out")
def look_ahead(f, u, v, e, d):
    return d.msg_next[e, f] + d.mark[e, f] % 11


@fg.gather(into="around", combine="sum", along="both")
def look_around(f, u, v, e, d):
    return d.msg[e, f] * (1 + u % 3)


@fg.vertex
def move(f, v, d):
    d.calls[v, f] = d.calls[v, f] + 1
    d.x_next[v, f] = (d.ahead[v, f] + d.around[v, f]) % 89
    return d.around[v, f] % 5 > 0


@fg.reduce(into="most", combine="max")
def most(f, v, d):
    return d.x[v, f]


@fg.edge
def shift(f, u, v, e, d):
    d.msg_next[e, f] = (d.msg[e, f] + d.most[f] + d.x[u, f]) % 61
    return d.msg_next[e, f] % 3 > 0


beliefs = fg.foldmap(offer, hear, believe)
notes = fg.foldmap(speak, stamp, answer, settle, look_back, note)
loads = fg.foldmap(load, look_ahead, look_around, move)
shifts = fg.foldmap(most, shift)
loaded = fg.edgemap(load)
#: Whether the graph is directed -> what runs.
FOLDMAPS = {False: (beliefs, notes, loads, shifts), True: (loads, shifts)}


def make_graph(directed: bool, seed: int) -> fg.Graph:
    """Return a graph with a hub, loops, parallel edges and isolated vertices."""
    rng = np.random.default_rng(seed)
    sources, targets = rng.integers(0, V - 5, (2, 150))
    targets = np.where(rng.random(150) < 0.2, seed, targets)
    targets[:4], sources[4:8], targets[4:8] = sources[:4], sources[8:12], targets[8:12]
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


GRAPHS = {(d, seed): make_graph(d, seed) for d in (False, True) for seed in (1, 2)}


def make_state(graph: fg.Graph, seed: int) -> fg.State:
    rng = np.random.default_rng(seed)
    edges = graph.given_edge_count
    rows = edges if graph.directed else 2 * edges
    msg, mark = rng.integers(0, 90, (2, rows, 2))
    if not graph.directed:  # loops are their own twins
        loops = np.flatnonzero(
            GRAPHS[False, seed].sources == GRAPHS[False, seed].targets
        )
        msg[edges + loops], mark[edges + loops] = msg[loops], mark[loops]
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 90, (V, 2)), iterated=True),
        calls=fg.vertex_property(rng.integers(0, 5, (V, 2))),
        noted=fg.vertex_property(np.zeros((V, 2), np.int64)),
        pick=fg.vertex_property(rng.integers(0, V, V)),
        msg=fg.edge_property(msg, iterated=True),
        mark=fg.edge_property(mark),
        seen=fg.edge_property(0, shape=(2,), per_direction=not graph.directed),
        w=fg.edge_property(rng.integers(0, 9, edges)),
    )


def values_of(state: fg.State) -> dict[str, Any]:
    return {name: state[name] for name in state}


def run(
    graph: fg.Graph, seed: int, rounds: int, target: str = "cpu", form: str = "auto"
) -> list[Any]:
    """Return all that a user may look at behind some supersteps and runs."""
    rng, state, results = (
        np.random.default_rng(seed + rounds),
        make_state(graph, seed),
        [],
    )
    every = FOLDMAPS[graph.directed]
    for number in rng.integers(0, len(every), rounds).tolist():
        active = np.flatnonzero(rng.random(V) < rng.choice([0.05, 0.5, 1.0]))
        step = every[number]
        if rng.random() < 0.3:
            step = step.on(np.flatnonzero(rng.random(V) < 0.6))
        given = None if active.size == V else active
        out = step(state, active_in=given, target=target, exchange=form)
        results += [out.mask, len(out)]
        if rng.random() < 0.3:
            state["mark"] = state["mark"] * 3 % 101
    results.append(loaded(state, active_in=out, target=target).mask)
    results += values_of(state).values()
    other = state.copy()
    for one in (state, other):
        ran = fg.iterate(
            list(every[: 1 + rounds % 2]), one, active=[1, 4, 50], max_supersteps=7,
            record_active=True, target=target, exchange=form,
        )  # fmt: skip
        results += [ran.active_counts, *(found.mask for found in ran.active_sets)]
        results += values_of(one).values()
    return results


EXPECTED: dict[Any, list[Any]] = {}


def expected(*key: Any) -> list[Any]:
    if key not in EXPECTED:
        EXPECTED[key] = run(GRAPHS[key[:2]], *key[1:])
    return EXPECTED[key]


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert np.array_equal(one, other), f"the value at {place}"


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@examples(10, 30)
@given(
    directed=st.booleans(),
    seed=st.sampled_from([1, 2]),
    rounds=st.integers(1, 6),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality", "reversed"]),
    form=st.sampled_from(EXCHANGES),
)
def test_edge_functions_give_the_same_on_any_number_of_ranks(
    directed: bool, seed: int, rounds: int, inner: list[int], order: str, form: str
) -> None:
    cuts = [0, *inner, V]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order

    def on_a_rank(engine: Any) -> list[Any]:
        whole = GRAPHS[directed, seed]
        graph = fg.distribute(whole, order=given_order, cuts=cuts)
        return run(graph, seed, rounds, form=form)

    for found in run_ranks(len(cuts) - 1, on_a_rank):
        require_same(found, expected(directed, seed, rounds))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("active", [None, np.arange(0, V, 3)])
def test_edge_functions_on_ranks_do_what_the_interpreter_does(
    directed: bool, active: Any
) -> None:
    whole, every = GRAPHS[directed, 2], (*FOLDMAPS[directed], loaded)
    outcomes = [
        superstep(step.program, *from_state(make_state(whole, 2)), active=active)
        for step in every
    ]

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole, cuts=[0, 32, 33, V])
        for step, outcome in zip(every, outcomes, strict=True):
            state = make_state(graph, 2)
            out = step(state, active_in=active, target="cpu")
            assert np.array_equal(out.mask, outcome.active_out.mask)
            for name, value in outcome.values.items():
                np.testing.assert_array_equal(state[name], value, err_msg=name)

    run_ranks(3, on_a_rank)


@pytest.mark.parametrize("directed", [False, True])
def test_edge_functions_run_where_their_targets_are(directed: bool) -> None:
    whole = GRAPHS[directed, 1]

    def on_a_rank(engine: Any) -> int:
        graph = fg.distribute(whole, cuts=[0, 9, 40, V])
        rows = graph.edges.into_own.out_edges
        assert rows.column_indices.size == graph.edges.own
        assert (rows.column_indices < graph.shard.own).all()
        assert np.array_equal(np.sort(rows.edge_ids), np.arange(graph.edges.own))
        return graph.edges.own

    assert sum(run_ranks(3, on_a_rank)) == whole.edge_count


def test_only_entries_that_changed_cross_a_link() -> None:
    """Messages along a cycle of which two edges are cut, and one changes."""
    ring = fg.Graph.from_edges(
        np.arange(64), np.roll(np.arange(64), -1), directed=False
    )

    @fg.edge
    def pass_on(f, u, v, e, d):
        d.msg_next[e] = max(d.msg[e], d.msg[fg.reverse(e)], d.x[u])
        return True

    step = fg.edgemap(pass_on)

    def on_a_rank(engine: Any) -> list[list[int]]:
        graph = fg.distribute(ring, cuts=[0, 32, 64])
        x = fg.vertex_property(np.where(np.arange(64) == 31, 5, 0))
        msg = fg.edge_property(np.zeros(128, np.int64), iterated=True)
        state, sent = fg.State(graph, x=x, msg=msg), []
        for _ in range(4):
            before = engine.traffic.copy()
            step(state, target="cpu")
            sent.append((engine.traffic - before).sent.tolist())
        return sent

    [there, back] = run_ranks(2, on_a_rank)
    # Behind each superstep, which targets are active. Before the first one what ranks
    # run on, before the second the row of 8 bytes that has changed, with its place;
    # before the third that of its twin.
    bits, target_bytes = there[3][1], len("cpu")
    assert [row[0] - bits for row in back] == [target_bytes, 8 + 2, 0, 0]
    assert [row[1] - bits for row in there] == [target_bytes, 0, 8 + 2, 0]
