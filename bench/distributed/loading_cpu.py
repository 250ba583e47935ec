"""Graphs read in parts: memory and time.

Ranks of one process, a thread each, take turns: bytes are allocations of NumPy and
Python by all of them, without the graph that was read. `peak_over_final` is the peak
over the bytes of the parts in the end. Times are of whole loads, one rank after the
other, beside reading the same bytes from the same files; CPU time is that of the
process: other loads of the machine are not in it. One process reads the whole graphs,
too, beside pandas and polars on the same text.

``--ratings N`` draws so many ratings of the users and items of MovieLens 20M, and cuts
them in each side: of the whole on each rank, of the edges that each rank has, of
slices, and of edges that each rank draws.
"""

from __future__ import annotations

import argparse
import contextlib
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
from featgraph.graph import ratings
from featgraph.graph.formats.convert import convert, write_graph

DEFAULTS = {"graph": ["uniform-17-16"], "k": [1], "repeat": 3, "ranks": 4, "ratings": 0}
#: Users and items of MovieLens 20M.
SIDES = (138_493, 26_744)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many")
    parser.add_argument("--ratings", type=int, help="cut so many, and no other graphs")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Load each graph from slices, from text and from arrays."""
    if arguments.ratings:
        measure_ratings(arguments, recorder)
        return
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
    """Load one graph in all ways."""
    given, kind = named.graph, "directed" if directed else "undirected"
    weights = np.random.default_rng(1).random(given.given_edge_count)
    ends = np.asarray(given.sources), np.asarray(given.targets)
    options: dict[str, Any] = {
        "directed": directed,
        "vertex_count": given.vertex_count,
    }
    whole = fg.Graph.from_edges(*ends, weights=weights, **options)
    slices, text = folder / f"{directed}.fgs", folder / f"{directed}.csv"
    write_graph(whole, slices)
    write_text(text, *ends, weights)
    files = {"slices": sorted(slices.iterdir()), "arrays": []}
    about = {"graph": named.describe(), "k": 1}
    for name, load in loads_of_ranks(slices, text, (*ends, weights), options).items():
        paths = files.get(name, [text])
        recorder.add(
            f"{name}, {kind}",
            **of_ranks(load, arguments, whole.digest),
            **of_files(paths),
            **about,
        )
    for name, call in loads_of_wholes(slices, text, options).items():
        trials, cpu_ms = timed(call, arguments.repeat)
        recorder.add(
            f"{name}, {kind}",
            trials,
            cpu_ms=cpu_ms,
            checks={"ok": True},
            **of_files(files.get(name.partition(",")[0], [text])),
            **about,
        )


def measure_ratings(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Cut ratings in all ways."""
    given = (*SIDES, arguments.ratings)
    whole = ratings(*given, seed=1, target="cpu")
    columns = whole.sources, whole.targets, whole.weights
    options: dict[str, Any] = {"directed": False, "sides": SIDES}
    with tempfile.TemporaryDirectory() as folder:
        slices = Path(folder) / "ratings.fgs"
        write_graph(whole, slices)
        ways = {
            "whole": lambda: fg.distribute(whole),
            "slices": lambda: fg.read_graph(slices, partition="edges"),
            "arrays": lambda: share_of(columns, options),
            "drawn": lambda: ratings(*given, seed=1, partition="edges", target="cpu"),
        }
        for name, load in ways.items():
            found = of_ranks(load, arguments, whole.digest)
            about = {"name": "ratings-20m", "edges": whole.edge_count}
            recorder.add(f"{name}, ratings", **found, graph=about, k=1)


def share_of(columns: Any, options: dict[str, Any]) -> Any:
    """Make a graph in parts of this rank's share of edges."""
    engine, count = fg.distributed.current_engine(), columns[0].size
    rank, size = engine.rank, engine.size
    here = slice(count * rank // size, count * (rank + 1) // size)
    u, v, weights = (column[here] for column in columns)
    return fg.Graph.from_edges(u, v, weights=weights, partition="edges", **options)


def write_text(path: Path, *columns: Any) -> None:
    """Write columns as text, with all digits of doubles."""
    with path.open("w") as stream:
        for i in range(0, columns[0].size, 1 << 16):
            parts = (column[i : i + (1 << 16)].tolist() for column in columns)
            rows = zip(*parts, strict=True)
            stream.writelines(f"{a},{b},{w}\n" for a, b, w in rows)


def loads_of_ranks(
    slices: Path, text: Path, columns: Any, options: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the calls of each rank."""
    return {
        "slices": lambda: fg.read_graph(slices, partition="edges"),
        "text": lambda: fg.read_graph(text, partition="edges", weights=2, **options),
        "arrays": lambda: share_of(columns, options),
    }


def loads_of_wholes(
    slices: Path, text: Path, options: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return calls of one process, and of other libraries on the text."""

    def converted() -> Any:
        with tempfile.TemporaryDirectory(dir=text.parent) as folder:
            convert(text, Path(folder) / "graph.fgs", weights=2, **options)

    return {
        "slices, whole": lambda: fg.read_graph(slices).in_edges,
        "text, whole": lambda: fg.read_graph(text, weights=2, **options),
        "convert text": converted,
        **(readers_of_tables(text) if options["directed"] else {}),
    }


def of_ranks(
    load: Callable[[], Any], arguments: argparse.Namespace, digest: str
) -> dict[str, Any]:
    """Return the columns of a load on all ranks."""
    ranks = arguments.ranks
    parts = loaded(load, ranks)  # compiled
    is_same = {part.digest for part in parts} == {digest}
    del parts
    trials, cpu_ms = timed(lambda: loaded(load, ranks), arguments.repeat)
    peak, final = memory(load, ranks)
    return {
        "trials_ms": trials,
        "ranks": ranks,
        "cpu_ms": cpu_ms,
        "peak_bytes": peak,
        "final_bytes": final,
        "peak_over_final": round(peak / final, 3),
        "checks": {"digest": is_same, "ok": is_same and peak <= 2.2 * final},
    }


def of_files(paths: list[Path]) -> dict[str, Any]:
    """Return size of files and the time of reading them."""
    size = sum(path.stat().st_size for path in paths)
    return {"file_bytes": size, "read_ms": reading(paths)}


def readers_of_tables(text: Path) -> dict[str, Callable[[], Any]]:
    """Return readers of the same text by other libraries that are installed."""
    found: dict[str, Callable[[], Any]] = {}
    with contextlib.suppress(ImportError):
        import pandas

        found["pandas.read_csv"] = lambda: pandas.read_csv(text, header=None)
    with contextlib.suppress(ImportError):
        import polars

        found["polars.read_csv"] = lambda: polars.read_csv(text, has_header=False)
    return found


def timed(call: Callable[[], Any], repeat: int) -> tuple[list[float], float]:
    """Return ms of warm calls, and the least CPU time of one."""
    call()
    trials, spent = [], []
    for _ in range(repeat):
        begun, busy = time.perf_counter(), time.process_time()
        call()
        spent.append(1000 * (time.process_time() - busy))
        trials.append(1000 * (time.perf_counter() - begun))
    return trials, round(min(spent), 1)


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
