"""Ranks of a thread that get other vertices within a run, on the CPU.

A vertex function does as much arithmetic as a property of its vertex says, behind a
gather along all in-edges; all vertices are due in every superstep. Cases: the same for
all (`balanced`), 2 and 4 times as much over an eighth of the range (`skew 2`,
`skew 4`), first cuts at an eighth (`bad cuts`), and a process that takes half of the
core of the last rank (`slow rank`). Each runs with `repartition=False`, with "auto",
and with cuts that the bench knows to be even (`even`), in turn.

`before` and `after` are the balanced speed that the first and the last cuts of "auto"
allow, by the arithmetic between them, which no other process disturbs: the mean work of
a rank over the most. `share` is the same by the clock: the speed of the last third of
the supersteps over that with even cuts; `still` that of no moves. `overhead` is the
median superstep of "auto" over that of no moves, less one, where none was made.

Ranks have a core each where one is to be slow, and else run where the system has them.
Others may use the cores, too: `load` has the load average before each case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.distributed.processes import LIMIT_S, run_on_ranks
from bench.graphs import make_graph
from bench.record import Recorder

DEFAULTS = {"graph": ["uniform-16-16"], "k": [1], "repeat": 1, "ranks": 2}
CASES = ("balanced", "skew 2", "skew 4", "bad cuts", "slow rank")
SUPERSTEPS = 48
#: Rounds of arithmetic of a vertex.
ROUNDS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many, each with a thread")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), help="some of them, by commas"
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run each case on ranks, over shared memory."""
    for name in arguments.graph:
        for case in arguments.cases or CASES:
            load = os.getloadavg()[0]
            words = [name, case, str(arguments.repeat)]
            found = run_on_ranks(
                "bench.distributed.repartition_cpu", words, arguments.ranks, threads=1
            )
            trials = found.pop("trials_ms")
            recorder.add(
                case, trials, ranks=arguments.ranks, load=round(load, 1), **found
            )


def even_cuts(work: Any, speeds: Any) -> list[int]:
    """Return the cuts, at words, that give ranks work by their speeds."""
    before = np.concatenate(([0.0], np.cumsum(work)))
    goals = before[-1] * np.cumsum(speeds)[:-1] / np.sum(speeds)
    places = np.searchsorted(before, goals)
    return [0, *(np.round(places / 32) * 32).astype(int).tolist(), work.size]


def program() -> Any:
    """Return the foldmap."""
    import featgraph as fg

    @fg.gather(into="around", combine="sum")
    def around(f: Any, u: Any, v: Any, e: Any, d: Any) -> Any:
        return d.x[u]

    @fg.vertex
    def work(f: Any, v: Any, d: Any) -> Any:
        found = d.around[v]
        for _ in range(d.rounds[v]):
            found = 0.5 * found + 1.0 / (1.0 + found * found)
        d.x_next[v] = found
        return True

    return fg.foldmap(around, work)


def be_a_rank(name: str, case: str, repeat: int, told: Path) -> None:
    """Run a case on this rank; the first one writes what it has found."""
    import featgraph as fg

    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine="shared")
    cores = sorted(os.sched_getaffinity(0))
    core = cores[engine.rank % len(cores)]
    named = make_graph(name)
    count, size = named.graph.vertex_count, engine.size
    rounds = np.full(count, ROUNDS)
    speeds = np.ones(size)
    if case.startswith("skew"):
        rounds[count // 8 : count // 4] *= int(case.split()[1])
    even = even_cuts(rounds.astype(float), speeds)
    first = even_cuts(np.ones(count), np.ones(size))
    if case == "bad cuts":
        first = even_cuts(np.ones(count), [1.0] + [7.0 / (size - 1)] * (size - 1))
    if case == "slow rank":
        speeds[-1] = 0.5
        os.sched_setaffinity(0, {core})
        even = even_cuts(rounds.astype(float), speeds)
    burner = None
    if case == "slow rank" and engine.rank == size - 1:
        burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(burner.pid, {core})
    try:
        found = _measured(named, (first, even), (rounds, speeds), repeat)
    finally:
        if burner is not None:
            burner.kill()
    if engine.rank == 0:
        told.write_text(json.dumps(found | {"graph": named.describe()}))


def _balance(rounds: Any, cuts: Any, speeds: Any) -> float:
    """Return the speed that ranks have between cuts, of that of evenly loaded ones."""
    before = np.concatenate(([0.0], np.cumsum(rounds)))
    most = (np.diff(before[np.asarray(cuts)]) / speeds).max()
    return float(before[-1] / np.sum(speeds) / most)


def _measured(named: Any, cuts: Any, load: Any, repeat: int) -> dict[str, Any]:
    import featgraph as fg

    rounds, speeds = load

    warnings.simplefilter("ignore")  # runs end at a limit
    step, engine = program(), fg.distributed.current_engine()
    parts = [fg.distribute(named.graph, cuts=some) for some in cuts]
    ways = {"still": (parts[0], False), "auto": (parts[0], "auto"),
            "even": (parts[1], False)}  # fmt: skip
    seconds: dict[str, list[Any]] = {way: [] for way in ways}
    moves: list[Any] = []
    digests = set()
    for trial in range(repeat + 1):
        for way, (graph, asked) in ways.items():
            state = fg.State(
                graph,
                x=fg.vertex_property(1.0, iterated=True, dtype="float64"),
                rounds=fg.vertex_property(rounds),
            )
            engine.barrier()
            most = SUPERSTEPS if trial else 3
            run = fg.iterate(
                step, state, max_supersteps=most, target="cpu", repartition=asked
            )
            if trial == 0:  # compiles
                continue
            taken = engine.all_reduce(np.array(run.seconds), "max", about="times")
            seconds[way].append(taken)
            digests.add(state["x"].tobytes())
            if way == "auto":
                moves.append(run.partitions)
    last = {
        way: float(np.median([s[-SUPERSTEPS // 3 :] for s in found]))
        for way, found in seconds.items()
    }
    typical = {way: float(np.median(found)) for way, found in seconds.items()}
    told = [
        [
            {
                "superstep": one.superstep, "cuts": one.cuts.tolist(),
                "expected_ms": 1000 * one.expected_s, "gained_ms": 1000 * one.gained_s,
                "cost_ms": 1000 * one.cost_s,
            }
            for one in made
        ]
        for made in moves
    ]  # fmt: skip
    has_moved = any(moves)
    return {
        "trials_ms": [1000 * float(s.sum()) for s in seconds["auto"]],
        "still_ms": [1000 * float(s.sum()) for s in seconds["still"]],
        "even_ms": [1000 * float(s.sum()) for s in seconds["even"]],
        "superstep_ms": {way: round(1000 * s, 3) for way, s in last.items()},
        "moves": [len(made) for made in moves],
        "before": round(_balance(rounds, cuts[0], speeds), 3),
        "after": [
            round(_balance(rounds, made[-1].cuts if made else cuts[0], speeds), 3)
            for made in moves
        ],
        "share": round(last["even"] / last["auto"], 3),
        "still": round(last["even"] / last["still"], 3),
        "overhead": None
        if has_moved
        else round(typical["auto"] / typical["still"] - 1, 4),
        "told": told,
        "checks": {"ok": len(digests) == 1},
    }


if __name__ == "__main__":
    be_a_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
