"""A superstep over all vertices: folded, unfolded, and a fused kernel by hand.

Label propagation and belief propagation at k = 4, 8, 32, every vertex (and message)
committing in every superstep. The hand-written kernels are in ``baselines/kernels``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bench.graphs import NamedGraph
from bench.learning import cells as cells_module
from bench.learning.by_hand import Folded
from bench.learning.cells import Cells
from bench.learning.problems import LearningProblem
from bench.record import Recorder

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cells_module.add_arguments(parser)
    parser.add_argument("--programs", nargs="+", choices=["LP", "BP"])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure graph by graph, smallest k first."""
    cells = Cells(arguments, recorder)
    contenders = CONTENDERS if cells.by_hand is not None else [*OPTIONS]

    def is_small(program: str, named: NamedGraph, k: int) -> bool:
        return program != "BP" or named.graph.edge_count * k <= MOST_VALUES

    for named, problem in cells.problems(arguments.programs, contenders, is_small):
        problem.epsilon = problem.state["epsilon"] = -1.0
        _measure_all(cells, named, problem, contenders)


def _measure_all(
    cells: Cells, named: NamedGraph, problem: LearningProblem, contenders: list[str]
) -> None:
    first: list[Any] = []
    fields: dict[str, Any] = {
        "program": problem.name, "k": problem.k, "inputs": problem.inputs,
        "graph": named.describe(),
    }  # fmt: skip
    for contender in contenders:
        key = (named.name, problem.name, problem.k, contender)

        def measure(contender: str = contender, key: Any = key) -> None:
            if contender == BY_HAND:
                once, answer, known = _prepare_by_hand(cells, problem)
            else:
                once, answer, known = _prepare(cells, problem, OPTIONS[contender])
            cells.time_supersteps(key, once, answer, first, **known, **fields)

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
