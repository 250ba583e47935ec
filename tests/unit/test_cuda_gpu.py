"""Tests of the runtime that need a GPU: compiled kernels are passed to the driver."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms.bfs import bfs
from featgraph.base.errors import DeviceError
from featgraph.runtime.recording.control import Report
from tests.bank import BY_NAME

pytestmark = pytest.mark.gpu

NAMES = ["label_propagation", "pagerank", "belief_propagation", "least_squares"]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


smallest = fg.foldmap(lowest, adopt)


def make_state(name: str, k: int = 3) -> fg.State:
    program, rng = BY_NAME[name], np.random.default_rng(2)
    graph = fg.Graph.from_edges(
        *rng.integers(0, 400, (2, 3000)),
        vertex_count=500,
        directed=not program.undirected,
    )
    return fg.State(graph, **program.make_state(graph, k, rng))


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_is_prepared_after_one_launch(name: str) -> None:
    """Otherwise all launches would silently take the dialect's slow path."""
    from featgraph.runtime.devices.cuda_device import cuda_device

    state, foldmap = make_state(name), BY_NAME[name].foldmaps[0]
    foldmap(state, target="cuda")
    foldmap(state, target="cuda")
    kernel = foldmap.kernel(state, "cuda", {})
    launches = cuda_device().launches
    for entry in kernel.entries:
        if entry.role != "hubs":  # there are none
            assert launches.is_prepared(kernel.function(entry)), entry.name


def test_overwritten_values_leave_their_memory_to_others_and_hold_none() -> None:
    """Arguments that stay packed keep no array alive."""
    foldmap = BY_NAME["label_propagation"].foldmaps[0]
    state = make_state("label_propagation")
    foldmap(state, target="cuda")
    foldmap(state, target="cuda")
    held = weakref.ref(state.residency.current["label"])  # type: ignore[union-attr]
    before = state["label"]
    state["label"] = before + 1
    gc.collect()
    assert "label" not in state.residency.current  # type: ignore[union-attr]
    assert state.residency.property("label") is held()  # type: ignore[union-attr]
    np.testing.assert_array_equal(state["label"], before + 1)
    del state
    gc.collect()
    assert held() is None


def test_another_thread_may_launch() -> None:
    state, meant = make_state("label_propagation"), make_state("label_propagation")
    foldmap = BY_NAME["label_propagation"].foldmaps[0]
    foldmap(state, target="cuda")
    foldmap(meant, target="cpu")
    errors: list[BaseException] = []

    def step() -> None:
        try:
            foldmap(state, target="cuda")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    foldmap(meant, target="cpu")
    assert not errors
    np.testing.assert_allclose(state["label"], meant["label"], atol=1e-5)


def test_the_driver_s_errors_are_named() -> None:
    from featgraph.runtime.devices import cuda_loops
    from featgraph.runtime.devices.cuda_device import cuda_device

    device = cuda_device()
    words = device.upload(np.ones(4, np.uint32))
    assert device.sets.count(words) == 4
    arguments = (words, device.own.total)
    device.launches(
        cuda_loops.count_bits, 1, 256, arguments
    )  # the dialect's, to compile
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        device.launches(cuda_loops.count_bits, 0, 256, arguments)  # no blocks
    assert device.sets.count(words) == 4


def test_a_long_search_is_left_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the device at most once in 16 supersteps, and finds the same."""
    from featgraph.runtime.recording.control import DeviceLoop

    count, looped, read = 4000, [], DeviceLoop.read
    graph = fg.Graph.from_edges(range(count - 1), range(1, count))

    def noting(self: DeviceLoop) -> Report:
        looped.append(report := read(self))
        return report

    monkeypatch.setattr(DeviceLoop, "read", noting)
    for _ in range(2):
        looped.clear()
        found = bfs(graph, 0, target="cuda")
        assert found.levels.tolist() == list(range(count))
        assert found.run.active_counts == [*[1] * (count - 1), 0]
        assert "replay" not in found.run.refused
    by_loops = sum(len(report.counts) for report in looped)
    assert count - by_loops < 128
    assert 16 * (len(looped) + count - by_loops) < count
    assert 0 < sum(looped[0].seconds[1:]) < 0.1


@pytest.mark.usefixtures("interruptible")
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_an_interrupt_is_heard_while_the_device_loops() -> None:
    """Between two supersteps; what was due stays due, and nothing else is."""
    count = 1 << 16
    graph = fg.Graph.from_edges(range(count - 1), range(1, count))
    first = np.arange(count, dtype=np.int32)
    state = fg.State(graph, label=fg.vertex_property(first, iterated=True))
    fg.iterate(smallest, state, active=[0], target="cuda", max_supersteps=200)
    state["label"], before = first, state.superstep
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        fg.iterate(smallest, state, active=[0], target="cuda", max_supersteps=count)
    timer.join()
    reached = state.superstep - before + 1
    assert 1 < reached < count
    np.testing.assert_array_equal(state["label"], np.where(first < reached, 0, first))
    done = fg.iterate(smallest, state, target="cuda", max_supersteps=50)
    assert done.active_counts == [1] * 50
