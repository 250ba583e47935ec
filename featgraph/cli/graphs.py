"""Graphs on the command line, and ``featgraph convert``, which stores one as slices.

`add_graph_options` adds the options of a graph to read and its format,
`read_given_graph` reads it, and `vertices_named` looks up names of vertices. Ranks read
ranges of the slices that `convert_graph` stores.
"""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import FileFormatError
from featgraph.cli.results import require_place
from featgraph.graph.formats.readers import (
    EDGE_LISTS,
    SLICES,
    formats_in_words,
    read_graph,
    suffix_of,
)
from featgraph.graph.graph import Graph

__all__ = [
    "add_convert_options",
    "add_edge_list_options",
    "add_graph_options",
    "add_text_options",
    "column",
    "convert_graph",
    "edge_list_options",
    "read_given_graph",
    "text_options",
    "vertex_ids",
    "vertices_named",
]


#: Name of a separator on the command line -> the separator.
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "blank": " "}


def add_graph_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the graph to read and its format."""
    parser.add_argument(
        "--graph",
        required=True,
        metavar="FILE",
        help=f"{formats_in_words()}, also gzipped; or a folder of slices ({SLICES})",
    )
    add_edge_list_options(parser)


def add_edge_list_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `read_edge_list`."""
    group = parser.add_argument_group("edge lists")
    group.add_argument(
        "--undirected",
        action="store_true",
        help="read each line of an edge list as an undirected edge",
    )
    add_text_options(group)
    chosen = group.add_mutually_exclusive_group()
    chosen.add_argument(
        "--weights",
        type=column,
        metavar="COLUMN",
        help="the column of the weights: its name, or number from 0 (default: the one "
        "named weight in the header)",
    )
    chosen.add_argument(
        "--no-weights", action="store_true", help="ignore a column named weight"
    )
    group.add_argument(
        "--names",
        action=argparse.BooleanOptionalAction,
        help="whether ids are names of vertices, and may be words; else they are the "
        "numbers of vertices, some of which may have no edges (default: names)",
    )
    group.add_argument(
        "--vertex-count",
        type=int,
        metavar="V",
        help="number of vertices; ids are then numbers, not names",
    )
    group.add_argument(
        "--duplicates",
        choices=["keep", "sum", "min", "max", "first", "last", "error"],
        help="how repeated edges are combined (default: keep)",
    )


def add_text_options(parser: argparse._ActionsContainer) -> None:
    """Add the options for the columns of a table's lines."""
    parser.add_argument(
        "--columns",
        type=_columns,
        metavar="A,B",
        help="the columns of source and target: names, or numbers from 0 (default: "
        "those named source and target in the header, else 0,1)",
    )
    parser.add_argument(
        "--separator",
        type=lambda text: _SEPARATORS.get(text, text),
        metavar="S",
        help="comma, semicolon, tab or blank (default: detected in the first line)",
    )
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="whether the first line has names of columns (default: detected)",
    )
    parser.add_argument(
        "--comments",
        metavar="CHARACTERS",
        help="lines that begin with one of these are skipped (default: #%%)",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        metavar="N",
        help="limit of bytes of text, and of memory that a header may request",
    )


def column(text: str) -> int | str:
    """Return a column: an integer for a number, else its name."""
    return int(text) if text.isdecimal() else text


def _columns(text: str) -> tuple[int | str, ...]:
    found = tuple(map(column, text.split(",")))
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 0,1 or source,target")
    return found


def text_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return values of text options by the names of `read_edge_list`."""
    names = ("columns", "separator", "header", "comments", "max_bytes")
    return _given(options, names)


def edge_list_options(path: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return values of edge list options by the names of `read_edge_list`."""
    names = ("weights", "names", "vertex_count", "duplicates")
    found = text_options(options) | _given(options, names)
    if suffix_of(path) in EDGE_LISTS and not options.no_weights:
        found.setdefault("weights", "auto")
    return found


def _given(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def read_given_graph(options: argparse.Namespace) -> Graph:
    """Read the graph of the options.

    Raises
    ------
    FeatGraphError
        If a file is malformed, or its format has no such options.
    """
    directed = False if options.undirected else None
    given = edge_list_options(options.graph, options)
    graph = read_graph(options.graph, directed, **given)
    is_quiet = getattr(options, "quiet", True)
    if given.get("weights") == "auto" and graph.weights is not None and not is_quiet:
        print("weights: column weight; --no-weights leaves it out", file=sys.stderr)
    return graph


def vertex_ids(flag: str, given: str, graph: Graph) -> npt.NDArray[Any]:
    """Return the ids in a comma-separated list, for `vertices_named`."""
    (words,) = csv.reader([given], skipinitialspace=True)
    if isinstance(graph.vertex_names, tuple):
        return np.array(words)
    try:
        return np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        raise FileFormatError(
            "not ids of vertices", where=flag, got=given, expected="0,5,7"
        ) from None


def vertices_named(
    path: str, listed: npt.NDArray[Any], graph: Graph
) -> npt.NDArray[np.int64]:
    """Return the vertices with the names `listed` in the graph's file."""
    names = graph.vertex_names
    if names is None:
        known = f"0 to {graph.vertex_count - 1}"
        is_known = np.zeros(listed.size, np.bool_)
        vertices = listed
        if listed.dtype.kind == "i":
            is_known = (listed >= 0) & (listed < graph.vertex_count)
    else:
        number = {str(name): v for v, name in enumerate(names)}
        vertices = np.array([number.get(str(name), -1) for name in listed], np.int64)
        is_known = vertices >= 0
        known = f"one of {len(number):,} names, such as {names[0]}"
    if not is_known.all():
        raise FileFormatError(
            "the graph has no such vertex",
            where=path,
            got=listed[np.argmin(is_known)],
            expected=known,
        )
    return vertices


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``featgraph convert``."""
    parser.add_argument(
        "graph", metavar="IN", help=f"a file: {formats_in_words()}, also gzipped"
    )
    parser.add_argument("output", metavar="OUT.fgs", help="the folder to make")
    parser.add_argument(
        "--order",
        choices=["given", "spread", "locality", "metis"],
        default="given",
        help="order in which vertices are stored: ranks own ranges of it; all but "
        "given need memory for the whole graph",
    )
    parser.add_argument(
        "--parts",
        type=int,
        default=16,
        metavar="N",
        help="number of ranks for which spread and metis are computed (default: "
        "%(default)s)",
    )
    add_edge_list_options(parser)
    parser.set_defaults(command=convert_graph)


def convert_graph(options: argparse.Namespace) -> None:
    """Write the folder of slices, and print a summary.

    Raises
    ------
    FeatGraphError
        If the file is malformed, or the folder cannot be made.
    """
    from featgraph.graph.formats.convert import convert

    if not options.output.endswith(".fgs"):
        raise FileFormatError(
            "a folder of slices is recognized by its suffix",
            where=options.output,
            expected="a name that ends in .fgs",
        )
    require_place(options.output, makes_folders=True)
    made = convert(
        options.graph,
        options.output,
        False if options.undirected else None,
        order=options.order,
        parts=options.parts,
        **edge_list_options(options.graph, options),
    )
    kind = "directed" if made.directed else "undirected"
    weights = "" if made.weights_dtype is None else f", {made.weights_dtype} weights"
    print(
        f"{options.output}: {made.vertex_count:,} vertices, {made.given_count:,} edges "
        f"given, {kind}{weights}"
    )
