"""Ranks of one process on one GPU, or with a GPU each, beside a run without ranks.

Breadth-first search and PageRank as whole calls that are warm: without ranks, as ever
and with supersteps driven by the host (a callback asks for that); and on ranks that
share the GPU and take turns, so that their work adds up. A single rank has the graph
itself, and is not timed. With ``--gpus`` ranks are processes with a GPU each instead,
in each way in which they may hand rows over (``fg.config.gpu_links``), and also through
windows without replay. `checks` has the largest difference from the answers without
ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from bench.distributed.on_gpus import LIMIT_S, run_on_gpus
from bench.graphs import make_graph
from bench.record import Recorder, gpu_name
from bench.timing import join_compilers, wait_for_gpu
from featgraph.algorithms import bfs, pagerank

DEFAULTS = {"graph": ["rmat-18-16"], "repeat": 7, "ranks": 2, "gpus": 0}
TARGET = "cuda"
SUPERSTEPS = 20
WARM_UPS = 3
#: How ranks with a GPU each hand rows over: `gpu_links`, whether they replay, and the
#: engine beside.
LINKS = {
    "windows": ("windows", "1", "auto"),
    "windows, by the host": ("windows", "0", "auto"),
    "NCCL": ("engine", "1", "auto"),
    "shared memory": ("host", "1", "shared"),
    "Gloo": ("host", "1", "gloo"),
}

Call = Callable[..., Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many, all on one GPU")
    parser.add_argument("--gpus", type=int, help="how many, with a GPU each")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time both algorithms on every graph, in each of the ways."""
    recorder.device = gpu_name()
    for name in arguments.graph:
        if arguments.gpus:
            compare_gpus(name, arguments, recorder)
            continue
        named = make_graph(name)
        for program, (call, answer) in programs(named.graph).items():
            meant: npt.NDArray[Any] | None = None
            for way, measure in ways(named.graph, arguments.ranks).items():
                trials, result, sent = measure(call, arguments.repeat)
                found = np.asarray(getattr(result, answer), np.float64)
                meant = found if meant is None else meant
                apart = float(np.abs(found - meant).max())
                recorder.add(
                    way,
                    trials,
                    graph=named.describe(),
                    k=1,
                    program=program,
                    supersteps=result.supersteps,
                    sent_bytes=sent,
                    checks={"difference": apart, "ok": apart <= 1e-6},
                )


def compare_gpus(name: str, arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time both algorithms on one GPU, and on ranks with one each in all ways."""
    ranks, repeat = arguments.gpus, arguments.repeat
    alone = measure(name, repeat, 1, "auto", "1", "auto")
    _record(recorder, "1 GPU", alone, alone)
    for way, how in LINKS.items():
        try:
            found = measure(name, repeat, ranks, *how)
        except RuntimeError as error:
            print(f"{ranks} GPUs, {way}: {error}", flush=True)
            continue
        _record(recorder, f"{ranks} GPUs, {way}", found, alone)


def _record(
    recorder: Recorder, way: str, found: dict[str, Any], alone: dict[str, Any]
) -> None:
    """Record what was measured in a way, as soon as it is known."""
    for program, cell in found.items():
        meant = np.array(alone[program]["sample"])
        apart = float(np.abs(np.array(cell["sample"]) - meant).max())
        checks = {"difference": apart, "ok": apart <= 1e-6}
        told = {n: cell[n] for n in ("graph", "supersteps", "sent_bytes")}
        recorder.add(
            way, cell["trials_ms"], k=1, program=program, checks=checks, **told
        )


def measure(
    name: str, repeat: int, ranks: int, links: str, replay: str, engine: str
) -> dict[str, Any]:
    """Return what rank 0 of processes with a GPU each has measured, by program."""
    environment = {
        "FEATGRAPH_GPU_LINKS": links,
        "FEATGRAPH_REPLAY": replay,
        "PYTHONWARNINGS": "ignore",  # runs end at a limit
    }
    given = [name, str(repeat), engine]
    return run_on_gpus("bench.distributed.ranks_gpu", ranks, given, environment)  # type: ignore[no-any-return]


def be_a_rank(name: str, repeat: int, engine_name: str, told: Path) -> None:
    """Run the programs on this rank; the first one writes what it has found."""
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=engine_name)
    fg.config.compile_behind = False
    named = make_graph(name)
    graph, found = fg.distribute(named.graph), {}
    for program, (call, answer) in programs(named.graph).items():
        trials = timed(lambda call=call: call(graph), repeat, engine)
        before = engine.traffic.copy()
        result = call(graph)
        sent = int((engine.traffic - before).sent.sum())
        values = np.asarray(getattr(result, answer), np.float64)
        found[program] = {
            "trials_ms": trials,
            "sent_bytes": sent,
            "supersteps": result.supersteps,
            "graph": named.describe(),
            "sample": values[:: max(values.size // 1000, 1)].tolist(),
        }
    if engine.rank == 0:
        told.write_text(json.dumps(found))


def programs(graph: fg.Graph) -> dict[str, tuple[Call, str]]:
    """Return what is called with a graph, and the name of its answer."""
    source = int(np.argmax(np.asarray(graph.out_degree)))
    limits: dict[str, Any] = {"tol": 0.0, "max_supersteps": SUPERSTEPS}
    return {
        "bfs": (lambda g, **o: bfs(g, source, target=TARGET, **o), "levels"),
        "pagerank": (lambda g, **o: pagerank(g, target=TARGET, **limits, **o), "ranks"),
    }


def ways(whole: fg.Graph, ranks: int) -> dict[str, Call]:
    """Return what times a call, by the way in which it runs."""

    def alone(call: Call, repeat: int) -> tuple[list[float], Any, int]:
        return timed(lambda: call(whole), repeat), call(whole), 0

    def by_host(call: Call, repeat: int) -> tuple[list[float], Any, int]:
        driven = {"callback": lambda *_: None}
        trials = timed(lambda: call(whole, **driven), repeat)
        return trials, call(whole, **driven), 0

    def several(call: Call, repeat: int) -> tuple[list[float], Any, int]:
        def on_a_rank(engine: Any) -> tuple[list[float], Any, int]:
            graph = fg.distribute(whole)
            trials = timed(lambda: call(graph), repeat, engine)
            before = engine.traffic.copy()
            result = call(graph)
            sent = int((engine.traffic - before).sent.sum())
            for name in ("levels", "ranks"):  # put together by all ranks
                _ = getattr(result, name, None)
            return trials, result, sent

        return fg.distributed.run_ranks(ranks, on_a_rank)[0]  # type: ignore[no-any-return]

    return {
        "no ranks": alone,
        "no ranks, by the host": by_host,
        f"{ranks} ranks": several,
    }


def timed(call: Call, repeat: int, engine: Any = None) -> list[float]:
    """Return how long calls take when they are warm, in ms."""
    for _ in range(WARM_UPS):
        call()
        join_compilers()
    trials = []
    for _ in range(repeat):
        wait_for_gpu(TARGET)
        if engine is not None:
            engine.barrier()
        begun = time.perf_counter()
        call()
        wait_for_gpu(TARGET)
        trials.append(1000 * (time.perf_counter() - begun))
    return trials


if __name__ == "__main__":
    be_a_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
