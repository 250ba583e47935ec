"""Aggregates kept between supersteps: choices, limits, proofs, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.device import cpu, ordering
from tests.reference.kept import Watch
from tests.unit.test_driver import distances, line, path_state, paths, visits


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def settle(f, v, d):
    d.y_next[v] = d.total[v]
    return abs(d.total[v] - d.y[v]) > 0.25


@fg.vertex
def shrink(f, v, d):
    d.x_next[v] = d.x[v] * 0.125
    return d.x[v] > d.big


adding = fg.foldmap(add, settle)
shrinking = fg.foldmap(shrink)


def two_sources() -> fg.State:
    """Vertices 0 and 1 lead to 2; what 1 contributes is lost in what 0 does."""
    graph = fg.Graph.from_edges([0, 1], [2, 2])
    return fg.State(
        graph,
        x=fg.vertex_property([2.0**24, 0.5, 0.0], iterated=True, dtype=np.float32),
        y=fg.vertex_property(0.0, iterated=True),
        big=1e7,
    )


def test_convergence_is_proven(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched sum has lost the 0.5; the last superstep finds it."""
    state, watch = two_sources(), Watch(monkeypatch)
    run = watch.iterate([adding, shrinking], state, change_driven=True, target=target)
    assert run.converged
    assert state["y"][2] == 2.0**21 + 0.5
    patched = [seen for seen in watch.seen if seen.work == "patched"]
    assert patched[0].after["y"][2] == 2.0**21
    assert run.aggregates.count("recomputed") == 1


def test_exact_aggregates_need_no_proof(target: str) -> None:
    state = path_state()
    run = fg.iterate(paths, state, target=target, change_driven=True)
    np.testing.assert_array_equal(state["dist"], distances())
    assert run.supersteps == 6
    assert run.aggregates == ["kept", *["patched"] * 5]


@pytest.mark.parametrize("every", [2, 3, None])
def test_recompute_every(
    every: int | None, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many patched supersteps, what was patched is stale, and only that."""
    rng = np.random.default_rng(2)
    graph = fg.Graph.from_edges(*rng.integers(0, 50, (2, 200)), vertex_count=50)
    state = fg.State(
        graph,
        x=fg.vertex_property(rng.random(50, np.float32), iterated=True),
        y=fg.vertex_property(0.0, iterated=True),
        rate=0.25,
    )
    stale: list[int] = []

    def look(run: fg.Run, state: fg.State) -> None:
        kept = watch.steps[0]._incremental
        assert kept is not None
        words = np.asarray(watch.steps[0].device.download(kept.stale))
        patched = np.asarray(watch.steps[0].device.download(kept.patched))
        stale.append(int(np.bitwise_count(words & patched).sum()))

    watch = Watch(monkeypatch, look)
    watch.iterate(
        fg.foldmap(add, approach), state, target=target, change_driven=True,
        max_supersteps=7, recompute_every=every,
    )  # fmt: skip
    marked = [count > 0 for count in stale]
    if every is None:
        assert not any(marked)
    else:
        assert marked == [n > 0 and n % every == 0 for n in range(7)]


@fg.vertex
def approach(f, v, d):
    mean = d.total[v] / max(d.in_degree[v], 1)
    d.x_next[v] = d.x[v] + d.rate * (mean - d.x[v])
    return abs(mean - d.x[v]) > 0.05


@pytest.mark.parametrize(
    ("bad", "error", "what"),
    [
        (0, fg.StateError, "recompute_every out of range"),
        (-1, fg.StateError, "recompute_every out of range"),
        (2.0, fg.ArgumentError, "not a number of supersteps"),
        ("64", fg.ArgumentError, "not a number of supersteps"),
        (True, fg.ArgumentError, "not a number of supersteps"),
    ],
)
def test_bad_recompute_every(bad: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=f"recompute_every=: {what}\n"):
        fg.iterate(paths, path_state(), target="cpu", recompute_every=bad)


# When a patch holds


@pytest.mark.parametrize(
    ("kept", "patch", "change", "holds"),
    [
        (1.0, 0.5, 0.5, True),
        (0.0, 0.0, 0.0, True),
        (16.0, -8.0, 8.0, True),
        (1.0, -1.0, 1.0, False),  # all of it is gone, and only roundings are left
        (1e20, -1e20, 1e20, False),
        (1.0, 0.0, 1e9, False),  # what came and what went were far larger
        (np.inf, -1.0, 1.0, False),
        (1.0, np.inf, np.inf, False),
        (1.0, np.nan, np.nan, False),
        (np.nan, 0.0, 0.0, False),
    ],
)
def test_sums_that_hold(kept: float, patch: float, change: float, holds: bool) -> None:
    for real in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            plain = ordering.sum_holds(real(kept), real(patch), real(change))
        compiled = cpu.sum_holds(real(kept), real(patch), real(change))
        assert bool(plain) == bool(compiled) == holds


@pytest.mark.parametrize(
    ("x", "normal"),
    [(1.0, True), (-2e-30, True), (0.0, False), (1e-31, False), (1e31, False),
     (np.inf, False), (np.nan, False)],
)  # fmt: skip
def test_products_that_can_be_divided(x: float, normal: bool) -> None:
    for real in (np.float32, np.float64):
        assert bool(ordering.is_normal(real(x))) is normal
        assert bool(cpu.is_normal(real(x))) is normal


def test_a_sum_that_overflowed_comes_back(target: str) -> None:
    """Infinity minus anything is infinity: the patch must not hold."""
    graph = fg.Graph.from_edges([0, 1], [2, 2])
    state = fg.State(
        graph,
        x=fg.vertex_property([3e38, 2e38, 0.0], iterated=True),
        y=fg.vertex_property(0.0, iterated=True),
        big=2.5e38,
    )
    fg.iterate([adding, shrinking], state, change_driven=True, target=target)
    np.testing.assert_allclose(state["y"][2], 2e38 + 3e38 / 8, rtol=1e-5)


# "auto"


def test_auto_keeps_when_few_are_active(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_A_VERTEX", 0)
    state = path_state(40)
    run = fg.iterate(paths, state, target=target)
    assert run.aggregates[:3] == ["recomputed", "kept", "patched"]
    assert set(run.aggregates[2:]) == {"patched"}
    assert run.kernels[0].plan.is_incremental
    np.testing.assert_array_equal(state["dist"], distances(40))


def test_auto_recomputes_when_many_are(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregates are then dropped, and kept again when few vertices are active."""
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_A_VERTEX", 0)
    state = path_state(40)

    def excite(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 5:
            state["step"] = 0.5  # everything is due

    run = fg.iterate(paths, state, target=target, callback=excite)
    assert run.aggregates[3:5] == ["patched", "patched"]
    assert run.aggregates[5] == "recomputed"
    np.testing.assert_array_equal(state["dist"], distances(40, step=0.5))


def test_auto_keeps_nothing_on_small_graphs(target: str) -> None:
    run = fg.iterate(paths, path_state(40), target=target)
    assert set(run.aggregates) == {"recomputed"}
    assert not run.kernels[0].plan.is_incremental
    run = fg.iterate(visits, path_state(), target=target, change_driven=True)
    assert set(run.aggregates) == {"-"}


def test_a_call_keeps_nothing(target: str) -> None:
    state = path_state()
    for value in (True, "auto", False):
        paths(state, target=target, change_driven=value)
    np.testing.assert_array_equal(state["dist"][:4], distances()[:4])


# Every vertex in every superstep


def test_dense_runs_take_the_same_supersteps(target: str) -> None:
    state = path_state()
    run = fg.iterate(paths, state, target=target, change_driven=False)
    assert (run.supersteps, run.converged) == (6, True)
    assert run.active_counts == [1, 1, 1, 1, 1, 0]
    np.testing.assert_array_equal(state["dist"], distances())
    even, odd = paths.on([0, 2, 4]), paths.on([1, 3, 5])
    state = path_state()
    run = fg.iterate([even, odd], state, target=target, change_driven=False)
    assert run.converged
    np.testing.assert_array_equal(state["dist"], distances())


@fg.vertex
def stay(f, v, d):
    d.dist_next[v, f] = d.dist[v, f]
    return d.superstep < 2


@fg.edge
def tally(f, u, v, e, d):
    fg.atomic.add(d.visits, v, 1)
    return False


@pytest.mark.parametrize(
    ("steps", "options", "what"),
    [
        (paths, {"active": [0]}, "every vertex is active in every superstep"),
        (visits, {}, "count_visits writes visits in place"),
        ([paths, fg.foldmap(stay)], {}, "stay reads d.superstep"),
        (fg.edgemap(tally), {}, "tally uses fg.atomic"),
    ],
    ids=["active", "in place", "superstep", "atomic"],
)
def test_dense_runs_that_could_differ_are_refused(
    steps: Any, options: dict[str, Any], what: str
) -> None:
    state = path_state()
    before = state["dist"]
    with pytest.raises(fg.PlanError, match=what) as caught:
        fg.iterate(steps, state, target="cpu", change_driven=False, **options)
    assert caught.value.fix
    np.testing.assert_array_equal(state["dist"], before)
    assert state.superstep == 0


# Properties that change, and aggregates that therefore cannot be kept


@fg.edge
def retouch(f, u, v, e, d):
    d.w_next[e] = d.w[e] * 0.5
    return d.w[e] > 0.1


@fg.gather(into="load", combine="sum")
def weigh(f, u, v, e, d):
    return d.w[e]


@fg.vertex
def keep_load(f, v, d):
    d.y_next[v] = d.load[v]
    return d.load[v] != d.y[v]


@fg.vertex
def drop(f, v, d):
    d.x_next[v] = d.x[v] - 1
    return d.x[v] > 0


@fg.edge
def follow(f, u, v, e, d):
    d.seen[e] = True
    return d.x[v] > 0


weighing = fg.foldmap(weigh, keep_load)


def changing_state() -> fg.State:
    return fg.State(
        line(),
        x=fg.vertex_property(np.arange(6, dtype=np.float32), iterated=True),
        y=fg.vertex_property(0.0, iterated=True),
        w=fg.edge_property(1.0, iterated=True),
        seen=fg.edge_property(False),
    )


def test_other_foldmaps_of_the_run_count(target: str) -> None:
    """Alone, nothing that the gather reads changes. With another foldmap it does."""
    run = fg.iterate(weighing, changing_state(), target=target, change_driven=True)
    assert run.kernels[0].plan.incremental.gathers["load"].is_constant
    assert run.aggregates[0] == "kept"
    steps = [weighing, fg.edgemap(retouch)]
    state = changing_state()
    run = fg.iterate(steps, state, target=target, change_driven=True)
    assert set(run.aggregates) == {"recomputed", "-"}
    assert run.converged
    np.testing.assert_allclose(state["y"][1:], state["w"])


def test_announced_targets_do_not_show_what_changed() -> None:
    """Sources are committed, targets announced: A has no changes of x."""
    steps = [adding, fg.foldmap(drop, follow)]
    state = changing_state()
    plain = changing_state()
    run = fg.iterate(steps, state, target="cpu", change_driven=True)
    fg.iterate(steps, plain, target="cpu")
    assert set(run.aggregates) == {"recomputed", "-"}
    np.testing.assert_array_equal(state["y"], plain["y"])


@fg.gather(into="total", combine="sum")
def add_seen(f, u, v, e, d):
    return d.x[u] + d.x_seen[u]


@fg.gather(into="other", combine="min")
def add_seen_seen(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def use_both(f, v, d):
    d.x_next[v] = 0.5 * d.total[v] + 0.25 * d.other[v]
    return True


def test_names_do_not_clash(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has a property and a function called as ours would be."""
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    state = fg.State(
        graph,
        x=fg.vertex_property([1.0, 2.0, 4.0], iterated=True),
        x_seen=fg.vertex_property([8.0, 16.0, 32.0]),
    )
    watch = Watch(monkeypatch)
    watch.iterate(
        fg.foldmap(add_seen, add_seen_seen, use_both), state, target=target,
        change_driven=True, max_supersteps=3,
    )  # fmt: skip
    x = np.array([1.0, 2.0, 4.0])
    for _ in range(3):
        source = x[[2, 0, 1]]
        x = 0.5 * (source + np.array([32.0, 8.0, 16.0])) + 0.25 * source
    np.testing.assert_allclose(state["x"], x, rtol=1e-6)
