"""Columns: types, versions and memory of properties.

A State has a column for each property. Its values are in the column until a runtime
moves them to memory of a device (a `Place`). All writes go through the column and
advance its `version`, which keys caches of everything derived from the values.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import StateError
from featgraph.cuda.values import DeviceValues, Reordered, host_values
from featgraph.graph.inputs.take import storage_array
from featgraph.graph.views.view import Stamp
from featgraph.program.signature import PropertyKind, PropertyType

__all__ = ["Column", "versions"]

Array = npt.NDArray[Any]
#: Counter of the versions of all columns: a column that replaces another has a later
#: version.
versions = itertools.count(1)


class Place(Protocol):
    """Memory of a device with values of a State, by the names of properties."""

    def download(self, name: str) -> Array: ...

    def written(self, name: str) -> None: ...

    def array(self, name: str) -> Any: ...

    def unshare(self, name: str) -> None: ...

    def put(self, name: str, ids: Array, values: Any) -> bool: ...

    def make_room(self) -> None: ...

    def touched(self, name: str) -> None: ...

    def renew_ghosts(self) -> None: ...


class Column:
    """The owner of a property's memory.

    Attributes
    ----------
    type : PropertyType
    values : ndarray, Filled, Reordered, DeviceValues, scalar, or None
        Values in kernel order. While a place has the values, this attribute is outdated
        or None. An outdated host array is kept: freeing it would make the next download
        pay for new memory pages.
    per_direction : bool
        Whether the property is read back with a row for each direction of an edge.
    version : int
        Advanced whenever values are written or replaced; unique in the process.
    borrowed : ndarray or None
        The caller's own array, while it has the values: nothing else writes it.
    held : tuple of (Place, str), or None
        The place that has the values, and their name there.
    edges : Stamp or None
        For values of edges: the version of the graph to whose edges they belong.
    fill : scalar or ndarray
        The value of entries of new and of dead vertices, and of new edges.
    """

    def __init__(
        self, type_: PropertyType, values: Any, per_direction: bool, fill: Any = 0
    ) -> None:
        self.type = type_
        self.per_direction = per_direction
        self.held: tuple[Place, str] | None = None
        self.borrowed: Array | None = None
        self.edges: Stamp | None = None
        self.fill = fill
        self._memory: Array | None = None
        self.values, self.version = values, next(versions)

    @property
    def count(self) -> int:
        """Number of entries; 1 for a scalar."""
        shape = getattr(self.current(), "shape", ())
        return shape[0] if shape else 1

    @property
    def capacity(self) -> int:
        """Number of entries that fit the memory of the values."""
        memory = self._memory
        is_here = self.held is None and isinstance(self.values, np.ndarray)
        return len(memory) if memory is not None and is_here else self.count

    def put(self, values: Any) -> None:
        """Replace all values, in the same memory if it has spare capacity."""
        self.borrowed = None
        self._keep(values)
        self.mark_written(None)

    def take_back(self, values: Any) -> None:
        """Store the values that a place had; the column has them from now on."""
        self._keep(values)
        self.held = None

    def _keep(self, values: Any) -> None:
        if self._memory is not None:
            values = host_values(values)
            if len(values) > len(self._memory):  # the place had a larger capacity
                self._memory = values
            self._memory[: len(values)] = values
            values = self._memory[: len(values)]
        self.values = values

    def on_host(self) -> Any:
        """Return the values as a host array, or the scalar; read-only."""
        if self.held is not None:
            place, name = self.held
            return place.download(name)
        return host_values(self.values)

    def current(self) -> Any:
        """Return the values in their current place."""
        found = None if self.held is None else self.held[0].array(self.held[1])
        return self.values if found is None else found

    def lend(self) -> Any:
        """Return an array or `DeviceValues` that may be written, in the current place.

        The writer calls `touch` afterwards.
        """
        if self.held is not None:
            place, name = self.held
            place.unshare(name)
            found = place.array(name)
            if found is not None:
                return found
        if not isinstance(self.values, DeviceValues):
            self.values = host_values(self.values)
        return self.values

    def require_own(self, where: str) -> None:
        """Raise StateError for a column of the graph, which only batches write."""
        if self.type.column:
            raise StateError(
                "the values are a column of the graph, which is read-only",
                where=where,
                got=f"graph.column({self.type.column!r})",
                fix="write it with graph.update; or give the State a copy, "
                "fg.edge_property(values)",
            )

    def touch(self) -> None:
        """Advance the version after a write in place by the caller."""
        self.version = next(versions)
        if self.held is not None:
            place, name = self.held
            place.touched(name)

    def mark_written(self, place: Place | None) -> None:
        """Advance the version after a write at a place, or on the host (None).

        A copy at another place is dropped.
        """
        self.version = next(versions)
        if self.held is not None and place is not self.held[0]:
            held, name = self.held
            held.written(name)
            self.held = None

    def grow(self, capacity: int, fill: Any) -> None:
        """Move values to memory for `capacity` entries; new ones are `fill`.

        Raises
        ------
        StateError
            If the property does not belong to vertices or edges, `capacity` is less
            than the number of its entries, or its type cannot represent `fill`.
        """
        values = self._entries()
        if capacity < len(values):
            raise StateError(
                "memory is too small for the values",
                where="Column.grow",
                got=f"capacity = {capacity}",
                expected=f"{len(values)} or more",
            )
        rest = storage_array("fill", fill, values.dtype)
        memory = np.empty((capacity, *values.shape[1:]), values.dtype)
        memory[:] = rest
        self._memory = memory
        self.put(values)

    def extend(self, count: int, fill: Any) -> None:
        """Extend the values to `count` vertices or edges; new ones are `fill`.

        Memory grows by doubling. Nothing is done if a place has the values: it has
        spare capacity of its own.
        """
        before = self.count
        if self.held is not None or before >= count:
            return
        if self.capacity < count:
            self.grow(max(count, 2 * before), fill)
        memory: Any = self._memory
        memory[before:count] = fill
        self.values, self.borrowed = memory[:count], None
        self.mark_written(None)

    def _entries(self) -> Array:
        """Return the values on the host, with an entry for each vertex or edge."""
        if self.type.kind not in {PropertyKind.VERTEX, PropertyKind.EDGE}:
            raise StateError(
                "only entries of vertices and edges have slots",
                where="Column.grow",
                got=self.type.describe(),
                expected="a property of vertices or edges",
            )
        return self.on_host()  # type: ignore[no-any-return]

    def copy(self, values: Any) -> Column:
        """Return a column of the same type with a copy of values, on their device.

        A column of the graph still refers to the graph, unless other values are given.
        """
        if self.type.column and values is self.values:
            return Column(self.type, values, self.per_direction)
        type_ = self.type._replace(column="")
        return Column(type_, _copied(values), self.per_direction, self.fill)


def _copied(values: Any) -> Any:
    if isinstance(values, DeviceValues):
        from featgraph.cuda.arrays import copy_of  # imports the dialect

        return DeviceValues(copy_of(values.array), values.width)
    if isinstance(values, Reordered):
        return values.on_host()
    return np.array(values, order="C") if isinstance(values, np.ndarray) else values
