"""Rows of all vertices on each rank: what writes them, and that only these are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks.engines.protocol import Engine
from tests.ranks.forced import loops

V = 75


@fg.vertex
def read_far(f, v, d):
    far = d.pick[v]
    d.seen[v] = d.x[far] + 100 * d.y[far] + d.y[d.pick[far]]
    return False


@fg.vertex
def read_next_far(f, v, d):
    d.x_next[v] = d.x[v] + d.pick[v] % 2
    return d.pick[v] % 2 == 1


@fg.vertex
def behind(f, v, d):
    d.seen[v] = d.x_next[d.pick[v]]
    return False


@fg.gather(into="low", combine="min")
def low_around(f, u, v, e, d):
    return d.x[u] + d.y[u] % 2


@fg.vertex
def lower(f, v, d):
    d.x_next[v] = d.low[v]
    return d.low[v] < d.x[v]


@fg.vertex
def add_here(f, v, d):
    if d.x[v] % 2 == 0:
        d.y[v] += 1
    return False


@fg.vertex
def add_there(f, v, d):
    if d.x[v] % 3 == 0:
        fg.atomic.add(d.y, d.pick[v], 2)
    return False


FOLDMAPS: dict[str, Any] = {
    "far": fg.foldmap(read_far),
    "next": fg.foldmap(read_next_far, behind),
    "lower": fg.foldmap(low_around, lower),
    "here": fg.foldmap(add_here),
    "there": fg.foldmap(add_there),
}
NAMES = ("x", "y", "seen", "pick")


def make_graph(directed: bool = True) -> fg.Graph:
    rng = np.random.default_rng(8)
    sources, targets = rng.integers(0, V, (2, 160))
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


def make_state(graph: fg.Graph) -> fg.State:
    rng = np.random.default_rng(2)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 50, V), iterated=True),
        y=fg.vertex_property(np.zeros(V, np.int32)),
        seen=fg.vertex_property(np.int64(0)),
        pick=fg.vertex_property(rng.integers(0, V, V)),
    )


def from_outside(state: fg.State, number: int) -> None:
    """Write a property, whole."""
    rng = np.random.default_rng(number)
    name = ("x", "y", "pick")[number % 3]
    state[name] = rng.integers(0, V, V).astype(state[name].dtype)


def run_steps(graph: fg.Graph, steps: list[Any], target: str) -> list[Any]:
    """Run foldmaps, over some vertices or in turn; return all values after each."""
    state, found = make_state(graph), []
    for number, step in enumerate(steps):
        if step == "write":
            from_outside(state, number)
        elif isinstance(step, tuple):
            turns = [FOLDMAPS[name] for name in step]
            fg.iterate(turns, state, active=[1, 2, 40], target=target, max_supersteps=7)
        else:
            active = None if number % 2 else np.arange(number % 5, V, 5)
            FOLDMAPS[step](state, active_in=active, target=target)
        found += [state[name] for name in NAMES]
    return found


STEPS = st.lists(
    st.sampled_from([*FOLDMAPS, "far", "write", ("lower", "far"), ("here", "far")]),
    min_size=2,
    max_size=7,
)


in_any_parts = given(
    steps=STEPS,
    inner=st.lists(st.integers(0, V), max_size=2).map(sorted),
    order=st.sampled_from(["given", "spread"]),
)


def check(steps: list[Any], cuts: list[int], order: str, target: str) -> None:
    whole, steps = make_graph(), [*steps, "far"]
    meant = run_steps(whole, steps, "cpu")

    def on_a_rank(_: Engine) -> list[Any]:
        graph = fg.distribute(whole, cuts=cuts, order=order, along="both")
        return run_steps(graph, steps, target)

    for values in run_ranks(len(cuts) - 1, on_a_rank):
        for one, other in zip(values, meant, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(max_examples=25, deadline=None)
@example(steps=["far", "lower", "far", "there"], inner=[32], order="given")
@example(steps=["far", "next", "here"], inner=[20, 64], order="spread")
@in_any_parts
def test_values_are_those_of_one_rank(
    target: str, steps: list[Any], inner: list[int], order: str
) -> None:
    check(steps, [0, *inner, V], order, target)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(max_examples=6, deadline=None)
@example(steps=["far", "lower", "far", "there"], inner=[32], order="given")
@example(steps=["far", ("lower", "far"), "write", "here"], inner=[20], order="spread")
@in_any_parts
def test_values_on_an_emulated_gpu_are_those_of_one_rank(
    gpu: Any, steps: list[Any], inner: list[int], order: str
) -> None:
    check(steps, [0, *inner, V], order, "cuda")


@fg.vertex
def step_on(f, v, d):
    d.x_next[v] = d.x[v] + 1
    return v % 7 != 0


@fg.vertex
def follow(f, v, d):
    d.seen[v] = d.x[d.pick[v]]
    d.y_next[v] = d.y[v] + d.x[d.pick[d.pick[v]]] % 2
    return v % 5 != 0


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.drawn(2)
@pytest.mark.parametrize("most", [21, 23])
def test_what_a_loop_has_written_is_sent_behind_it(most: int) -> None:
    """Wherever in its cycle it has ended."""
    whole, turns = make_graph(), [fg.foldmap(step_on), fg.foldmap(follow)]

    def run(graph: fg.Graph, target: str) -> list[Any]:
        state = fg.State(
            graph,
            x=fg.vertex_property(np.arange(V), iterated=True),
            y=fg.vertex_property(np.zeros(V, np.int32), iterated=True),
            seen=fg.vertex_property(np.int64(0)),
            pick=fg.vertex_property(np.arange(V)[::-1].copy()),
        )
        for _ in range(2):
            fg.iterate(turns, state, target=target, max_supersteps=most)
            FOLDMAPS["far"](state, target=target)
        return [state[name].tolist() for name in NAMES]

    with loops() as gpu:
        found = run_ranks(2, lambda _: run(fg.distribute(whole), "cuda"))
        assert gpu.loops
    assert found == [run(whole, "cpu")] * 2


def fills(engine: Engine, step: Callable[[], Any]) -> int:
    """Return the bytes that this rank sends in a call."""
    before = engine.traffic.copy()
    step()
    return int((engine.traffic - before).sent.sum())


def test_only_rows_that_were_written_are_sent_again() -> None:
    whole = fg.Graph.from_edges([0], [1], vertex_count=4096, directed=True)
    pick = np.arange(4096)[::-1].copy()

    def on_a_rank(engine: Engine) -> list[int]:
        graph = fg.distribute(whole, cuts=[0, 2048, 4096])
        state = fg.State(
            graph,
            x=fg.vertex_property(np.arange(4096), iterated=True),
            y=fg.vertex_property(np.zeros(4096, np.int32)),
            seen=fg.vertex_property(np.int64(0)),
            pick=fg.vertex_property(pick),
        )
        far, here = FOLDMAPS["far"], FOLDMAPS["here"]
        sent = [fills(engine, lambda: far(state, target="cpu")) for _ in range(2)]
        here(state, active_in=[2, 2050], target="cpu")
        sent.append(fills(engine, lambda: far(state, target="cpu")))
        state["y"] = np.ones(4096, np.int32)
        sent.append(fills(engine, lambda: far(state, target="cpu")))
        assert state["seen"].tolist() == (pick + 100 + 1).tolist()
        return sent

    for found in run_ranks(2, on_a_rank):
        first, again, some, written = found
        assert first >= 2048 * (8 + 4 + 8)
        assert again < 200
        assert again <= some < again + 100
        assert 2048 * 4 <= written < 2048 * 5
