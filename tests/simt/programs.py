"""Small programs for the tests of generated CUDA kernels: each form, each phase."""

from __future__ import annotations

import numpy as np

from featgraph.program import functions as fn
from featgraph.program import operations as fg
from featgraph.program.combines import combine
from tests.simt.along_programs import ALONG_CASES
from tests.simt.case import Case, edge, floats, scalar, signed, vertex
from tests.simt.edge_programs import (
    answer,
    atomics_state,
    believe,
    count_and_lower,
    hear,
    hear_loudest,
    hear_shares,
    keep_sides,
    mark_edge,
    message,
    message_state,
    messages,
    note_down,
    note_state,
    reply,
    say,
    say_plainly,
    say_state,
    say_to_others,
    sides,
    speak,
    stamp,
    tag_edge,
    turn,
    twin_state,
)
from tests.simt.row_programs import ROW_CASES

# -- label propagation (DESIGN section 3)


def damped(x, alpha):
    return x * alpha


@fn.gather(into="aggr", combine="sum")
def labels_of_neighbors(f, u, v, e, d):
    return d.weight[e] * d.label[u, f]


@fn.vertex
def relax(f, v, d):
    if d.clamped[v]:
        return False
    p = damped(fg.normalize(d.aggr[v, f]), d.alpha) + (1 - d.alpha) * d.label[v, f]
    p = fg.normalize(p)
    d.label_next[v, f] = p
    return fg.any_feature(abs(p - d.label[v, f]) > d.epsilon)


def label_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "label": vertex(floats(rng, count, k), True),
        "clamped": vertex(rng.random(count) < 0.2),
        "weight": edge(floats(rng, graph.given_edge_count)),
        "alpha": scalar(0.75),
        "epsilon": scalar(0.1),
    }


# -- the combines


def larger_magnitude(a, b):
    return a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b


@fn.gather(into="total", combine="sum")
def summed(f, u, v, e, d):
    return d.x[u, f] * d.weight[e]


@fn.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.i[u, f] + d.cost[e]


@fn.gather(into="high", combine="max")
def highest(f, u, v, e, d):
    return d.x[u, f] - d.x[v, f]


@fn.gather(into="some", combine="any")
def any_large(f, u, v, e, d):
    return d.x[u, f] > d.level


@fn.gather(into="power", combine="product")
def product_of(f, u, v, e, d):
    return d.weight[e] + d.x[u, f]


@fn.gather(into="near", combine="argmin")
def nearest(f, u, v, e, d):
    return d.i[u, f] if d.i[u, f] > -5 else fg.nothing


@fn.gather(into="far", combine="argmax")
def farthest(f, u, v, e, d):
    if d.x[u, f] < 0.25:
        return fg.nothing
    return d.x[u, f]


@fn.vertex
def keep_combined(f, v, d):
    d.sums[v, f] = d.total[v, f]
    d.lows[v, f] = d.low[v, f]
    d.highs[v, f] = d.high[v, f]
    d.flags[v, f] = d.some[v, f]
    d.powers[v, f] = d.power[v, f]
    d.sources[v, f] = d.near_source[v, f] * 100 + d.far_source[v, f]
    if d.near_source[v, f] >= 0:
        d.keys[v, f] = d.near[v, f]
    return d.some[v, f]


def combine_state(graph, k, rng):
    count, edges = graph.vertex_count, graph.given_edge_count
    zeros = np.zeros((count, k))
    return {
        "x": vertex(floats(rng, count, k)),
        "i": vertex(signed(rng, count, k)),
        "cost": edge(rng.integers(0, 3, edges).astype(np.int32)),
        "weight": edge(floats(rng, edges)),
        "level": scalar(0.8),
        "sums": vertex(zeros),
        "highs": vertex(zeros),
        "powers": vertex(zeros),
        "lows": vertex(np.zeros((count, k), np.int32)),
        "keys": vertex(np.zeros((count, k), np.int32)),
        "sources": vertex(np.zeros((count, k), np.int32)),
        "flags": vertex(np.zeros((count, k), np.bool_)),
    }


@fn.gather(into="peak", combine=combine(larger_magnitude, identity=0.0))
def peaks(f, u, v, e, d):
    return d.x[u, f] - 0.5


@fn.vertex
def keep_peak(f, v, d):
    d.y[v, f] = d.peak[v, f]
    return d.peak[v, f] > 0


def simple_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(floats(rng, count, k)),
        "y": vertex(np.zeros((count, k))),
        "weight": edge(floats(rng, graph.given_edge_count)),
    }


@fn.vertex
def keep_total(f, v, d):
    d.y[v, f] = d.total[v, f]
    return d.total[v, f] > 0


# -- filter, argmin, settle (breadth-first search)

UNSEEN = 1000


@fn.vertex
def unseen(f, v, d):
    return d.level[v, f] == UNSEEN


@fn.gather(into="best", combine="argmin")
def closest(f, u, v, e, d):
    return d.level[u, f] if d.level[u, f] < UNSEEN else fg.nothing


@fn.vertex
def settle(f, v, d):
    if d.level[v, f] < UNSEEN or d.best_source[v, f] < 0:
        return False
    d.level_next[v, f] = d.best[v, f] + 1
    d.parent_next[v, f] = d.best_source[v, f]
    return True


def bfs_state(graph, k, rng):
    level = np.where(rng.random((graph.vertex_count, k)) < 0.3, 3, UNSEEN)
    level[: graph.vertex_count // 4] = 2  # filtered out
    return {
        "level": vertex(level.astype(np.int32), True),
        "parent": vertex(np.full(level.shape, -1, np.int32), True),
    }


# -- matrix gather and solve; inverse, matvec


@fn.gather(into="b", combine="sum")
def ratings(f, u, v, e, d):
    return d.rating[e] * d.factor[u, f]


@fn.gather(into="A", combine="sum", matrix=True)
def grams(i, f, u, v, e, d):
    return d.factor[u, i] * d.factor[u, f]


@fn.gather(into="B", combine="sum", matrix=True)
def shifted_grams(i, f, u, v, e, d):
    return d.factor[u, i] * d.factor[u, f] + (d.ridge if i == f else 0.0)


@fn.vertex
def least_squares(f, v, d):
    new = fg.solve(d.A[v], d.b[v, f], diagonal=d.ridge * (1 + d.in_degree[v]), spd=True)
    d.factor_next[v, f] = new
    return fg.any_feature(abs(new - d.factor[v, f]) > d.epsilon)


@fn.vertex
def inverted(f, v, d):
    if d.in_degree[v] == 0:
        return False
    inverse = fg.inverse(d.B[v])
    d.factor_next[v, f] = inverse[f, f] + fg.matvec(d.B[v], d.b[v, f])
    return True


def als_state(graph, k, rng):
    return {
        "factor": vertex(floats(rng, graph.vertex_count, k), True),
        "rating": edge(floats(rng, graph.given_edge_count)),
        "ridge": scalar(0.5),
        "epsilon": scalar(0.25),
    }


# -- reduce, gather, vertex, reduce


@fn.reduce(into="lost", combine="sum")
def dangling(f, v, d):
    return d.rank[v, f] if d.out_degree[v] == 0 else 0.0


@fn.gather(into="inflow", combine="sum")
def shares(f, u, v, e, d):
    return d.rank[u, f] / d.out_degree[u]


@fn.vertex
def rerank(f, v, d):
    new = 0.15 * d.rank[v, f] + 0.85 * (d.inflow[v, f] + d.lost[f] * 0.01)
    d.rank_next[v, f] = new
    return abs(new - d.rank[v, f]) > 0.01


@fn.reduce(into="largest", combine="max")
def largest_change(f, v, d):
    return abs(d.rank_next[v, f] - d.rank[v, f]) / fg.feature_sum(d.rank[v, f])


@fn.reduce(into="senders", combine="sum")
def count_seen(f, v, d):
    return 1 if d.out_degree[v] > 0 else 0


@fn.reduce(into="wild", combine="any")
def any_wild(f, v, d):
    return d.rank[v, f] > 0.9


@fn.reduce(into="spread", combine=combine(larger_magnitude, identity=0.0))
def spread_of(f, v, d):
    return d.rank[v, f] - 0.5


def rank_state(graph, k, rng):
    return {"rank": vertex(floats(rng, graph.vertex_count, k), True)}


# -- collaborative operations


@fn.vertex
def collaborate(f, v, d):
    x = d.x[v, f]
    p = fg.softmax(x)
    best = fg.argmax(x)
    d.y[v, f] = p + fg.dot(x, p) / (1 + fg.norm(x)) + fg.broadcast(x, best)
    d.best[v] = best
    d.all[v] = fg.all_features(x > 0.25)
    return fg.feature_max(x) - fg.feature_min(x) > 0.125


def collaborate_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(rng.integers(1, 16, (count, k)) / 8),
        "y": vertex(np.zeros((count, k))),
        "best": vertex(np.zeros(count, np.int32)),
        "all": vertex(np.zeros(count, np.bool_)),
    }


@fn.vertex
def in_pairs(f, v, d):
    x = d.x[v, f]
    d.share[v, f] = fg.normalize(x, group=2)
    d.big[v, f] = fg.any_feature(x > 1.0, group=2)
    return fg.feature_max(x, group=2) > 1.0


def pairs_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(rng.integers(1, 16, (count, k)) / 8),
        "share": vertex(np.zeros((count, k))),
        "big": vertex(np.zeros((count, k), np.bool_)),
    }


# -- early returns, loops with collectives, collective gathers


@fn.gather(into="pull", combine="sum")
def pulled(f, u, v, e, d):
    x = d.x[u, f] * d.weight[e]
    return x / (1 + fg.feature_sum(x))


@fn.gather(into="top", combine="argmax")
def topmost(f, u, v, e, d):
    total = fg.feature_sum(d.x[u, f])
    return fg.nothing if total < d.floor else total - d.x[u, f]


@fn.vertex
def wander(f, v, d):
    if d.next_hop[v] < 0:
        return False
    x = d.x[d.next_hop[v], f] + d.pull[v, f]
    for _step in range(d.steps[v]):
        largest = fg.feature_max(x)
        x = x + 0.125 * largest
    if d.steps[v] > 2:
        d.x_next[v, f] = x
        return fg.any_feature(x > 8.0)
    d.x_next[v, f] = x - 1
    while x > 1:
        x = x * 0.5
    d.late[v, f] = x + d.top_source[v, f]
    return x > 0.75


def wander_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex((rng.integers(1, 16, (count, k)) / 8), True),
        "late": vertex(np.zeros((count, k))),
        "weight": edge(floats(rng, graph.given_edge_count)),
        "next_hop": vertex(rng.integers(-3, count, count).astype(np.int32)),
        "steps": vertex(rng.integers(0, 6, count).astype(np.int32)),
        "floor": scalar(0.5 * k),
    }


@fn.vertex
def ragged(f, v, d):
    x = d.x[v, f] / fg.feature_max(d.x[v, f])
    if x < 0.25:
        d.x_next[v, f] = x + 8
        return x < 0.125
    if x > 0.75:
        return False
    d.x_next[v, f] = x * 2
    return True


# -- no feature axis


@fn.gather(into="low", combine="min")
def lower_component(f, u, v, e, d):
    return d.comp[u]


@fn.vertex
def adopt(f, v, d):
    d.comp_next[v] = min(d.comp[v], d.low[v])
    return d.low[v] < d.comp[v]


@fn.vertex
def jump(f, v, d):
    root = d.comp[d.comp[v]]
    d.comp_next[v] = min(root, d.comp_next[v])
    return root < d.comp[v]


def component_state(graph, k, rng):
    return {"comp": vertex(rng.permutation(graph.vertex_count).astype(np.int32), True)}


CASES = (
    Case("label_propagation", (labels_of_neighbors, relax), label_state, pushes=True),
    Case("weighted_sum", (summed, keep_total), simple_state, pushes=True),
    Case(
        "combines",
        (
            summed,
            lowest,
            highest,
            any_large,
            product_of,
            nearest,
            farthest,
            keep_combined,
        ),
        combine_state,
        pushes=True,
    ),
    Case("custom", (peaks, keep_peak), simple_state, pushes=True),
    Case("bfs", (unseen, closest, settle), bfs_state, pushes=True),
    Case(
        "least_squares",
        (ratings, grams, least_squares),
        als_state,
        pushes=True,
        widest=10,
    ),
    Case("inverse", (ratings, shifted_grams, inverted), als_state, widest=8),
    Case("atomics", (count_and_lower, mark_edge, tag_edge), atomics_state),
    Case(
        "messages",
        (message, messages, believe),
        message_state,
        undirected=True,
        widest=10,
    ),
    Case("say", (say, messages, believe), say_state, undirected=True, widest=33),
    Case(
        "say_plainly",
        (say_plainly, messages, believe),
        say_state,
        undirected=True,
        widest=33,
    ),
    Case(
        "say_to_others",
        (say_to_others, messages, believe),
        say_state,
        undirected=True,
        widest=33,
    ),
    Case("notes", (answer, stamp, hear, note_down), note_state, undirected=True),
    Case(
        "filtered_notes",
        (speak, answer, stamp, hear, hear_shares, hear_loudest, reply),
        note_state,
        undirected=True,
    ),
    Case(
        "pagerank",
        (dangling, shares, rerank, largest_change, count_seen, any_wild, spread_of),
        rank_state,
        pushes=True,
        widest=10,
    ),
    Case("collaborate", (collaborate,), collaborate_state),
    Case("pairs", (in_pairs,), pairs_state),
    Case("wander", (pulled, topmost, wander), wander_state, pushes=True),
    Case("ragged", (ragged,), wander_state),
    Case("components", (lower_component, adopt, jump), component_state, pushes=True),
    Case("sides", (sides, keep_sides), twin_state, undirected=True, pushes=True),
    *ROW_CASES,
    *ALONG_CASES,
    Case("turn", (turn,), twin_state, undirected=True, widest=10),
)
BY_NAME = {case.name: case for case in CASES}
