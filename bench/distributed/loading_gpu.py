"""A graph of 2.1G edges, written as slices and read from them to the GPUs of a host.

A GPU draws it; its rows come to the host, and are written. *read* is the time of
processes for all bytes of the files, a share each by one thread, into new memory; *read
by threads* the same with as many threads as a load has. *slices* is the time of ranks
for their parts of the graph, a process and a GPU each, and *whole* what one process
does for all of it, until the GPU has it. Files are in the page cache, where that holds
them. A first load, which compiles kernels and gets memory, stands apart (``first_ms``).
Digests are compared, and *of read* is the time by that of the bytes on as many
processes.

``--host`` loads it to the host, by as many threads; ``--cpu`` draws it there, too,
for rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import featgraph as fg
from bench.distributed.out_of_core_gpu import graph_of
from bench.distributed.streaming import Sender, run_rank, stream_from_ranks
from bench.record import Recorder
from featgraph.cuda import arrays
from featgraph.graph.formats.convert import write_graph
from featgraph.graph.generators import rmat
from featgraph.graph.slices.manifest import read_manifest

DEFAULTS = {"repeat": 2, "scale": 27, "edge_factor": 16, "ranks": "4",
            "along": "both"}  # fmt: skip
MODULE = "bench.distributed.loading_gpu"
#: Seconds that all ranks of a number may take.
LIMIT_S = 240
#: Bytes that are read by one call.
PIECE = 1 << 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the graph, the ranks that read it, and the folder."""
    parser.add_argument("--scale", type=int, help="of the R-MAT graph")
    parser.add_argument("--edge-factor", type=int)
    parser.add_argument("--ranks", help="how many, by commas")
    parser.add_argument("--folder", help="for the slices, which are removed")
    parser.add_argument("--keep", help="a folder for them, which stays, or has them")
    parser.add_argument("--along", choices=("both", "in"), help="edges of a part")
    parser.add_argument("--host", action="store_true", help="load to the host")
    parser.add_argument("--cpu", action="store_true", help="and draw it there")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Write the graph, then read it in all ways."""
    with contextlib.ExitStack() as stack:
        if arguments.keep:
            folder = arguments.keep
        else:
            made = tempfile.TemporaryDirectory(dir=arguments.folder)
            folder = stack.enter_context(made)
        path = Path(folder) / "graph.fgs"
        recorder.use("cpu" if arguments.cpu else "cuda")
        if not path.exists():
            write(path, arguments, recorder)
        manifest = read_manifest(path)
        about = {"name": name_of(arguments), "edges": manifest.edge_count}
        given = {
            "path": str(path), "small": str(path.with_name("small.fgs")),
            "repeat": arguments.repeat, "digest": manifest.digest,
            "along": arguments.along,
            "target": "cpu" if arguments.cpu or arguments.host else "cuda",
        }  # fmt: skip
        size = bytes_of(path)
        for ranks in map(int, arguments.ranks.split(",")):
            read: dict[str, float] = {}
            for cell in stream_from_ranks(MODULE, ranks, given, {}, LIMIT_S):
                trials, name = cell["trials_ms"], cell["name"]
                fields = {"ranks": ranks, "file_bytes": size}
                more = "first_ms", "along", "target"
                fields |= {key: cell[key] for key in more if key in cell}
                if name.startswith("read"):
                    read[name] = median(trials)
                else:
                    of = {k: round(median(trials) / ms, 2) for k, ms in read.items()}
                    fields |= {"of_" + k.replace(" ", "_"): of[k] for k in of}
                checks = {"ok": cell["ok"]}
                recorder.add(name, trials, graph=about, checks=checks, **fields)


def name_of(arguments: argparse.Namespace) -> str:
    """Return the name of the graph."""
    return f"rmat-{arguments.scale}-{arguments.edge_factor}"


def bytes_of(path: Path) -> int:
    """Return how many bytes the files of a folder have."""
    return sum(file.stat().st_size for file in path.iterdir())


def write(path: Path, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Write the graph, and a small one by which readers are compiled."""
    scale, factor = arguments.scale, arguments.edge_factor
    if arguments.cpu:
        graph = rmat(scale, factor, seed=1, target="cpu")
    else:
        graph = graph_of(scale, factor, weighted=False)
    begun = time.perf_counter()
    write_graph(graph, path)
    written = 1000 * (time.perf_counter() - begun)
    about = {"name": name_of(arguments), "edges": graph.edge_count}
    recorder.add("write", [written], graph=about, file_bytes=bytes_of(path))
    write_graph(rmat(8, 8, seed=1, target="cpu"), path.with_name("small.fgs"))


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Read a share of the bytes, then this rank's part of the graph."""
    engine = fg.distributed.init(engine="shared")

    path, is_alone = given["path"], engine.size == 1
    is_there, share = given["target"] == "cuda", (engine.rank, engine.size)
    how: dict[str, Any] = {"target": given["target"]} if is_there else {}
    if not is_alone:
        how |= {"partition": "edges", "along": given["along"]}

    def load(path: str) -> Any:
        graph = fg.read_graph(path, **how)
        if is_there:
            arrays.synchronize()
        return graph

    def once(call: Any) -> tuple[float, bool]:
        engine.barrier()
        begun = time.perf_counter()
        found = call()
        engine.barrier()
        took = 1000 * (time.perf_counter() - begun)
        return took, found is None or found.digest == given["digest"]

    def timed(name: str, call: Any, **more: Any) -> None:
        found = [once(call) for _ in range(given["repeat"])]
        if engine.rank == 0:
            trials, are_right = zip(*found, strict=True)
            send(name=name, trials_ms=list(trials), ok=all(are_right), **more)

    timed("read", lambda: _read(Path(path), share, 1))
    threads = int(os.environ.get("NUMBA_NUM_THREADS", os.cpu_count() or 1))
    timed("read by threads", lambda: _read(Path(path), share, threads))
    load(given["small"])
    first_ms = round(once(lambda: load(path))[0], 3)
    more = {"target": given["target"]}
    more |= {} if is_alone else {"along": given["along"]}
    name = "whole" if is_alone else "slices"
    timed(name, lambda: load(path), first_ms=first_ms, **more)


def _read(folder: Path, share: tuple[int, int], threads: int) -> None:
    """Read a rank's share of each file into memory, some of it on each thread."""
    rank, ranks = share
    for file in sorted(folder.iterdir()):
        size = file.stat().st_size
        begin, end = (size * r // ranks for r in (rank, rank + 1))
        made = np.empty(end - begin, np.uint8)
        with (
            file.open("rb", buffering=0) as stream,
            ThreadPoolExecutor(threads) as pool,
        ):
            some = partial(_read_some, stream.fileno(), begin, made)
            list(pool.map(some, range(0, made.size, PIECE)))


def _read_some(handle: int, begin: int, made: Any, first: int) -> None:
    at, last = first, min(first + PIECE, made.size)
    while at < last:
        at += os.preadv(handle, [made[at:last].data], begin + at) or last


if __name__ == "__main__":
    run_rank(be_a_rank)
