"""Times of one sweep of SGD under every schedule of exclusive edge functions.

Shapes are those of Kaleem et al., Table II (`shapes`), with K = 16 in float32: what
`learn` reads and writes of an edge is 12 + 16 K bytes. The time of a sweep excludes
preparation, which is a field of its own, as are the sweeps that pay it back beside
``edge_locked``. A run goes on from the cells that its output file has.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.record import Recorder, gpu_name
from bench.sgd.shapes import SHAPES, Shape
from bench.timing import time_call, wait_for_gpu

DEFAULTS = {
    "graph": ["small"],
    "k": [16],
    "repeat": 5,
    "target": "cuda",
    "schedules": [
        "edge_locked", "node_locked", "hybrid", "racy", "blocks", "levels", "ticketed",
        "matching_edges", "matching_nodes", "subgraph_matching", "diagonal",
        "block_diagonal",
    ],
    "budget": 300.0,
    "cell": 10.0,
}  # fmt: skip


@fg.edge(exclusive=True)
def learn(f, u, v, e, d):
    p = d.x[u, f]
    q = d.x[v, f]
    miss = d.rating[e] - fg.dot(p, q)
    d.x[u, f] = p + d.rate * (miss * q - d.ridge * p)
    d.x[v, f] = q + d.rate * (miss * p - d.ridge * q)
    return True


step = fg.foldmap(learn)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", nargs="+", help="names; serial, too, and racy")
    parser.add_argument("--target", choices=["cuda", "cpu"])
    parser.add_argument("--budget", type=float, help="s after which no cell starts")
    parser.add_argument("--cell", type=float, help="s that the sweeps of a cell take")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each schedule on each shape."""
    begun = time.perf_counter()
    recorder.device = gpu_name() if arguments.target == "cuda" else None
    known = _known(recorder)
    for name in arguments.graph:
        shape, state = SHAPES[name], None
        for k in arguments.k:
            for schedule in arguments.schedules:
                cell = f"{name} | {schedule}"
                if (cell, k, arguments.target) in known:
                    continue
                if time.perf_counter() - begun > arguments.budget:
                    print(f"no time left for {cell}", flush=True)
                    continue
                if state is None or state["x"].shape[1] != k:
                    state = state_of(shape.make(), k)
                recorder.attempt(
                    schedule, lambda s=schedule, c=cell, h=shape, d=state: _measure(
                        s, c, h, d, arguments, recorder
                    ), cell=cell, k=k,
                )  # fmt: skip


def state_of(graph: fg.Graph, k: int, seed: int = 0) -> fg.State:
    """Return ratings and factors to begin with."""
    rng = np.random.default_rng(seed)
    shape = graph.vertex_count, k
    return fg.State(
        graph,
        x=fg.vertex_property(rng.random(shape, np.float32) / np.float32(k**0.5)),
        rating=fg.edge_property(rng.random(graph.given_edge_count, np.float32)),
        rate=1e-3,
        ridge=0.05,
    )


def _measure(
    schedule: str, cell: str, shape: Shape, state: fg.State,
    arguments: argparse.Namespace, recorder: Recorder,
) -> None:  # fmt: skip
    asked: dict[str, Any] = {"schedule": schedule, "target": arguments.target}
    if schedule == "racy":
        asked = {"racy": True, "target": arguments.target}

    def sweep() -> None:
        step(state, **asked)
        wait_for_gpu(arguments.target)

    first = time_call(sweep)
    trials: list[float] = []
    while len(trials) < arguments.repeat and sum(trials) < 1e3 * arguments.cell:
        trials.append(time_call(sweep))
    graph, k = state.graph, state["x"].shape[1]
    nbytes = graph.edge_count * (12 + 16 * k)
    best = min(trials)
    degrees = np.bincount(graph.targets, minlength=1)
    recorder.add(
        schedule, trials, cell=cell, k=k, schedule=schedule, target=arguments.target,
        shape={"name": shape.name, "kind": shape.kind, "rows": shape.rows,
               "columns": shape.columns, "edges": graph.edge_count,
               "degree": int(degrees.max())},
        first_call_ms=round(first, 1), gb_per_s=round(nbytes / best / 1e6, 1),
        m_updates_per_s=round(graph.edge_count / best / 1e3, 1),
        checks={"ok": bool(np.isfinite(np.asarray(state["x"])).all())},
    )  # fmt: skip


def _known(recorder: Recorder) -> set[tuple[str, int, str]]:
    """Return the cells that the output file has."""
    path = recorder.output
    if path is None or not Path(path).exists():
        return set()
    lines = map(json.loads, Path(path).read_text().splitlines())
    return {
        (line["cell"], line["k"], line["target"]) for line in lines if "target" in line
    }
