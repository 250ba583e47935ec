"""Policies for edges that are given more than once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import GraphInputError

__all__ = ["POLICIES", "combined_weights", "merge_duplicates"]

POLICIES = ("keep", "sum", "min", "max", "first", "last", "error")

_Ids: TypeAlias = NDArray[np.int32]


def merge_duplicates(
    sources: _Ids,
    targets: _Ids,
    weights: NDArray[Any] | None,
    *,
    directed: bool,
    policy: str,
) -> tuple[_Ids, _Ids, NDArray[Any] | None]:
    """Leave one edge for each (source, target), at the place of its first occurrence.

    For an undirected graph (u, v) and (v, u) are the same edge; it keeps the direction
    in which it was first given.

    Parameters
    ----------
    sources, targets : ndarray of int32, shape (E,)
    weights : ndarray, shape (E,), or None
        Sums of integers are int64 (uint64 for unsigned ones).
    directed : bool
    policy : str
        One of `POLICIES`, not "keep".

    Returns
    -------
    sources, targets, weights
        The arguments themselves where nothing repeats.

    Raises
    ------
    GraphInputError
        policy="error" and an edge repeats; or a sum overflows or becomes NaN.

    Notes
    -----
    O(E log E) time, about 24 bytes of temporaries an edge.
    """
    if sources.size < 2:
        return sources, targets, weights
    low = sources if directed else np.minimum(sources, targets)
    high = targets if directed else np.maximum(sources, targets)
    key = (low.astype(np.int64) << 32) | high
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    if starts.size == sources.size:
        return sources, targets, weights
    first = order[starts]
    if policy == "error":
        _raise_repeated(sources, targets, order, starts)
    kept = np.sort(first)
    if weights is not None:
        weights = combined_weights(weights, order, kept, policy)
    return sources[kept], targets[kept], weights


def combined_weights(
    weights: NDArray[Any], order: NDArray[Any], first: NDArray[Any], policy: str
) -> NDArray[Any]:
    """Combine the weights of edges that were found equal.

    Parameters
    ----------
    weights : ndarray, shape (E,)
    order : ndarray of int, shape (E,)
        The edges; equal ones one behind the other, as given.
    first : ndarray of int
        The first of all that are equal, ascending.
    policy : str
        One of `POLICIES` that combines.
    """
    is_first = np.zeros(order.size, np.bool_)
    is_first[first] = True
    starts = np.flatnonzero(is_first[order])
    place = np.argsort(order[starts])
    return _combine(weights, order, starts, policy)[place]


def _combine(
    weights: NDArray[Any],
    order: NDArray[Any],
    starts: NDArray[np.int64],
    policy: str,
) -> NDArray[Any]:
    """Combine one after the other, as given: a GPU does so, too, and has equal bits."""
    if policy == "first":
        return np.asarray(weights[order[starts]])
    if policy == "last":
        ends = np.append(starts[1:], order.size)
        return np.asarray(weights[order[ends - 1]])
    from featgraph.graph.building import repeats  # loads Numba

    # Loops know no float16.
    own = weights.astype(np.float32) if weights.dtype == np.float16 else weights
    if policy == "sum":
        return _sum(own, order, starts, weights.dtype)
    chosen = np.empty(starts.size, own.dtype)
    repeats.choose_of_repeats(own, order, starts, policy == "min", chosen)
    return chosen.astype(weights.dtype, copy=False)


def _sum(
    weights: NDArray[Any],
    order: NDArray[Any],
    starts: NDArray[np.int64],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Add up in the widest type; sums of floats are rounded once, to theirs."""
    from featgraph.graph.building import repeats  # loads Numba

    wide = {"i": np.int64, "u": np.uint64, "f": np.float64}[weights.dtype.kind]
    sums, rough = np.empty(starts.size, wide), np.empty(starts.size)
    repeats.add_repeats(weights, order, starts, sums, rough)
    with np.errstate(all="ignore"):
        # The float64 sum is within rounding of the true one, and a wrapped integer
        # is off by a multiple of 2**64: half of it cannot be rounding.
        bad = np.isnan(sums) | (np.abs(sums - rough) > 2.0**62)
        rounded = sums.astype(dtype) if dtype.kind == "f" else sums
    if np.any(bad):
        group = int(np.flatnonzero(bad)[0])
        raise GraphInputError(
            "the weights of a repeated edge have no sum",
            where=f"weights[{int(order[starts[group]])}]",
            got=f"a sum near {rough[group]}",
            expected="a finite or infinite number that fits the weights' dtype",
            fix="give the weights as float64, or choose another `duplicates`",
        )
    return rounded


def _raise_repeated(
    sources: _Ids,
    targets: _Ids,
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> None:
    is_repeat = np.ones(order.size, np.bool_)
    is_repeat[starts] = False
    position = int(order[is_repeat].min())
    group = int(np.flatnonzero(order == position)[0])
    start = int(starts[np.searchsorted(starts, group, side="right") - 1])
    raise GraphInputError(
        "an edge is given more than once",
        where=f"edge {position}",
        got=f"({sources[position]}, {targets[position]}), as edge {int(order[start])} "
        f"({order.size - starts.size} repeats in all)",
        expected="every edge once (duplicates='error')",
        fix="choose duplicates='keep', 'sum', 'min', 'max', 'first' or 'last'",
    )
