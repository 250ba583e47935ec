"""Where arrays live and kernels run: what a target must do, and the CPU's way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph import _cuda
from featgraph._interrupts import import_whole
from featgraph.config import config
from featgraph.errors import PlanError
from featgraph.fold.adjacency import rows_along, rows_with
from featgraph.fold.emit import Entry
from featgraph.fold.kernel import Kernel
from featgraph.fold.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.graph._columns import incident_columns, out_columns
from featgraph.program.active import word_count
from featgraph.runtime.cpu_sweeps import (
    CHUNKS_PER_THREAD,
    SMALLEST_CHUNK,
    CpuSweeps,
)
from featgraph.runtime.cycles import KnownCycles

__all__ = [
    "HUB_DEGREE",
    "LONG_ROW",
    "CpuDevice",
    "Device",
    "Recorder",
    "choose_device",
    "is_dense",
]

# Threads that wait by spinning hold up the ones that work wherever cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Array = Any
Words = Any
#: A vertex of at least this degree is left to a block of its own on the GPU.
HUB_DEGREE = 2048
#: Most chunks of vertices that a reduce over all of them is cut into, for any number of
#: threads: enough for 32 of them, few enough that each costs nothing.
REDUCE_CHUNKS = 512
#: A row of so many higher ranks is left to a block of its own: its bitmap then saves
#: six steps of a search or more.
LONG_ROW = 64


def is_dense(count: int | None, vertex_count: int, edge_count: int) -> bool:
    """Whether so many vertices are active that a vertex soon finds one of its sources.

    Then looking for one ends sooner than going through the targets of all: with one
    edge in n from an active source, a vertex looks at about n edges.
    """
    return count is not None and 4 * count**2 * edge_count >= vertex_count**3


class Recorder(Protocol):
    """Remembers what supersteps ask a device for, and makes launches of it."""

    @property
    def known(self) -> KnownCycles:
        """Cycles that have come round in other runs."""

    def lend_pools(self, to: object) -> tuple[dict[int, list[Words]], ...]:
        """Return two pools of sets, for as long as an object lives."""

    def begin(self, pools: dict[int, list[Words]]) -> None:
        """Begin to remember; sets come from pools, by their numbers of words."""

    def end(self) -> Any:
        """Return what was asked for since; None if it cannot be recorded."""

    def record(self, operations: Any) -> Any:
        """Return operations as an object with `launch`, and `wait` for the count.

        It may ask for them one by one, or have them made into one launch.

        None if too many are held.
        """


class Device(Protocol):
    """A target's arrays, bitvectors and launches.

    Bitvectors are uint32 arrays of the target.
    """

    name: str
    #: Vertex count -> the set of all vertices.
    full_sets: dict[int, Words]

    @property
    def recorder(self) -> Recorder | None:
        """What makes launches of whole supersteps, where that is faster."""

    def upload(self, array: npt.NDArray[Any], memory: Array | None = None) -> Array:
        """Return an array of the device, in the memory of one that is given up."""

    def upload_words(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device."""

    def hold(self, words: Words | None) -> Words | None:
        """Return a set that stays as it is, whatever runs next."""

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array that kernels write before they use it."""

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""

    def words_or(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""

    def words_and(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""

    def words_without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return what of `due` is in `on`, and add the rest to `left`."""

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Note that due vertices have been patched or, where stale, recomputed."""

    def count(self, words: Words) -> int:
        """Return the size of a set."""

    def edges_of(self, words: Words, offsets: Array) -> int:
        """Return how many edges the vertices of a set have, by their row offsets."""

    def near(self, words: Words, keys: Array, sign: float, limit: float) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``.

        NaN is near.
        """

    def first_key(self, words: Words, keys: Array, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; inf for the empty one."""

    def expand(
        self,
        active: Words,
        arrays: Mapping[str, Array],
        count: int | None = None,
        along: str = "in",
    ) -> Words:
        """Return `active` with who gathers from it `along` some edges.

        Along in-edges, these are the targets of its out-edges. `count` says about how
        many vertices are active, where that is known.
        """

    def empty_words(self, count: int) -> Words:
        """Return the empty set of `count` vertices."""

    def targets(self, edge_state: Array, arrays: Mapping[str, Array]) -> Words:
        """Return the targets of the edges that passed."""

    def refresh_vertices(
        self, words: Words, next_: Array, current: Array, without: Words = None
    ) -> None:
        """Copy the rows of the vertices in `words` that are not in `without`."""

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, arrays: Mapping[str, Array]
    ) -> None:
        """Copy the rows of the out-edges of `words`."""

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its generated name."""

    def reduce_rows(self, arrays: Mapping[str, Array]) -> int:
        """Return how many partial results a reduce leaves, by the graph's arrays."""

    def form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: Graph,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return which form of a kernel runs a phase: see `FoldPlan`.

        `count` says how many vertices are active, where not all are and it is known;
        `is_listed`, whether there is a list of those that may be due.
        """

    def list_vertices(self, mask: npt.NDArray[np.bool_]) -> Array | None:
        """Return the vertices where `mask` holds, if kernels better go by a list."""

    def launch(
        self, kernel: Kernel, entry: Entry, graph: Graph, arguments: dict[str, Any]
    ) -> None:
        """Launch one entry of a kernel."""

    def synchronize(self) -> None:
        """Wait for what was launched."""


class CpuDevice(CpuSweeps):
    """NumPy arrays and Numba's threads."""

    name = "cpu"
    recorder = None

    def __init__(self) -> None:
        super().__init__()
        self.full_sets: dict[int, Words] = {}

    def upload(self, array: npt.NDArray[Any], memory: Array | None = None) -> Array:
        """Return an array of the device; on the CPU `array` itself."""
        return array

    def upload_words(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device; on the CPU `words` itself."""
        return words

    def hold(self, words: Words | None) -> Words | None:
        """Return a set that stays as it is: a copy."""
        return None if words is None else words.copy()

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array; on the CPU `array` itself."""
        return array  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""
        return np.empty(shape, dtype)

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array that kernels write before they use it."""
        return self.empty(shape, dtype)

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        array[...] = value

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""
        np.copyto(target, source)

    def near(self, words: Words, keys: Array, sign: float, limit: float) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""
        near = np.empty_like(words)
        rows = keys.reshape(len(keys), -1)
        self._loops.near(words, rows, np.float64(sign), np.float64(limit), near)
        at = np.flatnonzero(near)
        self._note(near, at, 0, int(np.bitwise_count(near[at]).sum()))
        return near

    def first_key(self, words: Words, keys: Array, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; inf for the empty one."""
        rows = keys.reshape(len(keys), -1)
        return float(self._loops.first_key(words, rows, np.float64(sign)))

    def targets(self, edge_state: Array, arrays: Mapping[str, Array]) -> Words:
        """Return the targets of the edges that passed last."""
        offsets = arrays["in_offsets"]
        words = np.zeros(word_count(offsets.size - 1), np.uint32)
        self._loops.collect_targets(edge_state, offsets, words)
        return words

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, arrays: Mapping[str, Array]
    ) -> None:
        """Copy the rows of the out-edges of the vertices in `words`."""
        rows = (len(current), current.size // max(len(current), 1))
        self._loops.refresh_edges(
            words,
            next_.reshape(rows),
            current.reshape(rows),
            arrays["out_offsets"],
            arrays["out_edges"],
        )

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code."""
        return host_graph_array(graph, name)

    def reduce_rows(self, arrays: Mapping[str, Array]) -> int:
        """Return how many partial results a reduce leaves, by the graph's arrays."""
        return len(arrays["vertex_chunks"]) - 1

    def form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: Graph,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return which form of a kernel runs a phase; on the CPU there is one."""
        return "plain"

    def list_vertices(self, mask: npt.NDArray[np.bool_]) -> Array | None:
        """Return None: here sweeps go by words and pass over empty ones."""
        return None

    def synchronize(self) -> None:
        """Wait for launched work; there is none on the CPU."""


#: `along` -> the edges of each vertex.
_ADJACENCIES: dict[str, Callable[[Graph], Any]] = {
    "in": lambda graph: graph.in_edges,
    "out": lambda graph: graph.out_edges,
    "both": lambda graph: graph.incident_edges,
}
#: The same without edge ids, where that is less work.
_COLUMNS: dict[str, Callable[[Graph], Any]] = {
    "out": out_columns,
    "both": incident_columns,
}


def host_graph_array(graph: Graph, name: str) -> npt.NDArray[Any]:
    """Return a host array of the graph by its name in generated code."""
    for along, adjacency in _ADJACENCIES.items():
        rows = rows_along(along)
        if name == rows.edges:
            return adjacency(graph).edge_ids  # type: ignore[no-any-return]
        columns = _COLUMNS.get(along, adjacency)
        if name == rows.offsets:
            return columns(graph).row_offsets  # type: ignore[no-any-return]
        if name == rows.ends:
            return columns(graph).column_indices  # type: ignore[no-any-return]
    if name == "edge_twin":
        return graph.twins
    if name.startswith(("upper_", "lower_", "both_", "rank_", "vertex_rank")):
        return _oriented_array(graph, name)
    if name in {"triangle_chunks", "edge_chunks"}:
        return _triangle_chunks(graph, name)
    if name == "edge_is_twin":
        return np.asarray(graph.given_index >= graph.given_edge_count, np.bool_)
    if name in {"in_degree", "out_degree"}:
        return np.ascontiguousarray(getattr(graph, name), np.int32)
    return _chunks(graph, name)


def _oriented_array(graph: Graph, name: str) -> npt.NDArray[Any]:
    """Return an array of the graph's rows by rank."""
    oriented = graph.oriented
    if name == "rank_vertex":
        return oriented.order
    if name == "vertex_rank":
        return oriented.rank
    rows, _, array = name.partition("_")
    adjacency = getattr(oriented, rows)  # upper, lower or both
    arrays: dict[str, Any] = {
        "offsets": adjacency.row_offsets,
        "ranks": adjacency.column_indices,
        "edges": adjacency.edge_ids,
        "slots": adjacency.edge_ids,
    }
    return arrays[array]  # type: ignore[no-any-return]


def _triangle_chunks(graph: Graph, name: str) -> npt.NDArray[np.int64]:
    """Return where rows by rank, or edges, are cut into chunks of about equal work."""
    threads = import_whole("numba").get_num_threads()
    if name == "edge_chunks":
        count = max(1, min(threads * CHUNKS_PER_THREAD, graph.edge_count // 4096))
        return np.linspace(0, graph.edge_count, count + 1).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(graph.oriented.work)])
    # Each chunk clears an array over all vertices first.
    smallest = max(SMALLEST_CHUNK, graph.vertex_count)
    most = threads * CHUNKS_PER_THREAD
    count = max(1, min(most, int(total[-1]) // smallest))
    cuts = np.searchsorted(total, np.linspace(0, total[-1], count + 1)[1:-1])
    return np.unique(np.concatenate([[0], cuts, [graph.vertex_count]])).astype(np.int64)


def _chunks(graph: Graph, name: str) -> npt.NDArray[np.int64]:
    """Return word numbers that cut the vertices into chunks of about equal work."""
    words = word_count(graph.vertex_count)
    work = np.full(words, 32, np.int64)
    of = rows_with(name)
    most = min(words, import_whole("numba").get_num_threads() * CHUNKS_PER_THREAD)
    if of is None:  # of a reduce: its result has the same bits for any number of them
        most = min(words, REDUCE_CHUNKS)
    else:
        offsets = host_graph_array(graph, of.offsets)
        ends = np.minimum(np.arange(words + 1) * 32, graph.vertex_count)
        work += np.diff(offsets[ends]).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(work)])
    count = max(1, min(most, int(total[-1]) // SMALLEST_CHUNK))
    cuts = np.searchsorted(total, np.linspace(0, total[-1], count + 1)[1:-1])
    return np.unique(np.concatenate([[0], cuts, [words]])).astype(np.int64)


def choose_device(target: str) -> Device:
    """Return the device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    DeviceError
        If CUDA is asked for and cannot be used here.
    PlanError
        For an unknown target.
    """
    if not isinstance(target, str):
        target = repr(target)
    if target == "auto":
        target = config.target
    if target == "auto":
        target = "cuda" if _cuda.is_available() else "cpu"
    if target == "cpu":
        return _CPU
    if target == "cuda":
        _cuda.require(gpu=True)
        from featgraph.runtime.cuda_device import cuda_device

        return cuda_device()
    raise PlanError(
        "unknown target",
        where="target=",
        got=repr(target),
        expected="auto, cpu or cuda",
    )


_CPU = CpuDevice()
