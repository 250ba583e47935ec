"""The kernels by which the constants of a GPU are measured compute what they time."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sgd import counters
from bench.sgd.locks import APART, kernels_of, text_of
from bench.sgd.sweeps import state_of
from featgraph.cuda import dialect
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from tests.programs.exclusive import graph_of
from tests.simt.emulator import Emulator
from tests.simt.gpu import emulated_gpu


@pytest.mark.parametrize(("apart", "second"), [(0, 0), (APART, 0), (0, APART)])
def test_locks_are_counted_and_released(apart: int, second: int) -> None:
    words, taken = np.zeros(64 * APART + second, np.int32), np.zeros(1, np.int64)
    given = words, apart, second, 3, taken
    Emulator().launch(text_of(16), "locks", 2, 32, given)
    assert not words.any()
    assert taken[0] == 192 if apart else 3 <= taken[0] <= 192


def test_blocks_meet() -> None:
    arrived = np.zeros(8, np.int64)
    Emulator().launch(text_of(16), "barriers", 1, 64, (arrived, 5))
    assert not arrived.any()  # one block waits for none


@pytest.mark.parametrize("k", [16, 32, 128])
@pytest.mark.parametrize("is_held", [False, True])
def test_updates(k: int, is_held: bool) -> None:
    groups = 128 // k
    rng, times = np.random.default_rng(k), 3
    x = rng.random((80, k), np.float32) / np.float32(k**0.5)
    users = rng.permutation(40)[: times * groups].astype(np.int32)
    items = 40 + rng.permutation(40)[: times * groups].astype(np.int32)
    if is_held:
        items = np.resize(40 + np.arange(groups, dtype=np.int32), items.size)
    wanted = x.astype(np.float64)
    for u, v in zip(users, items, strict=True):
        p, q = wanted[u].copy(), wanted[v].copy()
        miss = 0.01 * (1 - p @ q)
        wanted[u], wanted[v] = p + miss * q, q + miss * p
    Emulator().launch(text_of(k), "updates", 1, 32, (x, users, items, times))
    np.testing.assert_allclose(x, wanted, rtol=1e-5)
    assert abs(x - wanted.astype(np.float32)).max() < 1e-6


@pytest.mark.parametrize("k", [16, 128])
def test_kernels_compile(k: int) -> None:
    pytest.importorskip("numba.cuda")
    from numba import types

    words, ids = types.int32[::1], types.int32[::1]
    number, counts = types.int64, types.int64[::1]
    texts = {
        "locks": (words, number, number, number, counts),
        "barriers": (counts, number),
        "updates": (types.float32[:, ::1], ids, ids, number),
    }
    made = kernels_of(k)
    ptx = {n: dialect.compile_ptx(made[n], t, (9, 0)) for n, t in texts.items()}
    assert "cas.b32" in ptx["locks"]
    assert "membar" in ptx["locks"] or "fence" in ptx["locks"]
    assert "ld.global.v4.f32" in ptx["updates"]
    assert ".local" not in "".join(ptx.values())


@pytest.mark.parametrize("schedule", counters.LOCKED)
def test_attempts_to_lock_are_counted(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExclusiveSchedule, "resident", 1)
    graph, more = graph_of("sides", 9, 24, 0), 8
    state = state_of(counters.with_counters(graph, more), 4)
    with emulated_gpu() as gpu:
        queues = gpu.emulator.load("from featgraph.device import queue_cuda").queue_cuda
        assert counters.attempts(state, more, schedule) == 0
        made = gpu.emulator.load(counters.HOLD.format(last=more - 1))
        monkeypatch.setattr(queues, "hold", made.hold)
        count = counters.attempts(state, more, schedule)
    # Each edge is tried until it has its locks, and hubs make some wait.
    assert 24 < count < 24 * 24
