"""A window that moves over a stream, and results that follow it.

``following`` updates the graph and its results by each batch. ``anew`` builds a graph
of the events of the interval, and calls the algorithms on it. Both have the same edges;
its vertices have numbers beforehand, and are those of all events. An undirected graph
has each pair once and no loops; its results are PageRank, components and triangles.

With ``--directed``, each event is an edge, and the results are PageRank by `epsilon`
and components. On a CPU, edges are counted that updates evaluate, and calls on the same
graph; components that are linked anew pass over each edge once.

The stream is sx-mathoverflow where it is below ``$FEATGRAPH_DATA``. Without it, one is
drawn with as many vertices: ends like those of an R-MAT graph, times uniform.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.dynamic.batches import add
from bench.dynamic.following import followed
from bench.graphs import SEED, data_folder
from bench.record import Recorder
from bench.timing import Contender, with_answers
from featgraph.graph import generators

DEFAULTS = {
    "graph": ["sx-mathoverflow"], "k": [1], "repeat": 30, "target": "cpu",
    "days": [365, 1], "skip": 400, "directed": False,
}  # fmt: skip
DAY = 86400
FILE = "medium/sx-mathoverflow.txt.gz"
#: By whether the graph is directed: policies, and results that follow.
POLICIES = {
    False: {"directed": False, "duplicates": "last", "loops": "drop"},
    True: {"directed": True, "duplicates": "keep", "loops": "keep"},
}
RESULTS = {
    False: ("pagerank", "connected_components", "triangle_count"),
    True: ("pagerank, 1e-2 / V", "pagerank, 1e-4 / V", "connected_components"),
}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time a step of both, and each part of it; ``--repeat`` steps."""
    events, name = read_events()
    target = arguments.target
    recorder.use(target)
    length, step = (days * DAY for days in arguments.days)
    start = events.times[0] + arguments.skip * DAY
    window = events.window(length=length, step=step, start=start)
    is_directed, kind = arguments.directed, "un" * (not arguments.directed) + "directed"
    graph = window.graph(**POLICIES[is_directed], target=target)
    results = {what: follow(graph, what, target) for what in RESULTS[is_directed]}
    taken: dict[tuple[str, str], list[Any]] = defaultdict(list)
    counts: dict[str, list[Any]] = defaultdict(list)
    sizes = []
    for number, batch in enumerate(islice(window, arguments.repeat + 2)):
        parts = [Contender("graph", partial(graph.update, batch))]
        parts += [Contender(what, result.update) for what, result in results.items()]
        time_steps(parts, taken, "following", target)
        for part in parts[1:]:
            with_answers(results[part.name])
            if is_directed and target == "cpu":
                run = follow(graph, part.name, target).run
                all_, done = run.evaluated or graph.edge_count, part.answer.edges
                counts[part.name].append((all_ if done is None else done, all_))
        begin = window.start + (number + 1) * step
        interval = events, begin, begin + length, POLICIES[is_directed]
        fresh = [Contender("graph", partial(built, *interval))]
        fresh += [Contender(n, lambda n=n, g=fresh[0]: follow(g.answer, n, target))
                  for n in results]  # fmt: skip
        time_steps(fresh, taken, "anew", target)
        sizes.append(len(batch))
    days = "{} d by {} d".format(*arguments.days)
    about = {
        "window": f"{name}, {days}, {kind}", "updates": float(np.mean(sizes)),
        "edges": graph.given_edge_count,
    }  # fmt: skip
    checks = checked(graph, results)
    for (contender, what), trials in taken.items():  # of which two warm up
        fields: dict[str, Any] = {}
        if contender == "following":
            fields["checks"] = checks
            if what in counts:
                done, calls = np.array(counts[what][2:]).T
                fields |= {"evaluated": done.mean(), "by_calls": calls.mean(),
                           "median_evaluated": np.median(done)}  # fmt: skip
        add(recorder, contender, trials[2:], what=what, **fields, **about)


def follow(graph: Any, what: str, target: str) -> Any:
    """Call an algorithm."""
    return followed(what, graph, target)[0]()


def read_events() -> tuple[fg.TemporalEdges, str]:
    """Return the events, and their name."""
    file = Path(data_folder()) / FILE
    if file.exists():
        return fg.read_temporal(file), "sx-mathoverflow"
    graph = generators.rmat(15, 16, seed=SEED)
    times = np.random.default_rng(SEED).integers(0, 2350 * DAY, graph.given_edge_count)
    return fg.TemporalEdges(graph.sources, graph.targets, times), "drawn"


def built(
    events: fg.TemporalEdges, begin: int, end: int, options: dict[str, Any]
) -> fg.Graph:
    """Return the graph of an interval, with the vertices of all events."""
    first, last = np.searchsorted(events.times, [begin, end])
    ends, left = events._ends[:, first:last], dict(options)
    if left.pop("loops") == "drop":
        ends = ends[:, ends[0] != ends[1]]
    return fg.Graph.from_edges(*ends, vertex_count=events._vertex_count, **left)


def time_steps(
    steps: list[Contender], taken: dict[Any, list[Any]], contender: str, target: str
) -> None:
    """Time each part of a step, and all: ms by the clock, and of processors."""
    each = {one.name: one.time_both(target) for one in steps}
    for what, ms in (each | {"step": sum(each.values())}).items():
        taken[contender, what].append(ms)


def checked(graph: Any, results: dict[str, Any]) -> dict[str, bool]:
    """Check the last answers on a frozen copy, by the verifiers and by new calls."""
    frozen, is_right = graph.freeze(), True
    for what, result in results.items():
        call, name, bound = followed(what, frozen, "cpu")
        found, expected = (np.asarray(getattr(one, name)) for one in (result, call()))
        if bound:
            is_right &= bool(np.abs(found - expected).sum() <= bound)
        else:
            is_right &= np.array_equal(found, expected)
        if "," not in what:
            module = import_module(f"featgraph.algorithms.{what}")
            getattr(module, f"verify_{what}")(frozen, found)
    return {"ok": is_right}
