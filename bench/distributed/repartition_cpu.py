"""Ranks of a thread that get other vertices within a run, on the CPU.

A vertex function does as many rounds of arithmetic as a property has, behind a
gather along all in-edges; all vertices are due in every superstep. Cases: the same for
all (`balanced`), 2 and 4 times as much over an eighth of the range (`skew 2`,
`skew 4`), first cuts at an eighth (`bad cuts`), and a last rank that takes twice as
long (`slow rank`).

Ranks are measured by their CPU time, since others may use the cores: `load` has the
load average before each case. The slow rank sends twice its time. `before` and `after`
are the speed of the supersteps before the first move and behind the last one, of the
balanced one: the mean time of ranks over the most (of the slow rank, what all take if
it has half as much). `overhead` is the share of summing times and searching moves in
the CPU time of all supersteps. `told` has the moves of `Run.partitions`; their costs
are by the clock. Trials are whole runs, by the clock.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
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

DEFAULTS = {"graph": ["uniform-16-16"], "k": [1], "repeat": 3, "ranks": 2}
CASES = ("balanced", "skew 2", "skew 4", "bad cuts", "slow rank")
SUPERSTEPS = 60
#: Rounds of arithmetic of a vertex.
ROUNDS = 200
#: Supersteps before any move.
_FIRST = 8


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
            given = {"graph": name, "case": case, "repeat": arguments.repeat}
            module = "bench.distributed.repartition_cpu"
            found = run_on_ranks(module, arguments.ranks, given, threads_each(1))
            trials = found.pop("trials_ms")
            recorder.add(
                case, trials, ranks=arguments.ranks, load=round(load, 1), **found
            )


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


class Clock:
    """The CPU time of this rank, sent to the others instead of that of the clock.

    Attributes
    ----------
    seen : list of list of float
        The times of all ranks, by superstep.
    spent_s : float
        The time of measuring and looking for moves.
    """

    def __init__(self, factor: float) -> None:
        from featgraph.ranks.exchange.exchange import RankExchange
        from featgraph.ranks.moving.moves import Balancer

        self.seen: list[list[float]] = []
        self.spent_s = self.total_s = 0.0
        self._factor, self._last = factor, time.process_time()
        plain = RankExchange.count_and_time

        def timed(exchange: Any, words: Any, results: Any, seconds: float) -> Any:
            own = time.process_time() - self._last
            self.total_s += own
            found = plain(exchange, words, results, own * self._factor)
            self.seen.append(found[2])
            self._last = time.process_time()
            return found

        RankExchange.count_and_time = timed  # type: ignore[method-assign]
        for name in ("add", "proposal"):
            setattr(Balancer, name, self._timed(getattr(Balancer, name)))

    def begin(self) -> None:
        """Begin a run."""
        self.seen, self.spent_s, self.total_s = [], 0.0, 0.0
        self._last = time.process_time()

    def _timed(self, function: Any) -> Any:
        def timed(*given: Any) -> Any:
            begun = time.process_time()
            found = function(*given)
            self.spent_s += time.process_time() - begun
            return found

        return timed


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run a case on this rank; the first one writes times and moves."""
    import featgraph as fg

    warnings.simplefilter("ignore")  # runs end at a limit
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine="shared")
    named, case, size = make_graph(given["graph"]), given["case"], engine.size
    count, factors = named.graph.vertex_count, np.ones(size)
    rounds = np.full(count, ROUNDS)
    cuts = [32 * round(count * rank / size / 32) for rank in range(size)]
    if case.startswith("skew"):
        rounds[count // 8 : count // 4] *= int(case.split()[1])
    if case == "bad cuts":
        cuts[1:] = [32 * (count // 8 // 32 + rank) for rank in range(size - 1)]
    if case == "slow rank":
        factors[-1] = 2
    clock, step = Clock(factors[engine.rank]), program()
    graph = fg.distribute(named.graph, cuts=[*cuts, count])
    trials: list[dict[str, Any]] = []
    values = set()
    for repartition in (False, *["auto"] * given["repeat"]):
        state = fg.State(
            graph,
            x=fg.vertex_property(1.0, iterated=True, dtype="float64"),
            rounds=fg.vertex_property(rounds),
        )
        engine.barrier()
        clock.begin()
        run = fg.iterate(
            step,
            state,
            max_supersteps=SUPERSTEPS,
            target="cpu",
            repartition=repartition,
        )
        values.add(state["x"].tobytes())
        if repartition:
            trials.append(_trial(run, clock, factors))
    if engine.rank == 0:
        found: dict[str, Any] = {key: [t[key] for t in trials] for key in trials[0]}
        found |= {"graph": named.describe(), "checks": {"ok": len(values) == 1}}
        send(**found)


def _trial(run: Any, clock: Clock, factors: Any) -> dict[str, Any]:
    seen = np.array(clock.seen)
    last = 1 + max((one.superstep for one in run.partitions), default=0)
    # A rank takes its factor times the time of others: so much is even.
    even = (seen / factors).sum(axis=1) / (1 / factors).sum()
    speed = even / seen.max(axis=1)
    return {
        "trials_ms": 1000 * sum(run.seconds),
        "moves": len(run.partitions),
        "before": round(float(np.median(speed[1:_FIRST])), 3),
        "after": round(float(np.median(speed[last:])), 3),
        "overhead": round(clock.spent_s / clock.total_s, 6),
        "told": moves_of(run),
    }


def moves_of(run: Any) -> list[dict[str, Any]]:
    """Return the moves of a run, and their times in ms."""
    names = ("slowest", "expected", "gained", "cost")
    return [
        {"superstep": one.superstep, "cuts": one.cuts.tolist()}
        | {f"{name}_ms": 1000 * getattr(one, f"{name}_s") for name in names}
        for one in run.partitions
    ]


if __name__ == "__main__":
    run_rank(be_a_rank)
