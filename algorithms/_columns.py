"""Columns over the vertices as callers give them, checked and in one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = [
    "column_property",
    "columns",
    "columns_property",
    "distributions",
    "same_width",
    "width_of",
]

Array = npt.NDArray[Any]


def columns(graph: fg.Graph, name: str, values: npt.ArrayLike) -> Array:
    """Return finite (V, k) in float64 of one value, or k, for each vertex."""
    count = graph.vertex_count
    given = np.asarray(values, np.float64)
    if given.ndim not in {1, 2} or len(given) != count or given.shape[1:] == (0,):
        raise fg.GraphInputError(
            f"{name} has one value, or k, for each vertex",
            got=f"shape {given.shape}",
            expected=f"({count},) or ({count}, k)",
        )
    given = given.reshape(count, -1) if count else given.reshape(0, 1)
    is_finite = np.isfinite(given).all(axis=1)
    if not is_finite.all():
        vertex = int(np.argmin(is_finite))
        raise fg.GraphInputError(
            f"{name} is finite", where=f"vertex {vertex}", got=given[vertex]
        )
    return given


def distributions(graph: fg.Graph, name: str, values: npt.ArrayLike | None) -> Array:
    """Return (V, 1) or (V, k) of columns that sum to one; uniform for None."""
    if values is None:
        count = graph.vertex_count
        return np.full((count, 1), 1 / max(count, 1))
    given = columns(graph, name, values)
    bad = (given < 0).any(axis=1)
    if bad.any():
        vertex = int(np.argmax(bad))
        raise fg.GraphInputError(
            f"{name} is not negative", where=f"vertex {vertex}", got=given[vertex]
        )
    sums = given.sum(axis=0)
    if not (sums > 0).all():
        raise fg.GraphInputError(
            f"{name} is zero everywhere",
            where=f"column {int(np.argmin(sums))}",
            expected="a positive value at one vertex at least",
        )
    return np.asarray(given / sums)


def width_of(given: Mapping[str, Array | None]) -> int:
    """Return the k of several arrays (V, k): single columns, or None, stand for all."""
    widths = {name: a.shape[1] for name, a in given.items() if a is not None}
    width = max(widths.values(), default=1)
    for name, own in widths.items():
        if own not in {1, width}:
            raise fg.GraphInputError(
                f"{' and '.join(given)} differ in their numbers of columns",
                where=name,
                got=f"{own} columns beside {width}",
                expected="k columns, or one for all",
            )
    return width


def same_width(dtype: np.dtype[Any], **given: Array) -> list[Array]:
    """Return arrays (V, k) of one k: single columns stand for all of them."""
    width = width_of(given)
    return [_widened(values, width, dtype) for values in given.values()]


def columns_property(
    graph: fg.Graph,
    values: Array | None,
    width: int,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
) -> Any:
    """Return a property (V, k) of what `distributions` returns; uniform for None."""
    if values is None:
        uniform = dtype.type(1 / max(graph.vertex_count, 1))
        return fg.vertex_property(uniform, shape=(width,), iterated=iterated)
    array = _widened(values, width, dtype)
    return fg.vertex_property(array, iterated=iterated, copy=False)


def column_property(
    graph: fg.Graph,
    name: str,
    values: npt.ArrayLike | None,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
) -> Any:
    """Return a property (V,) of one distribution as callers give it; or uniform."""
    if values is None:
        uniform = dtype.type(1 / max(graph.vertex_count, 1))
        return fg.vertex_property(uniform, iterated=iterated)
    given = distributions(graph, name, values)
    if given.shape[1] != 1:
        raise fg.GraphInputError(
            f"{name} has one value for each vertex",
            got=f"shape {given.shape}",
            expected=f"({graph.vertex_count},)",
        )
    return fg.vertex_property(given[:, 0], dtype=dtype, iterated=iterated)


def _widened(values: Array, width: int, dtype: np.dtype[Any]) -> Array:
    return np.broadcast_to(values, (len(values), width)).astype(dtype, order="C")
