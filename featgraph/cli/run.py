"""``featgraph run label-propagation``: labels, which may be words, from files."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms import label_propagation
from featgraph.base.errors import FileFormatError
from featgraph.cli.graphs import read_given_graph, vertices_named
from featgraph.cli.results import check_output

__all__ = ["run_label_propagation"]


def run_label_propagation(options: argparse.Namespace) -> None:
    """Read a graph and labels, propagate them, and write vertex, label, probability.

    Parameters
    ----------
    options : argparse.Namespace
        Options of `add_graph_options`; labels, column, output, alpha, epsilon, format,
        max_supersteps, no_clamp, quiet, target.

    Raises
    ------
    FeatGraphError
        If a file is malformed or an option is out of range.
    OSError
        If a file cannot be read or written.
    """
    check_output(options.output, options.format)  # before the work, not after it
    graph = read_given_graph(options)
    labels = _read_labels(options, graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)  # in the summary below
        result = label_propagation(
            graph,
            labels.codes,
            alpha=options.alpha,
            epsilon=options.epsilon,
            max_supersteps=options.max_supersteps,
            clamp=not options.no_clamp,
            class_count=len(labels.names) or None,
            history=False,
            target=options.target,
            progress=not options.quiet and sys.stderr.isatty(),
        )
    if not result.run.converged:
        print(
            f"featgraph: warning: not converged after {result.run.supersteps} "
            "supersteps; raise --max-supersteps",
            file=sys.stderr,
        )
    if not options.quiet:
        print(_summary(graph, labels, result), file=sys.stderr)
    rows = _rows(graph, labels, result)
    if options.output is None:
        _write(sys.stdout, rows, options.format)
        return
    # Written to a temporary file and renamed: no reader sees a part of it.
    partial = Path(f"{options.output}.{os.getpid()}.part")
    try:
        with open(partial, "w", newline="", encoding="utf-8") as stream:
            _write(stream, rows, options.format)
        partial.replace(options.output)
    finally:
        partial.unlink(missing_ok=True)


class Labels(NamedTuple):
    """The labels of a graph's vertices, numbered.

    Attributes
    ----------
    codes : ndarray of int64, shape (V,)
        Index into `names`; -1 for no label.
    names : ndarray of shape (K,)
        The labels in the file, ascending.
    """

    codes: npt.NDArray[np.int64]
    names: npt.NDArray[Any]


def _read_labels(options: argparse.Namespace, graph: fg.Graph) -> Labels:
    listed, labels = fg.read_labels(options.labels, column=options.column)
    is_label = labels != (-1 if labels.dtype.kind == "i" else "-1")
    listed, labels = listed[is_label], labels[is_label]
    vertices = vertices_named(options.labels, listed, graph)
    names, codes = np.unique(labels, return_inverse=True)
    order = np.argsort(vertices, kind="stable")
    vertices, codes = vertices[order], codes[order]
    again = np.flatnonzero((np.diff(vertices) == 0) & (np.diff(codes) != 0))
    if again.size:
        i = again[0]
        raise FileFormatError(
            "a vertex has two labels",
            where=f"{options.labels}, vertex {listed[order[i]]}",
            got=f"{names[codes[i]]} and {names[codes[i + 1]]}",
            expected="one label a vertex",
        )
    of_vertex = np.full(graph.vertex_count, -1, np.int64)
    of_vertex[vertices] = codes
    return Labels(of_vertex, names)


def _summary(graph: fg.Graph, labels: Labels, result: Any) -> str:
    run = result.run
    seeds = int((labels.codes >= 0).sum())
    unreached = int((result.labels < 0).sum())
    seconds = sum(run.seconds)
    plural = "s" if run.supersteps != 1 else ""
    return (
        f"{graph.vertex_count:,} vertices, {graph.edge_count:,} edges; "
        f"{seeds:,} labelled, {len(labels.names):,} classes, {unreached:,} unreached\n"
        f"{run.supersteps:,} superstep{plural} on {run.target} in {seconds:.3f} s"
    )


def _rows(
    graph: fg.Graph, labels: Labels, result: Any
) -> Iterable[tuple[Any, str, str]]:
    names = graph.vertex_names
    sure = result.distributions.max(axis=1)
    for v, label in enumerate(result.labels.tolist()):
        vertex = v if names is None else names[v]
        yield vertex, str(labels.names[label]) if label >= 0 else "", f"{sure[v]:.6g}"


def _write(stream: Any, rows: Iterable[tuple[Any, str, str]], format_: str) -> None:
    delimiter = "\t" if format_ == "tsv" else ","
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    writer.writerow(("vertex", "label", "probability"))
    writer.writerows(rows)
