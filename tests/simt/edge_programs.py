"""Edge functions for the tests of CUDA kernels: atomics, several, messages."""

from __future__ import annotations

import math

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import edge, floats, scalar, signed, vertex


@fn.edge
def count_and_lower(f, u, v, e, d):
    if d.i[u, f] < -3:
        return False
    fg.atomic.add(d.visits, (v, f), 1)
    fg.atomic.add(d.mass, (v, f), d.i[u, f] * d.half)
    fg.atomic.min(d.least, (v, f), d.i[u, f])
    fg.atomic.max(d.most, (u, f), d.i[v, f])
    return True


@fn.edge
def mark_edge(f, u, v, e, d):
    d.mark_next[e, f] = d.mark[e, f] + d.i[u, f] + d.tag[e]
    return d.i[u, f] + d.i[v, f] > 8


@fn.edge
def tag_edge(f, u, v, e, d):
    d.tag_next[e] = d.tag[e] + u
    return u != v


def atomics_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    return {
        "i": vertex(signed(rng, count, k)),
        "half": scalar(0.5),
        "visits": vertex(np.zeros((count, k), np.int32)),
        "mass": vertex(np.zeros((count, k))),
        "least": vertex(np.full((count, k), 100, np.int32)),
        "most": vertex(np.full((count, k), -100, np.int32)),
        "mark": edge(signed(rng, edges, k), True),
        "tag": edge(signed(rng, edges), True),
    }


@fg.collaborative
def log_normalize(x):
    top = fg.feature_max(x)
    return x - top - math.log(fg.feature_sum(math.exp(x - top)))


@fn.edge
def message(f, u, v, e, d):
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    top = fg.feature_max(cavity)
    mixed = fg.matvec(d.psi[e], math.exp(cavity - top), transpose=u > v)
    m = log_normalize(math.log(mixed) + top)
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fn.gather(into="total", combine="sum")
def messages(f, u, v, e, d):
    return d.msg_next[e, f]


@fn.vertex
def believe(f, v, d):
    d.belief_next[v, f] = d.phi[v, f] + d.total[v, f]
    return True


def message_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    phi = np.log(floats(rng, count, k))
    return {
        "phi": vertex(phi),
        "belief": vertex(phi, True),
        "msg": edge(np.log(floats(rng, 2 * edges, k)), True),
        "psi": edge(floats(rng, edges, k, k)),
        "epsilon": scalar(0.5),
    }


# -- as given, or the twin


@fn.gather(into="sides", combine="sum")
def sides(f, u, v, e, d):
    return d.x[u, f] if fg.is_twin(e) else -8 * d.x[u, f]


@fn.vertex
def keep_sides(f, v, d):
    d.y[v, f] = d.sides[v, f]
    return True


@fn.edge
def turn(f, u, v, e, d):
    d.side_next[e, f] = fg.matvec(d.psi[e], d.x[u, f], transpose=fg.is_twin(e))
    return fg.is_twin(fg.reverse(e))


def twin_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    return {
        "x": vertex(signed(rng, count, k).astype(np.float64)),
        "y": vertex(np.zeros((count, k))),
        "psi": edge(floats(rng, edges, k, k)),
        "side": edge(floats(rng, 2 * edges, k), True),
    }
