"""Calls of each rank in trials that took longer than others, on GPUs.

Programs of `lux-gpu` are called again and again. Of each trial every rank sends the
times of its supersteps, its time without waits for others, by the GPU's clock, the
way in which supersteps ran, and the calls that took long: see `tracing`. A row
has the trials, and the objects made in each: on each rank there should be none
from the third call on. The last answer is compared with the first.

``--target cpu`` rehearses it on processes of the CPU. Behind ``--budget`` seconds
nothing starts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.streaming import run_rank
from bench.distributed.tracing import MADE, KernelTimes, Tracer
from bench.record import Recorder

DEFAULTS = lux_gpu.DEFAULTS | {
    "graph": ["rmat-22-16", "rmat-24-16"],
    "k": [8],
    "repeat": 12,
    "gpus": 4,
    "programs": "PR,LP,CC",
    "budget": 120.0,
}
MODULE = "bench.distributed.stalls_gpu"
#: A trial that takes so many times the fastest is printed, call by call.
SLOW = 1.1
#: Calls of the runtime that make something.
MADE_HERE = (
    "recorded", "graphs", "loops made", "first launches", "windows",
    "tables of numbers", "kits made", "arrays of no kit",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `lux-gpu`, and whether kernels are timed."""
    lux_gpu.add_arguments(parser)
    parser.add_argument("--kernels", action="store_true", help="time each kernel, too")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run the programs on several ranks, and print the calls of slow trials."""
    recorder.use(arguments.target)
    until = time.time() + arguments.budget
    given = arguments, arguments.gpus, until, recorder, MODULE
    for cell in lux_gpu.cells(*given, kernels=arguments.kernels):
        trials = cell.pop("trials_ms")
        name = f"{cell['program']}, {arguments.gpus} ranks"
        graph = {"name": cell.pop("graph")}
        print(
            f"  {name}, {graph['name']}, k = {cell['k']}: least {min(trials):.2f} ms, "
            f"median {median(trials):.2f}, most {max(trials):.2f}",
            flush=True,
        )
        for line in cell.pop("lines"):
            print(f"    {line}", flush=True)
        recorder.add(name, trials, graph=graph, **cell)


class Rank(lux_gpu.Rank):
    """A rank that sends its calls of each trial."""

    tracer: Tracer

    def run(
        self,
        of: str,
        name: str,
        graph: Any,
        program: str,
        how: lux_gpu.Program,
        k: int,
    ) -> list[Any] | None:
        """Run a program many times, and send the calls of each rank in slow trials."""
        if not self.is_time():
            self.note(f"no time for {program}, k = {k}")
            return None
        trials: list[float] = []
        calls: list[list[dict[str, Any]]] = []
        answers: dict[bool, Any] = {}  # of the first call, and of the last
        for _ in range(1 + self.given["repeat"]):  # the first one compiles
            if trials and not self.is_time():
                break
            self.wait()
            worked = self._worked_ns(graph)
            self.tracer.begin()
            begun = time.perf_counter()
            result = how.call()
            own: dict[str, Any] = {"call_ms": 1000 * (time.perf_counter() - begun)}
            own |= self.tracer.end()
            self.wait()
            own["worked_ms"] = 1e-6 * (self._worked_ns(graph) - worked)
            seconds = np.array(result.run.seconds)
            answers[len(trials) > 0] = lux_gpu.answer_of(
                self.engine, graph, result, how.answer
            )
            del result
            own["superstep_ms"] = (1000 * seconds).round(3).tolist()
            whole = np.array([1000 * seconds.sum()])
            trials.append(float(self.engine.all_reduce(whole, "max", about="times")[0]))
            calls.append(self._of_all(own))
        if len(trials) == 1:
            self.note(f"no time for more than one call of {program}, k = {k}")
            return None
        self.send(
            of=of, graph=name, program=program, k=k, trials_ms=trials[1:],
            calls_ms=[[round(r["call_ms"], 2) for r in of] for of in calls],
            worked_ms=[[round(r["worked_ms"], 3) for r in of] for of in calls[1:]],
            made=[[made_in(r) for r in of] for of in calls[1:]],
            checks=lux_gpu.compared(answers[True], answers[False]),
            lines=lines_of(trials, calls),
        )  # fmt: skip
        for line in self._kernel_lines(how) if self.given["kernels"] else ():
            self.note(line)
        return None

    def _of_all(self, own: Any) -> list[Any]:
        raw = np.frombuffer(json.dumps(own).encode(), np.uint8)
        every = self.engine.all_gather(raw, about="calls of ranks")
        return [json.loads(bytes(one)) for one in every]

    def _kernel_lines(self, how: lux_gpu.Program) -> list[str]:
        """Return times of kernels on each rank, in a call that is not replayed."""
        if self.target != "cuda" or not self.is_time():
            return []
        import featgraph as fg
        from featgraph.runtime.devices.choose import choose_device

        fg.config.replay = False
        try:
            how.call()  # single launches may compile
            self.wait()
            device: Any = choose_device("cuda")
            with KernelTimes(device.launches) as times:
                result = how.call()
            own = times.read()
        finally:
            fg.config.replay = True
        seconds = self._of_all(1000 * sum(result.run.seconds))
        ranks = self._of_all(own)
        names: dict[str, dict[int, str]] = {}
        for rank, one in enumerate(ranks):
            for name, (count, total) in one.items():
                names.setdefault(name, {})[rank] = f"{count} x {total / count:.3f}"
        lines = [f"by the host, in ms: {[round(s, 2) for s in seconds]}"]
        for name, of in names.items():
            lines.append(f"  {name}: {[of.get(r, '-') for r in range(len(ranks))]}")
        return lines

    def _worked_ns(self, graph: Any) -> int:
        """Return for how long kernels of this rank, and gaps between, were no waits."""
        if self.target != "cuda" or self.engine.size == 1:
            return 0
        from featgraph.ranks.exchange.window_kernels import WORK
        from featgraph.runtime.devices.choose import choose_device

        device = choose_device("cuda")
        together = graph.ranks.exchange(device).transport.fused
        return (
            0
            if together is None
            else int(device.download(together.numbers.notes)[WORK])
        )


def made_in(trial: dict[str, Any]) -> dict[str, int]:
    """Return how often each thing was made in a trial."""
    counts = trial["counts"]
    return {name: counts[name] for name in (*MADE, *MADE_HERE) if name in counts}


def lines_of(trials: list[float], calls: list[list[dict[str, Any]]]) -> list[str]:
    """Return lines for all trials, and for the calls of ranks in slow ones."""
    lines, least = [], min(trials[1:])
    for number, (trial, ranks) in enumerate(zip(trials, calls, strict=True)):
        worked = [round(one["worked_ms"], 2) for one in ranks]
        ways = [
            "/".join(
                str(one["counts"].get(w, 0))
                for w in ("by the host", "flights", "loops")
            )
            for one in ranks
        ]
        lines.append(
            f"call {number}: {trial:.2f} ms; worked {worked}; host/flights/loops {ways}"
        )
        for rank, one in enumerate(ranks):
            if number and made_in(one) and (number < 4 or trial > SLOW * least):
                lines.append(f"  rank {rank} made {made_in(one)}")
        if trial == least:
            lines.append(f"  supersteps {ranks[0]['superstep_ms']}")
        if number == 0 or trial <= SLOW * least:
            continue
        for rank, one in enumerate(ranks):
            lines.append(f"  rank {rank}: supersteps {one['superstep_ms']}")
            spent = {n: round(s, 1) for n, s in one["spent_ms"].items()}
            lines.append(f"  rank {rank}: spent {spent}")
            for begun, took, what, stack in one["events"][:12]:
                lines.append(
                    f"  rank {rank}: at {begun:.1f}, {took:.1f} ms: {what}: {stack}"
                )
    return lines


if __name__ == "__main__":
    is_cuda = json.loads(sys.argv[1])["target"] == "cuda"
    Rank.tracer = Tracer(("cuda.bindings.driver",) if is_cuda else ())
    Rank.tracer.follow()
    run_rank(partial(lux_gpu.be_a_rank, kind=Rank))
