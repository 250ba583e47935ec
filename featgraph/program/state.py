"""State: the properties and scalars of a running program."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from featgraph.errors import StateError
from featgraph.graph import Graph
from featgraph.graph._arguments import require_flag
from featgraph.program.names import LONGEST, METHODS, RESERVED, name_problem
from featgraph.program.signature import PropertyKind, PropertyType, Signature
from featgraph.program.values import (
    filled,
    plain_scalar,
    require_item_shape,
    scalar_of_type,
    storage_array,
    storage_dtype,
)

__all__ = ["PropertySpec", "State", "edge_property", "vertex_property"]

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


def vertex_property(
    values: Any,
    *,
    iterated: bool = False,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
) -> PropertySpec:
    """Declare a property with one entry a vertex.

    Parameters
    ----------
    values : array_like of shape (V,), (V, K) or (V, K, K), or a scalar
        Copied, as numbers that are all there: what a mask hides, what is missing, and
        what the storage type cannot hold (2.5 as an integer) is an error. A scalar
        fills every entry.
    iterated : bool, optional
        Whether functions write ``d.name_next`` and `d.name` stays as it was when the
        superstep began.
    dtype : dtype, optional
        Storage type; default that of `values`, an array or a data frame. Lists and
        Python numbers have none: float32 for floats, int64 for integers.
    shape : tuple of int, optional
        Shape of one entry, for a scalar `values`: ``()``, ``(K,)`` or ``(K, K)``.

    Raises
    ------
    ArgumentError
        If `iterated` is not a truth value, or `shape` not a shape.
    StateError
        If `dtype` cannot be stored. What is wrong with the values, `State` says.
    """
    return PropertySpec(
        PropertyKind.VERTEX,
        values,
        require_flag("iterated", iterated),
        storage_dtype(dtype, "dtype="),
        require_item_shape(shape),
    )


def edge_property(
    values: Any,
    *,
    iterated: bool = False,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    per_direction: bool | None = None,
) -> PropertySpec:
    """Declare a property with one entry an edge, in the order they were given.

    Parameters
    ----------
    values : array_like of shape (E, ...) or, undirected graphs, (2 E, ...), or a scalar
        Copied. With 2 E rows, row ``E + i`` belongs to the twin of edge i.
    iterated, dtype, shape
        As for `vertex_property`.
    per_direction : bool, optional
        Undirected graphs: keep an entry for each direction, as functions that write the
        property need. Default: whether 2 E rows were given. It is read back with 2 E
        rows.

    Raises
    ------
    ArgumentError, StateError
        As for `vertex_property`.
    """
    return PropertySpec(
        PropertyKind.EDGE,
        values,
        require_flag("iterated", iterated),
        storage_dtype(dtype, "dtype="),
        require_item_shape(shape),
        per_direction is not None and require_flag("per_direction", per_direction),
    )


class Residency(Protocol):
    """Where the current values are, if not in the State's own arrays."""

    def download(self, name: str) -> Array: ...

    def written(self, name: str) -> None: ...


class _Entry:
    """One property: its type and its host array, in kernel order."""

    def __init__(self, type_: PropertyType, array: Any, per_direction: bool) -> None:
        self.type = type_
        self.array = array
        self.per_direction = per_direction


class State:
    """The properties and scalars of a running program.

    Arrays are copied in; `state[name]` reads a copy back, edge properties in the order
    in which the edges were given. Assigning to `state[name]` keeps shape and dtype and
    makes everything due that was waiting to converge.

    Parameters
    ----------
    graph : Graph
        The graph the properties belong to.
    **properties
        `vertex_property`, `edge_property`, scalars (float, int, bool), or arrays that
        belong to no vertex: vectors of shape (K,), matrices of shape (K, K).

    Raises
    ------
    StateError
        If a name is reserved, a shape does not fit the graph, or a dtype cannot be
        stored.

    Examples
    --------
    >>> import featgraph as fg
    >>> graph = fg.Graph.from_edges([0, 1], [1, 2])
    >>> x = fg.vertex_property([1.0, 0.0, 0.0], iterated=True)
    >>> state = fg.State(graph, x=x, alpha=0.5)
    >>> state["x"].tolist(), state["alpha"]
    ([1.0, 0.0, 0.0], 0.5)
    """

    # Positional only, so that a property may be called `self`.
    def __init__(self, graph: Graph | None = None, /, **properties: Any) -> None:
        if graph is None and isinstance(properties.get("graph"), Graph):
            graph = properties.pop("graph")
        if not isinstance(graph, Graph):
            raise StateError(
                "a State belongs to a graph",
                where="fg.State",
                got="no graph" if graph is None else type(graph).__name__,
                expected="fg.State(graph, name=...)",
            )
        self.graph = graph
        self._entries: dict[str, _Entry] = {}
        #: ``d.superstep``: how many supersteps have run on this State.
        self.superstep = 0
        #: Rises with every write from outside; a runtime compares it.
        self.version = 0
        #: Set by the runtime that holds the current values.
        self.residency: Residency | None = None
        for name, given in properties.items():
            self._add(name, given)

    def _add(self, name: str, given: Any) -> None:
        _check_name(name)
        if isinstance(given, PropertySpec):
            self._entries[name] = _property_entry(self.graph, name, given)
        else:
            self._entries[name] = _loose_entry(name, given)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        rows = [
            f"  {name}: {entry.type.describe()}"
            for name, entry in self._entries.items()
        ]
        return "\n".join([f"State on {self.graph!r}", *rows])

    @property
    def signature(self) -> Signature:
        """Types of all properties and scalars, by name."""
        return {name: entry.type for name, entry in self._entries.items()}

    def _entry(self, name: object) -> _Entry:
        found = self._entries.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_name(name, self._entries, "this State")
        return found

    def __getitem__(self, name: str) -> Any:
        """Return a copy of the values; those of edges in the order they were given."""
        entry = self._entry(name)
        values = self.stored(name)
        if entry.type.kind is PropertyKind.SCALAR:
            return values
        if entry.type.kind is PropertyKind.EDGE:
            return self.graph.collect_edge_values(values, entry.per_direction)
        return values.copy()

    def stored(self, name: str) -> Any:
        """Return the current values in kernel order.

        A runtime brings them back first. Do not write them.
        """
        entry = self._entry(name)
        if self.residency is not None and entry.type.kind is not PropertyKind.SCALAR:
            return self.residency.download(name)
        return entry.array

    def __setitem__(self, name: str, value: Any) -> None:
        entry = self._entry(name)
        kind = entry.type.kind
        if kind is PropertyKind.SCALAR:
            entry.array = scalar_of_type(f"state[{name!r}]", value, entry.type.dtype)
        elif kind is PropertyKind.VECTOR or kind is PropertyKind.VERTEX:
            entry.array = _as_shape(name, value, entry.type, entry.array.shape)
        else:
            rows = self.graph.given_edge_count * (2 if entry.per_direction else 1)
            given = _as_shape(name, value, entry.type, (rows, *entry.type.item_shape))
            entry.array = self.graph.expand_edge_values(given)
        self.version += 1
        if self.residency is not None:
            self.residency.written(name)

    def put_result(self, name: str, type_: PropertyType, values: Any) -> None:
        """Store what a reduce computed; the runtime calls it."""
        self._entries[name] = _Entry(type_, values, False)


def unknown_name(name: object, known: Any, where: str) -> StateError:
    """Return the error for an unknown property, with the nearest known name."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return StateError(
        f"there is no property {name!r:.100}",
        where=where,
        expected=", ".join(known) or "no properties at all",
        fix=f"did you mean {near[0]!r}?" if near else "declare it in fg.State(...)",
    )


def _check_name(name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        shown = name if len(name) <= LONGEST else f"{name[:30]}..."
        raise StateError(
            f"the name {shown!r} {problem}",
            where="fg.State",
            expected=f"none of {', '.join(sorted(RESERVED | METHODS))}"
            if problem == "is reserved"
            else None,
            fix="choose another name",
        )


def _property_entry(graph: Graph, name: str, spec: PropertySpec) -> _Entry:
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
    return _Entry(type_, array, per_direction)


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


def _loose_entry(name: str, given: Any) -> _Entry:
    """Return the entry of a scalar, or of what belongs to no vertex."""
    has_axes = getattr(given, "ndim", not isinstance(given, bool | int | float))
    value = None if has_axes else plain_scalar(given)
    if value is not None:
        dtype = {bool: "bool", int: "int64", float: "real"}[type(value)]
        value = scalar_of_type(f"fg.State({name}=...)", value, dtype)
        return _Entry(PropertyType(PropertyKind.SCALAR, dtype), value, False)
    if isinstance(given, str | bytes | dict | Graph | State) or given is None:
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
    return _Entry(
        PropertyType(PropertyKind.VECTOR, array.dtype.name, array.shape), array, False
    )


def _as_shape(
    name: str, value: Any, type_: PropertyType, shape: tuple[int, ...]
) -> Array:
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
