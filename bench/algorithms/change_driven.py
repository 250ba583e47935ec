"""Times of supersteps as activity falls: every vertex, due vertices, patches.

One run of label propagation each way, to its end, from the same labels. Supersteps are
grouped by the share of vertices that were active before them; a trial is the mean time
of a group's supersteps in one run.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import product
from typing import Any
from unittest import mock

import numpy as np

import featgraph as fg
from bench.programs import Problem, problems, step
from bench.record import Recorder
from featgraph.runtime.loops import foldmap_run as choices

DEFAULTS = {"graph": ["rmat-16-16"], "k": [4], "repeat": 5, "target": "cpu"}
#: Lower ends of the groups of supersteps, as shares of the vertices.
GROUPS = (0.5, 0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
MOST_SUPERSTEPS = 200
#: Results may differ by uncommitted changes, at every vertex: some epsilons.
LARGEST_DIFFERENCE = 0.01


def _run(problem: Problem, way: str, target: str) -> tuple[fg.Run, Any]:
    problem.reset()
    change_driven: Any = {"every vertex": False, "patched": True}.get(way, "auto")
    options: dict[str, Any] = {"target": target, "change_driven": change_driven}
    # Of due vertices, "auto" recomputes the aggregates throughout.
    least = 1 << 62 if way == "due vertices" else choices.FEWEST_CONTRIBUTIONS
    never_kept = mock.patch.object(choices, "FEWEST_CONTRIBUTIONS", least)
    with warnings.catch_warnings(), never_kept:
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        run = fg.iterate(step, problem.state, max_supersteps=MOST_SUPERSTEPS, **options)
    return run, problem.state["label"]


def _grouped(run: fg.Run, vertex_count: int) -> dict[float, float]:
    """Return the mean milliseconds of the supersteps of each group."""
    taken: dict[float, list[float]] = {}
    active = [vertex_count, *run.active_counts]
    for count, seconds in zip(active, run.seconds, strict=False):
        low = next(low for low in GROUPS if count >= low * vertex_count)
        taken.setdefault(low, []).append(1e3 * seconds)
    return {low: float(np.mean(times)) for low, times in taken.items()}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every way on every graph; hold their ends against each other."""
    recorder.use(arguments.target)
    ways = ("every vertex", "due vertices", "patched", "auto")
    target = arguments.target
    for problem, fields in problems(arguments):
        count = problem.graph.vertex_count
        trials: dict[str, list[dict[float, float]]] = {way: [] for way in ways}
        totals: dict[str, list[float]] = {way: [] for way in ways}
        ends = {way: _run(problem, way, target) for way in ways}
        for _, way in product(range(arguments.repeat), ways):
            made, _ = _run(problem, way, target)
            trials[way].append(_grouped(made, count))
            totals[way].append(1e3 * sum(made.seconds))
        for way, (made, labels) in ends.items():
            difference = float(np.abs(labels - ends["every vertex"][1]).max())
            checks = {
                "largest_difference": difference, "ok": difference < LARGEST_DIFFERENCE
            }  # fmt: skip
            shared = {"target": target, "checks": checks, **fields}
            whole = {"active": "whole run", "supersteps": made.supersteps, **shared}
            recorder.add(way, totals[way], **whole)
            for low in GROUPS:
                times = [trial[low] for trial in trials[way] if low in trial]
                if times:
                    recorder.add(way, times, active=f"from {low:g}", **shared)
