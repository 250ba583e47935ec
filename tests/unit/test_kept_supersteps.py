"""Supersteps are cached between calls of a foldmap on a State, and never stale."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.runtime.devices.choose import CpuDevice, choose_device
from featgraph.runtime.superstep import foldmap as foldmaps
from featgraph.runtime.superstep.frontier import Frontier

COUNT = 70


@fg.gather(into="total", combine="sum")
def of_sources(f, u, v, e, d):
    return d.weight[e] * d.x[u]


@fg.vertex
def take(f, v, d):
    d.x_next[v] = d.bias + d.total[v]
    return True


@fg.reduce(into="mean", combine="sum")
def add_up(f, v, d):
    return d.x[v]


@fg.vertex
def subtract(f, v, d):
    d.x_next[v] = d.x[v] - d.mean[f]
    return True


step = fg.foldmap(of_sources, take)


def make(seed: int = 0, dtype: str = "float64", count: int = COUNT) -> fg.State:
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, count, (2, 3 * count))
    graph = fg.Graph.from_edges(*ends, vertex_count=count)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.random(count).astype(dtype), iterated=True),
        weight=fg.edge_property(rng.random(3 * count).astype(dtype)),
        bias=0.5,
    )


def expected(state: fg.State, x: Any, weight: Any, bias: float) -> Any:
    rows, of = state.graph.in_edges, state.graph.given_index
    targets = np.repeat(np.arange(state.graph.vertex_count), np.diff(rows.row_offsets))
    terms = weight[of] * x[rows.column_indices]
    return bias + np.bincount(targets, terms, state.graph.vertex_count)


def check(state: fg.State, foldmap: fg.FoldMap = step, **options: Any) -> None:
    """Check that a call follows the State's present values."""
    meant = expected(state, state["x"], state["weight"], state["bias"])
    foldmap(state, target="cpu", **options)
    np.testing.assert_allclose(state["x"], meant, rtol=1e-5)


def kept(state: fg.State, foldmap: fg.FoldMap = step, **options: Any) -> Any:
    return foldmap.prepare(state, choose_device("cpu"), options)


def call(state: fg.State) -> None:
    step(state, target="cpu")


def run(state: fg.State) -> None:
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(step, state, max_supersteps=3, target="cpu")


@pytest.mark.parametrize(
    ("public", "chain"),
    [(call, "__call__ run launch"), (run, "iterate _run run run launch")],
    ids=["call", "iterate"],
)
def test_few_hops_lead_to_a_launch(public: Any, chain: str) -> None:
    state, root = make(), str(Path(fg.__file__).parent)
    public(state)
    chains: list[str] = []
    opened: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if not frame.f_code.co_filename.startswith(root):
            return
        if event == "call":
            opened.append(frame.f_code.co_name)
            if opened[-1] == "launch":
                chains.append(" ".join(opened))
        elif event == "return" and opened:
            opened.pop()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        public(state)
    finally:
        sys.setprofile(before)
    assert set(chains) == {chain}


def test_it_is_the_same_from_call_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    first = kept(state)
    check(state)
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(step, state, max_supersteps=2, target="cpu")
    monkeypatch.setattr(foldmaps, "Superstep", None)  # not to be called
    check(state)
    check(state, step.on(range(COUNT)))
    assert kept(state) is first


def test_values_that_were_written_are_read() -> None:
    state = make()
    for bias in (1.5, -2.0):
        check(state)
        state["x"], state["bias"] = np.linspace(0, 1, COUNT), bias
        check(state)
        state["weight"] = state["weight"][::-1].copy()
    check(state)


def test_each_state_and_graph_has_its_own() -> None:
    states = [make(), make(1), make(2, count=40), make(3, "float32")]
    for _ in range(2):
        for state in states:
            check(state)
    assert len({id(kept(state)) for state in states}) == len(states)
    assert kept(states[0]).kernel is kept(states[1]).kernel
    assert kept(states[0]).kernel is not kept(states[3]).kernel


def test_each_foldmap_has_its_own() -> None:
    state, other = make(), fg.foldmap(of_sources, take)
    check(state)
    check(state, other)
    check(state)
    assert kept(state) is not kept(state, other)


def test_options_and_settings_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    check(state)
    check(state, direction="push")
    assert kept(state, direction="push").plan.phases[0].kind.pushes
    monkeypatch.setattr(fg.config, "checked", True)
    check(state)
    assert kept(state).plan.options.checked
    monkeypatch.undo()
    assert not kept(state).plan.options.checked
    with pytest.raises(fg.PlanError):
        step(state, target="cpu", folding=1)  # equal to True, but no truth value


def test_copies_have_their_own() -> None:
    state = make()
    check(state)
    made = [copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    for other in made:
        check(other)
        assert kept(other) is not kept(state)
    check(state)
    np.testing.assert_allclose(state["x"], made[0]["x"])


def test_a_property_of_another_type_has_another_kernel() -> None:
    """The result of a reduce may replace a vector of the State."""
    reducing = fg.foldmap(add_up)
    reading = fg.foldmap(subtract)
    state = fg.State(
        fg.Graph.from_edges([0], [1]),
        x=fg.vertex_property(np.array([1.0, 2.0]), iterated=True),
        mean=np.array([1], np.int64),
    )
    reading(state, target="cpu")
    first = kept(state, reading)
    assert state["x"].tolist() == [0.0, 1.0]
    reducing(state, target="cpu")
    reading(state, target="cpu")
    assert state["x"].tolist() == [-1.0, 0.0]
    again = kept(state, reading)
    assert again is not first
    assert again.kernel is not first.kernel
    reducing(state, target="cpu")  # the same type again
    assert kept(state, reading) is again


def test_on_another_device_its_arrays_are_brought_there() -> None:
    """A second CPU stands for another device: it has none of the first one's arrays."""
    state, here, there = make(), choose_device("cpu"), CpuDevice()
    check(state)
    at_home = kept(state)
    meant = expected(state, state["x"], state["weight"], state["bias"])
    elsewhere = step.prepare(state, there, {})
    elsewhere.run(Frontier())
    np.testing.assert_allclose(state["x"], meant)
    left = at_home.bound.buffers
    assert left is not state.residency
    assert not any((left.current, left.next, left.temporaries))
    check(state)
    assert kept(state) is at_home
    assert state.residency is at_home.bound.buffers
    assert state.residency.device is here


def test_a_call_within_a_run_leaves_the_run_as_it_was() -> None:
    """The same foldmap on the same State, from a callback, in place or not."""
    found = []
    for calls in (False, True):
        state = make()

        def once(run: fg.Run, state: fg.State, calls: bool = calls) -> None:
            if calls:
                step.on([3])(state, target="cpu")
            else:
                state["x"] = _with_three(state)

        with pytest.warns(fg.ConvergenceWarning):
            fg.iterate(step, state, max_supersteps=3, callback=once, target="cpu")
        found.append(state["x"])
    np.testing.assert_allclose(*found)


def _with_three(state: fg.State) -> Any:
    x = state["x"]
    x[3] = expected(state, x, state["weight"], state["bias"])[3]
    return x


def test_behind_a_failure_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    check(state)
    before = state["x"]
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "launch", None)
        with pytest.raises(TypeError):
            step(state, target="cpu")
    np.testing.assert_array_equal(state["x"], before)
    check(state)


def test_nothing_is_kept_alive() -> None:
    state, own = make(), fg.foldmap(of_sources, take)
    check(state, own)
    check(state, own.on(range(COUNT)))
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(own, state, max_supersteps=3, target="cpu")
    ends = [
        weakref.ref(thing)
        for thing in (state, state.graph, state.residency, kept(state, own))
    ]
    gc.disable()  # none of them is in a circle
    try:
        del state
        assert [end() for end in ends] == [None] * len(ends)
    finally:
        gc.enable()


def test_a_foldmap_that_is_gone_keeps_nothing() -> None:
    state, own = make(), fg.foldmap(of_sources, take)
    check(state, own)
    end = weakref.ref(kept(state, own))
    del own
    gc.collect()
    assert end() is None
    check(state)
