"""Supersteps that commit in place end where those with two buffers do (0022)."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.algorithms.als import cholesky_half
from featgraph.distributed import run_ranks
from featgraph.runtime.devices.cuda_device import CudaDevice
from featgraph.runtime.devices.protocol import BoundEntry
from featgraph.runtime.loops import foldmap_run, replay
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from tests.simt.gpu import Gpu, emulated_gpu

USERS, ITEMS, K = 23, 14, 4


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)  # lanes take their time
    with emulated_gpu() as made:
        yield made


@fg.gather(into="mean", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[u, f] * d.weight[e]


@fg.vertex
def blend(f, v, d):  # type: ignore[no-untyped-def]
    new = d.base[v, f] + 0.5 * d.share[v, f] + d.mean[v, f]
    d.share_next[v, f] = new
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    return moved


@fg.vertex
def blend_at_once(f, v, d):  # type: ignore[no-untyped-def]
    d.share_next[v, f] = d.base[v, f] + d.mean[v, f]
    moved = fg.any_feature(abs(d.share_next[v, f] - d.share[v, f]) > 1e-3)
    return moved


@fg.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.base[u, f]


@fg.vertex
def follow(f, v, d):  # type: ignore[no-untyped-def]
    new = 0.5 * d.share[v, f] + d.heard[v, f]
    d.share_next[v, f] = new
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    return moved


@fg.gather(into="heard", combine="sum")
def hear_of_friend(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[d.friend[v], f] * d.weight[e]


@fg.vertex
def follow_friend(f, v, d):  # type: ignore[no-untyped-def]
    new = 0.5 * d.share[d.friend[v], f] + d.heard[v, f]
    d.share_next[v, f] = new
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    return moved


@fg.vertex
def blend_and_count(f, v, d):  # type: ignore[no-untyped-def]
    new = d.base[v, f] + d.mean[v, f]
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    d.turns_next[v] = d.turns[v] + 1
    d.share_next[v, f] = new + 0.001 * d.turns[v]
    return moved


@fg.vertex
def blend_and_turn(f, v, d):  # type: ignore[no-untyped-def]
    new = d.base[v, f] + d.mean[v, f]
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    d.share_next[v, f] = new + 0.1 * d.share[v, (f + 1) % 3]
    return moved


@fg.vertex
def blend_with_next(f, v, d):  # type: ignore[no-untyped-def]
    beside = d.share[v, (f + 1) % 3]
    new = d.base[v, f] + d.mean[v, f] + 0.1 * beside
    d.share_next[v, f] = new
    moved = fg.any_feature(abs(new - d.share[v, f]) > 1e-3)
    return moved


@fg.vertex
def blend_once(f, v, d):  # type: ignore[no-untyped-def]
    total = fg.feature_sum(d.mean[v, f])
    first = False
    if f == 0 and d.seen[v] == 0:
        d.seen[v] = 1
        first = True
    d.share_next[v, f] = d.base[v, f] + 0.01 * total
    return fg.any_feature(first)


both, early, alone = (
    fg.foldmap(weigh, blend),
    fg.foldmap(weigh, blend_at_once),
    fg.foldmap(hear, follow),
)
counted, turned, mixed, once = (
    fg.foldmap(weigh, blend_and_count),
    fg.foldmap(weigh, blend_and_turn),
    fg.foldmap(weigh, blend_with_next),
    fg.foldmap(weigh, blend_once),
)
friends = fg.foldmap(hear_of_friend, follow), fg.foldmap(hear, follow_friend)


def make_state(*, joined: bool = False, k: int = K) -> fg.State:
    """Return shares on a bipartite graph; `joined`, with an edge between two users."""
    rng = np.random.default_rng(3)
    source, target = rng.integers(0, USERS, 60), rng.integers(USERS, USERS + ITEMS, 60)
    if joined:
        source, target = np.append(source, 0), np.append(target, 1)
    count = USERS + ITEMS
    graph = fg.Graph.from_edges(source, target, vertex_count=count, directed=False)
    base = rng.random((count, k)).astype(np.float32)
    return fg.State(
        graph,
        share=fg.vertex_property(np.zeros_like(base), iterated=True),
        base=fg.vertex_property(base),
        friend=fg.vertex_property(rng.permutation(count).astype(np.int32)),
        weight=fg.edge_property(np.full(graph.edge_count, 0.02, np.float32)),
        turns=fg.vertex_property(np.zeros(count, np.int32), iterated=True),
        seen=fg.vertex_property(np.zeros(count, np.int32)),
    )


def sides(foldmap: fg.FoldMap) -> list[fg.FoldMap]:
    return [foldmap.on(range(USERS)), foldmap.on(range(USERS, USERS + ITEMS))]


def run(steps: Any, state: fg.State, **options: Any) -> fg.Run:
    return fg.iterate(steps, state, target="cuda", **{"max_supersteps": 100} | options)


def has_next(state: fg.State) -> bool:
    """Whether there is a second buffer."""
    held: Any = state.residency
    return bool(held.next)


@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize("change_driven", ["auto", False])
def test_sides_of_a_bipartite_graph_need_one_buffer(
    feature_parallel: bool,
    change_driven: Any,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"feature_parallel": feature_parallel, "change_driven": change_driven}
    state, other = make_state(), make_state()
    done = run(sides(both), state, **options)
    assert done.converged
    assert not has_next(state)
    monkeypatch.setattr(foldmap_run, "_can_commit_in_place", lambda step: False)
    meant = run(sides(both), other, **options)
    assert has_next(other)
    assert done.active_counts == meant.active_counts
    np.testing.assert_array_equal(state["share"], other["share"])


def test_behind_them_two_buffers_are_right_again(gpu: Gpu) -> None:
    """Entries of the next buffer are stale wherever the current one was written."""
    state, other = make_state(), make_state()
    for target, one in (("cuda", state), ("cpu", other)):
        for steps, active in ((both, [1, 2]), (sides(both), None), (both, [5, 30])):
            with pytest.warns(fg.ConvergenceWarning):
                fg.iterate(steps, one, active=active, target=target, max_supersteps=2)
    assert has_next(state)
    np.testing.assert_allclose(state["share"], other["share"], rtol=1e-5)


def test_what_no_neighbor_reads_needs_one_buffer_on_any_graph(gpu: Gpu) -> None:
    state = make_state(joined=True)
    run(alone, state)
    assert not has_next(state)
    reference = make_state(joined=True)
    fg.iterate(alone, reference, target="cpu", max_supersteps=100)
    np.testing.assert_allclose(state["share"], reference["share"], rtol=1e-5)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (both, {}),  # neighbors see each other
        (sides(early), {}),  # stored before the verdict
        (sides(both), {"change_driven": True}),  # old values are asked for
        ([*sides(both), both], {}),  # others change the buffers
        (sides(both), {"joined": True}),  # two users see each other
        (sides(friends[0]), {}),  # anybody may see anybody
        (sides(friends[1]), {}),
        (sides(counted), {}),  # what is stored is read behind that
        (sides(turned), {}),  # by another lane, or copy
        (sides(mixed), {}),  # read before, but of another feature
    ],
    ids=[
        "neighbors",
        "early",
        "kept",
        "others",
        "joined",
        "friends",
        "friend",
        "counted",
        "turned",
        "mixed",
    ],
)
def test_others_need_two(steps: Any, options: dict[str, Any], gpu: Gpu) -> None:
    state = make_state(joined=options.pop("joined", False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        run(steps, state, max_supersteps=9, **options)
    assert has_next(state)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.parametrize("foldmap", [counted, turned, mixed, once])
def test_lanes_and_copies_commit_what_was_read_before(
    foldmap: fg.FoldMap, k: int, gpu: Gpu
) -> None:
    for feature_parallel in (True, False):
        state, meant = make_state(k=k), make_state(k=k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            for target, one in (("cuda", state), ("cpu", meant)):
                fg.iterate(
                    sides(foldmap), one, target=target, max_supersteps=6,
                    feature_parallel=feature_parallel,
                )  # fmt: skip
        np.testing.assert_allclose(state["share"], meant["share"], rtol=1e-4)


def test_a_launch_that_fails_leaves_no_buffer_fresh(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two buffers, one, a failure, and two again: nothing old comes back."""
    state, launch = make_state(), CudaDevice.launch
    with pytest.warns(fg.ConvergenceWarning):
        run(both, state, max_supersteps=2)

    def failing(self: CudaDevice, bound: BoundEntry, given: dict[str, Any]) -> None:
        launch(self, bound, given)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CudaDevice, "launch", failing)
        with pytest.raises(MemoryError):
            run(sides(both), state)
    before = state["share"]
    with pytest.warns(fg.ConvergenceWarning):
        run(both.on([1]), state, active=[1], max_supersteps=1)
    others = np.arange(USERS + ITEMS) != 1
    np.testing.assert_array_equal(state["share"][others], before[others])


@pytest.mark.usefixtures("interruptible")
def test_what_was_left_out_is_kept_behind_an_interrupt(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on behind an interrupt ends where it would have without one."""
    state, meant, launch = make_state(), make_state(), gpu.launch
    users = fg.foldmap(weigh, blend)
    begun: list[int] = []

    def interrupting(handle: Any, *arguments: Any) -> None:
        launch(handle, *arguments)
        if "vertex_phase" in gpu.by_driver[-1]:
            begun.append(state.superstep)
            if len(begun) == 3:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "launch", interrupting)
        with pytest.raises(KeyboardInterrupt):
            run(sides(users), state)
    assert run(sides(users), state).converged
    run(sides(users), meant)
    np.testing.assert_allclose(state["share"], meant["share"], rtol=1e-3)


def test_a_single_superstep_does_not_look_at_all_edges(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.FoldMap, "is_independent", None)  # not to be called
    with pytest.warns(fg.ConvergenceWarning):
        run(both.on(range(USERS)), make_state(), max_supersteps=1)


def test_one_side_alone_may_be_independent(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge between users is none between items: but they share the buffers."""
    results: list[tuple[FoldmapRun, bool]] = []
    can_be = foldmap_run._can_commit_in_place

    def noted(step: FoldmapRun) -> bool:
        results.append((step, can_be(step)))
        return results[-1][1]

    monkeypatch.setattr(foldmap_run, "_can_commit_in_place", noted)
    run(sides(both), make_state(joined=True))
    assert [found for _, found in results] == [False, True]
    assert not any(step.in_place for step, _ in results)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_ranks_commit_alike(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of them has an edge within the set."""
    results: list[bool] = []
    can_be = foldmap_run._can_commit_in_place

    def noted(step: FoldmapRun) -> bool:
        results.append(can_be(step))
        return results[-1]

    monkeypatch.setattr(foldmap_run, "_can_commit_in_place", noted)
    ends = {True: ([0, 40], [33, 41]), False: ([0, 40], [33, 0])}
    for is_joined, (sources, targets) in ends.items():
        whole = fg.Graph.from_edges(sources, targets, vertex_count=64)

        def on_a_rank(_: Any, whole: fg.Graph = whole) -> None:
            graph = fg.distribute(whole, cuts=[0, 32, 64])
            state = fg.State(
                graph,
                share=fg.vertex_property(1.0, shape=(3,), iterated=True),
                base=fg.vertex_property(0.5, shape=(3,)),
                weight=fg.edge_property(np.full(2, 0.1)),
            )
            run(both.on([33, 40, 41]), state, max_supersteps=2)

        run_ranks(2, on_a_rank)
        assert results == [not is_joined] * 2
        results.clear()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_waits_until_a_superstep_is_announced(
    at: int, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, meant, launch = make_state(), make_state(), gpu.launch
    begun: list[int] = []

    def interrupting(handle: Any, *arguments: Any) -> None:
        launch(handle, *arguments)
        if "vertex_phase" in gpu.by_driver[-1]:
            begun.append(state.superstep)
            if len(begun) == at:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "launch", interrupting)
        with pytest.raises(KeyboardInterrupt):
            run(sides(both), state, change_driven=False)
    assert not has_next(state)
    assert state.superstep == begun[at - 1] + 1
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(
            sides(both), meant, target="cpu", max_supersteps=state.superstep,
            change_driven=False,
        )  # fmt: skip
    np.testing.assert_allclose(state["share"], meant["share"], rtol=1e-5)


@pytest.mark.parametrize("feature_parallel", [True, False])
def test_least_squares_can_be_in_place(feature_parallel: bool) -> None:
    kernel = cholesky_half.fold(k=K, target="cuda", feature_parallel=feature_parallel)
    assert kernel.kernel_source.waits
