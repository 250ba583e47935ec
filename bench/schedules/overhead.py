"""What a launch and a superstep cost where there is next to nothing to do.

On a graph of 64 vertices: a kernel launch through Numba, a superstep of label
propagation, a call of its foldmap, and a superstep within `fg.iterate`. On CUDA,
"submitted" is the host's time alone, of many supersteps back to back.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.programs import Problem, step
from bench.record import Recorder, gpu_name
from bench.timing import time_call, time_events
from featgraph.runtime.device import choose_device

DEFAULTS = {"graph": ["grid8"], "k": [8], "repeat": 51, "target": "auto"}
SUPERSTEPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["auto", "cpu", "cuda"])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each of them on the CPU target and, where there is a GPU, on CUDA."""
    gpu = gpu_name() if arguments.target != "cpu" else None
    targets = ["cpu"] if arguments.target in {"auto", "cpu"} else []
    if gpu and arguments.target in {"auto", "cuda"}:
        targets.append("cuda")
    for target in targets:
        recorder.device = gpu if target == "cuda" else None
        for name in arguments.graph:
            named = make_graph(name)
            for k in arguments.k:
                problem = Problem(named.graph, k)
                fields = {"k": k, "target": target, "graph": named.describe()}
                for contender, taken in _measure(problem, target, arguments.repeat):
                    recorder.add(contender, taken, **fields)


def _measure(
    problem: Problem, target: str, repeat: int
) -> list[tuple[str, list[float]]]:
    device = choose_device(target)
    superstep = step.prepare(problem.state, device, {})

    def one() -> None:
        superstep.run(None)
        device.synchronize()

    def call() -> None:
        step(problem.state, target=target)

    def iterate() -> None:
        problem.reset_dense()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            fg.iterate(step, problem.state, max_supersteps=SUPERSTEPS, target=target)
        device.synchronize()

    launch = _launch_one(target)
    timed = {"Numba launch": launch, "superstep": one, "foldmap call": call}
    results = []
    for name, function in timed.items():
        for _ in range(5):
            function()
        results.append((name, [time_call(function) for _ in range(repeat)]))
    iterate()
    taken = [time_call(iterate) / SUPERSTEPS for _ in range(repeat)]
    results.append((f"fg.iterate, each of {SUPERSTEPS} supersteps", taken))
    if target == "cuda":
        both = [time_events(lambda: superstep.run(None), 20) for _ in range(repeat)]
        results.append(("superstep by events, 20 back to back", [b[0] for b in both]))
        results.append(("superstep submitted, 20 back to back", [b[1] for b in both]))
    return results


def _launch_one(target: str) -> Any:
    """Return a call that launches a kernel with one array argument, and waits."""
    if target == "cpu":
        import numba

        @numba.njit(parallel=True)
        def touch(array):  # type: ignore[no-untyped-def]
            for i in numba.prange(array.size):
                array[i] += 1

        host = np.zeros(64, np.float32)
        return lambda: touch(host)
    from featgraph import _cuda

    cuda = _cuda.cuda

    def touch_one(array):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < array.size:
            array[i] += 1

    kernel, array = _cuda.kernel(touch_one), cuda.to_device(np.zeros(64, np.float32))

    def launch() -> None:
        kernel[1, 64](array)
        cuda.synchronize()

    return launch
