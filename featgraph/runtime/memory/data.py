"""The namedtuple `d` that the kernels of a module take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.errors import StateError
from featgraph.cuda.arguments import picker
from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from featgraph.graph.inputs.numbers import lost_value
from featgraph.program.state import State
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["DataFields"]

#: Fields that are the same in all supersteps on a version of a graph.
_COUNTS = ("vertex_count", "living_count", "edge_count")
#: The memory that holds the number of the superstep, as `Buffers.temporary` takes it.
_CLOCK = "superstep", "int64", (1,)
#: Kinds of fields, in the order in which `DataFields.find` collects them.
_KINDS = (
    "fixed", "current", "next", "count", "everywhere", "scalar", "temporary", "extra",
)  # fmt: skip


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
        # Values of constant fields, and the positions of the fields of each kind.
        # `find` collects values by kind, and puts them in order at the end.
        fixed: list[Any] = []
        places: dict[str, list[int]] = {kind: [] for kind in _KINDS}
        current: list[str] = []
        next_: list[str] = []
        #: Arrays of properties at all vertices: name, and property.
        self._everywhere: list[tuple[str, str]] = []
        self._arrays = arrays
        self._counts: list[str] = []
        self._scalars: list[_Scalar] = []
        self._temporaries: list[tuple[str, str, tuple[int, ...]]] = []
        #: Names of fields that the superstep passes.
        self._extra: list[str] = []
        for place, field in enumerate(source.fields):
            kind = "fixed"
            column = source.plan.column_array(field.of)
            if column and field.source == "property":
                fixed.append(arrays[column])
            elif field.source in {"property", "vector"}:
                kind = "current"
                current.append(field.of)
            elif field.source == "next":
                kind = "next"
                next_.append(field.of)
            elif field.source == "everywhere":
                kind = "everywhere"
                self._everywhere.append((field.name, field.of))
            elif field.source == "degrees":
                fixed.append(arrays.degrees(graph, field.of))
            elif field.source == "scalar":
                kind = "scalar"
                self._scalars.append(_Scalar(field.name, np.dtype(field.dtype).type))
            elif field.source == "temporary":
                kind = "temporary"
                shape = (arrays.vertex_count, *source.plan.item_shape(field.of))
                self._temporaries.append((field.name, field.dtype, shape))
            elif field.name in _COUNTS and graph.ranks is None:
                kind = "count"
                self._counts.append(field.name)
            elif field.name in _COUNTS:
                fixed.append(getattr(graph, field.name))
            elif (
                field.source in {"incremental", "seen", "fault"}
                or field.name == "superstep"
            ):
                kind = "extra"
                self._extra.append(field.name)
            else:
                fixed.append(arrays[field.name])
            places[kind].append(place)
        #: Whether kernels read the number of the superstep from memory.
        self._has_clock = any(f.name == "superstep" and f.rank for f in source.fields)
        self._fixed = tuple(fixed)
        self._current, self._next = tuple(current), tuple(next_)
        self._pick_current, self._pick_next = picker(current), picker(next_)
        found = [place for kind in _KINDS for place in places[kind]]
        self._in_order = picker(sorted(range(len(found)), key=found.__getitem__))

    def bring(self, state: State, buffers: Buffers) -> None:
        """Upload the values of properties that are not on the device yet."""
        for name in self._current:
            if name in state:
                buffers.property(name)

    def find(
        self, state: State, buffers: Buffers, extra: Mapping[str, Any], in_place: bool
    ) -> tuple[Any, ...]:
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
        try:
            current = self._pick_current(buffers.current)
            next_ = self._pick_next(buffers.current if in_place else buffers.next)
        except KeyError:  # a buffer does not exist yet
            current = tuple([buffers.property(name) for name in self._current])
            find_next = buffers.property if in_place else buffers.next_of
            next_ = tuple([find_next(name) for name in self._next])
        found = [*self._fixed, *current, *next_]
        for name in self._counts:
            found.append(self._arrays.count(name))
        for name, of in self._everywhere:
            found.append(buffers.everywhere(name, of))
        columns = state._columns
        for scalar in self._scalars:
            value = columns[scalar.name].values
            if value is not scalar.given:
                scalar.put(value)
            found.append(scalar.typed)
        for key in self._temporaries:
            found.append(buffers.temporary(*key))
        for name in self._extra:
            found.append(extra[name] if name in extra else self._number(state, buffers))
        return self._in_order(found)

    def _number(self, state: State, buffers: Buffers) -> Any:
        """Return the number of the superstep, or the memory that holds it (GPU)."""
        number = state.superstep
        if not self._has_clock:
            return number
        clock = buffers.temporary(*_CLOCK, is_whole=True)
        if buffers.clock != number:
            buffers.device.fill(clock, np.int64(number))
            buffers.clock = number
        return clock

    @staticmethod
    def end_superstep(buffers: Buffers) -> None:
        """Advance the number of the superstep, if memory holds it for any kernel."""
        if buffers.clock is not None:
            buffers.device.add_one(buffers.temporary(*_CLOCK))
            buffers.clock += 1


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
