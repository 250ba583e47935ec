"""Runs that go on from stage to stage: what is due, what limits and errors leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg


@fg.vertex
def count_visits(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.visits[v] < d.enough


visits = fg.foldmap(count_visits)


def fresh() -> fg.State:
    line = fg.Graph.from_edges(np.arange(5), np.arange(1, 6))
    visited = fg.vertex_property(np.zeros(6, np.int32))
    return fg.State(line, visits=visited, enough=3)


@pytest.mark.parametrize("form", [list, np.array, None])
def test_what_then_returns_is_due_and_nothing_else(form: Any) -> None:
    state, asked = fresh(), []
    stretches: list[Any] = [[2, 4], [0], []]

    def then(run: fg.Run, state: fg.State) -> Any:
        asked.append(run.supersteps)
        given = stretches.pop(0)
        if given == [0]:
            state["enough"] = 5  # makes everything due, but for what is returned
        if form is None:
            return fg.ActiveSet(state.graph, given) if given else None
        return form(given)

    run = fg.iterate(visits, state, active=[1], target="cpu", then=then)
    assert asked == [3, 6, 11]
    assert state["visits"].tolist() == [5, 3, 3, 0, 3, 0]
    assert run.converged
    assert run.active_counts == [1, 1, 0, 2, 2, 0, 1, 1, 1, 1, 0]
    assert not fg.iterate(visits, state, target="cpu", max_supersteps=0).active_counts


def test_a_limit_ends_a_run_before_then_is_asked() -> None:
    for limit, times in ((3, 0), (4, 1)):
        asked: list[int] = []

        def then(run: fg.Run, state: fg.State, asked: list[int] = asked) -> Any:
            asked.append(run.supersteps)
            return [2]

        state = fresh()
        with pytest.warns(fg.ConvergenceWarning):
            run = fg.iterate(
                visits, state, active=[1], target="cpu", max_supersteps=limit, then=then
            )
        assert not run.converged
        assert len(asked) == times
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
