"""Cells of a table: each is recorded as soon as it is measured, and none ends the run.

A run has a time limit, goes on where an earlier one with the same ``--output`` was cut,
and records a cell in which a process died as failed. Runs after a CUDA error are not
recorded: such an error ends the process with status 3.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.learning.problems import LearningProblem, make_problem
from bench.record import Recorder
from bench.timing import Budget, time_batches, time_call
from featgraph.runtime.devices.choose import choose_device

__all__ = ["CUDA_ERROR", "LIMIT", "Cells", "fields_of", "timed_runs"]

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
        self._known = _known(recorder)

    @property
    def started_file(self) -> Path | None:
        """Names of the cells that were begun."""
        output = self.recorder.output
        return None if output is None else output.with_suffix(".started")

    def is_wanted(self, *key: Any) -> bool:
        """Return whether a cell is neither recorded nor out of time."""
        text = _text(key)
        return self._known.get(text) != "recorded" and self.budget.allows(text)

    def run(
        self, key: tuple[Any, ...], function: Callable[[], None], **fields: Any
    ) -> None:
        """Run a cell, which records itself; record its error.

        The last of `key` is the contender.
        """
        if not self.is_wanted(*key):
            return
        text = _text(key)
        contender = str(key[-1])
        if self._known.get(text) == "started":
            self.recorder.attempt(contender, _died, cell=text, **fields)
            return
        if self.started_file is not None:
            with open(self.started_file, "a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        before = len(self.recorder.lines)
        self.recorder.attempt(contender, function, cell=text, **fields)
        for line in self.recorder.lines[before:]:
            if line.get("is_cuda_error"):
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
        self, key: tuple[Any, ...], problem: LearningProblem, options: dict[str, Any],
        first: list[Any], **fields: Any,
    ) -> None:  # fmt: skip
        """Time supersteps of the problem's first foldmap under some options."""
        superstep = problem.steps[0].prepare(problem.state, self.device, options)
        problem.reset(self.device)
        self.time_supersteps(
            key, lambda: superstep.run(), problem.answer, first, options=options,
            phases=len(superstep.plan.phases), mappings=mappings([superstep]),
            resident=[p.mapping.resident for p in superstep.plan.phases],
            **fields,
        )  # fmt: skip

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
        return (
            trials,
            done,
            {
                "options": options,
                "superstep_ms": round(inner, 5) if inner == inner else None,
                "directions": sorted(set(done.directions)),
                "mappings": mappings(done.kernels),
            },
        )

    def time_supersteps(
        self,
        key: tuple[Any, ...],
        once: Callable[[], Any],
        answer: Callable[[], Any],
        first: list[Any],
        **fields: Any,
    ) -> None:
        """Compare the first superstep with that of the first contender; time others."""
        asked = self.arguments
        once()
        found = answer()
        first.append(found)
        apart = float(np.abs(found - first[0]).max())
        is_right = bool(np.isfinite(found).all() and apart <= NEAR)
        once()
        if asked.target == "cpu":
            trials = [time_call(once) for _ in range(asked.repeat)]
            host, launches = trials, 1
        else:
            given = once, asked.repeat, BATCH_MS
            trials, host, launches = time_batches(*given, limit_s=asked.cell)
        self.recorder.add(
            str(key[-1]), trials, cell=_text(key), launches=launches,
            host_ms=round(statistics.median(host), 5),
            checks={"ok": is_right, "apart": apart}, **fields,
        )  # fmt: skip


def _text(key: tuple[Any, ...]) -> str:
    return " | ".join(map(str, key))


def _died() -> None:
    raise RuntimeError("the process that ran this cell ended in it")


def _known(recorder: Recorder) -> dict[str, str]:
    """Return the cells that an earlier run of the same output began and recorded."""
    known: dict[str, str] = {}
    if recorder.output is None:
        return known
    started = recorder.output.with_suffix(".started")
    if started.exists():
        known |= dict.fromkeys(started.read_text("utf-8").splitlines(), "started")
    if recorder.output.exists():
        for text in recorder.output.read_text("utf-8").splitlines():
            line = json.loads(text)
            if line["bench"] == recorder.bench and "cell" in line:
                known[line["cell"]] = "recorded"
    return known


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
