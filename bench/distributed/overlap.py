"""Supersteps whose rows are sent behind them, and while they sweep (`overlap=`).

Each superstep sums k features of all neighbors and commits every vertex, so that all
rows are sent. Ranks are processes, of a thread each on the CPU, over shared memory and
Gloo; or with a GPU each, through windows, over NCCL or by the host. Runs of both kinds
take turns in the same processes, and have the same bits: `checks`.

`series_ms` has, superstep by superstep, the times of rank 0: `sweep` on kernels and
sets, `pack` on choosing forms and writing messages, `wait` within exchanges for bytes
and for other ranks, `store` on storing rows, and `behind`, in which bytes were under
way while it swept (part of `sweep`). `wire_ms` is, of the supersteps that send behind
themselves, the wait of the rank that waits least: the others wait for that rank, too.
`hidden` is the share of the lesser of wire and sweep that the supersteps in pieces
save; all three are lower quartiles over supersteps. `run_ms` is a superstep of a run
without a callback, which may be replayed. On GPUs only whole supersteps are
timed: there `sweep_ms` is the time of one that sends nothing, and the wire is the
rest.

`--link 4gbit` is a word for the row: the link is set up before (a network
namespace of its own, with `tc qdisc add dev lo root tbf rate 4gbit ...`), since the
loopback device is work of the same cores.
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
from bench.graphs import distribute_graph
from bench.record import Recorder, gpu_name

DEFAULTS = {
    "graph": ["uniform-18-16"],
    "k": [1, 8, 32],
    "repeat": 3,
    "ranks": 2,
    "engines": ["shared", "gloo"],
    "links": ["windows", "engine", "host"],
    "target": "cpu",
    "link": "",
}
MODULE = "bench.distributed.overlap"
#: Longest that ranks with a GPU each may take.
GPU_LIMIT_S = 80.0
#: Names of links, by `fg.config.gpu_links`.
LINKS = {"engine": "NCCL", "host": "the host"}
SUPERSTEPS = 8
#: Of each run: the first ones compile, make pieces and reach their pace.
UNCOUNTED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", "--gpus", type=int, dest="ranks", help="how many")
    parser.add_argument(
        "--engines", type=lambda text: text.split(","), help="of ranks, by commas"
    )
    parser.add_argument(
        "--links",
        type=lambda text: text.split(","),
        help="of GPUs, by commas: fg.config.gpu_links",
    )
    parser.add_argument("--link", help="what limits the wire, for the record")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time supersteps of both kinds, on every graph, for every k, over each engine."""
    on_gpus = arguments.target == "cuda"
    if on_gpus:
        recorder.device = gpu_name()
    for name in arguments.graph:
        for k in arguments.k:
            for over in arguments.links if on_gpus else arguments.engines:
                engine = "auto" if on_gpus else over
                given = {"graph": name, "k": k, "repeat": arguments.repeat}
                given |= {"engine": engine, "target": arguments.target}
                load = os.getloadavg()[0]
                more = {"FEATGRAPH_GPU_LINKS": over} if on_gpus else threads_each(1)
                limit_s = GPU_LIMIT_S if on_gpus else LIMIT_S
                found = run_on_ranks(MODULE, arguments.ranks, given, more, limit_s)
                over = LINKS.get(over, over)
                for way, cell in found.pop("ways").items():
                    recorder.add(
                        f"{over}, {way}", cell.pop("trials_ms"), k=k,
                        ranks=arguments.ranks, link=arguments.link,
                        load=round(load, 1), **cell, **found,
                    )  # fmt: skip


def program() -> Any:
    """Return the foldmap."""
    import featgraph as fg

    @fg.gather(into="around", combine="sum")
    def around(f: Any, u: Any, v: Any, e: Any, d: Any) -> Any:
        return d.x[u, f]

    @fg.vertex
    def mix(f: Any, v: Any, d: Any) -> Any:
        d.x_next[v, f] = d.x[v, f] * 0.5 + d.around[v, f] * d.share
        return True

    return fg.foldmap(around, mix)


class Series:
    """The times that this rank spends, superstep by superstep."""

    def __init__(self, exchange: Any, sync: Any) -> None:
        self._exchange, self._sync = exchange, sync
        self.rows: list[dict[str, float]] = []
        self.begin()

    def begin(self) -> None:
        """Begin to measure."""
        self._sync()
        self._at, self._before = time.perf_counter(), self._spent_s()

    def _spent_s(self) -> dict[str, float]:
        """Return the seconds of this rank's exchanges since the start, by activity."""
        engine, transport = self._exchange.engine, self._exchange.transport
        own = getattr(transport, "spent_s", {})
        return {"wait": engine.waited_s, "moved": engine.moved_s, **own}

    def note(self, *_: Any) -> None:
        """Note a superstep: a callback of `iterate`."""
        self._sync()
        total = time.perf_counter() - self._at
        now = self._spent_s()
        spent = {name: now[name] - self._before[name] for name in now}
        wait, encode = spent["wait"], spent.get("encode", 0.0)
        choose, store = spent.get("choose", 0.0), spent.get("store", 0.0)
        row = {
            "total": total,
            "sweep": total - choose - wait,
            "pack": choose + encode,
            "wait": wait - encode - store,
            "store": store,
            "behind": spent["moved"] - wait,
        }
        self.rows.append({what: 1000 * seconds for what, seconds in row.items()})
        self.begin()


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run both kinds on this rank; the first one writes their times."""
    import featgraph as fg
    from bench.timing import wait_for_gpu
    from featgraph.runtime.devices.choose import choose_device

    warnings.simplefilter("ignore")  # runs end at a limit
    fg.config.compile_behind = False
    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine=given["engine"])
    k, repeat, target = (given[name] for name in ("k", "repeat", "target"))
    named, step = distribute_graph(given["graph"], target), program()
    graph: Any = named.graph
    exchange = graph.ranks.exchange(choose_device(target))
    state = fg.State(
        graph,
        x=fg.vertex_property(_first(graph.vertex_count, k), iterated=True),
        share=np.float32(0.5 / max(graph.edge_count / graph.vertex_count, 1)),
    )
    limits: dict[str, Any] = {"max_supersteps": SUPERSTEPS, "target": target}
    series: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    runs: dict[bool, list[float]] = {False: [], True: []}
    pieces, answers = 0, {}
    for trial in range(repeat + 1):
        for cut in series:
            state["x"] = _first(graph.vertex_count, k)
            engine.barrier()
            own = Series(exchange, lambda: wait_for_gpu(target))
            ran = fg.iterate(step, state, overlap=cut, callback=own.note, **limits)
            if trial:
                series[cut] += own.rows[UNCOUNTED:]
            pieces = max([pieces, *ran.pieces])
            answers[cut] = np.array(state.local("x"))
            for _ in range(2):  # without a callback: supersteps may be replayed
                engine.barrier()
                begun = time.perf_counter()
                fg.iterate(step, state, overlap=cut, **limits)
                wait_for_gpu(target)
            runs[cut].append(1000 * (time.perf_counter() - begun) / SUPERSTEPS)
    is_same = np.array([np.array_equal(answers[False], answers[True])])
    same = bool(engine.all_reduce(is_same, "and")[0])
    found = {"graph": named.describe(), "pieces": pieces, "checks": {"ok": same}}
    alone = [] if target == "cpu" else _alone(step, graph, k, limits)
    ways = _compared(engine, series, alone)
    for cut, way in ((False, "behind"), (True, "in pieces")):
        ways[way]["run_ms"] = round(min(runs[cut]), 3)
    if engine.rank == 0:
        send(**found, ways=ways)


def _first(count: int, k: int) -> Any:
    rng = np.random.default_rng(3)
    return rng.random((count, k), np.float32)


def _alone(step: Any, graph: Any, k: int, given: dict[str, Any]) -> list[float]:
    """Return ms of supersteps on this rank's part, of which nothing is sent."""
    import featgraph as fg
    from bench.timing import wait_for_gpu

    part, took = graph.part, [0.0]
    state = fg.State(
        part,
        x=fg.vertex_property(_first(part.vertex_count, k), iterated=True),
        share=np.float32(0.01),
    )

    def note(*_: Any) -> None:
        wait_for_gpu("cuda")
        took.append(time.perf_counter())

    for _ in range(2):
        took = []
        fg.iterate(step, state, callback=note, **given)
    return (1000 * np.diff(took)[UNCOUNTED:]).tolist()


def _compared(
    engine: Any, series: dict[bool, list[dict[str, float]]], alone: list[float]
) -> Any:
    """Return the fields of both ways, of all ranks.

    `alone` has ms of supersteps that send nothing, where only these set sweep and wire
    apart.
    """
    every = {
        what: {
            cut: np.stack(engine.all_gather(np.array([row[what] for row in rows])))
            for cut, rows in series.items()
        }
        for what in next(iter(series.values()))[0]
    }
    took = {cut: np.max(every["total"][cut], axis=0) for cut in series}
    whole, cut_in_pieces = (_low(took[cut]) for cut in (False, True))
    wire = _low(np.min(every["wait"][False], axis=0))
    sweep = _low(np.max(every["sweep"][False], axis=0))
    if alone:
        sweep = _low(np.max(engine.all_gather(np.array(alone)), axis=0))
        wire = max(whole - sweep, 0.0)
    saved = whole - cut_in_pieces
    ways: dict[str, Any] = {}
    for cut, way in ((False, "behind"), (True, "in pieces")):
        ways[way] = {
            "trials_ms": took[cut].tolist(),
            "wire_ms": round(wire, 3),
            "sweep_ms": round(sweep, 3),
            "series_ms": {
                what: [round(v, 3) for v in every[what][cut][0].tolist()]
                for what in every
            },
        }
    ways["in pieces"]["hidden"] = round(saved / max(min(wire, sweep), 1e-9), 3)
    return ways


def _low(values: Any) -> float:
    """Return the lower quartile: other loads of the machine add to times."""
    return float(np.quantile(values, 0.25))


if __name__ == "__main__":
    run_rank(be_a_rank)
