"""Bindings of a deleted State are reused by the next State on its graph."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.runtime.devices.choose import CpuDevice, choose_device
from featgraph.runtime.memory import graph_arrays as arrays_module
from featgraph.runtime.memory.graph_arrays import graph_arrays
from featgraph.runtime.superstep import foldmap as foldmaps
from featgraph.runtime.superstep.superstep import Superstep

COUNT = 40
pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@fg.gather(into="near", combine="sum")
def of_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e] * d.x[u, f]


@fg.vertex
def move(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.bias + d.near[v, f] - d.x[v, f]
    return True


@fg.reduce(into="total", combine="sum")
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    return d.x_next[v, f]


@fg.vertex
def count_up(f, v, d):  # type: ignore[no-untyped-def]
    d.n[v] = d.n[v] + 1
    return True


step = fg.foldmap(of_sources, move, add_up)
counting = fg.foldmap(count_up)


def made_graph(seed: int = 0) -> fg.Graph:
    ends = np.random.default_rng(seed).integers(0, COUNT, (2, 2 * COUNT))
    return fg.Graph.from_edges(*ends, vertex_count=COUNT)


def made_state(graph: fg.Graph, seed: int, k: int = 2) -> Any:
    """Return a State of whole numbers, which add up to the same in any order."""
    rng = np.random.default_rng(seed)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(-9, 9, (COUNT, k)), iterated=True),
        w=fg.edge_property(rng.integers(0, 3, 2 * COUNT)),
        bias=int(rng.integers(-5, 5)),
    )


def model(graph: fg.Graph, seed: int, k: int, supersteps: int) -> Any:
    """Return the values of such a State after supersteps, in NumPy."""
    rng = np.random.default_rng(seed)
    x, w = rng.integers(-9, 9, (COUNT, k)), rng.integers(0, 3, 2 * COUNT)
    bias = int(rng.integers(-5, 5))
    for _ in range(supersteps):
        near = np.zeros_like(x)
        np.add.at(near, np.asarray(graph.targets), w[:, None] * x[graph.sources])
        x = bias + near - x
    return x


def run(state: fg.State, supersteps: int, target: str = "cpu") -> None:
    """Run supersteps, the first of them by a call."""
    if supersteps:
        step(state, target=target)
        fg.iterate(step, state, max_supersteps=supersteps - 1, target=target)


def kept(state: fg.State) -> Superstep:
    return step.prepare(state, choose_device("cpu"), {})


def test_the_next_state_takes_up_what_the_last_had_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = made_graph()
    state = made_state(graph, 1)
    run(state, 3)
    first = kept(state)
    del state
    monkeypatch.setattr(foldmaps, "Superstep", None)  # not to be called
    state = made_state(graph, 2)
    run(state, 2)
    assert kept(state) is first
    np.testing.assert_array_equal(state["x"], model(graph, 2, 2, 2))
    np.testing.assert_array_equal(state["total"], state["x"].sum(axis=0))


def test_states_that_live_have_their_own(target: str) -> None:
    graph, states = made_graph(), []
    for seed in range(6):
        states.append(made_state(graph, seed))
        run(states[-1], 2, target)
        if seed % 3 == 2:
            del states[0]
    if target == "cpu":
        assert len({id(kept(state)) for state in states}) == len(states)
    for state, seed in zip(states, (2, 3, 4, 5), strict=True):
        np.testing.assert_array_equal(state["x"], model(graph, seed, 2, 2))


def test_other_types_graphs_and_devices_have_others() -> None:
    graph = made_graph()
    first = made_state(graph, 1)
    run(first, 1)
    known = kept(first)
    del first
    for state in made_state(graph, 2, k=1), made_state(made_graph(1), 2):
        run(state, 2)
        assert kept(state) is not known
    assert step.prepare(made_state(graph, 3), CpuDevice(), {}) is not known
    assert kept(made_state(graph, 4)) is known


def test_what_is_lent_is_not_written() -> None:
    """A State that takes something up has its own copy of what functions write."""
    graph = made_graph()
    for first in (0, 10):
        lent = np.arange(first, first + COUNT)
        state = fg.State(graph, n=fg.vertex_property(lent, copy=False))
        counting(state, target="cpu")
        assert lent[0] == first
        np.testing.assert_array_equal(state["n"], lent + 1)
        del state


def test_a_failure_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = made_graph()
    state = made_state(graph, 1)
    run(state, 1)
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "launch", None)
        with pytest.raises(TypeError):
            step(state, target="cpu")
    del state
    for seed in (2, 3):
        state = made_state(graph, seed)
        run(state, 3)
        np.testing.assert_array_equal(state["x"], model(graph, seed, 2, 3))


@given(data=st.data())
def test_what_earlier_states_have_stays(data: st.DataObject) -> None:
    """States come and go in any order; views and values of earlier ones are theirs."""
    graphs = [made_graph(0), made_graph(1)]
    alive: list[tuple[Any, ...]] = []
    for seed in range(data.draw(st.integers(2, 7))):
        graph = data.draw(st.sampled_from(graphs))
        k, supersteps = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(0, 3))
        state = made_state(graph, seed, k)
        run(state, supersteps)
        meant = model(graph, seed, k, supersteps)
        alive.append((state, state.view("x"), np.asarray(state.view("x")), meant))
        for one in data.draw(st.sets(st.sampled_from(range(len(alive))))):
            state, view, values, meant = alive[one]
            alive[one] = (None, None, values, meant)
        for state, view, values, meant in alive:
            np.testing.assert_array_equal(values, meant)
            if state is not None:
                np.testing.assert_array_equal(state["x"], meant)
                np.testing.assert_array_equal(np.asarray(view), meant)


def test_with_the_graph_all_is_gone() -> None:
    graph = made_graph()
    state = made_state(graph, 1)
    run(state, 2)
    arrays = graph_arrays(graph, choose_device("cpu"))
    things = state, state.residency, arrays, graph
    ends = [weakref.ref(thing) for thing in things]
    superstep = weakref.ref(kept(state))
    gc.disable()  # nothing waits for it
    try:
        del things, state
        assert superstep() is not None
        assert [end() is None for end in ends] == [True, True, False, False]
        del arrays, graph
        assert superstep() is None
        assert [end() for end in ends] == [None] * 4
    finally:
        gc.enable()


def test_a_foldmap_that_is_gone_leaves_nothing() -> None:
    graph, own = made_graph(), fg.foldmap(of_sources, move)
    state = made_state(graph, 1)
    own(state, target="cpu")
    del own
    gc.collect()
    assert len(graph_arrays(graph, choose_device("cpu")).idle) == 0


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = made_graph()
    found = graph_arrays(graph, choose_device("cpu")).idle
    states = [made_state(graph, seed) for seed in range(9)]
    for state in states:
        run(state, 1)
    del states, state
    assert len(found) == arrays_module._MOST_OF_A_KEY
    monkeypatch.setattr(arrays_module, "_MOST_KEYS", 2)
    for number in range(5):
        found.give(number, thing := object())
        assert len(found._things) <= 2
        assert found.take(number) is thing
        assert found.take(number) is None
    found.end()
    found.give(0, thing)  # of a State that was there before
    assert len(found) == 0


def test_threads_share_nothing() -> None:
    graph, errors = made_graph(), []
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(12):
            seed = 100 * number + turn
            state = made_state(graph, seed)
            run(state, 2)
            if not np.array_equal(state["x"], model(graph, seed, 2, 2)):
                errors.append(seed)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not errors
