"""Gathers along out-edges and along both, for the tests of generated CUDA kernels."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import Case, edge, floats, signed, vertex


@fn.gather(into="sent", combine="sum", along="out")
def weigh_targets(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fn.gather(into="near", combine="argmin", along="out")
def nearest_target(f, u, v, e, d):
    return d.i[u, f]


@fn.vertex
def take_targets(f, v, d):
    d.x_next[v, f] = d.x[v, f] + d.sent[v, f]
    d.first[v, f] = d.near_source[v, f]
    return d.near_source[v, f] % 3 != 1


@fn.gather(into="shared", combine="sum", along="both")
def shares_of_all(f, u, v, e, d):
    return d.flow[e, f] * fg.normalize(d.x[u, f])


@fn.gather(into="ins", combine="sum")
def from_sources(f, u, v, e, d):
    return d.flow[e, f] * d.i[u, f]


@fn.vertex
def keep_both(f, v, d):
    d.y[v, f] = d.shared[v, f] - d.ins[v, f]
    return d.ins[v, f] > 0


def along_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    return {
        "x": vertex(floats(rng, count, k), True),
        "i": vertex(signed(rng, count, k)),
        "weight": edge(floats(rng, edges)),
        "first": vertex(np.zeros((count, k), np.int32)),
    }


def flow_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    return {
        "x": vertex(floats(rng, count, k)),
        "i": vertex(signed(rng, count, k)),
        "flow": edge(floats(rng, edges if graph.directed else 2 * edges, k)),
        "y": vertex(np.zeros((count, k))),
    }


ALONG_CASES = (
    Case(
        "along_out",
        (weigh_targets, nearest_target, take_targets),
        along_state,
        pushes=True,
    ),
    Case(
        "along_twins",
        (weigh_targets, nearest_target, take_targets),
        along_state,
        undirected=True,
    ),
    Case(
        "along_both", (shares_of_all, from_sources, keep_both), flow_state, pushes=True
    ),
)
