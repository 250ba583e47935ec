"""A window that moves over a stream, and three results that follow it.

``following`` updates the graph and its results by each batch. ``anew`` builds a graph
of the events of the interval, and calls the algorithms on it. Both have the same edges;
its vertices have numbers beforehand, and are those of all events.

With ``--directed``, each event is an edge of its own, also loops. PageRank then has an
`epsilon`, too, and there are no triangles. Edges that gathers evaluate are counted as
in `bench.dynamic.following`, where calls are on the graph that changes.

The stream is sx-mathoverflow where it is below ``$FEATGRAPH_DATA``. Without it, one is
drawn with as many vertices: ends like those of an R-MAT graph, times uniform.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.dynamic.batches import add
from bench.graphs import SEED, data_folder
from bench.record import Recorder
from bench.timing import Contender, time_both, with_answers
from featgraph.algorithms import connected_components, pagerank, triangle_count
from featgraph.algorithms.connected_components import verify_connected_components
from featgraph.algorithms.pagerank import verify_pagerank
from featgraph.algorithms.triangle_count import verify_triangle_count
from featgraph.graph import generators

DEFAULTS = {
    "graph": ["sx-mathoverflow"], "k": [1], "repeat": 30, "target": "cpu",
    "days": [365, 1], "skip": 400, "directed": False,
}  # fmt: skip
DAY = 86400
FILE = "medium/sx-mathoverflow.txt.gz"
ALGORITHMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "pagerank": (pagerank, verify_pagerank, "ranks"),
    "components": (connected_components, verify_connected_components, "labels"),
}
TRIANGLES = {"triangles": (triangle_count, verify_triangle_count, "triangles")}
#: Of `epsilon`, so many for 1 / V.
EPSILONS = {"pagerank, 1e-2 / V": 1e-2, "pagerank, 1e-4 / V": 1e-4}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time a step of both, and each part of it; ``--repeat`` steps."""
    events, name = read_events()
    target, directed = arguments.target, arguments.directed
    length, step = (days * DAY for days in arguments.days)
    start = events.times[0] + arguments.skip * DAY
    window = events.window(length=length, step=step, start=start)
    duplicates, loops = ("keep", "keep") if directed else ("last", "drop")
    graph = window.graph(
        directed=directed, duplicates=duplicates, loops=loops, target=target
    )
    chosen = ALGORITHMS | ({} if directed else TRIANGLES)
    several = {what: call for what, (call, _, _) in chosen.items()}
    for what, epsilon in EPSILONS.items() if directed else ():
        several[what] = partial(
            pagerank, epsilon=epsilon / graph.vertex_count, tol=None,
            dangling="renormalize",
        )  # fmt: skip
    results = {what: call(graph, target=target) for what, call in several.items()}
    taken: dict[tuple[str, str], list[Any]] = defaultdict(list)
    evaluated: dict[tuple[str, str], list[Any]] = defaultdict(list)
    sizes = []
    for number, batch in enumerate(islice(window, arguments.repeat + 2)):
        steps = {what: Contender(what, r.update) for what, r in results.items()}
        calls = {"graph": partial(graph.update, batch)}
        calls |= {what: one.run for what, one in steps.items()}
        time_steps(calls, "following", taken, target)
        for what, result in results.items():
            with_answers(result)
            done = steps[what].answer
            edges = result.run.evaluated if done.began_anew else done.edges
            evaluated["following", what].append(edges)
        begin = window.start + (number + 1) * step
        make = partial(built, events, begin, begin + length, duplicates, directed)
        fresh = Contender("graph", make)
        calls = {"graph": fresh.run}
        for what, call in several.items():
            calls[what] = lambda c=call, f=fresh: c(f.answer, target=target)
        time_steps(calls, "anew", taken, target)
        for what, call in several.items() if directed else ():
            made = call(graph, target=target)  # a fixed graph counts none
            evaluated["anew", what].append(made.run.evaluated)
        sizes.append(len(batch))
    days = "{} d by {} d".format(*arguments.days)
    about = {
        "window": f"{name}, {days}, {'' if directed else 'un'}directed",
        "updates": float(np.mean(sizes)), "edges": graph.given_edge_count,
    }  # fmt: skip
    checks = checked(graph, results, chosen)
    for (contender, what), trials in taken.items():  # of which two warm up
        own = checks if contender == "following" else None
        edges = evaluated[contender, what][2:]
        mean = float(np.mean(edges)) if edges and None not in edges else None
        add(
            recorder, contender, trials[2:], what=what, checks=own, evaluated=mean,
            **about,
        )  # fmt: skip


def read_events() -> tuple[fg.TemporalEdges, str]:
    """Return the events, and their name."""
    file = Path(data_folder()) / FILE
    if file.exists():
        return fg.read_temporal(file), "sx-mathoverflow"
    graph = generators.rmat(15, 16, seed=SEED)
    times = np.random.default_rng(SEED).integers(0, 2350 * DAY, graph.given_edge_count)
    return fg.TemporalEdges(graph.sources, graph.targets, times), "drawn"


def built(
    events: fg.TemporalEdges, begin: int, end: int, duplicates: str, directed: bool
) -> fg.Graph:
    """Return the graph of an interval, with the vertices of all events."""
    first, last = np.searchsorted(events.times, [begin, end])
    u, v = events._ends[:, first:last]
    is_edge = directed | (u != v)
    return fg.Graph.from_edges(
        u[is_edge], v[is_edge], vertex_count=events._vertex_count, directed=directed,
        duplicates=duplicates,
    )  # fmt: skip


def time_steps(
    steps: dict[str, Callable[[], Any]],
    contender: str,
    taken: dict[tuple[str, str], list[Any]],
    target: str,
) -> None:
    """Time each part of a step, and all: ms by the clock, and of processors."""
    each = {what: time_both(call, target) for what, call in steps.items()}
    for what, ms in (each | {"step": sum(each.values())}).items():
        taken[contender, what].append(ms)


def checked(
    graph: Any, results: dict[str, Any], chosen: dict[str, Any]
) -> dict[str, bool]:
    """Check the last answers on a frozen copy, by the verifiers and by new calls."""
    frozen, is_right = graph.freeze(), True
    for what, (call, verify, name) in chosen.items():
        found = np.asarray(getattr(results[what], name))
        verify(frozen, found)
        expected = np.asarray(getattr(call(frozen), name))
        if what == "pagerank":
            bound = 2 * 0.85 / 0.15 * frozen.vertex_count * 1e-6
            is_right &= bool(np.abs(found - expected).sum() <= bound)
        else:
            is_right &= np.array_equal(found, expected)
    return {"ok": is_right}
