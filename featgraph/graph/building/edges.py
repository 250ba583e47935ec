"""The checked edge list: what a graph is made of, before any adjacency is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import GraphInputError
from featgraph.graph.building.arguments import require_flag, shown
from featgraph.graph.building.check import (
    checked_count,
    checked_weights,
    flat_array,
    vertex_ids,
)
from featgraph.graph.building.merge import POLICIES, merge_duplicates
from featgraph.graph.building.names import VertexNames, factorise

__all__ = ["EdgeList", "edge_list", "freeze"]


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array that this package owns read-only, and return it."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges in given order; owns its arrays and makes them read-only.

    Attributes
    ----------
    sources, targets : ndarray of int32, shape (E_given,)
    weights : ndarray, shape (E_given,), or None
    vertex_count : int
    directed : bool
    names : ndarray of int64 or uint64 (ascending), tuple, or None; length V
    """

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[Any] | None
    vertex_count: int
    directed: bool
    names: VertexNames | None = None

    def __post_init__(self) -> None:
        for array in (self.sources, self.targets, self.weights, self.names):
            if isinstance(array, np.ndarray):
                freeze(array)


def edge_list(
    sources: object,
    targets: object,
    *,
    weights: object = None,
    vertex_count: object = None,
    directed: bool = True,
    duplicates: str = "keep",
    names: bool = False,
) -> EdgeList:
    """Check what a caller gives and copy it; see `Graph.from_edges`."""
    directed, names = require_flag("directed", directed), require_flag("names", names)
    if not isinstance(duplicates, str) or duplicates not in POLICIES:
        raise GraphInputError(
            "unknown policy for repeated edges",
            where="duplicates",
            got=shown(duplicates),
            expected="one of " + ", ".join(map(repr, POLICIES)),
        )
    source_array = flat_array(sources, "sources")
    target_array = flat_array(targets, "targets")
    if source_array.size != target_array.size:
        raise GraphInputError(
            "as many targets as sources are needed",
            where="targets",
            got=f"{source_array.size} sources and {target_array.size} targets",
            expected="two arrays of one length",
        )
    count = None if vertex_count is None else checked_count(vertex_count)
    own_names: VertexNames | None = None
    if names:
        own_sources, own_targets, own_names = factorise(source_array, target_array)
        count = _named_count(own_sources, own_targets, own_names, count)
    else:
        own_sources = vertex_ids(source_array, "sources", count)
        own_targets = vertex_ids(target_array, "targets", count)
        if count is None:
            count = _highest_id(own_sources, own_targets) + 1
    if count == 0:
        raise GraphInputError(
            "a graph needs at least one vertex",
            got="no edges and no vertex_count",
            fix="give vertex_count: vertices without edges are allowed",
        )
    own_weights = None
    if weights is not None:
        own_weights = checked_weights(weights, own_sources.size)
    if duplicates != "keep":
        own_sources, own_targets, own_weights = merge_duplicates(
            own_sources, own_targets, own_weights, directed=directed, policy=duplicates
        )
    return EdgeList(
        own_sources, own_targets, own_weights, count, bool(directed), own_names
    )


def _highest_id(sources: NDArray[np.int32], targets: NDArray[np.int32]) -> int:
    return max(int(sources.max()), int(targets.max())) if sources.size else -1


def _named_count(
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    names: VertexNames | None,
    vertex_count: int | None,
) -> int:
    """Return V of a renumbered graph; vertices that no edge names must stay possible.

    Names 0..n-1 are no renumbering at all, so a larger vertex_count then adds isolated
    vertices; otherwise they would have no name.
    """
    named = _highest_id(sources, targets) + 1
    if vertex_count is None or vertex_count == named:
        return named
    if names is None and vertex_count > named:
        return vertex_count
    raise GraphInputError(
        "vertex_count contradicts the vertex names",
        where="vertex_count",
        got=f"{vertex_count}, with {named} names among the edges",
        expected=f"{named}, or none",
        fix="leave vertex_count out: with names=True the edges say what vertices exist",
    )
