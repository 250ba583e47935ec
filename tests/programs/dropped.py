"""Writes that the next function reads at other vertices, and may itself drop."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import BankProgram, Rng, edge_count, signed


@fg.vertex
def propose(f, v, d):
    d.x_next[v, f] = d.x[v, f] + d.pick[v] % 3
    return d.pick[v] % 4 != 0


@fg.vertex
def compare(f, v, d):
    d.seen[v, f] = d.x_next[d.pick[v], f]
    return (d.seen[v, f] + v) % 3 == 0


@fg.vertex
def compare_and_end(f, v, d):
    d.seen[v, f] += d.x_next[d.pick[v], f]
    d.y_next[v, f] = d.y[v, f] + 1
    return False


@fg.gather(into="low", combine="min")
def look_around(f, u, v, e, d):
    return d.x_next[u, f]


@fg.vertex
def stay(f, v, d):
    return d.low[v, f] % 3 != 0


@fg.gather(into="high", combine="max")
def look_again(f, u, v, e, d):
    return d.x_next[u, f] - d.x[v, f]


@fg.vertex
def end(f, v, d):
    d.y_next[v, f] = d.high[v, f] % 50
    return d.low[v, f] % 2 == 0


@fg.edge
def write(f, u, v, e, d):
    d.m_next[e] = d.m[e] + u % 3
    return u % 4 != 0


@fg.edge
def answer(f, u, v, e, d):
    d.other[e] = d.m_next[fg.reverse(e)]
    return (u + v) % 2 == 0


@fg.edge
def answer_again(f, u, v, e, d):
    d.last[e] = d.m_next[fg.reverse(e)] + d.other[e] % 2
    return u % 3 != 0


@fg.vertex
def count(f, v, d):
    d.x_next[v, f] = d.x[v, f] + 1
    return True


def _far_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    v = graph.vertex_count
    return {
        "pick": fg.vertex_property(rng.integers(0, v, v).astype(np.int32)),
        "x": fg.vertex_property(signed(rng, v, k), iterated=True),
        "y": fg.vertex_property(signed(rng, v, k), iterated=True),
        "seen": fg.vertex_property(np.zeros((v, k), np.int32)),
    }


def _twin_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    rows = 2 * edge_count(graph)
    values = signed(rng, rows)
    loops = np.flatnonzero(graph.sources == graph.targets)
    values[edge_count(graph) + loops] = values[loops]
    options = {"per_direction": True}
    return {
        "m": fg.edge_property(values, iterated=True, **options),
        "other": fg.edge_property(np.int32(0), **options),
        "last": fg.edge_property(np.int32(0), **options),
        "x": fg.vertex_property(signed(rng, graph.vertex_count, k), iterated=True),
    }


PROGRAMS = (
    BankProgram(
        "dropped",
        (
            fg.foldmap(propose, compare),
            fg.foldmap(propose, compare, compare_and_end),
            fg.foldmap(propose, look_around, stay, look_again, end),
        ),
        _far_state,
        exact=True,
        iterable=False,
    ),
    BankProgram(
        "dropped_twins",
        (
            fg.foldmap(write, answer),
            fg.foldmap(write, answer, answer_again, count),
        ),
        _twin_state,
        exact=True,
        undirected=True,
        iterable=False,
    ),
)
