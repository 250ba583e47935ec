"""Seconds of one iteration of implicit alternating least squares, next to `implicit`.

Both minimise the same error on the same confidences with as many threads, from random
factors, in turn. Half a conjugate gradient iteration of ours does the same steps as
theirs; the training errors after the last iteration are recorded with the times.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

from bench.graphs import data_folder, movielens
from bench.record import Recorder
from featgraph.algorithms.als import als

DEFAULTS = {
    "graph": ["ml-1m"], "k": [32, 64, 128], "repeat": 10, "data": data_folder(),
    "threads": os.cpu_count() or 1,
}  # fmt: skip

REGULARIZATION = 0.01


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every contender on every matrix and K."""
    import numba

    numba.set_num_threads(arguments.threads)
    for name in arguments.graph:
        ratings = movielens(arguments.data, name).astype(np.float32)
        for k in arguments.k:
            for title, measure in CONTENDERS.items():
                given = ratings, k, arguments.repeat, arguments.threads
                graph = {"name": name, "edges": int(ratings.nnz)}
                recorder.record(title, measure, *given, k=k, graph=graph)


def _ours(solver: str) -> Any:
    def measure(ratings: Any, k: int, repeat: int, threads: int) -> Any:
        result = als(
            ratings, factors=k, regularization=REGULARIZATION, implicit=True,
            weighted_regularization=False, solver=solver, iterations=repeat + 1,
            target="cpu",
        )  # fmt: skip
        # Two Gram matrices and two halves; the first iteration compiles.
        trials = 1e3 * np.array(result.run.seconds).reshape(-1, 4).sum(axis=1)[1:]
        return _line(trials, threads, ratings, result)

    return measure


def _implicit(ratings: Any, k: int, repeat: int, threads: int) -> Any:
    import implicit.cpu.als
    from threadpoolctl import threadpool_limits

    model = implicit.cpu.als.AlternatingLeastSquares(
        factors=k, regularization=REGULARIZATION, iterations=repeat + 1,
        num_threads=threads, random_state=0,
    )  # fmt: skip
    times: list[float] = []
    with threadpool_limits(1, "blas"):  # as its documentation advises
        model.fit(
            ratings,
            show_progress=False,
            callback=lambda *_: times.append(time.perf_counter()),
        )
    trials = 1e3 * np.diff(times)
    return _line(trials, threads, ratings, model)


CONTENDERS = {
    "featgraph cholesky": _ours("cholesky"),
    "featgraph cg": _ours("cg"),
    "implicit cg": _implicit,
}


def _line(trials: Any, threads: int, ratings: Any, model: Any) -> Any:
    error = _error(ratings, model.user_factors, model.item_factors)
    return trials.tolist(), {"threads": threads, "squared_error": error}


def _error(ratings: Any, x: Any, y: Any) -> float:
    """Return the regularised squared error over all pairs, in float64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    entries = ratings.tocoo()
    predicted = np.einsum("nk,nk->n", x[entries.row], y[entries.col])
    given = entries.data * (1 - predicted) ** 2 - predicted**2
    everywhere = float(np.sum((x.T @ x) * (y.T @ y)))
    penalty = REGULARIZATION * float((x**2).sum() + (y**2).sum())
    return float(given.sum()) + everywhere + penalty
