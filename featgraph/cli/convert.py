"""``featgraph convert``: a graph as a folder of slices, of which ranks read ranges."""

from __future__ import annotations

import argparse
from typing import Any

from featgraph.errors import FileFormatError

__all__ = ["add_convert_options", "convert_graph"]


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "graph",
        metavar="IN",
        help="a file: Matrix Market, DIMACS or edge list, also gzipped",
    )
    parser.add_argument("output", metavar="OUT.fgs", help="the folder to make")
    parser.add_argument(
        "--order",
        choices=["given", "spread", "locality", "metis"],
        default="given",
        help="in which vertices are stored, so that ranks own ranges of it; any but "
        "the one given takes the whole graph in memory",
    )
    parser.add_argument(
        "--parts",
        type=int,
        default=16,
        metavar="N",
        help="ranks that spread and metis are made for (default: %(default)s)",
    )
    parser.add_argument(
        "--undirected",
        action="store_true",
        help="take each line of an edge list both ways",
    )
    parser.add_argument(
        "--weights", metavar="COLUMN", help="of an edge list, from 0 on or by name"
    )
    parser.add_argument(
        "--vertex-count",
        type=int,
        metavar="V",
        help="of an edge list, whose ids are numbers then, and no names",
    )
    parser.add_argument(
        "--duplicates",
        choices=["keep", "sum", "min", "max", "first", "last", "error"],
        default="keep",
        help="what becomes of repeated edges of an edge list",
    )
    parser.set_defaults(command=convert_graph)


def convert_graph(options: argparse.Namespace) -> None:
    """Make the folder, and say what is in it.

    Raises
    ------
    FeatGraphError
        If the file is malformed, or the folder cannot be made.
    """
    from featgraph.graph.formats.convert import convert

    if not options.output.endswith(".fgs"):
        raise FileFormatError(
            "a folder of slices is known by its suffix",
            where=options.output,
            expected="a name that ends in .fgs",
        )
    chosen: dict[str, Any] = {}
    if options.weights is not None:
        is_number = options.weights.isdecimal()
        chosen["weights"] = int(options.weights) if is_number else options.weights
    if options.vertex_count is not None:
        chosen["vertex_count"] = options.vertex_count
    if options.duplicates != "keep":
        chosen["duplicates"] = options.duplicates
    made = convert(
        options.graph,
        options.output,
        False if options.undirected else None,
        order=options.order,
        parts=options.parts,
        **chosen,
    )
    kind = "directed" if made.directed else "undirected"
    weights = "" if made.weights_dtype is None else f", {made.weights_dtype} weights"
    print(
        f"{options.output}: {made.vertex_count:,} vertices, {made.given_count:,} edges "
        f"given, {kind}{weights}"
    )
