"""Columns over the vertices as callers give them, checked and in one form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["columns", "distributions", "same_width"]

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


def same_width(dtype: np.dtype[Any], **given: Array) -> list[Array]:
    """Return arrays (V, k) of one k: single columns stand for all of them."""
    width = max(a.shape[1] for a in given.values())
    for name, values in given.items():
        if values.shape[1] not in {1, width}:
            raise fg.GraphInputError(
                f"{' and '.join(given)} differ in their numbers of columns",
                where=name,
                got=f"{values.shape[1]} columns beside {width}",
                expected="k columns, or one for all",
            )
    return [
        np.broadcast_to(values, (len(values), width)).astype(dtype)
        for values in given.values()
    ]
