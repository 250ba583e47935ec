"""Gathers along in-edges, out-edges and both, of graphs of either kind."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, signed


@fg.gather(into="sent", combine="sum", along="out")
def weigh_targets(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fg.gather(into="near", combine="argmin", along="out")
def nearest_target(f, u, v, e, d):
    return d.x[u, f] if d.x[u, f] > d.least else fg.nothing


@fg.vertex
def take_targets(f, v, d):
    d.first[v, f] = d.near_source[v, f]
    d.x_next[v, f] = (d.x[v, f] + d.sent[v, f]) % 101
    return d.sent[v, f] % 3 != 0


def _targets_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    return {
        "x": fg.vertex_property(signed(rng, count, k, dtype=np.int64), iterated=True),
        "first": fg.vertex_property(np.zeros((count, k), np.int32)),
        "weight": fg.edge_property(signed(rng, edge_count(graph))),
        "least": -8,
    }


# All three in one foldmap, and an edge property that tells the directions apart


@fg.gather(into="ins", combine="sum")
def from_sources(f, u, v, e, d):
    return d.flow[e, f] * (1 + d.x[u, f]) + d.x[v, f]


@fg.gather(into="outs", combine="sum", along="out")
def from_targets(f, u, v, e, d):
    return d.flow[e, f] * (2 + d.x[u, f]) - d.x[v, f]


@fg.gather(into="all", combine="sum", along="both")
def from_all(f, u, v, e, d):
    return d.flow[e, f] * (3 + d.x[u, f])


@fg.gather(into="far", combine="argmax", along="both")
def farthest(f, u, v, e, d):
    return d.x[u, f] // 4


@fg.vertex
def keep_all(f, v, d):
    d.in_sum[v, f] = d.ins[v, f]
    d.out_sum[v, f] = d.outs[v, f]
    d.sum[v, f] = d.all[v, f]
    d.last[v, f] = d.far_source[v, f]
    return d.all[v, f] % 2 == 0


def _all_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    count, edges = graph.vertex_count, edge_count(graph)
    if not graph.directed:
        edges *= 2
    sums = {
        name: fg.vertex_property(np.zeros((count, k), np.int64))
        for name in ("in_sum", "out_sum", "sum")
    }
    return sums | {
        "x": fg.vertex_property(signed(rng, count, k)),
        "last": fg.vertex_property(np.zeros((count, k), np.int32)),
        "flow": fg.edge_property(signed(rng, edges, k)),
    }


# Weak components, whichever way the edges go


@fg.gather(into="low", combine="min", along="both")
def lowest_near(f, u, v, e, d):
    return d.comp[u, f]


@fg.vertex
def adopt(f, v, d):
    d.comp_next[v, f] = min(d.comp[v, f], d.low[v, f])
    return d.low[v, f] < d.comp[v, f]


def _component_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    names = [rng.permutation(graph.vertex_count) for _ in range(k)]
    comp = np.stack(names, axis=1).astype(np.int32)
    return {"comp": fg.vertex_property(comp, iterated=True)}


PROGRAMS = (
    BankProgram(
        "along_out",
        (fg.foldmap(weigh_targets, nearest_target, take_targets),),
        _targets_state,
        widths=(4, 33),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "along_all",
        (fg.foldmap(from_sources, from_targets, from_all, farthest, keep_all),),
        _all_state,
        widths=(3,),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "along_both",
        (fg.foldmap(lowest_near, adopt),),
        _component_state,
        widths=(2,),
        exact=True,
    ),
)
