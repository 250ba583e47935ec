"""Times of locks, barriers and updates on a GPU (Kaleem et al., Figure 9).

Locks that are taken and released a second, on one word and on a word for each thread,
by number of threads; and the constants of the predictions
(`featgraph.fold.schedules.exclusive_costs`): a barrier by number of blocks, the locks
of an edge, and an update with both rows in memory or with one row held. The kernels
take and release locks and meet as generated ones do. No thread waits for a lock: it
tries so many times. Blocks that meet all run. The last line has the constants as the
table has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.record import Recorder
from bench.timing import time_events
from featgraph.device.queue_cuda import ARRIVED

DEFAULTS = {"k": [16, 32, 128], "repeat": 5}
#: Threads of a block, and features that a lane loads at once.
BLOCK, PIECE = 128, 4
#: Attempts of one thread at most, and of all together; edges of a long chain.
TRIES, ALL_TRIES, CHAIN = 1 << 14, 1 << 22, 1 << 14
#: Meetings of all blocks; rows of all users and items.
MEETS, ROWS = 1000, 1 << 19
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
        if queues.hold(words, first, int32(first + second)):
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


def kernels_of(k: int) -> dict[str, Any]:
    """Return the kernels by name."""
    exec(text_of(k), made := {})  # noqa: S102
    return made


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure all of them, and print the constants of the card."""
    from featgraph.cuda.dialect import cuda

    recorder.require_gpu()
    measure = partial(_measure, recorder, arguments.repeat)
    wide = cuda.get_current_device().MULTIPROCESSOR_COUNT
    card = _of_locks(measure, wide) | {"widths": tuple(arguments.k)}
    found = [_of_updates(measure, wide, k) for k in arguments.k]
    card |= {name: tuple(own[name] for own in found) for name in found[0]}
    recorder.add("constants", [], card=card)
    print(f'"{recorder.device}": Card(**{card}),')


def _measure(
    recorder: Recorder, repeat: int, name: str, kernel: Any, grid: tuple[int, int],
    given: tuple[Any, ...], steps: int = 0, **fields: Any,
) -> float:  # fmt: skip
    """Record a kernel, and return the us of each of its steps, least of all trials.

    Arrays are copied to the GPU anew in each trial. Without `steps`, the last of them
    has how many there were.
    """
    from featgraph.cuda.dialect import cuda

    trials = []
    for _ in range(repeat + 1):  # the first one compiles
        own = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in given]
        trials.append(time_events(lambda own=own: kernel[grid](*own), 1)[0])
    steps = steps or int(own[-1].copy_to_host()[0])
    each, (blocks, threads) = min(trials[1:]) * 1e3 / max(steps, 1), grid
    recorder.add(
        name, trials[1:], blocks=blocks, threads=blocks * threads, steps=steps,
        us=each, m_per_s=1 / each, **fields,
    )  # fmt: skip
    return each


def _of_locks(measure: Callable[..., float], wide: int) -> dict[str, Any]:
    """Measure locks and barriers."""
    kernels, taken = kernels_of(16), np.zeros(1, np.int64)
    for grid in ((1, 1), (1, 32), (8, BLOCK), (wide, BLOCK), (8 * wide, BLOCK)):
        threads = grid[0] * grid[1]
        tries = max(min(ALL_TRIES // threads, TRIES), 1)
        for name, apart in (("locks of one word", 0), ("locks of own words", APART)):
            words = np.zeros(max(threads * apart, 1), np.int32)
            measure(name, kernels["locks"], grid, (words, apart, 0, tries, taken))
    given = np.zeros(APART + 1, np.int32), 0, APART, TRIES, taken
    lock = measure("locks of an edge", kernels["locks"], (1, 1), given)
    given = np.zeros(ARRIVED + 1, np.int64), MEETS
    few, _, many = (
        measure("barrier", kernels["barriers"], (blocks * wide, BLOCK), given, MEETS)
        for blocks in (1, 2, 4)
    )
    block = max((many - few) / (3 * wide), 0.0)
    return {
        "multiprocessors": wide, "barrier_us": few - block * wide, "block_us": block,
        "lock_us": lock,
    }  # fmt: skip


def _of_updates(measure: Callable[..., float], wide: int, k: int) -> dict[str, float]:
    """Measure updates of rows of K features, alone and by all groups of lanes."""
    rng, half, groups = np.random.default_rng(0), ROWS // 2, 32 * PIECE // k
    x = rng.random((ROWS, k), np.float32) / np.float32(k**0.5)
    kernels, found, workers = kernels_of(k), {}, 8 * wide * BLOCK // 32 * groups
    count = max((1 << 24) * 16 // k // workers, 1)
    for field, name, grid, steps in (
        ("gb_per_s", "updates by all", (8 * wide, BLOCK), count),
        ("free_us", "update, rows free", (1, 32), CHAIN),
        ("held_us", "update, one row held", (1, 32), CHAIN),
    ):
        at_once = grid[0] * grid[1] // 32 * groups
        users = rng.integers(0, half, steps * at_once, np.int32)
        items = rng.integers(0, half, users.size, np.int32)
        if field == "held_us":  # each group of lanes has an item of its own
            items = np.resize(np.arange(at_once, dtype=np.int32), users.size)
        given = x, users, items + np.int32(half), steps
        found[field] = measure(name, kernels["updates"], grid, given, steps, k=k)
    found["gb_per_s"] = workers * (12 + 16 * k) / found["gb_per_s"] * 1e-3
    return found
