"""Updates of results beside new calls, by the size of the batch.

A trial applies a batch, updates the result, and calls the algorithm anew on the same
graph, or in the other order: the first of them makes the host's arrays of a version.
Batches insert edges that are not there, delete edges that are, or 80 % insert and 20 %
delete; the next trial takes them back. Sizes below one are parts of the edges. Edges
that are inserted join vertices of close ids where these are close in the graph, too
(`NEAR`), and elsewhere ends of edges.

Edges that gathers evaluate are counted on a CPU, where calls count theirs, too. With
``epsilon``, calls of PageRank have the form of updates, and stop by it alone. Labels
spread from one vertex in a hundred, in three classes.

On a GPU: ``--target cuda --graph kron21,delaunay20 --sizes 1 1000 1e-5``.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import featgraph as fg
from bench.dynamic.batches import add, draw_batch, edges_once, made
from bench.dynamic.contenders import Edges, joined
from bench.graphs import SEED, make_graph
from bench.record import Recorder
from bench.timing import Contender, with_answers
from featgraph import algorithms
from featgraph.algorithms.label_propagation import verify_label_propagation

#: Name of a call -> the algorithm, its arguments, the answer that is compared, and
#: whether exactly. Of `epsilon`, there are so many for 1 / V.
FOLLOWED: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "pagerank": ("pagerank", {}, "ranks", False),
    "pagerank, 1e-2 / V": ("pagerank", {"epsilon": 1e-2}, "ranks", False),
    "pagerank, 1e-4 / V": ("pagerank", {"epsilon": 1e-4}, "ranks", False),
    "connected_components": ("connected_components", {}, "labels", True),
    "triangle_count": ("triangle_count", {}, "triangles", True),
    "bfs": ("bfs", {"sources": 0}, "levels", True),
    "sssp": ("sssp", {"sources": 0}, "distances", True),
    "sswp": ("sswp", {"sources": 0}, "widths", True),
    "label_propagation": ("label_propagation", {}, "distributions", False),
}
#: Graphs whose vertices of close ids are close, too, begin with one of these.
NEAR = ("bricks", "delaunay", "grid", "rgg", "road")
DEFAULTS = {
    "graph": ["rmat-17-2", "grid362"], "k": [1], "repeat": 1, "target": "cpu",
    "sizes": [1.0, 100.0, 1000.0, 1e-2], "only": list(FOLLOWED),
    "kinds": ["insert", "delete", "both"],
}  # fmt: skip
CHOICES = {"kinds": DEFAULTS["kinds"], "only": FOLLOWED}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each algorithm with each size and kind of batch."""
    recorder.use(arguments.target)
    for name in arguments.graph:
        named = make_graph(name)
        count, is_directed = named.graph.vertex_count, named.graph.directed
        base, is_near = edges_once(named.graph), name.startswith(NEAR)
        options = {"directed": is_directed, "duplicates": "last"}
        graph = made(base, count, arguments.target, **options)
        sizes = {int(n if n >= 1 else max(1, n * len(base))) for n in arguments.sizes}
        for updates, kind in product(sorted(sizes), arguments.kinds):
            batch = mixed_batch(
                base, count, updates, kind, is_near=is_near, both=is_directed
            )
            common = {"kind": kind, "size": updates, "graph": named.describe()}
            for what in arguments.only:
                if is_directed and what == "triangle_count":
                    continue
                given = graph, batch, what, arguments
                taken = recorder.attempt(what, compare, *given, **common) or {}
                for operation, (trials, fields) in taken.items():
                    add(recorder, what, trials, operation=operation, **fields, **common)


def mixed_batch(
    base: Edges, count: int, updates: int, kind: str, *, is_near: bool, both: bool
) -> tuple[Edges, Any, Any]:
    """Return updates, which of them insert, and the opposite of these."""
    coming = {"insert": updates, "delete": 0, "both": -(-4 * updates // 5)}[kind]
    rng = np.random.default_rng([SEED, updates])
    going = rng.choice(len(base), updates - coming, replace=False)
    parts = [base[going]]
    if coming:
        drawn = "near" if is_near else "like"
        parts.append(draw_batch(base, count, coming, drawn, both=both))
    insert = np.arange(updates) >= going.size
    return joined(*parts), insert, ~insert


def followed(
    what: str, graph: fg.Graph, target: str
) -> tuple[partial[Any], str, float]:
    """Return a call of an algorithm, its answer's name, and a bound of the error."""
    algorithm, given, name, is_exact = FOLLOWED[what]
    bound = 0.0 if is_exact else 2 / 0.15 * 0.85 * graph.vertex_count * 1e-6
    if "epsilon" in given:
        epsilon = given["epsilon"] / graph.vertex_count
        given = {"epsilon": epsilon, "tol": None, "dangling": "renormalize"}
        # The second factor is of the sum of ranks before they are renormalized.
        bound = 2 / 0.15 * graph.vertex_count * epsilon * 2 / 0.15
    if what == "label_propagation":  # whose answers are verified
        rng, count, bound = np.random.default_rng(SEED), graph.vertex_count, np.inf
        labelled, classes = rng.random(count) < 0.01, rng.integers(0, 3, count)
        given = {"labels": np.where(labelled, classes, -1)}
    call = partial(getattr(algorithms, algorithm), graph, target=target, **given)
    return call, name, bound


def compare(
    graph: Any, batch: tuple[Edges, Any, Any], what: str, arguments: argparse.Namespace
) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Return trials of updates and of new calls, with checks and edges evaluated."""
    edges, *inserts = batch
    call, name, bound = followed(what, graph, arguments.target)
    result, checks = call(), {"ok": True}
    steps = update, anew = Contender("update", result.update), Contender("call", call)
    taken: dict[str, list[Any]] = {"update": [], "call": []}
    for number, insert in enumerate(inserts * (arguments.repeat + 1)):
        graph.update(edges.sources, edges.targets, insert=insert, weights=edges.weights)
        for step in steps[:: 1 if number % 4 < 2 else -1]:
            taken[step.name].append(step.time_both(arguments.target))
        found, expected = (np.asarray(getattr(with_answers(one), name))
                           for one in (result, anew.answer))  # fmt: skip
        if bound:
            checks["error"] = float(np.abs(found - expected).sum())
            checks["ok"] &= checks["error"] <= bound
        else:
            checks["ok"] &= np.array_equal(found, expected)
        is_last = number >= 2 * arguments.repeat
        if what == "label_propagation" and is_last:  # with each half of the updates
            verify_label_propagation(graph, call.keywords["labels"], found)
    done, evaluated = update.answer, anew.answer.run.evaluated
    fields = {
        "update": {"evaluated": done.edges, "anew": done.began_anew},
        "call": {"evaluated": evaluated},
    }
    # The first pair warms up.
    return {n: (all_[2:], {"checks": checks, **fields[n]}) for n, all_ in taken.items()}
