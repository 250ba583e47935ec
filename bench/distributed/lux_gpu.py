"""Lux's programs on one rank and on several, a GPU each: Figures 15 to 17 of Lux.

Ranks of each number are started once, draw each graph in parts, and run all programs,
and send each result at once. A row's time is that of the supersteps of a
call, behind some that warm up; `call_ms` is that of the whole call, `first_s` that of
the first one, which compiles. *efficiency* is the time on one rank, by ranks and the
time on these. *bound* is its limit by the link: the sweep, by the longer one of
sweep and wire, where the sweep is the time on one rank by ranks, and the wire
`wire_bytes` at the measured rate of the link. `wire_bytes` of a rank are those of all
rows that other ranks have, in supersteps in which all change; of searches a bit of each
row in each superstep, and a row for each vertex that changed.

Levels, labels and distances have one digest on all numbers of ranks; of ranks,
distributions and factors `checks` has the largest difference at 4096 vertices or fewer,
by the largest value.

``--target cpu`` runs the same on processes of the CPU, for rehearsal. ``--weak`` draws
twice as many edges for twice as many ranks. Behind ``--budget`` seconds nothing starts.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import DRAWN, SEED, distribute_graph
from bench.record import Recorder, child_environment
from bench.timing import join_compilers, wait_for_gpu
from featgraph import algorithms as al

PROGRAMS = ("PR", "BFS", "LP", "CC", "BC", "SSSP", "ALS", "GD")
DEFAULTS = {
    "graph": ["rmat-24-16"],
    "k": [8, 32],
    "repeat": 3,
    "gpus": 2,
    "target": "cuda",
    "budget": 200.0,
    "ratings": 20_000_000,
    "weak": False,
    "programs": ",".join(PROGRAMS),
}
#: Supersteps of programs that would go on.
SUPERSTEPS, LP_SUPERSTEPS, ITERATIONS = 20, 10, 3
#: Calls before the trials: loops of supersteps are made in the second or third.
_WARM_UP = 3
#: Rows whose stores are timed, and entries of each: 64 MB.
LINK_ROWS = (1 << 19, 32)
#: Vertices whose reals are compared, and numbers of them all.
SAMPLE, SAMPLED = 4096, 1 << 15
#: How far reals may be apart, of the largest.
TOLERANCE = 1e-4
#: Kind of graph -> the programs that run on it.
KINDS = {
    "plain": {"PR", "BFS", "LP", "CC", "BC"}, "weighted": {"SSSP"},
    "ratings": {"ALS", "GD"},
}  # fmt: skip
#: Programs that run beside each other on one rank, a GPU each: compiling is longest.
HALVES = ({"PR", "LP", "BFS", "CC"}, {"SSSP", "BC", "ALS", "GD"})


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run all programs on one rank, then on several."""
    recorder.use(arguments.target)
    begun, alone = time.time(), {}
    counts = list(dict.fromkeys((1, arguments.gpus)))
    for number, ranks in enumerate(counts):
        until = begun + arguments.budget * (number + 1) / len(counts)
        for cell in cells(arguments, ranks, until, recorder):
            key = cell["of"], cell["program"], cell["k"]
            if ranks == 1:
                alone[key] = cell
            record_cell(recorder, cell, alone.get(key), ranks)


def cells(
    arguments: argparse.Namespace, ranks: int, until: float, recorder: Recorder
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ranks, and print their notes; record an error."""
    given = {name: getattr(arguments, name) for name in ("k", "repeat", "target")}
    given |= {"ratings": arguments.ratings, "until": until}
    given["graphs"] = [(g, _grown(g, ranks, arguments.weak)) for g in arguments.graph]
    wanted, streams = arguments.programs.split(","), []
    halves = HALVES if ranks < arguments.gpus else (set(PROGRAMS),)
    for gpu, half in enumerate(halves):
        own = given | {"programs": [name for name in wanted if name in half]}
        if own["programs"]:
            streams.append(stream_from_ranks(ranks, own, until + 60, gpu))
    rows = merged(streams)
    while row := recorder.attempt(f"{ranks} ranks", next, rows, None):
        if "note" in row:
            print(f"    {row['note']}", flush=True)
        else:
            yield row


def stream_from_ranks(
    ranks: int, given: dict[str, Any], until: float, first_gpu: int
) -> Iterator[dict[str, Any]]:
    """Launch this module on ranks, and yield the rows that the first one writes.

    With target "cuda" each rank has a GPU of those that this process sees, from
    `first_gpu` on.

    Raises
    ------
    RuntimeError
        Behind all rows, if a rank failed, or ranks were ended at the time `until`.
    """
    environment = child_environment() | {"PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "featgraph", "launch", "-n", str(ranks)]
    if given["target"] == "cuda":
        command.append("--gpus")
        every = ",".join(map(str, range(first_gpu + ranks)))
        gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
        own = gpus[first_gpu : first_gpu + ranks]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as rows:
        command += [__file__, json.dumps(given), rows.name]
        process, begun, is_over = subprocess.Popen(command, env=environment), "", False
        try:
            while not is_over:
                time.sleep(0.02)
                is_over = process.poll() is not None or time.time() > until
                while text := rows.readline():
                    begun += text
                    if text.endswith("\n"):
                        yield json.loads(begun)
                        begun = ""
        finally:
            process.terminate()  # where it has not ended; it ends its ranks
            code = process.wait()
    if code:
        raise RuntimeError(f"ranks ended with {code}")


def merged(streams: Sequence[Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield rows of several streams as they come; raise the first of their errors."""
    found: queue.Queue[Any] = queue.Queue()

    def follow(stream: Iterator[dict[str, Any]]) -> None:
        try:
            for row in stream:
                found.put(row)
            found.put(None)
        except Exception as error:
            found.put(error)

    for stream in streams:
        threading.Thread(target=follow, args=(stream,), daemon=True).start()
    errors, going = [], len(streams)
    while going:
        row = found.get()
        if isinstance(row, dict):
            yield row
            continue
        going -= 1
        errors += [row] if row is not None else []
    if errors:
        raise errors[0]


def _grown(name: str, ranks: int, is_weak: bool) -> str:
    """Return the name of a graph with as many edges a rank."""
    if not is_weak:
        return name
    kind, scale, *rest = name.split("-")
    return "-".join([kind, str(int(scale) + ranks.bit_length() - 1), *rest])


def record_cell(
    recorder: Recorder, cell: dict[str, Any], one: dict[str, Any] | None, ranks: int
) -> None:
    """Record a row, and print it beside that of one rank."""
    trials, fields = cell.pop("trials_ms"), {"ranks": ranks}
    own = median(trials)
    fields["edges_s_rank"] = cell["edges"] * cell["sweeps"] / own * 1000 / ranks
    shown = f"{fields['edges_s_rank'] / 1e9:.2f}G edges/s a rank"
    checks: dict[str, Any] = {"ok": True}
    if ranks > 1 and one is not None:
        grown = cell["edges"] / one["edges"]
        alone = median(one["trials"]) * grown
        fields["efficiency"] = alone / ranks / own
        wire = cell["wire_ms"]
        if wire:
            sweep = alone / ranks
            fields["bound"] = sweep / max(sweep, wire)
            shown += f", wire {wire:.3g} ms, bound {fields['bound']:.3f}"
        shown += f", efficiency {fields['efficiency']:.3f}"
        if grown == 1:
            checks = compared(cell["answer"], one["answer"])
    cell["trials"] = trials
    more = {n: v for n, v in cell.items() if n not in {"answer", "trials", "graph"}}
    name = f"{cell['program']}, {ranks} {'rank' if ranks == 1 else 'ranks'}"
    recorder.add(
        name, trials, graph={"name": cell["graph"]}, checks=checks, **more | fields
    )
    print(
        f"    {shown}; {cell['supersteps']} supersteps, call {cell['call_ms']:.4g} ms, "
        f"first {cell['first_s']:.1f} s",
        flush=True,
    )


def compared(found: dict[str, Any], meant: dict[str, Any]) -> dict[str, Any]:
    """Return whether an answer is another one, and how far they are apart."""
    if "digest" in found:
        return {"ok": found["digest"] == meant["digest"]}
    a, b = np.array(found["sample"]), np.array(meant["sample"])
    if a.shape != b.shape:
        return {"ok": False}
    apart = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))
    return {"difference": apart, "ok": apart <= TOLERANCE}


# -- on a rank


class Rank:
    """A rank that runs programs on its part of a graph.

    Attributes
    ----------
    link : float or None
        Bytes a second to another rank.
    """

    def __init__(self, given: dict[str, Any], rows: str) -> None:
        self.given, self.target, self._rows = given, given["target"], Path(rows)
        self.engine = fg.distributed.init(timeout=120, engine="shared")
        fg.config.compile_behind = True  # and waited for, before the trials
        self.link: float | None = None

    def send(self, **row: Any) -> None:
        """Write a row, once for all ranks."""
        if self.engine.rank == 0:
            with self._rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, default=lambda value: value.item()) + "\n")

    def note(self, text: str) -> None:
        """Write a note for the reader of the bench."""
        self.send(note=f"{self.engine.size} ranks: {text}")

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is set on all ranks."""
        unset = np.array([not flag], np.int64)
        return not self.engine.all_reduce(unset, "max", about="agreement")[0]

    def is_time(self) -> bool:
        """Return whether the time allows another program."""
        return self.agree(time.time() < self.given["until"])

    def wait(self) -> None:
        """Wait for the GPU, and for the other ranks."""
        wait_for_gpu(self.target)
        self.engine.barrier()

    def measure_link(self) -> None:
        """Measure how fast rows reach another rank."""
        if self.engine.size > 1:
            self.link = _link_of(self)
            self.note(f"link {self.link / 1e9:.3g} GB/s")

    def make(self, name: str, make: Callable[[], Any]) -> Any:
        """Make a graph, and note the time of it; None if there is no time."""
        if not self.is_time():
            self.note(f"no time for {name}")
            return None
        self.wait()
        begun = time.perf_counter()
        graph = make()
        self.wait()
        part = getattr(graph, "shard", graph)
        self.note(f"{name}: {part}, made in {time.perf_counter() - begun:.1f} s")
        return graph

    def run(
        self, of: str, name: str, graph: Any, program: str, how: Program, k: int
    ) -> None:
        """Run a program, and send its times."""
        if not self.is_time():
            self.note(f"no time for {program}, k = {k}")
            return
        self.wait()
        begun, error = time.perf_counter(), ""
        try:
            result = how.call()
            self.wait()
        except Exception as failed:  # the next program may well run
            error = f"{type(failed).__name__}: {failed}"[:300]
        if not self.agree(not error):
            self.note(f"{program}, k = {k}: {error or 'failed on another rank'}")
            return
        first, trials, calls = time.perf_counter() - begun, [], []
        for _ in range(_WARM_UP):
            join_compilers()
            result = how.call()
        join_compilers()
        for _ in range(self.given["repeat"]):
            del result
            self.wait()
            before, begun = self.engine.traffic.copy(), time.perf_counter()
            result = how.call()
            self.wait()
            calls.append(1000 * (time.perf_counter() - begun))
            trials.append(1000 * sum(result.run.seconds))
        sent = int((self.engine.traffic - before).sent.sum())
        run, wire = result.run, self._wire(graph, result.run, how, k)
        most = self.engine.all_reduce(np.array(trials), "max", about="times")
        self.send(
            of=of, graph=name, program=program, k=k, trials_ms=most.tolist(),
            call_ms=median(calls), first_s=first, supersteps=run.supersteps,
            sweeps=run.supersteps if how.is_dense else 1, edges=graph.edge_count,
            superstep_ms=[round(1000 * s, 4) for s in run.seconds[:64]],
            sent_bytes=sent, wire_bytes=wire,
            wire_ms=1000 * wire / self.link if self.link else None,
            answer=answer_of(self.engine, graph, result, how.answer),
        )  # fmt: skip

    def _wire(self, graph: Any, run: Any, how: Program, k: int) -> int:
        """Return the bytes of rows that the rank sends that sends most."""
        if self.engine.size == 1:
            return 0
        listed = sum(part.size for part in graph.shard.send_lists)
        row = how.row_bytes * (k if how.is_wide else 1)
        if how.is_dense:
            size = listed * row * run.supersteps
        else:
            changed = sum(run.active_counts) / graph.vertex_count
            size = int(listed * (run.supersteps / 8 + row * changed))
        return int(self.engine.all_reduce(np.array([size]), "max", about="bytes")[0])


@dataclass
class Program:
    """A call of an algorithm, and the size of its rows.

    Attributes
    ----------
    call : callable
    answer : str
    row_bytes : int
        Of a row that other ranks read.
    is_dense, is_wide : bool
        If all rows change in each superstep, and if a row is k times as wide.
    """

    call: Callable[[], Any]
    answer: str
    row_bytes: int = 4
    is_dense: bool = False
    is_wide: bool = False


def _link_of(rank: Rank) -> float:
    """Return the bytes a second that a kernel stores, or the engine hands over."""
    engine = rank.engine
    if rank.target == "cuda":
        from featgraph.ranks.exchange.gpu_transport import have_windows
        from featgraph.runtime.devices.choose import choose_device

        device: Any = choose_device("cuda")
        if have_windows(engine, device):
            return _rate_of_windows(engine, device)
    size, seconds = 1 << 24, []
    arrays = [np.zeros(size * (r != engine.rank), np.uint8) for r in range(engine.size)]
    for _ in range(3):
        engine.barrier()
        begun = time.perf_counter()
        engine.all_to_allv(arrays, about="a link")
        seconds.append(time.perf_counter() - begun)
    return size * (engine.size - 1) / median(seconds)


def _rate_of_windows(engine: Any, device: Any) -> float:
    """Return the bytes a second of rows that a kernel stores in the next rank's window.

    All ranks store `LINK_ROWS` rows at once, the last one at the first.
    """
    from featgraph.cuda.dialect import cuda
    from featgraph.ranks.exchange.window_channel import Channel, Part

    count, k = LINK_ROWS
    ahead, behind = ((engine.rank + step) % engine.size for step in (1, -1))
    ranks = range(engine.size)
    sent = [np.arange(count * (r == ahead)) for r in ranks]
    taken = [np.arange(count, count + count * (r == behind)) for r in ranks]
    channel = Channel(sent, taken, engine, device, "rows")
    data = np.ones((2 * count, k), np.float32)
    values = device.rows.held(device.rows.upload(data), data.shape)
    changed = device.sets.upload(np.full(2 * count // 32, -1, np.int32).view(np.uint32))
    trials = []
    for _ in range(_WARM_UP + 3):
        wait_for_gpu("cuda")
        engine.barrier()
        begin, end = cuda.event(timing=True), cuda.event(timing=True)
        begin.record()
        posted = channel.post([Part(changed, [values])])
        end.record()
        channel.take(posted)
        wait_for_gpu("cuda")
        trials.append(cuda.event_elapsed_time(begin, end))
    return float(4 * k * count / (median(trials[_WARM_UP:]) / 1000))


def answer_of(engine: Any, graph: Any, result: Any, name: str) -> dict[str, Any]:
    """Return a digest of an answer of integers or distances, or a sample of reals."""
    own, numbers = result.local(name), graph.own_vertices
    if name in {"levels", "labels", "distances", "widths"}:
        return {"digest": digest_of(engine, numbers, own)}
    width = int(np.prod(own.shape[1:]))
    step = max(graph.vertex_count // min(SAMPLE, max(SAMPLED // width, 1)), 1)
    chosen = numbers % step == 0
    values = own[chosen].reshape(-1, width).astype(np.float64)
    rows = np.concatenate((numbers[chosen, None].astype(np.float64), values), axis=1)
    found = np.concatenate(engine.all_gather(rows, about="a sample"))
    return {"sample": found[np.argsort(found[:, 0])][:, 1:].ravel().tolist()}


def digest_of(engine: Any, numbers: Any, values: Any) -> str:
    """Return one digest of the values at the vertices of all ranks."""
    from featgraph.graph.building import digests

    sums = digests.no_sums()
    digests.add_values(sums, numbers, values)
    return digests.text_of(engine.all_reduce(sums, "sum", about="a digest"))


def hub_of(graph: Any, engine: Any) -> int:
    """Return the vertex with most out-edges."""
    part = graph.part
    own = np.asarray(part.out_degree)[: graph.own_vertices.size]
    best = int(own.argmax())
    pair = np.array([[int(own[best]), -int(graph.own_vertices[best])]], np.int64)
    found = np.concatenate(engine.all_gather(pair, about="degrees"))
    return -int(max(map(tuple, found.tolist()))[1])


def programs_on(rank: Rank, graph: Any, of: str, k: int) -> dict[str, Program]:
    """Return the programs of a kind of graph: "plain", "weighted" or "ratings".

    On plain graphs, rows have one value for k = 1, and those of label propagation k.
    """
    where: dict[str, Any] = {"target": rank.target}
    dense: dict[str, Any] = {"is_dense": True, "is_wide": True}
    if of == "ratings":
        where |= {"factors": k, "iterations": ITERATIONS}
        return {
            "ALS": Program(lambda: al.als(graph, **where), "factors", **dense),
            "GD": Program(
                lambda: al.gradient_factorization(graph, **where), "factors", **dense
            ),
        }
    count, hub = graph.vertex_count, hub_of(graph, rank.engine)
    if of == "weighted":
        return {"SSSP": Program(lambda: al.sssp(graph, hub, **where), "distances")}
    if k > 1:
        seeds: Any = np.full(count, -1)
        seeds[::10] = np.arange(0, count, 10) % k
        if rank.target == "cuda":
            import cupy

            seeds = cupy.asarray(seeds)  # at home, or each rank waits for all uploads
        where |= {"class_count": k, "epsilon": 0, "max_supersteps": LP_SUPERSTEPS}
        where["history"] = False
        call = partial(al.label_propagation, graph, seeds, **where)
        return {"LP": Program(call, "distributions", **dense)}
    ends = {"tol": 0.0, "max_supersteps": SUPERSTEPS, **where}
    sources = [hub, *[v for v in (1, 2, 3, 4) if v != hub][:3]]
    connect = partial(al.connected_components, graph, method="propagate", **where)
    between = partial(al.betweenness_centrality, graph, sources=sources, **where)
    return {
        "PR": Program(partial(al.pagerank, graph, **ends), "ranks", is_dense=True),
        "BFS": Program(partial(al.bfs, graph, hub, **where), "levels"),
        "CC": Program(connect, "labels"),
        "BC": Program(between, "centralities", 48),
    }


def be_a_rank(given: dict[str, Any], rows: str) -> None:
    """Run everything on this rank."""
    begun = time.perf_counter()
    rank = Rank(given, rows)
    rank.note(f"begun, {time.perf_counter() - begun:.1f} s")
    rank.measure_link()
    wanted, k = set(given["programs"]), given["k"]
    # Users and items are as many as Netflix has for its own number of ratings.
    count, kinds = given["ratings"], []
    sides = max(count // 209, 64), max(count // 5650, 64)
    options = {"seed": SEED, "target": rank.target, "partition": "edges"}
    ratings = partial(fg.graph.generators.ratings, *sides, count, **options)
    for of, name in given["graphs"]:
        plain = partial(distribute_graph, name, rank.target)
        kinds.append((of, name, "plain", [1, *k], plain))
        if DRAWN.fullmatch(name):
            kinds.append((of, name, "weighted", [1], partial(plain, weighted=True)))
        elif "SSSP" in wanted:
            rank.note(f"{name} has no weights for SSSP")
    kinds.append(("ratings", "ratings", "ratings", k, ratings))
    for of, name, kind, widths, make in kinds:
        graph = rank.make(name, make) if wanted & KINDS[kind] else None
        for width in widths if graph is not None else ():
            for program, how in programs_on(rank, graph, kind, width).items():
                if program in wanted:
                    rank.run(of, name, graph, program, how, width)
        graph = how = None  # their memory is free before the next is made


if __name__ == "__main__":
    be_a_rank(json.loads(sys.argv[1]), sys.argv[2])
