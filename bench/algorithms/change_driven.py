"""Times of supersteps as activity falls: every vertex, due vertices, patches.

One run of label propagation each way, to its end, from the same labels. Supersteps are
grouped by the share of vertices that were active before them; a trial is the mean time
of a group's supersteps in one run.
"""

from __future__ import annotations

import argparse
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.programs import Problem, step
from bench.record import Recorder
from featgraph.runtime.loops import foldmap_run as choices

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULTS = {"graph": ["rmat-16-16"], "k": [4], "repeat": 5, "target": "cpu"}
#: Lower ends of the groups of supersteps, as shares of the vertices.
GROUPS = (0.5, 0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
MOST_SUPERSTEPS = 200
#: Results may differ by uncommitted changes, at every vertex: some epsilons.
LARGEST_DIFFERENCE = 0.01


@contextmanager
def _never_kept() -> Iterator[None]:
    """Have "auto" recompute the aggregates of due vertices throughout."""
    least = choices.FEWEST_CONTRIBUTIONS
    choices.FEWEST_CONTRIBUTIONS = 1 << 62
    try:
        yield
    finally:
        choices.FEWEST_CONTRIBUTIONS = least


def _run(problem: Problem, way: str, target: str) -> tuple[fg.Run, Any]:
    problem.reset()
    change_driven: Any = {"every vertex": False, "patched": True}.get(way, "auto")
    options: dict[str, Any] = {"target": target, "change_driven": change_driven}
    kept = _never_kept() if way == "due vertices" else nullcontext()
    with warnings.catch_warnings(), kept:
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
    ways = ("every vertex", "due vertices", "patched", "auto")
    for name in arguments.graph:
        named = make_graph(name)
        for k in arguments.k:
            problem = Problem(named.graph, k)
            trials: dict[str, list[dict[float, float]]] = {way: [] for way in ways}
            totals: dict[str, list[float]] = {way: [] for way in ways}
            ends = {way: _run(problem, way, arguments.target) for way in ways}
            reference = ends["every vertex"][1]
            for _ in range(arguments.repeat):
                for way in ways:
                    made, _ = _run(problem, way, arguments.target)
                    trials[way].append(_grouped(made, named.graph.vertex_count))
                    totals[way].append(1e3 * sum(made.seconds))
            for way in ways:
                difference = float(np.abs(ends[way][1] - reference).max())
                shared = {
                    "k": k,
                    "target": arguments.target,
                    "graph": named.describe(),
                    "checks": {
                        "largest_difference": difference,
                        "ok": difference < LARGEST_DIFFERENCE,
                    },
                }
                supersteps = ends[way][0].supersteps
                recorder.add(
                    way,
                    totals[way],
                    active="whole run",
                    supersteps=supersteps,
                    **shared,
                )
                for low in GROUPS:
                    times = [trial[low] for trial in trials[way] if low in trial]
                    if times:
                        recorder.add(way, times, active=f"from {low:g}", **shared)
