"""A search of a graph of more than 2**31 edges in the memory of one GPU.

The graph is drawn there. *bfs* is timed as a call, from the vertex with most out-edges,
and checked on the GPU by CuPy, a piece of all edges at a time: no edge leads from a
vertex to one that is two levels or more further, or not reached, and each vertex that
is reached, but the source, has an edge from the level before its own. Out-degrees are
those that are counted in the rows of in-edges, and both directions have all edges.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from bench.record import Recorder, gpu_name
from bench.timing import join_compilers, time_call, wait_for_gpu
from featgraph.algorithms.bfs import bfs
from featgraph.graph.generators import rmat
from featgraph.graph.views.structure import gpu_edges

DEFAULTS = {"repeat": 5, "scale": 27, "edge_factor": 17}
SEED = 20261121
#: Edges that are checked at a time.
_PIECE = 1 << 27


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=int, help="of the R-MAT graph")
    parser.add_argument("--edge-factor", type=int)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Draw the graph, search it, and check what was found."""
    import cupy

    recorder.device = gpu_name()
    scale, factor = arguments.scale, arguments.edge_factor
    begun = time.perf_counter()
    graph = rmat(scale, factor, seed=SEED, target="cuda")
    there = gpu_edges(graph)
    into = there.rows("in")
    offsets, ends = cupy.asarray(into.offsets), cupy.asarray(into.ends)
    out = cupy.diff(cupy.asarray(there.rows("out").offsets))
    wait_for_gpu("cuda")
    print(f"    {graph}, made in {time.perf_counter() - begun:.1f} s", flush=True)
    source = int(out.argmax())

    def search() -> Any:
        result = bfs(graph, source, target="cuda")
        wait_for_gpu("cuda")
        return result

    for _ in range(4):
        result = search()
    join_compilers()
    trials = [time_call(search) for _ in range(arguments.repeat)]
    levels = cupy.asarray(result.view("levels"))
    checks = _checked(offsets, ends, out, levels, source)
    about = {"name": f"rmat-{scale}-{factor}", "edges": graph.edge_count}
    recorder.add(
        "bfs",
        trials,
        graph=about,
        checks=checks,
        supersteps=result.run.supersteps,
        directions=list(result.run.directions),
        superstep_ms=1000 * sum(result.run.seconds),
        reached=int((levels >= 0).sum()),
    )


def _checked(offsets: Any, ends: Any, out: Any, levels: Any, source: int) -> Any:
    """Return whether levels are those of a search, and degrees those of all edges."""
    import cupy

    count, edges = levels.size, int(ends.size)
    far = cupy.where(levels < 0, cupy.int32(1 << 30), levels.astype(cupy.int32))
    counted, has_way = cupy.zeros(count, cupy.int64), cupy.zeros(count, cupy.bool_)
    is_near = True
    for begin in range(0, edges, _PIECE):
        piece = ends[begin : begin + _PIECE]
        counted += cupy.bincount(piece, minlength=count)
        slots = cupy.arange(begin, begin + piece.size, dtype=offsets.dtype)
        targets = cupy.searchsorted(offsets, slots, side="right") - 1
        step = far[targets] - far[piece]
        is_near &= bool((step <= 1).all())
        has_way[targets[step == 1]] = True
    is_reached = levels >= 0
    is_reached[source] = False
    found = {
        "edges": int(offsets[-1]) == edges == int(out.sum()),
        "degrees": bool((counted == out).all()),
        "levels": is_near and int(levels[source]) == 0,
        "ways": bool(has_way[is_reached].all()),
    }
    return found | {"ok": all(found.values())}
