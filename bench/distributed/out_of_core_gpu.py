"""Graphs larger than the GPU: sweeps over streamed edges against the host's link.

One superstep sums weights times values over all in-edges of an R-MAT graph, in memory
and under limits. *link* copies from page-locked memory to a buffer, by the driver, in
pieces as large as a slice: the bound of streaming. A superstep's *of link* is
the bytes that it has copied, by its time, by that; *of edges* the bytes of all edges
instead, of which buffers may keep some. The bits of the values behind all supersteps
are those in memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from typing import Any

import numpy as np

import featgraph as fg
from bench.record import Recorder
from bench.timing import wait_for_gpu
from featgraph.cuda.values import DeviceValues, host_values
from featgraph.graph import Adjacency
from featgraph.graph.building.drawn import Drawing, DrawnRowEdges
from featgraph.graph.building.row_edges import RowEdges
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {"repeat": 5}
TARGET = "cuda"
#: Bytes that the link is measured by.
PIECE = 1 << 28
#: The share of the measured link that streaming is to reach.
GOAL = 0.85


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the graph, and the limits."""
    parser.add_argument("--scale", type=int, default=27, help="of the R-MAT graph")
    parser.add_argument("--edge-factor", type=int, default=16)
    parser.add_argument("--limits", default="4 GB,8 GB", help="by commas")
    parser.add_argument(
        "--no-memory", action="store_true", help="not in memory, where it does not fit"
    )


@fg.gather(into="total", combine="sum")
def weigh(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


@fg.vertex
def take(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 1e-3 * d.total[v, f]
    return True


STEP = fg.foldmap(weigh, take)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure the link, and supersteps in memory and under each limit."""
    recorder.use("cuda")
    link = _measure_link(arguments.repeat, recorder)
    begun = time.perf_counter()
    graph = graph_of(arguments.scale, arguments.edge_factor)
    wait_for_gpu(TARGET)
    print(f"    {graph}, made in {time.perf_counter() - begun:.1f} s", flush=True)
    told = {"vertices": graph.vertex_count, "edges": graph.edge_count}
    limits = [text.strip() for text in arguments.limits.split(",")]
    meant = None
    for limit in ([] if arguments.no_memory else [None]) + limits:
        fg.config.memory_limit = limit
        try:
            trials, digest, copied = _measure(graph, arguments.repeat)
        finally:
            fg.config.memory_limit = None
        checks: dict[str, Any] = {"ok": True}
        if limit is None:
            meant = digest
        seconds = statistics.median(trials) / 1000
        fields: dict[str, Any] = {"digest": digest}
        if limit is not None:
            of_link = copied / seconds / link
            fields |= {
                "copied_bytes": copied,
                "of_link": round(of_link, 3),
                "of_edges": round(8 * graph.edge_count / seconds / link, 3),
            }
            checks["of link"] = of_link >= GOAL
            if meant is not None:
                checks["ok"] = digest == meant
        name = "in memory" if limit is None else f"limit {limit}"
        recorder.add(name, trials, graph=told, checks=checks, **fields)


def graph_of(scale: int, edge_factor: int, weighted: bool = True) -> fg.Graph:
    """Return the graph, its rows in the host's memory.

    The GPU draws and sorts it; edges are given in the order of its rows. On the host it
    takes 8 bytes an edge, and as much page-locked memory when it is streamed; on the
    GPU 8 bytes, and an eighth of 40.
    """
    sums = np.uint64(round(0.57 * 2**32)), np.uint64(round(0.76 * 2**32))
    parameters = np.uint64(1), scale, *sums, np.uint64(round(0.95 * 2**32))
    count = edge_factor << scale
    seed = np.uint64(2) if weighted else None
    drawing = Drawing("draw_rmat", parameters, count, 1 << scale, seed)
    choose_device(TARGET)  # without it there is no memory to draw into
    there = DrawnRowEdges(drawing, directed=True)
    rows = there.on_gpu.rows("in")
    arrays = [rows.offsets, rows.ends, *[there.there_by_id] * weighted]
    found = [host_values(DeviceValues(array)) for array in arrays]
    offsets, ends, weights = [*found, None][:3]
    known = {"is_in_given_order": True}
    edges = RowEdges(
        Adjacency(offsets, ends, None), None, weights, count, True, known=known
    )
    return fg.Graph(edges)


def _measure(graph: fg.Graph, repeat: int) -> tuple[list[float], int, int]:
    """Return ms of supersteps, a digest of the values, and bytes copied."""
    from featgraph.runtime.memory.graph_arrays import graph_arrays

    x = np.ones((graph.vertex_count, 1), np.float32)
    state = fg.State(
        graph,
        x=fg.vertex_property(x, iterated=True),
        w=fg.edge_property(graph.weights_as("float32"), copy=False),
    )
    for _ in range(2):  # compiles, and fills buffers
        STEP(state, target=TARGET)
    wait_for_gpu(TARGET)
    place = graph_arrays(graph, choose_device(TARGET)).placement
    is_streamed = place is not None and place.is_streamed
    before = place.ring().copied if is_streamed and place is not None else 0
    trials = []
    for _ in range(repeat):
        begun = time.perf_counter()
        STEP(state, target=TARGET)
        wait_for_gpu(TARGET)
        trials.append(1000 * (time.perf_counter() - begun))
    copied = 0
    if is_streamed and place is not None:
        copied = (place.ring().copied - before) // repeat
    return trials, zlib.crc32(np.ascontiguousarray(state["x"])), copied


def _measure_link(repeat: int, recorder: Recorder) -> float:
    """Return bytes a second from page-locked memory to the GPU."""
    from featgraph.runtime.streaming.ring import PinnedArray

    device: Any = choose_device(TARGET)
    source = PinnedArray((PIECE,), np.uint8)
    memory = device.empty((PIECE,), "uint8")
    target = int(memory.device_ctypes_pointer.value)
    driver = device.recorder.streams
    stream = driver.make_stream()
    wait_for_gpu(TARGET)
    trials = []
    for _ in range(repeat + 1):
        begun = time.perf_counter()
        for _ in range(8):
            driver.start_write(target, source.address, PIECE, stream)
        wait_for_gpu(TARGET)
        trials.append(1000 * (time.perf_counter() - begun) / 8)
    link = PIECE / (statistics.median(trials[1:]) / 1000)
    recorder.add("link", trials[1:], bytes=PIECE, gb_s=round(link / 1e9, 2))
    return link
