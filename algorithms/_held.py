"""Vertices whose values are held, and what leads to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

import featgraph as fg
from featgraph.algorithms._vertices import at_living

__all__ = ["component_of", "held_values"]

Array = npt.NDArray[Any]


def held_values(graph: fg.Graph, name: str, values: npt.ArrayLike) -> fg.Held:
    """Return (V, k) in float64 with 0 for nan, and (V,) which vertices are held.

    A vertex is held if it has a number, and free if it has nan, in all k columns.
    """
    count = graph.vertex_count
    given = fg.given_array(values, np.float64, name)
    if given.ndim not in {1, 2} or len(given) != count or given.shape[1:] == (0,):
        raise fg.GraphInputError(
            f"{name} has one value, or k, for each vertex",
            got=f"shape {given.shape}",
            expected=f"({count},) or ({count}, k), nan for free vertices",
        )
    given = at_living(graph, given.matrix(), np.nan)
    found = given.held()
    if found.first_bad is not None:
        raise fg.GraphInputError(
            f"{name} is finite, or nan in all columns",
            where=f"vertex {found.first_bad}",
            got=given.row(found.first_bad),
        )
    return found


def component_of(graph: fg.Graph, is_open: Array) -> Array:
    """Return (V,): the component of each vertex, along the given edges in a mask."""
    ends = graph.sources[is_open], graph.targets[is_open]
    count = graph.vertex_count
    matrix = sp.coo_matrix((np.ones(len(ends[0]), np.int8), ends), (count, count))
    return np.asarray(connected_components(matrix, directed=False)[1])
