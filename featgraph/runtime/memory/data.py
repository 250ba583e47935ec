"""The namedtuple `d` that the kernels of a module take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from featgraph.program.state import State
from featgraph.runtime.memory.buffers import Buffers, GraphArrays

__all__ = ["DataFields"]

#: Fields that are the same in all supersteps on a graph.
_COUNTS = ("vertex_count", "edge_count")


class DataFields:
    """Finds the fields of `d`, sorted once by where they are.

    Parameters
    ----------
    source : KernelSource
        What has these fields.
    graph : Graph
    arrays : GraphArrays
        The arrays on the device of its part.
    """

    def __init__(self, source: KernelSource, graph: Graph, arrays: GraphArrays) -> None:
        self._values: list[Any] = [None] * len(source.fields)
        #: Places, and the names of properties.
        self._current: list[tuple[int, str]] = []
        self._next: list[tuple[int, str]] = []
        #: Rows of all vertices, and the properties.
        self._everywhere: list[tuple[int, str, str]] = []
        self._scalars: list[tuple[int, str, Any]] = []
        self._temporaries: list[tuple[int, tuple[str, str, tuple[int, ...]]]] = []
        #: What only the superstep knows, by its name.
        self._extra: list[tuple[int, str]] = []
        for place, field in enumerate(source.fields):
            if field.source in {"property", "vector"}:
                self._current.append((place, field.of))
            elif field.source == "next":
                self._next.append((place, field.of))
            elif field.source == "everywhere":
                self._everywhere.append((place, field.name, field.of))
            elif field.source == "degrees":
                self._values[place] = arrays.degrees(graph, field.of)
            elif field.source == "scalar":
                type_ = np.dtype(field.dtype).type
                self._scalars.append((place, field.name, type_))
            elif field.source == "temporary":
                rows = graph.part.vertex_count
                shape = (rows, *source.plan.item_shape(field.of))
                self._temporaries.append((place, (field.name, field.dtype, shape)))
            elif field.name in _COUNTS:
                self._values[place] = getattr(graph, field.name)
            elif (
                field.source in {"incremental", "seen", "fault"}
                or field.name == "superstep"
            ):
                self._extra.append((place, field.name))
            else:
                self._values[place] = arrays[field.name]

    def bring(self, state: State, buffers: Buffers) -> None:
        """Bring the values of properties to the device that are not there yet."""
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
            Where its values are.
        extra : mapping of str to array
            Arrays that are neither the State's nor the graph's.
        in_place : bool
            Whether the current buffers stand for the next ones.
        """
        values = self._values.copy()
        current, next_ = buffers.current, buffers.next
        for place, name in self._current:
            known = current.get(name)
            values[place] = buffers.property(name) if known is None else known
        for place, name in self._next:
            if in_place:
                values[place] = buffers.property(name)
            else:
                known = next_.get(name)
                values[place] = buffers.next_of(name) if known is None else known
        for place, name, of in self._everywhere:
            values[place] = buffers.everywhere(name, of)
        for place, name, type_ in self._scalars:
            values[place] = type_(state._columns[name].values)
        for place, memory in self._temporaries:
            values[place] = buffers.temporary(*memory)
        for place, name in self._extra:
            values[place] = state.superstep if name == "superstep" else extra[name]
        return values
