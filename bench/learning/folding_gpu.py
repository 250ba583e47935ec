"""A superstep over all vertices: folded, unfolded, and a fused kernel by hand.

Label propagation and belief propagation at k = 4, 8, 32, every vertex (and message)
committing in every superstep. The hand-written kernels are in ``baselines/kernels``.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.graphs import NamedGraph
from bench.learning.by_hand import Folded
from bench.learning.cells import Cells, fields_of
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
CHOICES = {"programs": DEFAULTS["programs"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "folded": {"folding": True, "change_driven": False},
    "unfolded": {"folding": False, "change_driven": False},
}
BY_HAND = "hand-written"
CONTENDERS = [*OPTIONS, BY_HAND]
#: Messages above so many values take longer to make on the host than to measure.
MOST_VALUES = 1_500_000_000


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
    for contender in contenders:
        key = (named.name, problem.name, problem.k, contender)
        if contender == BY_HAND:
            how = _by_hand, cells, problem, first
        else:
            how = cells.time_program, problem, OPTIONS[contender], first
        cells.run(key, *how, **fields_of(problem, named))


def _by_hand(cells: Cells, problem: LearningProblem, first: list[Any]) -> Any:
    folded = Folded(problem, cells.by_hand)
    fields = {"lanes": folded.lanes, "hubs": folded.hub_count}
    return cells.time_supersteps(folded.launch, folded.answer, first, fields)
