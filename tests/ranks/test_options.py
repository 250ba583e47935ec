"""Options of runs on several ranks: kept aggregates, near and far, asynchronous."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from tests.programs.monotone import MONOTONE, Monotone

V = 83


@fg.gather(into="total", combine="sum")
def totals(f, u, v, e, d):
    return d.x[u] * d.step[e] + d.base


@fg.gather(into="share", combine="sum")
def shares(f, u, v, e, d):
    return d.weight[u]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.y[u] + d.step[e]


@fg.vertex
def shift(f, v, d):
    d.x_next[v] = d.total[v] % 5 + d.x[v] % 3
    d.weight_next[v] = 0.5 * d.share[v] + v
    d.y_next[v] = min(d.y[v], d.low[v])
    return d.total[v] % 5 + d.x[v] % 3 != d.x[v] or d.low[v] < d.y[v]


@fg.vertex
def drop(f, v, d):
    d.x_next[v] = d.x[v] // 2
    return d.x[v] % 8 == 1


@fg.gather(into="near", combine="argmin")
def nearest(f, u, v, e, d):
    return d.y[u] + d.step[e]


@fg.vertex
def adopt(f, v, d):
    d.y_next[v] = min(d.y[v], d.near[v])
    return d.near[v] < d.y[v]


@fg.gather(into="behind", combine="max", along="out")
def highest(f, u, v, e, d):
    return d.y[u]


@fg.vertex
def bound_by(f, v, d):
    d.top[v] = d.behind[v]
    return False


step, halve = fg.foldmap(totals, shares, lowest, shift), fg.vertexmap(drop)
search, look = fg.foldmap(nearest, adopt), fg.foldmap(highest, bound_by)


def make_graph(directed: bool) -> fg.Graph:
    rng = np.random.default_rng(11)
    sources, targets = rng.integers(0, V - 3, (2, 240))
    targets = np.where(rng.random(240) < 0.2, 4, targets)
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


GRAPHS = {directed: make_graph(directed) for directed in (True, False)}


def make_state(graph: fg.Graph, seed: int) -> fg.State:
    rng = np.random.default_rng(seed)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 9, V), iterated=True),
        y=fg.vertex_property(rng.integers(0, 99, V), iterated=True),
        weight=fg.vertex_property(rng.integers(0, 9, V) / 2, iterated=True),
        step=fg.edge_property(rng.integers(1, 5, graph.given_edge_count)),
        top=fg.vertex_property(0),
        base=1,
    )


def keep(graph: fg.Graph, seed: int) -> list[Any]:
    """Return the values after runs that keep aggregates, and the recomputed counts."""
    state, results = make_state(graph, seed), []
    within = np.random.default_rng(seed).permutation(V)[: V // 2]
    kept: dict[str, Any] = {"change_driven": True, "record_active": True}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (step, {"max_supersteps": 4}),
        ([step, halve], {"max_supersteps": 7, "recompute_every": 2}),
        (search, {"active": [3, 50]}),
        ([halve, step, search], {"max_supersteps": 9}),
        (step.on(within), {"max_supersteps": 5, "active": within[::3]}),
    ]
    for foldmaps, options in calls:
        run = fg.iterate(foldmaps, state, **kept, **options)
        results += [run.active_counts, run.aggregates, run.converged]
        results += [found.mask for found in run.active_sets]
        results += [state[name] for name in ("x", "y", "weight")]
        state["base"] = state["base"] + 1
    assert "patched" in results[1]
    return results


def settle(graph: fg.Graph, seed: int) -> list[Any]:
    """Return the fixpoints of runs in any order, and of supersteps behind them."""
    results: list[Any] = []
    for options in (
        {"asynchronous": True},
        {"near_far": fg.NearFar("y", delta=2.5)},
        {"near_far": fg.NearFar("y")},
        {"near_far": fg.NearFar("y", optional=True)},
    ):
        for active in (None, [3, 50]):
            state = make_state(graph, seed)
            run = fg.iterate(search, state, active=active, **options)
            look(state)
            results += [state["y"], state["top"], run.converged]
            state["x"] = 0
            fg.iterate([search, halve], state, **options | {"near_far": None})
            state["y"] = state["y"] + state["x"]
            out = search(state)
            results += [out.mask, state["y"]]
    return results


EXPECTED: dict[tuple[Any, bool, int], list[Any]] = {}


@pytest.mark.drawn(2)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("call", [keep, settle])
@settings(max_examples=15, deadline=None)
@given(
    directed=st.booleans(),
    seed=st.integers(0, 2),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality", "reversed"]),
)
def test_options_give_what_they_give_on_one_rank(
    call: Any, directed: bool, seed: int, inner: list[int], order: str
) -> None:
    cuts, whole = [0, *inner, V], GRAPHS[directed]
    given_order: Any = np.arange(V)[::-1] if order == "reversed" else order
    key = call, directed, seed
    if key not in EXPECTED:
        EXPECTED[key] = call(whole, seed)
    found = run_ranks(
        len(cuts) - 1,
        lambda _: call(fg.distribute(whole, order=given_order, cuts=cuts), seed),
    )
    for values in found:
        assert len(values) == len(EXPECTED[key])
        for place, (one, other) in enumerate(zip(values, EXPECTED[key], strict=True)):
            np.testing.assert_array_equal(one, other, err_msg=f"the value at {place}")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("program", MONOTONE, ids=lambda p: p.name)
def test_monotone_programs_have_one_fixpoint(program: Monotone) -> None:
    whole = GRAPHS[True]
    options: list[dict[str, Any]] = [{"asynchronous": True}]
    if program.waits:
        options.append({"near_far": fg.NearFar(program.key)})

    def run(graph: fg.Graph, **options: Any) -> Any:
        state = fg.State(
            graph, **program.make_state(whole, program.k, np.random.default_rng(7))
        )
        assert fg.iterate(list(program.foldmaps), state, **options).converged
        return state[program.key]

    wanted = run(whole)
    for each in options:
        for cuts in ([0, 5, 40, V], [0, V // 2, V]):
            found = run_ranks(
                len(cuts) - 1,
                lambda _, c=cuts, o=each: run(fg.distribute(whole, cuts=c), **o),
            )
            assert all(np.array_equal(one, wanted) for one in found)
