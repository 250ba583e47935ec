"""Whether the time of a superstep grows linearly with the edges, on the CPU.

Two series of R-MAT graphs of 1M to 16M edges. "fixed": 1M vertices throughout, so that
the rows that are gathered take the same memory. "proportional": 16 edges a vertex, so
that small graphs' rows fit in the caches and large ones' do not.
"""

from __future__ import annotations

import argparse

from bench.algorithms.superstep_cpu import Featgraph
from bench.baselines.sparse_products import ScipyProduct
from bench.graphs import make_graph
from bench.programs import Problem
from bench.record import Recorder
from bench.timing import Contender, interleave

SERIES = {
    "fixed": ["rmat-20-1", "rmat-20-2", "rmat-20-4", "rmat-20-8", "rmat-20-16"],
    "proportional": [
        "rmat-16-16",
        "rmat-17-16",
        "rmat-18-16",
        "rmat-19-16",
        "rmat-20-16",
    ],
}
DEFAULTS = {"graph": [], "k": [8], "repeat": 11, "vertices": "fixed,proportional"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vertices", help="fixed, proportional, or both; --graph wins")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time featgraph and SciPy's product alone on every graph of the series."""
    series = {s: SERIES[s] for s in arguments.vertices.split(",")}
    if arguments.graph:
        series = {"given": arguments.graph}
    for kind, names in series.items():
        for name in names:
            named = make_graph(name)
            for k in arguments.k:
                problem = Problem(named.graph, k)
                fused, product = Featgraph(problem), ScipyProduct(problem)
                fused()
                product()
                checks = {
                    "featgraph": fused.check(),
                    "SciPy product alone": problem.check_aggregate(product.result()),
                }
                trials = interleave(
                    [
                        Contender("featgraph", fused, problem.reset),
                        Contender("SciPy product alone", product, threads=1),
                    ],
                    arguments.repeat,
                )
                for (contender, threads), taken in trials.items():
                    recorder.add(
                        contender,
                        taken,
                        k=k,
                        series=kind,
                        threads=threads,
                        checks=checks[contender],
                        graph=named.describe(),
                    )
