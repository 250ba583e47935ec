"""The one entry: ``python -m bench.run NAME [options]``.

A bench is a module with ``DEFAULTS``, ``run(arguments, recorder)`` and, for options of
its own, ``add_arguments(parser)``. Only the chosen one is imported, so that PyTorch and
CuPy are needed by GPU benches alone. Runs wait until their kernels are compiled, so
that the second of two is warm; benches with ``COMPILES_BEHIND`` wait themselves.
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


#: Options of all benches whose `DEFAULTS` have a value for them.
SHARED: dict[str, dict[str, Any]] = {
    "target": {"choices": ["cpu", "cuda"], "help": "where it runs"},
    "budget": {"type": float, "help": "s after which nothing starts"},
    "cell": {"type": float, "help": "most s of a cell"},
    "data": {"help": "folder of the data sets"},
    "page": {"help": "Markdown page to write"},
}


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


def main(argv: list[str] | None = None) -> int:
    """Run one bench; 1 if one of its checks failed or a contender raised."""
    argv = sys.argv[1:] if argv is None else argv
    parser = common_parser()
    if not argv or argv[0] not in BENCHES:
        parser.parse_args(argv)  # prints help or the error, and ends
    module: Any = importlib.import_module(BENCHES[argv[0]])
    parser.description = module.__doc__
    defaults = dict(module.DEFAULTS)
    for name in defaults.keys() & SHARED.keys():
        parser.add_argument(f"--{name}", **SHARED[name])
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
