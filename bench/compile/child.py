"""A fresh process that folds, compiles and runs label propagation, timing each.

Started by `bench.compile.first_kernel`; prints one JSON object of seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any


def main() -> None:
    """Import, set up, fold, compile and run, run again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--k", type=int, default=8)
    arguments = parser.parse_args()
    seconds: dict[str, Any] = {}
    clock = [time.perf_counter()]

    def lap(name: str) -> None:
        clock.append(time.perf_counter())
        seconds[name] = clock[-1] - clock[-2]

    import featgraph as fg

    lap("import_featgraph_s")
    has_gpu = _import_compiler(arguments.target)
    lap("import_compiler_s")
    from bench.programs import Problem, step

    graph = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], vertex_count=64)
    problem = Problem(graph, arguments.k)
    _ = graph.in_edges, graph.in_degree, graph.out_degree
    lap("setup_s")
    kernel = step.kernel(problem.state, arguments.target, {})
    lap("fold_s")
    if has_gpu or arguments.target == "cpu":
        from featgraph.runtime.devices.choose import choose_device

        device = choose_device(arguments.target)
        superstep = step.prepare(problem.state, device, {})

        def once() -> None:
            superstep.run()
            device.synchronize()
    else:

        def once() -> None:
            kernel.resources((9, 0))

    once()
    lap("compile_and_first_run_s")
    once()
    lap("second_run_s")
    seconds["launched"] = has_gpu or arguments.target == "cpu"
    json.dump(seconds, sys.stdout)


def _import_compiler(target: str) -> bool:
    """Import Numba, its CUDA dialect and context; return whether there is a GPU."""
    import numba  # noqa: F401

    if target == "cpu":
        return False
    from featgraph import _cuda

    _cuda.require()
    if not _cuda.is_available():
        return False
    _cuda.cuda.current_context()
    return True


if __name__ == "__main__":
    main()
