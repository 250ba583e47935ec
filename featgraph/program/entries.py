"""What becomes of the values that a State is given: entries, in kernel order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from featgraph.errors import StateError
from featgraph.graph import Graph
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.program.snapshot import Entry
from featgraph.program.values import (
    filled,
    plain_scalar,
    scalar_of_type,
    storage_array,
)

__all__ = ["PropertySpec", "as_shape", "loose_entry", "property_entry"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PropertySpec:
    """A declaration by `vertex_property` or `edge_property` that State takes over."""

    kind: PropertyKind
    values: Any
    iterated: bool
    dtype: Any
    shape: tuple[int, ...] | None
    per_direction: bool = False


def property_entry(graph: Graph, name: str, spec: PropertySpec) -> Entry:
    """Return the entry of a property of vertices or edges."""
    is_edge = spec.kind is PropertyKind.EDGE
    rows = graph.given_edge_count if is_edge else graph.vertex_count
    letter = "E" if is_edge else "V"
    array = storage_array(name, spec.values, spec.dtype)
    if array.ndim == 0:
        array = filled(name, array, (rows, *(spec.shape or ())))
    elif spec.shape is not None and array.shape[1:] != tuple(spec.shape):
        raise StateError(
            "the values do not have the shape asked for",
            where=f"property {name!r}",
            got=array.shape,
            expected=(rows, *spec.shape),
        )
    doubled = is_edge and not graph.directed and len(array) == 2 * rows != rows
    if len(array) != rows and not doubled:
        raise StateError(
            f"one entry per {spec.kind.value} is needed",
            where=f"property {name!r}",
            got=f"shape {array.shape}",
            expected=f"{letter} = {rows} rows",
            fix=None
            if is_edge
            else f"the graph has {rows} vertices; see vertex_count=",
        )
    _check_item_shape(name, array.shape[1:], letter)
    per_direction = is_edge and (doubled or (spec.per_direction and not graph.directed))
    # Without edges there is nothing to share, and 2 E rows look like E.
    shared = is_edge and not graph.directed and not per_direction and rows > 0
    type_ = PropertyType(
        spec.kind, array.dtype.name, array.shape[1:], spec.iterated, shared
    )
    if is_edge:
        array = graph.expand_edge_values(array)
    return Entry(type_, array, per_direction)


def _check_item_shape(name: str, shape: tuple[int, ...], letter: str) -> None:
    fits = len(shape) < 2 or (len(shape) == 2 and shape[0] == shape[1])
    if not fits or 0 in shape:
        raise StateError(
            "an entry has no features"
            if 0 in shape
            else "an entry has a shape that no function can index",
            where=f"property {name!r}",
            got=f"({', '.join([letter, *map(str, shape)])})",
            expected=f"({letter},), ({letter}, K) or ({letter}, K, K) with K >= 1",
        )


def loose_entry(name: str, given: Any, refused: type) -> Entry:
    """Return the entry of a scalar, or of what belongs to no vertex."""
    has_axes = getattr(given, "ndim", not isinstance(given, bool | int | float))
    value = None if has_axes else plain_scalar(given)
    if value is not None:
        dtype = {bool: "bool", int: "int64", float: "real"}[type(value)]
        value = scalar_of_type(f"fg.State({name}=...)", value, dtype)
        return Entry(PropertyType(PropertyKind.SCALAR, dtype), value, False)
    if isinstance(given, str | bytes | dict | Graph | refused) or given is None:
        raise StateError(
            "not a property",
            where=f"fg.State({name}=...)",
            got=type(given).__name__,
            expected=(
                "fg.vertex_property(...), fg.edge_property(...), a scalar, or an array"
            ),
        )
    array = storage_array(name, given, None)
    is_matrix = array.ndim == 2 and array.shape[0] == array.shape[1]
    if array.ndim == 2 and array.size and not is_matrix:
        raise StateError(
            "a matrix of no vertex is square",
            where=f"fg.State({name}=...)",
            got=f"an array of shape {array.shape}",
            expected="(K,) or (K, K); of vertices or edges, (V, K) or (E, K)",
            fix=f"pad it with zeros to {(max(array.shape),) * 2}, or, if its rows are "
            f"vertices, {name}=fg.vertex_property(values)",
        )
    if not (array.ndim == 1 or is_matrix) or array.size == 0:
        raise StateError(
            "a property of vertices or edges needs fg.vertex_property or "
            "fg.edge_property",
            where=f"fg.State({name}=...)",
            got=f"an array of shape {array.shape}",
            expected="a scalar, (K,) or (K, K) values of no vertex",
            fix=f"{name}=fg.vertex_property(values)",
        )
    return Entry(
        PropertyType(PropertyKind.VECTOR, array.dtype.name, array.shape), array, False
    )


def as_shape(
    name: str, value: Any, type_: PropertyType, shape: tuple[int, ...]
) -> Array:
    """Return values as an array of a type and a shape that stay."""
    array = storage_array(name, value, type_.dtype)
    if array.ndim == 0:
        return filled(name, array, shape)
    if array.shape != shape:
        raise StateError(
            "a property keeps its shape",
            where=f"state[{name!r}]",
            got=array.shape,
            expected=shape,
        )
    return array
