"""Times of one sweep of SGD under every schedule of exclusive edge functions.

Shapes are those of Kaleem et al., Table II (`shapes`), with K = 16 in float32:
`learn` reads and writes 12 + 16 K bytes an edge. The time of a sweep excludes
preparation, which is a field of its own. A cell whose sweep is predicted to take longer
than `--cell` is not run, and has the reason. A run goes on from the cells that its
output file has. ``python -m bench.sgd.report FILE...`` prints the tables.
"""

from __future__ import annotations

import argparse
import math
import re
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import featgraph as fg
from bench.record import Recorder
from bench.sgd.shapes import make_matrix
from bench.timing import time_call, wait_for_gpu
from featgraph.base.errors import PlanError
from featgraph.device.queue_cuda import ARRIVED
from featgraph.fold.plan.options import parse_options
from featgraph.fold.plan.schedules import sweep_of
from featgraph.fold.plan.traits import graph_sizes
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.runtime.superstep.kinds import WORDS_OF_TURNS

#: Cells whose options are not ``schedule=`` and their name.
VARIANTS: dict[str, dict[str, Any]] = {
    "racy": {"racy": True},
    "edge_locked, as given": {"schedule": "edge_locked", "shuffle": None},
    "hybrid, hubs apart": {"schedule": "hybrid", "hubs": 64},
}
DEFAULTS = {
    "graph": ["small"],
    "k": [16],
    "repeat": 5,
    "target": "cuda",
    "schedules": [
        "edge_locked", "edge_locked, as given", "node_locked", "hybrid",
        "hybrid, hubs apart", "racy", "blocks", "levels", "ticketed", "matching_edges",
        "matching_nodes", "subgraph_matching", "diagonal", "block_diagonal",
    ],
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
    parser.add_argument("--cell", type=float, help="s that the sweeps of a cell take")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each schedule on each shape."""
    target = arguments.target
    recorder.use(target)
    cells = []
    for schedule in arguments.schedules:
        options = VARIANTS.get(schedule, {"schedule": schedule})
        try:
            parse_options(target, False, options)
            cells.append((schedule, options))
        except PlanError as error:
            print(f"{schedule} is not run: {str(error).splitlines()[0]}", flush=True)
    for name in arguments.graph:
        shape, state, diagonals = {}, None, 0
        for k in arguments.k:
            for schedule, options in cells:
                cell = f"{name} | {schedule}"
                if recorder.found(cell=cell, k=k, target=target):
                    continue
                if state is None:
                    shape, graph = make_matrix(name)
                    diagonals = _diagonals(graph)
                if state is None or state["x"].shape[1] != k:
                    state = state_of(graph, k)
                fields = {"cell": cell, "k": k, "schedule": schedule, "target": target,
                          "shape": shape}  # fmt: skip
                if target == "cuda":
                    fields |= predicted(schedule, options, state, diagonals)
                late = fields.get("predicted_ms", 0) > 1e3 * arguments.cell
                if late:
                    why = f"predicted {fields['predicted_ms'] / 1e3:.3g} s a sweep"
                    recorder.add(schedule, [], **fields, reason=why)
                    continue
                asked = {**options, "target": target}
                measure = partial(_measure, state, asked, fields, arguments, recorder)
                recorder.attempt(schedule, measure, cell=cell, k=k)


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


def predicted(
    name: str, options: dict[str, Any], state: fg.State, diagonals: int
) -> dict[str, float]:
    """Return the predicted ms of a sweep, and of the chain that bounds all orders."""
    plan = step.fold(state, target="cuda").plan
    [phase], sizes = plan.phases, graph_sizes(state.graph, "cuda")
    traits = replace(plan.traits, sizes=replace(sizes, diagonals=diagonals))
    given = plan.functions_of(phase), phase.width, plan.analysis, traits
    sweep = sweep_of(*given)
    ms = SCHEDULES[options.get("schedule", name)].sweep_ms(sweep)
    found = {"chain_ms": sweep.degree * sweep.held_us / 1e3}
    return found if math.isinf(ms) else {**found, "predicted_ms": ms}


def _diagonals(graph: fg.Graph) -> int:
    """Return how many diagonals of a matrix have entries."""
    along = graph.targets - graph.sources
    return int(np.count_nonzero(np.bincount(along - along.min(initial=0))))


def _measure(
    state: fg.State, asked: dict[str, Any], fields: dict[str, Any],
    arguments: argparse.Namespace, recorder: Recorder,
) -> None:  # fmt: skip
    def sweep() -> None:
        step(state, **asked)
        wait_for_gpu(arguments.target)

    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=fg.ConvergenceWarning):
        first = fg.iterate(step, state, max_supersteps=1, **asked).preparation
    wait_for_gpu(arguments.target)
    taken = time.perf_counter() - begun
    sweep()  # a call of its own, which is compiled and bound by now
    trials: list[float] = []
    while len(trials) < arguments.repeat and sum(trials) < 1e3 * arguments.cell:
        trials.append(time_call(sweep))
    edges, k = state.graph.edge_count, state["x"].shape[1]
    best = min(trials)
    told = step.explain(state, **asked).rpartition("prepared for kernel 0: ")[2]
    groups = re.match(r"groups: ([\d,]+)", told)
    recorder.add(
        fields["schedule"], trials, **fields, first_call_ms=1e3 * taken,
        prepare_ms=1e3 * first.seconds, prepared_bytes=first.bytes, prepared=told,
        groups=int(groups[1].replace(",", "")) if groups else None,
        passes=_passes(state, asked),
        gb_per_s=round(edges * (12 + 16 * k) / best / 1e6, 1),
        m_updates_per_s=round(edges / best / 1e3, 1),
        checks={"ok": bool(np.isfinite(np.asarray(state["x"])).all())},
    )  # fmt: skip


def _passes(state: fg.State, asked: dict[str, Any]) -> int | None:
    """Return how often all blocks of the last sweep met: behind each turn and pass."""
    if asked["target"] == "cpu":
        return None
    buffers, [phase] = state.residency, step.fold(state, **asked).plan.phases
    words = buffers.temporary("arrived", "int64", (WORDS_OF_TURNS,))
    blocks = buffers.device.multiprocessors * phase.mapping.resident
    return int(buffers.device.download(words)[ARRIVED]) // blocks
