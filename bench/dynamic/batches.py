"""Insertion and deletion of batches (aimGraph 6.1, 6.3), beside ways to build anew.

A trial inserts a batch and deletes it again. Batches are *random* (both ends uniform),
*like* the graph (ends of edges of the graph, drawn apart), or to one *hub*. Their edges
are not in the graph, and each is there once. An undirected graph has each of its edges
both ways, as in the source; all counts are of directed edges. Rows along "in" exist.

``--rounds 10`` adds the whole protocol (aimGraph, Table 6.3): in each round the graph
is initialised, and ten random batches of the largest size are inserted and deleted,
each one before the next (*protocol*), or all before the first is deleted (*stacked*).
``--mixed`` adds 6.4: half of a batch is inserted and the other half deleted, in one
batch and in two. ``--per-doubling`` has other sizes of runs (6.2).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, prange

import featgraph as fg
from bench.dynamic.contenders import CONTENDERS, USUAL, Dynamic, Edges
from bench.dynamic.pages import Pages
from bench.graphs import SEED, NamedGraph, distinct, make_graph
from bench.record import Recorder
from bench.timing import by_clocks, time_both

Array = Any
CONTENDERS["pages and locks"] = Pages

DEFAULTS = {
    "graph": ["rmat-20-16"], "k": [1], "repeat": 5, "target": "cpu",
    "sizes": [1_000, 100_000, 1_000_000], "kinds": ["random", "like", "hub"],
    "only": USUAL, "seconds": 20.0, "rounds": 0, "mixed": False, "per_doubling": 4,
}  # fmt: skip
CHOICES = {"kinds": DEFAULTS["kinds"], "only": CONTENDERS}
#: Ms of a first call, which compiles; behind a longer one there is no other.
LONGEST = 30_000


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each contender on each size and kind of batch."""
    recorder.use(arguments.target)
    if arguments.per_doubling != 4:
        set_run_sizes(arguments.per_doubling, arguments.target)
    for name in arguments.graph:
        named = make_graph(name)
        base = edges_once(named.graph, both=True)
        for contender in arguments.only:
            kind = CONTENDERS[contender]
            if find_spec(kind.package) is None:
                print(f"{contender}: {kind.package} is not installed")
            elif arguments.target == "cuda" or not kind.is_there:
                gc.collect()
                Trials(arguments, recorder, named, base, contender).run()


class Trials:
    """All trials of one contender on one graph."""

    def __init__(
        self, arguments: Any, recorder: Recorder, named: NamedGraph, base: Edges,
        contender: str,
    ) -> None:  # fmt: skip
        self.arguments, self.target, self.base = arguments, arguments.target, base
        self.kind, self.count = CONTENDERS[contender], named.graph.vertex_count
        self.before = lengths_and_sum(self.base, self.count)
        graph = named.describe() | {"directed_edges": len(self.base)}
        self.add = partial(add, recorder, contender, graph=graph)
        self.attempt = partial(recorder.attempt, contender, graph=graph)
        self.placed = self.kind.place(self.base)

    def make(self) -> None:
        """Hold the graph anew."""
        self.holder = self.kind(self.placed, self.count, self.target)

    def run(self) -> None:
        """Time all operations of the options."""
        arguments = self.arguments
        limits = arguments.repeat, arguments.seconds / 4
        taken = repeated(self.make, self.target, *limits)
        is_dynamic = isinstance(self.holder, Dynamic)
        slots = per_edge(self.holder.graph) if is_dynamic else {}
        self.add(taken, operation="initialise", **slots)
        for size, drawn in product(arguments.sizes, arguments.kinds):
            self.attempt(self.cell, size, drawn, size=size, kind=drawn)
        if arguments.mixed and is_dynamic and not self.kind.is_there:
            self.mixed()
        if arguments.rounds:
            self.rounds()

    def is_as(self, expected: tuple[Any, float]) -> bool:
        """Return whether rows have these lengths, and weights this sum, if any."""
        lengths, weights = self.holder.rows()
        total = np.sum(weights, dtype=np.float64)
        is_near = np.isnan(total) or np.isclose(total, expected[1], rtol=1e-6)
        return np.array_equal(lengths, expected[0]) and bool(is_near)

    def cell(self, size: int, kind: str) -> None:
        """Time insertions and deletions of a batch, and check them."""
        batch = draw_batch(self.base, self.count, size, kind)
        taken: dict[str, list[Array]] = {"insert": [], "delete": []}
        lengths, total = lengths_and_sum(batch, self.count)
        after = self.before[0] + lengths, self.before[1] + total
        expected = {"insert": after, "delete": self.before}
        placed, checks = self.kind.place(batch), {"ok": True}
        limit = 1e3 * self.arguments.seconds
        for trial in range(self.arguments.repeat + 1):  # the first one warms up
            for operation, rows in expected.items():
                call = partial(getattr(self.holder, operation), placed)
                taken[operation].append(time_both(call, self.target))
                if trial == 0:
                    checks["ok"] &= self.is_as(rows)
            spent = [ms[0] for all_ in taken.values() for ms in all_[trial > 0 :]]
            if sum(spent) > (limit if trial else LONGEST):
                break
        common = {"checks": checks, "per_trial": size, "size": size, "kind": kind}
        for operation, trials in taken.items():
            self.add(trials[1:] or trials, operation=operation, **common)

    def go(self, steps: list[tuple[str, Any]]) -> None:
        """Make the graph, and apply batches."""
        self.make()
        for what, batch in steps:
            getattr(self.holder, what)(batch)

    def rounds(self) -> None:
        """Time rounds of initialisation and ten batches, which are drawn before."""
        size = max(self.arguments.sizes)
        drawn = draw_batch(self.base, self.count, 10 * size, "random").split(10)
        batches = [self.kind.place(batch) for batch in drawn]
        both = ("insert", "delete")
        orders = {
            "protocol": [(what, b) for b in batches for what in both],
            "stacked": [(what, b) for what in both for b in batches],
        }
        for operation, steps in orders.items():
            go = partial(self.go, steps)
            taken = [time_both(go, self.target) for _ in range(self.arguments.rounds)]
            checks = {"ok": self.is_as(self.before)}
            self.add(taken, operation=operation, size=size, kind="random",
                     per_trial=20 * size, checks=checks)  # fmt: skip

    def mixed(self) -> None:
        """Time as many insertions as deletions in one batch, and in two."""
        holder: Any = self.holder
        for size in self.arguments.sizes:
            drawn = draw_batch(self.base, self.count, 2 * size, "random")
            halves = [holder.place(half) for half in drawn.split(2)]
            both, come = holder.place(drawn), np.arange(2 * size) < size
            holder.insert(halves[1])
            trials: dict[str, list[Array]] = {"two batches": [], "mixed": []}

            def in_two(come: Any, go: Any) -> None:
                holder.insert(come)
                holder.delete(go)

            calls = partial(in_two, *halves), partial(holder.mix, both, ~come)
            for _ in range(2 * self.arguments.repeat + 2):  # each undoes the other
                for call, taken in zip(calls, trials.values(), strict=True):
                    taken.append(time_both(call, self.target))
            holder.delete(halves[1])
            checks = {"ok": self.is_as(self.before)}
            for operation, taken in trials.items():
                self.add(taken[2:], operation=operation, size=size, kind="random",
                         per_trial=2 * size, checks=checks)  # fmt: skip


def set_run_sizes(count: int, target: str) -> None:
    """Have runs of so many sizes a doubling, before the kernels are loaded."""
    short = {(4 << k) + (4 << k) * j // count for k in range(10) for j in range(count)}
    sizes = sorted(short | {4096})
    edits = {
        "kernels_cpu": {
            "CLASS_COUNT = 72": f"CLASS_COUNT = {len(sizes) + 31}",
            "LONG_CLASS = 41": f"LONG_CLASS = {len(sizes)}",
            "[(4 + k % 4) << k // 4 for k in range(LONG_CLASS)]": repr(sizes),
        },
        "kernels_cuda": {
            "(4 + (step & 3)) << (step >> 2)": f"int64({tuple(sizes)}[step])"
        },
    }
    folder = Path(tempfile.mkdtemp())  # with kernels of its own
    for file in list(edits)[: 1 + (target == "cuda")]:
        name = f"featgraph.dynamic.{file}"
        text = Path(str(find_spec(name).origin)).read_text()  # type: ignore[union-attr]
        for old, new in edits[file].items():
            assert old in text, old
            text = text.replace(old, new)
        (folder / f"{file}.py").write_text(text)
        spec: Any = spec_from_file_location(name, folder / f"{file}.py")
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def repeated(
    call: Callable[[], Any], target: str, repeat: int, seconds: float
) -> list[Array]:
    """Return ms of each call but the first, which is kept where it takes too long."""
    taken = [time_both(call, target)]  # not counted: it compiles
    while len(taken) <= repeat and sum(ms[0] for ms in taken[1:]) < 1e3 * seconds:
        if taken[0][0] > LONGEST:
            break
        taken.append(time_both(call, target))
    return taken[1:] or taken


def add(
    recorder: Recorder, contender: str, taken: list[Array], *, per_trial: int = 0,
    **fields: Any,
) -> None:  # fmt: skip
    """Record trials by the clock, with the median of processors' time."""
    trials, own = by_clocks(taken)
    if per_trial:
        fields["updates_per_ms"] = per_trial / float(np.median(trials))
    recorder.add(contender, trials, **own, **fields)


def made(edges: Edges, count: int | None, target: str, **options: Any) -> Any:
    """Return a graph of the edges, with weights."""
    return fg.DynamicGraph.from_edges(
        **vars(edges), vertex_count=count, target=target, **options
    )


def per_edge(graph: fg.DynamicGraph) -> dict[str, float]:
    """Return slots, slots that were used, and bytes, over the edges."""
    found, edges = graph.memory(), graph.edge_count
    names = {"slots": "in_slots", "used": "in_used", "bytes": "bytes"}
    return {f"{name}_per_edge": found[key] / edges for name, key in names.items()}


def edges_once(graph: Any, both: bool = False) -> Edges:
    """Return the edges of a graph, each once, by row, with weights of 1 to 2.

    `both` is whether those of an undirected graph are there both ways; otherwise they
    lead to the vertex of the larger id.
    """
    rows, count = graph.in_edges, graph.vertex_count
    sources = rows.column_indices.astype(np.int32)
    sort_rows(rows.row_offsets, sources)
    targets = np.repeat(np.arange(count, dtype=np.int32), np.diff(rows.row_offsets))
    is_new = np.append(True, (np.diff(sources) != 0) | (np.diff(targets) != 0))
    is_new = is_new[: sources.size]
    if not (both or graph.directed):
        is_new &= sources <= targets
    rng = np.random.default_rng(SEED)
    weights = rng.random(np.count_nonzero(is_new), np.float32) + 1
    return Edges(sources[is_new], targets[is_new], weights)


@njit(parallel=True)
def sort_rows(offsets, columns):  # type: ignore[no-untyped-def]
    """Sort the other ends in each row."""
    for v in prange(offsets.size - 1):
        columns[offsets[v] : offsets[v + 1]].sort()


@lru_cache(maxsize=16)  # for all contenders
def draw_batch(
    base: Edges, count: int, size: int, kind: str, *, both: bool = True
) -> Edges:
    """Draw edges that are not in the graph, each once; `both` as for `base`.

    Besides the kinds of the options, edges of *near* vertices have close ids.
    """
    rng = np.random.default_rng([SEED, size, len(kind)])
    known = base.keys()  # ascending
    found = np.empty(0, np.int64)
    hub = int(np.bincount(base.targets, minlength=count).argmax())
    for _ in range(100):
        if found.size >= size:
            break
        ends = [rng.integers(0, count, 2 * size, np.int32) for _ in range(2)]
        if kind == "like":
            of = base.sources, base.targets
            ends = [end[rng.integers(0, len(base), 2 * size)] for end in of]
        if kind == "near":
            ends[1] = (ends[0] + 2) % np.int32(count)
        if kind == "hub":
            ends[1][:] = hub
        if not both:
            ends = [np.minimum(*ends), np.maximum(*ends)]
        keys = distinct(Edges(*ends, ends[0]).keys())  # ascending: found faster
        place = np.searchsorted(known, keys).clip(max=known.size - 1)
        found = distinct(np.append(found, keys[known[place] != keys]))
    else:
        raise ValueError(f"{size} edges that are not there, {kind}, are not found")
    found = rng.permutation(found)[:size]
    weights = rng.random(size, np.float32) + 1
    ends = [part.astype(np.int32) for part in (found & 0xFFFFFFFF, found >> 32)]
    return Edges(*ends, weights)


def lengths_and_sum(edges: Edges, count: int) -> tuple[Any, float]:
    """Return edges in the form of `Holder.rows`."""
    lengths = np.bincount(edges.targets, minlength=count)
    return lengths, float(edges.weights.sum(dtype=np.float64))
