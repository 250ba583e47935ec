"""Times of making a graph on the GPU, from edges there or on the host.

From the call until the device is done: a graph with the rows of its in-edges, its
out-edges and the ids of these, beside CuPy's copies of the same edges, and its CSR and
CSC of them (`cupyx.scipy.sparse`, whose conversion sums parallel edges and keeps no
ids). An undirected graph is one of both directions; for CuPy, its edges are given
twice. And how long it takes to draw edges there, and to make the rows of a graph that
is drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import time_calls
from featgraph.fold.plan.traits import rows_along
from featgraph.graph import generators
from featgraph.graph.building.drawn import Drawing
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {"graph": ["kron21"], "repeat": 11, "scale": [24]}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each of them on every graph."""
    recorder.require_gpu()
    for scale in arguments.scale:
        _draw(scale, arguments.repeat, recorder)
    for name in arguments.graph:
        named = make_graph(name)
        for directed in (False, True):
            _measure(named, directed, arguments.repeat, recorder)


CONVERSION = "CuPy: CSR and CSC"
#: Edges a vertex of drawn graphs.
FACTOR = 16


def _draw(scale: int, repeat: int, recorder: Recorder) -> None:
    """Time how edges are drawn on the GPU, and how a graph that is gets its rows.

    Edges that are drawn are dropped, piece by piece. A graph of so many has no list of
    them: its rows are made of edges that are drawn anew wherever they are needed.
    """
    count, many = FACTOR << scale, 1 << scale
    rmat, uniform = f"rmat({scale}, {FACTOR})", f"uniform(2**{scale}, {count})"
    for name, drawing in {
        rmat: generators.drawing_of_rmat(scale, FACTOR, seed=1),
        uniform: generators.drawing_of_uniform(many, count, seed=1),
    }.items():
        draw = partial(_draw_all, drawing)
        _record(f"{name}: edges drawn", draw, drawing.count, repeat, recorder)
    makers: dict[str, Callable[..., fg.Graph]] = {
        rmat: partial(generators.rmat, scale, FACTOR, seed=1),
        uniform: partial(generators.uniform, many, count, seed=1),
        "grid(8192, 8192)": partial(generators.grid, 8192, 8192),
    }
    for name, make in makers.items():
        edges = make(target="cuda").given_edge_count
        of_graph = partial(_rows_of, make)
        _record(f"{name}: drawn, in rows", of_graph, edges, repeat, recorder)


def _draw_all(drawing: Drawing) -> None:
    for _ in drawing.pieces()():
        pass


def _rows_of(make: Callable[..., fg.Graph]) -> Any:
    rows, device = rows_along("in"), choose_device("cuda")
    graph = make(target="cuda")
    return [device.graph_array(graph, name) for name in (rows.offsets, rows.ends)]


def _record(
    name: str, run: Callable[[], Any], edges: int, repeat: int, recorder: Recorder
) -> None:
    taken = time_calls(run, repeat, target="cuda", warm_up=1)
    rate = 1e3 * edges / sorted(taken)[repeat // 2]
    recorder.add(name, taken, edges=edges, edges_a_second=rate)


def build(graph: fg.Graph) -> dict[str, Any]:
    """Return the arrays of both directions that kernels read."""
    device, rows = choose_device("cuda"), [rows_along(a) for a in ("in", "out")]
    names = [name for each in rows for name in each.arguments]
    return {name: device.graph_array(graph, name) for name in names}


def is_right(graph: fg.Graph, built: dict[str, Any]) -> bool:
    """Compare with the arrays that the host builds of the same edges."""
    meant = [graph.in_edges.row_offsets, graph.in_edges.column_indices]
    out = graph.out_edges
    meant += [out.row_offsets, out.column_indices, out.edge_ids]
    found = [array.copy_to_host() for array in built.values()]
    return all(np.array_equal(*pair) for pair in zip(found, meant, strict=True))


def _measure(named: Any, directed: bool, repeat: int, recorder: Recorder) -> None:
    import cupy
    from cupyx.scipy import sparse

    given, count = named.graph, named.graph.vertex_count
    options: Any = {"vertex_count": count, "directed": directed}
    here = given.sources, given.targets
    there = tuple(map(cupy.asarray, here))
    both = there
    if not directed:
        both = cupy.concatenate(there), cupy.concatenate(there[::-1])
    ones = cupy.ones(both[0].size, cupy.float32)

    def convert() -> Any:
        matrix = sparse.coo_matrix((ones, both), shape=(count, count))
        return matrix.tocsr(), matrix.tocsc()

    contenders: dict[str, Callable[[], Any]] = {
        "device arrays": lambda: build(fg.Graph.from_edges(*there, **options)),
        "host arrays": lambda: build(
            fg.Graph.from_edges(*here, **options, target="cuda")
        ),
        "host graph": lambda: build(_again(given, directed)),
        "CuPy: copy": lambda: [each.copy() for each in there],
        "CuPy: from the host": lambda: [cupy.asarray(each) for each in here],
        CONVERSION: convert,
    }
    graph = fg.Graph.from_edges(*here, **options)
    checks = {"ok": is_right(graph, contenders["device arrays"]())}
    fields = {"directed": directed, "graph": named.describe(), "checks": checks}
    for name, call in contenders.items():
        # A conversion takes about a second.
        trials = min(repeat, 3) if name == CONVERSION else repeat
        measure = partial(time_calls, call, trials, target="cuda", warm_up=1)
        taken = recorder.attempt(name, measure, directed=directed)
        if taken is not None:
            recorder.add(name, taken, **fields)


def _again(graph: fg.Graph, directed: bool) -> fg.Graph:
    """Return a graph of checked edges of the host: the GPU's part is timed."""
    edges = graph._edges
    ends = edges.sources, edges.targets
    return fg.Graph(type(edges)(*ends, None, graph.vertex_count, directed))
