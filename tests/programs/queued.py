"""Programs whose supersteps can run in a compiled loop (0018): every form of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import Rng, edge_count, signed
from tests.programs.traversal import UNSEEN, bfs_state, settle, unseen

# A search: a filter that only reads, any one source will do


@fg.gather(into="best", combine="argmin", sources="active", first=True)
def closest(f, u, v, e, d):
    return d.level[u, f] if d.level[u, f] < UNSEEN else fg.nothing


# Paths: keys of 64 bits, other lengths each way; what is written, and then dropped


@fg.gather(into="way", combine="argmin", sources="active")
def ways(f, u, v, e, d):
    return d.distance[u, f] + d.length[e]


@fg.vertex
def shorten(f, v, d):
    d.previous_next[v, f] = d.way_source[v, f]
    if d.way[v, f] >= d.distance[v, f]:
        return False
    d.distance_next[v, f] = d.way[v, f]
    return True


def paths_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    directions = 1 if graph.directed else 2
    length = rng.integers(0, 9, directions * edge_count(graph)) / 8
    distance = np.full((graph.vertex_count, k), np.inf)
    distance[rng.integers(0, graph.vertex_count, k), np.arange(k)] = 0
    return {
        "distance": fg.vertex_property(distance, iterated=True),
        "previous": fg.vertex_property(np.full(distance.shape, -1), iterated=True),
        "length": fg.edge_property(length, per_direction=not graph.directed),
    }


# Peeling: counts, a filter that writes in place, along edges both ways, no features


@fg.vertex
def count_visits(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.rest[v] > 0


@fg.gather(into="lost", combine="sum", sources="active", along="both")
def fallen(f, u, v, e, d):
    return 1 if d.rest[u] < 0 else 0


@fg.gather(into="stops", combine="any", sources="active", along="both")
def stopped(f, u, v, e, d):
    return d.is_wall[u]


@fg.vertex
def fall(f, v, d):
    if d.stops[v]:
        return False
    d.degree[v] = d.degree[v] - d.lost[v]
    d.rest_next[v] = d.degree[v] - d.least
    return d.degree[v] < d.least


def peeling_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    degree = (graph.in_degree + graph.out_degree).astype(np.int64)
    least = int(rng.integers(0, 5))
    rest = np.where(rng.random(graph.vertex_count) < 0.2, -1, 1)
    return {
        "degree": fg.vertex_property(degree),
        "rest": fg.vertex_property(rest, iterated=True),
        "visits": fg.vertex_property(np.zeros(graph.vertex_count, np.int64)),
        "is_wall": fg.vertex_property(rng.random(graph.vertex_count) < 0.05),
        "least": least,
    }


# Largest keys first, along out-edges; twins told apart; two vertex functions behind


@fg.gather(into="high", combine="max", sources="active", along="out")
def widest(f, u, v, e, d):
    return min(d.width[u, f], d.cap[e])


@fg.vertex
def widen(f, v, d):
    d.width_next[v, f] = d.high[v, f]
    return d.high[v, f] > d.width[v, f]


@fg.vertex
def within(f, v, d):
    return d.is_open[v]


def widths_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    width = np.full((count, k), -1, np.int32)
    width[rng.integers(0, count, k), np.arange(k)] = 40
    directions = 1 if graph.directed else 2
    cap = abs(signed(rng, directions * edge_count(graph))) * 2
    return {
        "width": fg.vertex_property(width, iterated=True),
        "cap": fg.edge_property(cap, per_direction=not graph.directed),
        "is_open": fg.vertex_property(rng.random(count) < 0.9),
    }


# Rising: one source is enough, and vertices that have risen go on to rise, while others
# read how high they stood


@fg.vertex
def is_low(f, v, d):
    return d.height[v, f] < d.top[v]


@fg.gather(into="lifted", combine="any", sources="active")
def lifts(f, u, v, e, d):
    return d.height[u, f] % 3 != 1


@fg.vertex
def rise(f, v, d):
    if not d.lifted[v, f]:
        return False
    d.height_next[v, f] = d.height[v, f] + 1
    return True


def rising_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    height = rng.integers(0, 3, (graph.vertex_count, k))
    return {
        "height": fg.vertex_property(height, iterated=True),
        "top": fg.vertex_property(rng.integers(0, 9, graph.vertex_count)),
    }


#: Name -> foldmap, what makes its State, the key of near and far, and k.
QUEUED: dict[str, tuple[Any, Any, str | None, int]] = {
    "search": (fg.foldmap(unseen, closest, settle), bfs_state, None, 3),
    "paths": (fg.foldmap(ways, shorten), paths_state, "distance", 2),
    "peeling": (
        fg.foldmap(count_visits, fallen, stopped, fall), peeling_state, None, 1,
    ),
    "rising": (fg.foldmap(is_low, lifts, rise), rising_state, None, 1),
    "widths": (fg.foldmap(widest, widen, within), widths_state, "width", 2),
}  # fmt: skip
