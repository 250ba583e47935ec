"""Times of a run with checkpoints and without: PageRank.

Ranks run so many supersteps as take some seconds, without checkpoints and with one each
``--every`` seconds, one behind the other. `each_ms` is the added time of a run for each
checkpoint that was written, `of_a_minute` that of the 60 s between two by default. One
rank writes beside its run, several hand their rows to the first between supersteps.
Ranks are the same bits with and without.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.streaming import Sender, run_rank, stream_from_ranks
from bench.record import Recorder

DEFAULTS = {
    "graph": ["rmat-24-16"], "repeat": 3, "ranks": "1,2", "target": "cuda",
    "supersteps": 2000, "every": 2.0, "folder": None,
}  # fmt: skip
MODULE = "bench.distributed.checkpoints"
#: Seconds that all ranks of a number may take.
LIMIT_S = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ranks, supersteps, and the times and folder of checkpoints."""
    parser.add_argument("--ranks", help="how many, by commas")
    parser.add_argument("--supersteps", type=int)
    parser.add_argument("--every", type=float, help="seconds between checkpoints")
    parser.add_argument("--folder", help="that checkpoints are written in")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run each number of ranks without checkpoints and with them."""
    recorder.use(arguments.target)
    names = ("repeat", "target", "supersteps", "every")
    given = {name: getattr(arguments, name) for name in names}
    for graph in arguments.graph:
        for ranks in map(int, arguments.ranks.split(",")):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                more = {"graph": graph, "folder": folder, "engine": "shared"}
                for cell in stream_from_ranks(MODULE, ranks, given | more, {}, LIMIT_S):
                    name, trials = cell.pop("name"), cell.pop("trials_ms")
                    checks = {"ok": cell.pop("ok")}
                    about: Any = {"name": graph}
                    recorder.add(
                        name, trials, graph=about, ranks=ranks, checks=checks, **cell
                    )


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run on this rank."""
    from featgraph.algorithms.pagerank import pagerank
    from featgraph.runtime.checkpoints.resumable_call import Writer

    rank, written = lux_gpu.Rank(given, send), [0]
    graph, write = lux_gpu.draw(given["graph"], given["target"], False), Writer.write

    def count(self: Writer, *content: Any) -> None:
        written[0] += 1
        write(self, *content)

    Writer.write = count  # type: ignore[method-assign]
    steps = {"tol": 0.0, "target": given["target"]}
    pagerank(graph, max_supersteps=40, **steps)  # compiles
    alone, meant = 0.0, ""
    for every in (None, given["every"]):
        trials, counts, answers, size = [], [], set(), 0
        for trial in range(given["repeat"]):
            folder = Path(given["folder"]) / f"{every}-{trial}"
            more = {} if every is None else {"checkpoint": folder, "every": every}
            written[0] = 0
            rank.wait()
            begun = time.perf_counter()
            found = pagerank(graph, max_supersteps=given["supersteps"], **steps, **more)
            rank.wait()
            trials.append(1000 * (time.perf_counter() - begun))
            counts.append(written[0])
            values = found.local("ranks")
            own = getattr(graph, "own_vertices", range(values.size))
            answers.add(lux_gpu.digest_of(rank.engine, np.asarray(own), values))
            size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        meant, time_ms = meant or next(iter(answers)), median(trials)
        fields: dict[str, Any] = {}
        if every is not None:
            each = (time_ms - alone) / max(median(counts), 1)
            fields = {
                "written": int(median(counts)), "bytes_kept": size,
                "each_ms": round(each, 2), "of_a_minute": round(each / 60_000, 5),
            }  # fmt: skip
        alone = alone or time_ms
        name = "without" if every is None else f"every {every} s"
        rank.send(name=name, trials_ms=trials, ok=answers == {meant}, **fields)


if __name__ == "__main__":
    run_rank(be_a_rank)
