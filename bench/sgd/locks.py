"""Times of locks, barriers and updates on a GPU (Kaleem et al., Figure 9).

Locks that are taken and released a second, on one word and on a word for each thread,
by number of threads; copies; and the constants of the predictions
(`featgraph.fold.schedules.exclusive_costs`): a barrier by number of blocks, the locks
of an edge, and an update with both rows in memory or with one row held. The kernels
take and release locks and meet as generated ones do. No thread waits for a lock: it
tries so many times. Blocks that meet all run. The last line has the constants as the
table has them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bench.record import Recorder
from bench.timing import time_events

DEFAULTS = {"k": [16, 32, 128], "repeat": 5}
#: Threads of a block, and features that a lane loads at once.
BLOCK, PIECE = 128, 4
#: Attempts of one thread at most, and of all together; edges of a long chain.
TRIES, ALL_TRIES, CHAIN = 1 << 14, 1 << 22, 1 << 14
#: Rows of all users and items.
ROWS = 1 << 19
#: Words from a thread's lock to the next: sectors of memory.
APART = 8

#: The kernels for rows of K features; `test_bench_locks` runs them in the emulator.
KERNELS = """
from featgraph.cuda.dialect import cuda, float32, int32, int64, kernel, uint32
from featgraph.device import queue_cuda as queues
from featgraph.device import warp


@kernel
def locks(words, apart, second, tries, taken):
    first, count = int32(cuda.grid(1) * apart), int64(0)
    for _ in range(tries):
        if queues.hold(words, first, int32(first + second), int32(1)):
            count += 1
            queues.release(words, first, int32(first + second))
    cuda.atomic.add(taken, 0, count)


@kernel
def barriers(arrived, times):
    meets = int64(0)
    for _ in range(times):
        meets = queues.meet_at(arrived, meets, True)


@kernel
def updates(x, users, items, times):
    lane = cuda.laneid & {lanes} - 1
    place, groups = cuda.grid(1) // {lanes}, cuda.gridsize(1) // {lanes}
    for _ in range(times):
        u, v = uint32(users[place]), uint32(items[place])
        p = warp.load_row(x, u, uint32(lane * 4), {k}, 4)
        q = warp.load_row(x, v, uint32(lane * 4), {k}, 4)
        terms = p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3]
        miss = float32(0.01) * (float32(1) - warp.group_sum(terms, {lanes}))
        warp.store_row(x, u, uint32(lane * 4), {k}, 4, (
            p[0] + miss * q[0], p[1] + miss * q[1],
            p[2] + miss * q[2], p[3] + miss * q[3]))
        warp.store_row(x, v, uint32(lane * 4), {k}, 4, (
            q[0] + miss * p[0], q[1] + miss * p[1],
            q[2] + miss * p[2], q[3] + miss * p[3]))
        warp.sync()
        place += groups
"""


def text_of(k: int) -> str:
    """Return the kernels for rows of K features, a multiple of 4 and a power of two."""
    return KERNELS.format(k=k, lanes=k // PIECE)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure all of them, and print the constants of the card."""
    from featgraph.cuda import dialect

    dialect.require(gpu=True)
    recorder.use("cuda")
    bench = _Bench(recorder, arguments.repeat)
    _of_copies(bench)
    kernels: dict[str, Any] = {}
    exec(text_of(16), kernels)  # noqa: S102
    card = _of_locks(bench, kernels)
    for k in arguments.k:
        exec(text_of(k), kernels := {})  # noqa: S102
        found = _of_updates(bench, kernels["updates"], k)
        card = card | {name: (*card.get(name, ()), v) for name, v in found.items()}
    card["widths"] = tuple(arguments.k)
    recorder.add("constants", [], card=card)
    print(f'"{recorder.device}": Card(**{card}),')


def _of_copies(bench: _Bench) -> None:
    """Measure copies on the device, which bound kernels that move bytes once."""
    from featgraph.cuda.dialect import cuda

    to, of = (cuda.device_array(1 << 29, np.uint8) for _ in range(2))
    trials = [
        time_events(lambda: to.copy_to_device(of), 1)[0] for _ in range(bench.repeat)
    ]
    rate = 2 * (1 << 29) / min(trials) / 1e6
    bench.recorder.add("copy", trials, gb_per_s=rate)
    print(f"copy: {rate:.4g} GB/s")


class _Bench:
    """Launches kernels, and records times."""

    def __init__(self, recorder: Recorder, repeat: int) -> None:
        from featgraph.cuda.dialect import cuda

        self.recorder, self.repeat, self.to_device = recorder, repeat, cuda.to_device
        self.multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT

    def time(
        self, name: str, kernel: Any, grid: tuple[int, int], arguments: tuple[Any, ...],
        zeros: int = 0, per: int = 1, **fields: Any,
    ) -> float:  # fmt: skip
        """Return the us of each of `per` steps, least of all trials.

        With `zeros`, the first argument is the dtype of an array of as many, anew in
        each trial. Of locks, the steps are those that were taken, which an argument
        more counts.
        """
        trials, count = [], per
        for number in range(self.repeat + 1):
            given = list(arguments)
            if zeros:
                given[0] = self.to_device(np.zeros(zeros, given[0]))
            counts = name.startswith("lock")
            if counts:
                given.append(self.to_device(np.zeros(1, np.int64)))
            ms, _ = time_events(lambda g=given: kernel[grid](*g), 1)
            if number:  # the first one compiles
                trials.append(ms)
                count = int(given[-1].copy_to_host()[0]) if counts else per
        each = min(trials) * 1e3 / max(count, 1)
        blocks, threads = grid
        self.recorder.add(
            name, trials, blocks=blocks, threads=blocks * threads, steps=count,
            us=each, m_per_s=1 / each, **fields,
        )  # fmt: skip
        return each


def _of_locks(bench: _Bench, kernels: dict[str, Any]) -> dict[str, Any]:
    """Measure locks and barriers."""
    wide = bench.multiprocessors
    for grid in ((1, 1), (1, 32), (8, BLOCK), (wide, BLOCK), (8 * wide, BLOCK)):
        threads = grid[0] * grid[1]
        tries = max(min(ALL_TRIES // threads, TRIES), 1)
        for name, apart in (("locks of one word", 0), ("locks of own words", APART)):
            given = np.int32, apart, 0, tries
            bench.time(name, kernels["locks"], grid, given, max(threads * apart, 1))
    given = np.int32, 0, APART, TRIES
    lock = bench.time("locks of an edge", kernels["locks"], (1, 1), given, APART + 1)
    from featgraph.device.queue_cuda import ARRIVED

    few, _, many = (
        bench.time("barrier", kernels["barriers"], (blocks, BLOCK), (np.int64, 1000),
                   ARRIVED + 1, 1000)
        for blocks in (wide, 2 * wide, 4 * wide)
    )  # fmt: skip
    block = max((many - few) / (3 * wide), 0.0)
    return {
        "multiprocessors": wide, "barrier_us": few - block * wide, "block_us": block,
        "lock_us": lock,
    }  # fmt: skip


def _of_updates(bench: _Bench, kernel: Any, k: int) -> dict[str, float]:
    """Measure updates of rows of K features, alone and by all groups of lanes."""
    rng, groups = np.random.default_rng(0), 32 // (k // PIECE)
    draw = rng.random((ROWS, k), np.float32) / np.float32(k**0.5)
    x, full = bench.to_device(draw), 8 * bench.multiprocessors
    shared = max((1 << 24) * 16 // k // (full * BLOCK // 32 * groups), 1)

    def measure(
        name: str, grid: tuple[int, int], times: int, is_held: bool = False
    ) -> tuple[float, float]:
        at_once = grid[0] * grid[1] // 32 * groups
        users = rng.integers(0, ROWS // 2, times * at_once, np.int32)
        items = rng.integers(ROWS // 2, ROWS, times * at_once, np.int32)
        if is_held:  # each group of lanes has an item of its own
            items = np.resize(np.arange(at_once, dtype=np.int32), items.size)
            items += np.int32(ROWS // 2)
        given = x, bench.to_device(users), bench.to_device(items), times
        each = bench.time(name, kernel, grid, given, per=times, k=k)
        rate = at_once * (12 + 16 * k) / each * 1e-3
        print(f"{name}, K = {k}: {rate:.4g} GB/s")
        return each, rate

    return {
        "free_us": measure("update, rows free", (1, 32), CHAIN)[0],
        "held_us": measure("update, one row held", (1, 32), CHAIN, is_held=True)[0],
        "gb_per_s": measure("updates by all", (full, BLOCK), shared)[1],
    }
