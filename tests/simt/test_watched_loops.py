"""Loops on the device that look at results of reduces end where the host would."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.devices import cuda_arrays, cuda_device
from featgraph.runtime.loops import replay
from featgraph.runtime.loops.stopping import StoppingTest
from tests.simt.gpu import Gpu, emulated_gpu

VERTICES = 8


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with emulated_gpu() as made:
        have_loops(monkeypatch)
        yield made


def have_loops(patch: pytest.MonkeyPatch, together: int = 2) -> None:
    """Have loops pay at once, and take as long as lanes do."""
    recorder: Any = cuda_device.cuda_device().recorder
    patch.setattr(recorder, "_loop_seconds", 0.0)
    patch.setattr(replay, "_MOST_SECONDS", np.inf)
    patch.setattr(replay, "_MOST_AWAY", np.inf)
    patch.setattr(cuda_arrays, "_TOGETHER", together)
    patch.setattr(cuda_arrays, "_GATED_TOGETHER", together)


@fg.gather(into="mean", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return 0.45 * d.x[u, f]


@fg.vertex
def blend(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.base[v, f] + d.mean[v, f]
    return abs(d.x_next[v, f] - d.x[v, f]) > d.epsilon


@fg.vertex
def blend_and_count(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.x_next[v, f] = d.base[v, f] + d.mean[v, f]
    return abs(d.x_next[v, f] - d.x[v, f]) > d.epsilon


@fg.vertex
def drain(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.base[v, f] + d.mean[v, f] - d.level[f] * 0.01
    return abs(d.x_next[v, f] - d.x[v, f]) > d.epsilon


@fg.vertex
def drain_by_steps(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.x_next[v, f] = d.base[v, f] + d.mean[v, f] - d.steps[0] * 0.01
    return abs(d.x_next[v, f] - d.x[v, f]) > d.epsilon


@fg.reduce(into="level", combine="sum")
def total(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f]


@fg.reduce(into="steps", combine="max")
def whole(f, v, d):  # type: ignore[no-untyped-def]
    return 1 if d.x[v, 0] > 0.5 else 0


@fg.reduce(into="residual", combine="max")
def moved(f, v, d):  # type: ignore[no-untyped-def]
    return abs(d.x_next[v, f] - d.x[v, f])


@fg.reduce(into="settled", combine="sum")
def resting(f, v, d):  # type: ignore[no-untyped-def]
    return 1 if abs(d.x_next[v, f] - d.x[v, f]) <= 0.02 else 0


@fg.reduce(into="often", combine="sum")
def runs_so_far(f, v, d):  # type: ignore[no-untyped-def]
    return d.runs[v]


@fg.reduce(into="residual", combine="max")
def moved_or_unknown(f, v, d):  # type: ignore[no-untyped-def]
    moved = abs(d.x_next[v, f] - d.x[v, f])
    return moved if moved > 0.02 else d.nan


#: Results that nothing reads, that some read and of which one stays as it is, values
#: written in place, NaN, and a foldmap in turn that gives no result that is watched.
PROGRAMS: dict[str, list[fg.FoldMap]] = {
    "unread": [fg.foldmap(weigh, blend, moved, resting)],
    "read": [fg.foldmap(total, weigh, drain, moved, resting)],
    "rarely changing": [fg.foldmap(whole, weigh, drain_by_steps, moved, resting)],
    "in place": [fg.foldmap(runs_so_far, weigh, blend_and_count, moved, resting)],
    "unknown": [fg.foldmap(weigh, blend, moved_or_unknown, resting)],
    "in turn": [fg.foldmap(weigh, blend), fg.foldmap(total, weigh, drain, moved)],
}


def make_state(source: Any, target: Any, epsilon: float) -> fg.State:
    graph = fg.Graph.from_edges(source, target, vertex_count=VERTICES)
    base = np.linspace(0, 0.3, VERTICES, dtype=np.float32)[:, None]
    return fg.State(
        graph,
        x=fg.vertex_property(np.zeros_like(base), iterated=True),
        base=fg.vertex_property(base),
        runs=fg.vertex_property(np.zeros(VERTICES, np.int64)),
        epsilon=epsilon,
        nan=float("nan"),
    )


def run(steps: Any, state: fg.State, **options: Any) -> Any:
    """Return the record of a run, as a tuple."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        done = fg.iterate(steps, state, target="cuda", **options)
    return (
        done.supersteps, done.converged, done.active_counts, done.directions,
        done.aggregates, len(done.seconds), state.superstep,
        [None if np.isnan(x) else x for x in done.watched],
    )  # fmt: skip


def ring() -> tuple[Any, Any]:
    ends = np.arange(VERTICES)
    targets = np.concatenate([ends + 1, ends + 3]) % VERTICES
    return np.tile(ends, 2), targets


def looped(gpu: Gpu) -> int:
    """Return how many supersteps loops have run."""
    return sum(loop.ran for loop in gpu.loops)


@st.composite
def runs(draw: st.DrawFn) -> Any:
    """Draw a program, edges, options, and how a loop is made."""
    program = draw(st.sampled_from(sorted(PROGRAMS)))
    more = draw(st.lists(st.integers(0, VERTICES - 1), max_size=3))
    source, target = ring()
    source = np.concatenate([source, np.array(more, source.dtype)])
    target = np.concatenate([target, np.array(more, target.dtype) // 2])
    names = {"residual": [0.3, 0.05, 0.01, -1.0], "settled": [3, VERTICES - 1, 99]}
    if program == "in turn":
        del names["settled"]
    name = draw(st.sampled_from(sorted(names)))
    side = draw(st.sampled_from(["below", "above"]))
    test = StoppingTest(name, side, float(draw(st.sampled_from(names[name]))))
    options = {
        "max_supersteps": draw(st.integers(6, 13)),
        "until": draw(st.sampled_from([None, test, test])),
        "watch": draw(st.sampled_from([None, "residual", name])),
    }
    if program in {"unread", "read"} and draw(st.booleans()):
        options["change_driven"] = True
    epsilon = draw(st.sampled_from([-1.0, 1e-2, 1e-3]))
    return program, (source, target, epsilon), options, draw(st.sampled_from([2, 4]))


def test_runs_that_watch_are_those_of_the_host() -> None:
    """With loops of the device, launches of the host, and neither; bit by bit."""
    counts = []

    @settings(max_examples=8)
    @given(runs())
    def agrees(drawn: Any) -> None:
        program, made, options, together = drawn
        found = []
        with pytest.MonkeyPatch.context() as patch, emulated_gpu() as gpu:
            have_loops(patch, together)
            recorder: Any = cuda_device.cuda_device().recorder
            for replays, seconds in ((False, 0.0), (True, np.inf), (True, 0.0)):
                patch.setattr(fg.config, "replay", replays)
                patch.setattr(recorder, "_loop_seconds", seconds)
                state = make_state(*made)
                found.append((run(PROGRAMS[program], state, **options), state))
            counts.append(looped(gpu))
        (meant, other), *rest = found
        for record, state in rest:
            assert record == meant
            for name in state:
                np.testing.assert_array_equal(state[name], other[name], err_msg=name)

    agrees()
    assert sum(counts) > 12


@pytest.mark.drawn(2)
@pytest.mark.parametrize("program", sorted({*PROGRAMS} - {"in turn"}))
def test_programs_loop(program: str, gpu: Gpu) -> None:
    """And the host waits once for a loop, not for its supersteps."""
    state = make_state(*ring(), -1.0)
    options = {"until": fg.below("residual", -1.0), "watch": "residual"}
    run(PROGRAMS[program], state, max_supersteps=8, **options)
    before, ran = len(gpu.downloads), looped(gpu)
    state["x"] = 0.0
    run(PROGRAMS[program], state, max_supersteps=16, **options)
    assert looped(gpu) - ran >= 12
    assert len(gpu.downloads) - before <= 16 - (looped(gpu) - ran) + 1


def test_a_stop_within_a_cycle_leaves_the_state_there(gpu: Gpu) -> None:
    """Runs go on from it as from any other."""
    steps = PROGRAMS["read"]
    for last in (7, 8):
        state, meant = (make_state(*ring(), -1.0) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fg.config, "replay", False)
            *_, log = run(steps, meant, max_supersteps=last, watch="residual")
            record = run(steps, meant, max_supersteps=6)
        before = looped(gpu)
        test = fg.below("residual", np.nextafter(log[-1], 1))
        run(steps, state, max_supersteps=40, until=test)
        assert state.superstep == last
        assert looped(gpu) > before
        assert run(steps, state, max_supersteps=6) == record
        for name in meant:
            np.testing.assert_array_equal(state[name], meant[name], err_msg=name)
