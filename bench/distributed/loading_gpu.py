"""A graph of 2.1G edges, written as slices and read from them, on a machine of GPUs.

The GPU draws it; its rows come to the host, and are written. *read* is what processes
take for all bytes of the files, a share each, into memory; *slices* what ranks take
for their parts of the graph, a process each, and *whole* what one process does for all
of it. Files are in the page cache, where that holds them. Digests are compared, and
*of read* is the time by that of the bytes on as many processes.

``--cpu`` draws the graph on the host, for rehearsal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import featgraph as fg
from bench.distributed.out_of_core_gpu import graph_of
from bench.distributed.streaming import Teller, stream_from_ranks
from bench.record import Recorder
from featgraph.graph.formats.convert import write_graph
from featgraph.graph.generators import rmat

DEFAULTS = {"repeat": 1, "scale": 27, "edge_factor": 16, "ranks": "4"}
MODULE = "bench.distributed.loading_gpu"
#: Seconds that all ranks of a number may take.
LIMIT_S = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is drawn, who reads it, and where it is kept meanwhile."""
    parser.add_argument("--scale", type=int, help="of the R-MAT graph")
    parser.add_argument("--edge-factor", type=int)
    parser.add_argument("--ranks", help="how many, by commas")
    parser.add_argument("--folder", help="for the slices")
    parser.add_argument("--cpu", action="store_true", help="no GPU draws it")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Write the graph, then read it in all ways."""
    scale, factor = arguments.scale, arguments.edge_factor
    if arguments.cpu:
        graph = rmat(scale, factor, seed=1, target="cpu")
    else:
        graph = graph_of(scale, factor, weighted=False)
    about = {"name": f"rmat-{scale}-{factor}", "edges": graph.edge_count}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "graph.fgs"
        begun = time.perf_counter()
        digest = write_graph(graph, path).digest
        written = 1000 * (time.perf_counter() - begun)
        del graph
        size = sum(file.stat().st_size for file in path.iterdir())
        recorder.add("write", [written], graph=about, file_bytes=size)
        write_graph(rmat(8, 8, seed=1, target="cpu"), path.with_name("small.fgs"))
        given = {
            "path": str(path), "small": str(path.with_name("small.fgs")),
            "repeat": arguments.repeat, "digest": digest, "target": "cpu",
        }  # fmt: skip
        for ranks in map(int, arguments.ranks.split(",")):
            read: float | None = None
            for cell in stream_from_ranks(MODULE, ranks, given, {}, LIMIT_S):
                trials, name = cell["trials_ms"], cell["name"]
                fields = {"ranks": ranks, "file_bytes": size}
                if read is None:
                    read = median(trials)
                else:
                    fields["of_read"] = round(median(trials) / read, 2)
                checks = {"ok": cell["ok"]}
                recorder.add(name, trials, graph=about, checks=checks, **fields)


def be_a_rank(given: dict[str, Any], told: str) -> None:
    """Read a share of the bytes, then this rank's part of the graph."""
    engine, tell = fg.distributed.init(engine="shared"), Teller(told)

    def timed(name: str, call: Any) -> None:
        trials = []
        for _ in range(given["repeat"]):
            engine.barrier()
            begun = time.perf_counter()
            found = call()
            engine.barrier()
            trials.append(1000 * (time.perf_counter() - begun))
            is_right = found is None or found.digest == given["digest"]
            del found
        if engine.rank == 0:
            tell(name=name, trials_ms=trials, ok=is_right)

    path, is_alone = given["path"], engine.size == 1
    timed("read", lambda: _read(Path(path), engine.rank, engine.size))
    how: dict[str, Any] = {} if is_alone else {"partition": "edges"}
    fg.read_graph(given["small"], **how)  # compiles
    timed("whole" if is_alone else "slices", lambda: fg.read_graph(path, **how))


def _read(path: Path, rank: int, ranks: int) -> None:
    """Read a rank's share of each file into memory."""
    for file in sorted(path.iterdir()):
        size = file.stat().st_size
        begin, end = (size * r // ranks for r in (rank, rank + 1))
        share = np.empty(end - begin, np.uint8)
        with file.open("rb", buffering=0) as stream:
            stream.seek(begin)
            at = 0
            while at < share.size:
                at += stream.readinto(share[at : at + (1 << 26)].data) or share.size


if __name__ == "__main__":
    be_a_rank(json.loads(sys.argv[1]), sys.argv[2])
