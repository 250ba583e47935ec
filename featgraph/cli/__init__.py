"""The command line: ``featgraph convert``, ``data``, ``demo``, ``forecast``, ...

`main` parses the arguments, and runs a command. The options of a command are defined
here, or by its module; `flags` replaces Python options by flags in errors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from featgraph import __version__
from featgraph.base.errors import FeatGraphError
from featgraph.cli.data import add_data_options
from featgraph.cli.flags import ALGORITHMS, known_algorithm, speaking_of_flags
from featgraph.cli.graphs import add_convert_options
from featgraph.cli.ranks import add_forecast_options, add_launch

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: the arguments of the process.

    Returns
    -------
    int
        Exit status: 0; 2 for an error in the input or an option, which is printed to
        stderr without a traceback; 1 if a rank failed.
    """
    # OpenMP threads spin at the end of a parallel loop, and on a busy machine the one
    # that others wait for gets no core: 129 supersteps on the digits took 3.1 s, and
    # 0.06 s without spinning (2 cores at a load of 4, 2026-11-21). libgomp reads this
    # variable when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Commands import their modules when they run: --help and --version are fast.
    options = _parser().parse_args(arguments)
    try:
        with speaking_of_flags(options.parser):
            status = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        # The interpreter flushes buffered output at its end, and needs a destination.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FeatGraphError, OSError) as error:
        print(f"featgraph: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("featgraph: interrupted", file=sys.stderr)
        return 130
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="featgraph",
        description="Graph-based learning, folded into one kernel for GPU or CPU.",
    )
    parser.add_argument(
        "--version", action="version", version=f"featgraph {__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_convert(commands)
    _add_data(commands)
    _add_demo(commands)
    _add_forecast(commands)
    add_launch(commands)
    _add_list(commands)
    _add_run(commands)
    _add_show(commands)
    _add_warm(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _add_convert(commands: Commands) -> None:
    parser = commands.add_parser(
        "convert",
        help="store a graph so that each of several ranks reads its own part",
        description="Make a folder of slices of a graph: each rank reads its own part "
        'with fg.read_graph("OUT.fgs", partition="edges").',
    )
    add_convert_options(parser)


def _add_data(commands: Commands) -> None:
    parser = commands.add_parser(
        "data",
        help="download a public data set by its name, for the tutorials",
        description="Download a public data set over HTTPS, verify its checksums, and "
        "print its licence and the paths of its files: in the folder FEATGRAPH_DATA if "
        "this variable is set, else in ~/.cache/featgraph/data. Files that exist are "
        "not downloaded again.",
    )
    add_data_options(parser)


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="label propagation on handwritten digits, with a picture",
        description="Label 1,797 handwritten digits from a few labelled ones, beside "
        "scikit-learn on the same graph, and draw the results.",
    )
    demo.add_argument(
        "--output", metavar="FILE", default="featgraph-demo.png", help="the picture"
    )
    demo.add_argument(
        "--labelled",
        type=_fraction,
        default=0.05,
        metavar="SHARE",
        help="share of the digits that is labelled (default: %(default)s)",
    )
    demo.add_argument("--neighbors", type=_positive, default=7, metavar="N")
    demo.add_argument("--seed", type=int, default=0)
    _add_target(demo)
    demo.set_defaults(command=_demo)


def _add_forecast(commands: Commands) -> None:
    parser = commands.add_parser(
        "forecast",
        help="predict the memory, traffic and time of a graph on several ranks",
        description="Count, from real partitions, the edges, vertices and memory of "
        "each rank, and the rows sent in a superstep; and predict times by a model. "
        "Needs no ranks.",
    )
    parser.add_argument(
        "--k", type=_positive, default=1, help="features of a vertex (default: 1)"
    )
    add_forecast_options(parser)


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run an algorithm on files of your own",
        description="Run an algorithm on files of your own. `featgraph list` lists the "
        "algorithms, and `featgraph run ALGORITHM --help` describes the arguments of "
        "one.",
    )
    run.add_argument("algorithm", metavar="ALGORITHM", help="e.g. pagerank")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    run.set_defaults(command=_run)


def _add_list(commands: Commands) -> None:
    parser = commands.add_parser(
        "list",
        help="list the algorithms, one per line",
        description="List the algorithms, one per line.",
    )
    parser.set_defaults(command=_list)


def _label_propagation_parser() -> argparse.ArgumentParser:
    from featgraph.cli.graphs import add_graph_options

    parser = argparse.ArgumentParser(
        prog="featgraph run label-propagation",
        description="Spread the labels of some vertices to all others. Writes CSV: "
        "vertex, label (empty where no label reaches), probability.",
    )
    add_graph_options(parser)
    parser.add_argument(
        "--labels",
        required=True,
        metavar="FILE",
        help="lines `vertex label`, or a CSV table with a header; vertices left out, "
        "and label -1, are unlabelled",
    )
    parser.add_argument(
        "--column", help="column of a label table with a header (default: label)"
    )
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    parser.add_argument("--format", choices=["csv", "tsv"], default="csv")
    parser.add_argument("--alpha", type=float, default=0.85)
    parser.add_argument("--epsilon", type=float, default=1e-3)
    parser.add_argument("--max-supersteps", type=_positive, default=1000, metavar="N")
    parser.add_argument(
        "--no-clamp", action="store_true", help="let labelled vertices change, too"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_target(parser)
    return parser


def _add_show(commands: Commands) -> None:
    show = commands.add_parser(
        "show",
        help="print the plan, the passes, the kernel or the PTX of a foldmap",
        description="Print a foldmap at one stage of its compilation. Needs no GPU.",
    )
    show.add_argument(
        "module",
        metavar="MODULE[:NAME]",
        help="an algorithm (label_propagation), a module, or a .py file; NAME is the "
        "foldmap in it, required if there are several and none is named step",
    )
    stages = ["plan", "passes", "source", "ptx"]
    show.add_argument("--at", choices=stages, default="source")
    show.add_argument(
        "--pass",
        dest="pass_name",
        metavar="PASS",
        default="",
        help="with --at passes: only the trees before and after this pass",
    )
    show.add_argument("--k", type=_positive, default=8, help="features (default: 8)")
    show.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    show.add_argument("--target", choices=["cpu", "cuda"], default=None)
    show.add_argument(
        "--schedule",
        default="auto",
        metavar="NAME",
        help="division of work among threads: see schedule= of foldmaps",
    )
    show.add_argument(
        "--cc",
        type=_compute_capability,
        default=(9, 0),
        metavar="X.Y",
        help="compute capability, for PTX (default: 9.0)",
    )
    show.set_defaults(command=_show)


def _add_warm(commands: Commands) -> None:
    warm = commands.add_parser(
        "warm",
        help="compile kernels now, for the first calls of later processes",
        description="Run algorithms on small graphs of all kinds, and store their "
        "kernels: a later process that calls these algorithms compiles nothing. "
        "`featgraph list` lists them.",
    )
    warm.add_argument(
        "algorithms", nargs="*", metavar="ALGORITHM", help="default: all of them"
    )
    warm.add_argument(
        "--target",
        choices=["cpu", "cuda"],
        default="cpu",
        help="target to compile for (default: cpu); cuda needs no GPU",
    )
    warm.add_argument(
        "--cc",
        type=_compute_capability,
        metavar="X.Y",
        help="compute capability, for cuda (default: that of the GPU)",
    )
    warm.add_argument(
        "--k",
        type=_widths,
        default=(8,),
        metavar="K,K",
        help="number of features, classes or factors, or several (default: 8)",
    )
    warm.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of processes that compile (default: one per core)",
    )
    warm.set_defaults(command=_warm)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["auto", "cpu", "cuda"], default="auto")


def _demo(options: argparse.Namespace) -> None:
    from featgraph.cli.demo import demo

    demo(options)


def _run(options: argparse.Namespace) -> None:
    name = known_algorithm(options.algorithm)
    if name == "label-propagation":
        from featgraph.cli.algorithms import run_label_propagation

        parser = _label_propagation_parser()
        with speaking_of_flags(parser):
            run_label_propagation(parser.parse_args(options.arguments))
        return
    from featgraph.cli.algorithms import run_algorithm

    run_algorithm(name, options.arguments)


def _list(options: argparse.Namespace) -> None:
    width = max(map(len, ALGORITHMS))
    for name, line in ALGORITHMS.items():
        print(f"{name:<{width}}  {line}")


def _show(options: argparse.Namespace) -> None:
    from featgraph.cli.kernels import show

    show(options)


def _warm(options: argparse.Namespace) -> None:
    from featgraph.cli.kernels import warm

    warm(options)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(_positive, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 8,32") from None


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _compute_capability(text: str) -> tuple[int, int]:
    major, separator, minor = text.partition(".")
    if not (separator and major.isdecimal() and minor.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 9.0")
    return int(major), int(minor)
