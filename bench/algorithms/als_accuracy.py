"""Held-out errors of alternating least squares on MovieLens, next to `implicit`.

Explicit ratings: the root mean squared error of a fifth of the ratings, split at random
with seed 0, for several K and lambda (ALS-WR). Users and items that have no training
ratings get the mean, and predictions are clipped to the scale. Implicit feedback:
ratings as confidences, ranked lists of ten, against the same model of the library
`implicit`. ``--page`` writes the tables.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.graphs import RATINGS, data_folder, movielens
from bench.record import Recorder
from bench.report import markdown_table
from bench.timing import Contender, time_call
from featgraph.algorithms import AlternatingLeastSquares
from featgraph.algorithms.als import als
from featgraph.algorithms.ranking_metrics import ranking_metrics, train_test_split

DEFAULTS = {
    "graph": list(RATINGS),
    "k": [8, 32],
    "repeat": 1,
    "data": data_folder(),
    "target": "cpu",
    "page": None,
}

LAMBDAS = (0.05, 0.1, 0.15)
ITERATIONS = 20
METRICS = ("precision", "ndcg", "map", "auc")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Fit every model; write the page, if there is one."""
    recorder.use(arguments.target)
    for name in arguments.graph:
        ratings = movielens(arguments.data, name)
        train, test = train_test_split(ratings, 0.8, 0)
        graph = {"name": name, "edges": int(ratings.nnz)}
        for k in arguments.k:
            for regularization in LAMBDAS:
                given = train, test, k, regularization, arguments.target
                held_out = Contender("explicit", partial(_held_out, *given))
                recorder.add(
                    "explicit", [time_call(held_out.run)], k=k, graph=graph,
                    regularization=regularization, rmse=held_out.answer,
                )  # fmt: skip
            for title, model in _implicit_models(k, arguments.target):
                elapsed = time_call(partial(_fit, model, train))
                found = ranking_metrics(model, train, test)
                kept = {m: round(found[m], 4) for m in METRICS}
                recorder.add(title, [elapsed], k=k, graph=graph, **kept)
    if arguments.page:
        write_page(Path(arguments.page), recorder)


def _held_out(train: Any, test: Any, k: int, lambda_: float, target: str) -> float:
    result = als(
        train, factors=k, regularization=lambda_, iterations=ITERATIONS, target=target
    )
    x, y, entries = result.user_factors, result.item_factors, test.tocoo()
    predicted = np.einsum("nk,nk->n", x[entries.row], y[entries.col], dtype=np.float64)
    known = x.any(axis=1)[entries.row] & y.any(axis=1)[entries.col]
    predicted = np.where(known, predicted, train.data.mean())
    predicted = predicted.clip(train.data.min(), train.data.max())
    return root_mean_square(predicted, entries.data)


def root_mean_square(predicted: Any, wanted: Any) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.mean((predicted - wanted) ** 2)))


def _implicit_models(k: int, target: str) -> list[tuple[str, Any]]:
    import implicit.cpu.als

    ours = AlternatingLeastSquares(
        k, 0.01, 1.0, 15, implicit=True, weighted_regularization=False, target=target
    )
    theirs = implicit.cpu.als.AlternatingLeastSquares(
        factors=k, regularization=0.01, iterations=15, random_state=0
    )
    return [("implicit, featgraph", ours), ("implicit, implicit", theirs)]


def _fit(model: Any, train: Any) -> None:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        if isinstance(model, AlternatingLeastSquares):
            model.fit(train)
        else:
            model.fit(train.astype(np.float32), show_progress=False)


#: Printed beside tables of errors.
PUBLISHED = """\
Published errors of other methods on the same ratings, from the benchmark in the README
of [Surprise](https://github.com/NicolasHug/Surprise) (N. Hug, "Surprise: A Python
library for recommender systems", JOSS 5(52), 2174, 2020):

| ratings | baseline | NMF | SVD | SVD++ |
| --- | --- | --- | --- | --- |
| ml-100k | 0.944 | 0.963 | 0.934 | 0.919 |
| ml-1m | 0.909 | 0.916 | 0.873 | 0.862 |

These are different models: "baseline" is a bias for each user and item; SVD and SVD++
add factors to it and are trained by gradient descent; NMF has no biases here. The
figures are means over five folds with default parameters, each of which trains on four
fifths, as here."""


PAGE = """\
# How accurate alternating least squares is

`{command}` writes this page.

Explicit ratings: root mean squared error of a fifth of the ratings, split at
random with seed 0; {iterations} iterations, weighted lambda (ALS-WR). Users
and items without training ratings get the mean; predictions are clipped to
the scale. Ids of MovieLens are those of the files.

{explicit}

{published}
The figures of featgraph are from one split, and its best lambda is chosen by
the held-out ratings themselves.

Implicit feedback: ratings as confidences, lambda 0.01, 15 iterations; the
same split; lists of ten items. `implicit` is the same model of the
library `implicit` 0.7, by conjugate gradients from other random factors.

{implicit}
"""


def write_page(path: Path, recorder: Recorder) -> None:
    """Write both tables."""
    explicit, implicit = [], []
    for line in recorder.lines:
        cells = [line["graph"]["name"], line["k"]]
        if line["contender"] == "explicit":
            cells += [line["regularization"], f"{line['rmse']:.4f}"]
            explicit.append(cells)
        else:
            by = line["contender"].partition(", ")[2]
            implicit.append([*cells, by, *(f"{line[m]:.4f}" for m in METRICS)])
    text = PAGE.format(
        command=recorder.command,
        iterations=ITERATIONS,
        published=PUBLISHED,
        explicit=markdown_table(("ratings", "K", "lambda", "RMSE"), explicit),
        implicit=markdown_table(("ratings", "K", "by", *METRICS), implicit),
    )
    path.write_text(text, encoding="utf-8")
