"""``featgraph forecast``: the cost of a graph on several ranks.

The parser of every command imports this module: slow imports are made when the command
runs.
"""

from __future__ import annotations

import argparse
import csv
import sys

import numpy as np

from featgraph.cli.graphs import add_edge_list_options, read_given_graph
from featgraph.graph.formats.readers import SLICES, formats_in_words, suffix_of
from featgraph.graph.graph import Graph
from featgraph.graph.slices.read import map_slices
from featgraph.ranks.cost.forecast import COLUMNS, TIMES, forecast
from featgraph.ranks.cost.machine import H200, Machine
from featgraph.ranks.engines.links import LINKS

__all__ = ["add_forecast_options", "print_forecast"]

#: Machines, and the links that are usual between them.
MACHINES = {"h200": "nvlink,400g,100g", "cpu": "shared,gloo,100g"}


def add_forecast_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "columns, with every vertex active:\n" + "\n".join(
        f"  {name:<11}{meaning}" for name, meaning in (COLUMNS | TIMES).items()
    )
    parser.add_argument(
        "graph",
        metavar="GRAPH",
        help=f"a file: {formats_in_words()}, also gzipped; or a folder of slices, "
        "which is gone through row by row in its own order",
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
        "--machine",
        choices=[*MACHINES, "none"],
        default="h200",
        help="what each rank is: an NVIDIA H200, by constants that are kept "
        "(default); the CPU of this machine, which is measured; none for counts alone",
    )
    parser.add_argument(
        "--links",
        metavar="LIST",
        help=f"between ranks, of {', '.join(LINKS)}; default by the machine: "
        + "; ".join(f"{name}: {links}" for name, links in MACHINES.items()),
    )
    parser.add_argument("--format", choices=["table", "csv"], default="table")
    add_edge_list_options(parser)
    parser.set_defaults(command=print_forecast)


def print_forecast(options: argparse.Namespace) -> None:
    """Print a line for each number of ranks.

    Parameters
    ----------
    options : argparse.Namespace
        Those of `add_edge_list_options`; graph, ranks, layout, order, balance, k,
        dtype, machine, links, format.

    Raises
    ------
    FeatGraphError
        If the file is malformed, or an option is out of range.
    """
    found = forecast(
        _graph_of(options),
        options.ranks,
        layout=options.layout,
        order=options.order,
        balance=tuple(options.balance),
        row_bytes=options.k * np.dtype(options.dtype).itemsize,
        on=_ranks_of(options),
    )
    if options.format == "table":
        print(found.table())
        return
    rows = found.rows()
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _graph_of(options: argparse.Namespace) -> Graph:
    """Return the graph; of slices in their own order, only offsets are loaded."""
    if suffix_of(options.graph) == SLICES and options.order == "given":
        return Graph(map_slices(options.graph))
    return read_given_graph(options)


def _ranks_of(options: argparse.Namespace) -> tuple[Machine, list[str]] | None:
    """Return the machine of ranks, and the links to compare; None for counts only."""
    if options.machine == "none":
        return None
    links = options.links or MACHINES[options.machine]
    machine = H200
    if options.machine == "cpu":
        from featgraph.ranks.cost.calibrate import calibrate  # loads Numba

        machine = calibrate("cpu")
    return machine, [name for name in links.split(",") if name]


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
