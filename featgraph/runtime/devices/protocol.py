"""The interface of a target: its arrays, sets, rows, launches and recorder.

`Device` has the operations that runs need on the CPU or a GPU; its parts are
`VertexSets`, `SetKeys` (near and far), `PropertyRows` and `Trees` (reduces); on a GPU,
`TracedDriver` records supersteps for replays. `CpuDevice` (`choose`) and `CudaDevice`
(`cuda_device`) implement it. Kernels are launched as `BoundEntry` or `RowKernel`, which
have the arrays of a graph in place. Begin with `Device`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

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

if TYPE_CHECKING:
    from featgraph.runtime.recording.cuda_trace import TracedDriver

__all__ = [
    "BoundEntry",
    "Device",
    "DeviceGraph",
    "GraphSize",
    "PropertyRows",
    "Reach",
    "RowKernel",
    "SetKeys",
    "VertexSets",
    "is_dense",
    "limit_behind",
]

# By default, OpenMP threads spin while they wait, and so slow down other threads on the
# same cores.
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
        The rows that the kernel sweeps: "in", "out" or "both".
    graph : mapping of str to array
        The arrays of the graph on the device.

    Attributes
    ----------
    rows : tuple of arrays
        The arrays of the rows, which are its last arguments.
    threads : int
        Number of threads of a block (CUDA).
    chunks : array
        Cuts of the words of a set into chunks of equal work (CPU); only for kernels
        that are called once for each chunk.
    word_count : int
        Number of words of a set.
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
        """The compiled function that calls `function` for each chunk, in parallel."""
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
        The phase of the plan to which the entry belongs.
    place : dict of str to int
        Name of an argument -> its index.
    constants : list
        The arguments that are the same at each launch; None for all others.
    given : list of (int, str)
        Index and name of each argument that the superstep passes.
    is_swept : bool
        Whether the entry sweeps chunks, which `sweep` takes one by one (CPU).
    is_cut : bool
        Whether the graph has several chunks, or the chunks belong to the superstep and
        are not known yet (CPU).
    vertex_count, edge_count : int
        Numbers of vertices and edges of the graph.
    has_fixed_grid : bool
        Whether the grid depends on bound arguments only.
    lists : tuple of RowKernel
        Kernels that count and then list the rows to sweep; empty if the entry takes no
        list with prefix sums of degrees.
    grid : tuple or None
        Function, blocks, threads of a block, and stream; cached after the first launch
        if they are fixed and the entry has no scratch memory (CUDA).
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
        """Return the arguments of a launch: constants, and values of `given` by name.

        Arguments that the device sets, such as scratch memory, are None.
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
    """Whether due vertices are found sooner by pulling than by pushing.

    Pulling, each vertex reads its edges until one has an active source: about n edges
    if one in n has. Pushing marks the targets of all active vertices. `edges` is the
    number of edges from active sources; without it, the `count` active vertices are
    assumed to have the average degree.
    """
    # A pushed edge counts as four reads of a pull, which takes about
    # vertex_count * edge_count / edges reads.
    if edges is not None:
        return 4 * edges**2 >= vertex_count * edge_count
    return count is not None and 4 * count**2 * edge_count >= vertex_count**3


#: The largest finite key.
_MOST_KEY = float(np.finfo(np.float64).max)


def limit_behind(first: float, delta: float) -> float:
    """Return the limit of near keys, `delta` behind the first; inf for infinite keys.

    An infinite first key counts as the largest finite number: see `SetKeys.first`.
    """
    return math.inf if first >= _MOST_KEY else first + delta


@dataclass(eq=False)
class Reach:
    """An active set with the number of its out-edges, which a push would follow.

    Attributes
    ----------
    active : words
    pushed : int
        Number of edges out of active vertices; 0 until the device has counted them.
    """

    active: Words
    pushed: int


class DeviceGraph(GraphSize, Protocol):
    """A graph on a device: its arrays, and kernels that sweep its rows."""

    @property
    def whole(self) -> tuple[int, int]:
        """Numbers of vertices and edges of the whole graph, of which this is a part."""

    def __getitem__(self, name: str) -> Array:
        """Return an array by its name in generated code."""

    def edges_along(self, along: str) -> int:
        """Return the number of edges along "in", "out" or "both"."""

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets, such as "reach", that sweeps rows along edges."""


class VertexSets(Protocol):
    """Operations on vertex sets: bitvectors in uint32 arrays of the target.

    Attributes
    ----------
    counts_wait : bool
        Whether a count is a wait of the host for the device.
    """

    counts_wait: bool

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device."""

    def snapshot(self, words: Words | None) -> Words | None:
        """Return an equal set that later supersteps do not overwrite."""

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return a bitvector of `count` zero words, except for ``apart[index]``."""

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""

    def intersection(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""

    def without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return the vertices of `due` in `on`, and add the rest to `left`."""

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Update the sets of `Incremental` after the aggregates of `due` were updated.

        Stale ones have been recomputed and leave both other sets; the others are added
        to `patched`.
        """

    def count(self, words: Words) -> int:
        """Return the size of a set."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set, and the extreme entry of each array, as float64.

        Each array comes with a flag: True for the largest entry, False for the
        smallest. The extreme is NaN if any entry is. `reach.pushed` is set, too. All
        results are read in one wait.
        """

    def reach(self, active: Words, graph: DeviceGraph) -> Reach | None:
        """Start counting the out-edges of a set; `count_and_look` reads the number.

        None if counting needs no wait, so that it can be done on demand.
        """

    def differ(self, last: Array, now: Array) -> Any:
        """Return whether two one-dimensional arrays differ; NaN equals NaN.

        The result is a flag for `all_if`. On a GPU it is device memory, without a wait,
        and valid until the next call.
        """

    def all_if(self, flag: Any, full: VertexSet, find: Callable[[], Words]) -> Words:
        """Return all vertices if a flag is set, and otherwise ``find()``.

        On the CPU `find` is called only if needed. On a GPU it is always called, and
        the result is a new bitvector.
        """

    def edges_of(self, words: Words, graph: DeviceGraph, along: str) -> int:
        """Return the number of edges in the rows of a set's vertices."""

    def expand(
        self,
        active: Words,
        graph: DeviceGraph,
        count: int | None = None,
        along: str = "in",
        edges: int | None = None,
    ) -> Words:
        """Return `active` and the vertices that gather from it `along` some edges.

        Along in-edges, these are the targets of its out-edges. `count` is an upper
        bound of the number of active vertices, and `edges` the number of their edges in
        the reverse direction, if these are known.
        """

    def targets(self, edge_state: Array, graph: DeviceGraph) -> Words:
        """Return the targets of the edges of state 2, which passed last."""

    def refresh_vertices(
        self, words: Words, next_: Array, current: Array, without: Words = None
    ) -> None:
        """Copy `current` to `next_` at vertices in `words` but not in `without`."""

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, graph: DeviceGraph
    ) -> None:
        """Copy `current` to `next_` at the out-edges of the vertices in `words`."""


class SetKeys(Protocol):
    """Operations on vertex sets by keys, for near and far vertices.

    Each vertex has `width` keys. They are ordered by ``sign * key``, smallest first,
    with NaN before all others.
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

        If no vertex is near, the limit becomes the first key plus `delta`. The edges of
        ``reach_of(near)`` are counted, too. All results are read in one wait.

        Parameters
        ----------
        order : tuple of int and float
            `width` and `sign`.
        """


class PropertyRows(Protocol):
    """Arrays of property values as kernels read them, with rows that may be padded.

    `shape` is that of the values, without padding.
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
        """Return the values of an array on the host, without padding."""

    def held(
        self, array: Array, shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | DeviceValues:
        """Return a view of the values of an array, without padding and copy."""

    def put(self, array: Array, ids: Array, values: Array) -> None:
        """Write some rows by their indices; of repeated indices, the last counts.

        `values` are host arrays: one for each row, or one for all.
        """

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of `source` with a mark (one byte each) of 1 to `target`."""


class Trees(Protocol):
    """Reduces in a fixed tree on a rank that has all vertices: see `fixed_trees`."""

    def given(self, words: int) -> dict[str, int]:
        """Return the arguments that make a kernel store a row for each word."""

    def combine(self, rows: Array, words: int, result: Array, pair: np.ufunc) -> None:
        """Combine the rows of all words, the first of `rows`, into `result`."""


class Device(Protocol):
    """A target: arrays, launches, vertex sets and, on a GPU, replays."""

    name: str
    #: Whether memory of the device is limited: old sets that users hold are downloaded,
    #: and `config.memory_limit` applies.
    is_scarce: bool

    @property
    def sets(self) -> VertexSets:
        """Operations on sets of vertices."""

    @property
    def keys(self) -> SetKeys:
        """Operations on sets of vertices by their keys."""

    @property
    def rows(self) -> PropertyRows:
        """Operations on arrays of property values."""

    @property
    def trees(self) -> Trees:
        """Reduces in a fixed tree."""

    @property
    def recorder(self) -> TracedDriver | None:
        """The recorder of the calls of supersteps; None if replays are not faster."""

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array of the device, in `memory` if shape and dtype are equal.

        Values that are on the device already may be returned without a copy.
        """

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array."""

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of zeros, for values that kernels compute."""

    def make_spare_memory(self) -> SpareMemory | None:
        """Return a cache for memory of deleted States; None if the target has none."""

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""

    def add_one(self, array: Array) -> None:
        """Add one to the first element."""

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code."""

    def reduce_rows(self, graph: DeviceGraph, phase: Phase) -> int:
        """Return the number of rows for partial results of the reduce of a phase."""

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

    def list_vertices(
        self, vertices: npt.NDArray[np.int32], count: int
    ) -> Array | None:
        """Return some of `count` vertices as a list to sweep; None if it is slower."""

    def launch(self, bound: BoundEntry, given: Mapping[str, Any]) -> None:
        """Launch one entry of a kernel with the arguments of a superstep, by name."""

    def synchronize(self) -> None:
        """Wait for all launched work."""
