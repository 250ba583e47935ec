"""Entries of a kernel with the arrays of a graph in place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from featgraph.fold.codegen.module import Entry
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.traits import HUB_DEGREE
from featgraph.graph import Graph

__all__ = ["LONG_ROW", "BoundEntry"]

Array = Any
#: A row of so many vertices of higher degree is left to a block of its own: its bitmap
#: then saves six steps of a search or more.
LONG_ROW = 64


class BoundEntry:
    """One entry of a kernel on one graph: what stays is bound once.

    Parameters
    ----------
    kernel : Kernel
    entry : Entry
        One of its entries.
    graph : Graph
    arrays : mapping of str to array
        The arrays of the graph on the device.

    Attributes
    ----------
    phase : Phase
        The phase of the plan that it runs.
    place : dict of str to int
        Where each argument stands.
    is_swept : bool
        Whether it goes through chunks, which `sweep` takes one by one (CPU).
    vertex_count, edge_count : int
        Of the graph.
    offsets : array or None
        Where the rows begin whose vertices it has a list of.
    blocks : int or None
        Blocks of its grid, once they are known and stay (CUDA).
    """

    def __init__(
        self, kernel: Kernel, entry: Entry, graph: Graph, arrays: Mapping[str, Array]
    ) -> None:
        self.kernel = kernel
        self.entry = entry
        self.phase = kernel.plan.phases[entry.phase]
        self.vertex_count, self.edge_count = graph.vertex_count, graph.edge_count
        self.place = {name: place for place, name in enumerate(entry.arguments)}
        self.is_swept = "chunks" in self.place and entry.role == "main"
        lists = self.phase.mapping.lists_rows
        self.offsets = arrays[self.phase.rows.offsets] if lists else None
        self.blocks: int | None = None
        long_row = LONG_ROW if self.phase.kind == "triangle" else HUB_DEGREE
        sizes = {"vertex_count": self.vertex_count, "hub_degree": long_row}
        self._values: list[Any] = []
        self._given: list[tuple[int, str]] = []
        for argument in kernel.kernel_source.arguments_of(entry):
            known = sizes.get(argument.name)
            if argument.kind == "graph":
                known = arrays[argument.array]
            elif argument.kind == "superstep" and known is None:
                self._given.append((len(self._values), argument.name))
            self._values.append(known)

    def fill(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a launch, with what a superstep gives.

        What the device decides is left open.
        """
        values = self._values.copy()
        for place, name in self._given:
            values[place] = given[name]
        return values

    @cached_property
    def function(self) -> Any:
        """The compiled function."""
        return self.kernel.function(self.entry)

    @cached_property
    def sweep(self) -> Any:
        """The function that sweeps one chunk (CPU)."""
        return self.kernel.sweep(self.entry)
