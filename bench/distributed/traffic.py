"""Exact traffic of partitions: rows of ranks that are kept and sent, all active.

A line for each graph, order, layout and number of ranks. `trials_ms` are those of
counting alone; choosing the cuts, and the order, stands apart. Up to `CHECKED` ranks,
counts of ranges are compared with those of the shards themselves.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from bench.graphs import SEED, make_graph
from bench.record import Recorder
from featgraph.cli.forecast import rank_counts
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.shard import make_shards
from featgraph.ranks.cost.forecast import Counts, block_columns, count_traffic

DEFAULTS = {
    "graph": ["graph500-17"],
    "k": [1],
    "repeat": 1,
    "ranks": [4, 64, 512],
    "layouts": "range,grid",
    "orders": "given",
    "balance": [1.0, 8.0, 0.0],
}
#: Most ranks whose shards are made for a check.
CHECKED = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=rank_counts, help="2,4,8 or 2..1024")
    parser.add_argument("--layouts", help="of range and grid, by commas")
    parser.add_argument(
        "--orders", help="given, spread, locality, metis, random, by commas"
    )
    parser.add_argument("--balance", type=float, nargs=3)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Count for every graph, order, number of ranks and layout."""
    for name in arguments.graph:
        named = make_graph(name)
        for order in arguments.orders.split(","):
            for parts in arguments.ranks:
                begun = time.perf_counter()
                partition = choose_partition(
                    named.graph,
                    _order(named.graph, order),
                    parts,
                    balance=tuple(arguments.balance),
                )
                chosen = time.perf_counter() - begun
                for layout in arguments.layouts.split(","):
                    columns = block_columns(parts) if layout == "grid" else 1
                    counts, taken = _counted(
                        named.graph, partition, columns, arguments.repeat
                    )
                    recorder.add(
                        layout,
                        taken,
                        order=order,
                        balance=arguments.balance,
                        choosing_ms=round(chosen * 1e3, 1),
                        checks=_check(named.graph, partition, counts),
                        graph=named.describe(),
                        **_figures(counts, arguments.k[0]),
                    )


def _order(graph: Any, name: str) -> Any:
    if name == "random":
        return np.random.default_rng(SEED).permutation(graph.vertex_count)
    return name


def _counted(
    graph: Any, partition: Any, columns: int, repeat: int
) -> tuple[Counts, list[float]]:
    taken = []
    for _ in range(repeat):
        begun = time.perf_counter()
        counts = count_traffic(graph, partition, columns)
        taken.append((time.perf_counter() - begun) * 1e3)
    return counts, taken


def _figures(counts: Counts, k: int) -> dict[str, Any]:
    """Return the columns of the table; rows have `k` float32."""
    count = counts.vertex_count
    share = count / counts.parts
    memory = counts.memory_bytes(4 * k)
    return {
        "ranks": counts.parts,
        "grid": f"{counts.rows}x{counts.columns}",
        "k": k,
        "uneven_edges": counts.edges.max() / counts.edges.mean(),
        "uneven_vertices": counts.own.max() / share,
        "all_v": counts.rows_all / count,
        "ms_v": counts.rows_ms / count,
        "largest_halo": (counts.ghosts + counts.partials).max() / share,
        "most_sent": counts.sent.max() / share,
        "most_memory_mb": memory.max() / 1e6,
        "mean_memory_mb": memory.mean() / 1e6,
    }


def _check(graph: Any, partition: Any, counts: Counts) -> dict[str, Any]:
    """Compare with the shards, or at least with the whole."""
    wrong = int(counts.edges.sum() != graph.edge_count)
    wrong += int(counts.sent.sum() != counts.received.sum())
    if counts.columns == 1 and counts.parts <= CHECKED:
        for shard in make_shards(graph, partition):
            sent = sum(listed.size for listed in shard.send_lists)
            found = (shard.local.edge_count, shard.numbers.size - shard.own, sent)
            here = (counts.edges, counts.ghosts, counts.sent)
            wrong += int(found != tuple(int(of[shard.rank]) for of in here))
    return {"ok": not wrong, "wrong": wrong}
