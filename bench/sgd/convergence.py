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
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import data_folder
from bench.record import Recorder
from bench.sgd.ratings import graph_of, ratings_of
from bench.timing import time_call, wait_for_gpu
from featgraph.algorithms import sgd_factorization
from featgraph.algorithms.ranking_metrics import train_test_split
from featgraph.fold.schedules.table import SCHEDULES

DEFAULTS = {
    "graph": ["ml-100k", "ml-1m"],
    "k": [16],
    "repeat": 1,
    "data": data_folder(),
    "target": "cpu",
}
#: Schedule -> how far its errors may be from those of `serial`.
BOUNDS = {
    "serial": 0.0, "levels": 0.0, "ticketed": 0.0, "edge_locked": 1e-3,
    **dict.fromkeys(
        ("node_locked", "hybrid", "matching_edges", "matching_nodes",
         "subgraph_matching", "blocks"), 5e-3,
    ),
}  # fmt: skip
OTHERS = ("diagonal", "block_diagonal", "racy")
SERIAL, STRUCTURED, LATE = "serial", 5e-3, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schedules", nargs="+", default=[*BOUNDS, *OTHERS])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Learn under each schedule, from each seed; `serial` first."""
    recorder.use(arguments.target)
    for name in arguments.graph:
        train, test = train_test_split(ratings_of(arguments.data, name), 0.8, 0)
        data = graph_of(train), test
        for k in arguments.k:
            for seed in range(arguments.seeds):
                curve = None
                for schedule in arguments.schedules:
                    cell = {
                        "graph": {"name": name, "edges": train.nnz}, "k": k,
                        "seed": seed, "schedule": schedule,
                        "target": arguments.target, "epochs": arguments.epochs,
                    }  # fmt: skip
                    found = (recorder.found(**cell) or {}).get("curve")
                    if found is None and schedule in {*SCHEDULES, "racy"}:
                        found = recorder.attempt(
                            schedule, lambda c=cell, s=curve, d=data: _learn(
                                c, s, *d, arguments.repeat, recorder
                            ), **cell,
                        )  # fmt: skip
                    if schedule == SERIAL and found:
                        curve = np.array(found)


def _learn(
    cell: dict[str, Any], serial: Any, graph: fg.Graph, test: Any, repeat: int,
    recorder: Recorder,
) -> list[float]:  # fmt: skip
    """Record the errors of a cell, and the time of its epochs without measuring."""
    own = {"factors": cell["k"], "shuffle": cell["seed"], "random_state": cell["seed"]}
    own |= {name: cell[name] for name in ("schedule", "target", "epochs")}
    if own["schedule"] == "racy":
        own = {"racy": True} | {n: own[n] for n in own if n != "schedule"}
    curve = sgd_factorization(graph, validation=test, **own).validation_rmse

    def learn() -> None:
        sgd_factorization(graph, **own)
        wait_for_gpu(cell["target"])

    trials = [time_call(learn) for _ in range(repeat)]
    checks, fields = None, {}
    if serial is not None:
        fields["far"] = float(np.abs(curve - serial).max())
        falls = curve[LATE : int(np.argmin(serial)) + 1]
        fields["late"] = float((falls - serial[: falls.size]).max(initial=-1.0))
        bound = BOUNDS.get(cell["schedule"])
        caught_up = bound != STRUCTURED or fields["late"] <= 0
        if bound is not None:
            checks = {"ok": fields["far"] <= bound and caught_up, **fields}
    recorder.add(
        cell["schedule"], trials, checks=checks, **cell, curve=curve.tolist(),
        best_rmse=float(curve.min()), s_per_epoch=min(trials) / 1e3 / len(curve),
        **fields,
    )  # fmt: skip
    return list(curve)
