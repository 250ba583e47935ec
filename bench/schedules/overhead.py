"""Times of launches and supersteps with next to nothing to do.

On a graph of 64 vertices: a superstep of label propagation, a call of its foldmap, a
superstep within `fg.iterate`, and the parts that these are made of. "All active"
commits every vertex in every superstep; "half active" never commits the clamped half,
so that sets are kept and expanded. Parts are timed in batches of back-to-back calls,
which end with a wait for the device.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import featgraph as fg
from bench.programs import Problem, problems, step
from bench.record import Recorder, gpu_name
from bench.timing import time_call, time_events
from featgraph.program.active import word_count
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.superstep.frontier import Frontier

DEFAULTS = {"graph": ["grid8"], "k": [4], "repeat": 51, "target": "auto"}
CHOICES = {"target": ["auto", "cpu", "cuda"]}
#: Supersteps of a short run and of a long one: their difference is free of the
#: costs of a call of `fg.iterate`.
SHORT, LONG = 10, 110
BATCH = 50

Call = Callable[[], Any]


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each of them on the CPU target and, where there is a GPU, on CUDA."""
    gpu = gpu_name() if arguments.target != "cpu" else None
    targets = ["cpu"] if arguments.target in {"auto", "cpu"} else []
    if gpu and arguments.target in {"auto", "cuda"}:
        targets.append("cuda")
    for target in targets:
        recorder.device = gpu if target == "cuda" else None
        for problem, fields in problems(arguments):
            for contender, taken in _measure(problem, target, arguments.repeat):
                recorder.add(contender, taken, target=target, **fields)


def _measure(
    problem: Problem, target: str, repeat: int
) -> list[tuple[str, list[float]]]:
    device = choose_device(target)
    superstep = step.prepare(problem.state, device, {})

    def one() -> None:
        superstep.run()
        device.synchronize()

    call = partial(step, problem.state, target=target)
    results = []
    for name, part in _parts(problem, superstep, target).items():
        _batch(part, device)
        taken = [_batch(part, device) for _ in range(repeat)]
        results.append((f"part: {name}", taken))
    for name, function in {"superstep": one, "foldmap call": call}.items():
        for _ in range(5):
            function()
        results.append((name, [time_call(function) for _ in range(repeat)]))
    for share in ("all", "half"):
        taken = _iterate(problem, target, share, repeat)
        results.append((f"fg.iterate, each superstep, {share} active", taken))
    if target == "cuda":
        both = [time_events(superstep.run, 20) for _ in range(repeat)]
        results.append(("superstep by events, 20 back to back", [b[0] for b in both]))
        results.append(("superstep submitted, 20 back to back", [b[1] for b in both]))
    return results


def _batch(call: Call, device: Any) -> float:
    """Return the ms of one of many calls."""

    def calls() -> None:
        for _ in range(BATCH):
            call()
        device.synchronize()

    return time_call(calls) / BATCH


def _iterate(problem: Problem, target: str, share: str, repeat: int) -> list[float]:
    """Return the ms of a superstep within `fg.iterate`, trial by trial."""
    clamped = np.zeros(problem.graph.vertex_count, np.bool_)
    if share == "half":
        clamped[::2] = True

    def iterate(supersteps: int) -> float:
        problem.reset_dense()
        problem.state["clamped"] = clamped

        options = {"max_supersteps": supersteps, "target": target}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            return time_call(partial(fg.iterate, step, problem.state, **options))

    iterate(SHORT)
    taken = []
    for _ in range(repeat):
        short = iterate(SHORT)
        taken.append((iterate(LONG) - short) / (LONG - SHORT))
    problem.state["clamped"] = np.zeros_like(clamped)
    return taken


def _parts(problem: Problem, superstep: Any, target: str) -> dict[str, Call]:
    """Return the parts of supersteps, on sets of half of the vertices."""
    device, bound = superstep.device, superstep.bound
    superstep.run()
    count = problem.graph.vertex_count
    words = np.full(word_count(count), 0x55555555, np.uint32)
    some, full = device.upload(words), device.upload(words | words << 1)
    passed = device.sets.empty(word_count(count))

    given = {"due": full, "passed": passed}
    [entry] = superstep.phases[0].entries("plain")

    def launch() -> None:
        given["d"] = bound.data(Frontier(), None)
        device.launch(entry, given)

    parts: dict[str, Call] = {
        "launch of the superstep's kernel": launch,
        "clear a set": lambda: device.sets.empty(word_count(count)),
        "combine two sets": lambda: device.sets.without(full, some),
        "expand a set": lambda: device.sets.expand(some, bound.buffers.graph),
        "count a set": lambda: device.sets.count(some),
    }
    if target == "cpu":
        return {"launch of a kernel with one array": _numba_launch(), **parts}
    return {**_cuda_launches(device), **parts}


def _numba_launch() -> Call:
    """Return a call that launches a CPU kernel with one array argument."""
    import numba

    @numba.njit(parallel=True)
    def touch(array):  # type: ignore[no-untyped-def]
        for i in numba.prange(array.size):
            array[i] += 1

    host = np.zeros(64, np.float32)
    return lambda: touch(host)


def _cuda_launches(device: Any) -> dict[str, Call]:
    """Return launches of a kernel with one array, by the dialect and by the driver."""
    from featgraph.cuda import dialect

    cuda = dialect.cuda

    def touch_one(array):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < array.size:
            array[i] += 1

    kernel, array = dialect.kernel(touch_one), cuda.to_device(np.zeros(64, np.float32))
    return {
        "launch of a kernel with one array by the dialect": lambda: kernel[1, 64](
            array
        ),
        "launch of a kernel with one array by the driver": lambda: device.launches(
            kernel, 1, 64, (array,)
        ),
    }
