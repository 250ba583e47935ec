"""The classics on one GPU, beside cuGraph's times for graphs of the same kind and size.

Times are wall time of the whole call with the graph on the device, until the device is
idle: making the State, supersteps, and answers that stay on the GPU, as cuGraph leaves
its own; another row has them as arrays on the host, too. ``supersteps``, ``directions``
and ``active_counts`` are those of the run; ``superstep_ms`` is the sum of the
supersteps alone, and ``beside_ms`` the rest of the call, in the median. cuGraph 26.10's
times were taken on another H200, with its own graphs and defaults.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

import featgraph as fg
from bench.classics import checks
from bench.classics.cpu import Inputs
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder
from bench.timing import Budget, join_compilers, time_call, wait_for_gpu, with_answers
from featgraph import algorithms as al

#: The loop over few vertices of a GPU is compiled behind runs, and not otherwise.
COMPILES_BEHIND = True
DEFAULTS = {
    "graph": ["kron21", "grid4096", "mild22"],
    "repeat": 3,
    "programs": ["bfs", "pagerank", "connected_components", "sssp", "triangle_count",
                 "betweenness_centrality"],
    "budget": 300.0,
    "cell": 10.0,
    "target": "cuda",
}  # fmt: skip
CHOICES = {"programs": DEFAULTS["programs"]}
#: Calls before the trials: kernels compiled behind runs arrive in several of them.
_WARM_UP = 4
ITERATIONS = 20
#: ms, cuGraph 26.10 on an H200.
CUGRAPH = {
    "kron21": {"bfs": 2.13, "pagerank": 16.4, "connected_components": 32.4,
               "triangle_count": 502, "betweenness_centrality": 77.8},
    "grid4096": {"bfs": 1888, "pagerank": 10.1, "connected_components": 88.2,
                 "triangle_count": 57},
    "mild22": {"bfs": 3.82, "pagerank": 23.3, "connected_components": 41.9,
               "triangle_count": 138, "betweenness_centrality": 174},
}  # fmt: skip


class Problem(Inputs):
    """A graph, its inputs, and its rows for the checks."""

    def __init__(self, named: NamedGraph, target: str) -> None:
        super().__init__(named)
        self.target, ins = target, self.graph.in_edges
        self.rows = np.asarray(ins.row_offsets), np.asarray(ins.column_indices)
        self.out_degree = np.asarray(self.graph.out_degree)

    def calls(self) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
        """Return program -> (call, check of its answer)."""
        g, s, rows, to = self.graph, self.source, self.rows, {"target": self.target}
        turns: dict[str, Any] = {"tol": 0.0, "max_supersteps": ITERATIONS, **to}
        of: dict[str, Any] = {"sources": self.sources, "normalized": False, **to}

        def check_paths(r: Any) -> Any:
            lengths = g.expand_edge_values(self.weighted.weights)
            return checks.sssp_checks(rows, lengths, s, r.distances, r.predecessors)

        def check_ranks(r: Any) -> Any:
            given = rows, self.out_degree, r.ranks, 0.85, ITERATIONS
            return checks.pagerank_checks(*given)

        def check_dependencies(r: Any) -> Any:
            levels = al.bfs(g, self.sources, **to).levels
            return checks.betweenness_checks(r.dependencies, list(levels.T))

        return {
            "bfs": (
                lambda: al.bfs(g, s, **to),
                lambda r: checks.bfs_checks(rows, s, r.levels, r.parents),
            ),
            "sssp": (lambda: al.sssp(self.weighted, s, **to), check_paths),
            "connected_components": (
                lambda: al.connected_components(g, **to),
                lambda r: checks.components_checks(rows, r.labels),
            ),
            "pagerank": (lambda: al.pagerank(g, **turns), check_ranks),
            "triangle_count": (
                lambda: al.triangle_count(g, **to),
                lambda r: checks.triangles_checks(rows, int(r.total)),
            ),
            "betweenness_centrality": (
                lambda: al.betweenness_centrality(g, **of), check_dependencies
            ),
        }  # fmt: skip


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each program on each graph, and record errors."""
    budget = Budget(arguments.budget)
    recorder.use(arguments.target)
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    for name in arguments.graph:
        if not budget.allows(name):
            continue
        problem = Problem(make_graph(name), arguments.target)
        budget.print(f"{name} is made")
        for program, (call, check) in problem.calls().items():
            if program not in arguments.programs:
                continue
            if program == "triangle_count" and problem.graph.directed:
                continue
            if budget.allows(f"{name} | {program}"):
                given = program, call, check, problem, arguments, recorder
                about = problem.named.describe()
                recorder.attempt(program, _measure, *given, graph=about)


def _measure(
    program: str, call: Callable[[], Any], check: Callable[[Any], Any],
    problem: Problem, arguments: argparse.Namespace, recorder: Recorder,
) -> None:  # fmt: skip
    last: list[Any] = [None]

    def left() -> None:
        last[0] = call()
        wait_for_gpu(arguments.target)

    def read() -> None:
        last[0] = with_answers(call())

    name = problem.named.name
    first = time_call(read)  # compiles, and uploads the graph
    spent = 0.0  # without waits: trials of a short cell would compile
    for _ in range(_WARM_UP):
        join_compilers()
        if spent < 1e3 * arguments.cell:
            spent += time_call(read)
    join_compilers()
    fields = {
        "program": program, "cell": f"{name} | {program}",
        "graph": problem.named.describe(), "first_call_ms": round(first, 1),
    }  # fmt: skip
    trials: list[float] = []
    beside: list[float] = []
    while len(trials) < arguments.repeat and sum(trials) < 1e3 * arguments.cell:
        trials.append(time_call(left))
        run = getattr(last[0], "run", None)
        if isinstance(run, fg.Run):
            beside.append(trials[-1] - 1e3 * sum(run.seconds))
    more = _fields_of(last[0])
    if beside:
        more["beside_ms"] = round(statistics.median(beside), 3)
    recorder.add(
        "featgraph", trials, checks=check(with_answers(last[0])),
        cugraph_ms=CUGRAPH.get(name, {}).get(program), **fields, **more,
    )  # fmt: skip
    again = [time_call(read) for _ in trials]
    recorder.add("featgraph, answers read", again, **fields)


def _fields_of(result: Any) -> dict[str, Any]:
    """Return fields of the run of a result, where it has one."""
    run = getattr(result, "run", None)
    if not isinstance(run, fg.Run):
        return {}
    return {
        "supersteps": run.supersteps,
        "directions": _runs_of(run.directions),
        "superstep_ms": round(1e3 * sum(run.seconds), 3),
        "slowest_superstep_ms": round(1e3 * max(run.seconds, default=0), 3),
        "median_superstep_ms": round(1e3 * statistics.median(run.seconds or [0]), 4),
        "active_counts": run.active_counts[:64],
    }


def _runs_of(directions: list[str]) -> str:
    """Return directions in short: ``push x 2, pull x 3``."""
    groups = [(name, len(list(group))) for name, group in groupby(directions)]
    shown = [f"{name} x {count}" for name, count in groups[:12]]
    return ", ".join(shown) + (", ..." if len(groups) > 12 else "")
