"""Entries of a kernel, with the arrays of a graph bound to their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from featgraph.base.cached import cached_property
from featgraph.fold.compiling.kernel import DueSetKernel, Kernel
from featgraph.fold.plan.traits import HUB_DEGREE, LONG_ROW, rows_along
from featgraph.fold.printing.module import Entry

__all__ = ["BoundEntry", "GraphSize", "RowKernel"]

Array = Any


class GraphSize(Protocol):
    """The numbers of vertices and edges of a graph."""

    @property
    def vertex_count(self) -> int:
        """Number of vertices."""

    @property
    def edge_count(self) -> int:
        """Number of directed edges."""


class RowKernel:
    """A kernel over vertex sets, bound to the rows of a graph.

    Parameters
    ----------
    kernel : DueSetKernel
    along : str
        The rows that it sweeps.
    graph : mapping of str to array
        The arrays of the graph on the device.

    Attributes
    ----------
    rows : tuple of arrays
        Its last arguments.
    threads : int
        Threads of a block (CUDA).
    chunks : array
        Cuts of all words into equal work, if it is called for each chunk (CPU).
    word_count : int
        Number of words.
    is_one_chunk : bool
        Whether there is a single chunk.
    """

    chunks: Array
    word_count: int
    is_one_chunk: bool

    def __init__(
        self, kernel: DueSetKernel, along: str, graph: Mapping[str, Array]
    ) -> None:
        self._kernel, self.threads = kernel, kernel.threads
        self.rows = tuple(graph[array] for array in kernel.arrays(along))
        if kernel.facts.is_cut:
            self.chunks = graph[rows_along(along).chunks]
            self.word_count = int(self.chunks[-1])
            self.is_one_chunk = self.chunks.size == 2

    @cached_property
    def function(self) -> Any:
        """The compiled function."""
        return self._kernel.function

    @cached_property
    def in_chunks(self) -> Any:
        """The compiled function that calls it for each chunk, on all threads (CPU)."""
        return self._kernel.in_chunks


class BoundEntry:
    """One entry of a kernel on one graph, with constant arguments bound once.

    Parameters
    ----------
    kernel : Kernel
    entry : Entry
        One of its entries.
    graph : GraphSize
    arrays : GraphArrays
        The arrays of the graph on the device.

    Attributes
    ----------
    phase : Phase
        The phase of the plan that it runs.
    place : dict of str to int
        The index of each argument.
    constants : list
        The arguments that are the same at each launch; None for all others.
    given : list of (int, str)
        Index and name of each argument of a superstep.
    is_swept : bool
        Whether it sweeps chunks, which `sweep` takes one by one (CPU).
    is_cut : bool
        Whether the graph has several chunks, or the order of a superstep may (CPU).
    vertex_count, edge_count : int
        Vertices and edges of the graph.
    has_fixed_grid : bool
        Whether its grid depends on bound arguments only.
    lists : tuple of RowKernel
        The kernels that count, and then list, its rows, if it sweeps a list of them.
    grid : tuple or None
        Function, blocks, threads of a block, and stream, once they are known and fixed,
        and the entry has no scratch memory (CUDA).
    """

    def __init__(
        self, kernel: Kernel, entry: Entry, graph: GraphSize, arrays: Any
    ) -> None:
        self.kernel = kernel
        self.entry = entry
        self.phase = kernel.plan.phases[entry.phase]
        self.vertex_count, self.edge_count = graph.vertex_count, graph.edge_count
        self.place = {name: place for place, name in enumerate(entry.arguments)}
        self.is_swept = "chunks" in self.place and entry.role == "main"
        made_by = ("count_rows", "list_rows") if self.phase.mapping.lists_rows else ()
        along = self.phase.rows_along
        self.lists = tuple(arrays.kernel(name, along) for name in made_by)
        self.has_fixed_grid = not (self.lists or "listed" in self.place)
        self.has_fixed_grid &= not any(array.dtype for array in entry.arrays)
        self.grid: tuple[Any, int, int, Any] | None = None
        least = self.phase.mapping.hub_degree or HUB_DEGREE
        long_row = LONG_ROW if self.phase.kind.intersects else least
        sizes = {"vertex_count": self.vertex_count, "hub_degree": long_row}
        self.constants: list[Any] = []
        self.given: list[tuple[int, str]] = []
        for argument in kernel.kernel_source.arguments_of(entry):
            known = sizes.get(argument.name)
            if argument.kind == "graph":
                known = arrays[argument.array]
            elif argument.kind == "superstep" and known is None:
                self.given.append((len(self.constants), argument.name))
            self.constants.append(known)
        chunks = self.constants[self.place["chunks"]] if self.is_swept else ()
        self.is_cut = chunks is None or len(chunks) > 2

    def fill(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a launch: the constant ones and those of a superstep.

        Arguments that the device sets are None.
        """
        values = self.constants.copy()
        for place, name in self.given:
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
