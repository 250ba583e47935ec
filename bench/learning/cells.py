"""Cells of a table: each is recorded as soon as it is measured, and none ends the run.

A run has a time limit, goes on where an earlier one with the same ``--output`` was cut,
and takes a cell in which a process died for failed. What runs behind a CUDA error says
nothing, so that such an error ends the process: with status 3, for `session` to start
another.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import featgraph as fg
from bench.record import Recorder, gpu_name
from bench.timing import time_call
from featgraph.runtime.devices.choose import choose_device

__all__ = ["CUDA_ERROR", "Cells", "add_arguments", "timed_runs"]

Callback = Callable[[fg.Run, fg.State], bool]
#: Exit status where a CUDA error ended a run.
CUDA_ERROR = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every table of cells takes."""
    parser.add_argument("--target", choices=["cuda", "cpu"], help="cpu: a rehearsal")
    parser.add_argument("--budget", type=float, help="s after which no cell starts")
    parser.add_argument("--cell", type=float, help="s after which a run is cut")


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
        self.begun = time.perf_counter()
        self.device = choose_device(arguments.target)
        recorder.device = gpu_name() if arguments.target == "cuda" else None
        self.by_hand = _by_hand(arguments.target)
        self._known = _known(recorder)

    @property
    def started_file(self) -> Path | None:
        """Names of the cells that were begun."""
        output = self.recorder.output
        return None if output is None else output.with_suffix(".started")

    def has_time(self) -> bool:
        """Whether another cell may start."""
        return time.perf_counter() - self.begun < self.arguments.budget

    def is_wanted(self, *key: Any) -> bool:
        """Whether a cell is neither recorded nor out of time; says why not."""
        text = _text(key)
        if self._known.get(text) == "recorded":
            return False
        if not self.has_time():
            print(f"no time left for {text}", flush=True)
            return False
        return True

    def run(
        self, key: tuple[Any, ...], function: Callable[[], None], **fields: Any
    ) -> None:
        """Run a cell, which records itself; record what it raises.

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

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.perf_counter() - self.begun:6.1f} s] {text}", flush=True)


def _text(key: tuple[Any, ...]) -> str:
    return " | ".join(map(str, key))


def _died() -> None:
    raise RuntimeError("the process that ran this cell ended in it")


def _known(recorder: Recorder) -> dict[str, str]:
    """Return which cells an earlier run of the same output began and recorded."""
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


def timed_runs(
    run: Callable[[Callback | None], Any],
    reset: Callable[[], Any],
    repeat: int,
    limit: float,
) -> tuple[list[float], Any]:
    """Warm up, then return ms of each run and what the last returned.

    Two runs warm up: the second may find what the first has kept, and take a kernel
    that the first had no use for. `run` is given what cuts it after `limit` s. Where
    nothing had to be cut, a third one and those that count are not watched.

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


def mappings(kernels: list[Any]) -> list[str]:
    """Return how each phase of some kernels maps to threads."""
    return [
        phase.describe_mapping() for kernel in kernels for phase in kernel.plan.phases
    ]


def aggregates(run: fg.Run) -> dict[str, int]:
    """Return how many supersteps patched, recomputed or kept no aggregates."""
    said = getattr(run, "aggregates", None) or []
    return dict(Counter(map(str, said)))


def cut_after(limit: float) -> Callback:
    """Return a callback for `fg.iterate` that ends a run after so many seconds."""
    end = time.perf_counter() + limit
    return lambda run, state: time.perf_counter() > end
