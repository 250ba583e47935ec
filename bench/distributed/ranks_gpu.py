"""Ranks of one process on one GPU beside a run without ranks.

Breadth-first search and PageRank as whole calls that are warm: without ranks, as ever
and with supersteps driven by the host (a callback asks for that); and on ranks that
share the GPU and take turns, so that their work adds up. A single rank has the graph
itself, and is not timed. `checks` has the largest difference from the answers without
ranks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder, gpu_name
from bench.timing import join_compilers, wait_for_gpu
from featgraph.algorithms import bfs, pagerank

DEFAULTS = {"graph": ["rmat-18-16"], "repeat": 7, "ranks": 2}
TARGET = "cuda"
SUPERSTEPS = 20
WARM_UPS = 3

Call = Callable[..., Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many, all on one GPU")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time both algorithms on every graph, in each of the three ways."""
    recorder.device = gpu_name()
    for name in arguments.graph:
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
