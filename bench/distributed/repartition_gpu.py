"""Ranks with a GPU each that get other vertices within a run: Figure 18 of Lux.

The program and the cases of ``repartition-cpu``, by the clock: the same load for all
vertices, 2 and 4 times as much over an eighth of the range, and first cuts at an
eighth. `before` and `after` are the median times of supersteps before the first move
and behind the last one; `of_balanced` is the speed behind it, of that of the balanced
case without moves, which comes first. Answers of a case have the same bits, whatever
was moved. ``--target cpu`` rehearses it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.repartition_cpu import program
from bench.distributed.streaming import Teller, stream_from_ranks
from bench.graphs import make_graph
from bench.record import Recorder, gpu_name

DEFAULTS = {
    "graph": ["uniform-20-16"],
    "repeat": 3,
    "gpus": 2,
    "target": "cuda",
    "budget": 90.0,
    "rounds": 10_000,
    "links": "host",
    "engine": "shared",
}
MODULE = "bench.distributed.repartition_gpu"
CASES = ("balanced", "skew 2", "skew 4", "bad cuts")
SUPERSTEPS = 60
#: Supersteps that are looked at before any move, and at the end.
FIRST, LAST = 6, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add on what, how many, and for how long."""
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--target", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, help="of arithmetic at a vertex")
    parser.add_argument("--budget", type=float, help="seconds, all in all")
    parser.add_argument("--links", help="fg.config.gpu_links")
    parser.add_argument("--engine", help="as of init()")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run each case on ranks."""
    recorder.device = gpu_name() if arguments.target == "cuda" else None
    names = ("repeat", "target", "rounds", "engine")
    given = {name: getattr(arguments, name) for name in names}
    given |= {"graphs": arguments.graph, "until": time.time() + arguments.budget}
    links = {"FEATGRAPH_GPU_LINKS": arguments.links}
    limit = arguments.budget + 60
    for cell in stream_from_ranks(MODULE, arguments.gpus, given, links, limit):
        if "note" in cell:
            print(f"    {cell['note']}", flush=True)
            continue
        case, trials = cell.pop("case"), cell.pop("trials_ms")
        recorder.add(case, trials, **cell)
        print(
            f"    {cell['moves']} moves, superstep {cell['before_ms']} to "
            f"{cell['after_ms']} ms, {cell['of_balanced']} of balanced",
            flush=True,
        )


def be_a_rank(given: dict[str, Any], told: str) -> None:
    """Run all cases on this rank."""
    rank, step = lux_gpu.Rank(given, Teller(told)), program()
    for name in given["graphs"]:
        named = make_graph(name)
        rank.note(f"{name} made in {named.seconds:.1f} s")
        balanced: list[float] = []
        for case in CASES:
            answers: set[str] = set()
            for asked in (False, "auto"):
                if not rank.is_time():
                    rank.note(f"no time for {case}")
                    return
                _run(rank, named, step, (case, asked), balanced, answers)


def _run(
    rank: lux_gpu.Rank,
    named: Any,
    step: Any,
    asked: tuple[str, Any],
    balanced: list[float],
    answers: set[str],
) -> None:
    """Run a case with or without moves, and tell what it took."""
    import featgraph as fg
    from featgraph.graph.building import digests

    (case, moves), engine = asked, rank.engine
    count, size = named.graph.vertex_count, rank.engine.size
    rounds = np.full(count, rank.given["rounds"])
    cuts = [32 * round(count * r / size / 32) for r in range(size)]
    if case.startswith("skew"):
        rounds[count // 8 : count // 4] *= int(case.split()[1])
    if case == "bad cuts":
        cuts[1:] = [32 * (count // 8 // 32 + r) for r in range(size - 1)]
    graph = fg.distribute(named.graph, cuts=[*cuts, count])
    trials, seconds, runs = [], [], []
    for _ in range(1 + rank.given["repeat"]):
        state = fg.State(
            graph,
            x=fg.vertex_property(1.0, iterated=True, dtype="float64"),
            rounds=fg.vertex_property(rounds),
        )
        rank.wait()
        begun = time.perf_counter()
        run = fg.iterate(
            step, state, max_supersteps=SUPERSTEPS, target=rank.target,
            repartition=moves,
        )  # fmt: skip
        rank.wait()
        trials.append(1000 * (time.perf_counter() - begun))
        seconds.append(
            engine.all_reduce(np.array(run.seconds), "max", about="supersteps")
        )
        runs.append(run)
        sums = digests.no_sums()
        digests.add_values(sums, state.graph.own_vertices, state.local("x"))
        sums = engine.all_reduce(sums, "sum", about="a digest")
        answers.add(digests.text_of(sums))
        del state
    times = 1000 * np.array(seconds[1:])
    before = float(np.median(times[:, 1:FIRST]))
    after = float(np.median(times[:, -LAST:]))
    if not balanced:
        balanced.append(after)
    rank.tell(
        case=f"{case}, {'moves' if moves else 'no moves'}",
        graph=named.describe(),
        ranks=size,
        trials_ms=trials[1:],
        checks={"ok": len(answers) == 1},
        moves=max(len(run.partitions) for run in runs[1:]),
        before_ms=round(before, 4),
        after_ms=round(after, 4),
        of_balanced=round(balanced[0] / after, 3),
        told=[
            {
                "superstep": one.superstep,
                "cuts": one.cuts.tolist(),
                "gained_ms": 1000 * one.gained_s,
                "cost_ms": 1000 * one.cost_s,
            }
            for one in runs[-1].partitions
        ],
    )


if __name__ == "__main__":
    be_a_rank(json.loads(sys.argv[1]), sys.argv[2])
