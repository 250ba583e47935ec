"""Held-out errors of SGD by epoch and second, under every schedule.

Four fifths of the ratings, split with seed 0, are learned; the others are predicted
after each epoch. Seeds are those of initial factors and of the order. A line has the
curve, the seconds of an epoch without measuring, and checks beside ``serial`` of the
same seed: the same bits for schedules that keep its order; at most 1e-3 from its error
at the same epoch for other shuffled orders; and at most 5e-3 for structured orders,
which catch up with epoch t of ``serial`` by epoch t + 3, as long as that falls. A run
goes on from the lines that its output file has.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import data_folder
from bench.record import Recorder
from bench.sgd.shapes import graph_of, ratings_of
from bench.sgd.sweeps import options_of
from bench.timing import time_calls
from featgraph.algorithms import sgd_factorization
from featgraph.algorithms.ranking_metrics import train_test_split

DEFAULTS = {
    "graph": ["ml-100k", "ml-1m"], "k": [16], "repeat": 1, "target": "cpu",
    "data": data_folder(),
}  # fmt: skip
EPOCHS, SEEDS = 30, 5
SERIAL, STRUCTURED, LATE = "serial", 5e-3, 3
#: Schedule -> how far its errors may be from those of `serial`, if there is a bound.
BOUNDS = {
    SERIAL: 0.0, "levels": 0.0, "ticketed": 0.0, "edge_locked": 1e-3,
    "node_locked": STRUCTURED, "hybrid": STRUCTURED, "matching_edges": STRUCTURED,
    "matching_nodes": STRUCTURED, "subgraph_matching": STRUCTURED, "blocks": STRUCTURED,
    "diagonal": None, "block_diagonal": None, "racy": None,
}  # fmt: skip


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Learn under each schedule, from each seed; `serial` first."""
    recorder.use(arguments.target)
    for name in arguments.graph:
        train, test = train_test_split(ratings_of(arguments.data, name), 0.8, 0)
        graph, serial = graph_of(train), None
        for k, seed, schedule in product(arguments.k, range(SEEDS), BOUNDS):
            cell = {
                "graph": {"name": name, "edges": train.nnz}, "k": k, "seed": seed,
                "schedule": schedule, "target": arguments.target, "epochs": EPOCHS,
            }  # fmt: skip
            serial = None if schedule == SERIAL else serial
            given = graph, test, cell, serial, arguments.repeat
            line = recorder.measure(schedule, _learn, *given, **cell)
            if schedule == SERIAL and line:
                serial = np.array(line["curve"])


def _learn(
    graph: fg.Graph, test: Any, cell: dict[str, Any], serial: Any, repeat: int
) -> tuple[list[float], dict[str, Any]]:
    """Return the errors of a cell, and the time of its epochs without measuring."""
    schedule, seed, target = (cell[n] for n in ("schedule", "seed", "target"))
    own = {"factors": cell["k"], "epochs": cell["epochs"], "target": target}
    own |= {"shuffle": seed, "random_state": seed, **options_of(schedule)}
    curve = sgd_factorization(graph, validation=test, **own).validation_rmse
    trials = time_calls(partial(sgd_factorization, graph, **own), repeat, target=target)
    fields: dict[str, Any] = {"curve": curve.tolist(), "best_rmse": float(curve.min())}
    fields["s_per_epoch"], bound = min(trials) / 1e3 / len(curve), BOUNDS[schedule]
    if serial is not None:
        falls = curve[LATE : int(np.argmin(serial)) + 1]
        late = float((falls - serial[: falls.size]).max(initial=-1.0))
        fields |= (found := {"far": float(np.abs(curve - serial).max()), "late": late})
        if bound is not None:
            is_near = found["far"] <= bound and (bound != STRUCTURED or late <= 0)
            fields["checks"] = {"ok": is_near, **found}
    return trials, fields
