"""A superstep over all vertices under launch bounds: how many blocks must fit.

The number of blocks that must fit a multiprocessor bounds the registers of a kernel,
and so its loads on the way. ``chosen`` is the bound of
`featgraph.fold.schedules.mapping`.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.graphs import NamedGraph
from bench.learning.by_hand import Sweep
from bench.learning.cells import Cells, fields_of
from bench.learning.problems import NAMES, LearningProblem
from bench.record import Recorder
from featgraph.fold.plan.traits import graph_traits

DEFAULTS = {
    "graph": ["delaunay20", "road770", "web-NotreDame", "kron-19"],
    "k": [4],
    "repeat": 3,
    "programs": list(NAMES),
    "blocks": [0, 4, 8],
    "hub_blocks": [0, 1, 2],
    "budget": 300.0,
    "cell": 1.0,
    "target": "cuda",
}
MAPPINGS: dict[str, dict[str, Any]] = {
    "NFA": {"feature_parallel": False, "change_driven": False},
    "FA": {"change_driven": False},
}
BY_HAND = "hand-written NFA"
CHOSEN = "chosen"


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure graph by graph, program by program."""
    cells = Cells(arguments, recorder)
    bounds = CHOSEN, *arguments.blocks
    contenders = [f"{label} {bound}" for label in MAPPINGS for bound in bounds]
    for named, problem in cells.problems(arguments.programs, contenders):
        problem.epsilon = problem.state["epsilon"] = -1.0
        _measure_all(cells, named, problem)


def _measure_all(cells: Cells, named: NamedGraph, problem: LearningProblem) -> None:
    first: list[Any] = []
    fields = fields_of(problem, named)
    if cells.by_hand is not None and problem.k == 4:
        sweep = Sweep(problem, cells.by_hand)
        key = (named.name, problem.name, problem.k, BY_HAND)
        by_hand = sweep.launch, sweep.answer, first, {}
        cells.run(key, cells.time_supersteps, *by_hand, **fields)
    for label, options in MAPPINGS.items():
        asked = cells.arguments
        bounds = {CHOSEN: {}, **{str(n): {"resident": n} for n in asked.blocks}}
        if label == "FA" and graph_traits(named.graph).has_hubs:
            bounds |= {f"hubs {n}": {"hub_resident": n} for n in asked.hub_blocks}
        for bound, forced in bounds.items():
            key = named.name, problem.name, problem.k, f"{label} {bound}"
            given = {**options, "_mapping": forced} if forced else options
            cells.run(key, cells.time_program, problem, given, first, **fields)
