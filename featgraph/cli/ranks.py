"""``featgraph forecast`` and ``featgraph launch``: the cost of ranks, and their start.

Every command imports this module for its options, so modules that load slowly are
imported when the command runs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from featgraph.base.errors import ArgumentError
from featgraph.cli.graphs import add_edge_list_options, read_given_graph
from featgraph.graph.formats.readers import SLICES, formats_in_words, suffix_of
from featgraph.graph.graph import Graph
from featgraph.graph.slices.read import map_slices
from featgraph.ranks.cost.forecast import COLUMNS, TIMES, forecast
from featgraph.ranks.cost.machine import H200, Machine
from featgraph.ranks.engines.links import LINKS

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_forecast_options", "add_launch", "launch", "print_forecast"]


#: Machines, and the links that are usual between them.
MACHINES = {"h200": "nvlink,400g,100g", "cpu": "shared,gloo,100g"}


def add_forecast_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``featgraph forecast``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "columns, with every vertex active:\n" + "\n".join(
        f"  {name:<11}{meaning}" for name, meaning in (COLUMNS | TIMES).items()
    )
    parser.add_argument(
        "graph",
        metavar="GRAPH",
        help=f"a file: {formats_in_words()}, also gzipped; or a folder of slices, of "
        "which only offsets are loaded with --order given",
    )
    parser.add_argument(
        "--ranks",
        type=rank_counts,
        default=rank_counts("2..16"),
        metavar="LIST",
        help="numbers such as 2,4,8, or 2..1024 by doubling (default: 2..16)",
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
        help="weights of an in-edge, a vertex and a ghost (default: 1 8 0)",
    )
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument(
        "--machine",
        choices=[*MACHINES, "none"],
        default="h200",
        help="machine of each rank: an NVIDIA H200, by stored constants (default); the "
        "CPU of this machine, which is measured; or none, for counts only",
    )
    parser.add_argument(
        "--links",
        metavar="LIST",
        help=f"links between ranks: {', '.join(LINKS)}; default by the machine: "
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
    """Return numbers of ranks; ``2,4,8``, ``2..8`` and ``2,4,..,8`` are the same.

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


def add_launch(commands: Commands) -> None:
    """Add the command ``featgraph launch``."""
    parser = commands.add_parser(
        "launch",
        help="run a script on several ranks",
        description="Run a script on several ranks, which it joins by "
        "fg.distributed.init(). When a rank fails, the others raise an error that "
        "names it, and end.",
    )
    parser.add_argument("-n", type=int, metavar="N", help="number of ranks")
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="lines `HOST RANKS`; by default all ranks run here",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="most restarts of all ranks after failures (default: 0)",
    )
    parser.add_argument(
        "--gpus",
        action="store_true",
        help="require a GPU for each rank; by default ranks share the GPUs of their "
        "host",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="FOLDER",
        help="write the output of each rank to files in this folder",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds for the other ranks to end after a failure (default: 5)",
    )
    parser.add_argument(
        "--ssh",
        default=None,
        metavar="COMMAND",
        help="prefix that runs a command on another host, with {host} for its name "
        "(default: ssh -o BatchMode=yes {host})",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python of ranks, and on other hosts"
    )
    parser.add_argument("script", help="a .py file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    parser.set_defaults(command=launch)


def launch(options: argparse.Namespace) -> int:
    """Run the script; return the exit status."""
    from featgraph.ranks.launching.launcher import (
        SSH,
        Host,
        Launch,
        command_on,
        read_hosts,
        run,
    )

    for name, least in (("n", 1), ("restarts", 0), ("grace", 0)):
        value = getattr(options, name)
        if value is not None and not least <= value < 1e6:
            flag = "-n" if name == "n" else f"--{name}"
            raise ArgumentError(
                f"{flag} is not a number in range",
                got=value,
                expected=f"{least} or more",
            )
    if options.hosts is not None:
        hosts = read_hosts(options.hosts)
        total = sum(host.ranks for host in hosts)
        if options.n not in (None, total):
            raise ArgumentError(
                "-n and the hosts file differ",
                where=str(options.hosts),
                got=f"-n {options.n}, and {total} ranks of {len(hosts)} hosts",
                fix="leave -n out, or change the file",
            )
    elif options.n is None:
        raise ArgumentError("how many ranks?", fix="-n N, or --hosts FILE")
    else:
        hosts = [Host("localhost", options.n)]
    script = Path(options.script)
    if all(host.is_here for host in hosts) and not script.is_file():
        raise ArgumentError(
            "there is no such script",
            got=options.script,
            expected="a .py file",
            fix="put options of featgraph launch before the script, its own after it",
        )
    ssh = SSH if options.ssh is None else options.ssh
    return run(
        Launch(
            [options.python, options.script, *options.arguments],
            hosts,
            [command_on(host, ssh, options.python) for host in hosts],
            options.restarts,
            options.grace,
            "own" if options.gpus else "auto",
            options.logs,
        )
    )
