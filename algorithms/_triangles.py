"""The triangles of a graph as arrays, in NumPy: what the verifiers compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["Triangles", "neighbor_counts", "triangles_of"]

Array = npt.NDArray[Any]


class Triangles(NamedTuple):
    """All triangles.

    Attributes
    ----------
    vertices : ndarray of shape (T, 3)
        Their corners.
    edges : ndarray of shape (T, 3)
        Their edges, by place in the order in which they were given.
    """

    vertices: Array
    edges: Array


def neighbor_counts(graph: fg.Graph) -> Array:
    """Return how many neighbors each vertex has beside itself, (V,), int64."""
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    apart = sources != targets
    ends = np.concatenate([sources[apart], targets[apart]])
    return np.bincount(ends, minlength=graph.vertex_count)


def triangles_of(graph: fg.Graph) -> Triangles:
    """List the triangles of an undirected graph without parallel edges.

    Every pair of edges that lead up from a vertex, in the order of degrees, is a
    candidate: memory and time are those of all such pairs.
    """
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    count = graph.vertex_count
    vertices = np.lexsort((np.arange(count), neighbor_counts(graph)))
    degree_order = np.empty(count, np.int64)
    degree_order[vertices] = np.arange(count)
    given = np.flatnonzero(sources != targets)
    ends = np.sort(
        np.stack([degree_order[sources[given]], degree_order[targets[given]]]), axis=0
    )
    keys = ends[0] * count + ends[1]
    sorted_ = np.argsort(keys)
    given, keys, (low, high) = given[sorted_], keys[sorted_], ends[:, sorted_]
    # Edge i is paired with every later edge of the same row.
    row_ends = np.searchsorted(low, low, "right")
    others = row_ends - np.arange(low.size) - 1
    first = np.repeat(np.arange(low.size), others)
    starts = np.cumsum(others) - others
    second = first + 1 + np.arange(first.size) - np.repeat(starts, others)
    wanted = high[first] * count + high[second]
    place = np.minimum(np.searchsorted(keys, wanted), max(keys.size - 1, 0))
    closed = keys[place] == wanted if keys.size else np.zeros(0, np.bool_)
    first, second, third = first[closed], second[closed], place[closed]
    corners = np.stack([low[first], high[first], high[second]], axis=1)
    edges = np.stack([given[first], given[second], given[third]], axis=1)
    return Triangles(vertices[corners], edges)
