"""``featgraph demo``: handwritten digits, labelled from a few."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from featgraph.algorithms.label_propagation import LabelPropagationResult
from featgraph.cli.digits import (
    Array,
    Digits,
    Outcome,
    accuracy,
    accuracy_curves,
    label_spreading,
    load_graph_of_digits,
    propagate,
    split,
)
from featgraph.cli.picture import draw
from featgraph.cli.results import check_output
from featgraph.errors import FeatGraphError

__all__ = ["demo"]


def demo(options: argparse.Namespace) -> None:
    """Run label propagation on digits, print it beside scikit-learn, draw it.

    Parameters
    ----------
    options : argparse.Namespace
        labelled, neighbors, seed, target, output.

    Raises
    ------
    FeatGraphError
        If scikit-learn or matplotlib is missing, or no image would be labelled.
    OSError
        If the picture cannot be written.
    """
    _require_packages()
    check_output(options.output)
    started = time.perf_counter()
    digits = load_graph_of_digits(options.neighbors)
    labels = split(digits.truth, options.labelled, options.seed)
    _print_task(digits, labels, options)

    _, first_s = _timed(lambda: propagate(digits, labels, options.target))
    result, seconds = _timed(lambda: propagate(digits, labels, options.target))
    ours = Outcome(
        f"featgraph label_propagation ({result.run.target})",
        accuracy(result.labels, digits.truth, labels),
        result.run.supersteps,
        seconds,
    )
    theirs = label_spreading(digits, labels, same_graph=True)
    their_own = label_spreading(digits, labels, same_graph=False)
    _print_outcomes([ours, theirs, their_own])
    print(f"\nFirst call, with compiling or loading the kernel: {first_s:.2f} s")

    output = Path(options.output)
    figure = draw(
        digits, labels, result, [ours, theirs], accuracy_curves(digits, options.target)
    )
    figure.savefig(output, dpi=110)
    print(f"Picture: {output} (all in {time.perf_counter() - started:.1f} s)")


def _require_packages() -> None:
    missing = [
        package
        for module, package in (("sklearn", "scikit-learn"), ("matplotlib",) * 2)
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise FeatGraphError(
            f"the demo needs {' and '.join(missing)}",
            fix='pip install "featgraph[demo]"',
        )


def _timed(call: Callable[[], LabelPropagationResult]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _print_task(digits: Digits, labels: Array, options: argparse.Namespace) -> None:
    graph = digits.graph
    print(
        f"Task:  {len(labels):,} handwritten digits (8 x 8 pixels, 10 classes), "
        f"{int((labels >= 0).sum())} of them labelled (seed {options.seed})\n"
        f"Graph: {digits.neighbors} nearest neighbors, made symmetric: "
        f"{graph.vertex_count:,} vertices, {graph.edge_count:,} edges\n"
    )


def _print_outcomes(outcomes: list[Outcome]) -> None:
    width = max(len(outcome.name) for outcome in outcomes)
    print(f"{'':{width}}  accuracy  rounds  seconds")
    for o in outcomes:
        print(f"{o.name:{width}}  {o.accuracy:8.2%}  {o.rounds:6,}  {o.seconds:7.3f}")
