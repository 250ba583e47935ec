"""Small matrices of all kinds, for the kernels that hold them in registers."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import Case, edge, floats, scalar, signed, vertex


@fn.gather(into="mean", combine="sum")
def means(f, u, v, e, d):
    return d.x[u, f] / d.in_degree[v]


@fn.gather(into="skew", combine="sum", matrix=True)
def skews(i, f, u, v, e, d):
    return d.w[e] * fg.outer(d.x[u], d.y[u])[i, f] / 16


@fn.gather(into="spread", combine="sum", matrix=True)
def spreads(i, f, u, v, e, d):
    return (d.x[u, i] - d.y[u, i]) * (d.x[u, f] - d.y[u, f]) * d.w[e]


@fn.gather(into="lowest", combine="min", matrix=True)
def lowests(i, f, u, v, e, d):
    return d.x[u, i] - d.y[v, f] if u > v else fg.nothing


@fn.vertex
def solve_all(f, v, d):
    x = fg.solve(d.skew[v] + d.spread[v], d.mean[v, f], diagonal=4.0)
    y = fg.solve(d.spread[v], d.y[v, f], diagonal=d.ridge, spd=True)
    d.z[v, f] = x + y
    if x > 0.25:
        return False
    d.z[v, f] = x - y
    return True


@fn.vertex
def look_up(f, v, d):
    d.t[v, f] = fg.matvec(d.spread[v], d.x[v, f]) + max(d.lowest[v, 0, f], -8.0)
    return fg.any_feature(d.t[v, f] > 0)


@fn.reduce(into="gram", combine="sum", matrix=True)
def grams(i, f, v, d):
    return d.x[v, i] * d.y[v, f]


@fn.reduce(into="gram", combine="sum", matrix=True)
def distances(i, f, v, d):
    return abs(d.x[v, i] - d.y[v, f])


@fn.vertex
def look_up_gram(f, v, d):
    d.t[v, f] = fg.matvec(d.gram, d.x[v, f])
    return fg.any_feature(d.t[v, f] > 0)


def held_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(floats(rng, count, k)),
        "y": vertex(signed(rng, count, k)),
        "z": vertex(np.zeros((count, k))),
        "t": vertex(np.zeros((count, k))),
        "w": edge(floats(rng, graph.given_edge_count)),
        "ridge": scalar(0.5),
    }


HELD_CASES = (
    Case("solves", (means, skews, spreads, solve_all), held_state, widest=8),
    Case("looks_up", (spreads, lowests, look_up), held_state, widest=8),
    Case(
        "solves_and_looks_up",
        (means, skews, spreads, lowests, solve_all, look_up),
        held_state,
        widest=8,
    ),
)
#: A matrix of all vertices: the threads of a block have tiles of it, or elements.
REDUCED = Case("reduces", (grams, look_up_gram), held_state, widest=16)
DISTANCES = Case("distances", (distances, look_up_gram), held_state, widest=16)
