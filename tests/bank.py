"""Programs that cover the programming model; the agreement tests run them on targets.

Each `BankProgram` says how to make a state for any graph and width. States hold
integers and dyadic fractions where results agree bitwise, so that nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import featgraph as fg

WIDTHS = (1, 2, 3, 4, 7, 8, 10, 32, 33, 64)
#: Up to here the interpreter inverts matrices in a moment.
SMALL = (1, 2, 3, 4, 7, 8, 10)

Rng = np.random.Generator


@dataclass(frozen=True)
class BankProgram:
    """One program.

    Attributes
    ----------
    name : str
    foldmaps : tuple
        What `fg.iterate` takes in turn; tests of one superstep take each by itself.
    make_state : callable
        ``(graph, k, rng) -> dict`` for `fg.State`.
    widths : tuple of int
        The K it is meant for.
    exact : bool
        Bitwise equal on every target; else within the tolerance of S9.
    undirected : bool
        Whether it needs twins.
    thresholds : tuple of (str, str)
        (iterated property, scalar): commits depend on whether the change of the
        property exceeds the scalar, so they may differ where the two are close.
    slack : float
        Factor on the tolerance, for systems of equations and long chains.
    iterable : bool
        Whether `fg.iterate` ends by itself from these states.
    """

    name: str
    foldmaps: tuple[Any, ...]
    make_state: Callable[[Any, int, Rng], dict[str, Any]]
    widths: tuple[int, ...] = WIDTHS
    exact: bool = False
    undirected: bool = False
    thresholds: tuple[tuple[str, str], ...] = ()
    slack: float = 1.0
    iterable: bool = field(default=True)

    def __repr__(self) -> str:
        return self.name


def _floats(rng: Rng, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.uniform(0.125, 1.0, shape).astype(dtype)


def _eighths(rng: Rng, *shape: int, high: int = 64) -> Any:
    """Multiples of 1/8: sums of a few thousand of them are exact in float32."""
    return (rng.integers(1, high, shape) / 8).astype(np.float32)


def _signed(rng: Rng, *shape: int, dtype: Any = np.int32) -> Any:
    return rng.integers(-20, 21, shape).astype(dtype)


def _edges(graph: Any) -> int:
    return int(graph.given_edge_count)


# -- label propagation: normalize, uniform early return, any_feature


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
    label = _floats(rng, graph.vertex_count, k)
    label /= label.sum(axis=1, keepdims=True)
    return {
        "label": fg.vertex_property(label, iterated=True),
        "clamped": fg.vertex_property(rng.random(graph.vertex_count) < 0.2),
        "weight": fg.edge_property(_floats(rng, _edges(graph))),
        "alpha": 0.75,
        "epsilon": 1e-3,
    }


# -- weighted sum, written in place


@fg.gather(into="total", combine="sum")
def weighted(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fg.vertex
def keep_total(f, v, d):
    d.y[v, f] = d.total[v, f]
    return True


def _weighted_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_floats(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "weight": fg.edge_property(_floats(rng, _edges(graph))),
    }


# -- min, max, argmin, argmax with ties; fg.nothing; integers and floats


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="high", combine="max")
def highest(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="first", combine="argmin")
def nearest(f, u, v, e, d):
    return d.x[u, f] + d.cost[e] if d.x[u, f] > d.floor else fg.nothing


@fg.gather(into="last", combine="argmax")
def farthest(f, u, v, e, d):
    if d.x[u, f] < d.floor:
        return fg.nothing
    return d.x[u, f] + d.cost[e]


@fg.vertex
def keep_extremes(f, v, d):
    if d.first_source[v, f] >= 0:
        d.keys[v, f] = d.first[v, f]
    if d.last_source[v, f] >= 0:
        d.tops[v, f] = d.last[v, f]
    d.nearest[v, f] = d.first_source[v, f]
    d.farthest[v, f] = d.last_source[v, f]
    d.x_next[v, f] = max(min(d.x[v, f], d.low[v, f]), min(d.high[v, f], d.cap))
    return d.first_source[v, f] >= 0 or d.x_next[v, f] != d.x[v, f]


def _extremes_state(dtype: Any) -> Callable[[Any, int, Rng], dict[str, Any]]:
    def make(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
        v = graph.vertex_count
        one = np.dtype(dtype).type(1).item()
        return {
            "x": fg.vertex_property(_signed(rng, v, k, dtype=dtype), iterated=True),
            "cost": fg.edge_property(rng.integers(0, 3, _edges(graph)).astype(dtype)),
            "keys": fg.vertex_property(np.zeros((v, k), dtype)),
            "tops": fg.vertex_property(np.zeros((v, k), dtype)),
            "nearest": fg.vertex_property(np.zeros((v, k), np.int32)),
            "farthest": fg.vertex_property(np.zeros((v, k), np.int32)),
            "floor": one * 0,
            "cap": one * 9,
        }

    return make


# -- any, bool properties


@fg.gather(into="touched", combine="any")
def marked(f, u, v, e, d):
    return d.mark[u, f] and d.open[e]


@fg.vertex
def spread(f, v, d):
    d.mark_next[v, f] = d.mark[v, f] or d.touched[v, f]
    return not d.mark[v, f] and d.touched[v, f]


def _any_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    mark = rng.random((graph.vertex_count, k)) < 0.1
    return {
        "mark": fg.vertex_property(mark, iterated=True),
        "open": fg.edge_property(rng.random(_edges(graph)) < 0.8),
    }


# -- product and a combine of one's own


def larger_magnitude(a, b):
    return a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b


@fg.gather(into="product", combine="product")
def factors(f, u, v, e, d):
    return 1 + d.rate[e] * d.x[u, f]


@fg.gather(into="peak", combine=fg.combine(larger_magnitude, identity=0.0))
def peaks(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def keep_product(f, v, d):
    d.y[v, f] = d.product[v, f]
    d.z[v, f] = d.peak[v, f]
    return d.peak[v, f] > 0


def _product_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_signed(rng, v, k, dtype=np.float32) / 32),
        "rate": fg.edge_property(_floats(rng, _edges(graph)) / 8),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "z": fg.vertex_property(np.zeros((v, k), np.float32)),
    }


# -- matrix gather and solve (alternating least squares)


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
        "factor": fg.vertex_property(
            _floats(rng, graph.vertex_count, k), iterated=True
        ),
        "rating": fg.edge_property(_floats(rng, _edges(graph))),
        "ridge": 0.5,
        "epsilon": 1e-2,
    }


# -- two gathers of one width, one of which reads its target, and a vertex function


@fg.gather(into="out", combine="sum")
def outflow(f, u, v, e, d):
    return d.weight[e, f] * d.x[u, f]


@fg.gather(into="top", combine="max")
def topmost(f, u, v, e, d):
    return d.x[u, f] - d.x[v, f]


@fg.vertex
def diffuse(f, v, d):
    new = d.x[v, f] + 0.125 * d.out[v, f] / (1 + d.in_degree[v])
    if d.in_degree[v] > 0:
        new = new + 0.0625 * d.top[v, f]
    d.x_next[v, f] = new
    return d.in_degree[v] > 0


def _two_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "x": fg.vertex_property(_floats(rng, graph.vertex_count, k), iterated=True),
        "weight": fg.edge_property(_floats(rng, _edges(graph), k)),
    }


# -- breadth-first search with parents: a filter before the gather

UNSEEN = 1 << 20


@fg.vertex
def unseen(f, v, d):
    return d.level[v, f] == UNSEEN


@fg.gather(into="best", combine="argmin")
def closest(f, u, v, e, d):
    return d.level[u, f] if d.level[u, f] < UNSEEN else fg.nothing


@fg.vertex
def settle(f, v, d):
    if d.level[v, f] < UNSEEN or d.best_source[v, f] < 0:
        return False
    d.level_next[v, f] = d.best[v, f] + 1
    d.parent_next[v, f] = d.best_source[v, f]
    return True


def _bfs_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    level = np.full((graph.vertex_count, k), UNSEEN, np.int32)
    parent = np.full((graph.vertex_count, k), -1, np.int32)
    roots = rng.integers(0, graph.vertex_count, k)
    level[roots, np.arange(k)] = 0
    parent[roots, np.arange(k)] = roots
    return {
        "level": fg.vertex_property(level, iterated=True),
        "parent": fg.vertex_property(parent, iterated=True),
    }


# -- connected components: no feature axis, a foreign read, a list of foldmaps


@fg.gather(into="low", combine="min")
def lower_component(f, u, v, e, d):
    return d.comp[u]


@fg.vertex
def adopt(f, v, d):
    d.comp_next[v] = min(d.comp[v], d.low[v])
    return d.low[v] < d.comp[v]


@fg.vertex
def jump(f, v, d):
    root = d.comp[d.comp[v]]
    d.comp_next[v] = root
    return root < d.comp[v]


def _cc_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    comp = np.arange(graph.vertex_count, dtype=np.int32)
    return {"comp": fg.vertex_property(comp, iterated=True)}


# -- belief propagation: messages, reverse, a gather of _next


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
    v, e = graph.vertex_count, _edges(graph)
    phi = np.log(_floats(rng, v, k))
    msg = np.full((2 * e, k), -math.log(k), np.float32)
    return {
        "phi": fg.vertex_property(phi),
        "belief": fg.vertex_property(phi, iterated=True),
        "msg": fg.edge_property(msg, iterated=True, per_direction=True),
        "psi": fg.edge_property(_floats(rng, e, k, k)),
        "damp": 0.25,
        "epsilon": 1e-3,
    }


# -- atomics on edges


@fg.edge
def count_and_lower(f, u, v, e, d):
    if d.x[u, f] < 0:
        return False
    fg.atomic.add(d.visits, (v, f), 1)
    fg.atomic.add(d.mass, (v, f), d.x[u, f])
    fg.atomic.min(d.least, (v, f), d.x[u, f])
    fg.atomic.max(d.most, (u, f), d.x[v, f])
    return True


def _atomics_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_signed(rng, v, k, dtype=np.float32)),
        "visits": fg.vertex_property(np.zeros((v, k), np.int32)),
        "mass": fg.vertex_property(np.zeros((v, k), np.float32)),
        "least": fg.vertex_property(np.full((v, k), 100, np.float32)),
        "most": fg.vertex_property(np.full((v, k), -100, np.float32)),
    }


# -- PageRank with dangling vertices: reduce, gather, vertex, another reduce


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
        personal = _floats(rng, graph.vertex_count, k, dtype=dtype)
        personal /= personal.sum(axis=0)
        return {
            "personal": fg.vertex_property(personal),
            "rank": fg.vertex_property(personal, iterated=True),
            "alpha": 0.85,
            "epsilon": 1e-4,
        }

    return make


# -- collaborative operations, with and without groups


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
        "x": fg.vertex_property(_eighths(rng, v, k, high=16)),
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
        "x": fg.vertex_property(_eighths(rng, v, k, high=16)),
        "share": fg.vertex_property(zeros),
        "length": fg.vertex_property(zeros),
        "soft": fg.vertex_property(zeros),
        "best": fg.vertex_property(np.zeros((v, k), np.int32)),
        "big": fg.vertex_property(np.zeros((v, k), np.bool_)),
    }


# -- integer properties in float arithmetic


@fg.gather(into="mean", combine="sum")
def count_weighted(f, u, v, e, d):
    return d.small[u, f] * d.scale[e] / d.out_degree[u]


@fg.vertex
def mix(f, v, d):
    d.y[v, f] = d.mean[v, f] / 3 + d.wide[v] * 0.5 - d.small[v, f] // 2
    d.tally[v, f] = d.small[v, f] * d.small[v, f] + d.wide[v] % 7 + d.flag[v] * 2
    d.visits[v, f] = int(d.y[v, f] * 0) + f + d.offset
    return d.tally[v, f] % 2 == 0


def _mixed_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "small": fg.vertex_property(_signed(rng, v, k, dtype=np.int8)),
        "wide": fg.vertex_property(_signed(rng, v, dtype=np.int64)),
        "flag": fg.vertex_property(rng.random(v) < 0.5),
        "scale": fg.edge_property(rng.integers(1, 5, _edges(graph)).astype(np.uint32)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "tally": fg.vertex_property(np.zeros((v, k), np.int32)),
        "visits": fg.vertex_property(np.zeros((v, k), np.uint8)),
        "offset": 3,
    }


# -- integer sums: exact in any order


@fg.gather(into="total", combine="sum")
def integer_sum(f, u, v, e, d):
    return d.x[u, f] * d.visits[e]


@fg.vertex
def keep_integer(f, v, d):
    d.x_next[v, f] = d.total[v, f] % 1000
    return d.total[v, f] % 2 == 1


def _integer_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_signed(rng, v, k, dtype=np.int64), iterated=True),
        "visits": fg.edge_property(rng.integers(0, 9, _edges(graph)).astype(np.int16)),
    }


# -- early return that varies with f


@fg.vertex
def ragged(f, v, d):
    x = d.x[v, f]
    if x < d.low:
        d.x_next[v, f] = x + 8
        return x < 0
    if x > d.high:
        return False
    for step in range(3):
        x = x + step * d.gain
        if x > d.high:
            break
    d.x_next[v, f] = x
    return True


def _ragged_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {
        "x": fg.vertex_property(_signed(rng, graph.vertex_count, k), iterated=True),
        "low": -5,
        "high": 12,
        "gain": 2,
    }


# -- a uniform loop with collaborative calls, under a uniform condition

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
        "x": fg.vertex_property(_floats(rng, graph.vertex_count, k), iterated=True),
        "squash": fg.vertex_property(rng.random(graph.vertex_count) < 0.5),
    }


# -- helper functions and module constants

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
        "x": fg.vertex_property(_floats(rng, graph.vertex_count, k), iterated=True),
        "weight": fg.edge_property(_floats(rng, _edges(graph)) - 0.5),
        "bias": _floats(rng, k),
    }


# -- in-place writes that later functions and gathers read


@fg.vertex
def square(f, v, d):
    d.scratch[v, f] = d.x[v, f] * d.x[v, f]
    d.seen[v] = d.superstep + 1
    return d.x[v, f] > 0


@fg.gather(into="squares", combine="sum")
def squares_of_neighbors(f, u, v, e, d):
    return d.scratch[u, f] + d.seen[u]


@fg.vertex
def after_squares(f, v, d):
    d.scratch[v, f] = d.scratch[v, f] + 1
    d.x_next[v, f] = d.squares[v, f] - d.scratch[v, f]
    return d.x_next[v, f] != d.x[v, f]


def _inplace_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_signed(rng, v, k), iterated=True),
        "scratch": fg.vertex_property(_signed(rng, v, k)),
        "seen": fg.vertex_property(np.zeros(v, np.int32)),
    }


# -- vertex -> edge: active_out is the targets


@fg.vertex
def announce(f, v, d):
    d.x_next[v, f] = d.x[v, f] + 1
    return d.x[v, f] % 2 == 0


@fg.edge
def carry(f, u, v, e, d):
    d.load_next[e, f] = d.x_next[u, f] - d.x[v, f]
    d.trips[e] = d.superstep + d.step[e]
    return d.x_next[u, f] > d.x[v, f]


@fg.edge
def carry_on(f, u, v, e, d):
    fg.atomic.max(d.arrived, (v, f), d.load_next[e, f])
    return d.load_next[e, f] % 2 == 0


def _push_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    rows = _edges(graph) * (1 if graph.directed else 2)
    load, step = np.zeros((rows, k), np.int32), rng.integers(1, 4, rows)
    loops = np.flatnonzero(graph.sources == graph.targets)
    if not graph.directed:  # a self-loop has one entry
        step[_edges(graph) + loops] = step[loops]
    return {
        "x": fg.vertex_property(_signed(rng, v, k), iterated=True),
        "load": fg.edge_property(load, iterated=True),
        "trips": fg.edge_property(np.zeros(rows, np.int32)),
        "step": fg.edge_property(step.astype(np.int32)),
        "arrived": fg.vertex_property(np.full((v, k), -1000, np.int32)),
    }


# -- vectors [f], scalars of each type, a collaborative operation of one's own


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
    d.y[v, f] = x / d.divisor
    return True


def _vector_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "x": fg.vertex_property(_floats(rng, v, k)),
        "y": fg.vertex_property(np.zeros((v, k), np.float32)),
        "gains": _floats(rng, k),
        "shifts": rng.integers(0, 3, k).astype(np.int32),
        "enabled": bool(rng.random() < 0.5),
        "divisor": 2,
    }


# -- inverse, matvec with transpose, outer, rows given as a whole


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
    half = _floats(rng, v, k, k) / k
    spd = half + np.swapaxes(half, 1, 2) + 2 * np.eye(k, dtype=np.float32)
    return {
        "M": fg.vertex_property(spd.astype(np.float32)),
        "x": fg.vertex_property(_floats(rng, v, k)),
        "out": fg.vertex_property(np.zeros((v, k), np.float32)),
    }


# -- a collaborative call inside a gather that reads its target


@fg.gather(into="pull", combine="sum")
def attention(f, u, v, e, d):
    return d.x[u, f] * fg.dot(d.x[u, f], d.x[v, f])


@fg.vertex
def attend(f, v, d):
    d.x_next[v, f] = fg.normalize(d.x[v, f] + d.pull[v, f])
    return True


def _attention_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    return {"x": fg.vertex_property(_floats(rng, graph.vertex_count, k), iterated=True)}


_EXTREMES = fg.foldmap(lowest, highest, nearest, farthest, keep_extremes)
_RANK = fg.foldmap(dangling, shares, rerank, largest_change)

BANK = (
    BankProgram(
        "label_propagation",
        (fg.foldmap(labels_of_neighbors, relax),),
        _label_state,
        thresholds=(("label", "epsilon"),),
    ),
    BankProgram(
        "weighted_sum",
        (fg.foldmap(weighted, keep_total),),
        _weighted_state,
        iterable=False,
    ),
    BankProgram(
        "extremes_int32",
        (_EXTREMES,),
        _extremes_state(np.int32),
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "extremes_float32",
        (_EXTREMES,),
        _extremes_state(np.float32),
        exact=True,
        iterable=False,
    ),
    BankProgram("reachability", (fg.foldmap(marked, spread),), _any_state, exact=True),
    BankProgram(
        "product_and_custom",
        (fg.foldmap(factors, peaks, keep_product),),
        _product_state,
        iterable=False,
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
        "two_gathers",
        (fg.foldmap(outflow, topmost, diffuse),),
        _two_state,
        iterable=False,
    ),
    BankProgram("bfs", (fg.foldmap(unseen, closest, settle),), _bfs_state, exact=True),
    BankProgram(
        "components",
        (fg.foldmap(lower_component, adopt), fg.foldmap(jump)),
        _cc_state,
        widths=(1,),
        exact=True,
    ),
    BankProgram(
        "belief_propagation",
        (fg.foldmap(message, messages, believe),),
        _bp_state,
        widths=SMALL,
        undirected=True,
        thresholds=(("belief", "epsilon"), ("msg", "epsilon")),
        slack=16.0,
        iterable=False,
    ),
    BankProgram(
        "edge_atomics",
        (fg.foldmap(count_and_lower),),
        _atomics_state,
        exact=True,
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
        "collaborate", (fg.foldmap(collaborate),), _collaborate_state, iterable=False
    ),
    BankProgram(
        "in_pairs",
        (fg.foldmap(in_pairs),),
        _pairs_state,
        widths=(2, 4, 8, 10, 32, 64),
        iterable=False,
    ),
    BankProgram(
        "mixed_types", (fg.foldmap(count_weighted, mix),), _mixed_state, iterable=False
    ),
    BankProgram(
        "integer_sum",
        (fg.foldmap(integer_sum, keep_integer),),
        _integer_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "ragged", (fg.foldmap(ragged),), _ragged_state, exact=True, iterable=False
    ),
    BankProgram("sinkhorn", (fg.foldmap(sinkhorn),), _sinkhorn_state, iterable=False),
    BankProgram(
        "helpers", (fg.foldmap(activations, activate),), _helper_state, iterable=False
    ),
    BankProgram(
        "in_place",
        (fg.foldmap(square, squares_of_neighbors, after_squares),),
        _inplace_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "push",
        (fg.foldmap(announce, carry), fg.foldmap(announce, carry, carry_on)),
        _push_state,
        exact=True,
        iterable=False,
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
    BankProgram(
        "attention", (fg.foldmap(attention, attend),), _attention_state, iterable=False
    ),
)

BY_NAME = {program.name: program for program in BANK}
