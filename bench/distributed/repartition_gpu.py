"""Ranks with a GPU each that get other vertices within a run: Figure 18 of Lux.

The program and the cases of ``repartition-cpu``, by the clock: the same load for all
vertices, 2 and 4 times as much over an eighth of the range, first cuts at an eighth,
and a last GPU that another process uses, too. `before` and `after` are the median times
of supersteps before the first move and behind the last one. `of_even` is the speed
behind it, of that between cuts that make the case's own load even, which is run before.
With a slow GPU, that is between cuts by the speeds of the GPUs, as the time before has
them. `overhead` is the share of summing times and searching moves in the whole run.
Answers of a case have the same bits, whatever was moved. Notes have the last times of
ranks, the gain at most, and the expected cost of a move:
nothing moves where the gain over as many supersteps as have run, or as are left, is
less. ``--target cpu`` rehearses it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.repartition_cpu import moves_of, program
from bench.distributed.streaming import (
    Sender,
    rows_of,
    run_rank,
    stream_from_ranks,
)
from bench.graphs import make_graph
from bench.record import Recorder

CASES = ("balanced", "skew 2", "skew 4", "bad cuts", "slow GPU")
DEFAULTS = {
    # Many more vertices than threads run at a time: a rank's time is that of its work.
    "graph": ["uniform-22-4"],
    "repeat": 1,
    "gpus": 2,
    "target": "cuda",
    "budget": 90.0,
    "rounds": 15_000,
    "supersteps": 300,
    "cases": CASES,
    "links": "auto",
    "engine": "shared",
}
MODULE = "bench.distributed.repartition_gpu"
#: Supersteps that are looked at before any move, and at the end; of runs between even
#: cuts, which are as long as all that is looked at.
FIRST, LAST = 6, 10
#: A program that uses the same GPU: launches of some milliseconds, back to back.
_OTHER_USER = """
import cupy
square = cupy.ones((4096, 4096), cupy.float32)
print("ready", flush=True)
while True:
    square @ square
    cupy.cuda.get_current_stream().synchronize()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ranks, cases and the sizes of runs."""
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--rounds", type=int, help="of arithmetic at a vertex")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), help="some of them, by commas"
    )
    parser.add_argument("--supersteps", type=int, help="of a run")
    parser.add_argument("--links", help="fg.config.gpu_links")
    parser.add_argument("--engine", help="as of init()")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run each case on ranks."""
    recorder.use(arguments.target)
    names = ("repeat", "target", "rounds", "engine", "supersteps", "cases")
    given = {name: getattr(arguments, name) for name in names}
    given |= {"graphs": arguments.graph, "until": time.time() + arguments.budget}
    links = {"FEATGRAPH_GPU_LINKS": arguments.links}
    limit = arguments.budget + 60
    cells = stream_from_ranks(MODULE, arguments.gpus, given, links, limit)
    for cell in rows_of(cells, recorder, f"{arguments.gpus} ranks"):
        case, trials = cell.pop("case"), cell.pop("trials_ms")
        recorder.add(case, trials, **cell)
        print(
            f"    {cell['moves']} moves, superstep {cell['before_ms']} to "
            f"{cell['after_ms']} ms, {cell['of_even']} of even",
            flush=True,
        )


class Looked:
    """Notes of the balancers of this rank where most was to be gained.

    Attributes
    ----------
    spent_s : float
        The time of looking for moves.
    """

    def __init__(self) -> None:
        from featgraph.ranks.moving.moves import Balancer

        self.spent_s = 0.0
        self._gain_s, self._note = 0.0, ""
        add, plain = Balancer.add, Balancer.proposal

        def added(balancer: Any, seconds: Any) -> None:
            begun = time.perf_counter()
            add(balancer, seconds)
            self.spent_s += time.perf_counter() - begun

        def proposal(balancer: Any, supersteps_left: float) -> Any:
            begun = time.perf_counter()
            found = plain(balancer, supersteps_left)
            self.spent_s += time.perf_counter() - begun
            if found is None and len(balancer._seen) > 1:
                self._look(balancer, supersteps_left)
            return found

        Balancer.add = added  # type: ignore[method-assign]
        Balancer.proposal = proposal  # type: ignore[method-assign]

    def _look(self, balancer: Any, left: float) -> None:
        typical = np.median(balancer._seen, axis=0)
        excess = float(typical.max() - typical.mean())
        if left * excess >= self._gain_s:
            self._gain_s = left * excess
            self._note = (
                f"ranks take {(1000 * typical).round(2).tolist()} ms; at most "
                f"{1000 * excess:.2f} ms are gained, {self._gain_s:.3f} s in "
                f"{left:.0f} supersteps; a move costs {balancer._costs.least_s:.3f} s"
            )

    def take(self) -> str:
        """Return the note, once."""
        note, self._gain_s, self._note = self._note, 0.0, ""
        return note


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run all cases on this rank."""
    rank, step, looked = lux_gpu.Rank(given, send), program(), Looked()
    for name in given["graphs"]:
        named = make_graph(name)
        rank.note(f"{name} made in {named.seconds:.1f} s")
        for case in rank.given["cases"]:
            cell = Case(rank, named, (step, looked), case)
            with other_user(rank, case == "slow GPU"):
                for repartition in (False, "auto"):
                    if not rank.is_time():
                        rank.note(f"no time for {case}")
                        return
                    cell.run(repartition)
                    if repartition:
                        rank.note(looked.take())


@contextmanager
def other_user(rank: lux_gpu.Rank, wanted: bool) -> Iterator[None]:
    """Run another process on the GPU of the last rank meanwhile."""
    if not wanted or rank.engine.rank + 1 < rank.engine.size:
        yield
        return
    line = [sys.executable, "-c", _OTHER_USER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("nothing else uses the GPU")
            yield
        finally:
            process.kill()


class Case:
    """A load, and first cuts.

    Parameters
    ----------
    rank : lux_gpu.Rank
    named : NamedGraph
    runs : (FoldMap, Looked)
    name : str
        Of `CASES`.
    """

    def __init__(
        self, rank: lux_gpu.Rank, named: Any, runs: tuple[Any, Looked], name: str
    ) -> None:
        self._rank, self._named, self._name = rank, named, name
        self._step, self._looked = runs
        count, size = named.graph.vertex_count, rank.engine.size
        self._rounds = np.full(count, rank.given["rounds"])
        if name.startswith("skew"):
            self._rounds[count // 8 : count // 4] *= int(name.split()[1])
        inner = [32 * round(count * r / size / 32) for r in range(1, size)]
        if name == "bad cuts":
            inner = [32 * (count // 8 // 32 + r) for r in range(size - 1)]
        self._graph = self._distributed([0, *inner, count])
        before = np.cumsum(self._rounds)
        goals = before[-1] * np.arange(1, size) / size
        even = 32 * np.round(np.searchsorted(before, goals) / 32).astype(int)
        even_graph = self._distributed([0, *even.tolist(), count])
        found = self._iterated(even_graph, FIRST + LAST, False)
        self._even_ms = float(np.median(found[1][-LAST:]))
        self._slow_ms = 0.0
        self._answers: set[str] = set()

    def run(self, repartition: Any) -> None:
        """Run it with or without moves, and send its times."""
        rank, size = self._rank, self._rank.engine.size
        trials, times, runs = [], [], []
        self._looked.spent_s = 0.0
        for _ in range(rank.given["repeat"]):
            took, seconds, run, answer = self._iterated(
                self._graph, rank.given["supersteps"], repartition
            )
            trials.append(took)
            times.append(seconds)
            runs.append(run)
            self._answers.add(answer)
        seen, spent_ms = np.array(times), 1000 * self._looked.spent_s
        before, after = (
            float(np.median(some)) for some in (seen[:, 1:FIRST], seen[:, -LAST:])
        )
        rank.send(
            case=f"{self._name}, {'moves' if repartition else 'no moves'}",
            graph=self._named.describe(),
            ranks=size,
            trials_ms=trials,
            checks={"ok": len(self._answers) == 1},
            moves=max(len(run.partitions) for run in runs),
            before_ms=round(before, 4),
            after_ms=round(after, 4),
            of_even=round(self._best_ms(before) / after, 3),
            overhead=round(spent_ms / sum(trials), 6),
            told=moves_of(runs[-1]),
        )

    def _best_ms(self, before: float) -> float:
        """Return ms of a superstep between the best cuts."""
        if self._name != "slow GPU":
            return self._even_ms
        size = self._rank.engine.size
        self._slow_ms = self._slow_ms or before  # of the run without moves
        return size / ((size - 1) / self._even_ms + 1 / self._slow_ms)

    def _distributed(self, cuts: list[int]) -> Any:
        import featgraph as fg

        return fg.distribute(self._named.graph, cuts=cuts)

    def _iterated(
        self, graph: Any, supersteps: int, repartition: Any
    ) -> tuple[float, Any, Any, str]:
        """Return ms of a run and of its supersteps, the run, and its digest."""
        import featgraph as fg

        rank, engine = self._rank, self._rank.engine
        state = fg.State(
            graph,
            x=fg.vertex_property(1.0, iterated=True, dtype="float64"),
            rounds=fg.vertex_property(self._rounds),
        )
        rank.wait()
        begun = time.perf_counter()
        run = fg.iterate(
            self._step, state, max_supersteps=supersteps, target=rank.target,
            repartition=repartition,
        )  # fmt: skip
        rank.wait()
        took = 1000 * (time.perf_counter() - begun)
        times = engine.all_reduce(np.array(run.seconds), "max", about="supersteps")
        own = state.graph.own_vertices, state.local("x")
        return took, 1000 * times, run, lux_gpu.digest_of(engine, *own)


if __name__ == "__main__":
    run_rank(be_a_rank)
