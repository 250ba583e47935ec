"""Graphs of which vertices are dead, without anything that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["Dying", "emptied", "spread", "with_dead"]


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
