"""Graphs read in parts: the memory that ranks take for it, and the time.

Ranks of one process, a thread each, take turns: bytes are those of all of them, as
NumPy and Python ask for them, without the graph that was read. `peak_over_final` is the
most that there was at a time over what the parts have in the end. Times are of whole
loads, one rank after the other, beside reading the same bytes from the same files; CPU
time is that of the process, which says more where others use the machine. One process
reads the whole graphs, too, beside what pandas and polars take for the same text.
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
    write_text(text, u, v, weights)
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
        parts = loaded(load, ranks)  # compiled
        is_same = {part.digest for part in parts} == {whole.digest}
        del parts
        trials, cpu_ms = timed(lambda: loaded(load, ranks), arguments.repeat)  # noqa: B023
        peak, final = memory(load, ranks)
        recorder.add(
            f"{kind}, {'directed' if directed else 'undirected'}",
            trials,
            graph=named.describe(),
            k=1,
            ranks=ranks,
            cpu_ms=cpu_ms,
            peak_bytes=peak,
            final_bytes=final,
            peak_over_final=round(peak / final, 3),
            file_bytes=sum(path.stat().st_size for path in paths),
            read_ms=reading(paths),
            checks={"digest": is_same, "ok": is_same and peak <= 2.2 * final},
        )
    wholes: dict[str, Callable[[], Any]] = {
        "slices, whole": lambda: fg.read_graph(slices).in_edges,
        "text, whole": lambda: fg.read_graph(text, weights=2, **options),
        "convert text": lambda: convert(
            text, folder / f"{time.time_ns()}.fgs", weights=2, **options
        ),
        **(readers_of_tables(text) if directed else {}),
    }
    for kind, call in wholes.items():
        trials, cpu_ms = timed(call, arguments.repeat)
        path = slices if "slices" in kind else text
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        recorder.add(
            f"{kind}, {'directed' if directed else 'undirected'}",
            trials,
            graph=named.describe(),
            k=1,
            cpu_ms=cpu_ms,
            file_bytes=sum(one.stat().st_size for one in files),
            read_ms=reading(files),
            checks={"ok": True},
        )


def write_text(path: Path, *columns: np.ndarray[Any, Any]) -> None:
    """Write arrays as the columns of a table."""
    with path.open("w") as stream:
        for i in range(0, columns[0].size, 1 << 16):
            rows = zip(*(a[i : i + (1 << 16)].tolist() for a in columns), strict=True)
            stream.writelines(f"{','.join(map(str, row))}\n" for row in rows)


def readers_of_tables(text: Path) -> dict[str, Callable[[], Any]]:
    """Return what other libraries take for the same text, those that are here."""
    found: dict[str, Callable[[], Any]] = {}
    with contextlib.suppress(ImportError):
        import pandas

        found["pandas.read_csv"] = lambda: pandas.read_csv(text, header=None)
    with contextlib.suppress(ImportError):
        import polars

        found["polars.read_csv"] = lambda: polars.read_csv(text, has_header=False)
    return found


def timed(call: Callable[[], Any], repeat: int) -> tuple[list[float], float]:
    """Return what calls take in ms that are warm, and the least CPU time of one."""
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
