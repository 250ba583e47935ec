"""Graphs read in parts: the memory that ranks take for it, and the time.

Ranks of one process, a thread each, take turns: bytes are those of all of them, as
NumPy and Python ask for them, without the graph that was read. `peak_over_final` is the
most that there was at a time over what the parts have in the end. Times are of whole
loads, one rank after the other, beside reading the same bytes from the same files.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder
from featgraph.distributed import run_ranks
from featgraph.graph.formats.convert import convert, write_graph

DEFAULTS = {"graph": ["uniform-17-16"], "k": [1], "repeat": 3, "ranks": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Load each graph from slices, from text and from arrays."""
    for name in arguments.graph:
        named = make_graph(name)
        with tempfile.TemporaryDirectory() as folder:
            for directed in (True, False):
                measure(named, directed, Path(folder), arguments, recorder)


def measure(
    named: Any,
    directed: bool,
    folder: Path,
    arguments: argparse.Namespace,
    recorder: Recorder,
) -> None:
    given, ranks = named.graph, arguments.ranks
    weights = np.random.default_rng(1).random(given.given_edge_count)
    u, v = np.asarray(given.sources), np.asarray(given.targets)
    count = given.vertex_count
    whole = fg.Graph.from_edges(
        u, v, weights=weights, vertex_count=count, directed=directed
    )
    slices = folder / f"{directed}.fgs"
    write_graph(whole, slices)
    text = folder / f"{directed}.csv"
    with text.open("w") as stream:
        for i in range(0, u.size, 1 << 16):
            rows = zip(*(a[i : i + (1 << 16)].tolist() for a in (u, v, weights)),
                       strict=True)  # fmt: skip
            stream.writelines(f"{a},{b},{w}\n" for a, b, w in rows)
    options: dict[str, Any] = {"directed": directed, "vertex_count": count}

    def of_edges() -> Any:
        engine = fg.distributed.current_engine()
        here = slice(u.size * engine.rank // ranks, u.size * (engine.rank + 1) // ranks)
        return fg.Graph.from_edges(
            u[here], v[here], weights=weights[here], partition="edges", **options
        )

    loads: dict[str, tuple[Callable[[], Any], list[Path]]] = {
        "slices": (
            lambda: fg.read_graph(slices, partition="edges"),
            sorted(slices.iterdir()),
        ),
        "text": (
            lambda: fg.read_graph(text, partition="edges", weights=2, **options),
            [text],
        ),
        "arrays": (of_edges, []),
    }
    for kind, (load, paths) in loads.items():
        trials, parts = [], loaded(load, ranks)  # compiled
        is_same = {part.digest for part in parts} == {whole.digest}
        for _ in range(arguments.repeat):
            del parts
            begun = time.perf_counter()
            parts = loaded(load, ranks)
            trials.append(1000 * (time.perf_counter() - begun))
        del parts
        peak, final = memory(load, ranks)
        recorder.add(
            f"{kind}, {'directed' if directed else 'undirected'}",
            trials,
            graph=named.describe(),
            k=1,
            ranks=ranks,
            peak_bytes=peak,
            final_bytes=final,
            peak_over_final=round(peak / final, 3),
            file_bytes=sum(path.stat().st_size for path in paths),
            read_ms=reading(paths),
            checks={"digest": is_same, "ok": is_same and peak <= 2.2 * final},
        )
    begun = time.perf_counter()
    convert(text, folder / f"converted-{directed}.fgs", weights=2, **options)
    recorder.add(
        f"convert text, {'directed' if directed else 'undirected'}",
        [1000 * (time.perf_counter() - begun)],
        graph=named.describe(),
        k=1,
        checks={"ok": True},
    )


def loaded(load: Callable[[], Any], ranks: int) -> list[Any]:
    return run_ranks(ranks, lambda engine: load())


def memory(load: Callable[[], Any], ranks: int) -> tuple[int, int]:
    """Return the most bytes that all ranks had, and those that stay."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        parts = loaded(load, ranks)
        gc.collect()
        final, peak = tracemalloc.get_traced_memory()
        assert len(parts) == ranks
        return peak - before, final - before
    finally:
        tracemalloc.stop()


def reading(paths: list[Path]) -> float:
    """Return how long it takes to read some files, in ms."""
    begun = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as stream:
            while stream.read(1 << 22):
                pass
    return round(1000 * (time.perf_counter() - begun), 2)
