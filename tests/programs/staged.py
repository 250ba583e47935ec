"""Programs that go on with a foldmap where nothing is due (0098): forms of stages."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from featgraph.algorithms.k_core import rise, step
from tests.programs.common import Rng

NONE = 2**31 - 1


def peeled_state(graph: Any, rng: Rng) -> dict[str, Any]:
    return {
        "core": fg.vertex_property(np.zeros(graph.vertex_count, np.int64)),
        "degree": fg.vertex_property(graph.out_degree.astype(np.int32)),
    }


# Searches one after the other: stages commit an iterated property, and it is one buffer


@fg.vertex
def unlabelled(f, v, d):
    return d.label[v] < 0


@fg.gather(into="low", combine="min", sources="active")
def lowest(f, u, v, e, d):
    return d.label[u]


@fg.vertex
def adopt(f, v, d):
    d.label_next[v] = d.low[v]
    return True


@fg.reduce(into="root", combine="min")
def first_unlabelled(f, v, d):
    return d.order[v] if d.label[v] < 0 else NONE


@fg.vertex
def begin_there(f, v, d):
    if d.label[v] >= 0 or d.order[v] != d.root[0]:
        return False
    d.label_next[v] = d.order[v]
    return True


def searches_state(graph: Any, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    return {
        "label": fg.vertex_property(np.full(count, -1, np.int32), iterated=True),
        "order": fg.vertex_property(rng.permutation(count).astype(np.int32)),
    }


# A sum of reals, whose bits depend on its order; two buffers; all vertices each time


@fg.gather(into="most", combine="max", sources="active")
def highest(f, u, v, e, d):
    return d.level[u] - 1


@fg.vertex
def sink(f, v, d):
    d.visits[v] = d.visits[v] + 1
    d.level_next[v] = d.most[v]
    return d.most[v] > d.level[v]


@fg.reduce(into="mass", combine="sum")
def add_mass(f, v, d):
    return d.x[v]


@fg.reduce(into="calls", combine="sum")
def count_calls(f, v, d):
    return d.left[v] + d.visits[v]


@fg.vertex
def shrink(f, v, d):
    d.x[v] = d.x[v] * 0.37 + d.mass[0] / 64 + d.calls[0] / 128
    d.left[v] = d.left[v] - 1
    return d.left[v] >= 0


def mass_state(graph: Any, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    return {
        "level": fg.vertex_property(
            rng.integers(0, 6, count).astype(np.int32), iterated=True
        ),
        "visits": fg.vertex_property(np.zeros(count, np.int32)),
        "x": fg.vertex_property(rng.random(count).astype(np.float32)),
        "left": fg.vertex_property(rng.integers(0, 5, count).astype(np.int32)),
    }


# Features; a filter with one more, which names no domain; no reduce


@fg.vertex
def is_open(f, v, d):
    return d.wall[v] < 4


@fg.gather(into="best", combine="min", sources="active")
def best_of(f, u, v, e, d):
    return d.label[u, f]


@fg.vertex
def take(f, v, d):
    d.label_next[v, f] = min(d.label[v, f], d.best[v, f])
    return d.best[v, f] < d.label[v, f] and d.wall[v] > 0


@fg.vertex
def move_wall(f, v, d):
    d.wall[v] = d.wall[v] + 1
    return d.wall[v] > 1


def walls_state(graph: Any, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    label = rng.integers(0, 99, (count, 3)).astype(np.int32)
    return {
        "label": fg.vertex_property(label, iterated=True),
        "wall": fg.vertex_property(rng.integers(0, 3, count).astype(np.int32)),
    }


# A sum of integers and a largest one; functions in front of gathers that write


@fg.vertex
def note_visit(f, v, d):
    d.visits[v] = d.visits[v] + 1
    return d.level[v] < 5


@fg.reduce(into="most_visits", combine="max")
def most_visits(f, v, d):
    return d.visits[v]


@fg.vertex
def has_turns(f, v, d):
    return d.left[v] > 0


@fg.vertex
def take_turn(f, v, d):
    d.left[v] = d.left[v] - 1
    d.visits[v] = d.visits[v] + d.calls[0] - d.most_visits[0]
    return d.visits[v] % 2 == 0


@fg.vertex
def count_down(f, v, d):
    d.left[v] = d.left[v] - 1
    return d.left[v] > d.superstep - d.superstep


@fg.gather(into="around", combine="max")
def largest_around(f, u, v, e, d):
    return d.left[u]


@fg.vertex
def as_around(f, v, d):
    d.left[v] = d.left[v] - 1
    return d.left[v] >= 0 and d.around[v] >= 0


@fg.vertex
def float_or_not(f, v, d):
    d.left[v] = d.left[v] - 1
    d.level_next[v] = d.level[v] + 2
    return d.left[v] >= 0


sinking = fg.foldmap(highest, sink)

#: Name -> step, stage, what makes values, and whether loops of the CPU run the stage.
STAGED: dict[str, tuple[Any, Any, Any, bool]] = {
    "peeling": (step, rise, peeled_state, True),
    "searches": (
        fg.foldmap(unlabelled, lowest, adopt),
        fg.foldmap(first_unlabelled, begin_there), searches_state, True,
    ),
    "sums of reals": (
        sinking, fg.foldmap(add_mass, count_calls, shrink), mass_state, True
    ),
    "walls": (
        fg.foldmap(is_open, best_of, take), fg.foldmap(is_open, move_wall),
        walls_state, True,
    ),
    "countdown": (
        fg.foldmap(note_visit, highest, sink),
        fg.foldmap(count_calls, most_visits, has_turns, take_turn), mass_state, True,
    ),
    "dropped": (sinking, fg.foldmap(float_or_not), mass_state, False),
    "supersteps": (sinking, fg.foldmap(count_down), mass_state, False),
    "edges": (sinking, fg.foldmap(largest_around, as_around), mass_state, False),
}  # fmt: skip
