"""Labels and weights as callers give them, checked and in one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = [
    "UNLABELLED",
    "checked_labels",
    "checked_weight_vectors",
    "checked_weights",
    "edge_here",
    "initial_distributions",
    "normalize_rows",
    "weights_here",
]

Array = npt.NDArray[Any]

#: The label of a vertex that has none.
UNLABELLED = -1


def normalize_rows(x: Array) -> Array:
    total = x.sum(axis=1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def checked_weights(graph: fg.Graph, weights: npt.ArrayLike | None) -> fg.GivenArray:
    given = weights_here(graph, weights)
    if given is None:
        return fg.given_array(np.ones(graph.given_edge_count))
    _require_weights(given, lambda edge: edge_here(graph, weights, edge))
    return given


def weights_here(
    graph: fg.Graph, weights: npt.ArrayLike | None, dtype: Any = None
) -> fg.GivenArray | None:
    """Return (E,), or the graph's own, of which a rank has those of its part."""
    if weights is None:
        own = graph.part.weights
        return None if own is None else fg.given_array(own)
    given = fg.given_array(weights, dtype, "weights")
    if given.shape != (graph.given_edge_count,):
        raise fg.GraphInputError(
            "one weight per given edge is needed",
            got=f"shape {given.shape}",
            expected=f"({graph.given_edge_count},)",
        )
    return given


def edge_here(graph: fg.Graph, weights: npt.ArrayLike | None, edge: int) -> str:
    """Return what an error says of one of `weights_here`."""
    if weights is None and graph.ranks is not None:
        slot = int(np.flatnonzero(graph.part.given_index == edge)[0])
        edge = int(graph.given_index[slot]) % graph.given_edge_count
    return f"edge {edge}"


def checked_weight_vectors(graph: fg.Graph, weights: npt.ArrayLike) -> fg.GivenArray:
    """Return (E, M) in float64: M weights for each given edge."""
    given = fg.given_array(weights, np.float64, "weights")
    if given.ndim != 2 or len(given) != graph.given_edge_count or not given.shape[1]:
        raise fg.GraphInputError(
            "a row of weights per given edge is needed",
            got=f"shape {given.shape}",
            expected=f"({graph.given_edge_count}, M)",
        )
    _require_weights(given, lambda edge: f"edge {edge}")
    return given


def _require_weights(given: fg.GivenArray, name: Callable[[int], str]) -> None:
    edge = given.first_row_outside(0, given.greatest)
    if edge is not None:
        raise fg.GraphInputError(
            "weights must be finite and not negative",
            where=name(edge),
            got=given.row(edge),
            fix="drop the edge, or take the absolute value",
        )


def initial_distributions(
    graph: fg.Graph,
    labels: npt.ArrayLike,
    class_count: int | None,
    dtype: np.dtype[Any],
) -> Array:
    """Return (V, K): one-hot rows for labelled vertices, zeros for the others."""
    found, width = checked_labels(graph, labels, class_count)
    given = found.on_host()
    if given.ndim == 2:
        return given.astype(dtype)
    return (given[:, None] == np.arange(width)).astype(dtype)


def checked_labels(
    graph: fg.Graph, labels: npt.ArrayLike, class_count: int | None
) -> tuple[fg.GivenArray, int]:
    """Return (V,) of classes, or (V, K) of rows that sum to one or zero; and K."""
    given = fg.given_array(labels, where="labels")
    vertex_count = graph.vertex_count
    if given.ndim not in {1, 2} or len(given) != vertex_count:
        raise fg.GraphInputError(
            "one label, or one distribution, per vertex is needed",
            got=f"labels of shape {given.shape}",
            expected=f"({vertex_count},) or ({vertex_count}, K)",
        )
    if given.ndim == 2:
        classes = given.shape[1]
        bad = given.first_row_outside(0, given.greatest) if given.size else None
    else:
        if given.dtype.kind not in "iu":
            raise fg.GraphInputError(
                "labels are integers, -1 for none", got=given.dtype, expected="integers"
            )
        highest = _highest(given)
        classes = max(highest + 1 if class_count is None else class_count, 1)
        bad = given.first_row_outside(UNLABELLED, classes - 1)
    if bad is not None:
        raise fg.GraphInputError(
            "not a label" if given.ndim == 1 else "not a distribution",
            where=f"vertex {bad}",
            got=given.row(bad),
            expected="-1, or 0 <= label < K" if given.ndim == 1 else "values >= 0",
        )
    if given.ndim == 2:
        given = given.astype(np.float64)
        highest = _highest(given) - 1  # of weights, 0 is none
        given = given.rows_divided() if given.size else given
    if highest <= UNLABELLED:
        raise fg.GraphInputError(
            "no vertex is labelled",
            got=f"{vertex_count} unlabelled vertices",
            fix="give at least one vertex a label of 0 or more",
        )
    return given, classes


def _highest(given: fg.GivenArray) -> Any:
    """Return the largest value; -1 of none."""
    return given.largest_of_columns().max().item() if given.size else UNLABELLED
