"""Labels and weights as callers give them, checked and in one form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._vertices import at_living

__all__ = [
    "UNLABELLED",
    "bound_weights",
    "checked_labels",
    "checked_weight_vectors",
    "checked_weights",
    "edge_here",
    "initial_distributions",
    "normalize_rows",
    "scaled_weights",
    "weights_here",
]

Array = npt.NDArray[Any]

#: The label of a vertex that has none.
UNLABELLED = -1


def normalize_rows(x: Array) -> Array:
    total = x.sum(axis=1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def checked_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, name: str = "weights"
) -> fg.GivenArray:
    given = weights_here(graph, weights, name=name)
    if given is None:
        return fg.given_array(np.ones(graph.given_edge_count))
    _require_weights(given, lambda edge: edge_here(graph, weights, edge))
    return given


def weights_here(
    graph: fg.Graph,
    weights: npt.ArrayLike | None,
    dtype: Any = None,
    name: str = "weights",
) -> fg.GivenArray | None:
    """Return (E,), or the graph's own, of which a rank has those of its part.

    Errors call the argument by `name`.
    """
    if weights is None:
        own = graph.part.weights
        return None if own is None else fg.given_array(own)
    given = fg.given_array(weights, dtype, name)
    if given.shape != (graph.given_edge_count,):
        raise fg.GraphInputError(
            "one weight per given edge is needed",
            where=f"{name}=",
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


def scaled_weights(
    graph: fg.Graph,
    weights: npt.ArrayLike | None,
    given: fg.GivenArray,
    real: np.dtype[Any],
) -> fg.GivenArray | None:
    """Return checked weights, of which only ratios count, scaled to what a type holds.

    Weights far from one, (E,) or (E, M), are divided by a power of two for each column.
    Then sums of them are finite, and products with probabilities are no zeros. None
    stands for weights that need no scale.

    Parameters
    ----------
    weights : array_like or None
        Where `given` comes from: None for the graph's own.

    Raises
    ------
    GraphInputError
        If the largest weight of a column is too many times as large as another one.
    """
    limits = np.finfo(real)
    if _are_moderate(given, real):
        return None
    w = given.astype(np.float64, "weights").matrix()
    largest = w.largest_of_columns()
    exponents = np.frexp(largest)[1] - 1
    # Above the least normal number by the digits that a product with a probability of
    # the type's rounding error still has to have.
    least = np.ldexp(1.0, exponents + limits.minexp + limits.nmant + 3)
    for column, bound in enumerate(least):
        below = np.nextafter(bound, 0)
        edge = None
        if below > 0 and largest[column] > 0:
            edge = w.column(column).first_row_inside(w.least_positive, below)
        if edge is not None:
            raise fg.GraphInputError(
                f"weights differ by more than {real} can hold",
                where=edge_here(graph, weights, edge),
                got=f"{w.row(edge)[column]!r}, beside the largest, {largest[column]!r}",
                expected=f"0, or at least {bound:.2g}",
                fix="give dtype=np.float64"
                if real == np.float32
                else "give the edge the weight 0, or leave it out",
            )
    if weights is None and graph.ranks is not None:
        raise fg.GraphInputError(
            "a rank cannot scale the weights of its part alone",
            where=edge_here(graph, None, int(np.argmax(w.on_host()[:, 0]))),
            got=largest.max(),
            expected=" to ".join(f"{limit:.2g}" for limit in _moderate(real)),
            fix="scale the weights before the graph is distributed",
        )
    scaled = w.columns_divided(np.ldexp(1.0, exponents)).astype(real)
    return scaled.column(0) if given.ndim == 1 else scaled


def bound_weights(graph: Any, real: np.dtype[Any]) -> Any:
    """Return the column of weights of a graph that changes, if they need no check.

    That is so if all of its memory has moderate values of the type: then the host does
    not collect the weights of each version. Otherwise None.
    """
    changing = graph.changing
    stored = None if changing is None else changing.in_rows.columns.get("weight")
    if stored is None or stored.dtype.kind != "f":
        return None
    if stored.dtype.itemsize > real.itemsize:
        return None
    is_fit = _are_moderate(fg.given_array(stored), real)
    return graph.column("weight") if is_fit else None


def _moderate(real: np.dtype[Any]) -> tuple[float, float]:
    """Return a range in which weights need no scale: about 1e-12 to 1e12 in float32."""
    bits = np.finfo(real).maxexp * 5 // 16
    return math.ldexp(1.0, -bits), math.ldexp(1.0, bits)


def _are_moderate(given: fg.GivenArray, real: np.dtype[Any]) -> bool:
    if not given.size or given.dtype.kind == "b":
        return True
    low, high = _moderate(real)
    if given.dtype.kind == "f":
        below = np.nextafter(given.dtype.type(low), given.dtype.type(0))
        small = given.first_row_inside(given.least_positive, below) if below else None
        if small is not None:
            return False
    return given.first_row_outside(0, min(high, float(given.greatest))) is None


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
    given = at_living(graph, given, UNLABELLED if given.ndim == 1 else 0)
    if class_count is not None and not 1 <= class_count < 1 << 31:
        raise fg.GraphInputError(
            "class_count out of range",
            where="class_count=",
            got=class_count,
            expected="1 or more",
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
        given = given.astype(np.float64, "labels")
        highest = 0 if _highest(given) > 0 else UNLABELLED
        given = given.rows_divided() if given.size else given
    if highest <= UNLABELLED:
        raise fg.GraphInputError(
            "no vertex is labelled",
            got=f"{graph.living_count} unlabelled vertices",
            fix="give at least one vertex a label of 0 or more",
        )
    return given, classes


def _highest(given: fg.GivenArray) -> Any:
    """Return the largest value; -1 of none."""
    return given.largest_of_columns().max().item() if given.size else UNLABELLED
