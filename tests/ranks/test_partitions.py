"""One program on one rank and on several, however the graph is cut: the same bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import current_engine, run_ranks
from featgraph.fold.plan.options import EXCHANGES
from featgraph.runtime.devices.host_arrays import host_graph_array
from tests.strategies import examples

V = 97


@fg.gather(into="low", combine="min", sources="active")
def lowest(f, u, v, e, d):
    return d.label[u] + d.step[e]


@fg.gather(into="nearest", combine="argmin")
def nearest(f, u, v, e, d):
    return d.label[u]


@fg.vertex
def adopt(f, v, d):
    d.label_next[v] = min(d.label[v], d.low[v])
    d.source[v] = d.nearest_source[v] * 1000 + v
    return d.low[v] < d.label[v]


@fg.reduce(into="least", combine="min")
def least(f, v, d):
    return d.label[v]


@fg.gather(into="total", combine="sum")
def shares(f, u, v, e, d):
    return d.x[u, f] * d.weight[e] / d.out_degree[u]


@fg.vertex
def mix(f, v, d):
    d.seen[v, f] = d.x[v, f]
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.25 * d.total[v, f]
    return d.total[v, f] > d.floor


@fg.gather(into="around", combine="sum")
def seen_around(f, u, v, e, d):
    return d.seen[u, f] + d.x_next[u, f]


@fg.vertex
def keep(f, v, d):
    d.around_kept[v, f] = d.around[v, f]
    return d.around[v, f] > 4.0


@fg.gather(into="young", combine="any")
def is_younger(f, u, v, e, d):
    return d.age[u] < d.age[v]


@fg.vertex
def grow(f, v, d):
    d.age_next[v] = d.age[v] + (1 if d.young[v] else 2)
    return d.age[v] < 9


@fg.gather(into="behind", combine="sum", along="out")
def ages_ahead(f, u, v, e, d):
    return d.age[u] * d.step[e]


@fg.gather(into="at", combine="argmax", along="both", sources="active")
def oldest_around(f, u, v, e, d):
    return d.age[u] + d.weight[e]


@fg.vertex
def take(f, v, d):
    d.source[v] = 1000 * d.at_source[v] + d.behind[v]
    d.age_next[v] = max(d.age[v] - 1, 0)
    return d.age[v] > 5


@fg.vertex
def write_far(f, v, d):
    far = (d.pick[v] + 1) % d.vertex_count
    d.seen[v, f] = d.x[far, f] + d.age[d.pick[v]]
    return d.age[far] > 3


@fg.gather(into="far", combine="sum")
def what_they_picked(f, u, v, e, d):
    return d.seen[d.pick[u], f]


@fg.vertex
def keep_far(f, v, d):
    d.x_next[v, f] = d.far[v, f] * 0.5
    return d.far[v, f] > 2


@fg.reduce(into="ages", combine="sum")
def ages(f, v, d):
    return d.age[v]


@fg.reduce(into="mass", combine="max")
def mass(f, v, d):
    return d.x[v, f]


search = fg.foldmap(lowest, nearest, adopt, least)
ageing = fg.foldmap(is_younger, grow)
far_away = fg.foldmap(write_far, what_they_picked, keep_far)
around = fg.foldmap(ages_ahead, oldest_around, take)
spread = fg.foldmap(mass, ages, shares, mix, seen_around, keep)


def make_graph(directed: bool) -> fg.Graph:
    rng = np.random.default_rng(5)
    hubs = np.where(rng.random(400) < 0.3, rng.integers(0, 3, 400), -1)
    sources, targets = rng.integers(0, V - 4, (2, 400))
    targets = np.where(hubs >= 0, hubs, targets)
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


GRAPHS = {directed: make_graph(directed) for directed in (True, False)}


def run(
    graph: fg.Graph, seed: int, target: str, form: str = "auto", **others: Any
) -> list[Any]:
    """Return all that a user may look at behind some runs."""
    # On a GPU pushed sums have other bits each time.
    options: Any = {"target": target, "deterministic": target == "cuda", **others}
    options["exchange"] = form if target == "cpu" else "auto"
    recorded = {**options, "record_active": True}
    rng = np.random.default_rng(seed)
    edges = graph.given_edge_count
    state = fg.State(
        graph,
        label=fg.vertex_property(rng.integers(0, 900, V), iterated=True),
        step=fg.edge_property(rng.integers(0, 5, edges)),
        source=fg.vertex_property(0),
        x=fg.vertex_property(rng.random((V, 3)).astype(np.float32), iterated=True),
        seen=fg.vertex_property(np.float32(0), shape=(3,)),
        around_kept=fg.vertex_property(np.float32(0), shape=(3,)),
        weight=fg.edge_property(rng.random(edges).astype(np.float32)),
        age=fg.vertex_property(rng.integers(0, 4, V), iterated=True),
        pick=fg.vertex_property(rng.integers(0, V, V)),
        floor=0.125,
    )
    first = fg.iterate(search, state, active=[0, 3, 40], **recorded)
    results: list[Any] = [state["label"], state["source"], state["least"]]
    state["label"] = state["label"][::-1]
    again = fg.iterate(search, state, **recorded)
    ran = fg.iterate([spread, search], state, max_supersteps=5, **recorded)
    old = fg.iterate(ageing, state, active=[7, 60], **recorded)
    wide = fg.iterate(around, state, active=[2, 50, 90], **recorded)
    hops = fg.iterate(far_away, state, active=[4], max_supersteps=4, **recorded)
    within = np.flatnonzero(rng.random(V) < 0.5)
    out = spread.on(within)(state, active_in=within[::2], **options)
    results += [
        state[name] for name in ("label", "x", "seen", "around_kept", "age", "source")
    ]
    results += [state["weight"], state["step"], len(out), out.vertices, 5 in out]
    results += [state["mass"], state["ages"]]
    for one in (first, again, ran, old, wide, hops):
        results += [one.active_counts, one.supersteps, one.converged]
        results += [found.mask for found in one.active_sets]
    state["x"] = 0.0
    results += [
        search(state, active_in=out, **options).words,
        state["x"],
        state.copy()["label"],
    ]
    return results


@cache
def expected(directed: bool, seed: int, target: str) -> list[Any]:
    return run(GRAPHS[directed], seed, target)


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert np.array_equal(one, other), f"the value at {place}"


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@examples(12, 30)
@given(
    directed=st.booleans(),
    seed=st.integers(0, 2),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality", "reversed"]),
    form=st.sampled_from(EXCHANGES),
)
def test_the_same_bits_on_any_number_of_ranks(
    target: str, directed: bool, seed: int, inner: list[int], order: str, form: str
) -> None:
    cuts = [0, *inner, V]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order

    def on_a_rank(engine: Any) -> list[Any]:
        graph = fg.distribute(GRAPHS[directed], order=given_order, cuts=cuts)
        assert engine is current_engine()
        return run(graph, seed, target, form)

    for found in run_ranks(len(cuts) - 1, on_a_rank):
        require_same(found, expected(directed, seed, target))


@fg.reduce(into="most", combine="max")
def most(f, v, d):
    return -d.age[v] - 1


@fg.reduce(into="all_of_it", combine="sum")
def all_of_it(f, v, d):
    return d.age[v]


count = fg.foldmap(most, all_of_it)


@pytest.mark.parametrize("cuts", [[0, 0, V], [0, V, V], [0, 0, 0, V]])
def test_ranks_without_vertices_add_nothing_to_a_reduce(cuts: list[int]) -> None:
    nothing: Any = np.zeros(0, np.int64)
    whole = fg.Graph.from_edges(nothing, nothing, vertex_count=V)

    def on_a_rank(engine: Any) -> list[int]:
        graph = fg.distribute(whole, cuts=cuts)
        state = fg.State(graph, age=fg.vertex_property(np.arange(V) + 3))
        for _ in range(3):
            count(state, target="cpu")
        # There is a partial result for each chunk, and one at least is read.
        assert host_graph_array(graph.part, "vertex_chunks").size >= 2
        return [int(state["most"][0]), int(state["all_of_it"][0])]

    wanted = [-4, int((np.arange(V) + 3).sum())]
    assert run_ranks(len(cuts) - 1, on_a_rank) == [wanted] * (len(cuts) - 1)
