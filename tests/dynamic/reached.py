"""Graphs that drawn batches have reached or whose vertices are dead, and verifiers."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph import algorithms
from tests.dynamic.model import drawn_updates

__all__ = [
    "Dying", "batches_to", "draw_batch", "emptied", "living_of", "reached", "spread",
    "verify", "with_dead",
]  # fmt: skip

Rng = np.random.Generator


def reached(
    rng: Rng, vertex_count: int, *, directed: bool, batches: int = 20,
    size: int = 700, has_ids: bool = False, **more: Any,
) -> fg.DynamicGraph:  # fmt: skip
    """Return a graph that some batches of insertions and deletions have reached.

    A row is longer than those that are summed in one go, and there are copies. Edges
    have ids from before the batches, or get them when something asks.
    """
    ends = rng.integers(0, vertex_count, (2, size))
    ends[1, : size * 6 // 7] = 3
    weights = (rng.integers(1, 64, size) / 8).astype(np.float32)
    first = max(vertex_count - 20, 4)
    graph = fg.DynamicGraph.from_edges(
        *np.minimum(ends, first - 1), weights=weights, vertex_count=first,
        directed=directed, **more,
    )  # fmt: skip
    if has_ids:
        keep_ids(graph)
    graph.insert_vertices(vertex_count - first)
    for number in range(batches):
        count = int(rng.integers(1, 80))
        ends = rng.integers(0, vertex_count, (2, count))
        if number % 5 == 4:  # all edges of few vertices
            ends = rng.integers(0, 4, (2, count))
        graph.update(
            *ends, rng.random(count) < 0.6, copies=str(rng.choice(["first", "all"])),
            weights=(rng.integers(1, 64, count) / 8).astype(np.float32),
        )  # fmt: skip
    return graph


def living_of(graph: fg.Graph) -> Any:
    """Return a mask of the living vertices."""
    return np.ones(graph.vertex_count, bool) if graph.living is None else graph.living


def draw_batch(rng: Rng, graph: fg.DynamicGraph, kind: str = "any") -> None:
    """Apply drawn updates; vertices come, and some die.

    Of kind "acyclic", edges lead to higher ids; "grows" and "simple" delete nothing.
    """
    grows = kind in {"grows", "simple"}
    graph.insert_vertices(int(rng.choice([0, 0, 1, 2])))
    if graph.living_count > 20 and not grows and rng.random() < 0.15:
        graph.delete_vertices(np.flatnonzero(living_of(graph))[-2:-1])
    size, deletes = int(rng.choice([0, 1, 8, 16])), rng.choice([0, 0.4, 0.7])
    ends, insert, _ = drawn_updates(rng, graph._store, size, deletes)
    ends = np.sort(ends, axis=0) if kind == "acyclic" else ends
    copies = str(rng.choice(["all", "first"]))
    weights = rng.integers(1, 40, size)
    graph.update(*ends, insert | grows, weights=weights, copies=copies)


def verify(name: str, options: dict[str, Any], *given: Any) -> None:
    """Have the verifier of an algorithm look at an answer, with options that it has."""
    check = getattr(sys.modules[getattr(algorithms, name).__module__], f"verify_{name}")
    shared = inspect.signature(check).parameters.keys() & options.keys()
    check(*given, **{option: options[option] for option in shared})


def keep_ids(graph: fg.DynamicGraph) -> None:
    """Have the edges of a graph keep their ids."""
    graph._keeper = fg.State(graph, kept=fg.edge_property(0))  # type: ignore[attr-defined]


def batches_to(graph: fg.Graph, rng: Rng) -> fg.DynamicGraph:
    """Return an equal graph, whose edges came between others that have left.

    Edges have ids from the first one on.
    """
    made = fg.DynamicGraph.from_edges(
        vertex_count=graph.vertex_count, directed=graph.directed
    )
    keep_ids(made)
    ends = np.stack([graph.sources, graph.targets])
    for own in np.array_split(ends, 5, axis=1):
        extra = ends[::-1, rng.permutation(ends.shape[1])[:30]]
        is_other = ~made.contains(*extra)
        is_other &= ~np.isin(_keys(extra), [*_keys(ends), *_keys(ends[::-1])])
        if not own.size:
            continue
        made.insert_edges(*extra[:, is_other])
        made.insert_edges(*own)
        made.delete_edges(*extra[:, is_other])
    return made


def _keys(ends: Any) -> Any:
    return ends[0] * 10**6 + ends[1]


class Dying(fg.Graph):
    """A graph with a mask of its living vertices."""

    __slots__ = ("_living",)

    _living: npt.NDArray[np.bool_]

    @property
    def living(self) -> npt.NDArray[np.bool_]:
        return self._living

    @property
    def living_count(self) -> int:
        return int(self._living.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        return with_dead, (fg.Graph(self._edges), self._living)


def with_dead(graph: fg.Graph, living: npt.NDArray[np.bool_]) -> fg.Graph:
    """Return an equal graph on which the other vertices, without edges, are dead."""
    made = Dying(graph._edges)
    made._living = np.array(living)
    has_edges = np.asarray(graph.in_degree) + np.asarray(graph.out_degree) > 0
    assert not (has_edges & ~made._living).any(), "a dead vertex has edges"
    return made


def spread(graph: fg.Graph, ids: npt.NDArray[np.int64], count: int) -> fg.Graph:
    """Return a graph of `count` ids of which those in `ids` are the given vertices.

    All others are dead.
    """
    names = None if graph.vertex_names is None else np.arange(count) * 10
    more: dict[str, Any] = {} if names is None else {"names": names}
    made = fg.Graph.from_edges(
        ids[graph.sources], ids[graph.targets], weights=graph.weights,
        vertex_count=count, directed=graph.directed, **more,
    )  # fmt: skip
    living = np.zeros(count, np.bool_)
    living[ids] = True
    return with_dead(made, living)


def emptied(graph: fg.Graph, ids: npt.NDArray[np.int64], count: int) -> fg.Graph:
    """Return the same as `spread`, as a graph of which vertices were deleted."""
    dead, rng = np.setdiff1d(np.arange(count), ids), np.random.default_rng(9)
    more = rng.integers(0, count, (2, 3 * dead.size))
    some = rng.integers(0, 2, 3 * dead.size), np.arange(3 * dead.size)
    more[some] = np.repeat(dead, 3)  # edges that go with the dead
    weights = None if graph.weights is None else np.full(3 * dead.size, 9.0)
    made = fg.DynamicGraph.from_edges(
        *more, weights=weights, vertex_count=count, directed=graph.directed,
        target="cpu",
    )  # fmt: skip
    made.insert_edges(ids[graph.sources], ids[graph.targets], weights=graph.weights)
    made.delete_vertices(dead)
    return made
