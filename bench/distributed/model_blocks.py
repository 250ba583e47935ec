"""Ranges of targets against blocks of targets and sources, by the model of time.

A line for each graph, number of ranks, width, layout and link, of NVIDIA H200s; every
vertex pulls in each superstep. `gain` is the time on ranges over that on blocks.
"""

from __future__ import annotations

import argparse
from typing import Any

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder
from featgraph.cli.forecast import rank_counts
from featgraph.ranks.cost.machine import H200

DEFAULTS = {
    "graph": ["graph500-20-mixed", "uniform-17-16", "grid1024", "delaunay17"],
    "k": [1, 32],
    "repeat": 1,
    "ranks": [4, 16, 64, 512],
    "balance": [1.0, 0.0, 0.0],
}
LINKS = ("nvlink", "400g", "100g")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=rank_counts, help="2,4,8 or 2..1024")
    parser.add_argument("--balance", type=float, nargs=3)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Compare the layouts on every graph."""
    for name in arguments.graph:
        named = make_graph(name)
        for k in arguments.k:
            found = {
                layout: fg.distributed.forecast(
                    named.graph,
                    arguments.ranks,
                    layout=layout,
                    balance=tuple(arguments.balance),
                    row_bytes=4 * k,
                    on=(H200, LINKS),
                )
                for layout in ("range", "grid")
            }
            for place, ranks in enumerate(arguments.ranks):
                for link in found["range"].links:
                    _record(recorder, named, k, ranks, _times(found, place, link))


def _times(found: Any, place: int, link: Any) -> dict[str, Any]:
    times = {name: of.times(place, link) for name, of in found.items()}
    gain = times["range"].seconds / times["grid"].seconds
    return {"link": link.name, "gain": round(gain, 3), "times": times}


def _record(recorder: Recorder, named: Any, k: int, ranks: int, cell: Any) -> None:
    times = cell.pop("times")
    for layout, one in times.items():
        recorder.add(
            layout,
            [1e3 * one.seconds],
            graph=named.describe(),
            ranks=ranks,
            k=k,
            work_ms=1e3 * float(one.work.max()),
            wire_ms=1e3 * (float(one.transfer.max()) + one.latency),
            checks={"ok": True},
            **cell,
        )
