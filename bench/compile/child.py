"""A fresh process that folds, compiles and runs label propagation, timing each.

With ``--algorithm NAME`` it calls that function of ``algorithms`` twice instead; with
``--lazy`` the first call imports Numba, as a user's does. Started by
`bench.compile.first_kernel`; prints one JSON object of seconds: of the clock, and of
all processor time of the process ("_processor_s").
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

#: Function of `algorithms` -> its arguments behind the graph.
CALLS: dict[str, tuple[Any, ...]] = {
    "als": (),
    "betweenness_centrality": (),
    "bfs": (0,),
    "clustering": (),
    "connected_components": (),
    "eigenvector_centrality": (),
    "hits": (),
    "k_core": (),
    "k_truss": (),
    "label_propagation": (),
    "pagerank": (),
    "pagerank_push": (),
    "sssp": (0,),
    "sswp": (0,),
    "strongly_connected_components": (),
    "triangle_count": (),
}
VERTICES = 64


def main() -> None:
    """Import, set up, fold, compile and run, run again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--algorithm", choices=sorted(CALLS))
    parser.add_argument("--scale", type=int)
    parser.add_argument("--size", help="vertices and edges of a uniform graph: V,E")
    parser.add_argument("--lazy", action="store_true")
    arguments = parser.parse_args()
    seconds: dict[str, Any] = {}
    clocks = [(time.perf_counter(), time.process_time())]

    def lap(name: str) -> None:
        clocks.append((time.perf_counter(), time.process_time()))
        for suffix, end, start in zip(("", "processor_"), *clocks[:-3:-1], strict=True):
            seconds[f"{name.removesuffix('s')}{suffix}s"] = end - start

    import featgraph as fg

    lap("import_featgraph_s")
    has_gpu = not arguments.lazy and _import_compiler(arguments.target)
    lap("import_compiler_s")
    if arguments.algorithm:
        seconds |= _call_twice(arguments, lap)
        seconds["launched"] = True
        json.dump(seconds, sys.stdout)
        return
    from bench.programs import Problem, step

    graph = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], vertex_count=VERTICES)
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


def _call_twice(
    arguments: argparse.Namespace, lap: Callable[[str], None]
) -> dict[str, Any]:
    """Call a function of `algorithms`, wait for compilers behind it, call it again.

    Returns where compiling went, of the first call and behind it.
    """
    import numpy as np

    import algorithms
    import featgraph as fg
    from bench.compile.parts import Parts
    from bench.timing import join_compilers

    name = arguments.algorithm
    if arguments.size:
        count, edges = map(int, arguments.size.split(","))
    else:
        count, edges = VERTICES, 3 * VERTICES
    ends = np.random.default_rng(1).integers(0, count, (2, edges))
    if arguments.scale is not None:
        drawn = fg.graph.generators.rmat(arguments.scale, 16, seed=4)
        count, ends = drawn.vertex_count, np.stack([drawn.sources, drawn.targets])
    ends = ends[:, ends[0] != ends[1]]  # cores and trusses are refused with loops
    graph = fg.Graph.from_edges(
        *ends,
        vertex_count=count,
        directed=name == "strongly_connected_components",
        duplicates="first",
    )
    given, more, subject = CALLS[name], {"target": arguments.target}, graph
    # Eight factors or classes, for which `featgraph warm` stores kernels by default.
    if name == "als":
        from scipy import sparse

        more["factors"], ratings = 8, np.ones(len(ends[0]), np.float32)
        subject = sparse.coo_array((ratings, ends), shape=(count, count))
    if name == "label_propagation":
        each = np.arange(count)
        given = (np.where(each % 8, -1, each // 8 % 8),)
    parts = None if arguments.lazy else Parts(arguments.target)
    lap("setup_s")
    for stage in ("first_call_s", "behind_s", "second_call_s"):
        if stage == "behind_s":
            join_compilers()
        else:
            getattr(algorithms, name)(subject, *given, **more)
        lap(stage)
    return parts.told() if parts else {"parts_s": {}, "kernels_s": {}}


def _import_compiler(target: str) -> bool:
    """Import Numba, its CUDA dialect and context; return whether there is a GPU."""
    import numba  # noqa: F401

    if target == "cpu":
        return False
    from featgraph.cuda import dialect

    dialect.require()
    if not dialect.is_available():
        return False
    dialect.cuda.current_context()
    return True


if __name__ == "__main__":
    main()
