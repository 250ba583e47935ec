"""Further tables of graphs that change; ``--tables`` names them.

*doublings* (aimGraph 6.2): slots and bytes an edge, and ms of batches, by the sizes of
runs a doubling, each in a process of its own, on the CPU.

*vertices* (6.5-6.10): insertion in stages (names, rows, stamps), and deletion of drawn
vertices with their edges: by their own rows where the graph is undirected or has rows
along "out", by a sweep over all rows without.

*memory* (4.1-4.3): slots and bytes an edge over ``--rounds`` of as many insertions as
deletions. Insertions are *uniform*, or *sweep* over rows, a tenth in each round, or a
round inserts or deletes at *random*. Edges may have copies. Compactions are rounds that
lay all rows out; what they take more than others is their share.

*balance* (7.1): what is brought up to date behind a batch: stamps (degrees, traits and
lists of hubs), and what the next superstep takes more than the one behind it.

*algorithms* (7.2-7.4): each public algorithm on the graph and on its frozen copy, in
turn: *fresh*, *aged* by `AGED` E updates that keep degrees, and *compacted*. The last
rows are geometric means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import featgraph as fg
from bench.dynamic.batches import add, draw_batch, edges_once, repeated, timed
from bench.dynamic.contenders import Edges
from bench.graphs import SEED, make_graph
from bench.record import ROOT, Recorder, gpu_name
from bench.timing import wait_for_gpu, with_answers
from featgraph import algorithms
from featgraph.dynamic.inputs import Names
from featgraph.dynamic.store import EdgeStore

Array = Any

DEFAULTS = {
    "graph": ["kron-16"], "k": [1], "repeat": 5, "target": "cpu", "rounds": 100,
    "sizes": [1_000, 10_000, 100_000], "only": None, "seconds": 20.0,
    "tables": ["vertices", "memory", "balance", "algorithms"],
}  # fmt: skip
#: Updates of the aged graph by its edges, and the batches that they come in.
AGED, BATCH_SHARE = 10, 16
CLASSES = 3
ALIKE = np.array([[2.0, 1.0], [1.0, 2.0]])
#: Answers that are compared: the first of them that a result has.
ANSWERS = (
    "distributions", "ranks", "labels", "triangles", "levels", "distances", "widths",
    "centralities", "core_numbers", "trussness", "coefficients", "scores", "values",
    "outputs", "voltages", "temperatures", "marginals", "hubs",
)  # fmt: skip


class Given:
    """Arguments of algorithms for a graph."""

    def __init__(self, graph: Any, weights: Any) -> None:
        rng, count = np.random.default_rng(SEED), graph.vertex_count
        self.graph, self.weights = graph, weights
        self.unary = rng.random((count, 2), np.float32) + 1
        self.hub = int(np.argmax(graph.in_degree))
        self.seeds = np.where(rng.random(count) < 0.01, rng.integers(0, 3, count), -1)
        self.both = np.stack([self.seeds, self.seeds[::-1]], axis=1)
        self.held = np.where(self.seeds < 0, np.nan, self.seeds)
        self.held[np.unique(algorithms.connected_components(graph).labels)] = 0
        self.hot = np.eye(CLASSES, dtype=np.float32)[self.seeds]
        self.hot *= (self.seeds >= 0)[:, None]


TEN = {"max_supersteps": 10}
#: Algorithm -> its arguments and options; supersteps end where both graphs' do.
CALLS: dict[str, Callable[[Given], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "pagerank": lambda g: ((), {}),
    "triangle_count": lambda g: ((), {}),
    "bfs": lambda g: ((g.hub,), {}),
    "sssp": lambda g: ((g.hub,), {}),
    "connected_components": lambda g: ((), {}),
    "strongly_connected_components": lambda g: ((), {}),
    "sswp": lambda g: ((g.hub,), {}),
    "k_core": lambda g: ((), {}),
    "label_propagation": lambda g: ((g.seeds,), TEN),
    "label_set_propagation": lambda g: ((g.both,), TEN),
    "pagerank_push": lambda g: ((), {"epsilon": 1e-6}),
    "hits": lambda g: ((), {"max_iter": 20}),
    "eigenvector_centrality": lambda g: ((), TEN),
    "katz_centrality": lambda g: ((), {"alpha": 1e-4}),
    "belief_propagation": lambda g: ((g.unary, ALIKE), TEN | {"damping": 0.3}),
    "heat_simulation": lambda g: ((g.unary,), {"dt": 1e-6, "duration": 1e-5}),
    "circuit_simulation": lambda g: ((g.held,), TEN),
    "neural_network": lambda g: ((g.held,), TEN),
    "multi_manifold_ranking": lambda g: ((g.hot[:, 0],), TEN | {"weights": g.weights}),
    "multimodal_learning": lambda g: ((g.hot,), TEN | {"weights": g.weights}),
    "clustering": lambda g: ((), {}),
    "closeness_centrality": lambda g: ((np.arange(32),), {}),
    "betweenness_centrality": lambda g: ((), {"sources": np.arange(8)}),
    "k_truss": lambda g: ((), {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["cpu", "cuda"])
    parser.add_argument("--tables", nargs="+", choices=TABLES)
    parser.add_argument("--sizes", nargs="+", type=int, help="vertices, or updates")
    parser.add_argument("--rounds", type=int, help="of the table of memory")
    parser.add_argument("--only", nargs="+", choices=CALLS, help="algorithms")
    parser.add_argument("--seconds", type=float, help="most that a cell repeats for")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Make each table of each graph."""
    recorder.device = gpu_name() if arguments.target == "cuda" else None
    for name, table in product(arguments.graph, arguments.tables):
        recorder.attempt(table, partial(TABLES[table], arguments, recorder, name))


def made(
    base: Edges, count: int | None, target: str, **options: Any
) -> fg.DynamicGraph:
    """Return a graph of the edges, with weights."""
    return fg.DynamicGraph.from_edges(
        base.sources, base.targets, weights=base.weights, vertex_count=count,
        target=target, **options,
    )  # fmt: skip


@contextmanager
def staged(target: str, **methods: tuple[type, str]) -> Iterator[dict[str, float]]:
    """Add up ms of calls of methods, by what they do."""
    taken = dict.fromkeys(methods, 0.0)
    originals = {what: vars(owner)[name] for what, (owner, name) in methods.items()}

    def wrapped(what: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return originals[what](*given, **options)
            finally:
                wait_for_gpu(target)
                taken[what] += (time.perf_counter() - begun) * 1e3

        return call

    try:
        for what, (owner, name) in methods.items():
            setattr(owner, name, wrapped(what))
        yield taken
    finally:
        for what, (owner, name) in methods.items():
            setattr(owner, name, originals[what])


STAGES = {
    "names_ms": (Names, "look_up"), "naming_ms": (Names, "put"),
    "rows_ms": (EdgeStore, "apply"), "stamps_ms": (fg.DynamicGraph, "_advance"),
}  # fmt: skip


def doublings(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Run batches in processes with other sizes of runs."""
    output = ["--output", str(recorder.output)] if recorder.output else []
    for count in (1, 2, 4, 8):
        subprocess.run(
            [sys.executable, "-m", "bench.run", "dynamic-batches", "--graph", name,
             "--only", "dynamic", "--kinds", "random", "like", "--per-doubling",
             str(count), "--repeat", str(arguments.repeat), "--sizes",
             *map(str, arguments.sizes), *output],
            cwd=ROOT, check=True,
        )  # fmt: skip


def vertices(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Insert vertices in stages, and delete drawn ones with their edges."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph), named.graph.vertex_count
    kinds = ["undirected", "undirected, names", "directed", "directed, out-rows"]
    for kind, size in product(kinds, arguments.sizes):
        names = "names" in kind
        options = {"directed": kind[0] == "d", "names": names}
        graph = made(base, None if names else count, target, **options)
        if "out" in kind:
            graph.neighbors(0)
        common = {"size": size, "kind": kind, "graph": named.describe()}
        before, given = graph.vertex_count, np.arange(size) + count if names else size
        trials, taken = [], []
        for _ in range(arguments.repeat + 1):
            with staged(target, **STAGES) as stages:
                taken.append(timed(lambda: graph.insert_vertices(given), target))  # noqa: B023
            trials.append(stages)
            checks = {"ok": graph.living_count == before + size}
            graph.delete_vertices(given if names else before + np.arange(size))
        medians = {what: float(np.median([t[what] for t in trials[1:]]))
                   for what in STAGES}  # fmt: skip
        add(recorder, "dynamic", taken[1:], operation="insert vertices", checks=checks,
            **medians, **common)  # fmt: skip
        most = np.unique(base.sources)
        gone = np.random.default_rng(SEED).choice(most, min(size, count // 4), False)
        is_left = ~np.isin(base.sources, gone) & ~np.isin(base.targets, gone)
        left, taken = int(is_left.sum()), []
        for _ in range(min(arguments.repeat, 3) + 1):
            one = graph.copy()
            taken.append(timed(lambda: one.delete_vertices(gone), target))  # noqa: B023
            checks["ok"] &= one.given_edge_count == left
        add(recorder, "dynamic", taken[1:], operation="delete vertices", checks=checks,
            deleted_edges=len(base) - left, **common)  # fmt: skip


def memory(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Insert and delete for many rounds."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph, both=True), named.graph.vertex_count
    size = min(max(arguments.sizes), len(base) // 16)
    for kind in ("uniform", "sweep", "random"):
        rng, graph = np.random.default_rng(SEED), made(base, count, target)
        living = np.stack([base.sources, base.targets])
        taken: list[tuple[float, bool]] = []
        slots = {"slots": [per_edge(graph)], "used": [per_edge(graph, "in_used")]}
        for number in range(arguments.rounds):
            inserts, deletes = True, True
            if kind == "random":
                inserts = bool(rng.integers(2))
                deletes = not inserts
            ms, is_laid_out = 0.0, False
            for is_wanted, insert in ((inserts, True), (deletes, False)):
                if not is_wanted:
                    continue
                if insert:
                    ends = rng.integers(0, count, (2, size), np.int32)
                    if kind == "sweep":
                        ends[1] = ends[1] // 10 + number % 10 * (count // 10)
                    living = np.concatenate([living, ends], axis=1)
                else:
                    gone = rng.choice(living.shape[1], size, replace=False)
                    ends, living = living[:, gone], np.delete(living, gone, axis=1)
                weights = {"weights": np.ones(size, np.float32)} if insert else {}
                call = partial(graph.update, *ends, insert=insert, copies="first")
                ms += timed(partial(call, **weights), target)[0]
                is_laid_out |= not graph._store._aged
            taken.append((ms, is_laid_out))
            slots["slots"].append(per_edge(graph))
            slots["used"].append(per_edge(graph, "in_used"))
        expected = np.bincount(living[1], minlength=count)
        checks = {"ok": np.array_equal(graph.in_degree, expected)}
        all_ms = np.array([ms for ms, _ in taken])
        is_compaction = np.array([laid_out for _, laid_out in taken])
        usual = float(np.median(all_ms[~is_compaction]))
        more = float(np.maximum(all_ms[is_compaction] - usual, 0).sum())
        compaction = repeated(graph.compact, target, arguments.repeat, 5)
        found = {f"{what}_per_edge": all_[0] for what, all_ in slots.items()}
        found |= {f"most_{what}_per_edge": max(all_) for what, all_ in slots.items()}
        add(recorder, "dynamic", [np.full(2, ms) for ms in all_ms],
            operation="rounds", kind=kind, size=size, graph=named.describe(),
            checks=checks, compactions=int(is_compaction.sum()),
            compaction_share=more / float(all_ms.sum()), **found)  # fmt: skip
        add(recorder, "dynamic", compaction, operation="compact", kind=kind,
            slots_per_edge=per_edge(graph), used_per_edge=per_edge(graph, "in_used"),
            bytes_per_edge=per_edge(graph, "bytes"),
            graph=named.describe())  # fmt: skip


def per_edge(graph: fg.DynamicGraph, what: str = "in_slots") -> float:
    """Return a count of `memory` over the edges."""
    return graph.memory()[what] / graph.edge_count


@fg.gather(into="found", combine="sum")
def values_of_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Value of the source."""
    return d.value[u]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the sum of the values."""
    d.total[v] = d.found[v]
    return True


total_step = fg.foldmap(values_of_sources, keep)


def balance(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Time stamps, and the first superstep behind a batch and the second."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph, both=True), named.graph.vertex_count
    graph = made(base, count, target, duplicates="last")
    one, zero = fg.vertex_property(np.float32(1)), fg.vertex_property(np.float32(0))
    state = fg.State(graph, value=one, total=zero)
    for size, kind in product(arguments.sizes, ("random", "hub")):
        batch = draw_batch(base, count, min(size, len(base) // 16, count // 2), kind)
        taken: dict[str, list[Array]] = {"stamps": [], "first": [], "second": []}
        for number in range(2 * arguments.repeat + 2):
            weights = {"weights": batch.weights} if number % 2 == 0 else {}
            call = graph.insert_edges if weights else graph.delete_edges
            with staged(target, stamps=STAGES["stamps_ms"]) as stages:
                call(batch.sources, batch.targets, **weights)
            taken["stamps"].append(np.full(2, stages["stamps"]))
            for which in ("first", "second"):
                taken[which].append(timed(lambda: total_step(state), target))
        checks = {"ok": np.array_equal(state["total"], graph.in_degree)}
        for what, trials in taken.items():
            add(recorder, "dynamic", trials[2:], operation=what, size=len(batch),
                kind=kind, checks=checks, graph=named.describe())  # fmt: skip


def compare(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Call algorithms on a graph that changes, and on its frozen copy."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph), named.graph.vertex_count
    is_undirected = base.sources != base.targets
    base = Edges(*(array[is_undirected] for array in vars(base).values()))
    pair = np.stack([base.weights, base.weights[::-1]], axis=1)
    graph = made(base, count, target, duplicates="last", directed=False,
                 columns={"pair": pair})  # fmt: skip
    chosen = arguments.only or [*CALLS]
    for state in ("fresh", "aged", "compacted"):
        if state == "aged":
            age(graph)
        if state == "compacted":
            graph.compact()
        slots = {"used_per_edge": per_edge(graph, "in_used")}
        frozen, ratios = graph.freeze(), []
        givens = (Given(graph, graph.column("pair")),
                  Given(frozen, graph.edges()[2]["pair"]))  # fmt: skip
        for what in chosen:
            common = {"operation": state, "graph": named.describe()}
            both = partial(time_pair, what, givens, arguments)
            found = recorder.attempt(what, both, **common)
            if found is None:
                continue
            (taken, static), checks = found
            static_ms = float(np.median(static, 0)[0])
            ratio = float(np.median(taken, 0)[0]) / static_ms
            ratios.append(ratio)
            add(recorder, what, taken, checks=checks, ratio=ratio,
                static_ms=static_ms, **slots, **common)  # fmt: skip
        mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else None
        recorder.add("geometric mean", [], ratio=mean, **common)


def time_pair(
    what: str, givens: tuple[Given, Given], arguments: argparse.Namespace
) -> tuple[tuple[list[Array], list[Array]], dict[str, bool]]:
    """Return trials on both graphs, in turn, and whether answers are alike."""
    taken: tuple[list[Array], list[Array]] = [], []
    results: dict[int, Any] = {}

    def call(which: int) -> None:
        args, options = CALLS[what](givens[which])
        function = getattr(algorithms, what)
        results[which] = with_answers(
            function(givens[which].graph, *args, target=arguments.target, **options)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        while len(taken[1]) <= arguments.repeat and (
            sum(ms[0] for ms in taken[0][1:]) < 1e3 * arguments.seconds
        ):
            for which, trials in enumerate(taken):
                trials.append(timed(partial(call, which), arguments.target))
    found, wanted = (
        next(np.asarray(getattr(r, a)) for a in ANSWERS if hasattr(r, a))
        for r in (results[0], results[1])
    )
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
    is_right = bool(np.allclose(found, wanted, 1e-3, 1e-3 * scale, equal_nan=True))
    return (taken[0][1:], taken[1][1:]), {"ok": is_right}


def age(graph: fg.DynamicGraph) -> None:
    """Delete edges and insert them again, until rows nearly are laid out anew."""
    rng, store = np.random.default_rng(SEED), graph._store
    size = graph.given_edge_count // BATCH_SHARE // 2
    out: list[Array] = []
    number, is_last = 0, False
    while not is_last:
        number += 1
        is_last = number > AGED * BATCH_SHARE and store._aged * 5 > store.edge_count
        sources, targets, columns = graph.edges()
        some = rng.choice(sources.size, 0 if is_last else size, replace=False)
        arrays = sources, targets, columns["weight"], columns["pair"]
        gone = [array[some] for array in arrays]
        out = out or [array[:0] for array in arrays]
        u, v, weights, pair = map(np.concatenate, zip(gone, out, strict=True))
        insert = np.arange(u.size) >= some.size
        graph.update(u, v, insert, weights=weights, columns={"pair": pair})
        out = gone


TABLES: dict[str, Callable[[argparse.Namespace, Recorder, str], None]] = {
    "doublings": doublings, "vertices": vertices, "memory": memory,
    "balance": balance, "algorithms": compare,
}  # fmt: skip
