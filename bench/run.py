"""The one entry: ``python -m bench.run NAME [options]``.

A bench is a module with ``run(arguments, recorder)`` and ``DEFAULTS``. Its entries are
options, which have the types of their defaults; those of lists take several values.
``CHOICES`` has the values that are allowed, and ``add_arguments(parser)`` adds other
options. Only the chosen bench is imported, so that PyTorch and CuPy are needed by GPU
benches alone. Runs wait until their kernels are compiled, so that the second of two is
warm; benches with ``COMPILES_BEHIND`` wait themselves.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import featgraph as fg
from bench.record import Recorder
from bench.report import print_report

BENCHES = {
    "als-accuracy": "bench.algorithms.als_accuracy",
    "als-cpu": "bench.algorithms.als_cpu",
    "als-gpu": "bench.algorithms.als_gpu",
    "bp-accuracy": "bench.algorithms.bp_accuracy",
    "superstep-cpu": "bench.algorithms.superstep_cpu",
    "change-driven": "bench.algorithms.change_driven",
    "any-order": "bench.algorithms.any_order",
    "superstep-gpu": "bench.schedules.superstep_gpu",
    "mapping-gpu": "bench.schedules.mapping_gpu",
    "overhead": "bench.schedules.overhead",
    "build-gpu": "bench.schedules.build_gpu",
    "compile": "bench.compile.first_kernel",
    "variants-gpu": "bench.learning.variants_gpu",
    "features-gpu": "bench.learning.features_gpu",
    "folding-gpu": "bench.learning.folding_gpu",
    "bounds-gpu": "bench.learning.bounds_gpu",
    "sanitizers-gpu": "bench.sanitizers.session",
    "algorithms-cpu": "bench.algorithms.algorithms_cpu",
    "classics-cpu": "bench.classics.cpu",
    "classics-gpu": "bench.classics.gpu",
    "readers-cpu": "bench.classics.readers_cpu",
    "forecasts": "bench.distributed.forecasts",
    "lux-gpu": "bench.distributed.lux_gpu",
    "networkx-cpu": "bench.algorithms.networkx_cpu",
    "sgd-locks": "bench.sgd.locks",
    "sgd-counters": "bench.sgd.counters",
    "sgd-accuracy": "bench.sgd.accuracy",
    "sgd-convergence": "bench.sgd.convergence",
    "sgd-cpu": "bench.sgd.cpu",
    "sgd-sweeps": "bench.sgd.sweeps",
    "dynamic-batches": "bench.dynamic.batches",
    "dynamic-following": "bench.dynamic.following",
    "dynamic-stream": "bench.dynamic.stream",
    "dynamic-tables": "bench.dynamic.tables",
}


#: Options of `DEFAULTS` whose names do not say all.
HELP = {
    "algorithms": "functions to call, by commas, or all",
    "blocks": "bounds on blocks of a multiprocessor; 0 for none",
    "budget": "s after which nothing starts",
    "cell": "most s of a cell",
    "data": "folder of the data sets",
    "days": "length and step of a window",
    "functions": "names; default all",
    "gpus": "ranks, beside one",
    "hub_blocks": "bounds on blocks of hubs, with FA",
    "lazy": "calls import Numba",
    "limit": "most s of a trial, or of ncu",
    "logs": "folder that logs with errors are copied to",
    "markdown": "page with the tables",
    "mixed": "insert and delete at once",
    "page": "Markdown page to write",
    "per_doubling": "sizes of runs",
    "probe_graph": "graph for counting; none to leave out",
    "probe_limit": "s that the counting may take",
    "ranks": "2,4,8 or 2..1024",
    "ratings": "how many are factorised",
    "rounds": "of the whole protocol, or of the table of memory",
    "scale": "2**scale vertices of an R-MAT graph",
    "seconds": "most that a cell repeats for",
    "size": "V,E of a uniform graph",
    "sizes": "updates of a batch, or vertices",
    "skip": "days before the first window",
    "supersteps": "at most",
    "target": "where it runs",
    "tools": "names, by commas",
    "wait": "compile nothing behind calls",
    "weak": "edges grow with ranks",
    "without": "libraries that are not called",
    "workers": "processes that compile kernels ahead; 0 for none",
}
#: Types of options without a default.
TYPES = {"scale": int}


def comma_integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def comma_names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def common_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--graph", type=comma_names, help="named graphs, by commas")
    parser.add_argument("--k", type=comma_integers, help="feature counts, by commas")
    parser.add_argument("--repeat", type=int, help="timed trials of each contender")
    parser.add_argument("--output", help="file that result lines are appended to")
    return parser


def add_option(
    parser: argparse.ArgumentParser, name: str, default: Any, choices: Any
) -> None:
    """Add the option of an entry of `DEFAULTS`."""
    how: dict[str, Any] = {"help": HELP.get(name)}
    if isinstance(default, bool):
        how["action"] = "store_true"
    else:
        is_list = isinstance(default, list)
        one = next(iter(default), None) if is_list else default
        how["type"] = TYPES.get(name, str) if one is None else type(one)
        how |= {"choices": choices, "nargs": "*" if is_list else None}
    parser.add_argument(f"--{name.replace('_', '-')}", **how)


def main(argv: list[str] | None = None) -> int:
    """Run one bench; 1 if one of its checks failed or a contender raised."""
    argv = sys.argv[1:] if argv is None else argv
    parser = common_parser()
    if not argv or argv[0] not in BENCHES:
        parser.parse_args(argv)  # prints help or the error, and ends
    module: Any = importlib.import_module(BENCHES[argv[0]])
    parser.description = module.__doc__
    defaults = dict(module.DEFAULTS)
    choices = {"target": ["cpu", "cuda"], **getattr(module, "CHOICES", {})}
    for name in sorted(defaults.keys() - {"graph", "k", "repeat"}):
        add_option(parser, name, defaults[name], choices.get(name))
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    parser.set_defaults(**defaults)
    arguments = parser.parse_args(argv)
    recorder = Recorder(arguments.name, argv, arguments.output)
    before = fg.config.compile_behind
    fg.config.compile_behind = getattr(module, "COMPILES_BEHIND", False)
    try:
        module.run(arguments, recorder)
    finally:
        fg.config.compile_behind = before
    print()
    print_report(recorder.lines)
    return 1 if recorder.has_failures else 0


if __name__ == "__main__":
    sys.exit(main())
