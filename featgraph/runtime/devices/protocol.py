"""The interface of a target: its arrays, sets, rows, launches and recorder.

A target launches `BoundEntry` and `RowKernel`: entries of kernels whose arguments are
bound to the arrays of a graph. `Device` lists all that it does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.cuda.values import DeviceValues, Filled, Reordered
from featgraph.fold.compiling.kernel import DueSetKernel, Kernel
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import HUB_DEGREE, LONG_ROW, rows_along
from featgraph.fold.printing.module import Entry
from featgraph.graph import Graph
from featgraph.graph.views.view import VertexSet
from featgraph.runtime.devices.spare import SpareMemory
from featgraph.runtime.recording.control import DeviceLoop
from featgraph.runtime.recording.cycles import DeferredCalls, KnownCycles

__all__ = [
    "BoundEntry",
    "Device",
    "DeviceGraph",
    "GraphSize",
    "PropertyRows",
    "Reach",
    "Recorder",
    "RowKernel",
    "SetKeys",
    "VertexSets",
    "is_dense",
    "limit_behind",
]

# OpenMP threads that spin while they wait slow down others on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Array = Any
Words = Any
#: Values that can be uploaded to a device.
Values = npt.NDArray[Any] | DeviceValues | Filled | Reordered


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


def is_dense(
    count: int | None, vertex_count: int, edge_count: int, edges: int | None = None
) -> bool:
    """Whether active vertices are so many that a vertex soon finds an active source.

    The search then ends sooner than a sweep over the targets of all active vertices:
    with one edge in n from an active source, a vertex reads about n edges. `edges` is
    the number of edges from active sources; without it, the `count` active vertices are
    assumed to have the average degree.
    """
    if edges is not None:
        return 4 * edges**2 >= vertex_count * edge_count
    return count is not None and 4 * count**2 * edge_count >= vertex_count**3


#: The largest finite key.
_MOST_KEY = float(np.finfo(np.float64).max)


def limit_behind(first: float, delta: float) -> float:
    """Return the limit of near keys from `first` on: inf for the largest key."""
    return math.inf if first >= _MOST_KEY else first + delta


@dataclass(eq=False)
class Reach:
    """The out-edges of an active set.

    Attributes
    ----------
    active : words
    pushed : int
        Number of edges out of active vertices.
    """

    active: Words
    pushed: int


class DeviceGraph(GraphSize, Protocol):
    """A graph on a device: its arrays, and kernels that sweep its rows."""

    @property
    def whole(self) -> tuple[int, int]:
        """Numbers of vertices and edges of the whole graph, if this is a part."""

    def __getitem__(self, name: str) -> Array:
        """Return an array by its name in generated code."""

    def edges_along(self, along: str) -> int:
        """Return the number of edges in the rows along some edges."""

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets, by its name, that sweeps some rows."""


class Recorder(Protocol):
    """A recorder of the operations of supersteps, to be replayed as one launch."""

    @property
    def known(self) -> KnownCycles:
        """Cycles of supersteps that were recorded in other runs."""

    def lend_pools(self, to: object) -> tuple[dict[int, list[Words]], ...]:
        """Return two pools of sets, reserved while `to` lives."""

    def begin(
        self, pools: dict[int, list[Words]], deferred: DeferredCalls | None = None
    ) -> None:
        """Begin to record; sets are taken from `pools`, by their number of words.

        Operations that `deferred` expects are held back and not executed.
        """

    def end(self) -> Any:
        """Return the operations since `begin`; None if they cannot be recorded."""

    @property
    def taken(self) -> tuple[Callable[[], Words], ...]:
        """References to the sets taken since `begin`."""

    def are_free(
        self, taken: Sequence[Callable[[], Words]], pools: dict[int, list[Words]]
    ) -> bool:
        """Whether the sets once taken from some pools are allocated and unused."""

    def record(self, operations: Any) -> Any:
        """Return operations as an object with `launch`, and with `wait` for the count.

        It executes them one by one, or as one launch. None if too many recordings
        exist.
        """

    def loop(self, recordings: Any, turns: int, is_exact: bool) -> DeviceLoop | None:
        """Return a cycle of recordings, of `turns` foldmaps, as a loop on the device.

        With `is_exact` it can end after any superstep. None if a loop does not pay yet,
        or is not possible.
        """


class VertexSets(Protocol):
    """The vertex sets of a target: bitvectors, uint32 arrays of the target.

    Attributes
    ----------
    counts_wait : bool
        Whether the host waits for the device when it counts.
    """

    counts_wait: bool

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device."""

    def snapshot(self, words: Words | None) -> Words | None:
        """Return a set with these vertices that later runs do not change."""

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return a bitvector of `count` words, zero except for those in `apart`."""

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""

    def intersection(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""

    def without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return the vertices of `due` in `on`, and add the rest to `left`."""

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Mark due vertices as patched or, where stale, as recomputed."""

    def count(self, words: Words) -> int:
        """Return the size of a set."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set, and an extreme of each of some arrays, as float64.

        Each array comes with a flag: True for the largest entry, False for the
        smallest. The extreme is NaN if any entry is. The count of `reach` is set, too.
        One wait.
        """

    def reach(self, active: Words, graph: DeviceGraph) -> Reach | None:
        """Return the reach of a set, whose count `count_and_look` sets.

        None if counting needs no wait, so that it can be done on demand.
        """

    def differ(self, last: Array, now: Array) -> Any:
        """Return whether two one-dimensional arrays differ; NaN equals NaN.

        The result is a flag for `all_if`, possibly on the device and without a wait. It
        is valid until the next call.
        """

    def all_if(self, flag: Any, full: VertexSet, find: Callable[[], Words]) -> Words:
        """Return all vertices if a flag is set, and otherwise ``find()``.

        `find` is not called if the flag is on the host and set. If the flag is on the
        device, the result is a bitvector.
        """

    def edges_of(self, words: Words, graph: DeviceGraph, along: str) -> int:
        """Return the number of edges of a set's vertices in rows along some edges."""

    def expand(
        self,
        active: Words,
        graph: DeviceGraph,
        count: int | None = None,
        along: str = "in",
        edges: int | None = None,
    ) -> Words:
        """Return `active` and the vertices that gather from it `along` some edges.

        Along in-edges, these are the targets of its out-edges. `count` is the
        approximate number of active vertices, and `edges` the number of their edges in
        the reverse rows, if known.
        """

    def targets(self, edge_state: Array, graph: DeviceGraph) -> Words:
        """Return the targets of the edges that passed."""

    def refresh_vertices(
        self, words: Words, next_: Array, current: Array, without: Words = None
    ) -> None:
        """Copy the rows of the vertices in `words` that are not in `without`."""

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, graph: DeviceGraph
    ) -> None:
        """Copy the rows of the out-edges of `words`."""


class SetKeys(Protocol):
    """A target's operations on vertex sets by the keys of vertices.

    A vertex has `width` keys. The order is by ``sign * key``, smallest first, NaN
    before all.
    """

    def near(
        self, words: Words, keys: Array, width: int, sign: float, limit: float
    ) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""

    def first(self, words: Words, keys: Array, width: int, sign: float) -> float:
        """Return the smallest ``sign * key``; inf for the empty set.

        An infinite key counts as the largest finite number.
        """

    def nearest(
        self,
        words: Words,
        keys: Array,
        order: tuple[int, float],
        limit: float,
        delta: float,
        reach_of: Callable[[Words], Reach | None],
    ) -> tuple[Words, int, float, int]:
        """Return near vertices, their number, the limit, and the size of `words`.

        If no vertex is near, the limit becomes the first key plus `delta`. The count of
        ``reach_of(near)`` is set, too. One wait.

        Parameters
        ----------
        order : tuple of int and float
            `width` and `sign`.
        """


class PropertyRows(Protocol):
    """A target's arrays of property values, as its kernels read them.

    Rows may be padded.
    """

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array for values of a shape."""

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array with these values: see `Device.upload`."""

    def extended(self, values: Values, room: int, memory: Array | None = None) -> Array:
        """Return an array of `room` rows, the first of which have these values.

        The other rows start with any number; they have no vertex or edge yet.
        """

    def download(self, array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return values of a shape on the host."""

    def held(
        self, array: Array, shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | DeviceValues:
        """Return an array in the shape of its values, without a copy."""

    def put(self, array: Array, ids: Array, values: Array) -> None:
        """Write some rows by their indices; of repeated indices, the last counts.

        `values` are host arrays: one for each row, or one for all.
        """

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of which a mark, one byte each, is 1."""


class Trees(Protocol):
    """Combines of the blocks of a reduce that one rank has all of."""

    def given(self, words: int) -> dict[str, int]:
        """Return further arguments of a kernel that stores a block for each word."""

    def combine(self, rows: Array, words: int, result: Array, pair: np.ufunc) -> None:
        """Combine all blocks, the first rows of `rows`, into `result`."""


class Device(Protocol):
    """A target's arrays and launches, and its sets."""

    name: str
    #: Whether sets that are kept on the device take scarce memory.
    is_scarce: bool

    @property
    def sets(self) -> VertexSets:
        """Operations on sets of vertices."""

    @property
    def keys(self) -> SetKeys:
        """Operations on sets of vertices by their keys."""

    @property
    def rows(self) -> PropertyRows:
        """Arrays of the values of properties."""

    @property
    def trees(self) -> Trees:
        """Combines of the blocks of a reduce in a fixed tree."""

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of supersteps; None if replays are not faster."""

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array of the device, in `memory` if it fits.

        Values that are on the device already may be returned without a copy.
        """

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array."""

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of zeros, for values that kernels compute."""

    def make_spare_memory(self) -> SpareMemory | None:
        """Return a cache of memory of a graph's States; None if the target has none."""

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""

    def add_one(self, array: Array) -> None:
        """Add one to the first element."""

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its generated name."""

    def reduce_rows(self, graph: DeviceGraph, phase: Phase) -> int:
        """Return the number of partial results of a reduce over a graph's vertices."""

    def frontier_form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: GraphSize,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return the frontier form of the kernel for a phase: see `FoldPlan`.

        `count` is the number of active vertices; None if all are active or the number
        is unknown. `is_listed` is whether a list of the vertices that may be due
        exists.
        """

    def list_vertices(self, mask: npt.NDArray[np.bool_]) -> Array | None:
        """Return the vertices of a mask if kernels should sweep a list, else None."""

    def launch(self, bound: BoundEntry, given: Mapping[str, Any]) -> None:
        """Launch one entry of a kernel with the arguments of a superstep, by name."""

    def synchronize(self) -> None:
        """Wait for all launched work."""
