"""The driver: what it records, when it ends, what is due, and what an interrupt leaves.

Programs are few and shared, so that little is compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan.traits import needs_wide_positions
from featgraph.runtime.devices.choose import CpuDevice
from featgraph.runtime.devices.cpu_sweeps import CpuSets

# Shortest paths on a line: exactly one vertex changes in each superstep.


@fg.gather(into="near", combine="min")
def nearest(f, u, v, e, d):
    return d.dist[u, f] + d.step


@fg.vertex
def relax(f, v, d):
    d.dist_next[v, f] = min(d.dist[v, f], d.near[v, f])
    return d.near[v, f] < d.dist[v, f]


@fg.vertex
def count_visits(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.visits[v] < d.enough


paths = fg.foldmap(nearest, relax)
visits = fg.foldmap(count_visits)

FAR = 1e6


def line(count: int = 6) -> fg.Graph:
    return fg.Graph.from_edges(np.arange(count - 1), np.arange(1, count))


def path_state(count: int = 6) -> fg.State:
    dist = np.full((count, 2), FAR, np.float32)
    dist[0] = 0
    return fg.State(
        line(count),
        dist=fg.vertex_property(dist, iterated=True),
        visits=fg.vertex_property(np.zeros(count, np.int32)),
        step=1.0,
        enough=3,
    )


def distances(count: int = 6, step: float = 1.0) -> Any:
    return np.repeat(np.arange(count)[:, None] * step, 2, axis=1)


def test_record() -> None:
    state = path_state()
    run = fg.iterate(paths, state, target="cpu", record_active=True)
    np.testing.assert_array_equal(state["dist"], distances())
    assert run.converged
    assert run.target == "cpu"
    assert run.supersteps == state.superstep == 6
    assert run.active_counts == [1, 1, 1, 1, 1, 0]
    assert run.directions == ["pull"] * 6
    assert len(run.seconds) == 6
    assert all(s >= 0 for s in run.seconds)
    assert len(run.kernels) == 1
    assert run.active_sets is not None
    found = [a.vertices.tolist() for a in run.active_sets]
    assert found == [[1], [2], [3], [4], [5], []]
    assert "6 supersteps on cpu, converged" in repr(run)
    pushed = fg.iterate(paths, path_state(), target="cpu", direction="push")
    assert pushed.directions == ["push"] * 6
    assert pushed.active_sets is None


def test_no_gather_has_no_direction() -> None:
    state = path_state()
    run = fg.iterate(visits, state, target="cpu")
    assert run.directions == ["-", "-", "-"]
    assert state["visits"].tolist() == [3] * 6


def test_limit() -> None:
    state = path_state()
    with pytest.warns(fg.ConvergenceWarning, match="not converged after 2 supersteps"):
        run = fg.iterate(paths, state, target="cpu", max_supersteps=2)
    assert not run.converged
    assert run.supersteps == 2
    assert (state["dist"][:3] == distances()[:3]).all()
    assert (state["dist"][3:] == FAR).all()


def test_a_limit_that_is_just_enough() -> None:
    run = fg.iterate(paths, path_state(), target="cpu", max_supersteps=6)
    assert run.converged


def test_no_supersteps() -> None:
    state = path_state()
    with pytest.warns(fg.ConvergenceWarning):
        run = fg.iterate(paths, state, target="cpu", max_supersteps=0)
    assert (run.supersteps, run.converged, run.seconds) == (0, False, [])
    assert state.superstep == 0
    fg.iterate(paths, state, target="cpu")
    assert fg.iterate(paths, state, target="cpu", max_supersteps=0).converged


def test_a_second_call_goes_on() -> None:
    state = path_state()
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(paths, state, target="cpu", max_supersteps=2)
    run = fg.iterate(paths, state, target="cpu", record_active=True)
    assert run.active_counts == [1, 1, 1, 0]
    np.testing.assert_array_equal(state["dist"], distances())
    assert state.superstep == 6
    run = fg.iterate(paths, state, target="cpu")
    assert (run.supersteps, run.converged) == (0, True)


def test_writes_from_outside_make_all_due() -> None:
    state = path_state()
    fg.iterate(paths, state, target="cpu")
    far = state["dist"]
    far[1:] = FAR
    state["dist"] = far
    run = fg.iterate(paths, state, target="cpu")
    assert run.supersteps == 6
    np.testing.assert_array_equal(state["dist"], distances())


def test_a_changed_scalar_makes_all_due() -> None:
    state = path_state()
    fg.iterate(paths, state, target="cpu")
    state["step"] = 0.5
    fg.iterate(paths, state, target="cpu")
    np.testing.assert_array_equal(state["dist"], distances(step=0.5))


@fg.vertex
def grow(f, v, d):
    d.x_next[v, f] = min(d.x[v, f] + d.rate[v], 3)
    return d.x_next[v, f] != d.x[v, f]


@fg.reduce(into="top", combine="max")
def largest(f, v, d):
    return d.x_next[v, f]


@fg.vertex
def follow(f, v, d):
    d.y_next[v, f] = d.top[f]
    return d.top[f] > 2 and d.y[v, f] != d.top[f]


def test_a_changed_reduction_makes_all_due() -> None:
    """Only vertex 0 commits; what reads the largest value is due everywhere."""
    zeros = np.zeros((6, 2), np.float32)
    state = fg.State(
        line(),
        x=fg.vertex_property(zeros, iterated=True),
        y=fg.vertex_property(zeros, iterated=True),
        rate=fg.vertex_property(np.eye(6, 1, dtype=np.float32)[:, 0]),
        top=np.zeros(2, np.float32),
    )
    steps = [fg.foldmap(grow, largest), fg.foldmap(follow)]
    run = fg.iterate(steps, state, target="cpu")
    assert run.converged
    assert state["top"].tolist() == [3, 3]
    assert (state["y"] == 3).all()


def test_nan_scalars_do_not_change() -> None:
    state = path_state()
    state["step"] = float("nan")
    run = fg.iterate(paths, state, target="cpu", max_supersteps=5)
    assert run.converged
    assert fg.iterate(paths, state, target="cpu").supersteps == 0


def test_writes_in_a_callback() -> None:
    state = path_state()

    def quicken(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 6:
            state["step"] = 0.5

    fg.iterate(paths, state, target="cpu", callback=quicken)
    np.testing.assert_array_equal(state["dist"], distances(step=0.5))


def test_until() -> None:
    state = path_state()
    run = fg.iterate(
        paths, state, target="cpu", until=lambda s: bool(s["dist"][3, 0] < FAR)
    )
    assert (run.supersteps, run.converged) == (3, True)
    assert fg.iterate(paths, state, target="cpu").supersteps == 3


def test_callbacks() -> None:
    seen: list[tuple[int, int, float]] = []

    def stop(run: fg.Run, state: fg.State) -> bool:
        seen.append((run.supersteps, run.active_counts[-1], state["dist"][1, 0]))
        return run.supersteps == 2

    run = fg.iterate(paths, path_state(), target="cpu", callback=stop)
    assert seen == [(1, 1, 1.0), (2, 1, 1.0)]
    assert (run.supersteps, run.converged) == (2, False)


def test_errors_in_a_callback_lose_nothing() -> None:
    state = path_state()

    def fail(run: fg.Run, state: fg.State) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fg.iterate(paths, state, target="cpu", callback=fail)
    run = fg.iterate(paths, state, target="cpu")
    assert run.active_counts == [1, 1, 1, 1, 0]
    np.testing.assert_array_equal(state["dist"], distances())


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    fg.iterate(paths, path_state(), target="cpu")
    assert capsys.readouterr() == ("", "")
    fg.iterate(paths, path_state(), target="cpu", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "6/1000" in shown.err
    assert "superstep" in shown.err
    assert "active=0" in shown.err


def test_starting_sets() -> None:
    state = path_state()
    state["dist"] = np.where(np.arange(6)[:, None] == 2, 0, FAR).repeat(2, axis=1)
    run = fg.iterate(paths, state, active=[2], target="cpu", record_active=True)
    assert run.active_sets is not None
    assert run.active_sets[0].vertices.tolist() == [3]
    assert state["dist"][:, 0].tolist() == [FAR, FAR, 0, 1, 2, 3]


def test_an_empty_active_set() -> None:
    for none in ([], np.zeros(6, np.bool_), fg.ActiveSet(6)):
        state = path_state()
        run = fg.iterate(paths, state, active=none, target="cpu")
        assert (run.supersteps, run.converged) == (0, True)
        assert state.superstep == 0
        out = paths(state, active_in=none, target="cpu")
        assert len(out) == 0
        assert (state["dist"][1:] == FAR).all()
        assert state.superstep == 1


def test_active_out() -> None:
    state = path_state()
    active = fg.ActiveSet(6, [0])
    out = paths(state, active_in=active, active_out=active, target="cpu")
    assert out is active
    assert active.vertices.tolist() == [1]
    other = fg.ActiveSet(6, "all")
    assert paths(state, active_in=active, active_out=other, target="cpu") is other
    assert active.vertices.tolist() == [1], "active_in is not changed"
    assert other.vertices.tolist() == [2]


BAD_SETS = {
    "out of range": ([6], fg.GraphInputError, "out of range"),
    "floats": ([0.5], fg.GraphInputError, "integer ids"),
    "mask": ([True] * 5, fg.GraphInputError, "one entry per vertex"),
    "of another graph": (fg.ActiveSet(7), fg.StateError, "of another graph"),
}


@pytest.mark.parametrize(("bad", "error", "what"), BAD_SETS.values(), ids=BAD_SETS)
def test_bad_sets(bad: Any, error: type[Exception], what: str) -> None:
    state = path_state()
    calls = [
        lambda: paths(state, active_in=bad, target="cpu"),
        lambda: fg.iterate(paths, state, active=bad, target="cpu"),
        lambda: paths.on(bad)(state, target="cpu"),
        lambda: fg.iterate(paths.on(bad), state, target="cpu"),
    ]
    for call in calls:
        with pytest.raises(error, match=what):
            call()
    assert state.superstep == 0
    assert (state["dist"][1:] == FAR).all()


def test_active_out_of_another_graph() -> None:
    state = path_state()
    before = state["dist"]
    with pytest.raises(fg.StateError, match="active_out is of another graph"):
        paths(state, active_out=fg.ActiveSet(7), target="cpu")
    np.testing.assert_array_equal(state["dist"], before)
    assert state.superstep == 0


@pytest.mark.parametrize("bad", [[], [None], "paths", 3, [relax], (paths, 3)])
def test_bad_steps(bad: Any) -> None:
    with pytest.raises(fg.StateError, match="iterate runs foldmaps"):
        fg.iterate(bad, path_state(), target="cpu")


@pytest.mark.parametrize("name", ["max_supersteps", "supersteps"])
@pytest.mark.parametrize(
    ("limit", "error", "what"),
    [
        (-1, fg.StateError, " out of range"),
        (10**400, fg.StateError, " out of range"),
        (2.5, fg.ArgumentError, "not a number of supersteps"),
        ("3", fg.ArgumentError, "not a number of supersteps"),
        (True, fg.ArgumentError, "not a number of supersteps"),
    ],
)
def test_bad_limits(name: str, limit: Any, error: type[Exception], what: str) -> None:
    state = path_state()
    before = state["dist"]
    what = name + what if error is fg.StateError else what
    with pytest.raises(error, match=f"^{name}=: {what}\n"):
        fg.iterate(paths, state, target="cpu", **{name: limit})
    np.testing.assert_array_equal(state["dist"], before)


def test_a_number_of_supersteps() -> None:
    """Without a warning, and converged only where more would change nothing."""
    state = path_state()
    run = fg.iterate(paths, state, target="cpu", supersteps=2)
    assert (run.supersteps, run.converged) == (2, False)
    run = fg.iterate(paths, state, target="cpu", supersteps=1)
    assert (run.supersteps, run.converged) == (1, False)
    run = fg.iterate(paths, state, target="cpu", supersteps=100)
    assert run.converged
    assert run.supersteps < 100
    np.testing.assert_array_equal(state["dist"], distances())
    with pytest.raises(fg.PlanError, match="drop one of the two"):
        fg.iterate(paths, state, target="cpu", supersteps=2, max_supersteps=2)


def test_a_number_of_supersteps_with_functions_of_the_callers() -> None:
    calls: list[int] = []

    def again(run: fg.Run, state: fg.State) -> list[int]:
        calls.append(run.supersteps)
        return [0]

    run = fg.iterate(paths, path_state(), target="cpu", supersteps=9, then=again)
    assert (run.supersteps, run.converged) == (9, False)
    assert calls
    assert max(calls) < 9
    run = fg.iterate(
        paths, path_state(), target="cpu", supersteps=9, until=lambda state: True
    )
    assert (run.supersteps, run.converged) == (1, True)


def test_a_number_of_supersteps_counts_those_before_a_checkpoint(
    tmp_path: Path,
) -> None:
    def fail(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 2:
            raise KeyError("planted")

    more: dict[str, Any] = {"checkpoint": tmp_path / "kept", "every": 0}
    with pytest.raises(KeyError, match="planted"):
        fg.iterate(
            paths, path_state(), target="cpu", supersteps=3, callback=fail, **more
        )
    state = path_state()
    run = fg.iterate(
        paths, state, target="cpu", supersteps=3, callback=lambda *_: None, **more
    )
    assert (run.supersteps, run.converged) == (3, False)
    assert len(run.active_counts) == 3


def test_on() -> None:
    """Due vertices that `.on` leaves out stay due."""
    state = path_state()
    run = fg.iterate(paths.on([1, 2]), state, target="cpu")
    assert run.converged
    assert state["dist"][:, 0].tolist() == [0, 1, 2, FAR, FAR, FAR]
    fg.iterate(paths, state, target="cpu")
    np.testing.assert_array_equal(state["dist"], distances())


def test_lists_of_foldmaps() -> None:
    state = path_state()
    even, odd = paths.on([0, 2, 4]), paths.on([1, 3, 5])
    run = fg.iterate([even, odd], state, target="cpu")
    assert run.converged
    np.testing.assert_array_equal(state["dist"], distances())
    assert len(run.kernels) == 2
    both = path_state()
    fg.iterate([paths, visits], both, target="cpu")
    np.testing.assert_array_equal(both["dist"], distances())
    assert (both["visits"] >= 3).all()


def test_superstep_counter() -> None:
    state = path_state()
    for number in range(3):
        assert state.superstep == number
        paths(state, target="cpu")
    with pytest.raises(fg.PlanError):
        paths(state, target="cpu", direction="up")
    assert state.superstep == 3


def test_reading_back_is_a_copy() -> None:
    state = path_state()
    paths(state, target="cpu")
    state["dist"][:] = 7
    paths(state, target="cpu")
    assert state["dist"][:3, 0].tolist() == [0, 1, 2]


# Interrupts: what was committed is announced, what was not leaves nothing behind


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_interrupted_before_a_commit(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = path_state()
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(paths, state, target="cpu", max_supersteps=2)
    launch = CpuDevice.launch

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> None:
        launch(self, *args, **kwargs)  # the kernel has written `_next`
        raise error

    before = state["dist"]
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "launch", interrupted)
        expected = fg.DeviceMemoryError if error is MemoryError else error
        with pytest.raises(expected):
            fg.iterate(paths, state, target="cpu")
    np.testing.assert_array_equal(state["dist"], before)
    assert state.superstep == 2
    run = fg.iterate(paths, state, target="cpu")
    assert run.converged
    np.testing.assert_array_equal(state["dist"], distances())


def test_stale_entries_behind_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_next` entries of an interrupted superstep are not taken for current ones."""
    state = path_state()
    launch = CpuDevice.launch

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> None:
        launch(self, *args, **kwargs)
        raise KeyboardInterrupt

    paths(state, target="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            paths(state, target="cpu")  # it has written 2 at vertex 2
    state_before = state["dist"]
    paths(state, active_in=[5], target="cpu")  # sweeps vertex 5 only, and swaps
    np.testing.assert_array_equal(state["dist"], state_before)


def test_interrupted_behind_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertices committed and not yet announced must stay recorded."""
    state = path_state()
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(paths, state, target="cpu", max_supersteps=1)
    count = CpuSets.count
    calls: list[int] = []

    def interrupted(self: Any, words: Any) -> int:
        calls.append(1)
        if state.superstep == 2:
            raise KeyboardInterrupt
        return count(self, words)

    with monkeypatch.context() as patch:
        patch.setattr(CpuSets, "count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(paths, state, target="cpu")
    assert calls
    assert state.superstep == 2
    assert state["dist"][2, 0] == 2
    run = fg.iterate(paths, state, target="cpu")
    assert run.converged
    np.testing.assert_array_equal(state["dist"], distances())


@pytest.mark.parametrize(
    ("edges", "wide"),
    [(0, False), (2**31 - 1025, False), (2**31 - 1024, True), (2**31, True)],
)
def test_positions_are_wide_before_a_step_could_overflow(
    edges: int, wide: bool
) -> None:
    assert needs_wide_positions(edges) is wide


@fg.vertex
def copy_nearest(f, v, d):
    d.dist_next[v, f] = d.near[v, f]
    return v != d.enough


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_no_gatherers_are_looked_for_behind_a_superstep_that_committed_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    expand = CpuSets.expand
    monkeypatch.setattr(
        CpuSets, "expand", lambda *given: calls.append(given) or expand(*given)
    )
    copying = fg.foldmap(nearest, copy_nearest)
    for enough, expected in ((6, 0), (3, 3)):  # no vertex 6: all commit
        state = path_state()
        state["enough"] = enough
        run = fg.iterate(copying, state, max_supersteps=4, target="cpu")
        assert set(run.active_counts) == {6 if enough == 6 else 5}
        assert len(calls) == expected


def test_what_on_was_given_may_change_later() -> None:
    """The set is that of the call, for every graph of the size and every run."""
    chosen = np.arange(34) < 20
    restricted = visits.on(chosen)
    chosen[:] = True
    for _ in range(2):
        visited = fg.vertex_property(0, dtype=np.int32)
        state = fg.State(line(34), visits=visited, enough=1)
        restricted(state, target="cpu")
        assert state["visits"].sum() == 20


@fg.vertex
def note_turn(f, v, d):
    d.visits[v] = 10 * d.visits[v] + d.superstep + 1
    return v != 2


turns = fg.foldmap(note_turn)


def test_due_sets_are_played_in_turn() -> None:
    """Whatever is committed; a later call finds everything due."""
    state = path_state()
    sets = [fg.ActiveSet(6, own) for own in ([0, 2], [], [2], [1, 2, 5])]
    run = fg.iterate(turns, state, due=sets, target="cpu")
    assert state["visits"].tolist() == [1, 3, 123, 0, 0, 3]
    assert (run.supersteps, run.converged) == (3, True)
    assert run.active_counts == [2, 1, 3]
    some = fg.iterate(turns, state, due=sets, target="cpu", supersteps=1)
    assert (some.supersteps, some.converged) == (1, False)
    assert not fg.iterate(turns, path_state(), due=[], target="cpu").supersteps
    after = fg.iterate(turns, state, target="cpu", supersteps=1)
    assert after.active_counts == [5]


def test_a_callback_sees_due_sets_and_may_write() -> None:
    state = path_state()
    sets = [fg.ActiveSet(6, own) for own in ([0], [1], [0])]

    def write(run: fg.Run, state: fg.State) -> None:
        state["enough"] = run.supersteps

    fg.iterate(turns, state, due=sets, callback=write, target="cpu")
    assert state["visits"].tolist() == [13, 2, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"active": [0]}, "active= also determines"),
        ({"record_active": True}, "record_active= also determines"),
        ({"then": lambda run, state: None}, "then= also determines"),
        ({"change_driven": True}, "change_driven= also determines"),
        ({"steps": [turns, visits]}, "2 foldmaps take turns"),
        ({"steps": turns.on([1])}, ".on restricts"),
    ],
)
def test_due_sets_alone_decide_what_is_due(options: dict[str, Any], why: str) -> None:
    steps = options.pop("steps", turns)
    with pytest.raises(fg.PlanError, match=why):
        fg.iterate(steps, path_state(), due=[fg.ActiveSet(6)], target="cpu", **options)


@pytest.mark.parametrize("bad", [3, [1, 2], "ab"])
def test_due_takes_sets(bad: Any) -> None:
    with pytest.raises(fg.ArgumentError, match="due="):
        fg.iterate(turns, path_state(), due=bad, target="cpu")
    with pytest.raises(fg.StateError, match="another graph"):
        fg.iterate(turns, path_state(), due=[fg.ActiveSet(7)], target="cpu")
