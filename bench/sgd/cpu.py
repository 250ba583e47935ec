"""Updates a second of SGD on the CPU, beside LIBMF and Surprise where installed.

One and two threads, in CPU time and wall time. A contender runs `FEW` sweeps, and then
`MANY`; the difference has neither preparation nor conversion. The models
differ: featgraph has biases; LIBMF has none, and adapts rates by AdaGrad; Surprise has
biases and one thread. LIBMF needs ``pip install --no-binary libmf --no-build-isolation
libmf`` with ``CFLAGS="-O3 -march=native -DUSEAVX"``, or it has no vectors.

Two threads beside one need an idle machine. A run goes on from the lines that its
output file has.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numba
import numpy as np

from bench.graphs import data_folder
from bench.record import Recorder
from bench.sgd.shapes import graph_of, ratings_of
from bench.sgd.sweeps import options_of
from bench.timing import time_both
from featgraph.algorithms import sgd_factorization

DEFAULTS = {
    "graph": ["ml-1m"], "k": [16, 32, 128], "repeat": 4, "data": data_folder(),
    "only": ["blocks", "racy", "serial", "levels", "ticketed", "edge_locked", "LIBMF",
             "Surprise"],
}  # fmt: skip
RATE, RIDGE = 0.01, 0.05
#: Sweeps of a call, and of the one that it is subtracted from.
FEW, MANY = 5, 25

Sweeps = Callable[[int], Any]


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each contender on each graph."""
    for name, k in product(arguments.graph, arguments.k):
        entries = ratings_of(arguments.data, name).tocoo()
        cell = {"k": k, "graph": {"name": name, "edges": entries.nnz}}
        for threads, who in product((1, 2), arguments.only):
            make = PEERS.get(who, partial(_ours, who))
            is_there = who not in PEERS or find_spec(who.lower()) is not None
            if is_there and (who != "Surprise" or threads == 1):
                given = make, entries, k, threads, arguments.repeat
                recorder.measure(who, _measure, *given, threads=threads, **cell)


def _measure(
    make: Callable[..., Sweeps], entries: Any, k: int, threads: int, repeat: int
) -> tuple[list[float], dict[str, Any]]:
    """Return ms of a sweep, wall and CPU: the difference of many sweeps and few."""
    most = numba.get_num_threads()
    numba.set_num_threads(min(threads, most))
    trials = []
    try:
        sweeps = make(entries, k, threads)
        sweeps(1)
        for _ in range(repeat):
            few, many = (time_both(partial(sweeps, count)) for count in (FEW, MANY))
            trials.append((many - few) / (MANY - FEW))
    finally:
        numba.set_num_threads(most)
    wall, cpu = np.array(trials).T.tolist()
    rates = (round(entries.nnz / 1e3 / min(times), 2) for times in (wall, cpu))
    names = "m_updates_per_s", "m_updates_per_cpu_s"
    return wall, {"cpu_ms": cpu, **dict(zip(names, rates, strict=True))}


def _ours(schedule: str, entries: Any, k: int, threads: int) -> Sweeps:
    graph = graph_of(entries)
    own = {"factors": k, "rate": RATE, "regularization": RIDGE, "target": "cpu"}
    own |= options_of(schedule)
    return lambda count: sgd_factorization(graph, epochs=count, **own)


def _libmf(entries: Any, k: int, threads: int) -> Sweeps:
    libmf = importlib.import_module("libmf.mf")
    table = np.c_[entries.row, entries.col, entries.data].astype(np.float32)
    own = {"k": k, "eta": 0.1, "lambda_p2": RIDGE, "lambda_q2": RIDGE}
    own |= {"lambda_p1": 0.0, "lambda_q1": 0.0, "quiet": True, "nr_threads": threads}
    return lambda count: libmf.MF(nr_iters=count, **own).fit(table)


def _surprise(entries: Any, k: int, threads: int) -> Sweeps:
    surprise = importlib.import_module("surprise")
    columns = (part.tolist() for part in (entries.row, entries.col, entries.data))
    ratings = [(*rating, None) for rating in zip(*columns, strict=True)]
    trainset = surprise.Dataset(surprise.Reader()).construct_trainset(ratings)
    own = {"n_factors": k, "lr_all": RATE, "reg_all": RIDGE, "random_state": 0}
    return lambda count: surprise.SVD(n_epochs=count, **own).fit(trainset)


PEERS: dict[str, Callable[..., Sweeps]] = {"LIBMF": _libmf, "Surprise": _surprise}
