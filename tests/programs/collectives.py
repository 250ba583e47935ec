"""Collaborative operations: whole rows, groups, matrices, loops, helpers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import SMALL, BankProgram, Rng, edge_count, eighths, floats

# Collaborative operations, with and without groups


@fg.vertex
def collaborate(f, v, d):
    x = d.x[v, f]
    p = fg.softmax(x)
    best = fg.argmax(x)
    scaled = x / (1 + fg.norm(x))
    d.y[v, f] = p + fg.dot(scaled, p) + fg.broadcast(x, best)
    d.best[v] = best
    spread_out = fg.feature_max(x) - fg.feature_min(x)
    d.all[v] = fg.all_features(x > 0.25)
    return spread_out > 0.125


def _collaborate_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(eighths(rng, v, k, high=16)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "best": fg.vertex_property(np.zeros(v, np.int32)),
        "all": fg.vertex_property(np.zeros(v, np.bool_)),
    }


@fg.vertex
def in_pairs(f, v, d):
    x = d.x[v, f]
    d.share[v, f] = fg.normalize(x, group=2)
    d.length[v, f] = fg.norm(x, group=2)
    d.best[v, f] = fg.argmax(x, group=2)
    d.big[v, f] = fg.any_feature(x > 1.0, group=2)
    d.soft[v, f] = fg.softmax(x, group=2)
    return fg.feature_max(x, group=2) > 1.0


def _pairs_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    zeros = np.zeros((v, k), np.float32)
    return {
        "x": fg.vertex_property(eighths(rng, v, k, high=16)),
        "share": fg.vertex_property(zeros),
        "length": fg.vertex_property(zeros),
        "soft": fg.vertex_property(zeros),
        "best": fg.vertex_property(np.zeros((v, k), np.int32)),
        "big": fg.vertex_property(np.zeros((v, k), np.bool_)),
    }


# A uniform loop with collaborative calls, under a uniform condition

ROUNDS = 3


@fg.vertex
def sinkhorn(f, v, d):
    x = d.x[v, f]
    for step in range(ROUNDS):
        x = fg.normalize(x) * (step + 1)
        x = x + 0.125 * fg.feature_max(x)
    if d.squash[v]:
        x = x / (1 + fg.feature_sum(x))
    d.x_next[v, f] = x
    return True


def _sinkhorn_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "x": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True),
        "squash": fg.vertex_property(rng.random(graph.vertex_count) < 0.5),
    }


# Helper functions and module constants

STEEPNESS = 4.0


def sigmoid(x):
    return 1 / (1 + math.exp(-STEEPNESS * x))


def clipped(x, low, high):
    if x < low:
        return low
    return min(x, high)


@fg.gather(into="signal", combine="sum")
def activations(f, u, v, e, d):
    return d.weight[e] * sigmoid(d.x[u, f])


@fg.vertex
def activate(f, v, d):
    d.x_next[v, f] = clipped(d.signal[v, f] - d.bias[f], -1.0, 2.0)
    return True


def _helper_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "x": fg.vertex_property(floats(rng, graph.vertex_count, k), iterated=True),
        "weight": fg.edge_property(floats(rng, edge_count(graph)) - 0.5),
        "bias": floats(rng, k),
    }


# Vectors [f], scalars of each type, a collaborative operation of one's own


@fg.collaborative
def standardize(x, shift=0.5):
    mean = fg.feature_sum(x) / fg.feature_sum(1.0)
    deviation = x - mean
    return deviation / (shift + fg.norm(deviation))


@fg.vertex
def standard(f, v, d):
    x = standardize(d.x[v, f] * d.gains[f]) + d.shifts[f]
    if d.enabled:
        x = standardize(x, shift=2.0)
    # x - mean cancels: its error is that of values near 1.
    d.y[v, f] = 1.0 + x / d.divisor
    return True


def _vector_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(floats(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "gains": floats(rng, k),
        "shifts": rng.integers(0, 3, k).astype(np.int32),
        "enabled": bool(rng.random() < 0.5),
        "divisor": 2,
    }


# Inverse, matvec with transpose, outer, rows given as a whole


@fg.vertex
def matrices(f, v, d):
    y = fg.matvec(d.M[v], d.x[v, f])
    z = fg.matvec(d.M[v], d.x[v], transpose=True)
    w = fg.matvec(fg.inverse(d.M[v]), y)
    o = fg.outer(d.x[v, f], y)[0, f]
    s = fg.solve(d.M[v], d.x[v], spd=True)
    d.out[v, f] = y + z + w + o + s + fg.dot(d.x[v], d.x[v])
    return True


def _matrix_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    half = floats(rng, v, k, k) / k
    spd = half + np.swapaxes(half, 1, 2) + 2 * np.eye(k, dtype=np.float32)
    return {
        "M": fg.vertex_property(spd.astype(np.float32)),
        "x": fg.vertex_property(floats(rng, v, k)),
        "out": fg.vertex_property(np.zeros((v, k), np.float32)),
    }


# Operands and returned values that an operator beside them would tear apart


@fg.vertex
def choices(f, v, d):
    x = d.x[v, f]
    big = x > d.bound
    d.sum[v] = fg.feature_sum(x if big else 1.0)
    d.least[v] = fg.feature_min(x if big else 2.0)
    d.best[v] = fg.argmax(x - 1.0 if big else 0.5)
    d.all[v] = fg.all_features(big or x < 0.25)
    d.any[v] = fg.any_feature(big if x < 1.5 else x > 1.75)
    d.turned[v, f] = fg.matvec(fg.outer(x + 1.0, x - 0.5), 1.0 - x)
    return big if d.likes_big[v] else x < 0.125


def _choices_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(eighths(rng, v, k, high=16)),
        "likes_big": fg.vertex_property(rng.random(v) < 0.5),
        "sum": fg.vertex_property(np.zeros(v, np.float32)),
        "least": fg.vertex_property(np.zeros(v, np.float32)),
        "best": fg.vertex_property(np.zeros(v, np.int32)),
        "all": fg.vertex_property(np.zeros(v, np.bool_)),
        "any": fg.vertex_property(np.zeros(v, np.bool_)),
        "turned": fg.vertex_property(np.zeros((v, k), np.float32)),
        "bound": 1.0,
    }


PROGRAMS = (
    BankProgram(
        "choices", (fg.foldmap(choices),), _choices_state, slack=16.0, iterable=False
    ),
    BankProgram(
        "collaborate", (fg.foldmap(collaborate),), _collaborate_state, iterable=False
    ),
    BankProgram(
        "in_pairs",
        (fg.foldmap(in_pairs),),
        _pairs_state,
        widths=(2, 4, 8, 10, 32, 64),
        iterable=False,
    ),
    BankProgram("sinkhorn", (fg.foldmap(sinkhorn),), _sinkhorn_state, iterable=False),
    BankProgram(
        "helpers", (fg.foldmap(activations, activate),), _helper_state, iterable=False
    ),
    BankProgram("vectors", (fg.foldmap(standard),), _vector_state, iterable=False),
    BankProgram(
        "matrices",
        (fg.foldmap(matrices),),
        _matrix_state,
        widths=SMALL,
        slack=16.0,
        iterable=False,
    ),
)
