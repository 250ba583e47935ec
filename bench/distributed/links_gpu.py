"""Links between two GPUs of a host: stores into windows, flags, and NCCL.

*Flags*: a number is stored at the other rank, and the other's is waited for, by two
kernels; launched one by one, and twenty times in a graph. *Rows*: kernels store those
that have changed, and read those received; in each trial both GPUs do so at once.
*NCCL*: an array is sent each way, with the time of the host. Two processes, a GPU
each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import featgraph as fg
from bench.distributed.streaming import Sender, run_on_ranks, run_rank
from bench.record import Recorder
from bench.timing import time_calls, wait_for_gpu

DEFAULTS = {"repeat": 10}
TARGET = "cuda"
#: Longest that both processes may take.
LIMIT_S = 80.0
#: Rows of a link, entries of a row, and the share that changes.
ROWS = (
    (1 << 10, 1, 1.0), (1 << 16, 1, 1.0), (1 << 20, 1, 1.0), (1 << 20, 1, 0.03),
    (1 << 23, 1, 1.0), (1 << 18, 4, 1.0), (1 << 18, 32, 1.0), (1 << 18, 32, 0.03),
)  # fmt: skip
#: Bytes that NCCL sends.
SIZES = (8, 1 << 10, 1 << 20, 1 << 25)
#: Exchanges of a trial of flags, and of a graph.
MANY, TOGETHER = 200, 20

Cell = dict[str, Any]


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Have two processes measure, and record the times of the first."""
    recorder.use("cuda")
    given = {"repeat": arguments.repeat, "target": TARGET}
    found = run_on_ranks("bench.distributed.links_gpu", 2, given, {}, LIMIT_S)
    for cell in found["cells"]:
        recorder.add(cell.pop("contender"), cell.pop("trials_ms"), **cell)


class Rank:
    """One of the two processes."""

    def __init__(self, engine: Any, repeat: int) -> None:
        from featgraph.runtime.devices.choose import choose_device

        self.engine, self.repeat = engine, repeat
        self.device: Any = choose_device(TARGET)
        self.peer = 1 - engine.rank
        self.cells: list[Cell] = []

    def time(
        self, contender: str, call: Callable[[], Any], each: int = 1, **fields: Any
    ) -> None:
        """Time a call that both ranks make at once, in ms, warm; by the host."""
        how: dict[str, Any] = {"target": TARGET, "engine": self.engine, "warm_up": 3}
        trials = time_calls(call, self.repeat, each=each, **how)
        self.cells.append({"contender": contender, "trials_ms": trials, **fields})


def measure_flags(rank: Rank) -> None:
    """Time exchanges of one number through windows."""
    from featgraph.ranks.exchange.window_channel import Channel, WindowNumbers
    from featgraph.runtime.recording.cuda_record import Recording

    device, numbers = rank.device, WindowNumbers(rank.device)
    none = [np.empty(0, np.int32)] * rank.engine.size
    channel = Channel(none, none, rank.engine, device, "numbers", numbers)
    array = device.upload(np.array([rank.engine.rank + 5]))

    def combine(operator: str) -> None:
        numbers.add(array, operator)
        channel.take(channel.post([]))

    combine("sum")
    ok = int(device.download(array)[0]) == 11

    def swap(count: int) -> None:
        for _ in range(count):
            combine("max")

    rank.time("flags", lambda: swap(MANY), each=MANY, checks={"ok": ok})
    operations = device.driver.operations_of(lambda: swap(TOGETHER))
    graph = Recording(device.driver._driver, operations, beside=False)

    def launch() -> None:
        for _ in range(MANY // TOGETHER):
            graph.launch()

    rank.time("flags, in a graph", launch, each=MANY)


def measure_rows(rank: Rank, rows: Sequence[tuple[int, int, float]] = ROWS) -> None:
    """Time stores of kernels, and their reads behind them, by events of the GPU.

    A rank stores at the next one, and the last one at the first.
    """
    from featgraph.cuda.dialect import cuda
    from featgraph.ranks.exchange.window_channel import Channel, Part

    device, ranks = rank.device, np.arange(rank.engine.size)
    ahead, behind = ((rank.engine.rank + step) % ranks.size for step in (1, -1))
    for count, k, share in rows:
        sent = [np.arange(count * (r == ahead)) for r in ranks]
        taken = [np.arange(count, count + count * (r == behind)) for r in ranks]
        channel = Channel(sent, taken, rank.engine, device, "rows")
        rng = np.random.default_rng(0)  # both have the same rows
        data = rng.random((2 * count, k)).astype(np.float32)
        is_changed = rng.random(2 * count) < share
        values = device.rows.held(device.rows.upload(data), data.shape)
        words = np.packbits(is_changed, bitorder="little").view(np.uint32)
        changed = device.sets.upload(words)
        trials = []
        for _ in range(rank.repeat + 3):
            wait_for_gpu(TARGET)
            rank.engine.barrier()
            events = [cuda.event() for _ in range(3)]
            events[0].record()
            posted = channel.post([Part(changed, [values])])
            events[1].record()
            channel.take(posted)
            events[2].record()
            events[2].synchronize()
            trials.append(tuple(a.elapsed_time(b) for a, b in pairwise(events)))
        back = device.rows.download(values.array, data.shape)
        which = np.flatnonzero(is_changed[:count])
        data[count + which] = data[which]
        fields = {"rows": count, "k": k, "share": share, "nbytes": 4 * k * which.size}
        checks = {"ok": bool((back == data).all())}
        for name, times in zip(
            ("post", "take"), zip(*trials[3:], strict=True), strict=True
        ):
            cell = {"contender": name, "trials_ms": list(times), "checks": checks}
            rank.cells.append(cell | fields)


def measure_nccl(rank: Rank) -> None:
    """Time arrays that NCCL hands over."""
    from featgraph.cuda.driver import uuid_of_current

    engine, device = rank.engine, rank.device

    def make(size: int) -> Any:
        return device.empty((size,), "uint8")

    if not engine.reach_gpus(uuid_of_current(), make):
        return
    for size in SIZES:
        array = device.empty((size,), "uint8")
        device.fill(array, 7 + engine.rank)
        arrays = [array if r == rank.peer else None for r in range(2)]
        sizes = [size if r == rank.peer else 0 for r in range(2)]
        came = engine.hand_over(arrays, sizes, about="an array")[rank.peer]
        ok = bool((came.copy_to_host() == 7 + rank.peer).all())
        call = lambda a=arrays, s=sizes: engine.hand_over(a, s)  # noqa: E731
        rank.time("NCCL", call, nbytes=size, checks={"ok": ok})


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Measure on this rank; the first one writes the times."""
    # NCCL is reached through Gloo.
    engine = fg.distributed.init(timeout=LIMIT_S / 4, engine="gloo")
    rank = Rank(engine, given["repeat"])
    for measure in (measure_flags, measure_rows, measure_nccl):
        measure(rank)
    if rank.engine.rank == 0:
        send(cells=rank.cells)


if __name__ == "__main__":
    run_rank(be_a_rank)
