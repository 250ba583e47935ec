"""Bytes and times of rows of ranks with a GPU each, in each form (``exchange=``).

Tables I and VIII of Vertex Refinement, with parts that ranks draw: whole calls that are
warm, in turn. `sent_bytes` are those of messages and of stores of kernels into
windows, on the rank that sends most, `by_kind` that of the first rank, and `rows`
its messages by form; `useful` is the share of these bytes that the form takes that
takes fewest. Ways that ranks do not take, and forms that a way does not have, are noted
and left out.
Answers are compared with those of "vr" as in ``lux-gpu``, which has `--target`, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.streaming import (
    Sender,
    rows_of,
    run_rank,
    stream_from_ranks,
)
from bench.record import Recorder

DEFAULTS = {
    "graph": ["rmat-21-16-undirected"],
    "k": [8],
    "repeat": 3,
    "gpus": 2,
    "target": "cuda",
    "budget": 120.0,
    "links": "auto,host",
    "engine": "shared",
}
MODULE = "bench.distributed.forms_gpu"
FORMS = ("vr", "ms", "all", "vr-list", "auto")
SUPERSTEPS = 20
UNWEIGHTED = ("BFS", "CC", "PR", "NN", "HS", "CS", "LP")
WEIGHTED = ("SSSP", "SSWP")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ranks, programs and links."""
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--programs", help="some of them, by commas")
    parser.add_argument("--links", help="values of fg.config.gpu_links, by commas")
    parser.add_argument("--engine", help="as of init()")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every algorithm in every form, by every way."""
    recorder.use(arguments.target)
    programs = (arguments.programs or ",".join(UNWEIGHTED + WEIGHTED)).split(",")
    given = {
        "graphs": arguments.graph,
        "programs": programs,
        "k": arguments.k,
        "repeat": arguments.repeat,
        "target": arguments.target,
        "links": arguments.links.split(","),
        "engine": arguments.engine,
        "until": time.time() + arguments.budget,
    }
    limit = arguments.budget + 60.0
    cells = stream_from_ranks(MODULE, arguments.gpus, given, {}, limit)
    meant: dict[Any, Any] = {}
    for cell in rows_of(cells, recorder, f"{arguments.gpus} ranks"):
        key = cell["graph"], cell["link"], cell["program"]
        answer = cell.pop("answer")
        checks = lux_gpu.compared(answer, meant.setdefault(key, answer))
        trials, least = cell.pop("trials_ms"), cell.pop("least")
        cell["useful"] = round(least / max(cell["sent_bytes"], 1), 4)
        cell["graph"] = {"name": cell["graph"]}
        recorder.add(cell["form"], trials, checks=checks, **cell)


def programs_on(rank: lux_gpu.Rank, graph: Any, k: int) -> dict[str, Any]:
    """Return calls that take options, and names of answers."""
    from featgraph import algorithms as al

    count = graph.vertex_count
    hub = lux_gpu.hub_of(graph, rank.engine)
    seeds = np.full(count, -1)
    seeds[::10] = np.arange(0, count, 10) % k
    hot = np.zeros(count)
    hot[:: max(count // 100, 1)] = 1
    signs = np.random.default_rng(1).uniform(-1, 1, count)
    limit: dict[str, Any] = {"max_supersteps": SUPERSTEPS}
    where = {"target": rank.target}

    @cache
    def voltages() -> Any:
        found = al.connected_components(graph, method="propagate", **where)
        # Elsewhere no resistor leads to a held vertex.
        held = np.where(found.labels == found.labels[hub], np.nan, 0)
        held[hub], held[np.flatnonzero(np.isnan(held))[-1]] = 1, 0
        return held

    found: dict[str, tuple[Callable[..., Any], str]] = {
        "BFS": (lambda **o: al.bfs(graph, hub, **o), "levels"),
        "CC": (
            lambda **o: al.connected_components(graph, method="propagate", **o),
            "labels",
        ),
        "PR": (
            lambda **o: al.pagerank(
                graph, tol=None, epsilon=1e-9, dangling="renormalize", **limit, **o
            ),
            "ranks",
        ),
        "NN": (lambda **o: al.neural_network(graph, signs, **limit, **o), "outputs"),
        "HS": (
            lambda **o: al.heat_simulation(graph, hot, **limit, **o),
            "temperatures",
        ),
        "CS": (
            lambda **o: al.circuit_simulation(graph, voltages(), **limit, **o),
            "voltages",
        ),
        "LP": (
            lambda **o: al.label_propagation(
                graph, seeds, class_count=k, history=False, **limit, **o
            ),
            "distributions",
        ),
        "SSSP": (lambda **o: al.sssp(graph, hub, **o), "distances"),
        "SSWP": (lambda **o: al.sswp(graph, hub, **o), "widths"),
    }
    return {n: (lambda c=c, **o: c(**o, **where), a) for n, (c, a) in found.items()}


def measure(rank: lux_gpu.Rank, row: dict[str, Any], call: Any, answer: str) -> None:
    """Time a program in all forms, in turn, and send the times."""
    engine, graph = rank.engine, row.pop("on")
    cells: dict[str, Any] = {}
    for form in FORMS:
        error, result = "", None
        try:
            result = call(exchange=form)
            rank.wait()
        except Exception as failed:  # the next form may well do
            error = f"{type(failed).__name__}: {failed}".split("\n")[0][:200]
        if not rank.agree(not error):
            program = f"{row['program']}, {row['link']}, {form}"
            rank.note(f"{program}: {error or 'failed on another rank'}")
            continue
        found = lux_gpu.answer_of(rank.engine, graph, result, answer)
        cells[form] = {"answer": found, "form": form, "trials_ms": []}
        del result
    for _ in range(rank.given["repeat"]):
        for form, cell in cells.items():
            rank.wait()
            result = call(exchange=form)
            rank.wait()
            cell["trials_ms"].append(1000 * sum(result.run.seconds))
            by_kind = {n: sum(to) for n, to in result.run.sent_bytes.items()}
            sent = np.array([sum(by_kind.values())])
            most = engine.all_reduce(sent, "max", about="bytes")
            cell |= {"sent_bytes": int(most[0]), "supersteps": result.run.supersteps}
            cell["by_kind"] = by_kind
            cell["rows"] = dict(result.run.forms)
            cell["waited_share"] = round(
                sum(result.run.waits) / max(sum(result.run.seconds), 1e-9), 3
            )
            del result
    least = min((cell["sent_bytes"] for cell in cells.values()), default=0)
    for cell in cells.values():
        cell["least"] = least
        trials = engine.all_reduce(np.array(cell["trials_ms"]), "max", about="times")
        rank.send(**row, **{**cell, "trials_ms": trials.tolist()})


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run everything on this rank."""
    import featgraph as fg

    rank = lux_gpu.Rank(given, send)
    for name in given["graphs"]:
        for weighted, wanted in ((False, UNWEIGHTED), (True, WEIGHTED)):
            wanted_here = [p for p in given["programs"] if p in wanted]
            for link in given["links"] if wanted_here else []:
                fg.config.gpu_links = link
                graph = lux_gpu.drawn(rank, name, weighted)  # its rows go by this way
                if graph is None:
                    return
                programs = programs_on(rank, graph, given["k"][0])
                for program in wanted_here:
                    if not rank.is_time():
                        rank.note(f"no time for {program}, {link}")
                        return
                    cell = {
                        "graph": name,
                        "program": program,
                        "link": link,
                        "ranks": rank.engine.size,
                        "k": given["k"][0] if program == "LP" else 1,
                    }
                    measure(rank, {**cell, "on": graph}, *programs[program])
                del graph, programs


if __name__ == "__main__":
    run_rank(be_a_rank)
