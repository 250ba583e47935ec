"""Label propagation with 1 to 128 features: time, and atomic transactions of a push.

FA puts the features of a vertex into consecutive lanes, so that their atomics leave as
few transactions; NFA adds them one by one. Pulled, there are none. The counts come from
Nsight Compute, which runs `atomics` once for all of them.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.learning import atomics
from bench.learning.cells import LIMIT, Cells
from bench.learning.problems import LearningProblem, make_problem
from bench.record import Recorder

DEFAULTS = {
    "graph": ["kron-19"],
    "k": [4, 1, 32, 128, 8, 16, 64, 2],
    "repeat": 3,
    "supersteps": 60,
    "budget": 300.0,
    "cell": 3.0,
    "target": "cuda",
    "probe_graph": "kron-17",
    "probe_limit": 150.0,
}
#: The most telling first, should time run out.
VARIANTS: dict[str, dict[str, Any]] = {
    f"{direction} {'FA' if fa else 'NFA'}/{'CD' if cd else 'NCD'}": {
        "direction": direction,
        "feature_parallel": fa,
        "change_driven": cd,
    }
    for cd in (False, True)
    for direction in ("push", "pull")
    for fa in (True, False)
}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Count transactions, then measure times, one k after the other."""
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    cells = Cells(arguments, recorder)
    if arguments.target == "cuda" and arguments.probe_graph != "none":
        _count_atomics(cells)
    for name in arguments.graph:
        named = None
        for k in arguments.k:
            if not any(cells.is_wanted(name, k, c) for c in VARIANTS):
                continue
            named = named or make_graph(name)
            problem = make_problem("LP", named.graph, k)
            cells.budget.print(f"LP on {name}, k={k}")
            _measure_all(cells, named, problem)
            del problem
            gc.collect()


def _count_atomics(cells: Cells) -> None:
    asked = cells.arguments
    graph = make_graph(asked.probe_graph).describe()

    def count() -> Any:
        given = asked.probe_graph, sorted(asked.k), asked.probe_limit
        for found in atomics.count(*given):
            cells.recorder.add("atomics", [], graph=graph, **found)
        return [], {}

    cells.run((asked.probe_graph, "atomic transactions"), count, graph=graph)
    cells.budget.print("atomic transactions are counted")


def _measure_all(cells: Cells, named: NamedGraph, problem: LearningProblem) -> None:
    first: list[Any] = []
    fields = {"program": "LP", "k": problem.k, "graph": named.describe()}

    def measure(options: dict[str, Any]) -> Any:
        trials, done, more = cells.time_program_runs(problem, options)
        checks: dict[str, Any] = {"ok": True}
        if done.converged:  # one that was cut is not where the others are
            answer = problem.answer()
            first.append(answer)
            apart = float(np.abs(answer - first[0]).max() / problem.epsilon)
            is_right = bool(np.isfinite(answer).all()) and apart <= LIMIT
            checks = {"ok": is_right, "epsilons_apart": apart}
        return trials, {**more, "checks": checks}

    for contender, options in VARIANTS.items():
        cells.run((named.name, problem.k, contender), measure, options, **fields)
