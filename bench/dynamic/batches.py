"""Insertion and deletion of batches (aimGraph 6.1, 6.3), beside ways to build anew.

A trial inserts a batch and deletes it again. Batches are *random* (both ends uniform),
*like* the graph (ends of edges of the graph, drawn apart), or to one *hub*. Their edges
are not in the graph, each is there once, and they lie in host memory.

``--rounds 10`` adds the whole protocol (aimGraph, Table 6.3): in each round the graph
is initialised, and ten random batches of the largest size are inserted and deleted,
each one before the next (*protocol*), or all before the first is deleted (*stacked*).
``--mixed`` adds 6.4: half of a batch is inserted and the other half deleted, in one
batch and in two.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bench.dynamic.contenders import (
    CONTENDERS,
    Dynamic,
    DynamicThere,
    Edges,
    Holder,
    keys_of,
)
from bench.graphs import SEED, make_graph
from bench.record import Recorder, gpu_name
from bench.timing import wait_for_gpu

DEFAULTS = {
    "graph": ["rmat-20-16"], "k": [1], "repeat": 5, "target": "cpu",
    "sizes": [1_000, 100_000, 1_000_000], "kinds": ["random", "like", "hub"],
    "only": list(CONTENDERS), "seconds": 20.0, "rounds": 0, "mixed": False,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", nargs="+", type=int, help="updates of a batch")
    parser.add_argument("--kinds", nargs="+", choices=DEFAULTS["kinds"])
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--seconds", type=float, help="most that a cell repeats for")
    parser.add_argument("--rounds", type=int, help="of the whole protocol")
    parser.add_argument(
        "--mixed", action="store_true", help="insert and delete at once"
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each contender on each size and kind of batch."""
    recorder.device = gpu_name() if arguments.target == "cuda" else None
    for name in arguments.graph:
        named = make_graph(name)
        base, count = edges_once(named.graph), named.graph.vertex_count
        described = named.describe() | {"edges_once": len(base)}
        for contender in arguments.only:
            if CONTENDERS[contender] is DynamicThere and arguments.target != "cuda":
                continue
            gc.collect()
            begun = time.perf_counter()
            holder = CONTENDERS[contender](base, count, arguments.target)
            taken = (time.perf_counter() - begun) * 1e3
            common = {"graph": described}
            recorder.add(contender, [taken], operation="initialise", **common)
            before = lengths_and_sum(base, count)
            for size, kind in product(arguments.sizes, arguments.kinds):
                common = {"size": size, "kind": kind, "graph": described}
                make = partial(draw_batch, base, count, size, kind)
                timed = partial(time_cell, arguments, holder, before, make)
                found = recorder.attempt(contender, timed, **common)
                for operation, trials in (found or ({}, {}))[0].items():
                    recorder.add(
                        contender, trials, operation=operation, checks=found[1],
                        updates_per_ms=size / float(np.median(trials)), **common,
                    )  # fmt: skip
            if arguments.mixed and isinstance(holder, Dynamic):
                time_mixed(arguments, recorder, holder, base, described)
            if arguments.rounds:
                make = partial(CONTENDERS[contender], base, count, arguments.target)
                time_rounds(arguments, recorder, contender, make, base, described)


def edges_once(graph: Any) -> Edges:
    """Return the edges of a graph, each once, with weights of 1 to 2."""
    keys = np.unique(keys_of(graph.sources, graph.targets))
    weights = np.random.default_rng(SEED).random(keys.size, np.float32) + 1
    return Edges(
        (keys & 0xFFFFFFFF).astype(np.int32), (keys >> 32).astype(np.int32), weights
    )


def draw_batch(base: Edges, count: int, size: int, kind: str) -> Edges:
    """Draw edges that are not in the graph, each once."""
    rng = np.random.default_rng([SEED, size, len(kind)])
    known = keys_of(base.sources, base.targets)  # ascending
    found = np.empty(0, np.int64)
    hub = int(np.bincount(base.targets, minlength=count).argmax())
    for _ in range(100):
        if found.size >= size:
            break
        ends = [rng.integers(0, count, 2 * size, np.int32) for _ in range(2)]
        if kind == "like":
            ends = [of[rng.integers(0, len(base), 2 * size)]
                    for of in (base.sources, base.targets)]  # fmt: skip
        if kind == "hub":
            ends[1][:] = hub
        keys = np.unique(keys_of(*ends))
        place = np.searchsorted(known, keys).clip(max=known.size - 1)
        found = np.union1d(found, keys[known[place] != keys])
    else:
        raise ValueError(f"{size} edges that are not there, {kind}, are not found")
    found = rng.permutation(found)[:size]
    weights = rng.random(size, np.float32) + 1
    return Edges(
        (found & 0xFFFFFFFF).astype(np.int32), (found >> 32).astype(np.int32), weights
    )


def lengths_and_sum(edges: Edges, count: int) -> tuple[Any, float]:
    """Return edges in the form of `Holder.rows`."""
    lengths = np.bincount(edges.targets, minlength=count)
    return lengths, float(edges.weights.sum(dtype=np.float64))


def time_cell(
    arguments: argparse.Namespace,
    holder: Holder,
    before: tuple[Any, float],
    make: Callable[[], Edges],
) -> tuple[dict[str, list[float]], dict[str, bool]]:
    """Return ms of insertions and deletions of a batch, and whether they are right."""
    batch = make()
    taken: dict[str, list[float]] = {"insert": [], "delete": []}
    lengths, total = lengths_and_sum(batch, before[0].size)
    expected = {"insert": (before[0] + lengths, before[1] + total), "delete": before}
    is_right = True
    for trial in range(arguments.repeat + 1):  # the first one warms up
        for operation, (rows, weights) in expected.items():
            begun = time.perf_counter()
            getattr(holder, operation)(batch)
            wait_for_gpu(arguments.target)
            taken[operation].append((time.perf_counter() - begun) * 1e3)
            if trial == 0:
                found = holder.rows()
                is_right &= np.array_equal(found[0], rows)
                is_right &= bool(np.isclose(found[1], weights, rtol=1e-6))
        if sum(map(sum, taken.values())) > 1e3 * arguments.seconds:
            break
    return {name: all_[1:] or all_ for name, all_ in taken.items()}, {"ok": is_right}


def time_rounds(
    arguments: argparse.Namespace,
    recorder: Recorder,
    contender: str,
    make: Callable[[], Holder],
    base: Edges,
    graph: dict[str, Any],
) -> None:
    """Time rounds of initialisation and ten batches, which are drawn beforehand."""
    size, count = max(arguments.sizes), graph["vertices"]
    drawn = draw_batch(base, count, 10 * size, "random").split(10)
    orders = {
        "protocol": [step for b in drawn for step in (("insert", b), ("delete", b))],
        "stacked": [(what, b) for what in ("insert", "delete") for b in drawn],
    }
    for operation, steps in orders.items():
        trials = []
        for _ in range(arguments.rounds):
            begun = time.perf_counter()
            holder = make()
            for what, batch in steps:
                getattr(holder, what)(batch)
            wait_for_gpu(arguments.target)
            trials.append((time.perf_counter() - begun) * 1e3)
        rows, total = holder.rows()
        expected, weights = lengths_and_sum(base, count)
        is_right = np.array_equal(rows, expected)
        is_right &= bool(np.isclose(total, weights, rtol=1e-6))
        recorder.add(
            contender, trials, operation=operation, size=size, kind="random",
            updates_per_ms=20 * size / float(np.median(trials)),
            checks={"ok": is_right}, graph=graph,
        )  # fmt: skip


def time_mixed(
    arguments: argparse.Namespace,
    recorder: Recorder,
    holder: Dynamic,
    base: Edges,
    graph: dict[str, Any],
) -> None:
    """Time insertions and deletions of as many edges in one batch, and in two."""
    for size in arguments.sizes:
        a, b = draw_batch(base, graph["vertices"], 2 * size, "random").split(2)
        holder.insert(a)
        trials: dict[str, list[float]] = {"two batches": [], "mixed": []}
        for _ in range(2 * arguments.repeat + 2):  # each ends with the other edges
            for operation, taken in trials.items():
                begun = time.perf_counter()
                if operation == "mixed":
                    holder.mix(b, a)
                else:
                    holder.insert(b)
                    holder.delete(a)
                wait_for_gpu(arguments.target)
                taken.append((time.perf_counter() - begun) * 1e3)
                a, b = b, a
        holder.delete(a)
        found = holder.rows()[0]
        is_right = np.array_equal(found, lengths_and_sum(base, found.size)[0])
        for operation, taken in trials.items():
            recorder.add(
                "dynamic", taken[2:], operation=operation, size=size, kind="random",
                updates_per_ms=2 * size / float(np.median(taken)),
                checks={"ok": is_right}, graph=graph,
            )  # fmt: skip
