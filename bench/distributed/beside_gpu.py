"""A rank of the CPU beside one on a GPU: supersteps against the GPU's alone.

An R-MAT graph is in the host's memory. The GPU alone runs each program, in memory and
under each limit of its memory, with edges streamed over the host's link. Then it runs
them with a second rank beside it, of `--threads` threads of the same host, that owns a
share of the edges: each of `--shares`, or what the model says ("model"). *speedup* is
the superstep of the GPU alone, under the same limit, by that of both. With `--cpu`, the
CPU alone runs them, too.

Ranks are compared at 4096 vertices, labels by a digest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from bench.distributed.lux_gpu import answer_of, compared
from bench.distributed.streaming import Teller, rows_told, stream_from_ranks
from bench.record import Recorder, gpu_name

DEFAULTS = {"repeat": 3, "graph": ["rmat-22-32"]}
MODULE = "bench.distributed.beside_gpu"
SEED, SUPERSTEPS = 20261121, 10
#: Calls before the trials: kernels are compiled in the first, loops made in others.
WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the limits, the shares, and how many threads."""
    parser.add_argument("--limits", default="none,400 MB", help="by commas")
    parser.add_argument("--shares", default="model,0.3", help="of edges, by commas")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--budget", type=float, default=140.0, help="seconds in all")
    parser.add_argument("--programs", default="PR,CC")
    parser.add_argument("--cpu", action="store_true", help="alone, too")
    parser.add_argument("--target", default="cuda", help="cpu: a rehearsal")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run all programs on the GPU alone, then with a CPU beside it."""
    recorder.device = gpu_name() if arguments.target == "cuda" else None
    until = time.time() + arguments.budget
    alone: dict[Any, dict[str, Any]] = {}
    for cell in _cells(arguments, [arguments.target], [], until, recorder):
        alone[cell["program"], cell["limit"]] = cell
        _record(recorder, cell, None)
    if arguments.cpu:
        for cell in _cells(arguments, ["cpu"], [], until, recorder):
            _record(recorder, cell | {"limit": "CPU"}, None)
    shares = arguments.shares.split(",")
    both = [arguments.target, "cpu"]
    for cell in _cells(arguments, both, shares, until, recorder):
        _record(recorder, cell, alone.get((cell["program"], cell["limit"])))


def _cells(
    arguments: argparse.Namespace,
    targets: list[str],
    shares: list[str],
    until: float,
    recorder: Recorder,
) -> Iterator[dict[str, Any]]:
    """Yield what ranks of some targets tell; record where they fail."""
    limits = [one.strip() for one in arguments.limits.split(",")]
    given = {
        "graph": arguments.graph[0],
        "target": targets,
        "limits": [
            None if one == "none" else one
            for one in (["none"] if targets == ["cpu"] else limits)
        ],
        "shares": shares,
        "repeat": arguments.repeat,
        "programs": arguments.programs.split(","),
        "until": until,
    }
    threads = str(arguments.threads)
    environment = {"NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    limit = max(until + 20 - time.time(), 1)
    stream = stream_from_ranks(MODULE, len(targets), given, environment, limit)
    yield from rows_told(stream, recorder, f"{len(targets)} ranks")


def _record(
    recorder: Recorder, cell: dict[str, Any], alone: dict[str, Any] | None
) -> None:
    """Record a row, beside that of the GPU alone."""
    share, limit = cell["share"], cell["limit"]
    beside = "alone" if share is None else f"CPU {share}"
    name = f"{cell['program']}, {limit or 'in memory'}, {beside}"
    checks, fields = {"ok": True}, {}
    if alone is not None:
        checks = compared(cell["answer"], alone["answer"])
        fields["speedup"] = median(alone["trials"]) / median(cell["trials_ms"])
    cell["trials"] = trials = cell.pop("trials_ms")
    told = {n: v for n, v in cell.items() if n not in {"answer", "trials", "graph"}}
    graph = {"name": cell["graph"]}
    recorder.add(name, trials, graph=graph, checks=checks, **told | fields)
    shown = ", ".join(f"{name} {value}" for name, value in told.items())
    print(f"    {shown}, speedup {fields.get('speedup', 1.0):.3f}", flush=True)


# -- on a rank


def be_a_rank(given: dict[str, Any], told: str) -> None:
    """Run everything on this rank."""
    import featgraph as fg
    from featgraph.graph import rmat

    begun, tell = time.perf_counter(), Teller(told)
    engine = fg.distributed.init(timeout=120)
    target = given["target"][engine.rank]
    fg.config.compile_behind = False
    scale, factor = map(int, given["graph"].split("-")[1:])
    whole = rmat(scale, factor, seed=SEED, directed=True, target="cpu")

    def note(text: str) -> None:
        if engine.rank == 0:
            tell(
                note=f"{engine.size} ranks, {time.perf_counter() - begun:.1f} s: {text}"
            )

    note(f"{whole} drawn")
    for share in given["shares"] or [None]:
        graph = whole
        if share not in {None, "model"}:
            graph = fg.distribute(whole, cuts=cuts_of(whole, float(share)))
            note(f"{graph.shard}")
        for limit in given["limits"]:
            fg.config.memory_limit = limit if target == "cuda" else None
            if share == "model":
                machine = fg.distributed.calibrate(target)
                graph = fg.distribute(whole, cuts=machine)
                note(f"model: {graph.shard} of {machine}")
            for program in given["programs"]:
                late = np.array([time.time() > given["until"]], np.int64)
                if engine.all_reduce(late, "max", about="time")[0]:
                    note(f"no time for {program}, {limit}, {share}")
                    return
                cell = _run(graph, engine, program, target, given["repeat"])
                if engine.rank == 0:
                    told_of = {"program": program, "limit": limit, "share": share}
                    tell(graph=given["graph"], **told_of, **cell)


def cuts_of(graph: Any, share: float) -> list[int]:
    """Return cuts by which the last rank gets a share of the in-edges."""
    into = np.cumsum(np.asarray(graph.in_degree), dtype=np.int64)
    cut = int(np.searchsorted(into, (1 - share) * into[-1])) // 32 * 32
    return [0, cut, graph.vertex_count]


def _run(
    graph: Any, engine: Any, program: str, target: str, repeat: int
) -> dict[str, Any]:
    """Return what a program has taken, and its answer."""
    from featgraph import algorithms as al

    def call() -> Any:
        if program == "PR":
            given = {"tol": 1e-20, "max_supersteps": SUPERSTEPS, "weights": None}
            return al.pagerank(graph, target=target, **given)
        return al.connected_components(graph, method="propagate", target=target)

    from featgraph.runtime.devices.choose import choose_device

    trials, names = [], {"PR": "ranks", "CC": "labels"}
    exchange = graph.ranks and graph.ranks.exchange(choose_device(target))

    def spent() -> dict[str, float]:
        return exchange.spent_s if exchange else {}

    begun = time.perf_counter()
    call()
    first = time.perf_counter() - begun
    before = spent()
    for number in range(WARM_UP + repeat - 1):
        engine.barrier()
        result = call()
        if number >= WARM_UP - 1:
            seconds = result.run.seconds
            trials.append(1000 * sum(seconds) / max(len(seconds), 1))
    most = engine.all_reduce(np.array(trials), "max", about="times")
    run = result.run
    edges = graph.edges.own if graph.ranks is not None else graph.edge_count
    own = engine.all_gather(np.array([edges]), about="edges")
    waits = np.array([sum(run.waits) / max(sum(run.seconds), 1e-9)])
    told = engine.all_gather(waits, about="waits")
    steps = (WARM_UP + repeat - 1) * run.supersteps
    each = {n: 1000 * (s - before.get(n, 0.0)) / steps for n, s in spent().items()}
    text = np.frombuffer(json.dumps(each).encode(), np.uint8)
    found = engine.all_gather(text, about="what exchanges have taken")
    return {
        "trials_ms": most.tolist(),
        "first_s": round(first, 2),
        "supersteps": run.supersteps,
        "own_edges": [int(one[0]) for one in own],
        "superstep_ms": [round(1000 * s, 3) for s in run.seconds[:12]],
        "spent_ms": [json.loads(one.tobytes()) for one in found],
        "waits": [round(float(one[0]), 3) for one in told],
        "edges_s": graph.edge_count / (float(np.median(most)) / 1000),
        "answer": answer_of(engine, graph, result, names[program]),
    }


if __name__ == "__main__":
    be_a_rank(json.loads(sys.argv[1]), sys.argv[2])
