"""Bytes and times of rows of ranks on the CPU in each form (``exchange=``).

Tables I and VIII of Vertex Refinement: whole calls of algorithms that are warm, on
ranks of a thread each, over shared memory, with the graph cut as it is given. `useful`
is the share of rows that had changed in the bytes of all rows that a form sends,
without the bitmaps and lists that number these. Answers are compared with those of form
"ms": `checks` has the largest difference. Where they may be, rows are also rounded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
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

DEFAULTS = {
    "graph": ["rmat-16-16", "grid256"],
    "repeat": 5,
    "ranks": 2,
}
FORMS = ("ms", "all", "vr", "vr-list", "auto")
#: Algorithms whose rows may be rounded, and by how much answers may differ then.
ROUNDED = {"PR": 1e-5, "LP": 1e-2}
#: Feature counts of label propagation.
CLASSES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="how many, each with a thread")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every algorithm in every form, on every graph."""
    for name in arguments.graph:
        given = {"graph": name, "repeat": arguments.repeat}
        module = "bench.distributed.forms_cpu"
        found = run_on_ranks(module, arguments.ranks, given, threads_each(1))
        for program, cells in found["programs"].items():
            needed = cells["vr"]["row_bytes"]
            for form, cell in cells.items():
                apart = np.abs(np.subtract(cell["sample"], cells["ms"]["sample"]))
                recorder.add(
                    form,
                    cell["trials_ms"],
                    graph=found["graph"],
                    program=program,
                    ranks=arguments.ranks,
                    supersteps=cell["supersteps"],
                    sent_bytes=cell["sent_bytes"],
                    useful=round(needed / max(cell["row_bytes"], 1), 4)
                    if form in FORMS
                    else None,
                    waited_share=round(cell["waited_share"], 3),
                    forms=cell["forms"],
                    checks={
                        "difference": float(apart.max()),
                        "ok": bool(
                            apart.max() <= (0 if form in FORMS else ROUNDED[program])
                        ),
                    },
                )


class _Counted:
    """Counts bytes of rows that a rank packs, without bitmaps and lists of them."""

    def __init__(self) -> None:
        from featgraph.ranks.exchange import host_rows

        self.row_bytes = 0
        self._encode, host_rows.encode = host_rows.encode, self.encode

    def encode(
        self, link: Any, chosen: Any, packing: Any, arrays: Any, message: Any
    ) -> Any:
        counts = {"none": 0, "all": link.own, "ms": link.size}
        count = counts.get(chosen.form, chosen.positions.size)
        self.row_bytes += count * packing.row
        return self._encode(link, chosen, packing, arrays, message)


def programs_on(graph: Any, whole: Any) -> dict[str, Callable[..., Any]]:
    """Return calls of algorithms that take options."""
    from featgraph import algorithms as al

    count = whole.vertex_count
    rng = np.random.default_rng(1)
    weights = rng.random(whole.given_edge_count).astype(np.float32)
    source = int(whole.out_degree.argmax())
    seeds = np.where(np.arange(count) % 10 == 0, np.arange(count) % CLASSES, -1)
    return {
        "BFS": lambda **o: al.bfs(graph, source, **o),
        "CC": lambda **o: al.connected_components(graph, method="propagate", **o),
        "PR": lambda **o: al.pagerank(graph, tol=None, epsilon=1e-7, **o,
                                      dangling="renormalize"),
        "SSSP": lambda **o: al.sssp(graph, source, weights=weights, **o),
        "LP": lambda **o: al.label_propagation(graph, seeds, epsilon=1e-3, **o),
    }  # fmt: skip


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Run the programs on this rank; the first one writes times and bytes."""
    import featgraph as fg

    engine = fg.distributed.init(timeout=LIMIT_S / 2, engine="shared")
    named, counted = make_graph(given["graph"]), _Counted()
    graph = fg.distribute(named.graph)
    answers = {"BFS": "levels", "CC": "labels", "PR": "ranks", "SSSP": "distances",
               "LP": "distributions"}  # fmt: skip
    found: dict[str, Any] = {}
    for program, call in programs_on(graph, named.graph).items():
        cells = found[program] = {}
        ways = {form: {"exchange": form} for form in FORMS}
        if program in ROUNDED:
            ways |= {w: {"wire_dtype": w} for w in ("float16", "bfloat16")}
        for form, options in ways.items():
            result = call(**options, target="cpu")
            answer = np.nan_to_num(getattr(result, answers[program]), posinf=-1)
            step = max(named.graph.vertex_count // 1000, 1)
            cells[form] = {
                "trials_ms": [],
                "sample": answer[::step].astype(float).ravel().tolist(),
                "supersteps": result.supersteps,
                "forms": result.run.forms,
                "sent_bytes": 0,
                "row_bytes": 0,
                "waited_share": 0.0,
            }
        for _ in range(given["repeat"]):  # in turn: other loads slow all alike
            for form, cell in cells.items():
                before, rows = engine.traffic.copy(), counted.row_bytes
                engine.barrier()
                begun = time.perf_counter()
                result = call(**ways[form], target="cpu")
                took = time.perf_counter() - begun
                cell["trials_ms"].append(1000 * took)
                sent = int((engine.traffic - before).sent.sum())
                cell["sent_bytes"], cell["row_bytes"] = sent, counted.row_bytes - rows
                cell["waited_share"] += sum(result.run.waits) / took / given["repeat"]
    if engine.rank == 0:
        send(graph=named.describe(), programs=found)


if __name__ == "__main__":
    run_rank(be_a_rank)
