"""Stopping tests that can be looked at, and logs of results: as functions would."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.runtime.loops import replay
from tests.programs.waves import adopt, crest, lowest

VERTICES = 30


@fg.gather(into="mean", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.weight[e] * d.share[u, f]


@fg.vertex
def blend(f, v, d):  # type: ignore[no-untyped-def]
    d.share_next[v, f] = d.base[v, f] + d.mean[v, f]
    return abs(d.share_next[v, f] - d.share[v, f]) > d.epsilon


@fg.reduce(into="residual", combine="max")
def moved(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.share_next[v, f] - d.share[v, f])


@fg.reduce(into="settled", combine="sum")
def resting(f, v, d):  # type: ignore[no-untyped-def]
    return 1 if abs(d.share_next[v, f] - d.share[v, f]) <= 1e-3 else 0


@fg.reduce(into="level", combine="sum")
def total(f, v, d):  # type: ignore[no-untyped-def]
    return d.share[v, f]


@fg.vertex
def drain(f, v, d):  # type: ignore[no-untyped-def]
    d.share_next[v, f] = d.base[v, f] + d.mean[v, f] - d.level[f] * d.leak
    return abs(d.share_next[v, f] - d.share[v, f]) > d.epsilon


blending = fg.foldmap(weigh, blend, moved, resting)
#: Its result is read, and makes everything due where it changes.
draining = fg.foldmap(total, weigh, drain, moved, resting)


def shares_state(epsilon: float = 1e-5) -> fg.State:
    """Return shares that settle in some tens of supersteps, not all at once."""
    rng = np.random.default_rng(4)
    source, target = rng.integers(0, VERTICES, (2, 70))
    graph = fg.Graph.from_edges(source, target, vertex_count=VERTICES)
    weight = 0.7 / np.maximum(graph.in_degree, 1)[target]
    base = rng.random((VERTICES, 2)).astype(np.float32)
    return fg.State(
        graph,
        share=fg.vertex_property(np.zeros_like(base), iterated=True),
        base=fg.vertex_property(base),
        weight=fg.edge_property(weight.astype(np.float32)),
        epsilon=epsilon,
        leak=0.001,
    )


@pytest.fixture(autouse=True)
def loops_at_once(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, have it run the supersteps of a cycle as soon as that is known."""
    if target == "cuda":
        from featgraph.runtime.devices.cuda_device import cuda_device

        monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)
        monkeypatch.setattr(cuda_device().recorder, "_loop_seconds", 0.0)


def run(step: Any, state: fg.State, **options: Any) -> fg.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return fg.iterate(step, state, **options)


TESTS = [
    fg.below("residual", 1e-3),
    fg.below("residual", 0.0),
    fg.below("residual", np.inf),
    fg.above("settled", VERTICES - 4),
    fg.above("settled", 10 * VERTICES),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("step", [blending, draining])
@pytest.mark.parametrize("epsilon", [-1.0, 1e-5])
@pytest.mark.parametrize("test", TESTS, ids=repr)
def test_tests_end_runs_where_functions_do(
    step: Any, epsilon: float, test: fg.StoppingTest, target: str
) -> None:
    """And what is watched is what a callback would have read."""
    log: list[float] = []

    def read(run: fg.Run, state: fg.State) -> None:
        log.append(float(np.max(state["residual"])))

    meant, found = shares_state(epsilon), shares_state(epsilon)
    options: dict[str, Any] = {"target": target, "max_supersteps": 40}
    by_host = run(step, meant, until=lambda s: test(s), callback=read, **options)
    done = run(step, found, until=test, watch="residual", **options)
    assert (done.supersteps, done.converged, done.active_counts) == (
        by_host.supersteps, by_host.converged, by_host.active_counts,
    )  # fmt: skip
    assert done.watched == log
    assert len(log) == done.supersteps
    for name in meant:
        np.testing.assert_array_equal(found[name], meant[name], err_msg=name)


@pytest.mark.parametrize("height", [1, 5, 100])
def test_a_result_that_changes_makes_everything_due(height: int, target: str) -> None:
    """Vertices count how often they run."""
    ends, states = np.arange(VERTICES - 1), []
    graph = fg.Graph.from_edges(ends, ends + 1, directed=False)
    records = []
    for where in (target, "cpu"):
        state = fg.State(
            graph,
            label=fg.vertex_property(np.arange(VERTICES), iterated=True),
            runs=fg.vertex_property(np.zeros(VERTICES, np.int64)),
            height=height,
        )
        done = run(fg.foldmap(crest, lowest, adopt), state, target=where)
        states.append(state)
        records.append((done.supersteps, done.converged, done.active_counts))
    assert records[0] == records[1]
    for name in states[0]:
        np.testing.assert_array_equal(states[0][name], states[1][name], err_msg=name)


def test_a_test_may_be_called() -> None:
    state = shares_state()
    run(blending, state, max_supersteps=3)
    largest = float(state["residual"].max())
    assert fg.below("residual", np.nextafter(largest, 1))(state)
    assert not fg.below("residual", largest)(state)
    assert fg.above("residual", 0)(state)
    assert not fg.above("residual", float(state["residual"].min()))(state)
    assert fg.below("leak", 0.002)(state)
    assert not fg.below("residual", 1).holds(np.nan)
    assert not fg.above("residual", 1).holds(np.nan)


def test_a_test_shows_itself_and_is_a_value() -> None:
    test = fg.below("residual", 1e-6)
    assert repr(test) == "below('residual', 1e-06)"
    assert pickle.loads(pickle.dumps(test)) == test
    assert {test, fg.below("residual", np.float64(1e-6))} == {test}
    assert fg.above("residual", 2) != test


@pytest.mark.parametrize("limit", [np.nan, "1", None, True, [1.0], 10**400])
def test_a_limit_is_a_number(limit: Any) -> None:
    with pytest.raises(fg.ArgumentError, match=r"fg\.below: limit"):
        fg.below("residual", limit)


def test_names_are_those_of_results() -> None:
    with pytest.raises(fg.ArgumentError, match=r"fg\.above: name"):
        fg.above(3, 1.0)  # type: ignore[arg-type]
    state = shares_state()
    with pytest.raises(fg.StateError, match="did you mean 'residual'"):
        run(blending, state, until=fg.below("residuals", 1.0))
    with pytest.raises(fg.StateError, match="'share'") as caught:
        run(blending, state, watch="share")
    assert "declare it" not in str(caught.value)  # in the State it is
    assert caught.value.where == "watch="
    with pytest.raises(fg.ArgumentError, match="watch="):
        run(blending, state, watch=3)
    assert state.superstep == 0
    with pytest.raises(fg.StateError, match="no vertex or edge"):
        fg.below("share", 1.0)(state)
    with pytest.raises(fg.StateError, match="did you mean 'share'"):
        fg.below("shares", 1.0)(state)


def test_of_foldmaps_in_turn_only_those_count_that_give_the_result(target: str) -> None:
    """A test is not judged by what an earlier run has left."""
    state, plain = shares_state(), fg.foldmap(weigh, blend)
    run(blending, state, max_supersteps=1, target=target)
    state["residual"] = [0.0, 0.0]
    done = run(
        [plain, blending], state, until=fg.below("residual", 1e9), watch="residual",
        target=target,
    )  # fmt: skip
    assert (done.supersteps, done.converged, len(done.watched)) == (2, True, 1)
