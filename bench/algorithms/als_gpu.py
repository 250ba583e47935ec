"""Milliseconds of one iteration of implicit alternating least squares on a GPU.

By Cholesky factorisations and by conjugate gradients, on MovieLens and on ratings that
are drawn: ``drawn-1m`` has as many users, items and ratings as ml-1m, ``drawn-37m``
1.5 million users, 0.5 million items and 37.5 million ratings; both ends of a rating are
drawn by a law of Zipf. An iteration is two halves and two Gram matrices; the parts are
recorded, too, and the time of a second call of two iterations beside its supersteps.
Checked outside of the timed region: the squared error against that of the first
iteration, which the host adds up half by half, and (Cholesky; of many ratings that
alone) some item factors of the last iteration against systems that NumPy makes in
float64.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bench.graphs import RATINGS, data_folder, movielens
from bench.record import Recorder
from bench.timing import Contender, time_call
from featgraph.algorithms.als import als

DEFAULTS = {
    "graph": ["ml-1m", "drawn-37m"],
    "k": [32, 64, 128],
    "repeat": 5,
    "data": data_folder(),
}

REGULARIZATION = 0.01
#: Name -> users, items, ratings.
DRAWN = {
    "drawn-1m": (6040, 3706, 1_000_209),
    "drawn-37m": (1_500_000, 500_000, 37_500_000),
}
SOLVERS = ("cholesky", "cg")
#: Items whose systems are made again.
CHECKED = 20
#: Ratings up to which the errors of all halves are recorded for exact solutions, too.
MOST_WITH_HISTORY = 5_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solver", choices=SOLVERS, action="append")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time both solvers on every matrix and K."""
    recorder.use("cuda")
    for name in arguments.graph:
        ratings = ratings_of(arguments.data, name).astype(np.float32)
        graph = {"name": name, "edges": int(ratings.nnz), "shape": list(ratings.shape)}
        options = {
            "regularization": REGULARIZATION, "implicit": True, "target": "cuda",
            "weighted_regularization": False, "dtype": "float32", "schedule": "auto",
        }  # fmt: skip
        for k, solver in product(arguments.k, arguments.solver or SOLVERS):
            own = {**options, "factors": k, "solver": solver}
            given = arguments.repeat, ratings, own
            recorder.record(f"featgraph {solver}", _time, *given, k=k, graph=graph)


def _time(
    repeat: int, ratings: Any, options: dict[str, Any]
) -> tuple[list[float], dict[str, Any]]:
    solver = options["solver"]
    history = solver == "cg" or ratings.nnz <= MOST_WITH_HISTORY
    result = als(ratings, iterations=repeat + 1, history=history, **options)
    again = Contender("again", partial(als, ratings, iterations=2, **options))
    beside = time_call(again.run) - 1e3 * sum(again.answer.run.seconds)
    # Gram matrix and half, of either side; the first iteration compiles.
    parts = 1e3 * np.array(result.run.seconds).reshape(-1, 4)[1:]
    return parts.sum(axis=1).tolist(), {
        "dtype": options["dtype"], "schedule": options["schedule"],
        "parts_ms": np.median(parts, axis=0).tolist(), "beside_ms": beside,
        "residuals": result.residuals.tolist(),
        "checks": _checks(ratings, result, solver),
    }  # fmt: skip


def ratings_of(folder: str, name: str) -> Any:
    """Return users x items."""
    return movielens(folder, name) if name in RATINGS else drawn(*DRAWN[name])


def drawn(users: int, items: int, count: int, seed: int = 0) -> Any:
    """Return ratings between 1 and 5, of which few users and items have many.

    How many each has is drawn for all of them together, and so is which user meets
    which item: the same as if each rating were drawn by itself, and nothing is sorted.
    """
    rng = np.random.default_rng(seed)

    def ratings_each(size: int) -> npt.NDArray[np.int64]:
        share = rng.permutation(1 / (np.arange(size) + size / 50))
        return rng.multinomial(count, share / share.sum())

    offsets = np.concatenate([[0], np.cumsum(ratings_each(users))])
    columns = np.repeat(np.arange(items, dtype=np.int32), ratings_each(items))
    rng.shuffle(columns)
    values = rng.integers(1, 6, count, np.int8).astype(np.float32)
    found = sparse.csr_matrix(
        (values, columns, offsets.astype(np.int32)), (users, items)
    )
    found.sum_duplicates()
    return found


def _checks(ratings: Any, result: Any, solver: str) -> dict[str, Any]:
    """Return whether factors solve their systems, and the error has not risen."""
    checks: dict[str, Any] = {"ok": True}
    if solver == "cholesky":
        error = _system_error(ratings, result.user_factors, result.item_factors)
        checks = {"system_error": error, "ok": error < 1e-2}
    if len(result.residuals):
        first, last = result.residuals[1], result.residuals[-1]
        checks["ok"] = checks["ok"] and bool(last <= first * (1 + 1e-4))
    return checks


def _system_error(ratings: Any, x: Any, y: Any) -> float:
    """Return the largest residual of an item's system, next to its right-hand side."""
    degrees = np.bincount(ratings.indices, minlength=ratings.shape[1])
    least, most = np.count_nonzero(degrees == 0), len(degrees) - 1
    places = np.linspace(least, most, CHECKED, dtype=int)
    chosen = np.argsort(degrees, kind="stable")[places]
    columns = ratings[:, chosen].tocsc()
    gram = x.T.astype(np.float64) @ x.astype(np.float64)
    gram += REGULARIZATION * np.eye(x.shape[1])
    found = 0.0
    for number, item in enumerate(chosen):
        mine = slice(*columns.indptr[number : number + 2])
        own = x[columns.indices[mine]].astype(np.float64)
        confidence = columns.data[mine].astype(np.float64)
        right = own.T @ confidence
        left = gram @ y[item] + own.T @ ((confidence - 1) * (own @ y[item]))
        found = max(found, float(np.abs(left - right).max() / np.abs(right).max()))
    return found
