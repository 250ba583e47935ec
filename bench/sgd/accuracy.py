"""Held-out errors of matrix factorization by SGD on MovieLens, tuned on other ratings.

A fifth of the ratings is held out, split at random with seed 0, and used once, at the
end. Of the others a tenth is the validation part: for each K and each set of parameters
the model learns the rest, and keeps the best epoch by that part. With the best set it
learns all of the four fifths, for as many epochs. Predictions are clipped to the scale.
``--page`` writes the tables. A run goes on from the lines that its output file has.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bench.algorithms.als_accuracy import PUBLISHED, root_mean_square
from bench.graphs import data_folder
from bench.record import Recorder
from bench.report import markdown_table
from bench.sgd.shapes import ratings_of
from bench.timing import time_call
from featgraph.algorithms import MatrixFactorization
from featgraph.algorithms.ranking_metrics import train_test_split

DEFAULTS = {
    "graph": ["ml-100k", "ml-1m"], "k": [32, 64], "data": data_folder(), "page": None
}  # fmt: skip
#: Rate, decay and regularization.
PARAMETERS = (
    (0.01, 0.0, 0.05), (0.01, 0.0, 0.07), (0.01, 0.0, 0.1), (0.02, 0.05, 0.06),
    (0.02, 0.05, 0.08), (0.02, 0.05, 0.1),
)  # fmt: skip
NAMES = ("rate", "decay", "regularization")
#: The most epochs, and how many without a smaller error end them.
EPOCHS, PATIENCE = 100, 5
#: Ratings -> the error that is reached.
GOALS = {"ml-1m": 0.853, "ml-100k": 0.916}
PAGE = """\
# How accurate matrix factorization by gradient descent is

`{command}` writes this page.

A fifth of the ratings is held out, split at random with seed 0, as for
[alternating least squares](als-accuracy.md). A tenth of the others is the
validation part, which chooses parameters and the number of epochs. With
these, `MatrixFactorization` learns all of the four fifths. Predictions are
clipped to the scale. The held-out ratings are used once:

{held}

{published}
The figures of featgraph are from one split.

Errors of the validation part, at the best of at most {most} epochs; a run
ends after {patience} epochs in a row without a smaller one:

{tuned}
"""


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Tune, fit with the best parameters, and predict; write a page, if any."""
    for name in arguments.graph:
        rest, test = train_test_split(ratings_of(arguments.data, name), 0.8, 0)
        part, validation = train_test_split(rest, 0.9, 1)
        graph = {"name": name, "edges": int(rest.nnz + test.nnz)}
        lines = []
        for k, values in product(arguments.k, PARAMETERS):
            own = dict(zip(NAMES, values, strict=True))
            tune = partial(_tune, part, validation, k, **own)
            lines.append(recorder.measure("tuned", tune, k=k, graph=graph, **own))
        best = min(lines, key=lambda line: line["rmse"])
        own = {n: best[n] for n in ("k", "epochs", *NAMES)}
        model, entries = _model(**own), test.tocoo()
        taken = [time_call(partial(model.fit, rest))]
        error = root_mean_square(model.predict(entries.row, entries.col), entries.data)
        checks = {"ok": error <= GOALS.get(name, float("inf")), "rmse": error}
        recorder.add("held out", taken, graph=graph, rmse=error, **own, checks=checks)
    if arguments.page:
        write_page(Path(arguments.page), recorder)


def _tune(part: Any, validation: Any, k: int, **own: float) -> Any:
    """Return the time and the best epoch of one set of parameters."""
    model = _model(k, **own, epochs=EPOCHS, patience=PATIENCE)
    taken = time_call(partial(model.fit, part, validation=validation))
    epochs, errors = model.result_.best_epoch, model.result_.validation_rmse
    return [taken], {"epochs": epochs, "rmse": float(errors.min())}


def _model(k: int, **own: Any) -> MatrixFactorization:
    return MatrixFactorization(k, target="cpu", **own)


def write_page(path: Path, recorder: Recorder) -> None:
    """Write both tables."""
    rows: dict[str, dict[Any, None]] = {"held out": {}, "tuned": {}}
    for line in recorder.kept():
        cells = (line["graph"]["name"], *(line[n] for n in ("k", *NAMES, "epochs")))
        rows[line["contender"]][*cells, f"{line['rmse']:.4f}"] = None
    head = ("ratings", "K", *NAMES, "epochs", "RMSE")
    held, tuned = (markdown_table(head, part) for part in rows.values())
    text = PAGE.format(
        command=recorder.command, held=held, published=PUBLISHED, most=EPOCHS,
        patience=PATIENCE, tuned=tuned,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
