"""Graphs that change: one object with other edges, written in place or elsewhere.

This is what a graph that changes will do through the interface of its view, and no
more: everything else has to follow by the stamps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.memory.buffers import graph_arrays

__all__ = ["HOW", "VERTICES", "change", "changeable", "versions"]

VERTICES = 70
#: How a graph changes -> the aspects. "in place" and "relisted" write the edges where
#: the old ones were, and "moved" has equal traits.
HOW: dict[str, tuple[Any, ...]] = {
    "in place": ("version",),
    "relisted": ("version", "shape"),
    "moved": ("version", "moves"),
    "reshaped": ("version", "moves", "shape"),
}


class _Store:
    """CSR in arrays of its own, which can be written."""

    name = "csr"

    def __init__(self, target: str) -> None:
        self._target = target

    def array(self, graph: fg.Graph, name: str) -> Any:
        """Return a copy of an array of the host; a GPU has one anyway."""
        on_host = self._target == "cpu"
        return np.array(host_graph_array(graph, name)) if on_host else None


def changeable(graph: fg.Graph, target: str) -> fg.Graph:
    """Have a graph keep its edges in memory that can be written; return it."""
    graph_arrays(graph, choose_device(target)).layout = _Store(target)
    return graph


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
    view.advance(*aspects)
    if "moves" in aspects:
        return
    for name, array in held.items():
        is_list = any(word in name for word in ("chunks", "hub", "parts", "windows"))
        if is_list and "shape" in aspects:
            continue
        fresh = device.graph_array(graph, name)
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
    first, second = (
        fg.Graph.from_edges(*e, vertex_count=VERTICES, directed=directed, **more)
        for e in (ends, others)
    )
    return first, second
