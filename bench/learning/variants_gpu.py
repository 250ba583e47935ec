"""Time to convergence of the four variants: {NFA, FA} x {NCD, CD}, and by hand.

FA: consecutive lanes take consecutive features; NFA: one thread owns a vertex. NCD:
every superstep sweeps all vertices; CD: the due ones, their aggregates kept and
patched. All four stop by the same rule and must agree. ``auto`` is featgraph's
choice. The hand-written NFA/NCD kernels show if the slowest of the four is slow for
its form.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph
from bench.learning.by_hand import Sweep
from bench.learning.cells import (
    LIMIT,
    Cells,
    Trials,
    fields_of,
    run_fields,
    timed_runs,
)
from bench.learning.problems import NAMES, LearningProblem
from bench.record import Recorder
from bench.timing import time_events

GRAPHS = ["kron21", "delaunay20", "road770", "web-NotreDame", "coAuthorsDBLP",
          "soc-Epinions1", "luxembourg_osm", "facebook_large"]  # fmt: skip
DEFAULTS = {
    "graph": GRAPHS,
    "k": [4],
    "repeat": 3,
    "programs": list(NAMES),
    "supersteps": 500,
    "budget": 480.0,
    "cell": 8.0,
    "target": "cuda",
    "contenders": [],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "FA/CD": {"feature_parallel": True, "change_driven": True},
    "NFA/NCD": {"feature_parallel": False, "change_driven": False},
    "FA/NCD": {"feature_parallel": True, "change_driven": False},
    "NFA/CD": {"feature_parallel": False, "change_driven": True},
    "auto": {},
}
BY_HAND = "hand-written NFA/NCD"
CHOICES = {"contenders": [BY_HAND, *VARIANTS]}
#: A converged answer is right if a superstep of the hand-written kernels would move no
#: vertex by so many epsilons, or if it is as close as that to their fixpoint.
#: The distance of two answers is no measure alone: changes below one epsilon are
#: dropped, and where a recurrence mixes slowly they add up.
SLACK = 2.0


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure graph by graph, program by program."""
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    cells = Cells(arguments, recorder)
    contenders = [BY_HAND, *VARIANTS] if cells.by_hand is not None else [*VARIANTS]
    contenders = [
        c for c in contenders if not arguments.contenders or c in arguments.contenders
    ]
    for named, problem in cells.problems(arguments.programs, contenders):
        _Row(cells, named, problem).run(contenders)


class _Row:
    """One algorithm on one graph: all variants, compared with the first answer."""

    def __init__(
        self, cells: Cells, named: NamedGraph, problem: LearningProblem
    ) -> None:
        self.cells, self.named, self.problem = cells, named, problem
        self.answer: Any = None
        self.by_hand = None
        if cells.by_hand is not None and problem.k == 4:
            self.by_hand = Sweep(problem, cells.by_hand)
        self.fields = fields_of(problem, named)
        self.fields["edges_used"] = problem.graph.edge_count

    def run(self, contenders: list[str]) -> None:
        """Run each as a cell of its own."""
        for contender in contenders:
            key = (self.named.name, self.problem.name, self.problem.k, contender)
            measure = self._by_hand if contender == BY_HAND else self._variant
            self.cells.run(key, measure, contender, **self.fields)

    def _variant(self, contender: str) -> Trials:
        started, problem = time.perf_counter(), self.problem
        options = VARIANTS[contender]
        trials, done, fields = self.cells.time_program_runs(problem, options)
        fields |= {
            "committed": sum(done.active_counts), "active_counts": done.active_counts,
            "aggregates": dict(Counter(map(str, done.aggregates))),
            "whole_s": round(time.perf_counter() - started, 3),
        }  # fmt: skip
        values = {n: np.array(problem.state.stored(n)) for n in problem.initial}
        return trials, {**fields, "checks": self._checks(done.converged, values)}

    def _by_hand(self, contender: str) -> Trials:
        arguments, sweep = self.cells.arguments, self.by_hand
        assert sweep is not None, "the sweeps are written for k = 4"
        trials, (supersteps, converged) = timed_runs(
            lambda _: sweep.iterate(arguments.supersteps),
            sweep.reset,
            arguments.repeat,
            arguments.cell,
        )
        fields = run_fields(trials, supersteps, converged)
        if arguments.target == "cuda":
            fields["kernel_ms"] = round(time_events(sweep.launch, 5)[0], 5)
            sweep.reset()
            sweep.iterate(arguments.supersteps)
        return trials, {**fields, "checks": self._checks(converged, sweep.values())}

    def _checks(self, converged: bool, values: dict[str, Any]) -> dict[str, Any]:
        problem = self.problem
        answer = problem.comparable(values[problem.result])
        checks: dict[str, Any] = {"ok": bool(np.isfinite(answer).all())}
        if converged:
            self.answer = answer if self.answer is None else self.answer
            apart = float(np.abs(answer - self.answer).max() / problem.epsilon)
            is_right = apart <= LIMIT
            checks["epsilons_apart"] = apart
            if self.by_hand is not None:
                movers = self.by_hand.movers(values, SLACK * problem.epsilon)
                is_right = movers == 0 or apart <= SLACK
                checks["movers"] = movers
            checks["ok"] &= is_right
        return checks
