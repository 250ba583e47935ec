"""Gathers with every combine, and the types that meet in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, floats, signed

# Weighted sum, written in place


@fg.gather(into="total", combine="sum")
def weighted(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fg.vertex
def keep_total(f, v, d):
    d.y[v, f] = d.total[v, f]
    return True


def _weighted_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(floats(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "weight": fg.edge_property(floats(rng, edge_count(graph))),
    }


# Min, max, argmin, argmax with ties; fg.nothing; integers and floats


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="high", combine="max")
def highest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="first", combine="argmin")
def nearest(f, u, v, e, d):
    return d.x[u, f] + d.cost[e] if d.x[u, f] > d.floor else fg.nothing


@fg.gather(into="last", combine="argmax")
def farthest(f, u, v, e, d):
    if d.x[u, f] < d.floor:
        return fg.nothing
    return d.x[u, f] + d.cost[e]


@fg.vertex
def keep_extremes(f, v, d):
    if d.first_source[v, f] >= 0:
        d.keys[v, f] = d.first[v, f]
    if d.last_source[v, f] >= 0:
        d.tops[v, f] = d.last[v, f]
    d.nearest[v, f] = d.first_source[v, f]
    d.farthest[v, f] = d.last_source[v, f]
    d.x_next[v, f] = max(min(d.x[v, f], d.low[v, f]), min(d.high[v, f], d.cap))
    return d.first_source[v, f] >= 0 or d.x_next[v, f] != d.x[v, f]


def _extremes_state(dtype: Any) -> Callable[[Any, int, Rng], dict[str, Any]]:
    def make(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
        v = graph.vertex_count
        one = np.dtype(dtype).type(1).item()
        return {
            "x": fg.vertex_property(signed(rng, v, k, dtype=dtype), iterated=True),
            "cost": fg.edge_property(
                rng.integers(0, 3, edge_count(graph)).astype(dtype)
            ),
            "keys": fg.vertex_property(np.zeros((v, k), dtype)),
            "tops": fg.vertex_property(np.zeros((v, k), dtype)),
            "nearest": fg.vertex_property(np.zeros((v, k), np.int32)),
            "farthest": fg.vertex_property(np.zeros((v, k), np.int32)),
            "floor": one * 0,
            "cap": one * 9,
        }

    return make


# Any, bool properties


@fg.gather(into="touched", combine="any")
def marked(f, u, v, e, d):
    return d.mark[u, f] and d.open[e]


@fg.vertex
def spread(f, v, d):
    d.mark_next[v, f] = d.mark[v, f] or d.touched[v, f]
    return not d.mark[v, f] and d.touched[v, f]


@fg.gather(into="closed", combine="all")
def within(f, u, v, e, d):
    return d.mark[u, f] or not d.open[e]


@fg.gather(into="loose", combine="all")
def all_open(f, u, v, e, d):
    return d.open[e]


@fg.vertex
def keep_votes(f, v, d):
    d.inside[v, f] = d.closed[v, f] or (d.touched[v, f] and not d.loose[v])
    return not d.closed[v, f]


@fg.reduce(into="agreed", combine="all")
def all_marked(f, v, d):
    return d.mark[v, f] or not d.inside[v, f]


def _all_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "mark": fg.vertex_property(rng.random((v, k)) < 0.9),
        "inside": fg.vertex_property(np.zeros((v, k), np.bool_)),
        "open": fg.edge_property(rng.random(edge_count(graph)) < 0.5),
    }


def _any_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    mark = rng.random((graph.vertex_count, k)) < 0.1
    return {
        "mark": fg.vertex_property(mark, iterated=True),
        "open": fg.edge_property(rng.random(edge_count(graph)) < 0.8),
    }


# Any one contribution will do: all of them are the same


@fg.gather(into="least", combine="min", first=True)
def offer(f, u, v, e, d):
    return d.level[v, f] + 1 if d.mark[u, f] and d.open[e] else fg.nothing


@fg.gather(into="most", combine="argmax", first=True)
def offer_from(f, u, v, e, d):
    return d.bonus[v] if d.mark[u, f] and d.open[e] else fg.nothing


@fg.vertex
def unmarked(f, v, d):
    return not d.mark[v, f]


@fg.vertex
def take_offer(f, v, d):
    if d.mark[v, f] or d.most_source[v, f] < 0:
        return False
    d.mark_next[v, f] = True
    d.level_next[v, f] = d.least[v, f]
    d.won_next[v, f] = d.most[v, f]
    return True


def _first_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        **_any_state(graph, k, rng),
        "level": fg.vertex_property(signed(rng, v, k), iterated=True),
        "bonus": fg.vertex_property(floats(rng, v)),
        "won": fg.vertex_property(np.zeros((v, k), np.float32), iterated=True),
    }


# Contributions of active sources only, and of all


@fg.gather(into="news", combine="sum", sources="active")
def tell(f, u, v, e, d):
    return d.level[u, f] * 2 + 1


@fg.gather(into="nearest", combine="argmin", sources="active")
def nearest_active(f, u, v, e, d):
    return d.size[u] if d.open[e] else fg.nothing


@fg.gather(into="heard", combine="sum")
def tell_all(f, u, v, e, d):
    return d.level[u, f]


@fg.vertex
def note_news(f, v, d):
    d.level_next[v, f] = (d.news[v, f] - d.heard[v, f]) % 64
    d.source_next[v] = d.nearest_source[v]
    return d.news[v, f] % 3 > 0 or d.nearest_source[v] > d.source[v]


def _active_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "open": fg.edge_property(rng.random(edge_count(graph)) < 0.8),
        "level": fg.vertex_property(signed(rng, v, k), iterated=True),
        "size": fg.vertex_property(signed(rng, v, dtype=np.float32)),
        "source": fg.vertex_property(np.full(v, -1, np.int32), iterated=True),
    }


# Product and a combine of one's own


def larger_magnitude(a, b):
    return a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b


@fg.gather(into="product", combine="product")
def factors(f, u, v, e, d):
    return 1 + d.rate[e] * d.x[u, f]


@fg.gather(into="peak", combine=fg.combine(larger_magnitude, identity=0.0))
def peaks(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def keep_product(f, v, d):
    d.y[v, f] = d.product[v, f]
    d.z[v, f] = d.peak[v, f]
    return d.peak[v, f] > 0


def _product_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(signed(rng, v, k, dtype=np.float32) / 32),
        "rate": fg.edge_property(floats(rng, edge_count(graph)) / 8),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "z": fg.vertex_property(np.zeros((v, k), np.float32)),
    }


# Two gathers of one width, one of which reads its target, and a vertex function


@fg.gather(into="out", combine="sum")
def outflow(f, u, v, e, d):
    return d.weight[e, f] * d.x[u, f]


@fg.gather(into="top", combine="max")
def topmost(f, u, v, e, d):
    return d.x[u, f] - d.x[v, f]


@fg.vertex
def diffuse(f, v, d):
    new = d.x[v, f] + 0.125 * d.out[v, f] / (1 + d.in_degree[v])
    if d.in_degree[v] > 0:
        new = new + 0.0625 * d.top[v, f]
    d.x_next[v, f] = new
    return d.in_degree[v] > 0


def _two_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "x": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True),
        "weight": fg.edge_property(floats(rng, edge_count(graph), k)),
    }


# Integer properties in float arithmetic


@fg.gather(into="mean", combine="sum")
def count_weighted(f, u, v, e, d):
    return d.small[u, f] * d.scale[e] / d.out_degree[u]


@fg.vertex
def mix(f, v, d):
    d.y[v, f] = d.mean[v, f] / 3 + d.wide[v] * 0.5 - d.small[v, f] // 2
    d.tally[v, f] = d.small[v, f] * d.small[v, f] + d.wide[v] % 7 + d.flag[v] * 2
    d.visits[v, f] = int(d.y[v, f] * 0) + f + d.offset
    return d.tally[v, f] % 2 == 0


def _mixed_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "small": fg.vertex_property(signed(rng, v, k, dtype=np.int8)),
        "wide": fg.vertex_property(signed(rng, v, dtype=np.int64)),
        "flag": fg.vertex_property(rng.random(v) < 0.5),
        "scale": fg.edge_property(
            rng.integers(1, 5, edge_count(graph)).astype(np.uint32)
        ),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "tally": fg.vertex_property(np.zeros((v, k), np.int32)),
        "visits": fg.vertex_property(np.zeros((v, k), np.uint8)),
        "offset": 3,
    }


# Integer sums: exact in any order


@fg.gather(into="total", combine="sum")
def integer_sum(f, u, v, e, d):
    return d.x[u, f] * d.visits[e]


@fg.vertex
def keep_integer(f, v, d):
    d.x_next[v, f] = d.total[v, f] % 1000
    return d.total[v, f] % 2 == 1


def _integer_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(signed(rng, v, k, dtype=np.int64), iterated=True),
        "visits": fg.edge_property(
            rng.integers(0, 9, edge_count(graph)).astype(np.int16)
        ),
    }


_EXTREMES = fg.foldmap(lowest, highest, nearest, farthest, keep_extremes)

PROGRAMS = (
    BankProgram(
        "unanimous",
        (fg.foldmap(within, all_open, marked, keep_votes, all_marked),),
        _all_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "weighted_sum",
        (fg.foldmap(weighted, keep_total),),
        _weighted_state,
        iterable=False,
    ),
    BankProgram(
        "extremes_int32",
        (_EXTREMES,),
        _extremes_state(np.int32),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "extremes_float32",
        (_EXTREMES,),
        _extremes_state(np.float32),
        exact=True,
        iterable=False,
    ),
    BankProgram("reachability", (fg.foldmap(marked, spread),), _any_state, exact=True),
    BankProgram(
        "active_sources",
        (fg.foldmap(tell, nearest_active, tell_all, note_news),),
        _active_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "first",
        (fg.foldmap(unmarked, offer, offer_from, take_offer),),
        _first_state,
        exact=True,
    ),
    BankProgram(
        "product_and_custom",
        (fg.foldmap(factors, peaks, keep_product),),
        _product_state,
        iterable=False,
    ),
    BankProgram(
        "two_gathers",
        (fg.foldmap(outflow, topmost, diffuse),),
        _two_state,
        iterable=False,
    ),
    BankProgram(
        "mixed_types", (fg.foldmap(count_weighted, mix),), _mixed_state, iterable=False
    ),
    BankProgram(
        "integer_sum",
        (fg.foldmap(integer_sum, keep_integer),),
        _integer_state,
        exact=True,
        iterable=False,
    ),
)
