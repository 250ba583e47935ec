"""Graphs that change: one object with other edges, written in place or elsewhere.

This is what a graph that changes will do through the interface of its view, and no
more: everything else has to follow by the stamps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from featgraph.fold.plan.traits import rows_along
from featgraph.graph.views.view import Sizes
from featgraph.program.active import word_count
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.memory.graph_arrays import graph_arrays

__all__ = ["HOW", "ROOM", "VERTICES", "change", "changeable", "roomy", "versions"]

VERTICES = 70
#: Capacities of a graph with room: its bitvectors have a word more than its vertices.
ROOM = VERTICES + 45, 600
#: How a graph changes -> the aspects. "in place", "grown" and "relisted" write the
#: edges where the old ones were, and "moved" has equal traits. "grown" has more
#: vertices and edges, too.
HOW: dict[str, tuple[Any, ...]] = {
    "in place": ("version",),
    "grown": ("version",),
    "relisted": ("version", "shape"),
    "moved": ("version", "moves"),
    "reshaped": ("version", "moves", "shape"),
}


class _Store:
    """CSR in arrays of its own, which can be written."""

    name = "csr"

    def __init__(self, target: str, room: tuple[int, int] | None = None) -> None:
        self._target, self._room = target, room

    def stays(self, name: str) -> bool:
        return False

    def renewed(self, name: str) -> None:
        """Return None: tests write all arrays."""

    def array(self, graph: fg.Graph, name: str) -> Any:
        """Return a copy of an array of the host; a GPU has one anyway.

        With room, an array is as long as the capacities are, and what is in no row is
        no vertex and no edge. Lists of hubs have no room.
        """
        is_list = any(word in name for word in ("hub", "parts"))
        if self._target != "cpu" and (self._room is None or is_list):
            return None
        made = np.array(host_graph_array(graph, name))
        return made if self._room is None else _with_room(made, name, graph, self._room)


def _with_room(array: Any, name: str, graph: fg.Graph, room: tuple[int, int]) -> Any:
    """Return an array of a graph with entries up to its capacities."""
    vertices, edges = room
    sizes = {graph.vertex_count: vertices, graph.edge_count: edges}
    if name in rows_along("both").arguments:  # a loop stands there once
        sizes[len(array)] = 2 * edges
    if name.endswith("windows"):
        array[-1] = vertices
    elif name.endswith("chunks"):  # of words, or of edges: others are of rows
        ends = {word_count(n): word_count(m) for n, m in sizes.items()} | sizes
        array[-1] = ends[int(array[-1])]
    elif name.endswith("offsets"):
        array = np.pad(array, (0, vertices - graph.vertex_count), "edge")
    elif len(array) in sizes:
        # Where entries of edges are refreshed, the sources of all slots are read.
        is_read = name == rows_along("in").ends or array.dtype == bool
        poison = 0 if is_read else np.iinfo(array.dtype).max
        spare = (0, sizes[len(array)] - len(array))
        array = np.pad(array, spare, constant_values=poison)
    return array


def changeable(graph: fg.Graph, target: str, how: str = "in place") -> fg.Graph:
    """Have a graph keep its edges in memory that can be written; return it."""
    if how == "grown":
        return roomy(graph, target)
    graph_arrays(graph, choose_device(target)).layout = _Store(target)
    return graph


def roomy(graph: fg.Graph, target: str, room: tuple[int, int] = ROOM) -> fg.Graph:
    """Have a graph keep its edges in memory with room for more; return it."""
    view = graph_arrays(graph, choose_device(target))
    view.layout = _Store(target, room)
    counts = choose_device(target).upload(_counts(graph))
    view.advance("moves", sizes=Sizes(*room, counts))
    return graph


def _counts(graph: fg.Graph) -> Any:
    return np.array([graph.vertex_count, graph.edge_count])


def change(graph: fg.Graph, edges: fg.Graph, target: str, how: str) -> None:
    """Give a graph the edges of another one.

    Where `how` leaves the shape, both have to have as many edges, and rows of the same
    lengths but for their order.
    """
    device = choose_device(target)
    view = graph_arrays(graph, device)
    view.follow()
    held, aspects = dict(view), HOW[how]
    graph._edges = edges._edges
    if how == "grown":
        device.copy(view.sizes.counts, device.upload(_counts(graph)))
    view.advance(*aspects)
    if "moves" in aspects:
        return
    for name, array in held.items():
        is_list = any(word in name for word in ("chunks", "hub", "parts", "windows"))
        if is_list and "shape" in aspects:
            continue
        made = view.layout.array(graph, name) if how == "grown" else None
        fresh = device.graph_array(graph, name) if made is None else device.upload(made)
        if fresh.shape == array.shape:
            device.copy(array, fresh)
        else:  # any cut into chunks is right
            assert "chunks" in name, name


def versions(
    rng: np.random.Generator, how: str, *, directed: bool = True, **more: Any
) -> tuple[fg.Graph, fg.Graph]:
    """Return the edges of two versions of a graph, as graphs of their own.

    Unless it is reshaped, the second one has the edges of the first between other
    vertices. A row is long in each.
    """
    ends = rng.integers(0, VERTICES, (2, 200))
    ends[1, :40] = 11
    others = rng.permutation(VERTICES)[ends]
    if how == "reshaped":
        others = rng.integers(0, VERTICES, (2, 500))
        others[1, :60] = 5
    counts = VERTICES, VERTICES
    if how == "grown":
        counts = VERTICES, VERTICES + 40  # in a word more
        others = np.append(others, rng.integers(0, counts[1], (2, 15)), axis=1)
    first, second = (
        fg.Graph.from_edges(*e, vertex_count=count, directed=directed, **more)
        for e, count in zip((ends, others), counts, strict=True)
    )
    return first, second
