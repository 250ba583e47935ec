"""Seconds on the host to prepare the orders and groups of exclusive edge functions.

Each is made alone, of a shape of `shapes`, by one thread. On the shape of Netflix,
shuffle, levels, tickets and blocks are to take at most 10 s each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bench.record import Recorder
from bench.sgd.shapes import SHAPES, Shape
from bench.timing import time_call
from featgraph.fold.schedules.exclusive import EdgesToGroup, ExclusiveSchedule
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.graph.views import edge_orders

DEFAULTS = {"graph": ["small", "STACK"], "k": [1], "repeat": 3}
#: Orders and groups -> the most seconds that one may take on the shape of Netflix.
GOALS = dict.fromkeys(("shuffle", "levels", "tickets", "blocks"), 10.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="names of what is prepared")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Prepare each on each shape; the smallest one compiles."""
    known = {(line["graph"]["name"], line["contender"]) for line in recorder.kept()}
    warm = None
    for name in arguments.graph:
        wanted = [maker for maker in arguments.only or _makers(SHAPES["small"])
                  if (name, maker) not in known]  # fmt: skip
        if not wanted:
            continue
        warm = warm or [make() for make in _makers(SHAPES["small"]).values()]
        makers = _makers(SHAPES[name])
        for maker in wanted:
            trials = [time_call(makers[maker]) for _ in range(arguments.repeat)]
            is_late = min(trials) > 1e3 * GOALS.get(maker, float("inf"))
            recorder.add(
                maker, trials, checks={"ok": not (is_late and name == "NFLIX")},
                graph={"name": name, "edges": SHAPES[name].edges},
            )  # fmt: skip


def _makers(shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return functions that make the order, tickets, and groups, by schedule."""
    graph = shape.make()
    count, ends = graph.vertex_count, (graph.sources, graph.targets)
    order = edge_orders.given_order(graph.given_index, 0)
    made: dict[str, Callable[[], Any]] = {
        "shuffle": lambda: edge_orders.given_order(graph.given_index, 0),
        "tickets": lambda: edge_orders.tickets(*ends, order, count),
    }
    for name, schedule in SCHEDULES.items():
        if isinstance(schedule, ExclusiveSchedule):
            conflicts = "u" if name == "rows" else "uv"
            edges = EdgesToGroup(
                *ends, order, count, shape.rows, conflicts, 0, False, {}
            )
            made[name] = lambda s=schedule, e=edges: s.groups(e)
    return made
