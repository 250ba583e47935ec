"""Cells of a table: each is recorded as soon as it is measured, and none ends the run.

A run has a time limit, goes on where an earlier one with the same ``--output`` was cut,
and records a cell in which a process died as failed. Runs after a CUDA error are not
recorded: such an error ends the process with status 3.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.learning.problems import LearningProblem, make_problem
from bench.record import Recorder
from bench.timing import Budget, time_batches, time_call
from featgraph.runtime.devices.choose import choose_device

#: ms, and the fields of their line.
Trials = tuple[list[float], dict[str, Any]]
Callback = Callable[[fg.Run, fg.State], bool]
#: Exit status where a CUDA error ended a run.
CUDA_ERROR = 3
#: Milliseconds of a batch of supersteps.
BATCH_MS = 200.0
#: How far answers behind one superstep may be apart.
NEAR = 1e-4
#: In epsilons, how far apart answers of converged runs may be.
LIMIT = 20.0


class Cells:
    """Runs the cells of one table.

    Attributes
    ----------
    device : Device
        Where featgraph runs.
    by_hand : object
        Where hand-written kernels run; None where they cannot.
    """

    def __init__(self, arguments: argparse.Namespace, recorder: Recorder) -> None:
        self.arguments, self.recorder = arguments, recorder
        self.budget = Budget(arguments.budget)
        self.device = choose_device(arguments.target)
        recorder.use(arguments.target)
        self.by_hand = _by_hand(arguments.target)
        output = recorder.output
        #: Names of the cells that were begun.
        self._started_file = output and output.with_suffix(".started")
        self._started: set[str] = set()
        if self._started_file is not None and self._started_file.exists():
            self._started |= {*self._started_file.read_text("utf-8").splitlines()}
        lines = [line for line in recorder.kept() if line["bench"] == recorder.bench]
        self._recorded = {line["cell"] for line in lines if "cell" in line}

    def is_wanted(self, *key: Any) -> bool:
        """Return whether a cell is neither recorded nor out of time."""
        text = _text(key)
        return text not in self._recorded and self.budget.allows(text)

    def run(
        self, key: tuple[Any, ...], function: Callable[..., Any], *given: Any,
        **fields: Any,
    ) -> None:  # fmt: skip
        """Record a cell by a function that returns trials and fields, or its error.

        The last of `key` is the contender.
        """
        if not self.is_wanted(*key):
            return
        text, contender = _text(key), str(key[-1])
        fields["cell"] = text
        if text in self._started:
            self.recorder.attempt(contender, _died, **fields)
            return
        if self._started_file is not None:
            with open(self._started_file, "a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        self.recorder.record(contender, function, *given, **fields)
        if self.recorder.lines[-1].get("is_cuda_error"):
            print("a CUDA error ends this process", flush=True)
            sys.exit(CUDA_ERROR)
        gc.collect()

    def problems(
        self,
        programs: Sequence[str],
        contenders: Sequence[str],
        is_small: Callable[[str, NamedGraph, int], bool] = lambda *_: True,
    ) -> Iterator[tuple[NamedGraph, LearningProblem]]:
        """Make the problem of each graph, K and program that has a wanted cell."""
        asked = self.arguments
        for name in asked.graph:
            wanted = [
                (k, program)
                for k, program in product(asked.k, programs)
                if any(self.is_wanted(name, program, k, c) for c in contenders)
            ]
            named = make_graph(name) if wanted else None
            for k, program in wanted:
                assert named is not None
                fields = {"program": program, "k": k, "graph": named.describe()}
                if not is_small(program, named, k):
                    self.budget.print(f"{program}, k={k}: too large on {name}")
                    continue
                given = program, named.graph, k
                made = self.recorder.attempt("inputs", make_problem, *given, **fields)
                if made is not None:
                    self.budget.print(f"{program} on {name}, k={k}: {made.inputs}")
                    yield named, made
                del made
                gc.collect()

    def time_program(
        self, problem: LearningProblem, options: dict[str, Any], first: list[Any]
    ) -> Trials:
        """Time supersteps of the problem's first foldmap under some options."""
        superstep = problem.steps[0].prepare(problem.state, self.device, options)
        problem.reset(self.device)
        fields = {
            "options": options, "phases": len(superstep.plan.phases),
            "mappings": mappings([superstep]),
            "resident": [p.mapping.resident for p in superstep.plan.phases],
        }  # fmt: skip
        return self.time_supersteps(superstep.run, problem.answer, first, fields)

    def time_program_runs(
        self, problem: LearningProblem, options: dict[str, Any]
    ) -> tuple[list[float], fg.Run, dict[str, Any]]:
        """Return ms of runs of the problem under some options, the last, and fields."""
        asked = self.arguments

        def once(callback: Callback | None) -> fg.Run:
            done = fg.iterate(
                problem.steps, problem.state, max_supersteps=asked.supersteps,
                target=asked.target, callback=callback, **options,
            )  # fmt: skip
            self.device.synchronize()
            return done

        reset = partial(problem.reset, self.device)
        trials, done = timed_runs(once, reset, asked.repeat, asked.cell)
        inner = 1e3 * median(done.seconds[1:])
        fields = run_fields(trials, done.supersteps, done.converged) | {
            "options": options,
            "superstep_ms": round(inner, 5) if inner == inner else None,
            "directions": sorted(set(done.directions)),
            "mappings": mappings(done.kernels),
        }
        return trials, done, fields

    def time_supersteps(
        self,
        once: Callable[[], Any],
        answer: Callable[[], Any],
        first: list[Any],
        fields: dict[str, Any],
    ) -> Trials:
        """Compare the first superstep with that of the first contender; time others."""
        asked = self.arguments
        once()
        found = answer()
        first.append(found)
        apart = float(np.abs(found - first[0]).max())
        is_right = bool(np.isfinite(found).all() and apart <= NEAR)
        once()
        if asked.target == "cpu":
            host = trials = [time_call(once) for _ in range(asked.repeat)]
            launches = 1
        else:
            given = once, asked.repeat, BATCH_MS
            trials, host, launches = time_batches(*given, limit_s=asked.cell)
        checks = {"ok": is_right, "apart": apart}
        fields |= {"launches": launches, "host_ms": round(median(host), 5)}
        return trials, {**fields, "checks": checks}


def _text(key: tuple[Any, ...]) -> str:
    return " | ".join(map(str, key))


def _died() -> None:
    raise RuntimeError("the process that ran this cell ended in it")


def _by_hand(target: str) -> Any:
    from bench.baselines import handwritten

    if target == "cuda":
        return handwritten.Device()
    return handwritten.Host() if handwritten.has_host_compiler() else None


def fields_of(problem: LearningProblem, named: NamedGraph) -> dict[str, Any]:
    """Return the fields of all lines of a problem."""
    return {
        "program": problem.name, "k": problem.k, "inputs": problem.inputs,
        "graph": named.describe(),
    }  # fmt: skip


def run_fields(trials: list[float], supersteps: int, converged: bool) -> dict[str, Any]:
    """Return the fields of a run."""
    per_superstep = round(median(trials) / max(supersteps, 1), 5)
    return {
        "supersteps": supersteps, "converged": converged,
        "per_superstep_ms": per_superstep,
    }  # fmt: skip


def timed_runs(
    run: Callable[[Callback | None], Any],
    reset: Callable[[], Any],
    repeat: int,
    limit: float,
) -> tuple[list[float], Any]:
    """Warm up, then return ms of each run and the result of the last.

    Two runs warm up: the second may find what the first has kept, and take a kernel
    that the first had no use for. `run` gets a callback that cuts it after `limit` s.
    Where nothing had to be cut, a third one and those that count have no callback.

    No further run begins where they have taken over `limit` s together.
    """
    for _ in range(2):
        reset()
        seconds = time_call(lambda: run(cut_after(limit))) / 1e3
    is_cut = seconds > limit / 2
    if not is_cut:
        reset()
        run(None)
    trials: list[float] = []
    outcome: list[Any] = [None]

    def once() -> None:
        outcome[0] = run(cut_after(limit) if is_cut else None)

    while len(trials) < repeat and sum(trials) < limit * 1e3:
        reset()
        trials.append(time_call(once))
    return trials, outcome[0]


def median(values: list[float]) -> float:
    """Return the median, or nan of none."""
    return statistics.median(values) if values else float("nan")


def mappings(kernels: Sequence[Any]) -> list[str]:
    """Return how each phase of some kernels maps to threads."""
    return [
        phase.describe_mapping() for kernel in kernels for phase in kernel.plan.phases
    ]


def cut_after(limit: float) -> Callback:
    """Return a callback for `fg.iterate` that ends a run after so many seconds."""
    end = time.perf_counter() + limit
    return lambda run, state: time.perf_counter() > end
