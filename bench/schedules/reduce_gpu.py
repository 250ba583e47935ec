"""A reduce over all vertices on the GPU, beside CuPy over the same arrays.

A sum of rows of K numbers, and the largest change between two arrays of such rows, as a
residual is. The device's work is timed, without the host's gaps: see
`device_time`. Each answer is compared with float64 on the host. With ``--blocks``, each
of ours runs with as many blocks, in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder
from bench.schedules.device_time import Stopwatch, timed_supersteps
from featgraph.fold.schedules import mapping as mappings
from featgraph.fold.schedules.mapping import share_features
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {"graph": ["grid2048"], "k": [1, 4, 8, 32, 33, 128], "repeat": 21}
WARM_UP = 3
#: Bound on the norm of the difference over the norm, float32 against float64.
LIMIT = 1e-5


@fg.reduce(into="total", combine="sum")
def total(f, v, d):  # type: ignore[no-untyped-def]
    """Add up feature f."""
    return d.x[v, f]


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of feature f."""
    return abs(d.x[v, f] - d.y[v, f])


REDUCES = {"total": total, "residual": largest_change}
OURS = ("FA", "FA, one feature a lane", "NFA")
#: Peers of each; ``sum(axis=0)`` is slow, so that cuBLAS has a turn as well.
PEERS = {"total": ("CuPy", "CuPy, ones @ x"), "residual": ("CuPy",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="contenders whose name holds this")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[mappings.REDUCE_BLOCKS],
        metavar="COUNT", help="blocks of a reduce, each in turn",
    )  # fmt: skip


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Check and time every contender; record errors, and go on."""
    recorder.require_gpu()
    watch = Stopwatch(choose_device("cuda"))
    for name in arguments.graph:
        named = make_graph(name)
        for k in arguments.k:
            problem = Problem(named, k)
            for into in REDUCES:
                wanted = [(name, count) for name in OURS for count in arguments.blocks]
                wanted += [(name, None) for name in PEERS[into]]
                for contender, blocks in wanted:
                    if arguments.only not in contender:
                        continue
                    given = problem, into, contender, blocks, watch
                    about = {"k": k, "work": into, "blocks": blocks}
                    more = arguments.repeat, recorder
                    recorder.attempt(contender, _time, *given, *more, **about)


@contextmanager
def blocks_of_reduces(count: int | None) -> Iterator[None]:
    """Have reduces that are prepared and run inside take so many blocks."""
    usual = mappings.REDUCE_BLOCKS
    mappings.REDUCE_BLOCKS = count or usual
    try:
        yield
    finally:
        mappings.REDUCE_BLOCKS = usual


class Problem:
    """Two arrays of rows, and the results of both reduces in float64."""

    def __init__(self, named: NamedGraph, k: int) -> None:
        self.named, self.k = named, k
        rng = np.random.default_rng(1)
        self.x, self.y = rng.random((2, named.graph.vertex_count, k), np.float32)
        self.expected = {
            "total": self.x.sum(axis=0, dtype=np.float64),
            "residual": np.abs(self.x - self.y).max(axis=0),
        }
        self.state = fg.State(
            named.graph, x=fg.vertex_property(self.x), y=fg.vertex_property(self.y)
        )

    def call_of(self, into: str, contender: str) -> Callable[[], Any]:
        """Return a function that computes one of them."""
        if contender not in OURS:
            return self._peer(into, contender)
        options: dict[str, Any] = {"feature_parallel": contender != "NFA"}
        if contender == "FA, one feature a lane":
            lanes, copies = share_features(self.k, 1)
            fields = {
                "lanes_per_edge": lanes, "features_per_lane": copies,
                "lanes_per_vertex": lanes, "vector_width": 1,
            }  # fmt: skip
            options["_mapping"] = fields
        # A foldmap keeps prepared supersteps with their grid: so another each time.
        step = fg.foldmap(REDUCES[into])
        superstep = step.prepare(self.state, choose_device("cuda"), options)

        def call() -> Any:
            superstep.run()
            return self.state[into]

        return call

    def _peer(self, into: str, contender: str) -> Callable[[], Any]:
        import cupy

        x, y = cupy.asarray(self.x), cupy.asarray(self.y)
        if contender == "CuPy, ones @ x":
            ones = cupy.ones(x.shape[0], x.dtype)
            return lambda: ones @ x
        if into == "total":
            return lambda: x.sum(axis=0)
        largest = cupy.ReductionKernel(
            "T x, T y", "T z", "abs(x - y)", "max(a, b)", "z = a", "0", "largest_change"
        )
        return lambda: largest(x, y, axis=0)

    def check(self, into: str, found: Any) -> dict[str, Any]:
        """Compare an answer with that of the host."""
        expected = self.expected[into]
        found = np.asarray(found.get() if hasattr(found, "get") else found)
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        return {"ok": error <= LIMIT, "error": error}

    def read_bytes(self, into: str) -> int:
        """Return the bytes that are read, each once."""
        return int(self.x.nbytes) * (1 if into == "total" else 2)


def _time(
    problem: Problem,
    into: str,
    contender: str,
    blocks: int | None,
    watch: Stopwatch,
    repeat: int,
    recorder: Recorder,
) -> None:
    device = choose_device("cuda")
    with blocks_of_reduces(blocks):
        call = problem.call_of(into, contender)
        checks = problem.check(into, call())
        with timed_supersteps(watch, device):
            for _ in range(WARM_UP + repeat):
                watch.resume()
                call()
                watch.lap()
            trials = watch.read()[WARM_UP:]
    recorder.add(
        contender,
        trials,
        k=problem.k,
        work=into,
        blocks=blocks,
        bytes=problem.read_bytes(into),
        checks=checks,
        graph=problem.named.describe(),
    )
