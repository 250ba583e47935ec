"""How near the beliefs of loopy belief propagation are to exact marginals.

Bayesian networks (``bn/NAME.bif.gz`` with exact prior marginals) and models of the UAI
2014 competition with their evidence and reference marginals, under ``$FEATGRAPH_DATA``.
A model that does not converge is run again with damping. ``--page`` writes the table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from bench.graphs import data_folder
from bench.record import Recorder
from bench.report import markdown_table
from featgraph.algorithms.factor_propagation import MAX_ENTRIES, factor_propagation

DEFAULTS = {"repeat": 1, "data": data_folder(), "target": "cpu", "page": None}

Array = npt.NDArray[Any]

EPSILON = 1e-6
MAX_SUPERSTEPS = 1000
DAMPINGS = (0.0, 0.5, 0.9)

HEAD = """# How accurate loopy belief propagation is

Belief propagation is exact on trees. On other models it is an approximation, and it
need not converge. This table says how good it was on {count} published models with
known exact marginals: `{command}` makes it, and this page.

* Bayesian networks of the bnlearn repository, without evidence. They are read from
  `.bif` files, and their exact marginals are from clique trees.
* Models of the UAI 2014 competition with its evidence and its reference marginals,
  which have six digits.

Errors are absolute differences of probabilities, over all states of all variables that
were not observed. float64, epsilon {epsilon:g}, at most {limit} supersteps; without
convergence, damping {second:g}, then {third:g}. "K" is the number of features of a
vertex: states in the pairwise form, entries of the largest table otherwise, where a
superstep is half a round.

"""

COLUMNS = (
    "model",
    "variables",
    "tables",
    "K",
    "damping",
    "converged",
    "supersteps",
    "largest error",
    "mean error",
)

TAIL = """
Interpretation:

* Networks that are trees, or nearly, are exact to the epsilon of the run.
* Where a run has not converged, the table has the errors of its last beliefs. These are
  not an answer.
* The method is inaccurate for strong couplings in short cycles (the grids here), with
  any damping. A fixpoint may be far from the exact marginals: two of the segmentations
  converge to a fixpoint that is opposite to them at some variable.
* A table with more entries than the largest width of a kernel is refused. Evidence
  makes tables smaller.
"""


def models(
    folder: Path, wanted: list[str] | None
) -> Iterator[tuple[str, fg.FactorGraph, Mapping[int, int], list[Array]]]:
    """Yield name, model, evidence and exact marginals."""
    for path in sorted([*folder.glob("bn/*.bif.gz"), *folder.glob("uai2014/*.uai.gz")]):
        name, kind, _ = path.name.split(".")
        if wanted and name not in wanted:
            continue
        if kind == "bif":
            model = fg.read_bif(path)
            yield name, model, {}, _kept_marginals(path.parent, name, model)
        else:
            evidence = fg.read_uai_evidence(path.with_name(f"{name}.uai.evid.gz"))
            exact = fg.read_uai_marginals(path.with_name(f"{name}.uai.MAR.gz"))
            yield name, fg.read_uai(path), evidence, exact


def _kept_marginals(folder: Path, name: str, model: fg.FactorGraph) -> list[Array]:
    found = [np.full(count, np.nan) for count in model.cardinalities]
    with gzip.open(folder / f"{name}.marginals.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            variable = model.variable(row["variable"])
            found[variable][model.state(variable, row["state"])] = row["probability"]
    return found


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run every model; write the page, if there is one."""
    folder = Path(arguments.data)
    for name, model, evidence, exact in models(folder, arguments.graph):
        for damping in DAMPINGS:
            given = model, evidence, exact, damping, arguments.target
            if recorder.record(name, measure, *given).get("converged", True):
                break
    if arguments.page:
        write_page(Path(arguments.page), recorder)


def measure(
    model: fg.FactorGraph,
    evidence: Mapping[int, int],
    exact: list[Array],
    damping: float,
    target: str,
) -> tuple[list[float], dict[str, Any]]:
    """Return the time and the other fields of one row of the table."""
    left = model.given(evidence)
    widest = max(len(factor.scope) for factor in left.factors)
    sizes = [factor.table.size for factor in left.factors if len(factor.scope) > 1]
    row: dict[str, Any] = {
        "variables": len(model.names),
        "tables": sum(len(factor.scope) > 1 for factor in model.factors),
        "k": int(max(left.cardinalities.max(), 1 if widest <= 2 else max(sizes))),
        "form": "pairwise" if widest <= 2 else "factors",
    }
    if widest > 2 and row["k"] > MAX_ENTRIES:
        return [], {**row, "refused": True}
    options: dict[str, Any] = {"damping": damping, "target": target}
    options |= {"epsilon": EPSILON, "max_supersteps": MAX_SUPERSTEPS}
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        result = factor_propagation(
            model, evidence=evidence, dtype=np.float64, **options
        )
    elapsed_ms = 1e3 * (time.perf_counter() - begun)
    errors = np.concatenate(
        [
            np.abs(result.marginals[name] - row)
            for number, (name, row) in enumerate(zip(model.names, exact, strict=True))
            if number not in evidence
        ]
    )
    return [elapsed_ms], {
        **row,
        "damping": damping,
        "converged": result.converged,
        "supersteps": result.supersteps,
        "largest_error": float(errors.max()),
        "mean_error": float(errors.mean()),
        "checks": {"ok": bool(np.isfinite(errors).all())},
    }


def _cells(line: dict[str, Any]) -> list[str]:
    first = [str(line[name]) for name in ("contender", "variables", "tables", "k")]
    if line.get("refused"):
        return [*first, "", "refused", "", "", ""]
    return [
        *first,
        f"{line['damping']:g}",
        "yes" if line["converged"] else "no",
        str(line["supersteps"]),
        f"{line['largest_error']:.1e}",
        f"{line['mean_error']:.1e}",
    ]


def write_page(path: Path, recorder: Recorder) -> None:
    """Write the table, and how it was made, as a page of the documentation."""
    lines = [line for line in recorder.lines if "error" not in line]
    table = markdown_table(COLUMNS, map(_cells, lines))
    head = HEAD.format(
        count=len({line["contender"] for line in lines}),
        command=f"python -m bench.run {recorder.bench} --page {path}",
        epsilon=EPSILON,
        limit=MAX_SUPERSTEPS,
        second=DAMPINGS[1],
        third=DAMPINGS[2],
    )
    path.write_text(head + table + "\n" + TAIL, encoding="utf-8")
