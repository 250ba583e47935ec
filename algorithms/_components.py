"""What the verifiers of components share: labels of theirs, and reached vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._verify import require

__all__ = ["require_reached", "require_smallest"]

Array = npt.NDArray[Any]


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


def require_reached(rows: Any, labels: Array, what: str) -> None:
    """Raise AssertionError unless the vertex of each label reaches all that have it.

    Parameters
    ----------
    rows : Adjacency
        Of each vertex, where an edge leads. Only edges between equal labels count.
    labels : ndarray of shape (V,)
        The label of each vertex.
    what : str
        What the error says; it begins with "the vertex that".
    """
    reached = labels == np.arange(labels.size)
    front = np.flatnonzero(reached)
    reached |= labels < 0  # dead vertices have none
    while front.size:
        first = rows.row_offsets[front].astype(np.int64)
        degree = rows.row_offsets[front + 1] - first
        # Places of all edges of the front: those of each row, one behind the other.
        before = np.repeat(np.cumsum(degree) - degree, degree)
        slots = np.repeat(first, degree) + np.arange(degree.sum()) - before
        ends = rows.column_indices[slots]
        ends = ends[(labels[ends] == np.repeat(labels[front], degree)) & ~reached[ends]]
        reached[ends] = True
        front = np.unique(ends)
    require(reached, f"the vertex that {what}")
