"""Edge values between the order in which edges were given and the order of edge ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import GraphInputError
from featgraph.graph._arguments import require_flag
from featgraph.graph._host import host_array

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["collect_edge_values", "expand_edge_values"]


def expand_edge_values(graph: Structure, values: object) -> NDArray[Any]:
    """Put values into edge-id order; see `Graph.expand_edge_values`."""
    array = host_array(values, "values")
    given = graph.given_edge_count
    length = array.shape[0] if array.ndim else -1
    if length == given:
        # The twin of edge i is row given + i, which wraps around to row i.
        if given == 0:
            return array.copy()
        return np.take(array, graph.given_index, axis=0, mode="wrap")
    if length == 2 * given and not graph.directed:
        return np.take(array, graph.given_index, axis=0)
    expected = f"first axis {given}, one entry for each given edge"
    if not graph.directed:
        expected += f", or {2 * given}, one for each direction (twin of i: {given} + i)"
    raise GraphInputError(
        "edge values do not fit the graph",
        where="values",
        got=f"shape {array.shape}",
        expected=expected,
        fix="give the values in the order in which the edges were given",
    )


def collect_edge_values(
    graph: Structure, stored: object, per_direction: bool
) -> NDArray[Any]:
    """Put values back into given order; see `Graph.collect_edge_values`."""
    array = host_array(stored, "stored")
    if not array.ndim or array.shape[0] != graph.edge_count:
        raise GraphInputError(
            "values in edge-id order do not fit the graph",
            where="stored",
            got=f"shape {array.shape}",
            expected=f"first axis {graph.edge_count}, one entry for each edge id",
        )
    per_direction = require_flag("per_direction", per_direction)
    if per_direction and graph.directed:
        raise GraphInputError(
            "a directed graph has one value for each given edge",
            where="per_direction",
            got=True,
            expected="False",
        )
    given, rows = graph.given_edge_count, graph.given_index
    result = np.empty((given * (1 + per_direction), *array.shape[1:]), array.dtype)
    if per_direction or graph.directed:
        result[rows] = array
    else:
        is_given = rows < given
        result[rows[is_given]] = array[is_given]
    if per_direction:
        loops = np.flatnonzero(graph.sources == graph.targets)
        result[given + loops] = result[loops]
    return result
