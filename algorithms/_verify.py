"""Quantities computed in NumPy, and checks, for the verifiers of algorithms.

`edges_of` lists every edge in both directions and `triangles_of` every triangle;
`require` and `require_*` raise AssertionError at the first vertex that is wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = [
    "Edges",
    "distances_from",
    "edges_of",
    "ends_of_rows",
    "neighbor_counts",
    "require",
    "require_reached",
    "require_smallest",
    "sums_over_in_edges",
    "triangles_of",
]

Array = npt.NDArray[Any]


class Edges(NamedTuple):
    """All directed edges of a graph.

    Attributes
    ----------
    sources, targets : ndarray of shape (E,)
        Ends; an undirected edge occurs in both directions, a self-loop once.
    given : ndarray of shape (E,)
        Index of the given edge.
    """

    sources: Array
    targets: Array
    given: Array


def edges_of(graph: fg.Graph) -> Edges:
    """Return the edges of a graph in given order, followed by their twins."""
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    given = np.arange(len(sources))
    if graph.directed:
        return Edges(sources, targets, given)
    twins = np.flatnonzero(sources != targets)  # a self-loop is its own twin
    return Edges(
        np.concatenate([sources, targets[twins]]),
        np.concatenate([targets, sources[twins]]),
        np.concatenate([given, twins]),
    )


def sums_over_in_edges(edges: Edges, contributions: Array, vertex_count: int) -> Array:
    """Sum contributions, (E, ...), over the edges into each vertex: (V, ...)."""
    sums = np.zeros((vertex_count, *contributions.shape[1:]), contributions.dtype)
    np.add.at(sums, edges.targets, contributions)
    return sums


def require(holds: Any, what: str, item: str = "vertex") -> None:
    """Raise AssertionError with the first vertex, or `item`, where `holds` is False."""
    holds = np.asarray(holds)
    if not holds.all():
        raise AssertionError(f"{item} {int(np.argmin(holds))}: {what}")


def require_smallest(graph: fg.Graph, labels: Array) -> None:
    """Raise AssertionError unless each label is the smallest vertex that has it.

    Dead vertices have the label -1.
    """
    count = graph.vertex_count
    if labels.shape != (count,):
        raise AssertionError(f"labels of shape {labels.shape}, not ({count},)")
    dead = np.zeros(count, np.bool_) if graph.living is None else ~graph.living
    is_smaller = (labels >= 0) & (labels <= np.arange(count))
    require(is_smaller | dead, "the label is no smaller vertex")
    require(~dead | (labels == -1), "a dead vertex has a label")
    is_first = dead | (labels[labels] == labels)
    require(is_first, "the vertex of the label has another one")


def ends_of_rows(rows: Any, front: Array) -> tuple[Array, Array]:
    """Return the other ends of all edges of some rows, row by row, and the degrees."""
    first = rows.row_offsets[front].astype(np.int64)
    degree = rows.row_offsets[front + 1] - first
    # Slots of a row follow each other: its first slot, plus the place within the row.
    before = np.repeat(np.cumsum(degree) - degree, degree)
    slots = np.repeat(first, degree) + np.arange(degree.sum()) - before
    return rows.column_indices[slots], degree


def distances_from(
    source: int, tails: Array, heads: Array, lengths: Array, count: int
) -> Array:
    """Return the distances, (V,), from a vertex along edges from tails to heads."""
    distance, before = np.full(count, np.inf), np.empty(0)
    distance[source] = 0
    while not np.array_equal(distance, before):  # Bellman and Ford
        before = distance.copy()
        np.minimum.at(distance, heads, before[tails] + lengths)
    return distance


def require_reached(rows: Any, labels: Array, what: str) -> None:
    """Raise AssertionError unless each label's vertex reaches all that have the label.

    Parameters
    ----------
    rows : Adjacency
        Out-edges of each vertex. Only edges between vertices of equal labels count.
    labels : ndarray of shape (V,)
        The label of each vertex.
    what : str
        The text of the error, after "the vertex that".
    """
    reached = labels == np.arange(labels.size)
    front = np.flatnonzero(reached)
    reached |= labels < 0  # dead vertices have no label
    while front.size:
        ends, degree = ends_of_rows(rows, front)
        ends = ends[(labels[ends] == np.repeat(labels[front], degree)) & ~reached[ends]]
        reached[ends] = True
        front = np.unique(ends)
    require(reached, f"the vertex that {what}")


class _Triangles(NamedTuple):
    """All triangles.

    Attributes
    ----------
    vertices : ndarray of shape (T, 3)
        The corners.
    edges : ndarray of shape (T, 3)
        Indices of the given edges.
    """

    vertices: Array
    edges: Array


def neighbor_counts(graph: fg.Graph) -> Array:
    """Return the number of edges at each vertex without self-loops, (V,), int64."""
    sources, targets = np.asarray(graph.sources), np.asarray(graph.targets)
    apart = sources != targets
    ends = np.concatenate([sources[apart], targets[apart]])
    return np.bincount(ends, minlength=graph.vertex_count)


def triangles_of(graph: fg.Graph) -> _Triangles:
    """List the triangles of an undirected graph without parallel edges.

    Each pair of edges from a vertex to vertices of higher degree is a candidate. Memory
    and time are proportional to the number of candidates.
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
    return _Triangles(vertices[corners], edges)
