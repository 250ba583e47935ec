"""Times of one sweep of SGD under every schedule of exclusive edge functions.

Shapes are those of Kaleem et al., Table II (`shapes`), with K = 16 in float32:
`learn` reads and writes 12 + 16 K bytes an edge. The time of a sweep excludes
preparation, which is a field of its own. A cell whose sweep is predicted to take longer
than `--cell` is not run, and has the reason. A run goes on from the cells that its
output file has, and begins none after `--budget`. ``python -m bench.sgd.report
FILE...`` prints the tables.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

import featgraph as fg
from bench.baselines.handwritten import Device
from bench.learning.by_hand import EdgeLocked
from bench.record import Recorder
from bench.sgd.shapes import make_matrix
from bench.timing import Budget, time_calls
from featgraph.device.queue_cuda import ARRIVED
from featgraph.fold.plan.schedules import sweep_of
from featgraph.fold.plan.traits import graph_sizes
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.runtime.superstep.kinds import WORDS_OF_TURNS

#: A kernel written by hand, and the blocks a multiprocessor that it is tried with.
BY_HAND, GRIDS = "edge_locked, by hand", (1, 2, 4, 8, 16)
#: Cells whose options are not ``schedule=`` and their name.
VARIANTS: dict[str, dict[str, Any]] = {
    "racy": {"racy": True},
    "edge_locked, as given": {"schedule": "edge_locked", "shuffle": None},
    "hybrid, hubs apart": {"schedule": "hybrid", "hubs": 64},
}
DEFAULTS = {
    "graph": ["small"], "k": [16], "repeat": 5, "target": "cuda", "cell": 10.0,
    "budget": float("inf"),
    "schedules": [
        "edge_locked", "edge_locked, as given", "node_locked", "hybrid",
        "hybrid, hubs apart", "racy", "blocks", "levels", "ticketed", "matching_edges",
        "matching_nodes", "subgraph_matching", "diagonal", "block_diagonal",
    ],
}  # fmt: skip
CHOICES = {"schedules": ["serial", BY_HAND, *DEFAULTS["schedules"]]}


@fg.edge(exclusive=True)
def learn(f, u, v, e, d):
    p = d.x[u, f]
    q = d.x[v, f]
    miss = d.rating[e] - fg.dot(p, q)
    d.x[u, f] = p + d.rate * (miss * q - d.ridge * p)
    d.x[v, f] = q + d.rate * (miss * p - d.ridge * q)
    return True


step = fg.foldmap(learn)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each schedule on each shape."""
    recorder.use(arguments.target)
    budget = Budget(arguments.budget)
    measure = partial(_measure, arguments, lru_cache(1)(make_matrix))
    for name, k, schedule in product(arguments.graph, arguments.k, arguments.schedules):
        cell = {"cell": f"{name} | {schedule}", "k": k, "target": arguments.target}
        if budget.allows(cell["cell"]):
            recorder.measure(schedule, measure, name, k, schedule, **cell)


def options_of(cell: str) -> dict[str, Any]:
    """Return the options of a foldmap's call."""
    return VARIANTS.get(cell, {"schedule": cell})


def state_of(graph: fg.Graph, k: int, seed: int = 0) -> fg.State:
    """Return ratings and factors to begin with."""
    rng = np.random.default_rng(seed)
    x = rng.random((graph.vertex_count, k), np.float32) / np.float32(k**0.5)
    rating = fg.edge_property(rng.random(graph.given_edge_count, np.float32))
    x = fg.vertex_property(x)
    return fg.State(graph, x=x, rating=rating, rate=1e-3, ridge=0.05)


def predicted(schedule: str, state: fg.State, diagonals: int) -> dict[str, float]:
    """Return the predicted ms of a sweep, and of the chain that bounds all orders."""
    plan = step.fold(state, target="cuda").plan
    [phase], sizes = plan.phases, graph_sizes(state.graph, "cuda")
    traits = replace(plan.traits, sizes=replace(sizes, diagonals=diagonals))
    sweep = sweep_of(plan.functions_of(phase), phase.width, plan.analysis, traits)
    ms = SCHEDULES[schedule.partition(",")[0]].sweep_ms(sweep)
    return {"chain_ms": sweep.degree * sweep.held_us / 1e3, "predicted_ms": ms}


def _measure(
    arguments: argparse.Namespace, matrix_of: Any, name: str, k: int, schedule: str
) -> tuple[list[float], dict[str, Any]]:
    shape, graph = matrix_of(name)
    state, target = state_of(graph, k), arguments.target
    fields = {"schedule": schedule, "shape": shape}
    if schedule == BY_HAND:
        return _by_hand(state, arguments.repeat, fields)
    options = {**options_of(schedule), "target": target}
    if target == "cuda":
        fields |= predicted(schedule, state, shape["diagonals"])
    seconds = fields.get("predicted_ms", 0) / 1e3
    if seconds > arguments.cell:
        return [], {**fields, "reason": f"predicted {seconds:.3g} s a sweep"}

    call = partial(step, state, **options)
    first = fg.iterate(step, state, supersteps=1, **options).preparation
    call()  # a call of its own, which is compiled and bound by now
    trials = time_calls(call, arguments.repeat, target=target, limit_s=arguments.cell)
    prepared = step.explain(state, **options).rpartition("prepared for kernel 0: ")[2]
    moved = shape["edges"] * (12 + 16 * k)
    return trials, {
        **fields, "prepare_ms": 1e3 * first.seconds, "prepared": prepared,
        "groups": int(prepared.split()[1].replace(",", "")),
        "passes": _passes(state, options),
        "gb_per_s": round(moved / min(trials) / 1e6, 1),
        "checks": {"ok": bool(np.isfinite(state["x"]).all())},
    }  # fmt: skip


def _by_hand(
    state: fg.State, repeat: int, fields: dict[str, Any]
) -> tuple[list[float], dict[str, Any]]:
    """Measure the kernel written by hand, in the fastest grid."""
    sweep, found = EdgeLocked(state, device := Device()), {}
    for resident in GRIDS:
        call = partial(sweep.launch, resident * device.multiprocessors)
        found[resident] = time_calls(call, repeat, target="cuda", warm_up=1)
    best = min(found, key=lambda resident: min(found[resident]))
    checks = {"ok": bool(np.isfinite(sweep.answer()).all())}
    return found[best], {**fields, "resident": best, "checks": checks}


def _passes(state: fg.State, options: dict[str, Any]) -> int | None:
    """Return how often all blocks of the last sweep met: behind each turn and pass."""
    if options["target"] == "cpu":
        return None
    buffers, [phase] = state.residency, step.fold(state, **options).plan.phases
    words = buffers.temporary("arrived", "int64", (WORDS_OF_TURNS,))
    blocks = buffers.device.multiprocessors * phase.mapping.resident
    return int(buffers.device.download(words)[ARRIVED]) // blocks
