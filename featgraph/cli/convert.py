"""``featgraph convert``: store a graph as slices, of which ranks read ranges."""

from __future__ import annotations

import argparse

from featgraph.base.errors import FileFormatError
from featgraph.cli.graphs import add_edge_list_options, edge_list_options
from featgraph.cli.results import require_place
from featgraph.graph.formats.readers import formats_in_words

__all__ = ["add_convert_options", "convert_graph"]


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "graph",
        metavar="IN",
        help=f"a file: {formats_in_words()}, also gzipped",
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
            "a folder of slices is known by its suffix",
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
