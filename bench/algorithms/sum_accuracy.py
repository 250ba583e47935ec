"""How far sums of many float32 terms are off: of a long row, and of a reduce.

All leaves of a star are gathered by its centre, or all vertices reduced: 0.1
everywhere, random positive terms, and such terms with alternating signs. Errors are
shares of the sum of absolute terms, the largest over the features, against `math.fsum`.
NumPy's pairwise sum and a sum of one term after the other stand beside.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import SEED
from bench.record import Recorder

DEFAULTS = {
    "k": [1, 8, 32],
    "repeat": 3,
    "target": "cpu",
    "terms": 10_000_000,
    "values": 40_000_000,
}
#: Bounds on errors: a pulled sum and a reduce have blocks of 512 terms, and some steps.
LARGEST = 1e-5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--terms", type=int, help="leaves of the star")
    parser.add_argument("--values", type=int, help="most terms, over all features")


@fg.gather(into="total", combine="sum")
def sum_leaves(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the source's features."""
    return d.x[u, f]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the sum."""
    d.sum[v, f] = d.total[v, f]
    return True


@fg.reduce(into="everything", combine="sum")
def sum_all(f, v, d):  # type: ignore[no-untyped-def]
    """Take the features of all vertices."""
    return d.x[v, f]


gathered, reduced = fg.foldmap(sum_leaves, keep), fg.foldmap(sum_all)


def _terms(kind: str, count: int, k: int) -> Any:
    """Return the terms; the centre has none."""
    if kind == "0.1":
        x = np.full((count + 1, k), 0.1, np.float32)
    else:
        x = np.random.default_rng(SEED).random((count + 1, k), np.float32)
    if kind == "alternating":
        x[::2] *= -1
    x[0] = 0
    return x


def _error(found: Any, exact: Any, scale: Any) -> float:
    return float((np.abs(np.asarray(found, np.float64) - exact) / scale).max())


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Sum each kind of terms in each way."""
    if arguments.target == "cuda":
        from bench.record import gpu_name

        recorder.device = gpu_name()
    for k in arguments.k:
        count = min(arguments.terms, arguments.values // k)
        leaves = np.arange(1, count + 1)
        graph = fg.Graph.from_edges(leaves, np.zeros_like(leaves))
        for kind in ("0.1", "positive", "alternating"):
            _sum(graph, kind, k, arguments, recorder)


def _sum(
    graph: fg.Graph,
    kind: str,
    k: int,
    arguments: argparse.Namespace,
    recorder: Recorder,
) -> None:
    count = graph.vertex_count - 1
    x = _terms(kind, count, k)
    columns = np.ascontiguousarray(x[1:].T)
    exact = np.array([math.fsum(column) for column in columns])
    scale = np.abs(columns).sum(axis=1, dtype=np.float64)
    state = fg.State(
        graph, x=fg.vertex_property(x), sum=fg.vertex_property(np.zeros_like(x))
    )
    target = {"target": arguments.target}

    def gather(**options: Any) -> Any:
        gathered(state, **target, **options)
        return state["sum"][0]

    def reduce() -> Any:
        reduced(state, **target)
        return state["everything"]

    ways = {
        "featgraph, gather": gather,
        "featgraph, gather pushed": lambda: gather(direction="push"),
        "featgraph, reduce": reduce,
        "NumPy, pairwise": lambda: columns.sum(axis=1),
        "one after the other": lambda: np.add.accumulate(columns, axis=1)[:, -1],
    }
    for name, way in ways.items():
        found = way()  # compiles
        trials = []
        for _ in range(arguments.repeat):
            start = time.perf_counter()
            way()
            trials.append(1e3 * (time.perf_counter() - start))
        error = _error(found, exact, scale)
        held = name in {"featgraph, gather", "featgraph, reduce"}
        recorder.add(
            name,
            trials,
            k=k,
            target=arguments.target,
            terms=count,
            kind=kind,
            relative_error=error,
            sum=float(found[0]),
            checks={"ok": error <= LARGEST} if held else None,
        )
