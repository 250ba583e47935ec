"""Runs that go on from stage to stage: what is due, what limits and errors leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.runtime.loops import foldmap_run as steps


@fg.vertex
def count_visits(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.visits[v] < d.enough


visits = fg.foldmap(count_visits)


@fg.vertex
def grow(f, v, d):
    d.size_next[v] = d.size[v] + 1
    return True


def fresh() -> fg.State:
    line = fg.Graph.from_edges(np.arange(5), np.arange(1, 6))
    visited = fg.vertex_property(np.zeros(6, np.int32))
    size = fg.vertex_property(np.zeros(6, np.int32), iterated=True)
    return fg.State(line, visits=visited, enough=3, size=size)


@pytest.mark.parametrize("form", [list, np.array, None])
def test_what_then_returns_is_due_and_nothing_else(form: Any) -> None:
    state, calls = fresh(), []
    stretches: list[Any] = [[2, 4], [0], []]

    def then(run: fg.Run, state: fg.State) -> Any:
        calls.append(run.supersteps)
        given = stretches.pop(0)
        if given == [0]:
            state["enough"] = 5  # makes everything due, but for what is returned
        if form is None:
            return fg.ActiveSet(state.graph, given) if given else None
        return form(given)

    run = fg.iterate(visits, state, active=[1], target="cpu", then=then)
    assert calls == [3, 6, 11]
    assert state["visits"].tolist() == [5, 3, 3, 0, 3, 0]
    assert run.converged
    assert run.active_counts == [1, 1, 0, 2, 2, 0, 1, 1, 1, 1, 0]
    assert not fg.iterate(visits, state, target="cpu", max_supersteps=0).active_counts


@fg.reduce(into="least", combine="min")
def least_size(f, v, d):
    return d.size[v] if d.visits[v] == 0 else 99


@fg.vertex
def visit_least(f, v, d):
    if d.visits[v] > 0 or d.size[v] != d.least[0]:
        return False
    d.visits[v] = 1
    return True


@fg.vertex
def note_stage(f, v, d):
    d.stage[v] = d.least[0]
    return False


def test_a_foldmap_runs_over_all_vertices_between_stages(target: str) -> None:
    """Only its committed vertices are due, and supersteps read its reduce's result."""
    line = fg.Graph.from_edges(np.arange(5), np.arange(1, 6))
    state = fg.State(
        line,
        visits=fg.vertex_property(np.zeros(6, np.int32)),
        size=fg.vertex_property(np.array([4, 1, 7, 1, 7, 2], np.int32)),
        stage=fg.vertex_property(np.full(6, -1, np.int32)),
    )
    rise = fg.foldmap(least_size, visit_least)
    first = rise(state, target=target)
    run = fg.iterate(
        fg.vertexmap(note_stage), state, active=first, target=target, then=rise
    )
    assert run.converged
    assert run.active_counts == [0] * 4
    assert state["stage"].tolist() == [4, 1, 7, 1, 7, 2]
    assert state["visits"].tolist() == [1] * 6
    assert state["least"].tolist() == [99]


def test_a_limit_ends_a_run_before_then_is_called() -> None:
    for limit, times in ((3, 0), (4, 1)):
        calls: list[int] = []

        def then(run: fg.Run, state: fg.State, calls: list[int] = calls) -> Any:
            calls.append(run.supersteps)
            return [2]

        state = fresh()
        with pytest.warns(fg.ConvergenceWarning):
            run = fg.iterate(
                visits, state, active=[1], target="cpu", max_supersteps=limit, then=then
            )
        assert not run.converged
        assert len(calls) == times
        assert run.supersteps == limit


def test_errors_of_then_lose_nothing() -> None:
    state = fresh()

    def fail(run: fg.Run, state: fg.State) -> Any:
        raise ValueError("then")

    with pytest.raises(ValueError, match="then"):
        fg.iterate(visits, state, active=[1], target="cpu", then=fail)
    with pytest.raises(fg.GraphInputError, match="out of range"):
        fg.iterate(visits, state, active=[1], target="cpu", then=lambda r, s: [99])
    assert state["visits"].tolist() == [0, 4, 0, 0, 0, 0]
    assert fg.iterate(visits, state, active=[2], target="cpu").converged
    assert state["visits"].tolist() == [0, 4, 3, 0, 0, 0]


def once(write: Any, given: Any) -> Any:
    """Return a `then` that writes and goes on with some vertices, but once."""
    stretches = [given]

    def then(run: fg.Run, state: fg.State) -> Any:
        if not stretches:
            return None
        write(state)
        return stretches.pop()

    return then


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def put(f, v, d):
    d.y_next[v] = d.total[v]
    d.x_next[v] = d.x[v]
    return d.total[v] != d.y[v]


def sums() -> fg.State:
    graph = fg.Graph.from_edges([0, 1], [2, 2], vertex_count=4)
    return fg.State(
        graph,
        x=fg.vertex_property(np.array([1, 10, 0, 0]), iterated=True),
        y=fg.vertex_property(np.zeros(4, np.int64), iterated=True),
    )


def set_x(state: fg.State) -> None:
    state["x"] = np.array([2, 20, 0, 0])


@pytest.mark.parametrize(("given", "expected"), [([0], 22), ([3], 11)])
def test_due_vertices_see_all_that_then_wrote(given: Any, expected: int) -> None:
    """Also with kept aggregates, of which all but one source is as it was for them."""
    found = []
    for change_driven in ("auto", True):
        state = sums()
        run = fg.iterate(
            fg.foldmap(add, put), state, target="cpu", then=once(set_x, given),
            change_driven=change_driven,
        )  # fmt: skip
        found.append((run.aggregates[0], state["y"].tolist()))
    assert found == [("recomputed", [0, 0, expected, 0]), ("kept", found[0][1])]


def test_then_is_refused_where_all_are_due() -> None:
    state = sums()
    with pytest.raises(fg.PlanError, match=r"change_driven=False.*\n.*then="):
        fg.iterate(
            fg.foldmap(add, put), state, target="cpu", then=once(set_x, [3]),
            change_driven=False,
        )  # fmt: skip
    assert state.superstep == 0
    assert state["x"].tolist() == [1, 10, 0, 0]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u]


@fg.vertex
def adopt(f, v, d):
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v] and v < d.wall


labels = fg.foldmap(lowest, adopt)


def path() -> fg.State:
    ends = np.arange(9)
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    label = fg.vertex_property(np.full(10, 9, np.int32), iterated=True)
    return fg.State(graph, label=label, wall=10)


def set_label(state: fg.State) -> None:
    state["label"] = np.where(np.arange(10) == 3, 1, state["label"])


def test_a_sweep_needs_all_evaluated_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SWEEPING_TARGETS", {"cpu"})
    state = path()
    given = range(5, 10)  # 4 is due, 2 is not
    run = fg.iterate(labels, state, target="cpu", then=once(set_label, given))
    assert run.active_counts[:2] == [0, 1]
    state = path()
    fg.iterate(labels, state, target="cpu", then=once(set_label, [7]))
    assert state["label"].tolist() == [9] * 3 + [1] + [9] * 6


def write_and_raise(run: fg.Run, state: fg.State) -> Any:
    set_label(state)
    raise ValueError("then")


def write_and_go_astray(run: fg.Run, state: fg.State) -> Any:
    set_label(state)
    return [99]


def write_and_end(run: fg.Run, state: fg.State) -> Any:
    set_label(state)
    return True


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ({"then": write_and_raise}, ValueError),
        ({"then": write_and_go_astray}, fg.GraphInputError),
        ({"callback": write_and_raise}, ValueError),
        ({"callback": write_and_end}, None),
        ({"until": lambda state: write_and_end(None, state)}, None),  # type: ignore[arg-type]
    ],
)
def test_what_is_written_before_an_end_is_due(hook: Any, error: Any) -> None:
    state = path()
    if error is None:
        fg.iterate(labels, state, target="cpu", **hook)
    else:
        with pytest.raises(error):
            fg.iterate(labels, state, target="cpu", **hook)
    assert state["label"].tolist() == [9] * 3 + [1] + [9] * 6
    run = fg.iterate(labels, state, target="cpu")
    assert run.active_counts == [2, 2, 2, 1, 1, 1, 0]
    assert state["label"].tolist() == [1] * 10


@pytest.mark.parametrize("given", [None, []])
def test_what_is_written_at_a_normal_end_is_not_due(given: Any) -> None:
    def write(state: fg.State) -> None:
        set_label(state)
        state["wall"] = 11

    state = path()
    fg.iterate(labels, state, target="cpu", then=once(write, given))
    assert not fg.iterate(labels, state, target="cpu").active_counts


def test_then_may_run_other_foldmaps() -> None:
    state = fresh()
    then = once(lambda state: fg.foldmap(grow)(state, target="cpu"), [2])
    run = fg.iterate(visits, state, active=[1], target="cpu", then=then)
    assert state["visits"].tolist() == [0, 3, 3, 0, 0, 0]
    assert run.active_counts == [1, 1, 0, 1, 1, 0]
    assert state["size"].tolist() == [1] * 6
