"""``featgraph run NAME``: algorithms on graphs and values from files.

`run_algorithm` runs any algorithm: its signature gives the options, and `results` makes
a table of the result. Label propagation has its own command, `run_label_propagation`,
in which labels may be words.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms import label_propagation
from featgraph.base.errors import FileFormatError
from featgraph.cli.flags import ALGORITHMS, UNDIRECTED, speaking_of_flags
from featgraph.cli.graphs import (
    add_graph_options,
    add_text_options,
    read_given_graph,
    text_options,
    vertex_ids,
    vertices_named,
)
from featgraph.cli.results import (
    FORMATS,
    Table,
    check_output,
    columns_of,
    names_of,
    summary_of,
    write_result,
)

__all__ = ["run_algorithm", "run_label_propagation"]


#: Argument -> value of vertices without a line ``vertex value`` in a file; else 0.
_FILL = {"voltages": np.nan, "given": np.nan, "labels": -1}
#: Arguments that are ids of vertices, as in the graph's file.
_VERTICES = frozenset({"sources"})
#: Arguments without an option.
_LEFT_OUT = frozenset({"callback", "history", "initial"})
#: Algorithms that run foldmaps one by one, without `featgraph.iterate` and its
#: progress bar.
_SILENT = frozenset(
    {"betweenness-centrality", "closeness-centrality", "strongly-connected-components"}
)
_PLAIN: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


def run_algorithm(name: str, arguments: list[str]) -> None:
    """Run an algorithm by its name with dashes.

    Parameters
    ----------
    name : str
        A key of `featgraph.cli.flags.ALGORITHMS`.
    arguments : list of str
        The arguments after the name on the command line.

    Raises
    ------
    FeatGraphError
        If a file is malformed or an option is out of range.
    OSError
        If a file cannot be read or written.
    """
    import featgraph.algorithms

    function = getattr(featgraph.algorithms, name.replace("-", "_"))
    parser = argparse.ArgumentParser(
        prog=f"featgraph run {name}", description=f"{ALGORITHMS[name].capitalize()}."
    )
    first, *others = inspect.signature(function).parameters.values()
    {"graph": add_graph_options, "ratings": _add_ratings, "model": _add_model}[
        first.name
    ](parser)
    taken = [p for p in others if _add_argument(parser, p)]
    _add_output(parser)
    options = parser.parse_args(arguments)
    if name in UNDIRECTED:
        options.undirected = True
    with speaking_of_flags(parser):
        _run(name, function, first.name, taken, options)


def _run(
    name: str,
    function: Callable[..., Any],
    takes: str,
    taken: list[inspect.Parameter],
    options: argparse.Namespace,
) -> None:
    check_output(options.output, options.format)  # before the work, not after it
    read = {"graph": read_given_graph, "ratings": _read_ratings, "model": _read_model}
    source = read[takes](options)
    given = {p.name: _value(p, options, source) for p in taken}
    given = {key: value for key, value in given.items() if value is not None}
    if takes == "model" and options.evidence is not None:
        bound = options.max_bytes
        given["evidence"] = fg.read_uai_evidence(options.evidence, max_bytes=bound)
    if name not in _SILENT and not options.quiet and sys.stderr.isatty():
        given["progress"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)  # in the summary
        result = function(source, **given, target=options.target)
    if not options.quiet:
        print(summary_of(result), file=sys.stderr)
    write_result(columns_of(name, source, result), options.output, options.format)


def _add_argument(
    parser: argparse.ArgumentParser, parameter: inspect.Parameter
) -> bool:
    """Add the option for an argument; return False if it cannot have one."""
    name, kind = parameter.name, str(parameter.annotation)
    is_needed = parameter.default is parameter.empty
    if (
        parameter.kind is parameter.VAR_KEYWORD
        or name in _LEFT_OUT
        or "Mapping" in kind
    ):
        return False
    flag = f"--{name.replace('_', '-')}"
    shown = "" if is_needed or parameter.default is None else " (default: %(default)s)"
    if "ArrayLike" in kind:
        if name == "weights" and not is_needed:
            return False
        what = "a number, or a file: lines `vertex value`, or .npy"
        if name in _VERTICES:
            what = "ids of vertices as in the graph's file, separated by commas"
        elif name == "weights":  # --weights already selects weights of the graph
            flag, what = "--edge-weights", "a .npy file with one row per edge"
        parser.add_argument(flag, required=is_needed, metavar="FILE", help=what)
    elif kind == "bool":
        parser.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=parameter.default
        )
    elif "DTypeLike" in kind:
        default = np.dtype(parameter.default).name
        choices = ["float32", "float64"]
        parser.add_argument(flag, choices=choices, default=default, help=shown or None)
    elif kind.split(" ")[0] in _PLAIN:
        parser.add_argument(
            flag,
            type=_PLAIN[kind.split(" ")[0]],
            default=None if is_needed else parameter.default,
            required=is_needed,
            metavar=name.upper()[:1],
            help=shown.strip() or None,
        )
    else:
        return False
    return True


def _add_ratings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ratings",
        required=True,
        metavar="FILE",
        help="lines `user item rating` with ids from 0, or a SciPy sparse .npz",
    )
    add_text_options(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FILE", help=".bif or .uai")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="most bytes of text")
    parser.add_argument("--evidence", metavar="FILE", help="in the UAI format")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of --output, else csv; npy has the first array",
    )
    parser.add_argument("--quiet", action="store_true", help="no summary, no progress")
    parser.add_argument("--target", choices=["auto", "cpu", "cuda"], default="auto")


def _value(
    parameter: inspect.Parameter, options: argparse.Namespace, source: Any
) -> Any:
    """Return the value of an argument: a number, or an array read from a file."""
    name, is_array = parameter.name, "ArrayLike" in str(parameter.annotation)
    is_of_edges = name == "weights" and is_array
    given = getattr(options, "edge_weights" if is_of_edges else name)
    if given is None or not is_array:
        return given
    if name in _VERTICES:
        ids = vertex_ids(f"--{name}", given, source)
        found = vertices_named(f"--{name}", ids, source)
        return int(found[0]) if len(found) == 1 else found
    if name == "dangling" and given == "renormalize":
        return given
    if not Path(given).exists():
        try:
            return float(given)
        except ValueError:
            raise FileNotFoundError(f"{given}: there is no such file") from None
    if given.endswith(".npy"):
        try:
            return np.load(given, allow_pickle=False)
        except (ValueError, EOFError, MemoryError) as error:
            raise FileFormatError("not a .npy file", where=given, got=error) from error
    if is_of_edges:
        raise FileFormatError(
            "weights of edges that are no .npy file",
            where="--edge-weights",
            got=given,
            fix="save a row for each edge, in the order of the graph's file, by "
            "numpy.save",
        )
    return _vertex_values(given, _FILL.get(name, 0), source)


def _vertex_values(path: str, fill: float, graph: fg.Graph) -> Any:
    """Return the values of a file of lines ``vertex value``, shape (V,)."""
    listed, values = fg.read_labels(path)
    try:
        numbers = values.astype(np.int64 if values.dtype.kind == "i" else np.float64)
    except ValueError as error:
        raise FileFormatError("a value is no number", where=path, got=error) from error
    dtype = np.float64 if np.isnan(fill) else np.result_type(numbers, np.int64)
    found = np.full(graph.vertex_count, fill, dtype)
    found[vertices_named(path, listed, graph)] = numbers
    return found


def _read_ratings(options: argparse.Namespace) -> Any:
    from scipy import sparse

    path = options.ratings
    if os.fspath(path).endswith(".npz"):
        try:
            return sparse.load_npz(path)
        except (ValueError, KeyError, EOFError, MemoryError) as error:
            raise FileFormatError(
                "not a sparse matrix", where=path, got=error
            ) from error
    listed = fg.read_edge_list(path, weights=2, names=False, **text_options(options))
    users, items, weights = listed.sources, listed.targets, listed.weights
    return sparse.coo_matrix((np.asarray(weights, np.float32), (users, items)))


def _read_model(options: argparse.Namespace) -> fg.FactorGraph:
    is_bif = options.model.removesuffix(".gz").endswith(".bif")
    read = fg.read_bif if is_bif else fg.read_uai
    return read(options.model, max_bytes=options.max_bytes)


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
        print(_summary_of_labels(graph, labels, result), file=sys.stderr)
    found, sure = result.labels, result.distributions.max(axis=1)
    columns = {
        "vertex": names_of(graph)[:-1],
        "label": [str(labels.names[i]) if i >= 0 else "" for i in found.tolist()],
        "probability": [f"{share:.6g}" for share in sure],
    }
    write_result(Table(columns, found, {}), options.output, options.format)


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
    """Read the file of labels, and number the labels."""
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
            expected="one label for each vertex",
        )
    of_vertex = np.full(graph.vertex_count, -1, np.int64)
    of_vertex[vertices] = codes
    return Labels(of_vertex, names)


def _summary_of_labels(graph: fg.Graph, labels: Labels, result: Any) -> str:
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
