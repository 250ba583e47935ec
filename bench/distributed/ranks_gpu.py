"""Ranks of one process on one GPU, or with a GPU each, beside a run without ranks.

Breadth-first search and PageRank as whole calls that are warm: without ranks, as ever
and with supersteps driven by the host (a callback needs that); and on ranks that
share the GPU and take turns, so that their work adds up. A single rank has the graph
itself, and is not timed. With ``--gpus`` ranks are processes with a GPU each instead,
in each way in which they may hand rows over (``fg.config.gpu_links``), and also through
windows without replay. `checks` has the largest difference from the answers without
ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from bench.distributed.streaming import Sender, run_on_ranks, run_rank
from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import time_calls
from featgraph.algorithms import bfs, pagerank

DEFAULTS = {"graph": ["rmat-18-16"], "repeat": 7, "ranks": 2, "gpus": 0}
TARGET = "cuda"
SUPERSTEPS = 20
WARM_UPS = 3
#: Longest that the processes of one run may take.
LIMIT_S = 80.0
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
    recorder.use("cuda")
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
    """Record the programs of one way, as soon as they are measured."""
    for program, cell in found.items():
        meant = np.array(alone[program]["sample"])
        apart = float(np.abs(np.array(cell["sample"]) - meant).max())
        checks = {"difference": apart, "ok": apart <= 1e-6}
        more = {n: cell[n] for n in ("graph", "supersteps", "sent_bytes")}
        recorder.add(
            way, cell["trials_ms"], k=1, program=program, checks=checks, **more
        )


def measure(
    name: str, repeat: int, ranks: int, links: str, replay: str, engine: str
) -> dict[str, Any]:
    """Return the measurements of rank 0 of processes with a GPU each, by program."""
    environment = {"FEATGRAPH_GPU_LINKS": links, "FEATGRAPH_REPLAY": replay}
    given = {"graph": name, "repeat": repeat, "engine": engine, "target": TARGET}
    module = "bench.distributed.ranks_gpu"
    return run_on_ranks(module, ranks, given, environment, LIMIT_S)


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run the programs on this rank; the first one writes their times."""
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=given["engine"])
    fg.config.compile_behind = False
    named, repeat = make_graph(given["graph"]), given["repeat"]
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
        send(**found)


def programs(graph: fg.Graph) -> dict[str, tuple[Call, str]]:
    """Return calls with a graph, and the names of their answers."""
    source = int(np.argmax(np.asarray(graph.out_degree)))
    limits: dict[str, Any] = {"tol": 0.0, "max_supersteps": SUPERSTEPS}
    return {
        "bfs": (lambda g, **o: bfs(g, source, target=TARGET, **o), "levels"),
        "pagerank": (lambda g, **o: pagerank(g, target=TARGET, **limits, **o), "ranks"),
    }


def ways(whole: fg.Graph, ranks: int) -> dict[str, Call]:
    """Return functions that time a call, by the way in which it runs."""

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
    """Return ms of warm calls."""
    how: dict[str, Any] = {"target": TARGET, "engine": engine}
    return time_calls(call, repeat, warm_up=WARM_UPS, **how)


if __name__ == "__main__":
    run_rank(be_a_rank)
