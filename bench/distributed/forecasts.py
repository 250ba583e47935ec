"""Rows and bytes of graphs on 2 to 1,024 ranks, counted, with times of the model.

Each graph is cut into ranges by the default balance. Rows that are sent are counted
under **all**, each rank getting every row of the others, and **ms**, those of send
lists. Times are those of a superstep in which every vertex pulls, on NVIDIA H200s, by
the model (0059) on three links. A breadth-first search from the vertex of most edges is
recorded: **vr** has the rows that it sends, and `search` is its time with each
form; not of graphs whose edges, times supersteps, are more than `MOST_SWEPT`.

Graphs above `IN_MEMORY`, ``rmat-S-F``, ``uniform-S-F`` and both ``-undirected``, are
only drawn, once for each slice of their sources, and counted for all numbers of ranks
at once: exactly, too. ``--markdown FILE`` writes the tables as a page.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.distributed.drawn_counts import count_drawn
from bench.distributed.works import works_of
from bench.graphs import SEED, make_graph
from bench.record import Recorder
from bench.report import markdown_table
from featgraph.algorithms import bfs
from featgraph.cli.ranks import rank_counts
from featgraph.graph import generators
from featgraph.ranks.cost.forecast import Work, superstep_times
from featgraph.ranks.cost.machine import H200
from featgraph.ranks.engines.links import named_link

DEFAULTS: dict[str, Any] = {
    "graph": ["delaunay17", "grid1024", "graph500-20-mixed", "uniform-20-16",
              "rmat-21-16"],
    "k": [1, 32],
    "repeat": 1,
    "ranks": "2..1024",
    "markdown": "",
}  # fmt: skip
LINKS = ("nvlink", "400g", "100g")
#: Scale of a graph that is made in memory, and edges that searches go through.
IN_MEMORY, MOST_SWEPT = 21, 1 << 29


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Count and foretell every graph."""
    page, counts = [HEAD.format(command=recorder.command)], rank_counts(arguments.ranks)
    for name in arguments.graph:
        begun = time.perf_counter()
        graph = graph_of(name, counts)
        counted_s = time.perf_counter() - begun
        given = recorder, name, graph, arguments.k
        lines = [_line(*given, ranks) for ranks in counts]
        page.append(_section(name, graph, lines, arguments.k))
        took = time.perf_counter() - begun
        print(f"    {name}: {took:.0f} s, of which {counted_s:.0f} made it", flush=True)
        if arguments.markdown:
            Path(arguments.markdown).write_text("\n".join(page), encoding="utf-8")


class Drawn:
    """A graph that is only drawn, counted for some numbers of ranks.

    Attributes
    ----------
    vertex_count, edge_count : int
    found : dict of int to (Counts, Partition)
        By number of ranks.
    """

    def __init__(self, drawing: Any, directed: bool, ranks: list[int]) -> None:
        counted = count_drawn(drawing, ranks, directed=directed)
        self.found = dict(zip(ranks, counted, strict=True))
        self.vertex_count = drawing.vertex_count
        self.edge_count = int(counted[0][0].edges.sum())


def graph_of(name: str, ranks: list[int]) -> Any:
    """Return a graph, or the counts of one that is only drawn."""
    drawn = re.fullmatch(r"(rmat|uniform)-(\d+)-(\d+)(-undirected)?", name)
    if not drawn or int(drawn[2]) <= IN_MEMORY:
        return make_graph(name).graph
    scale, factor = int(drawn[2]), int(drawn[3])
    if drawn[1] == "rmat":
        drawing = generators.drawing_of_rmat(scale, factor, seed=SEED)
    else:
        count = 1 << scale
        drawing = generators.drawing_of_uniform(count, factor * count, seed=SEED)
    return Drawn(drawing, drawn[4] is None, ranks)


def _line(
    recorder: Recorder, name: str, graph: Any, widths: list[int], ranks: int
) -> dict[str, Any]:
    """Return and record the counts and times of a number of ranks."""
    if isinstance(graph, Drawn):
        counts, partition = graph.found[ranks]
    else:
        found = fg.distributed.forecast(graph, [ranks])
        counts, partition = found.counts[0], found.partitions[0]
    line: dict[str, Any] = {
        "ranks": ranks,
        "uneven": float(counts.edges.max() / counts.edges.mean()),
        "ghosts": float(counts.ghosts.sum() / graph.vertex_count),
        "rank_mb": float(counts.memory_bytes(4).max() / 1e6),
        "all_rows": counts.rows_all / graph.vertex_count,
        "ms_rows": counts.rows_ms / graph.vertex_count,
    }
    work = Work.whole(counts)
    forms = {"all": _to_all(work, counts), "ms": work}
    for k in widths:
        for form, one in forms.items():
            line[f"{form}_k{k}_ms"] = _milliseconds([one], k)
    line |= _searched(graph, partition, counts)
    recorder.add(
        f"{ranks} ranks", [], graph={"name": name, "edges": graph.edge_count},
        checks={"ok": True}, **line,
    )  # fmt: skip
    return line


def _to_all(work: Work, counts: Any) -> Work:
    """Return work in which each rank gets all rows of the others."""
    peers = work.ranks - 1
    received = counts.vertex_count - counts.own
    return replace(work, sent=counts.own * peers, received=received)


def _milliseconds(works: list[Work], k: int) -> list[float]:
    """Return ms of supersteps on each link."""
    links = [named_link(name) for name in LINKS]
    return [
        round(sum(1e3 * superstep_times(w, H200, link, k=k).seconds for w in works), 4)
        for link in links
    ]


def _searched(graph: Any, partition: Any, counts: Any) -> dict[str, Any]:
    """Return rows and times of a search in each form."""
    if isinstance(graph, Drawn) or graph.edge_count > MOST_SWEPT >> 3:
        return {}
    run, first = search(graph)
    if run.supersteps * graph.edge_count > MOST_SWEPT:
        return {}
    works = works_of(graph, run, partition, first)
    whole = Work.whole(counts)
    forms = {
        "all": [_to_all(w, counts) for w in works],
        "ms": [replace(w, sent=whole.sent, received=whole.received) for w in works],
        "vr": works,
    }
    rows = sum(int(w.sent.sum()) for w in works)
    return {
        "supersteps": run.supersteps, "vr_rows": rows / graph.vertex_count,
        **{f"search_{n}_ms": _milliseconds(one, 1) for n, one in forms.items()},
    }  # fmt: skip


@lru_cache(maxsize=1)  # for all numbers of ranks
def search(graph: Any) -> tuple[Any, Any]:
    """Return a search with its sets, and its first set."""
    hub = int(np.argmax(graph.out_degree))
    found = bfs(graph, hub, target="cpu", record_active=True)
    return found.run, fg.ActiveSet(graph, [hub]).mask


# -- the page

HEAD = """# What graphs take on ranks

    {command}

makes this page. Counts are exact, of ranges cut by default: an in-edge weighs 1, a
vertex 3. *uneven* is the most edges of a rank over the mean; *ghosts* are those of all
ranks, and rows are those that are sent in a superstep in which every vertex changes,
both over V; *MB* is what the rank has that has most, with two buffers of a float32.
Times are milliseconds of such a superstep on NVIDIA H200s, pulled, by the model
([0059](design/0059-model-of-time.md)): on NVLink, and on networks of 400 and 100 Gb/s
for each rank. "all" sends each rank every row of the others, "ms" those that it reads.
Where a search was recorded, "vr" are the rows that it sends in all its supersteps, over
V, and times are those of the whole search. No network was measured: see the constants.
Graphs above R-MAT 21 are directed, as they are drawn, and are counted without being
made ([0077](design/0077-bytes-through-windows.md)): `--graph rmat-24-16`, one command
each.
"""


def _section(
    name: str, graph: Any, lines: list[dict[str, Any]], widths: list[int]
) -> str:
    """Return the tables of a graph."""
    edges = f"{graph.vertex_count:,} vertices, {graph.edge_count:,} directed edges"
    heads = ["ranks", "uneven", "ghosts", "MB", "rows, all", "rows, ms"]
    heads += [f"k = {k}, {form}" for k in widths for form in ("all", "ms")]
    rows = []
    for line in lines:
        told = [f"{line['ranks']:,}", f"{line['uneven']:.2f}"]
        names = ("ghosts", "rank_mb", "all_rows", "ms_rows")
        told += [_short(line[n]) for n in names]
        for k in widths:
            told += [_on_links(line[f"{form}_k{k}_ms"]) for form in ("all", "ms")]
        rows.append(told)
    text = f"\n## {name}\n\n{edges}.\n\n{markdown_table(heads, rows)}\n"
    if "vr_rows" in lines[0]:
        heads = ["ranks", "rows, all", "ms", "vr", "all", "ms ", "vr "]
        count, rows = lines[0]["supersteps"], []
        for line in lines:
            sent = [count * line[f"{form}_rows"] for form in ("all", "ms")]
            told = [f"{line['ranks']:,}", *map(_short, (*sent, line["vr_rows"]))]
            told += [_on_links(line[f"search_{f}_ms"]) for f in ("all", "ms", "vr")]
            rows.append(told)
        text += f"\nA search of {count} supersteps:\n\n{markdown_table(heads, rows)}\n"
    return text


def _on_links(milliseconds: list[float]) -> str:
    return " / ".join(map(_short, milliseconds))


def _short(value: float) -> str:
    """Return three digits, or all of those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
