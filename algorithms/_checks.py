"""Checks and conversions of numbers, weights and labels that callers pass.

`weight_properties` makes the property ``weight`` of most algorithms, `checked_labels`
reads labels or distributions. On several ranks, the weights of a graph are checked on
each rank for its own part.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._verify import edges_of
from featgraph.algorithms._vertices import at_living

__all__ = [
    "UNLABELLED",
    "bound_weights",
    "checked_labels",
    "checked_weight_vectors",
    "checked_weights",
    "edge_here",
    "given_or_own_weights",
    "in_weights",
    "initial_distributions",
    "normalize_rows",
    "out_weights",
    "require_choice",
    "require_count",
    "require_held",
    "require_number",
    "scaled_weights",
    "signed_weights",
    "weight_properties",
    "weights_here",
]

Array = npt.NDArray[Any]
#: Version of a graph -> the checks that the weights of the graph have passed: keys of
#: `weight_properties`.
_looked_at: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()

#: A graph that changes -> dtype -> a version whose weights were all moderate in it.
_moderate_at: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

#: The label of a vertex that has none.
UNLABELLED = -1


def require_number(name: str, value: float, is_right: bool, expected: str) -> None:
    """Raise GraphInputError unless a number is in its range."""
    # The difference is nan for nan and infinities.
    if not (is_right and value - value == 0):
        raise fg.GraphInputError(
            f"{name} out of range", where=f"{name}=", got=value, expected=expected
        )


def require_count(name: str, value: int, least: int) -> None:
    """Raise GraphInputError unless a number of things is in its range."""
    is_right = least <= value < 1 << 31
    require_number(name, value, is_right, f"from {least} to 2**31 - 1")


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise GraphInputError unless a value is one of some."""
    if value not in choices:
        raise fg.GraphInputError(
            f"unknown {name}",
            where=f"{name}=",
            got=repr(value),
            expected=", ".join(map(repr, choices)),
        )


def require_held(name: str, value: float, real: np.dtype[Any]) -> None:
    """Raise GraphInputError if a dtype rounds a share between 0 and 1 to 0 or 1."""
    if float(real.type(value)) in {0.0, 1.0} and value not in {0, 1}:
        raise fg.GraphInputError(
            f"{name} is {float(real.type(value)):g} in {real}",
            where=f"{name}=",
            got=f"{value!r}",
            expected=f"a number whose {real} differs from 0 and 1",
            fix="give dtype=np.float64" if real == np.float32 else None,
        )


def normalize_rows(x: Array) -> Array:
    """Divide each row by its sum; rows with the sum 0 become zeros."""
    total = x.sum(axis=1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def checked_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, name: str = "weights"
) -> fg.GivenArray:
    """Return (E,): finite weights that are not negative; by default one for each edge.

    Without `weights`, these are the weights of the graph, on ranks those of its part.
    """
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
    """Return given weights, (E,), or those of the graph; None if it has no weights.

    On ranks, the weights of the graph are those of this rank's part. `name` is the
    argument in errors.
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
    """Return the text "edge N" for errors, from an index into `weights_here`."""
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
    """Scale checked weights of which only ratios matter to the range of a dtype.

    If weights, (E,) or (E, M), are far from one, each column is divided by a power of
    two, so that their sums are finite and their products with probabilities do not
    underflow. Return None if no scaling is needed.

    Parameters
    ----------
    weights : array_like or None
        The caller's argument, from which `given` was made.

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
    # A weight of this size times a probability as small as the rounding error of the
    # dtype is still a normal number.
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
    # By powers of two, which round no weight.
    scaled = w.columns_divided(np.ldexp(1.0, exponents)).astype(real)
    return scaled.column(0) if given.ndim == 1 else scaled


def bound_weights(graph: Any, real: np.dtype[Any]) -> Any:
    """Return the column of weights of a graph that changes, if they need no check.

    No check is needed if all values in the column's memory are moderate in the dtype;
    then the host need not collect the weights of each version. If they were in an
    earlier version, only rows in which edges came or changed are read. Otherwise, and
    for float16, which kernels do not read, return None.
    """
    changing = graph.changing
    stored = None if changing is None else changing.in_rows.columns.get("weight")
    if stored is None or stored.dtype.kind != "f":
        return None
    if not 4 <= stored.dtype.itemsize <= real.itemsize:
        return None
    known = _moderate_at.setdefault(graph, {})
    values = changing.values_since("weight", known.pop(real, None))
    if not _are_moderate(fg.given_array(values), real):
        return None
    known[real] = graph.version
    return graph.column("weight")


def _moderate(real: np.dtype[Any]) -> tuple[float, float]:
    """Return a range in which weights need no scale: about 1e-12 to 1e12 in float32."""
    bits = np.finfo(real).maxexp * 5 // 16
    return math.ldexp(1.0, -bits), math.ldexp(1.0, bits)


def _are_moderate(given: fg.GivenArray, real: np.dtype[Any]) -> bool:
    """Whether all weights are zero or in the range of `_moderate`."""
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
    """Return (V, K): one-hot rows for labelled vertices, rows of zeros for others."""
    found, width = checked_labels(graph, labels, class_count)
    given = found.on_host()
    if given.ndim == 2:
        return given.astype(dtype)
    return (given[:, None] == np.arange(width)).astype(dtype)


def checked_labels(
    graph: fg.Graph, labels: npt.ArrayLike, class_count: int | None
) -> tuple[fg.GivenArray, int]:
    """Return labels, (V,), or distributions, (V, K), and K.

    Labels are -1 or classes below K. Each row of a distribution sums to one or zero.
    """
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
    """Return the largest value; -1 for an empty array."""
    return given.largest_of_columns().max().item() if given.size else UNLABELLED


def given_or_own_weights(
    graph: fg.Graph, weights: npt.ArrayLike | None, *, ratios: bool = False
) -> Array | None:
    """Return checked weights, (E,) in float64, on the host; None if there are none.

    Parameters
    ----------
    ratios : bool
        Whether only ratios of weights matter, so that they may be scaled.
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
    """Return ``{"weight": property}`` of checked weights; {} if there are no weights.

    Given weights are not copied: the property is for a State that the algorithm makes
    itself, and that ends with the call.

    Parameters
    ----------
    ratios : bool
        Whether only ratios of weights matter, so that they may be scaled to the range
        of the dtype.
    name : str
        The argument in errors.
    """
    if weights is not None:
        given = checked(graph, weights, name=name)
        scaled = scaled_weights(graph, weights, given, dtype) if ratios else None
        if scaled is not None:
            given = scaled
        elif not np.can_cast(given.dtype, dtype, "safe"):  # safe casts: in the State
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
    """Check the weights of a graph; return scaled weights, or None if they fit."""
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
    """Raise GraphInputError if a sum of weights at a vertex overflows in a dtype.

    Sums are computed only if a weight is so large that a sum could overflow.
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
    """Return finite weights of any sign, (E,) in float64; by default one per edge."""
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
    """Return the sum of the weights of the edges into each vertex, (V,)."""
    return _weights_at(graph, weights, "targets", graph.in_edges)


def out_weights(graph: fg.Graph, weights: Array | None) -> Array:
    """Return the sum of the weights of the edges out of each vertex, (V,)."""
    return _weights_at(graph, weights, "sources", graph.out_edges)


def _weights_at(graph: fg.Graph, weights: Array | None, end: str, rows: Any) -> Array:
    if weights is None:
        return np.asarray(np.diff(rows.row_offsets), np.float64)
    edges = edges_of(graph)
    count = graph.vertex_count
    return np.bincount(getattr(edges, end), weights[edges.given], minlength=count)
