"""The common base of results: residuals as they were, and their picture."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms._result import Result, iterate_recorded


@fg.gather(into="mean", combine="sum")
def shares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u, f] / d.in_degree[v]


@fg.vertex
def approach(f, v, d):  # type: ignore[no-untyped-def]
    new = (d.x[v, f] + d.mean[v, f]) / 2
    d.x_next[v, f] = new
    return fg.any_feature(abs(new - d.x[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.x_next[v, f] - d.x[v, f])


plain = fg.foldmap(shares, approach)
recording = fg.foldmap(shares, approach, largest_change)


def new_state(rng: np.random.Generator, epsilon: float = 1e-3) -> fg.State:
    ends = rng.integers(0, 33, (2, 90))
    graph = fg.Graph.from_edges(*ends, vertex_count=33, directed=False)
    x = rng.random((33, 3), np.float32)
    return fg.State(
        graph, x=fg.vertex_property(x, iterated=True), epsilon=float(epsilon)
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"direction": "push"},
    {"folding": False},
    {"feature_parallel": False},
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_residual_is_what_the_superstep_committed(
    options: dict[str, Any], target: str, rng: np.random.Generator
) -> None:
    state = new_state(rng)
    before, expected = state["x"], []

    def watch(run: fg.Run, state: fg.State) -> None:
        nonlocal before
        expected.append(np.abs(state["x"] - before).max())
        before = state["x"]

    run, residuals = iterate_recorded(
        recording, state, callback=watch, target=target, **options
    )
    assert run.converged
    assert residuals.tolist() == pytest.approx(expected, rel=1e-6)
    # The last superstep proposed changes of up to epsilon, and dropped them all.
    assert residuals[-1] == 0 < residuals[-2]


def test_recording_changes_nothing(target: str, rng: np.random.Generator) -> None:
    state = new_state(rng)
    other = fg.State(
        state.graph, x=fg.vertex_property(state["x"], iterated=True), epsilon=1e-3
    )
    run, residuals = iterate_recorded(recording, state, target=target)
    same, none = iterate_recorded(plain, other, history=False, target=target)
    assert np.array_equal(state["x"], other["x"])
    assert run.active_counts == same.active_counts
    assert (residuals.size, none.size) == (run.supersteps, 0)


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_a_callback_ends_the_run_as_it_does_in_iterate(
    target: str, rng: np.random.Generator
) -> None:
    run, residuals = iterate_recorded(
        recording,
        new_state(rng),
        callback=lambda run, state: run.supersteps == 2,
        target=target,
    )
    assert (run.supersteps, residuals.size, run.converged) == (2, 2, False)


def result_of(residuals: list[float], supersteps: int) -> Result:
    run = fg.Run("cpu", [], supersteps=supersteps, converged=True)
    return Result(run=run, residuals=np.array(residuals))


def test_a_result_says_how_the_run_ended() -> None:
    result = result_of([0.5, 0.0], 2)
    assert result.converged
    assert result.supersteps == 2


def test_plot_draws_every_change_on_a_log_scale() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    result = result_of([0.5, 0.125, 0.0], 3)
    axes = result.plot()
    try:
        assert axes.get_yscale() == "log"
        (line,) = axes.get_lines()
        assert line.get_xydata().tolist() == [[1, 0.5], [2, 0.125]]
        assert axes.get_xlabel() == "superstep"
        assert axes.get_ylabel() == "largest change"
        assert result.plot(axes) is axes
        assert len(axes.get_lines()) == 2
    finally:
        pyplot.close(axes.figure)


def test_plot_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(fg.FeatGraphError, match=r"featgraph\[plot\]"):
        result_of([0.5], 1).plot()
    with pytest.raises(fg.FeatGraphError, match="history=True"):
        result_of([], 3).plot()
