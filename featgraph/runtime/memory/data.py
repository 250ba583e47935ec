"""The namedtuple `d` that the kernels of a module take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.errors import StateError
from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from featgraph.graph.inputs.numbers import lost_value
from featgraph.program.state import State
from featgraph.runtime.memory.buffers import CLOCK, Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["DataFields"]

#: Fields that are the same in all supersteps on a version of a graph.
_COUNTS = ("vertex_count", "living_count", "edge_count")


class DataFields:
    """The fields of `d`, sorted once by their kind.

    Parameters
    ----------
    source : KernelSource
        The module with these fields.
    graph : Graph
    arrays : GraphArrays
        The arrays of its part on the device.
    """

    def __init__(self, source: KernelSource, graph: Graph, arrays: GraphArrays) -> None:
        #: Values of constant fields; None for others, which are below by their kind:
        #: the place of a field, and what finds its value.
        self._fixed: list[Any] = [None] * len(source.fields)
        self._current: list[tuple[int, str]] = []
        self._next: list[tuple[int, str]] = []
        #: Arrays of properties at all vertices: place, name, and property.
        self._everywhere: list[tuple[int, str, str]] = []
        self._arrays = arrays
        self._counts: list[tuple[int, str]] = []
        self._scalars: list[tuple[int, _Scalar]] = []
        self._temporaries: list[tuple[int, tuple[str, str, tuple[int, ...]]]] = []
        #: Fields that the superstep passes.
        self._extra: list[tuple[int, str]] = []
        for place, field in enumerate(source.fields):
            column = source.plan.column_array(field.of)
            if column and field.source == "property":
                self._fixed[place] = arrays[column]
            elif field.source in {"property", "vector"}:
                self._current.append((place, field.of))
            elif field.source == "next":
                self._next.append((place, field.of))
            elif field.source == "everywhere":
                self._everywhere.append((place, field.name, field.of))
            elif field.source == "degrees":
                self._fixed[place] = arrays.degrees(graph, field.of)
            elif field.source == "scalar":
                scalar = _Scalar(field.name, np.dtype(field.dtype).type)
                self._scalars.append((place, scalar))
            elif field.source == "temporary":
                shape = (arrays.vertex_count, *source.plan.item_shape(field.of))
                self._temporaries.append((place, (field.name, field.dtype, shape)))
            elif field.name in _COUNTS and graph.ranks is None:
                self._counts.append((place, field.name))
            elif field.name in _COUNTS:
                self._fixed[place] = getattr(graph, field.name)
            elif (
                field.source in {"incremental", "seen", "fault"}
                or field.name == "superstep"
            ):
                self._extra.append((place, field.name))
            else:
                self._fixed[place] = arrays[field.name]
        #: Whether kernels read the number of the superstep from memory.
        self._has_clock = any(f.name == "superstep" and f.rank for f in source.fields)

    def bring(self, state: State, buffers: Buffers) -> None:
        """Upload the values of properties that are not on the device yet."""
        for _, name in self._current:
            if name in state:
                buffers.property(name)

    def find(
        self, state: State, buffers: Buffers, extra: Mapping[str, Any], in_place: bool
    ) -> list[Any]:
        """Return the values of all fields.

        Parameters
        ----------
        state : State
        buffers : Buffers
            The buffers of the State.
        extra : mapping of str to array
            Arrays that belong neither to the State nor to the graph.
        in_place : bool
            Use the current buffers in place of the next ones.
        """
        found, columns = self._fixed.copy(), state._columns
        current = buffers.current
        for place, name in self._current:
            array = current.get(name)
            found[place] = buffers.property(name) if array is None else array
        find_next = buffers.property if in_place else buffers.next_of
        next_ = current if in_place else buffers.next
        for place, name in self._next:
            array = next_.get(name)
            found[place] = find_next(name) if array is None else array
        for place, name in self._counts:
            found[place] = self._arrays.count(name)
        for place, name, of in self._everywhere:
            found[place] = buffers.everywhere(name, of)
        for place, scalar in self._scalars:
            value = columns[scalar.name].values
            if value is not scalar.given:
                scalar.put(value)
            found[place] = scalar.typed
        for place, key in self._temporaries:
            found[place] = buffers.temporary(*key)
        for place, name in self._extra:
            is_given = name in extra
            found[place] = extra[name] if is_given else self._number(state, buffers)
        return found

    def _number(self, state: State, buffers: Buffers) -> Any:
        """Return the number of the superstep, or the memory that holds it (GPU)."""
        number = state.superstep
        if not self._has_clock:
            return number
        clock = buffers.temporary(*CLOCK, is_whole=True)
        if buffers.clock != number:
            buffers.device.fill(clock, np.int64(number))
            buffers.clock = number
        return clock


class _Scalar:
    """A scalar field, and its last value in the type of the kernel.

    The same object is returned for the same number, so that it is packed once.
    """

    __slots__ = ("given", "name", "type", "typed")

    def __init__(self, name: str, type_: Any) -> None:
        self.name, self.type = name, type_
        self.given: Any = None
        self.typed: Any = None

    def put(self, value: Any) -> None:
        """Set another number; raise if the type of the kernel cannot hold it."""
        with np.errstate(over="ignore"):
            typed = self.type(value)
        if isinstance(value, float) and math.isfinite(value) and np.isinf(typed):
            shown, wanted = repr(value), np.dtype(self.type).name
            where = f"scalar {self.name!r}"
            raise lost_value(StateError, where, 0, (), shown, wanted)
        self.given, self.typed = value, typed
