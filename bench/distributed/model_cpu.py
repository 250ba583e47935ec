"""Supersteps as the model foretells them, beside measured ones, on ranks of a CPU.

Programs run on one rank and on processes over an engine, a thread each; what is active
is recorded. From these sets the model has the work of each superstep, on constants that
were calibrated in the same processes; each superstep is foretold from those before it
of its direction (`correction.py`). `uncorrected` are the errors of the calibrated
constants alone. ALS makes its own graph, and runs on one rank.

Supersteps whose time is below `FLOOR_S` are not counted: nobody plans by them.

With ``--clock cpu`` all seconds, those of calibrating, too, are of the main thread: the
model is then judged by what ranks do, where others use the machine. Waits take none.
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
from scipy.sparse import coo_matrix

from bench.distributed.processes import LIMIT_S, run_on_ranks
from bench.graphs import make_graph
from bench.record import Recorder

DEFAULTS = {"graph": ["kron-16"], "k": [8], "repeat": 3, "ranks": 2, "clock": "wall",
            "engine": "gloo"}  # fmt: skip
FLOOR_S = 2e-4
#: Supersteps of a direction that come before the first that is foretold.
LEARN = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="the most, each with a thread")
    parser.add_argument("--engine", choices=["gloo", "shared"], help="of ranks")
    parser.add_argument("--clock", choices=["wall", "cpu"], help="of all seconds")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Foretell every program on one rank, and on several."""
    for name in arguments.graph:
        for k in arguments.k:
            for count in dict.fromkeys((1, arguments.ranks)):
                words = [name, str(k), str(arguments.repeat)]
                words += [arguments.clock, arguments.engine]
                found = measure(words, count)
                for program, cell in found["programs"].items():
                    _record(recorder, program, count, cell, found)


def _record(
    recorder: Recorder, program: str, ranks: int, cell: Any, found: Any
) -> None:
    errors = np.array(cell["errors"], float)
    recorder.add(
        program,
        [1000 * s for s in cell["seconds"]],
        ranks=ranks,
        k=cell["k"],
        graph=found["graph"],
        machine=found["machine"],
        clock=found["clock"],
        engine=found["engine"],
        supersteps=len(cell["seconds"]),
        foretold=int(errors.size),
        median_error=_quantile(errors, 0.5),
        p90_error=_quantile(errors, 0.9),
        uncorrected=_quantile(np.array(cell["uncorrected"], float), 0.5),
        total_error=cell["total_error"],
        directions=cell["directions"],
        checks={"ok": True},
    )


def _quantile(errors: Any, share: float) -> float | None:
    return round(float(np.quantile(errors, share)), 3) if errors.size else None


def measure(words: list[str], ranks: int) -> Any:
    """Return what rank 0 has found."""
    return run_on_ranks("bench.distributed.model_cpu", words, ranks, threads=1)


class _Runs:
    """Keeps the runs of what algorithms iterate, and has them record active sets."""

    def __init__(self) -> None:
        import featgraph as fg

        self._iterate: Callable[..., Any] = fg.iterate
        self.kept: list[tuple[Any, Any, Any]] = []
        fg.iterate = self

    def __call__(self, steps: Any, state: Any, **options: Any) -> Any:
        run = self._iterate(steps, state, **options | {"record_active": True})
        self.kept.append((run, state.graph, options.get("active")))
        return run


def programs(name: str, k: int) -> dict[str, tuple[int, Any, Callable[[], Any]]]:
    """Return, by name, the width, the whole graph, and a call on this rank's part."""
    import featgraph as fg
    from featgraph.algorithms import (
        als,
        betweenness_centrality,
        connected_components,
        label_propagation,
        pagerank,
        sssp,
    )

    whole = make_graph(name).graph
    graph = fg.distribute(whole)
    count = whole.vertex_count
    rng = np.random.default_rng(1)
    lengths = rng.uniform(1, 10, whole.given_edge_count).astype(np.float32)
    seeds = np.where(np.arange(count) % 10 == 0, np.arange(count) % k, -1)
    hub = int(np.argmax(whole.out_degree))
    cpu: dict[str, Any] = {"target": "cpu"}
    found: dict[str, Any] = {
        "PR": (1, whole, lambda: pagerank(graph, tol=0, max_supersteps=20, **cpu)),
        "CC": (
            1, whole,
            lambda: connected_components(graph, method="propagate", **cpu),
        ),
        "SSSP": (1, whole, lambda: sssp(graph, hub, weights=lengths, **cpu)),
        "BC": (
            1, whole,
            lambda: betweenness_centrality(graph, sources=[hub, 1, 2, 3], **cpu),
        ),
        "LP": (
            k, whole,
            lambda: label_propagation(
                graph, seeds, epsilon=0, max_supersteps=20, **cpu
            ),
        ),
    }  # fmt: skip
    if graph is whole:  # it makes a graph of ratings, which belongs to its rank
        users, items = count // 4, count // 16
        rated = rng.integers(0, users, 8 * users), rng.integers(0, items, 8 * users)
        stars = rng.integers(1, 6, 8 * users).astype(np.float32)
        ratings = coo_matrix((stars, rated), shape=(users, items))
        found["ALS"] = (
            k,
            None,
            lambda: als(ratings, factors=k, iterations=8, **cpu),
        )
    return found


def be_a_rank(name: str, k: int, repeat: int, how: tuple[str, str], told: Path) -> None:
    """Run the programs on this rank; the first one writes what it has found."""
    import featgraph as fg

    clock, engine_name = how

    if clock == "cpu":
        time.perf_counter = time.thread_time  # others compile behind runs
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=engine_name)
    machine = fg.distributed.calibrate("cpu", engine=engine, again=True)
    runs = _Runs()
    found: dict[str, Any] = {}
    for program, (width, whole, call) in programs(name, k).items():
        call()
        cells = []
        for _ in range(repeat):
            runs.kept.clear()
            engine.barrier()
            call()
            cells.append(_foretold(runs.kept, whole, machine, width, engine))
        found[program] = _joined(cells, width)
    if engine.rank == 0:
        described = make_graph(name).describe()
        about = {"graph": described, "machine": machine.name}
        about |= {"clock": clock, "engine": engine_name, "programs": found}
        told.write_text(json.dumps(about))


def _foretold(kept: Any, given: Any, machine: Any, k: int, engine: Any) -> Any:
    """Return measured times of the supersteps of a call, and those of the model."""
    import featgraph as fg
    from featgraph.graph.partition.partition import Partition
    from featgraph.model.foretold import Foretold, foretell

    times: list[Any] = []
    kinds: list[Any] = []
    seconds: list[float] = []
    for run, graph, active in kept:
        whole, first = given or graph, None
        if active is not None:
            is_set = isinstance(active, fg.ActiveSet)
            chosen = active if is_set else fg.ActiveSet(whole.vertex_count, active)
            first = chosen.mask
        shard = getattr(graph, "shard", None)
        alone = Partition(np.array([0, whole.vertex_count]))
        partition = alone if shard is None else shard.partition
        on = machine, machine.links[-1] if machine.links else "gloo"
        found = foretell(whole, run, partition, on, k=k, first=first)
        times += found.times
        kinds += found.kinds
        seconds += run.seconds
    slowest = engine.all_reduce(np.array(seconds), "max", about="supersteps")
    one = Foretold(times, kinds, slowest)
    guess, counted = one.predicted(LEARN), slowest >= FLOOR_S
    known = counted & np.isfinite(guess)
    apart = np.abs(guess - slowest) / slowest
    return {
        "seconds": slowest.tolist(),
        "errors": apart[known].tolist(),
        "uncorrected": (np.abs(one.uncorrected / slowest - 1))[counted].tolist(),
        "total": [float(guess[known].sum()), float(slowest[known].sum())],
        "directions": sorted({kind[0] for kind in kinds}),
    }


def _joined(cells: list[Any], k: int) -> dict[str, Any]:
    guess, taken = (sum(cell["total"][i] for cell in cells) for i in range(2))
    return {
        "k": k,
        "seconds": cells[-1]["seconds"],
        "errors": [e for cell in cells for e in cell["errors"]],
        "uncorrected": [e for cell in cells for e in cell["uncorrected"]],
        "total_error": round(abs(guess / taken - 1), 3) if taken else None,
        "directions": cells[-1]["directions"],
    }


if __name__ == "__main__":
    name, k, repeat, *how, told = sys.argv[1:]
    be_a_rank(name, int(k), int(repeat), (how[0], how[1]), Path(told))
