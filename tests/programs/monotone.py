"""Monotone programs: whatever they see of a superstep, they end at one fixpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import featgraph as fg
from tests.programs.common import Rng

# Shortest paths from as many vertices as there are features, with parents


@fg.gather(into="way", combine="argmin")
def by_road(f, u, v, e, d):
    return d.distance[u, f] + d.length[e]


@fg.vertex
def arrive(f, v, d):
    if d.way_source[v, f] < 0 or d.way[v, f] >= d.distance[v, f]:
        return False
    d.distance_next[v, f] = d.way[v, f]
    d.previous_next[v, f] = d.way_source[v, f]
    return True


def paths_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    count = graph.vertex_count
    distance = np.full((count, k), np.inf, np.float32)
    distance[rng.integers(0, count, k), np.arange(k)] = 0
    length = rng.random(graph.given_edge_count).astype(np.float32)
    length[rng.random(graph.given_edge_count) < 0.1] = 0
    return {
        "distance": fg.vertex_property(distance, iterated=True),
        "previous": fg.vertex_property(-1, shape=(k,), dtype=np.int32, iterated=True),
        "length": fg.edge_property(length),
    }


# Widest paths: large keys first


@fg.gather(into="best", combine="max")
def through(f, u, v, e, d):
    return min(d.width[u], d.capacity[e])


@fg.vertex
def widen(f, v, d):
    d.width_next[v] = max(d.width[v], d.best[v])
    return d.best[v] > d.width[v]


def widths_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    width = np.zeros(graph.vertex_count, np.int64)
    width[rng.integers(0, graph.vertex_count)] = 1 << 40
    capacity = rng.integers(1, 50, graph.given_edge_count)
    return {
        "width": fg.vertex_property(width, iterated=True),
        "capacity": fg.edge_property(capacity),
    }


# Smallest labels that reach a vertex; not every path writes what is next


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u, f] if d.open[e] else fg.nothing


@fg.vertex
def adopt(f, v, d):
    if d.low[v, f] < d.label[v, f]:
        d.label_next[v, f] = d.low[v, f]
    return d.label_next[v, f] < d.label[v, f]


def labels_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    label = rng.permutation(graph.vertex_count * k).reshape(-1, k)
    return {
        "label": fg.vertex_property(label.astype(np.int32), iterated=True),
        "open": fg.edge_property(rng.random(graph.given_edge_count) < 0.9),
    }


# Which vertices are reached, and components with a foreign read: a list of foldmaps


@fg.gather(into="touched", combine="any")
def touch(f, u, v, e, d):
    return d.reached[u]


@fg.vertex
def mark(f, v, d):
    d.reached_next[v] = d.touched[v]
    return d.touched[v] and not d.reached[v]


def reached_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    reached = rng.random(graph.vertex_count) < 0.1
    return {"reached": fg.vertex_property(reached, iterated=True)}


@fg.gather(into="smallest", combine="min")
def neighboring(f, u, v, e, d):
    return d.comp[u]


@fg.vertex
def join(f, v, d):
    d.comp_next[v] = min(d.comp[v], d.smallest[v])
    return d.smallest[v] < d.comp[v]


@fg.vertex
def jump(f, v, d):
    root = d.comp[d.comp[v]]
    d.comp_next[v] = root
    return root < d.comp[v]


def components_state(graph: Any, k: int, rng: Rng) -> dict[str, Any]:
    comp = np.arange(graph.vertex_count, dtype=np.int32)
    return {"comp": fg.vertex_property(comp, iterated=True)}


@dataclass(frozen=True)
class Monotone:
    """A program, and where its fixpoint is.

    Attributes
    ----------
    key : str
        The property with one fixpoint; others may depend on the order.
    k : int
        The width that tests use.
    waits : bool
        Whether `near_far` can go by the key.
    """

    name: str
    foldmaps: tuple[Any, ...]
    make_state: Callable[[Any, int, Rng], dict[str, Any]]
    key: str
    k: int = 1
    waits: bool = True

    def __repr__(self) -> str:
        return self.name

    def state(self, graph: Any, seed: int) -> fg.State:
        rng = np.random.default_rng(seed)
        return fg.State(graph, **self.make_state(graph, self.k, rng))


MONOTONE = (
    Monotone("paths", (fg.foldmap(by_road, arrive),), paths_state, "distance", 3),
    Monotone("widths", (fg.foldmap(through, widen),), widths_state, "width"),
    Monotone("labels", (fg.foldmap(lowest, adopt),), labels_state, "label", 2),
    Monotone(
        "reached", (fg.foldmap(touch, mark),), reached_state, "reached", waits=False
    ),
    Monotone(
        "components",
        (fg.foldmap(neighboring, join), fg.foldmap(jump)),
        components_state,
        "comp",
        waits=False,
    ),
)
BY_NAME = {program.name: program for program in MONOTONE}


def check_parents(state: fg.State) -> None:
    """Every distance is its parent's and the length between; parents end at roots."""
    graph, distance = state.graph, state["distance"]
    previous, length = state["previous"], state["length"]
    count = graph.vertex_count
    source = graph.in_edges.column_indices
    target = np.repeat(np.arange(count), graph.in_degree)
    length = length[graph.given_index % max(graph.given_edge_count, 1)]
    for f in range(distance.shape[1]):
        parent = previous[:, f]
        reached = distance[:, f]
        over = reached[source] + length
        fits = (parent[target] == source) & (over == reached[target])
        explained = np.zeros(count, bool)
        explained[target[fits]] = True
        np.testing.assert_array_equal(explained, parent >= 0)
        at = np.where(parent >= 0, parent, np.arange(count))
        for _ in range(count.bit_length()):  # twice as far each time
            at = at[at]
        assert (parent[at] < 0).all(), "parents go round"
