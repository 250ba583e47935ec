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
    fields = fields_of(problem, named)
    for contender in contenders:
        key = (named.name, problem.name, problem.k, contender)

        def measure(contender: str = contender, key: Any = key) -> None:
            if contender != BY_HAND:
                cells.time_program(key, problem, OPTIONS[contender], first, **fields)
                return
            folded = Folded(problem, cells.by_hand)
            cells.time_supersteps(
                key, folded.launch, folded.answer, first, lanes=folded.lanes,
                hubs=folded.hub_count, **fields,
            )  # fmt: skip

        cells.run(key, measure, **fields)
