"""Times of exchanges between ranks that are processes of one host, by engine.

Each rank hands every other so many bytes: by `all_to_allv`, and by `hand_bytes`, which
has them written and read where they pass. A trial is the mean of many exchanges, one
right behind the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.distributed.streaming import Sender, run_on_ranks, run_rank, threads_each
from bench.record import Recorder
from bench.timing import time_calls

DEFAULTS = {"repeat": 10, "ranks": 2, "engines": ["shared", "gloo"]}
SIZES = (0, 8, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
#: Exchanges of a trial: fewer of more bytes.
LEAST, MOST, BYTES_OF_TRIAL = 4, 200, 1 << 26


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many")
    parser.add_argument(
        "--engines", type=lambda text: text.split(","), help="which, by commas"
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time exchanges of all sizes on each engine."""
    for name in arguments.engines:
        given = {"engine": name, "repeat": arguments.repeat}
        found = run_on_ranks(__name__, arguments.ranks, given, threads_each(1))
        for cell in found["cells"]:
            recorder.add(
                name,
                cell["trials_ms"],
                call=cell["call"],
                message_bytes=cell["bytes"],
                ranks=arguments.ranks,
                checks={"ok": cell["ok"]},
            )


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Exchange; the first rank writes the times."""
    import featgraph as fg

    engine = fg.distributed.init(engine=given["engine"])
    found = []
    for nbytes in SIZES:
        for call, exchange in calls(engine, nbytes).items():
            is_right = exchange()
            count = min(max(BYTES_OF_TRIAL // max(nbytes, 1), LEAST), MOST)

            def many(exchange: Any = exchange, count: int = count) -> None:
                for _ in range(count):
                    exchange()

            trials = time_calls(many, given["repeat"], engine=engine, each=count)
            cell = {"call": call, "bytes": nbytes, "trials_ms": trials}
            found.append(cell | {"ok": bool(is_right)})
    if engine.rank == 0:
        send(cells=found)


def calls(engine: Any, nbytes: int) -> dict[str, Callable[[], bool]]:
    """Return exchanges of so many bytes; they return whether these have arrived."""
    rng = np.random.default_rng(engine.rank)
    message = rng.integers(0, 256, nbytes).astype(np.uint8)
    landed = np.empty(nbytes, np.uint8)
    before = (engine.rank - 1) % engine.size
    expected = np.random.default_rng(before).integers(0, 256, nbytes).astype(np.uint8)
    messages = [message] * engine.size
    messages[engine.rank] = message[:0]
    sizes = [one.size for one in messages]

    def write(rank: int, out: Any) -> None:
        out[:] = messages[rank]

    def read(rank: int, data: Any) -> None:
        if rank == before:
            landed[:] = data

    def by_arrays() -> bool:
        return np.array_equal(engine.all_to_allv(messages)[before], expected)

    def in_place() -> bool:
        engine.hand_bytes(sizes, write, read)
        return True

    def untested() -> bool:
        engine.all_to_allv(messages)
        return True

    in_place()
    assert np.array_equal(landed, expected)
    assert by_arrays()
    return {"all_to_allv": untested, "hand_bytes": in_place}


if __name__ == "__main__":
    run_rank(be_a_rank)
