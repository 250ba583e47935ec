"""Traversal, edges and atomics: what is due, what passes, what commits."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, signed

# Breadth-first search with parents: a filter before the gather

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


def bfs_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    level = np.full((graph.vertex_count, k), UNSEEN, np.int32)
    parent = np.full((graph.vertex_count, k), -1, np.int32)
    roots = rng.integers(0, graph.vertex_count, k)
    level[roots, np.arange(k)] = 0
    parent[roots, np.arange(k)] = roots
    return {
        "level": fg.vertex_property(level, iterated=True),
        "parent": fg.vertex_property(parent, iterated=True),
    }


# Connected components: no feature axis, a foreign read, a list of foldmaps


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


# Atomics on edges


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
        "x": fg.vertex_property(signed(rng, v, k, dtype=np.float32)),
        "visits": fg.vertex_property(np.zeros((v, k), np.int32)),
        "mass": fg.vertex_property(np.zeros((v, k), np.float32)),
        "least": fg.vertex_property(np.full((v, k), 100, np.float32)),
        "most": fg.vertex_property(np.full((v, k), -100, np.float32)),
    }


# Early return that varies with f


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
        "x": fg.vertex_property(signed(rng, graph.vertex_count, k), iterated=True),
        "low": -5,
        "high": 12,
        "gain": 2,
    }


# In-place writes that later functions and gathers read


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
        "x": fg.vertex_property(signed(rng, v, k), iterated=True),
        "scratch": fg.vertex_property(signed(rng, v, k)),
        "seen": fg.vertex_property(np.zeros(v, np.int32)),
    }


# Vertex -> edge: active_out is the targets


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
    rows = edge_count(graph) * (1 if graph.directed else 2)
    load, step = np.zeros((rows, k), np.int32), rng.integers(1, 4, rows)
    loops = np.flatnonzero(graph.sources == graph.targets)
    if not graph.directed:  # a self-loop has one entry
        step[edge_count(graph) + loops] = step[loops]
    return {
        "x": fg.vertex_property(signed(rng, v, k), iterated=True),
        "load": fg.edge_property(load, iterated=True),
        "trips": fg.edge_property(np.zeros(rows, np.int32)),
        "step": fg.edge_property(step.astype(np.int32)),
        "arrived": fg.vertex_property(np.full((v, k), -1000, np.int32)),
    }


PROGRAMS = (
    BankProgram("bfs", (fg.foldmap(unseen, closest, settle),), bfs_state, exact=True),
    BankProgram(
        "components",
        (fg.foldmap(lower_component, adopt), fg.foldmap(jump)),
        _cc_state,
        widths=(1,),
        exact=True,
    ),
    BankProgram(
        "edge_atomics",
        (fg.foldmap(count_and_lower),),
        _atomics_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "ragged", (fg.foldmap(ragged),), _ragged_state, exact=True, iterable=False
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
)
