"""Milliseconds of one iteration of implicit alternating least squares on a GPU.

By Cholesky factorisations and by conjugate gradients, on MovieLens and on ratings that
are drawn: ``drawn-1m`` has as many users, items and ratings as ml-1m, ``drawn-37m``
1.5 million users, 0.5 million items and 37.5 million ratings; both ends of a rating are
drawn by a law of Zipf. An iteration is two halves and two Gram matrices; the parts are
recorded, too. Checked outside of the timed region: some item factors of the last
iteration against systems that NumPy solves in float64 (Cholesky), and the squared error
against that of the first iteration.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy import sparse

from bench.algorithms.als_data import FILES, data_folder, movielens
from bench.record import Recorder, gpu_name
from featgraph.algorithms.als import als

DEFAULTS = {"graph": ["ml-1m", "drawn-37m"], "k": [32, 64, 128], "repeat": 5}

REGULARIZATION = 0.01
#: Name -> users, items, ratings.
DRAWN = {
    "drawn-1m": (6040, 3706, 1_000_209),
    "drawn-37m": (1_500_000, 500_000, 37_500_000),
}
SOLVERS = ("cholesky", "cg")
#: Items whose systems are solved again.
CHECKED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default=data_folder(), help="folder of the ratings")
    parser.add_argument("--solver", choices=SOLVERS, action="append")
    parser.add_argument("--schedule", default="auto", help="of the half supersteps")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time both solvers on every matrix and K."""
    recorder.device = gpu_name()
    for name in arguments.graph:
        ratings = ratings_of(arguments.data, name).astype(arguments.dtype)
        graph = {"name": name, "edges": int(ratings.nnz), "shape": list(ratings.shape)}
        for k in arguments.k:
            for solver in arguments.solver or SOLVERS:
                title = f"featgraph {solver}"
                result = recorder.attempt(
                    title,
                    lambda r=ratings, k=k, s=solver: als(
                        r, factors=k, regularization=REGULARIZATION, implicit=True,
                        weighted_regularization=False, solver=s, target="cuda",
                        iterations=arguments.repeat + 1, history=True,
                        dtype=arguments.dtype, schedule=arguments.schedule,
                    ),
                    k=k,
                )  # fmt: skip
                if result is None:
                    continue
                # Gram matrix and half, of either side; the first iteration compiles.
                parts = 1e3 * np.array(result.run.seconds).reshape(-1, 4)[1:]
                recorder.add(
                    title,
                    parts.sum(axis=1).tolist(),
                    k=k,
                    dtype=arguments.dtype,
                    schedule=arguments.schedule,
                    graph=graph,
                    parts_ms=np.median(parts, axis=0).tolist(),
                    residuals=result.residuals.tolist(),
                    checks=_checks(ratings, result, solver),
                )


def ratings_of(folder: str, name: str) -> Any:
    """Return users x items."""
    return movielens(folder, name) if name in FILES else drawn(*DRAWN[name])


def drawn(users: int, items: int, count: int, seed: int = 0) -> Any:
    """Return ratings between 1 and 5, of which few users and items have many."""
    rng = np.random.default_rng(seed)
    ends = []
    for size in (users, items):
        share = np.cumsum(1 / (np.arange(size) + size / 50))
        places = np.searchsorted(share, rng.random(count, np.float32) * share[-1])
        ends.append(rng.permutation(size)[np.minimum(places, size - 1)])
    values = rng.integers(1, 6, count).astype(np.float32)
    return sparse.csr_matrix((values, tuple(ends)), (users, items))


def _checks(ratings: Any, result: Any, solver: str) -> dict[str, Any]:
    """Return whether factors solve their systems, and the error has not risen."""
    first, last = result.residuals[1], result.residuals[-1]
    checks = {"ok": bool(last <= first * (1 + 1e-4))}
    if solver == "cholesky":
        error = _system_error(ratings, result.user_factors, result.item_factors)
        checks |= {"system_error": error, "ok": checks["ok"] and error < 1e-2}
    return checks


def _system_error(ratings: Any, x: Any, y: Any) -> float:
    """Return the largest residual of an item's system, next to its right-hand side."""
    columns = ratings.tocsc()
    degrees = np.diff(columns.indptr)
    chosen = np.argsort(degrees, kind="stable")[
        np.linspace(
            np.count_nonzero(degrees == 0), len(degrees) - 1, CHECKED, dtype=int
        )
    ]
    gram = x.T.astype(np.float64) @ x.astype(np.float64)
    gram += REGULARIZATION * np.eye(x.shape[1])
    found = 0.0
    for item in chosen:
        rows = slice(columns.indptr[item], columns.indptr[item + 1])
        own = x[columns.indices[rows]].astype(np.float64)
        confidence = columns.data[rows].astype(np.float64)
        right = own.T @ confidence
        left = gram @ y[item] + own.T @ ((confidence - 1) * (own @ y[item]))
        found = max(found, float(np.abs(left - right).max() / np.abs(right).max()))
    return found
