"""Gathered values that are read at other features than the function's own.

Everything is a small integer or a multiple of 1/8, so that all targets agree bitwise.
On the CPU features are unrolled or in loops, so two widths a program are enough; the
emulator (tests/simt/test_gathered.py) runs them at others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, eighths, signed

# Constants, in functions with features and without


@fg.gather(into="votes", combine="sum")
def count_votes(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def compare_votes(f, v, d):
    d.lead[v, f] = d.votes[v, f] - d.votes[v, 1]
    return d.votes[v, 0] > 0


@fg.vertex
def keep_margin(f, v, d):
    d.margin[v] = d.votes[v, 1] - d.votes[v, 0]
    return d.votes[v, 1] != d.votes[v, 0]


def _votes_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(signed(rng, v, k)),
        "lead": fg.vertex_property(np.zeros((v, k), np.int32)),
        "margin": fg.vertex_property(np.zeros(v, np.int32)),
    }


# Computed features, loops, and conditions that differ from feature to feature


@fg.gather(into="total", combine="sum")
def add_weighted(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


@fg.vertex
def turn(f, v, d):
    turned = d.total[v, (f + 1) % d.k] - d.total[v, f]
    if d.x[v, f] > 2.0:
        below = 0.0
        for i in range(f):
            below += d.total[v, i]
        turned = turned + below
    d.y_next[v, f] = turned
    if f + 1 < d.k:
        d.z[v, f] = d.total[v, f + 1]
    return turned > d.total[v, d.k - 1]


def _turn_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    zeros = np.zeros((v, k), np.float32)
    return {
        "x": fg.vertex_property(eighths(rng, v, k, high=32)),
        "y": fg.vertex_property(zeros, iterated=True),
        "z": fg.vertex_property(zeros),
        "w": fg.edge_property(signed(rng, edge_count(graph)).astype(np.float32)),
        "k": k,
    }


# Both halves of argmin and argmax, and truth values


@fg.gather(into="nearest", combine="argmin")
def find_nearest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="largest", combine="argmax")
def find_largest(f, u, v, e, d):
    return d.x[u, f] / 2


@fg.gather(into="marked", combine="any")
def find_marked(f, u, v, e, d):
    return d.x[u, f] > 10


@fg.vertex
def whose(f, v, d):
    other = d.k - 1 - f
    d.who[v, f] = d.nearest_source[v, other]
    if d.nearest_source[v, 0] >= 0:
        d.key[v, f] = d.nearest[v, other] + d.nearest[v, 1]
    if d.marked[v, other] or d.marked[v, 0]:
        d.top[v, f] = d.largest_source[v, 1] - d.largest_source[v, (f + 1) % d.k]
    return d.marked[v, 1]


def _whose_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    zeros = np.zeros((v, k), np.int32)
    return {
        "x": fg.vertex_property(signed(rng, v, k, dtype=np.float32)),
        "who": fg.vertex_property(zeros),
        "key": fg.vertex_property(np.zeros((v, k), np.float32)),
        "top": fg.vertex_property(zeros),
        "k": k,
    }


# Beside collaborative operations, at a feature that one of them has found


@fg.gather(into="held", combine="max")
def take_largest(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def by_best(f, v, d):
    if d.in_degree[v] == 0:
        return False
    best = fg.argmax(d.held[v, f])
    d.y[v, f] = d.held[v, best] - d.held[v, f] + d.held[v, 0]
    for i in range(0, int(d.rounds[v])):
        d.y[v, f] = d.y[v, f] + fg.feature_max(d.held[v, (f + i) % d.k])
    return fg.any_feature(d.held[v, f] < d.held[v, 1])


def _best_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(eighths(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "rounds": fg.vertex_property(rng.integers(0, 4, v).astype(np.int32)),
        "k": k,
    }


# Gathers behind a gather, at the vertex that gathers


@fg.gather(into="first", combine="sum")
def add_first(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="second", combine="max")
def take_second(f, u, v, e, d):
    return d.x[u, f] + d.first[v, (f + 1) % d.k] - d.first[v, 0]


@fg.vertex
def keep_second(f, v, d):
    d.y_next[v, f] = d.second[v, d.k - 1 - f]
    return d.second[v, 1] > d.first[v, 1]


def _second_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(signed(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.int32), iterated=True),
        "k": k,
    }


# Elements of matrices, in functions of the same width and of none


@fg.gather(into="pairs", combine="sum", matrix=True)
def add_pairs(i, f, u, v, e, d):
    return d.x[u, i] * (d.x[u, f] + 1)


@fg.gather(into="spread", combine="sum", matrix=True)
def spread_rows(i, f, u, v, e, d):
    return d.lines[v, i] * d.x[u, f] + d.lines[v, 1] - d.lines[v, f]


@fg.gather(into="lines", combine="sum")
def add_rows(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def look_at_pairs(f, v, d):
    trace = 0.0
    for i in range(0, d.k):
        trace += d.pairs[v, i, i]
    d.y[v, f] = d.pairs[v, (f + 1) % d.k, f] - d.pairs[v, 1, 0] + trace
    d.z[v, f] = d.spread[v, 0, f] - d.spread[v, f, d.k - 1]
    return d.pairs[v, f, 0] > d.pairs[v, 0, f]


@fg.vertex
def look_at_corner(f, v, d):
    d.corner[v] = d.pairs[v, 0, 1] - d.pairs[v, 1, 0] + d.spread[v, 1, 1]
    return True


def _pairs_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    zeros = np.zeros((v, k), np.float32)
    return {
        "x": fg.vertex_property(signed(rng, v, k, dtype=np.float32) / 8),
        "y": fg.vertex_property(zeros),
        "z": fg.vertex_property(zeros),
        "corner": fg.vertex_property(np.zeros(v, np.float32)),
        "k": k,
    }


# Behind edge functions that run along the edges of the gather


@fg.edge
def say(f, u, v, e, d):
    d.said_next[e, f] = d.x[u, f] - d.said[e, f]
    return d.x[u, f] > 0


@fg.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):
    return d.said_next[e, f]


@fg.vertex
def answer(f, v, d):
    d.y[v, f] = d.heard[v, f] - d.heard[v, 1] + d.in_degree[v]
    return d.heard[v, 0] > d.heard[v, f]


@fg.vertex
def answer_in_turn(f, v, d):
    d.y[v, f] = d.heard[v, d.k - 1 - f] - d.heard[v, 1]
    return d.heard[v, f] > 0


def _said_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v, e = graph.vertex_count, edge_count(graph)
    rows = e if graph.directed else 2 * e
    return {
        "x": fg.vertex_property(signed(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.int32)),
        "said": fg.edge_property(signed(rng, rows, k), iterated=True),
        "k": k,
    }


# Another width than the gather's


@fg.vertex
def widen(f, v, d):
    d.wide[v, f] = d.votes[v, 1] * (f + 1) + d.votes[v, f % d.k]
    return d.votes[v, 0] > d.wide[v, f]


def _widen_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    wide = np.zeros((v, k + 2), np.int32)
    return {
        "x": fg.vertex_property(signed(rng, v, k)),
        "wide": fg.vertex_property(wide),
        "k": k,
    }


PROGRAMS = (
    BankProgram(
        "votes",
        (
            fg.foldmap(count_votes, compare_votes, keep_margin),
            fg.foldmap(count_votes, keep_margin),
        ),
        _votes_state,
        widths=(2, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "turned",
        (fg.foldmap(add_weighted, turn),),
        _turn_state,
        widths=(1, 3, 33),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "whose",
        (fg.foldmap(find_nearest, find_largest, find_marked, whose),),
        _whose_state,
        widths=(3, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "by_best",
        (fg.foldmap(take_largest, by_best),),
        _best_state,
        widths=(5, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "second",
        (fg.foldmap(add_first, take_second, keep_second),),
        _second_state,
        widths=(2, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "pairs",
        (fg.foldmap(add_rows, add_pairs, spread_rows, look_at_pairs, look_at_corner),),
        _pairs_state,
        widths=(3, 17),
        exact=True,
        exact_at_hubs=False,
        iterable=False,
        effort=2,
    ),
    BankProgram(
        "answers",
        (fg.foldmap(say, hear, answer), fg.foldmap(say, hear, answer_in_turn)),
        _said_state,
        widths=(2, 17),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "widened",
        (fg.foldmap(count_votes, widen),),
        _widen_state,
        widths=(8, 17),
        exact=True,
        iterable=False,
    ),
)
