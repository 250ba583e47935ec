"""Copies of a State in the middle of a run go on as it would have: bit for bit."""

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from tests.strategies import graphs, seeds


@fg.gather(into="near", combine="min")
def nearest(f, u, v, e, d):
    return d.distance[u, f] + d.length[e]


@fg.vertex
def approach(f, v, d):
    d.distance_next[v, f] = min(d.distance[v, f], d.near[v, f])
    return d.near[v, f] < d.distance[v, f]


@fg.reduce(into="mass", combine="sum")
def weigh(f, v, d):
    return d.x[v, f]


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.x[u, f] * d.length[e]


@fg.vertex
def mix(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + d.rate * d.total[v, f] / d.mass[f] + d.shift[f]
    return fg.any_feature(abs(d.x_next[v, f] - d.x[v, f]) > 1e-3)


@fg.edge
def wear(f, u, v, e, d):
    d.length_next[e] = d.length[e] * 0.875
    return d.length[e] > d.least


paths = fg.foldmap(nearest, approach)
mixing = fg.foldmap(weigh, add, mix)
wearing = fg.edgemap(wear)

PROGRAMS: dict[str, list[Any]] = {
    "paths": [paths],
    "mixing": [mixing],
    "both": [paths, mixing],
    "edges": [wearing, paths],
}
LIMIT = 40


def make(graph: fg.Graph, seed: int) -> fg.State:
    rng = np.random.default_rng(seed)
    distance = rng.integers(0, 100, (graph.vertex_count, 2)).astype(np.float32)
    rows = graph.given_edge_count * (1 if graph.directed else 2)
    return fg.State(
        graph,
        distance=fg.vertex_property(distance, iterated=True),
        x=fg.vertex_property(rng.random((graph.vertex_count, 3)), iterated=True),
        length=fg.edge_property(
            rng.integers(1, 9, rows).astype(np.float32),
            iterated=True,
            per_direction=not graph.directed,
        ),
        given=fg.edge_property(rng.random(graph.given_edge_count) > 0.5),
        shift=rng.random(3),
        rate=0.125,
        least=2.5,
        steps=int(rng.integers(-(2**63), 2**63 - 1)),
        on=bool(seed % 2),
    )


def run(steps: Any, state: fg.State, number: int, **options: Any) -> fg.Run:
    options.setdefault("target", "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return fg.iterate(steps, state, max_supersteps=number, **options)


def save_and_load(state: fg.State) -> fg.State:
    with tempfile.TemporaryDirectory() as folder:
        state.save(f"{folder}/state")
        state.save(f"{folder}/state")  # over the first one
        return fg.State.load(f"{folder}/state", state.graph)


WAYS: dict[str, Callable[[fg.State], fg.State]] = {
    "copy": fg.State.copy,
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "save": save_and_load,
}


def same(one: fg.State, other: fg.State) -> None:
    assert one.superstep == other.superstep
    assert one.signature == other.signature
    for name in one.signature:
        assert np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes()


def alike(one: fg.Run, other: fg.Run) -> None:
    fields = ["supersteps", "converged", "active_counts", "directions", "aggregates"]
    for name in fields:
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.drawn(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_copy_goes_on_with_the_same_bits(
    name: str, way: str, target: str, data: st.DataObject
) -> None:
    graph, seed = data.draw(graphs()), data.draw(seeds)
    steps, first = PROGRAMS[name], data.draw(st.integers(0, 5))
    few = [v for v in (0, 3, 5) if v < graph.vertex_count]
    options: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"active": few}, {"change_driven": True}])
    )
    options = {**options, "target": target}
    if data.draw(st.booleans()):
        steps = [*steps[:-1], steps[-1].on(few)]
    state = make(graph, seed)
    if first:
        run(steps, state, first, **options)
    copied = WAYS[way](state)
    same(copied, state)
    options.pop("active", None)
    expected = run(steps, state, LIMIT, **options)
    before = {name: state[name] for name in state}
    alike(run(steps, copied, LIMIT, **options), expected)
    same(copied, state)
    copied["x"] = 0.0  # is not the other's
    copied["rate"] = 0.5
    assert all(np.array_equal(state[name], before[name]) for name in before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_copy_made_in_a_callback(name: str, way: str, target: str) -> None:
    """It is of the superstep that has ended, and has the due sets."""
    rng = np.random.default_rng(1)
    graph = fg.Graph.from_edges(*rng.integers(0, 60, (2, 150)), vertex_count=60)
    copies: list[fg.State] = []

    def keep(progress: fg.Run, state: fg.State) -> None:
        copies.append(WAYS[way](state))

    whole = make(graph, 3)
    run(PROGRAMS[name], whole, 6, callback=keep, target=target)
    assert len(copies) == 6
    for number, copied in enumerate(copies, 1):
        part = make(graph, 3)
        run(PROGRAMS[name], part, number, target=target)
        same(copied, part)
        expected = run(PROGRAMS[name], part, LIMIT, target=target)
        alike(run(PROGRAMS[name], copied, LIMIT, target=target), expected)
        same(copied, part)


def test_due_vertices_are_distinguished_by_programs(target: str) -> None:
    """A loaded State recognizes a foldmap of the same functions, and no other."""
    graph = fg.Graph.from_edges(np.arange(50), np.arange(1, 51))
    state = make(graph, 1)
    run(paths, state, 1, active=[3], target=target)
    copied = save_and_load(state)
    again = fg.foldmap(nearest, approach)
    assert again.program.digest == paths.program.digest
    assert again.program.digest != mixing.program.digest
    counts = run(again, copied, 1, target=target).active_counts
    assert counts == run(paths, state, 1, target=target).active_counts
    # For another one everything is due.
    assert run(wearing, save_and_load(state), 1, target=target).active_counts[0] > 3


def test_captured_constants_are_in_the_digest() -> None:
    def make_step(rate: float) -> Any:
        @fg.vertex
        def fade(f, v, d):
            d.x_next[v, f] = d.x[v, f] * rate
            return False

        return fg.foldmap(fade).program.digest

    assert make_step(0.5) == make_step(0.5)
    assert make_step(0.5) != make_step(0.25)


def test_writes_from_outside_make_everything_due_in_copies_too(target: str) -> None:
    graph = fg.Graph.from_edges(np.arange(50), np.arange(1, 51))
    state = make(graph, 1)
    run(paths, state, LIMIT * 2, target=target)
    assert run(paths, state, 1, target=target).supersteps == 0
    state["rate"] = 0.25
    copied = state.copy()
    expected = run(paths, state, 3, target=target)
    alike(run(paths, copied, 3, target=target), expected)
    assert copied.superstep == state.superstep
