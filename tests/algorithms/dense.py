"""Dense matrices of graphs, for recurrences in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

Array = npt.NDArray[Any]

__all__ = ["dense"]


def dense(graph: fg.Graph, weights: Array) -> Array:
    """Return (V, V): at [v, u] the weights of the edges u -> v, added up."""
    matrix = np.zeros((graph.vertex_count, graph.vertex_count))
    np.add.at(matrix, (graph.targets, graph.sources), weights)
    if not graph.directed:
        twins = graph.sources != graph.targets
        ends = graph.sources[twins], graph.targets[twins]
        np.add.at(matrix, ends, weights[twins])
    return matrix
