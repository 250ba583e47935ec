"""Learning on graphs: the algorithms that the model was made for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import SMALL, BankProgram, Rng, edge_count, floats

# Label propagation: normalize, uniform early return, any_feature


@fg.gather(into="aggr", combine="sum")
def labels_of_neighbors(f, u, v, e, d):
    return d.weight[e] * d.label[u, f]


@fg.vertex
def relax(f, v, d):
    if d.clamped[v]:
        return False
    p = d.alpha * fg.normalize(d.aggr[v, f]) + (1 - d.alpha) * d.label[v, f]
    p = fg.normalize(p)
    d.label_next[v, f] = p
    return fg.any_feature(abs(p - d.label[v, f]) > d.epsilon)


def _label_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    label = floats(rng, graph.vertex_count, k)
    label /= label.sum(axis=1, keepdims=True)
    return {
        "label": fg.vertex_property(label, iterated=True),
        "clamped": fg.vertex_property(rng.random(graph.vertex_count) < 0.2),
        "weight": fg.edge_property(floats(rng, edge_count(graph))),
        "alpha": 0.75,
        "epsilon": 1e-3,
    }


# Matrix gather and solve (alternating least squares)


@fg.gather(into="b", combine="sum")
def ratings(f, u, v, e, d):
    return d.rating[e] * d.factor[u, f]


@fg.gather(into="A", combine="sum", matrix=True)
def grams(i, f, u, v, e, d):
    return d.factor[u, i] * d.factor[u, f]


@fg.vertex
def least_squares(f, v, d):
    new = fg.solve(d.A[v], d.b[v, f], diagonal=d.ridge * (1 + d.in_degree[v]))
    d.factor_next[v, f] = new
    return fg.any_feature(abs(new - d.factor[v, f]) > d.epsilon)


def _als_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "factor": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True),
        "rating": fg.edge_property(floats(rng, edge_count(graph))),
        "ridge": 0.5,
        "epsilon": 1e-2,
    }


# Matrix reduce, scaled outer products, a sum of matrices (implicit feedback)


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):
    return fg.outer(d.factor[v], d.factor[v])[i, f]


@fg.reduce(into="widest", combine="max", matrix=True)
def widest(i, f, v, d):
    return d.factor[v, i] - d.factor[v, f]


@fg.gather(into="b", combine="sum")
def preferences(f, u, v, e, d):
    return d.confidence[e] * d.factor[u, f]


@fg.gather(into="A", combine="sum", matrix=True)
def confident(i, f, u, v, e, d):
    above = d.confidence[e] - 1
    return above * fg.outer(d.factor[u], d.factor[u])[i, f]


@fg.gather(into="skew", combine="sum", matrix=True)
def skewed(i, f, u, v, e, d):
    return -d.factor[v, i] * d.factor[u, f] / d.confidence[e]


@fg.vertex
def implicit_squares(f, v, d):
    new = fg.solve(d.A[v] + d.gram, d.b[v, f], diagonal=d.ridge, spd=True)
    other = fg.matvec(d.skew[v] - d.gram, new) + d.widest[0, f]
    d.factor_next[v, f] = new + 0.125 * other
    return fg.any_feature(abs(new - d.factor[v, f]) > d.epsilon)


def _implicit_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "factor": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True),
        "confidence": fg.edge_property(1 + floats(rng, edge_count(graph))),
        "ridge": 0.5,
        "epsilon": 1e-2,
    }


# Belief propagation: messages, reverse, a gather of _next


@fg.collaborative
def log_normalize(x):
    top = fg.feature_max(x)
    return x - top - math.log(fg.feature_sum(math.exp(x - top)))


@fg.edge
def message(f, u, v, e, d):
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    top = fg.feature_max(cavity)
    mixed = fg.matvec(d.psi[e], math.exp(cavity - top), transpose=u > v)
    m = log_normalize(math.log(mixed) + top)
    m = d.damp * d.msg[e, f] + (1 - d.damp) * m
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fg.gather(into="total", combine="sum")
def messages(f, u, v, e, d):
    return d.msg_next[e, f]


@fg.vertex
def believe(f, v, d):
    b = d.phi[v, f] + d.total[v, f]
    d.belief_next[v, f] = b
    return fg.any_feature(abs(b - d.belief[v, f]) > d.epsilon)


def _bp_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph)
    phi = np.log(floats(rng, v, k))
    msg = np.full((2 * e, k), -math.log(k), np.float32)
    return {
        "phi": fg.vertex_property(phi),
        "belief": fg.vertex_property(phi, iterated=True),
        "msg": fg.edge_property(msg, iterated=True, per_direction=True),
        "psi": fg.edge_property(floats(rng, e, k, k)),
        "damp": 0.25,
        "epsilon": 1e-3,
    }


# PageRank with dangling vertices: reduce, gather, vertex, another reduce


@fg.reduce(into="lost", combine="sum")
def dangling(f, v, d):
    return d.rank[v, f] if d.out_degree[v] == 0 else 0.0


@fg.gather(into="inflow", combine="sum")
def shares(f, u, v, e, d):
    return d.rank[u, f] / d.out_degree[u]


@fg.vertex
def rerank(f, v, d):
    new = (1 - d.alpha) * d.personal[v, f] + d.alpha * (
        d.inflow[v, f] + d.lost[f] * d.personal[v, f]
    )
    d.rank_next[v, f] = new
    return abs(new - d.rank[v, f]) > d.epsilon


@fg.reduce(into="largest", combine="max")
def largest_change(f, v, d):
    return abs(d.rank_next[v, f] - d.rank[v, f])


def _pagerank_state(dtype: Any) -> Callable[[Any, int, Rng], dict[str, Any]]:
    def make(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
        personal = floats(rng, graph.vertex_count, k, dtype=dtype)
        personal /= personal.sum(axis=0)
        return {
            "personal": fg.vertex_property(personal),
            "rank": fg.vertex_property(personal, iterated=True),
            "alpha": 0.85,
            "epsilon": 1e-4,
        }

    return make


# A collaborative call inside a gather that reads its target


@fg.gather(into="pull", combine="sum")
def attention(f, u, v, e, d):
    return d.x[u, f] * fg.dot(d.x[u, f], d.x[v, f])


@fg.vertex
def attend(f, v, d):
    d.x_next[v, f] = fg.normalize(d.x[v, f] + d.pull[v, f])
    return True


def _attention_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {"x": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True)}


_RANK = fg.foldmap(dangling, shares, rerank, largest_change)

PROGRAMS = (
    BankProgram(
        "label_propagation",
        (fg.foldmap(labels_of_neighbors, relax),),
        _label_state,
        thresholds=(("label", "epsilon"),),
    ),
    BankProgram(
        "least_squares",
        (fg.foldmap(ratings, grams, least_squares),),
        _als_state,
        widths=SMALL,
        thresholds=(("factor", "epsilon"),),
        slack=64.0,
        iterable=False,
    ),
    BankProgram(
        "implicit_least_squares",
        (fg.foldmap(gram, widest, preferences, confident, skewed, implicit_squares),),
        _implicit_state,
        widths=(1, 3, 8, 20),
        thresholds=(("factor", "epsilon"),),
        slack=256.0,
        iterable=False,
        effort=2,
    ),
    BankProgram(
        "belief_propagation",
        (fg.foldmap(message, messages, believe),),
        _bp_state,
        widths=SMALL,
        undirected=True,
        thresholds=(("belief", "epsilon"), ("msg", "epsilon")),
        slack=2.0,
        iterable=False,
    ),
    BankProgram(
        "pagerank",
        (_RANK,),
        _pagerank_state(np.float32),
        thresholds=(("rank", "epsilon"),),
    ),
    BankProgram(
        "pagerank_float64",
        (_RANK,),
        _pagerank_state(np.float64),
        widths=(1, 3, 8, 33),
        thresholds=(("rank", "epsilon"),),
    ),
    BankProgram(
        "attention", (fg.foldmap(attention, attend),), _attention_state, iterable=False
    ),
)
