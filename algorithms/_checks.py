"""Single numbers as callers give them, and weights of any sign."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._labels import (
    bound_weights,
    checked_weights,
    edge_here,
    scaled_weights,
    weights_here,
)
from featgraph.algorithms._verify import edges_of

__all__ = [
    "given_or_own_weights",
    "in_weights",
    "out_weights",
    "require_held",
    "require_number",
    "signed_weights",
    "weight_properties",
]

Array = npt.NDArray[Any]
#: Version of a graph -> what has looked at its own weights.
_looked_at: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def require_number(name: str, value: float, is_right: bool, expected: str) -> None:
    """Raise GraphInputError unless a number is in its range."""
    if not (is_right and value - value == 0):
        raise fg.GraphInputError(
            f"{name} out of range", where=f"{name}=", got=value, expected=expected
        )


def require_held(name: str, value: float, real: np.dtype[Any]) -> None:
    """Raise GraphInputError where a type rounds a share to 0 or 1 that is neither."""
    if float(real.type(value)) in {0.0, 1.0} and value not in {0, 1}:
        raise fg.GraphInputError(
            f"{name} is {float(real.type(value)):g} in {real}",
            where=f"{name}=",
            got=f"{value!r}",
            expected=f"a number that {real} tells from 0 and 1",
            fix="give dtype=np.float64" if real == np.float32 else None,
        )


def given_or_own_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, *, ratios: bool = False
) -> Array | None:
    """Return (E,) in float64, not negative; None where every edge counts one.

    Parameters
    ----------
    ratios : bool
        Only ratios of weights count: they may be scaled.
    """
    if weights is None and graph.part.weights is None:
        return None
    given = checked_weights(graph, weights)
    double = np.dtype(np.float64)
    scaled = scaled_weights(graph, weights, given, double) if ratios else None
    return (given.astype(double) if scaled is None else scaled).on_host()


def weight_properties(
    graph: fg.Graph,
    weights: npt.ArrayLike | None,
    dtype: np.dtype[Any],
    checked: Callable[..., fg.GivenArray] = checked_weights,
    *,
    ratios: bool = False,
    name: str = "weights",
) -> dict[str, Any]:
    """Return the property ``weight``, checked; none where every edge counts one.

    The State that it is for has to be the algorithm's own: given weights are lent.

    Parameters
    ----------
    ratios : bool
        Only ratios of weights count: they may be scaled to what the type holds.
    name : str
        The argument, in errors.
    """
    if weights is not None:
        given = checked(graph, weights, name=name)
        scaled = scaled_weights(graph, weights, given, dtype) if ratios else None
        if scaled is not None:
            given = scaled
        elif not np.can_cast(given.dtype, dtype, "safe"):  # else with what copies them
            given = given.astype(dtype, name)
        if checked is checked_weights:
            _require_sums(graph, weights, given, dtype)
        return {"weight": fg.edge_property(given.values, dtype=dtype, copy=False)}
    bound = bound_weights(graph, dtype) if checked is checked_weights else None
    if bound is not None:
        return {"weight": bound}
    if graph.part.weights is None:
        return {}
    known = _looked_at.setdefault(graph.stamps.version, set())
    key = checked, dtype, ratios
    if key not in known:
        look, ranks = partial(_own, graph, *key), graph.ranks
        found = look() if ranks is None else ranks.on_all(look, "a look at the weights")
        if found is not None:
            return {"weight": fg.edge_property(found.values, copy=False)}
        known.add(key)
    return {"weight": fg.edge_property(graph.weights_as(dtype), copy=False)}


def _own(
    graph: fg.Graph,
    checked: Callable[..., fg.GivenArray],
    dtype: np.dtype[Any],
    ratios: bool,
) -> fg.GivenArray | None:
    """Check the weights of a graph; return them if they have to be scaled."""
    given = checked(graph, None)
    scaled = scaled_weights(graph, None, given, dtype) if ratios else None
    if scaled is None:
        graph.weights_as(dtype)
        if checked is checked_weights:
            _require_sums(graph, None, given, dtype)
    return scaled


def _require_sums(
    graph: fg.Graph,
    weights: npt.ArrayLike | None,
    given: fg.GivenArray,
    dtype: np.dtype[Any],
) -> None:
    """Raise where weights of edges at a vertex add up to more than a type holds.

    They are added up only where one of them is so large that this could be.
    """
    most = float(np.finfo(dtype).max)
    share = most / max(2 * given.size, 1)
    if share > float(given.greatest):
        return
    edge = given.first_row_inside(share, given.greatest)
    if edge is None:
        return
    where, largest = edge_here(graph, weights, edge), most
    if graph.ranks is None:
        w = given.astype(np.float64).on_host()
        with np.errstate(over="ignore"):
            sums = np.maximum(in_weights(graph, w), out_weights(graph, w))
        largest = float(sums.max())
        where = f"vertex {int(np.argmax(sums))}"
        if largest <= most:
            return
    raise fg.GraphInputError(
        f"weights add up to more than {dtype} holds",
        where=where,
        got=f"{largest:.3g}",
        expected=f"at most {most:.2g}",
        fix="give dtype=np.float64, or scale the weights"
        if dtype == np.float32
        else "scale the weights",
    )


def signed_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, name: str = "weights"
) -> fg.GivenArray:
    """Return (E,) in float64, finite, of any sign; one where none are given."""
    given = weights_here(graph, weights, np.float64, name)
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
