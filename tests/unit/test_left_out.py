"""Vertices excluded by ``.on`` stay due, and make no other vertex due."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u]


@fg.vertex
def adopt_and_count(f, v, d):
    d.visits[v] = d.visits[v] + 1
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


COUNT = 12
even = np.arange(COUNT) % 2 == 0
counted = fg.foldmap(lowest, adopt_and_count)


def line_state() -> fg.State:
    ends = np.arange(COUNT - 1)
    return fg.State(
        fg.Graph.from_edges(ends, ends + 1),
        label=fg.vertex_property(np.arange(COUNT, dtype=np.int32), iterated=True),
        visits=fg.vertex_property(np.zeros(COUNT, np.int32)),
    )


def test_what_is_left_out_makes_no_vertex_due() -> None:
    """Due vertices are not active: vertices that gather from them stay as they are."""
    state = line_state()
    steps = [counted.on(even), counted.on(~even)]
    run = fg.iterate(steps, state, active=[0], target="cpu")
    assert run.active_counts == [0, *[1] * (COUNT - 1), 0, 0]
    # Once for what its source has committed, once for what it has.
    assert state["visits"].tolist() == [1, *[2] * (COUNT - 1)]


def test_what_is_left_out_is_due_in_a_later_call() -> None:
    state = line_state()
    fg.iterate(counted.on(even), state, active=[0], target="cpu")
    assert state["visits"].tolist() == [1] + [0] * (COUNT - 1)
    fg.iterate(counted.on(~even), state, target="cpu")
    assert state["label"].tolist()[:3] == [0, 0, 2]
    assert state["visits"].tolist() == [1, 2] + [0] * (COUNT - 2)
    fg.iterate(counted, state, target="cpu")
    assert (state["label"] == 0).all()
    assert state["visits"].tolist() == [1, 2, *[2] * (COUNT - 2)]


def test_a_stage_keeps_nothing_of_what_was_left_out_before() -> None:
    state, stages = line_state(), [[4], None]
    step = counted.on(even)
    fg.iterate(step, state, active=[0], target="cpu", then=lambda *_: stages.pop(0))
    assert not stages
    assert state["visits"].tolist() == [1, 0, 0, 0, 2, *[0] * (COUNT - 5)]
    fg.iterate(counted, state, target="cpu")
    # Vertex 5 is due, vertex 1 is not.
    assert state["visits"].tolist()[:2] == [1, 0]
    assert state["label"].tolist() == [0, 1, 2, *[3] * (COUNT - 3)]


def test_all_that_is_left_out_is_due_behind_a_sweep() -> None:
    state = line_state()
    fg.iterate(counted.on(even), state, target="cpu")
    assert state["label"].tolist() == [0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11]
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(counted.on(~even), state, target="cpu", max_supersteps=1)
    assert state["label"].tolist() == [0, 0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9]


@fg.vertex
def count_reached(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.label[v] == 0


@fg.edge
def reaches(f, u, v, e, d):
    return d.label[v] != 0


@fg.vertex
def take(f, v, d):
    d.label_next[v] = 0
    return d.label[v] != 0


def test_what_a_later_phase_finds_due_is_left_out_too() -> None:
    state, step = line_state(), fg.foldmap(count_reached, reaches, take)
    fg.iterate(step.on(even), state, active=[0], target="cpu")
    assert state["label"].tolist()[:3] == [0, 1, 2]
    assert state["visits"].tolist()[:3] == [1, 0, 0]
    fg.iterate(step, state, target="cpu")
    assert state["visits"].tolist()[:3] == [1, 1, 0]  # its source has reached it
