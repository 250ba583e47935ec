"""Conversion of the values that a State is given to columns, in kernel order.

`property_column` is for properties of vertices and edges, `loose_column` for scalars
and vectors. On several ranks, `compare_given` adds a text of the given values to the
next exchange, which raises an error if ranks were given different values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import StateError
from featgraph.cuda.values import (
    DeviceValues,
    Entries,
    Filled,
    Reordered,
    host_values,
    name_of,
)
from featgraph.graph import Graph
from featgraph.graph.inputs.numbers import number_array
from featgraph.graph.inputs.take import (
    Borrowed,
    borrowed_array,
    filled,
    plain_scalar,
    scalar_of_type,
    storage_array,
    storage_dtype,
    storage_values,
)
from featgraph.graph.views.structure import (
    edge_rows,
    gpu_weights,
    is_in_given_order,
    owns,
    stored_count,
)
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind, PropertyType

__all__ = [
    "PropertySpec",
    "compare_given",
    "compared_text",
    "edge_values",
    "finish_copies",
    "loose_column",
    "property_column",
    "values_of_shape",
    "vertex_values",
]

Array = npt.NDArray[Any]


@dataclass(eq=False)
class PropertySpec:
    """A declaration by `vertex_property` or `edge_property`, for a State."""

    kind: PropertyKind
    values: Any
    iterated: bool
    dtype: Any
    shape: tuple[int, ...] | None
    per_direction: bool = False
    copy: bool = True
    at: Any = None
    entries: Any = None
    fill: Any = 0


def property_column(graph: Graph, name: str, spec: PropertySpec) -> Column:
    """Return the column of a property of vertices or edges."""
    is_edge = spec.kind is PropertyKind.EDGE
    if graph.changing is not None and not spec.copy:
        of_graph = graph.changing.column_of(graph, spec.values)
        if of_graph is not None:
            return _graph_column(graph, of_graph)
    # The weights of a distributed graph are the weights of this rank's part.
    here = graph.part if is_edge and owns(graph, spec.values) else graph
    rows = here.given_edge_count if is_edge else graph.vertex_count
    letter = "E" if is_edge else "V"
    array: Any = None if spec.copy else borrowed_array(spec.values, spec.dtype)
    is_lent = array is not None
    if not is_lent:
        array = storage_values(name, spec.values, spec.dtype)
    if array.ndim == 0:
        array = filled(name, array, (rows, *(spec.shape or ())))
        if spec.at is not None:
            apart = _apart(name, spec, array)
            array = Filled(array.value, array.shape, apart)
    elif spec.at is not None:
        raise StateError(
            "single entries can be given with one value for all others only",
            where=f"property {name!r}",
            got=f"values of shape {array.shape}, and at=",
            expected="a scalar and at=, or all values",
        )
    elif spec.shape is not None and array.shape[1:] != tuple(spec.shape):
        raise StateError(
            "the values do not have the requested shape",
            where=f"property {name!r}",
            got=array.shape,
            expected=(rows, *spec.shape),
        )
    is_given = is_edge and not graph.directed and here is graph
    doubled = is_given and array.shape[0] == 2 * rows != rows
    if array.shape[0] != rows and not doubled:
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
    # Without edges, 2 E rows and E rows cannot be distinguished: none is shared.
    may_share = graph.given_edge_count > 0 or graph.changing is not None
    shared = is_edge and not graph.directed and may_share and not per_direction
    type_ = PropertyType(
        spec.kind, name_of(array.dtype), array.shape[1:], spec.iterated, shared
    )
    fill = _checked_fill(name, spec.fill, type_)
    if is_lent:
        return _lent_column(here, array, type_, per_direction, fill)
    values = edge_values(here, array) if is_edge else vertex_values(here, array, fill)
    return Column(type_, values, per_direction, fill)


def _checked_fill(name: str, fill: Any, type_: PropertyType) -> Any:
    """Return the value of new entries in the storage type of a property."""
    if type(fill) is int and fill == 0:
        return 0
    made = storage_array(f"{name}, fill=", fill, type_.dtype)
    if made.shape not in {(), type_.item_shape}:
        raise StateError(
            "one value fills a new entry",
            where=f"property {name!r}, fill=",
            got=f"shape {made.shape}",
            expected=f"{type_.item_shape}, or a scalar",
        )
    return made


def _graph_column(graph: Graph, values: Any) -> Column:
    """Return the column of a State for a column of its graph, in every version."""
    if values.dtype == np.float16:  # kernels do not read it
        storage_dtype(values.dtype, f"column {values.name!r}")
    type_ = PropertyType(
        PropertyKind.EDGE, name_of(values.dtype), values.shape[1:],
        shared=not graph.directed, column=values.name,
    )  # fmt: skip
    return Column(type_, values, False)


def _lent_column(
    graph: Graph, array: Array, type_: PropertyType, per_direction: bool, fill: Any
) -> Column:
    """Return the column of an array that the caller keeps, without a copy if possible.

    Kernels read the array in place. Edge values that are not in the order of edge ids
    are reordered when a target needs them. Read-only arrays are copied, since Numba
    would compile kernels for them again.
    """
    is_edge = type_.kind is PropertyKind.EDGE
    is_there = is_edge and gpu_weights(graph, array) is not None
    is_as_given = len(array) == graph.edge_count and graph.changing is None
    is_as_given &= not is_there
    if is_edge and not (is_as_given and is_in_given_order(graph)):
        rows, is_shared = edge_rows(graph), owns(graph, array)
        values = Reordered(array, rows, is_shared=is_shared)
        return Column(type_, values, per_direction, fill)
    if not is_edge and graph.living is not None:
        values = vertex_values(graph, array.copy(), fill)
        return Column(type_, values, per_direction, fill)
    if not array.flags.writeable or graph.part is not graph:
        return Column(type_, graph.local_rows(array.copy()), per_direction, fill)
    column = Column(type_, array, per_direction, fill)
    column.borrowed = array
    return column


def _apart(name: str, spec: PropertySpec, rest: Filled) -> Entries:
    """Return the entries that `at` selects; of a repeated index, the last entry."""
    where, shape = f"property {name!r}, at=", rest.shape
    index = spec.at if isinstance(spec.at, tuple) else (spec.at,)
    axes = [number_array(axis, where, StateError) for axis in index]
    count = axes[0].size if axes else 0
    are_alike = all(axis.shape == (count,) for axis in axes)
    are_integers = all(axis.dtype.kind in "iu" for axis in axes) or not count
    if len(axes) != len(shape) or not (are_alike and are_integers):
        raise StateError(
            "not an index of entries",
            where=where,
            got=", ".join(f"{axis.dtype} of shape {axis.shape}" for axis in axes),
            expected=f"{len(shape)} arrays of N integers, one for each axis of {shape}",
        )
    places: Array = np.zeros(0, np.int64)
    if count:
        try:
            index = tuple(axis.astype(np.int64) for axis in axes)
            places = np.asarray(np.ravel_multi_index(index, shape))
        except ValueError:
            raise _no_entry(where, axes, shape) from None
    values = storage_array(name, spec.entries, rest.dtype)
    if values.shape not in {(), (count,)}:
        raise StateError(
            "one value per entry is needed",
            where=f"property {name!r}, entries=",
            got=f"shape {values.shape}",
            expected=f"({count},), or one for all",
        )
    if values.ndim == 0:
        values = np.full(count, values)
    if count > 1:
        places, last = np.unique(places[::-1], return_index=True)
        values = values[::-1][last]
    return Entries(places, values)


def _no_entry(where: str, axes: list[Array], shape: tuple[int, ...]) -> StateError:
    outside = [
        (axis < 0) | (axis >= size) for axis, size in zip(axes, shape, strict=True)
    ]
    number = next(n for n, found in enumerate(outside) if found.any())
    entry = int(np.argmax(outside[number]))
    return StateError(
        "there is no such entry",
        where=f"{where}, index {entry} of axis {number}",
        got=int(axes[number][entry]),
        expected=f"0 <= index < {shape[number]}",
    )


def edge_values(graph: Graph, given: Any) -> Any:
    """Return values of given edges in the order of edge ids."""
    if isinstance(given, Filled):
        return Filled(given.value, (stored_count(graph), *given.shape[1:]))
    if isinstance(given, Borrowed):
        return given.copied(edge_rows(graph))
    return Reordered(given, edge_rows(graph))


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


def vertex_values(graph: Graph, given: Any, fill: Any = 0) -> Any:
    """Return the values of this rank's vertices, in memory that nothing else writes.

    Values on the GPU are copied there. Entries of dead vertices are filled.
    """
    here = graph.local_rows(given)
    values = here.copied() if isinstance(here, Borrowed) else here
    return _without_dead(graph.living, values, fill)


def _without_dead(living: Array | None, values: Any, fill: Any) -> Any:
    """Return values with `fill` in the entries of dead vertices."""
    is_uniform = isinstance(values, Filled) and values.apart is None
    if living is None or (is_uniform and np.all(values.value == fill)):
        return values
    made = host_values(values)
    made[~living] = fill
    return made


def finish_copies(columns: Iterable[Column]) -> None:
    """Wait for copies on the GPU, so that the caller may write the arrays again."""
    for column in columns:
        if isinstance(column.values, DeviceValues):
            from featgraph.cuda.foreign import finish  # imports the dialect

            finish()
            return


def loose_column(name: str, given: Any, refused: type) -> Column:
    """Return the column of a scalar, vector or matrix that belongs to no vertex."""
    has_axes = getattr(given, "ndim", not isinstance(given, bool | int | float))
    value = None if has_axes else plain_scalar(given)
    if value is not None:
        dtype = {bool: "bool", int: "int64", float: "real"}[type(value)]
        value = scalar_of_type(f"fg.State({name}=...)", value, dtype)
        return Column(PropertyType(PropertyKind.SCALAR, dtype), value, False)
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
    type_ = PropertyType(PropertyKind.VECTOR, name_of(array.dtype), array.shape)
    return Column(type_, array, False)


def values_of_shape(
    name: str, value: Any, type_: PropertyType, rows: tuple[int, ...]
) -> Any:
    """Return values after a check of their type and shape.

    Parameters
    ----------
    rows : tuple of int
        The number of rows; empty for a vector or matrix that belongs to no vertex.
    """
    is_loose = type_.kind is PropertyKind.VECTOR
    read = storage_array if is_loose else storage_values
    given: Any = read(name, value, type_.dtype)
    shape = (*rows, *type_.item_shape)
    if given.ndim == 0:
        return filled(name, given, shape)
    if given.shape != shape:
        raise StateError(
            "a property keeps its shape",
            where=f"state[{name!r}]",
            got=given.shape,
            expected=shape,
        )
    return given


#: Number of entries of an array that ranks compare.
ENTRIES = 16
#: Types of values that are compared: on the host, and of known length.
_COMPARED = (np.ndarray, np.generic, bool, int, float, list, tuple, range)


def compare_given(ranks: Any, name: str, given: Any, column: Column) -> None:
    """Compare the values given for a name with those of other ranks, at an exchange.

    Parameters
    ----------
    ranks : DistributedGraph or None
        None on one rank.
    name : str
    given : PropertySpec, array or scalar
        The given values. Edge values, which may differ between ranks, and arrays on a
        GPU are not compared.
    column : Column
        The column made of the values.
    """
    text = "" if ranks is None else _compared_text(name, given, column)
    if text:
        ranks.compare(text)


def _compared_text(name: str, given: Any, column: Column) -> str:
    """Return the text that ranks compare for a name; "" if they compare nothing."""
    values, kind = column.values, column.type.kind
    if isinstance(values, Filled):
        text = f"{name} = {_number(values.value)}"
        at = getattr(given, "at", None)
        for axis in at if isinstance(at, tuple) else (at,):
            text += compared_text(" at ", axis)
        return text + compared_text(" with ", getattr(given, "entries", None))
    if kind is PropertyKind.VERTEX:
        values = given.values if isinstance(given, PropertySpec) else given
    if kind is PropertyKind.EDGE or not isinstance(values, _COMPARED):
        return ""
    return f"{name} = {_some(np.asarray(values))}"


def compared_text(word: str, given: Any) -> str:
    """Return a word and the text of an array on the host; "" for other values."""
    return word + _some(np.asarray(given)) if isinstance(given, _COMPARED) else ""


def _some(values: Any) -> str:
    """Return a text of a host array: two entries, and a checksum of up to `ENTRIES`."""
    if values.ndim == 0:
        return _number(values[()])
    flat = values.reshape(-1) if values.flags.c_contiguous else values.flat
    places = np.unique(np.linspace(0, max(values.size - 1, 0), ENTRIES).astype(int))
    found = [_number(flat[int(place)]) for place in places[: values.size]]
    if values.size <= 2:
        return f"[{', '.join(found)}]"
    digest = zlib.crc32(f"{values.dtype} {values.shape} {found}".encode())
    return f"[{found[0]}, ... {found[-1]}] #{digest:08x}"


def _number(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    return f"{plain:.3g}" if isinstance(plain, float) else str(plain)
