"""Ranks of one thread each beside one rank of as many threads, on the CPU.

Supersteps of label propagation (every vertex active, k features) and PageRank, each as
a whole call that is warm. Ranks are processes over shared memory, and over Gloo where
there is PyTorch, with the graph cut as it is given. Answers are compared with those of
one rank: `checks` has the largest difference.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bench.distributed.streaming import (
    LIMIT_S,
    Sender,
    run_on_ranks,
    run_rank,
    threads_each,
)
from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import time_calls

DEFAULTS = {
    "graph": ["uniform-20-10"],
    "k": [1, 32],
    "repeat": 5,
    "ranks": 2,
    "engines": ["shared", "gloo"],
}
SUPERSTEPS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many, each with a thread")
    parser.add_argument(
        "--engines", type=lambda text: text.split(","), help="of ranks, by commas"
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time one rank with all threads, and ranks with one each, on every graph."""
    ranks = arguments.ranks
    for name in arguments.graph:
        for k in arguments.k:
            alone: dict[str, Any] = {}
            for count, threads, engine in (
                (1, ranks, "auto"),
                *((ranks, 1, engine) for engine in arguments.engines),
            ):
                given = {"graph": name, "k": k, "engine": engine}
                given["repeat"] = arguments.repeat
                module = "bench.distributed.ranks_cpu"
                found = run_on_ranks(module, count, given, threads_each(threads))
                over = f", {engine}" if count > 1 else ""
                for program, cell in found.items():
                    alone.setdefault(program, cell["sample"])
                    apart = np.abs(np.subtract(cell["sample"], alone[program]))
                    recorder.add(
                        f"{count} of {threads} thread{'s' * (threads > 1)}{over}",
                        cell["trials_ms"],
                        graph=cell["graph"],
                        k=k,
                        program=program,
                        sent_bytes=cell["sent_bytes"],
                        checks={
                            "difference": float(apart.max()),
                            "ok": bool(apart.max() <= 1e-6),
                        },
                    )


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run the programs on this rank; the first one writes their times."""
    import featgraph as fg
    from featgraph.algorithms import label_propagation, pagerank

    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=given["engine"])
    named, k, repeat = make_graph(given["graph"]), given["k"], given["repeat"]
    graph = fg.distribute(named.graph)
    count = named.graph.vertex_count
    seeds = np.where(np.arange(count) % 10 == 0, np.arange(count) % max(k, 2), -1)
    limits = {"max_supersteps": SUPERSTEPS, "target": "cpu"}
    programs = {
        "pagerank": lambda: pagerank(graph, tol=0.0, **limits).ranks,
        "label propagation": lambda: (
            label_propagation(graph, seeds, epsilon=0.0, **limits).distributions
        ),
    }
    found = {}
    for program, call in programs.items():
        if program == "pagerank" and k > 1:
            continue
        answer = call()
        before = engine.traffic.copy()
        trials = time_calls(call, repeat, engine=engine)
        sent = int((engine.traffic - before).sent.sum())
        found[program] = {
            "trials_ms": trials,
            "sent_bytes": sent // repeat,
            "graph": named.describe(),
            "sample": answer[:: max(count // 1000, 1)].astype(float).ravel().tolist(),
        }
    if engine.rank == 0:
        send(**found)


if __name__ == "__main__":
    run_rank(be_a_rank)
