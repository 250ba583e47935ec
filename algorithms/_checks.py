"""Single numbers as callers give them, and weights of any sign."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._labels import checked_weights, edge_here, weights_here
from featgraph.algorithms._verify import edges_of

__all__ = [
    "given_or_own_weights",
    "in_weights",
    "out_weights",
    "require_number",
    "signed_weights",
    "weight_properties",
]

Array = npt.NDArray[Any]

#: Graphs whose own weights have been looked at, and by what.
_looked_at: weakref.WeakKeyDictionary[fg.Graph, set[Any]] = weakref.WeakKeyDictionary()


def require_number(name: str, value: float, is_right: bool, expected: str) -> None:
    """Raise GraphInputError unless a number is in its range."""
    if not (np.isfinite(value) and is_right):
        raise fg.GraphInputError(f"{name} out of range", got=value, expected=expected)


def given_or_own_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None
) -> Array | None:
    """Return (E,) in float64, not negative; None where every edge counts one."""
    if weights is None and graph.part.weights is None:
        return None
    return checked_weights(graph, weights).astype(np.float64).on_host()


def weight_properties(
    graph: fg.Graph,
    weights: npt.ArrayLike | None,
    dtype: np.dtype[Any],
    checked: Callable[..., fg.GivenArray] = checked_weights,
) -> dict[str, Any]:
    """Return the property ``weight``, checked; none where every edge counts one.

    The State that it is for has to be the algorithm's own: given weights are lent.
    """
    if weights is not None:
        given = checked(graph, weights)
        if not np.can_cast(given.dtype, dtype, "safe"):  # else with what copies them
            given = given.astype(dtype)
        return {"weight": fg.edge_property(given.values, dtype=dtype, copy=False)}
    own = graph.weights_as(dtype)
    if own is None:
        return {}
    known = _looked_at.setdefault(graph, set())
    if checked not in known:
        check = partial(checked, graph, None)
        if graph.ranks is None:
            check()
        else:
            graph.ranks.on_all(check, "a look at the weights")
        known.add(checked)
    return {"weight": fg.edge_property(own, copy=False)}


def signed_weights(graph: fg.Graph, weights: npt.ArrayLike | None) -> fg.GivenArray:
    """Return (E,) in float64, finite, of any sign; one where none are given."""
    given = weights_here(graph, weights, np.float64)
    if given is None:
        return fg.given_array(np.ones(graph.given_edge_count))
    edge = given.first_not_finite()
    if edge is not None:
        raise fg.GraphInputError(
            "weights must be finite",
            where=edge_here(graph, weights, edge),
            got=given.row(edge),
        )
    return given


def in_weights(graph: fg.Graph, weights: Array | None) -> Array:
    """Return (V,): the weights of the edges into each vertex, added up."""
    return _weights_at(graph, weights, "targets", graph.in_edges)


def out_weights(graph: fg.Graph, weights: Array | None) -> Array:
    """Return (V,): the weights of the edges out of each vertex, added up."""
    return _weights_at(graph, weights, "sources", graph.out_edges)


def _weights_at(graph: fg.Graph, weights: Array | None, end: str, rows: Any) -> Array:
    if weights is None:
        return np.asarray(np.diff(rows.row_offsets), np.float64)
    edges = edges_of(graph)
    count = graph.vertex_count
    return np.bincount(getattr(edges, end), weights[edges.given], minlength=count)
