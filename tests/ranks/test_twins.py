"""Atomic operations at the reverse of an edge, which may be another rank's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.reference import from_state, superstep

V = 61


@fg.edge
def tell_back(f, u, v, e, d):
    fg.atomic.add(d.told, fg.reverse(e), d.x[u] + 1)
    fg.atomic.max(d.most, (fg.reverse(e), f), d.x[v] - f)
    fg.atomic.add(d.own, e, d.x[v])
    fg.atomic.add(d.heard, u, 1)
    return d.x[u] % 3 > 0


@fg.edge
def read_back(f, u, v, e, d):
    d.last[e] = d.told[fg.reverse(e)] - d.told[e] + d.own[fg.reverse(e)]
    return d.last[e] % 2 == 0


@fg.gather(into="total", combine="sum", along="out")
def told_out(f, u, v, e, d):
    return d.told[e] + d.most[e, 0]


@fg.vertex
def take(f, v, d):
    d.x[v] = (d.total[v] + d.heard[v]) % 11
    return d.x[v] > 2


STEPS = (
    fg.foldmap(tell_back, read_back),
    fg.edgemap(tell_back),
    fg.foldmap(told_out, take),
    fg.edgemap(read_back),
)


def make_graph() -> fg.Graph:
    ends = np.random.default_rng(4).integers(0, V - 2, (2, 180))
    ends[1, ::6] = 3  # a hub, loops, edges given twice
    return fg.Graph.from_edges(*ends, vertex_count=V, directed=False)


WHOLE = make_graph()


def make_state(graph: fg.Graph) -> fg.State:
    def of_edges(value: Any, **options: Any) -> Any:
        return fg.edge_property(value, per_direction=True, **options)

    return fg.State(
        graph,
        x=fg.vertex_property(np.arange(V) % 7),
        heard=fg.vertex_property(0),
        told=of_edges(0),
        own=of_edges(0),
        last=of_edges(0),
        most=of_edges(-5, shape=(2,)),
    )


NAMES = ("x", "heard", "told", "own", "last", "most")


def run(graph: fg.Graph, seed: int, count: int, form: str = "auto") -> list[Any]:
    """Return all that a user may look at behind some supersteps."""
    rng, state, masks = np.random.default_rng(seed), make_state(graph), []
    for number in rng.integers(0, len(STEPS), count).tolist():
        active = np.flatnonzero(rng.random(V) < 0.6)
        out = STEPS[number](state, active_in=active, target="cpu", exchange=form)
        masks.append(out.mask)
    return [*masks, *(state[name] for name in NAMES), state.copy()["told"]]


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99),
    count=st.integers(1, 6),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality"]),
    form=st.sampled_from(["auto", "ms", "vr"]),
)
def test_they_reach_the_owners_of_edges(
    seed: int, count: int, inner: list[int], order: str, form: str
) -> None:
    cuts, meant = [0, *inner, V], run(WHOLE, seed, count)
    for found in run_ranks(
        len(cuts) - 1,
        lambda _: run(fg.distribute(WHOLE, order=order, cuts=cuts), seed, count, form),
    ):
        for place, (one, other) in enumerate(zip(found, meant, strict=True)):
            np.testing.assert_array_equal(one, other, err_msg=f"the value at {place}")


@pytest.mark.parametrize("number", [0, 1])
def test_they_do_what_the_interpreter_does(number: int) -> None:
    step = STEPS[number]
    outcome = superstep(step.program, *from_state(make_state(WHOLE)))

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(WHOLE, cuts=[0, 20, 21, V]))
        step(state, target="cpu")
        for name, value in outcome.values.items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)

    run_ranks(3, on_a_rank)


def test_what_explain_shows_of_them() -> None:
    @fg.edge
    def ask_back(f, u, v, e, d):
        return fg.atomic.add(d.told, fg.reverse(e), 1) > 3

    def on_a_rank(engine: Any) -> str:
        state = make_state(fg.distribute(WHOLE, cuts=[0, 20, V]))
        with pytest.raises(fg.PlanError, match="the old value of told is used"):
            fg.edgemap(ask_back)(state, target="cpu")
        return STEPS[1].explain(state, target="cpu")

    for text in run_ranks(2, on_a_rank):
        line = "combined on each rank, then at the owners of edges behind the phase"
        assert f"told, most: {line}" in text or f"most, told: {line}" in text
