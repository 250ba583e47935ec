"""A superstep over all vertices: folded, unfolded, and a fused kernel by hand.

Label propagation and belief propagation at k = 4, 8, 32, every vertex (and message)
committing in every superstep. The hand-written kernels are in ``baselines/kernels``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.graphs import NamedGraph, make_graph
from bench.learning import cells as cells_module
from bench.learning.by_hand import Folded
from bench.learning.cells import Cells
from bench.learning.problems import LearningProblem, make_problem
from bench.record import Recorder
from bench.timing import time_call, time_events

DEFAULTS = {
    "graph": ["kron21", "delaunay20", "kron-19"],
    "k": [4, 8, 32],
    "repeat": 7,
    "programs": ["LP", "BP"],
    "budget": 300.0,
    "cell": 6.0,
    "target": "cuda",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "folded": {"folding": True, "change_driven": False},
    "unfolded": {"folding": False, "change_driven": False},
}
BY_HAND = "hand-written"
CONTENDERS = [*OPTIONS, BY_HAND]
#: Messages above so many values take longer to make on the host than to measure.
MOST_VALUES = 1_500_000_000
SUPERSTEPS = 20
BATCH_MS = 200.0
#: Between probabilities after two supersteps.
LIMIT = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cells_module.add_arguments(parser)
    parser.add_argument("--programs", nargs="+", choices=["LP", "BP"])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure graph by graph, smallest k first."""
    cells = Cells(arguments, recorder)
    contenders = CONTENDERS if cells.by_hand is not None else [*OPTIONS]
    for name in arguments.graph:
        wanted = [
            (program, k)
            for k in arguments.k
            for program in arguments.programs
            if any(cells.is_wanted(name, program, k, c) for c in contenders)
        ]
        if not wanted:
            continue
        named = make_graph(name)
        cells.say(f"{name} is made: {named.describe()}")
        for program, k in wanted:
            if program == "BP" and named.graph.edge_count * k > MOST_VALUES:
                cells.say(f"{program}, k={k}: too large on {name}")
                continue
            fields = {"program": program, "k": k, "graph": named.describe()}
            problem = recorder.attempt(
                "inputs",
                lambda p=program, k=k, g=named.graph: make_problem(p, g, k),
                **fields,
            )
            if problem is not None:
                cells.say(f"{program} on {name}, k={k}: {problem.inputs}")
                _measure_all(cells, named, problem, contenders)
            del problem
            gc.collect()


def _measure_all(
    cells: Cells, named: NamedGraph, problem: LearningProblem, contenders: list[str]
) -> None:
    problem.epsilon = -1.0
    problem.state["epsilon"] = -1.0
    first: list[Any] = []
    fields: dict[str, Any] = {
        "program": problem.name,
        "k": problem.k,
        "inputs": problem.inputs,
        "graph": named.describe(),
    }
    for contender in contenders:
        key = (named.name, problem.name, problem.k, contender)

        def measure(contender: str = contender, key: Any = key) -> None:
            begun = time.perf_counter()
            if contender == BY_HAND:
                once, answer, known = _prepare_by_hand(cells, problem)
            else:
                once, answer, known = _prepare(cells, problem, OPTIONS[contender])
            once()
            once()
            found = answer()
            first.append(found)
            apart = float(np.abs(found - first[0]).max())
            checks = {
                "ok": bool(np.isfinite(found).all() and apart <= LIMIT),
                "apart": apart,
            }
            trials, host, launches = trials_of(cells, once)
            cells.recorder.add(
                contender, trials, cell=" | ".join(map(str, key)), launches=launches,
                host_ms=round(statistics.median(host), 5), checks=checks,
                whole_s=round(time.perf_counter() - begun, 3), **known, **fields,
            )  # fmt: skip

        cells.run(key, measure, **fields)


def _prepare(
    cells: Cells, problem: LearningProblem, options: dict[str, Any]
) -> tuple[Callable[[], Any], Callable[[], Any], dict[str, Any]]:
    superstep = problem.steps[0].prepare(problem.state, cells.device, options)
    problem.reset(cells.device)
    known = {
        "options": options,
        "phases": len(superstep.plan.phases),
        "mappings": [p.describe_mapping() for p in superstep.plan.phases],
    }
    return lambda: superstep.run(), problem.answer, known


def _prepare_by_hand(
    cells: Cells, problem: LearningProblem
) -> tuple[Callable[[], Any], Callable[[], Any], dict[str, Any]]:
    folded = Folded(problem, cells.by_hand)
    known = {"lanes": folded.lanes, "hubs": folded.hub_count}
    return folded.launch, folded.answer, known


def trials_of(
    cells: Cells, once: Callable[[], Any]
) -> tuple[list[float], list[float], int]:
    """Return device ms and host ms of a superstep, trial by trial, and supersteps."""
    arguments = cells.arguments
    if arguments.target == "cpu":
        taken = [time_call(once) for _ in range(arguments.repeat)]
        return taken, taken, 1
    estimate = max(time_events(once, 2)[0], 1e-3)
    launches = int(max(2, min(SUPERSTEPS, BATCH_MS / estimate)))
    both: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(both) < arguments.repeat:
        both.append(time_events(once, launches))
        if time.perf_counter() - begun > arguments.cell:
            break
    return [b[0] for b in both], [b[1] for b in both], launches
