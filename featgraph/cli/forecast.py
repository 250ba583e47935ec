"""``featgraph forecast``: what a graph would take on several ranks.

The parser of every command asks for these options: what takes long to import is
imported when the command runs.
"""

from __future__ import annotations

import argparse
import csv
import sys

import numpy as np

from featgraph.graph.partition.forecast import COLUMNS, forecast

__all__ = ["add_forecast_options", "print_forecast"]


def add_forecast_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "columns, with every vertex active:\n" + "\n".join(
        f"  {name:<11}{meaning}" for name, meaning in COLUMNS.items()
    )
    parser.add_argument(
        "graph",
        metavar="GRAPH",
        help="a file: Matrix Market, DIMACS or edge list, also gzipped",
    )
    parser.add_argument(
        "--ranks",
        type=rank_counts,
        default=rank_counts("2..16"),
        metavar="LIST",
        help="such as 2,4,8 or 2..1024, which doubles (default: 2..16)",
    )
    parser.add_argument(
        "--layout",
        choices=["range", "grid"],
        default="range",
        help="ranges of vertices with their in-edges (default), or a grid of ranks, "
        "blocks of targets and sources",
    )
    parser.add_argument(
        "--order", choices=["given", "spread", "locality", "metis"], default="given"
    )
    parser.add_argument(
        "--balance",
        type=float,
        nargs=3,
        default=(1.0, 8.0, 0.0),
        metavar="W",
        help="what an in-edge, a vertex and a ghost weigh (default: 1 8 0)",
    )
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument(
        "--undirected",
        action="store_true",
        help="take each line of an edge list both ways",
    )
    parser.add_argument("--format", choices=["table", "csv"], default="table")
    parser.set_defaults(weights=None, command=print_forecast)


def print_forecast(options: argparse.Namespace) -> None:
    """Print a line for each number of ranks.

    Parameters
    ----------
    options : argparse.Namespace
        graph, weights, undirected, ranks, layout, order, balance, k, dtype, format.

    Raises
    ------
    FeatGraphError
        If the file is malformed, or an option is out of range.
    """
    from featgraph.cli.run import read_given_graph  # loads all algorithms

    found = forecast(
        read_given_graph(options),
        options.ranks,
        layout=options.layout,
        order=options.order,
        balance=tuple(options.balance),
        row_bytes=options.k * np.dtype(options.dtype).itemsize,
    )
    if options.format == "table":
        print(found.table())
        return
    writer = csv.DictWriter(sys.stdout, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.rows())


def rank_counts(text: str) -> list[int]:
    """Read numbers of ranks: ``2,4,8``; ``2..8`` and ``2,4,..,8`` double.

    Raises
    ------
    argparse.ArgumentTypeError
        For anything else.
    """
    found: list[int] = []
    for part in text.replace(",..,", "..").split(","):
        begin, dots, end = part.partition("..")
        if not (begin.isdecimal() and int(begin) and (not dots or end.isdecimal())):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not like 2,4,8 or 2..1024, with numbers from 1 on"
            )
        found.append(int(begin))
        while dots and found[-1] * 2 <= int(end):
            found.append(found[-1] * 2)
    return found
