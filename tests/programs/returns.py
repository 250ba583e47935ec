"""Functions that return in the middle: behind collaborative calls, or behind writes.

Behind a collaborative call of its own, a return of a gather or reduce is the same for
all features, and what is given stands for all of them: ``fg.nothing``, a value of the
edge, or each feature's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, signed


def larger(a, b):
    return a if a > b else b


@fg.gather(into="heard", combine="sum")
def hear_others(f, u, v, e, d):
    if fg.all_features(d.x[u, f] > d.x[v, f]):
        return fg.nothing
    return d.x[u, f]


@fg.gather(into="nearest", combine="argmin")
def nearest_open(f, u, v, e, d):
    if fg.argmax(d.n[u, f]) > 0:
        return fg.nothing if d.open[e] else d.weight[e]
    if d.n[u, f] > 15:
        return fg.nothing
    return d.n[u, f]


@fg.gather(into="widest", combine=fg.combine(larger, identity=-1000))
def widest_open(f, u, v, e, d):
    total = fg.feature_sum(d.n[u, f])
    if d.open[e]:
        if total > 5:
            return d.weight[e]
        difference = d.n[u, f] - d.n[v, f]
    else:
        if total < -5:
            return -7
        difference = d.n[u, f]
    return difference


@fg.gather(into="agreed", combine="any")
def agree(f, u, v, e, d):
    matches = fg.any_feature(d.x[u, f] == d.x[v, f])
    return fg.nothing if matches and d.n[u, f] > 3 else matches


@fg.reduce(into="most", combine="max")
def open_most(f, v, d):
    if fg.feature_min(d.n[v, f]) < -15:
        return fg.nothing
    return d.n[v, f]


@fg.vertex
def keep_heard(f, v, d):
    d.y[v, f] = d.heard[v, f]
    d.key[v, f] = d.nearest[v, f]
    d.source[v, f] = d.nearest_source[v, f]
    d.wide[v, f] = d.widest[v, f]
    d.yes[v, f] = d.agreed[v, f]
    return d.agreed[v, f]


@fg.gather(into="got", combine="sum")
def take_nested(f, u, v, e, d):
    total = fg.feature_sum(d.n[u, f])
    if d.open[e]:
        if total > 5:
            return fg.nothing
        most = fg.feature_max(d.n[u, f] - d.n[v, f])
        return most if most > 2 else d.n[u, f]
    least = fg.feature_min(d.n[u, f])
    return least - total


@fg.vertex
def settle_nested(f, v, d):
    total = fg.feature_sum(d.n[v, f])
    if d.turns[v] > 2:
        if total > 5:
            return False
        most = fg.feature_max(d.n[v, f] + d.got[v, f])
        d.y[v, f] = most
        return most > 3
    for i in range(int(d.turns[v])):
        total = fg.feature_sum(d.n[v, f] * (i + 1))
        d.y[v, f] = total
    return fg.any_feature(d.y[v, f] > 2)


@fg.vertex
def write_some(f, v, d):
    if d.turns[v] < 1:
        return False
    if d.n[v, f] > 0:
        d.n_next[v, f] = d.n[v, f] - 1
    return d.turns[v] > 3


@fg.vertex
def count_some(f, v, d):
    if d.turns[v] > 5:
        return False
    if d.n[v, f] < 0:
        d.seen_next[v, f] = d.n_next[v, f]
    return True


def _some_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "n": fg.vertex_property(signed(rng, v, k), iterated=True),
        "seen": fg.vertex_property(signed(rng, v, k), iterated=True),
        "turns": fg.vertex_property(rng.integers(0, 8, v).astype(np.int32)),
    }


@fg.vertex
def double(f, v, d):
    d.x_next[v, f] = 2 * d.x[v, f]
    return d.x[v, f] != 3


@fg.gather(into="doubled", combine="sum")
def doubled_around(f, u, v, e, d):
    return d.x_next[u, f]


@fg.vertex
def keep_some(f, v, d):
    d.y[v, f] = d.doubled[v, f]
    return d.doubled[v, f] > d.floor


@fg.edge
def doubled_along(f, u, v, e, d):
    d.way[e, f] = d.x_next[u, f]
    return True


@fg.gather(into="ways", combine="sum")
def ways_here(f, u, v, e, d):
    return d.way[e, f]


@fg.vertex
def keep_ways(f, v, d):
    d.y[v, f] += d.ways[v, f]
    return d.ways[v, f] > d.floor


def _doubled_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph) * (1 if graph.directed else 2)
    return {
        "x": fg.vertex_property(signed(rng, v, k), iterated=True),
        "y": fg.vertex_property(np.zeros((v, k), np.int32)),
        "way": fg.edge_property(np.zeros((e, k), np.int32)),
        "floor": 4,
    }


def _nested_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph)
    return {
        "n": fg.vertex_property(signed(rng, v, k)),
        "turns": fg.vertex_property(rng.integers(0, 6, v).astype(np.int32)),
        "open": fg.edge_property(rng.random(e) < 0.5),
        "y": fg.vertex_property(np.zeros((v, k), np.int32)),
    }


def _heard_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph)
    zeros = np.zeros((v, k), np.int32)
    return {
        "x": fg.vertex_property(rng.integers(0, 4, (v, k)).astype(np.float32)),
        "n": fg.vertex_property(signed(rng, v, k)),
        "weight": fg.edge_property(signed(rng, e)),
        "open": fg.edge_property(rng.random(e) < 0.5),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "key": fg.vertex_property(zeros),
        "source": fg.vertex_property(zeros),
        "wide": fg.vertex_property(zeros),
        "yes": fg.vertex_property(np.zeros((v, k), np.bool_)),
    }


PROGRAMS = (
    BankProgram(
        "returns",
        (
            fg.foldmap(
                hear_others, nearest_open, widest_open, agree, keep_heard, open_most
            ),
        ),
        _heard_state,
        widths=(3, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "undone_writes",
        (fg.foldmap(write_some, count_some),),
        _some_state,
        widths=(1, 3, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "dropped_later",
        (
            fg.foldmap(double, doubled_around, keep_some),
            fg.foldmap(double, doubled_along, ways_here, keep_ways),
        ),
        _doubled_state,
        widths=(1, 3, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "nested_returns",
        (fg.foldmap(take_nested, settle_nested),),
        _nested_state,
        widths=(3, 17),
        exact=True,
        iterable=False,
    ),
)
