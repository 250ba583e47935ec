"""Columns over the vertices as callers give them, checked and in one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._vertices import at_living, values_by_name

__all__ = [
    "ByVertex",
    "column_property",
    "columns",
    "columns_property",
    "distributions",
    "given_values",
    "width_of",
]

Array = npt.NDArray[Any]


#: Values of vertices: an array, or a mapping from names.
ByVertex: TypeAlias = npt.ArrayLike | Mapping[Any, float]

#: Powers of two: columns whose largest values are between them have finite sums, and
#: quotients by these, that no scale makes better.
_LEAST, _MOST = 2.0**-500, 2.0**500


def given_values(
    graph: fg.Graph, name: str, values: ByVertex, missing: float | None = None
) -> fg.GivenArray:
    """Return values as callers give them; of a mapping, (V,) in float64.

    A mapping has names of vertices as keys, or ids where there are no names; `missing`
    is the value of others, None: there have to be none.
    """
    if isinstance(values, Mapping):
        values = values_by_name(graph, values, name, missing)
    return fg.given_array(values, where=name)


def columns(
    graph: fg.Graph, name: str, values: ByVertex, missing: float | None = None
) -> fg.GivenArray:
    """Return finite (V, k) in float64 of one value, or k, for each vertex."""
    count = graph.vertex_count
    given = given_values(graph, name, values, missing).astype(np.float64, name)
    if given.ndim not in {1, 2} or len(given) != count or given.shape[1:] == (0,):
        raise fg.GraphInputError(
            f"{name} has one value, or k, for each vertex",
            got=f"shape {given.shape}",
            expected=f"({count},) or ({count}, k)",
        )
    given = at_living(graph, given.matrix())
    vertex = given.first_not_finite()
    if vertex is not None:
        raise fg.GraphInputError(
            f"{name} is finite", where=f"vertex {vertex}", got=given.row(vertex)
        )
    return given


def distributions(graph: fg.Graph, name: str, values: ByVertex | None) -> fg.GivenArray:
    """Return (V, 1) or (V, k) of columns that sum to one; uniform for None.

    Vertices that a mapping does not name have zero.
    """
    if values is None:
        uniform = np.full((graph.vertex_count, 1), 1 / max(graph.living_count, 1))
        return at_living(graph, fg.given_array(uniform))
    given = columns(graph, name, values, 0.0)
    vertex = given.first_row_outside(0, given.greatest)
    if vertex is not None:
        raise fg.GraphInputError(
            f"{name} is not negative", where=f"vertex {vertex}", got=given.row(vertex)
        )
    largest = given.largest_of_columns()
    if ((largest > _MOST) | (largest < _LEAST)).any():
        given = given.columns_divided(np.ldexp(1.0, np.frexp(largest)[1] - 1))
    sums = given.sums_of_columns()
    if not (sums > 0).all():
        raise fg.GraphInputError(
            f"{name} is zero everywhere",
            where=f"column {int(np.argmin(sums))}",
            expected="a positive value at one vertex at least",
        )
    return given.columns_divided(sums)


def width_of(given: Mapping[str, fg.GivenArray | None]) -> int:
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


def columns_property(
    graph: fg.Graph,
    values: fg.GivenArray | None,
    width: int,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
    where: str | None = None,
) -> Any:
    """Return a property (V, k) of what `distributions` returns; uniform for None.

    Parameters
    ----------
    where : str, optional
        The argument, if its values are no distribution: the type has to hold them.
    """
    if values is None:
        uniform = dtype.type(1 / max(graph.living_count, 1))
        return fg.vertex_property(uniform, shape=(width,), iterated=iterated)
    array = values.widened(width).astype(dtype, where).values
    return fg.vertex_property(array, iterated=iterated, copy=False)


def column_property(
    graph: fg.Graph,
    name: str,
    values: ByVertex | None,
    dtype: np.dtype[Any],
    *,
    iterated: bool = False,
) -> Any:
    """Return a property (V,) of one distribution as callers give it; or uniform."""
    if values is None:
        uniform = dtype.type(1 / max(graph.living_count, 1))
        return fg.vertex_property(uniform, iterated=iterated)
    given = distributions(graph, name, values)
    if given.shape[1] != 1:
        raise fg.GraphInputError(
            f"{name} has one value for each vertex",
            got=f"shape {given.shape}",
            expected=f"({graph.vertex_count},)",
        )
    column = given.column(0).astype(dtype).values
    return fg.vertex_property(column, iterated=iterated)
