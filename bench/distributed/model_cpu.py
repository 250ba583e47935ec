"""Supersteps as the model foretells them, beside measured ones, on ranks of a CPU.

Programs run on one rank and on processes over an engine, a thread each; what is active
is recorded. From these sets the model has the work of each superstep, on constants that
were calibrated in the same processes; each superstep is foretold from those before it
of its direction (`correction.py`). `uncorrected` are the errors of the calibrated
constants alone.

A superstep's time is the median over `repeat` calls, of the slowest rank in each: what
others do on the machine meets some of these. Supersteps whose time is below `FLOOR_S`
are not counted: no plan rests on them. `load` is the load average behind the calls.

With ``--clock cpu``, the default, all seconds, those of calibrating, too, are of the
main thread: the model is judged by the work of ranks, with any other load on the
machine. Waits take none. ``--clock wall`` needs an idle machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from copy import copy
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

DEFAULTS = {"graph": ["kron-16"], "k": [8], "repeat": 5, "ranks": 2, "clock": "cpu",
            "engine": "shared"}  # fmt: skip
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
                given = {"graph": name, "k": k, "repeat": arguments.repeat}
                given |= {"clock": arguments.clock, "engine": arguments.engine}
                module = "bench.distributed.model_cpu"
                found = run_on_ranks(module, count, given, threads_each(1))
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
        load=found["load"],
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


class _Runs:
    """Keeps the runs of algorithms, and makes them record active sets."""

    def __init__(self) -> None:
        import featgraph as fg

        self._iterate: Callable[..., Any] = fg.iterate
        self.kept: list[tuple[Any, Any, Any]] = []
        fg.iterate = self

    def __call__(self, steps: Any, state: Any, **options: Any) -> Any:
        if options.get("due") is not None:  # such a run records no active sets
            return self._iterate(steps, state, **options)
        run = self._iterate(steps, state, **options | {"record_active": True})
        if run.active_sets is not None:
            # Algorithms drop the record of a run when they have read it.
            self.kept.append((copy(run), state.graph, options.get("active")))
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
    from featgraph.graph import ratings

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
    rated = ratings(count // 4, count // 16, 2 * count, seed=1, target="cpu")
    shared = fg.distribute(rated)
    found["ALS"] = k, rated, lambda: als(shared, factors=k, iterations=8, **cpu)
    return found


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run the programs on this rank; the first one writes their times."""
    import featgraph as fg

    clock, engine_name, repeat = (given[n] for n in ("clock", "engine", "repeat"))
    if clock == "cpu":
        time.perf_counter = time.thread_time  # others compile behind runs
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=engine_name)
    machine = fg.distributed.calibrate("cpu", engine=engine, again=True)
    runs = _Runs()
    found: dict[str, Any] = {}
    for program, (width, whole, call) in programs(given["graph"], given["k"]).items():
        call()
        trials = []
        for _ in range(repeat):
            runs.kept.clear()
            engine.barrier()
            call()
            own = [s for run, _, _ in runs.kept for s in run.seconds]
            about = "supersteps"
            trials.append(engine.all_reduce(np.array(own), "max", about=about))
        seconds = np.median(trials, axis=0)
        found[program] = _foretold(runs.kept, whole, machine, width, seconds)
    if engine.rank == 0:
        described = make_graph(given["graph"]).describe()
        about = {"graph": described, "machine": machine.name}
        about |= {"clock": clock, "engine": engine_name, "programs": found}
        about["load"] = round(os.getloadavg()[0], 1)
        send(**about)


def _foretold(kept: Any, whole: Any, machine: Any, k: int, slowest: Any) -> Any:
    """Return measured times of the supersteps of a call, and those of the model."""
    import featgraph as fg
    from featgraph.graph.partition.partition import Partition
    from featgraph.ranks.cost.foretold import Foretold, foretell

    times: list[Any] = []
    kinds: list[Any] = []
    for run, graph, active in kept:
        first = None
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
    return errors_of(Foretold(times, kinds, slowest), k)


def errors_of(one: Any, k: int, floor_s: float = FLOOR_S) -> dict[str, Any]:
    """Return how far the model is from measured supersteps, of those that count."""
    slowest = one.measured
    guess, counted = one.predicted(LEARN), slowest >= floor_s
    known = counted & np.isfinite(guess)
    apart = np.abs(guess - slowest) / slowest
    total, taken = guess[known].sum(), slowest[known].sum()
    return {
        "k": k,
        "seconds": slowest.tolist(),
        "errors": apart[known].tolist(),
        "ways": [one.kinds[place][0] for place in np.flatnonzero(known)],
        "uncorrected": (np.abs(one.uncorrected / slowest - 1))[counted].tolist(),
        "total_error": round(abs(float(total / taken) - 1), 3) if known.any() else None,
        "directions": sorted({kind[0] for kind in one.kinds}),
    }


if __name__ == "__main__":
    run_rank(be_a_rank)
