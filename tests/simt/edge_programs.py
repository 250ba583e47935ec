"""Edge functions for the tests of CUDA kernels: atomics, several, messages."""

from __future__ import annotations

import math

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import edge, floats, loose, scalar, signed, vertex


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


# -- a matrix that belongs to no edge


@fn.edge
def say(f, u, v, e, d):
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    x = math.exp(cavity - fg.feature_max(cavity))
    m = math.log(fg.matvec(d.psi, x, transpose=fg.is_twin(e)))
    likeliest = fg.matvec(d.bonus, cavity, semiring="max_plus")
    m = log_normalize(m) + likeliest / (1 + abs(likeliest))
    d.msg_next[e, f] = m + fg.matvec(d.psi, cavity, semiring="log_plus") / 64
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fn.edge
def say_plainly(f, u, v, e, d):
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    x = math.exp(cavity - fg.feature_max(cavity))
    m = math.log(fg.matvec(d.psi, x))
    m = m - fg.feature_max(m)
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fn.edge
def say_to_others(f, u, v, e, d):
    if u == v:
        return False
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    m = fg.matvec(d.psi, cavity, semiring="log_plus")
    m = m - fg.feature_max(m)
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


def say_state(graph, k, rng):
    given = message_state(graph, k, rng)
    return {**given, "psi": loose(floats(rng, k, k)), "bonus": loose(signed(rng, k, k))}


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


@fn.vertex
def speak(f, v, d):
    d.calls[v, f] = d.calls[v, f] + 1
    return d.voice[v, f] > -8


@fn.edge
def answer(f, u, v, e, d):
    if d.voice[u, f] % 3 == 0:
        return False
    d.note_next[e, f] = d.voice[u, f] - d.note[fg.reverse(e), f] + d.note[e, f]
    return (d.voice[u, f] + v) % 5 == 0


@fn.edge
def stamp(f, u, v, e, d):
    d.stamps_next[e] = d.stamps[e] + 1
    d.trips[e] = d.trips[e] + 1
    return u % 5 != v % 5


@fn.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):
    return d.note_next[e, f] + d.stamps_next[e]


@fn.gather(into="shares", combine="sum")
def hear_shares(f, u, v, e, d):
    return fg.normalize(d.note_next[e, f] * 1.0 + 40.0)


@fn.gather(into="loudest", combine="argmax")
def hear_loudest(f, u, v, e, d):
    return d.note_next[e, f] - d.heard[v, f]


@fn.vertex
def reply(f, v, d):
    d.voice_next[v, f] = d.heard[v, f] % 16 + d.loudest_source[v, f]
    d.mass[v, f] = d.shares[v, f]
    return d.heard[v, f] % 3 != 0


@fn.vertex
def note_down(f, v, d):
    d.voice_next[v, f] = d.heard[v, f] % 16
    return d.heard[v, f] % 3 != 0


def note_state(graph, k, rng):
    count, rows = graph.vertex_count, 2 * graph.given_edge_count
    return {
        "voice": vertex(signed(rng, count, k), True),
        "calls": vertex(np.zeros((count, k), np.int32)),
        "mass": vertex(np.zeros((count, k))),
        "note": edge(signed(rng, rows, k), True),
        "stamps": edge(signed(rng, rows), True),
        "trips": edge(signed(rng, rows)),
    }
