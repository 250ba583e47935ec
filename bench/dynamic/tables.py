"""Further tables of graphs that change; ``--tables`` names them.

*doublings* (aimGraph 6.2): slots and bytes an edge, and ms of batches, by the sizes of
runs a doubling, each in a process of its own.

*vertices* (6.5-6.10): insertion, deletion of drawn vertices with their edges (by their
own rows where the graph is undirected or has rows along "out", by a sweep over all rows
without), and insertion again, which takes ids from the queue. Stages are looking for
*names*, reading the *queue* of ids (once for names, too), and *rows*: plan and writes.

*memory* (4.1-4.3): slots and bytes an edge over ``--rounds`` of as many insertions as
deletions. Insertions are *uniform*, or *sweep* over rows, a tenth in each round, or
updates insert or delete at *random*, in one batch. Edges may have copies. Compactions
are rounds that lay all rows out; their share is their added time. *No reuse*: a pool of
`NO_REUSE` slots an edge, whose free runs are forgotten before each batch.

*balance* (7.1): updates after a batch: of stamps (degrees, traits and lists of hubs),
and the time by which the next superstep exceeds the one after it.

*pages* (7.2-7.4): `SWEEPS` sweeps of PageRank, and triangles, of an undirected graph of
*sorted* or *drawn* edges: the dynamic graph and its frozen copy, with *orient* apart;
on a GPU also the source's pages, by its ways to take them, with listing *pieces* apart.
*First* calls on a graph bind its arrays; on a GPU they also finish orienting.

*algorithms*: each public algorithm on the graph and on its frozen copy, in turn:
*fresh*, *aged* by `AGED` E updates that keep degrees, and *compacted*. The last rows
are geometric means; ratios are of processors' time on the CPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, partialmethod
from itertools import product
from typing import Any
from unittest import mock

import numpy as np

import featgraph as fg
from bench.dynamic.batches import add, draw_batch, edges_once, made, per_edge, repeated
from bench.dynamic.contenders import Edges
from bench.dynamic.pages import STRATEGIES, Pages
from bench.graphs import SEED, make_graph
from bench.record import ROOT, Recorder
from bench.timing import Contender, by_clocks, time_both, with_answers
from featgraph import algorithms
from featgraph.dynamic import store as stores
from featgraph.dynamic.inputs import Names

Array = Any

DEFAULTS = {
    "graph": ["kron-13"], "k": [1], "repeat": 5, "target": "cpu", "rounds": 100,
    "sizes": [1_000, 10_000, 100_000], "only": [], "seconds": 20.0,
    "tables": ["vertices", "memory", "balance", "algorithms"],
}  # fmt: skip
#: Updates of the aged graph by its edges, and the batches that they come in.
AGED, BATCH_SHARE = 10, 16
#: Slots an edge of a pool without reuse: more than it takes in 100 rounds.
NO_REUSE = 64
SWEEPS = 10
#: Edges to be deleted lie so far apart in the list of all.
STRIDE = 7919
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
    **dict.fromkeys(
        ("pagerank", "triangle_count", "connected_components", "clustering", "k_core",
         "strongly_connected_components"), lambda g: ((), {})
    ),
    **dict.fromkeys(("bfs", "sssp", "sswp"), lambda g: ((g.hub,), {})),
    "label_propagation": lambda g: ((g.seeds,), TEN),
    "label_set_propagation": lambda g: ((g.both,), TEN),
    "pagerank_push": lambda g: ((), {"epsilon": 0.1 / g.graph.vertex_count}),
    "hits": lambda g: ((), {"max_iter": 20}),
    "eigenvector_centrality": lambda g: ((), TEN),
    "katz_centrality": lambda g: ((), {"alpha": 1e-4}),
    "belief_propagation": lambda g: (
        (g.unary, ALIKE), {"damping": 0.3, "max_supersteps": 3}
    ),
    "heat_simulation": lambda g: ((g.unary,), {"dt": 1e-6, "duration": 1e-5}),
    **dict.fromkeys(
        ("circuit_simulation", "neural_network"), lambda g: ((g.held,), TEN)
    ),
    "multi_manifold_ranking": lambda g: ((g.hot[:, 0],), TEN | {"weights": g.weights}),
    "multimodal_learning": lambda g: ((g.hot,), TEN | {"weights": g.weights}),
    "closeness_centrality": lambda g: ((np.arange(32),), {}),
    "betweenness_centrality": lambda g: ((), {"sources": np.arange(8)}),
    "k_truss": lambda g: ((), {}),
}  # fmt: skip


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Make each table of each graph."""
    recorder.use(arguments.target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        for name, table in product(arguments.graph, arguments.tables):
            recorder.attempt(table, TABLES[table], arguments, recorder, name)


def doublings(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Run batches in processes with other sizes of runs."""
    output = ["--output", str(recorder.output)] if recorder.output else []
    for count in (1, 2, 4, 8):
        own = {}
        if arguments.target == "cuda":  # stored kernels have the usual sizes
            own["FEATGRAPH_CACHE_DIR"] = tempfile.mkdtemp()
        subprocess.run(
            [sys.executable, "-m", "bench.run", "dynamic-batches", "--graph", name,
             "--only", "dynamic", "--kinds", "random", "like", "--per-doubling",
             str(count), "--repeat", str(arguments.repeat), "--target",
             arguments.target, "--sizes", *map(str, arguments.sizes), *output],
            cwd=ROOT, check=True, env=os.environ | own,
        )  # fmt: skip


def vertices(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Insert vertices, delete drawn ones with their edges, and insert again."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph), named.graph.vertex_count
    kinds = ["undirected", "undirected, names", "directed", "directed, out-rows"]
    for kind, size in product(kinds, arguments.sizes):
        names = "names" in kind
        graph = made(
            base, None if names else count, target, directed=kind[0] == "d", names=names
        )
        if "out" in kind:
            graph.neighbors(0)
        before, known = graph.vertex_count, np.unique(base.sources)
        first, then = (
            np.arange(2 * size).reshape(2, -1) + count if names else [size] * 2
        )
        gone = np.random.default_rng(SEED).choice(known, min(size, count // 4), False)
        is_left = ~np.isin(base.sources, gone) & ~np.isin(base.targets, gone)
        left, living = int(is_left.sum()), before + size - gone.size
        #: Operation -> method, argument, and vertices and edges after it.
        steps: dict[str, tuple[str, Any, tuple[int, int]]] = {
            "insert vertices": ("insert_vertices", first, (before + size, len(base))),
            "delete vertices": ("delete_vertices", gone, (living, left)),
            "insert vertices again": ("insert_vertices", then, (living + size, left)),
        }
        taken: dict[str, list[Array]] = defaultdict(list)
        checks = {"ok": True}
        for _ in range(arguments.repeat + 1):
            one = graph.copy()
            assert one.out_degree.size  # batches keep it from then on
            for operation, (method, given, after) in steps.items():
                ms = by_stage(one, partial(getattr(one, method), given))
                taken[operation].append(ms)
                checks["ok"] &= (one.living_count, one.given_edge_count) == after
        for operation, trials in taken.items():
            stages = zip(STAGES, np.median(trials[1:], 0)[2:].tolist(), strict=True)
            add(recorder, "dynamic", [ms[:2] for ms in trials[1:]], kind=kind,
                **dict(stages), operation=operation, size=size, checks=checks,
                deleted_edges=len(base) - left, graph=named.describe())  # fmt: skip


#: Methods that each stage of a change of vertices consists of.
STAGES = {
    "names_ms": ["look_up", "find", "put"], "queue_ms": ["next_vertices"],
    "rows_ms": ["edges_with", "plan", "fit", "refit", "prepare", "apply"],
}  # fmt: skip


def by_stage(graph: fg.DynamicGraph, call: Callable[[], Any]) -> list[float]:
    """Return ms of a call by both clocks, and those of its stages by one of these."""
    store, spent = graph._store, dict.fromkeys(STAGES, 0.0)
    owners = Names, type(store), type(store.pools["in"])

    def timed(own: Any, stage: str, method: Any, *given: Any, **named: Any) -> Any:
        one = Contender(stage, partial(method, own, *given, **named))
        spent[stage] += one.time_both(store.target)[int(store.target == "cpu")]
        return one.answer

    with ExitStack() as stack:
        for owner, (stage, methods) in zip(owners, STAGES.items(), strict=True):
            for name in methods:
                method = partialmethod(timed, stage, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, method))
        both = time_both(call, store.target)
    return [*both, *spent.values()]


def memory(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Insert and delete for many rounds."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph, both=True), named.graph.vertex_count
    size = min(max(arguments.sizes), len(base) // 16) // 2 * 2
    for kind, reuses in product(("uniform", "sweep", "random"), (True, False)):
        patch = mock.patch.object(stores, "COMPACT_SHARE", 4 * reuses)
        capacity = None if reuses else NO_REUSE * len(base)
        rng = np.random.default_rng(SEED)
        graph = made(base, count, target, capacity=capacity)
        living = np.stack([base.sources, base.targets])
        first, rows, weights = per_edge(graph), [], np.ones(size, np.float32)
        for number in range(arguments.rounds):
            insert = rng.permutation(size) < size // 2
            ms, is_laid_out, whole = np.zeros(2), False, np.ones(size, np.bool_)
            some = rng.integers(len(base)) + np.arange(size) * STRIDE
            some, come = some % len(base), rng.integers(0, count, (2, size), np.int32)
            if kind == "sweep":
                come[1] = come[1] // 10 + number % 10 * (count // 10)
            for mask in [insert] if kind == "random" else [whole, ~whole]:
                ends = np.where(mask, come, living[:, some])
                call = partial(graph.update, *ends, mask, weights=weights)
                if not reuses:
                    pool = graph._store.pools["in"]
                    pool.queues.table[1], pool.region = pool.queues.table[0], (0, 0)
                with patch:
                    ms += time_both(partial(call, copies="first"), target)
                is_laid_out |= not graph._store._aged
            if kind == "random":  # each that comes takes the place of one that goes
                come, some = come[:, insert], some[~insert]
            living[:, some] = come
            rows.append([*ms, is_laid_out, *per_edge(graph).values()])
        expected = np.bincount(living[1], minlength=count)
        checks = {"ok": np.array_equal(graph.in_degree, expected)}
        taken = np.array(rows)
        laid_out, ms = taken[:, 2] > 0, taken[:, int(target == "cpu")]
        more = (ms - np.median(ms[~laid_out]))[laid_out].sum()
        common = {"kind": kind if reuses else f"{kind}, no reuse",
                  "graph": named.describe()}  # fmt: skip
        add(recorder, "dynamic", [*taken[:, :2]], operation="rounds", size=size,
            checks=checks, compactions=int(laid_out.sum()),
            compaction_share=float(more / ms.sum()), **first,
            most_slots_per_edge=taken[:, 3].max(),
            most_used_per_edge=taken[:, 4].max(), **common)  # fmt: skip
        if reuses:
            compaction = repeated(graph.compact, target, arguments.repeat, 5)
            add(recorder, "dynamic", compaction, operation="compact", **per_edge(graph),
                **common)  # fmt: skip


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
            call(batch.sources, batch.targets, **weights)
            taken["stamps"].append(time_both(lambda: graph.stamps, target))
            for which in ("first", "second"):
                taken[which].append(time_both(lambda: total_step(state), target))
        checks = {"ok": np.array_equal(state["total"], graph.in_degree)}
        for what, trials in taken.items():
            add(recorder, "dynamic", trials[2:], operation=what, size=len(batch),
                kind=kind, checks=checks, graph=named.describe())  # fmt: skip


def pages(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Time PageRank and triangles on graphs and on the source's pages."""
    named, target = make_graph(name), arguments.target
    count, rng = named.graph.vertex_count, np.random.default_rng(SEED)
    expected: dict[str, Array] = {}
    for order in ("sorted", "drawn"):
        once, both = (edges_once(named.graph, is_both) for is_both in (False, True))
        if order == "drawn":
            once, both = (edges[rng.permutation(len(edges))] for edges in (once, both))
        graph = fg.DynamicGraph.from_edges(
            once.sources,
            once.targets,
            vertex_count=count,
            directed=False,
            target=target,
        )
        runs = {"dynamic": partial(on_graph, graph.copy, target),
                "static": partial(on_graph, graph.freeze, target)}  # fmt: skip
        if target == "cuda":
            held = Pages(Pages.place(both), count)
            runs |= {f"pages, {how}": partial(on_pages, held, how, order == "sorted")
                     for how in STRATEGIES}  # fmt: skip
        for contender, make in runs.items():
            taken: dict[str, list[Array]] = defaultdict(list)
            for _ in range(arguments.repeat + 1):
                calls = make()
                for operation, call in calls.items():
                    if operation in ("pagerank", "triangles"):
                        taken[f"{operation}, first"].append(time_both(call, target))
                    one = Contender(operation, call)
                    taken[operation].append(one.time_both(target))
                    calls[operation] = one.answer
            ranks = calls["pagerank"] / calls["pagerank"].sum()
            found = np.stack([ranks, calls["triangles"]])
            expected.setdefault(order, found)
            is_right = np.allclose(found, expected[order], [[1e-3], [0]], 0)
            for operation, trials in taken.items():
                add(recorder, contender, trials[1:], operation=operation, rows=order,
                    checks={"ok": is_right}, graph=named.describe())  # fmt: skip


def on_graph(make: Callable[[], fg.Graph], target: str) -> dict[str, Any]:
    """Return calls on a new graph."""
    graph, where = make(), {"target": target}
    rank = partial(algorithms.pagerank, graph, tol=0.0, max_supersteps=SWEEPS,
                   dangling="renormalize", **where)  # fmt: skip
    return {
        "pagerank": lambda: rank().ranks, "orient": partial(graph.orient, target),
        "triangles": lambda: algorithms.triangle_count(graph, **where).triangles,
    }  # fmt: skip


def on_pages(held: Pages, how: str, is_sorted: bool) -> dict[str, Any]:
    """Return calls on pages, which are taken by a strategy."""
    pieces = held.pieces(how)
    return {
        "pieces": partial(held.pieces, how),
        "pagerank": partial(held.ranks, pieces, SWEEPS),
        "triangles": partial(held.triangles, pieces, is_sorted),
    }


def compare(arguments: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """Call algorithms on a graph that changes, and on its frozen copy."""
    named, target = make_graph(name), arguments.target
    base, count = edges_once(named.graph), named.graph.vertex_count
    pair = np.stack([base.weights, base.weights[::-1]], axis=1)
    graph = made(base, count, target, duplicates="last", directed=False,
                 columns={"pair": pair})  # fmt: skip
    chosen = arguments.only or [*CALLS]
    for state in ("fresh", "aged", "compacted"):
        if state == "aged":
            age(graph, base, pair)
        if state == "compacted":
            graph.compact()
        frozen, ratios, slots = graph.freeze(), [], per_edge(graph)
        givens = (Given(graph, graph.column("pair")),
                  Given(frozen, graph.edges()[2]["pair"]))  # fmt: skip
        for what in chosen:
            common = {"operation": state, "graph": named.describe()}
            given = what, givens, arguments, slots
            if line := recorder.record(what, time_pair, *given, **common):
                ratios.append(line["ratio"])
        mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else None
        recorder.add("geometric mean", [], ratio=mean, **common)


def time_pair(
    what: str, givens: tuple[Given, Given], arguments: argparse.Namespace,
    slots: dict[str, float],
) -> tuple[list[float], dict[str, Any]]:  # fmt: skip
    """Return trials on both graphs, in turn, and whether answers are alike."""
    target, taken = arguments.target, ([], [])
    pair: list[Contender] = []
    for given in givens:
        args, options = CALLS[what](given)
        call = partial(getattr(algorithms, what), given.graph, *args, **options)
        pair.append(Contender(what, lambda c=call: with_answers(c(target=target))))
    while len(taken[1]) <= arguments.repeat and (
        sum(ms[0] for ms in taken[0][1:]) < 1e3 * arguments.seconds
    ):
        for one, trials in zip(pair, taken, strict=True):
            trials.append(one.time_both(target))
    found, wanted = (
        next(np.asarray(getattr(r, a)) for a in ANSWERS if hasattr(r, a))
        for r in (one.answer for one in pair)
    )
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
    is_right = bool(np.allclose(found, wanted, 1e-3, 1e-3 * scale, equal_nan=True))
    clock = int(target == "cpu")  # there, time of processors
    ms, static_ms = (float(np.median(all_[1:], 0)[clock]) for all_ in taken)
    trials, own = by_clocks(taken[0][1:])
    return trials, {
        **own, "checks": {"ok": is_right}, "ratio": ms / static_ms,
        "static_ms": static_ms, **slots,
    }  # fmt: skip


def age(graph: fg.DynamicGraph, base: Edges, pair: Array) -> None:
    """Delete rows and insert them again, until all are nearly to be laid out anew."""
    rng, store = np.random.default_rng(SEED), graph._store
    size, is_in = len(base) // BATCH_SHARE // 2, np.ones(len(base), np.bool_)
    out, number, is_last = np.empty(0, np.intp), 0, False
    while not is_last:
        number += 1
        is_last = number > AGED * BATCH_SHARE and store._aged * 5 > store.edge_count
        is_chosen = rng.random(graph.vertex_count) < 1 / BATCH_SHARE
        ends = base.targets if number % 2 else base.sources
        gone = np.flatnonzero(is_chosen[ends] & is_in)[: 0 if is_last else size]
        some = np.append(gone, out)
        graph.update(
            base.sources[some], base.targets[some], np.arange(some.size) >= gone.size,
            weights=base.weights[some], columns={"pair": pair[some]},
        )  # fmt: skip
        is_in[gone], is_in[out], out = False, True, gone


TABLES: dict[str, Callable[[argparse.Namespace, Recorder, str], None]] = {
    "doublings": doublings, "vertices": vertices, "memory": memory,
    "balance": balance, "pages": pages, "algorithms": compare,
}  # fmt: skip
CHOICES = {"tables": TABLES, "only": CALLS}
