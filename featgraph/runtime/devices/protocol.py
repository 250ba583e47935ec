"""Where arrays live and kernels run: what a target must do."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import DeviceValues, Filled, Reordered
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.graph.views.view import VertexSet
from featgraph.runtime.devices.bound import BoundEntry, GraphSize, RowKernel
from featgraph.runtime.devices.spare import SpareMemory
from featgraph.runtime.recording.aside import Aside
from featgraph.runtime.recording.cycles import KnownCycles
from featgraph.runtime.recording.device_loop import DeviceLoop

__all__ = [
    "Device",
    "DeviceGraph",
    "PropertyRows",
    "Reach",
    "Recorder",
    "SetKeys",
    "VertexSets",
    "is_dense",
    "limit_behind",
]

# Threads that wait by spinning hold up the ones that work wherever cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Array = Any
Words = Any
#: What becomes an array of a device.
Values = npt.NDArray[Any] | DeviceValues | Filled | Reordered


def is_dense(
    count: int | None, vertex_count: int, edge_count: int, edges: int | None = None
) -> bool:
    """Whether so many vertices are active that a vertex soon finds one of its sources.

    Then looking for one ends sooner than going through the targets of all: with one
    edge in n from an active source, a vertex looks at about n edges. So many `edges`
    are from active sources; where that is not known, `count` of them have as many as
    others.
    """
    if edges is not None:
        return 4 * edges**2 >= vertex_count * edge_count
    return count is not None and 4 * count**2 * edge_count >= vertex_count**3


#: The largest finite key.
_MOST_KEY = float(np.finfo(np.float64).max)


def limit_behind(first: float, delta: float) -> float:
    """Return the limit of near keys that begin at `first`: inf for the largest."""
    return math.inf if first >= _MOST_KEY else first + delta


@dataclass(eq=False)
class Reach:
    """How far active vertices reach.

    Attributes
    ----------
    active : words
    pushed : int
        How many edges lead out of them.
    """

    active: Words
    pushed: int


class DeviceGraph(GraphSize, Protocol):
    """A graph on a device: its arrays, and kernels that go along its rows."""

    @property
    def whole(self) -> tuple[int, int]:
        """Vertices and edges of the graph of which it is a part, if not all of it."""

    def __getitem__(self, name: str) -> Array:
        """Return an array by its name in generated code."""

    def edges_along(self, along: str) -> int:
        """Return how many edges the rows along some edges have."""

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets, by its name, that goes along some rows."""


class Recorder(Protocol):
    """Remembers what supersteps ask a device for, and makes launches of it."""

    @property
    def known(self) -> KnownCycles:
        """Cycles that have come round in other runs."""

    def lend_pools(self, to: object) -> tuple[dict[int, list[Words]], ...]:
        """Return two pools of sets, for as long as an object lives."""

    def begin(self, pools: dict[int, list[Words]], aside: Aside | None = None) -> None:
        """Begin to remember; sets come from pools, by their numbers of words.

        The device is asked for nothing as long as `aside` takes it.
        """

    def end(self) -> Any:
        """Return what was asked for since; None if it cannot be recorded."""

    @property
    def taken(self) -> tuple[Callable[[], Words], ...]:
        """References to the sets that were taken since it began to remember."""

    def are_free(
        self, taken: Sequence[Callable[[], Words]], pools: dict[int, list[Words]]
    ) -> bool:
        """Whether sets that were taken from some pools are there, and nobody's."""

    def record(self, operations: Any) -> Any:
        """Return operations as an object with `launch`, and `wait` for the count.

        It may ask for them one by one, or have them made into one launch.

        None if too many are held.
        """

    def loop(self, recordings: Any, turns: int, is_exact: bool) -> DeviceLoop | None:
        """Return a cycle of recordings, of some foldmaps, that runs by itself.

        It ends behind any superstep where it has to be exact.

        None where that does not pay yet, or cannot be.
        """


class VertexSets(Protocol):
    """A target's sets of vertices: bitvectors, uint32 arrays of the target.

    Attributes
    ----------
    counts_wait : bool
        Whether the host waits for the device when it counts.
    """

    counts_wait: bool

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device."""

    def snapshot(self, words: Words | None) -> Words | None:
        """Return a set that stays as it is, whatever runs next."""

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return a bitvector of `count` words, zero but for some, by their numbers."""

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""

    def intersection(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""

    def without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return what of `due` is in `on`, and add the rest to `left`."""

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Note that due vertices have been patched or, where stale, recomputed."""

    def count(self, words: Words) -> int:
        """Return the size of a set."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set, and an entry of each of some arrays, as float64.

        With each array comes whether its largest entry is meant, or its smallest; NaN
        if any is. The count of `reach` is brought, too. All of it takes one wait.
        """

    def reach(self, active: Words, graph: DeviceGraph) -> Reach | None:
        """Return how far a set reaches; `count_and_look` has to bring the count.

        None where to count waits for nothing, so that it can be done when it is needed.
        """

    def differ(self, last: Array, now: Array) -> Any:
        """Say whether two arrays of one axis differ, where NaN equals NaN.

        Returns a flag for `all_if`, where it is found: nothing waits for it. It holds
        until the next one is asked for.
        """

    def all_if(self, flag: Any, full: VertexSet, find: Callable[[], Words]) -> Words:
        """Return all vertices if a flag is set, and otherwise the set that is found.

        It is not looked for where the host knows the flag, and that is set. Where the
        device alone knows it, the result is a bitvector.
        """

    def edges_of(self, words: Words, graph: DeviceGraph, along: str) -> int:
        """Return how many edges the vertices of a set have in rows along some edges."""

    def expand(
        self,
        active: Words,
        graph: DeviceGraph,
        count: int | None = None,
        along: str = "in",
        edges: int | None = None,
    ) -> Words:
        """Return `active` and the vertices that gather from it `along` some edges.

        Along in-edges, these are the targets of its out-edges. `count` says about how
        many vertices are active, and `edges` how many edges these have in the rows that
        lead out of them, where that is known.
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
    """What a target does with sets of vertices by their keys, `width` a vertex.

    Keys times `sign` come smallest first, and NaN before all.
    """

    def near(
        self, words: Words, keys: Array, width: int, sign: float, limit: float
    ) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""

    def first(self, words: Words, keys: Array, width: int, sign: float) -> float:
        """Return the smallest ``sign * key``; inf for the empty set.

        That of infinite keys is the largest finite number.
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
        """Return `near` vertices, how many, the limit, and how many `words` has.

        Where none is near, the limit is the first key and `delta`. The count of what
        `reach_of` returns for the near ones is brought, too. All takes one wait.

        Parameters
        ----------
        order : tuple of int and float
            `width` and `sign`.
        """


class PropertyRows(Protocol):
    """A target's arrays of the values of properties, as its kernels read them.

    Rows may be longer than those of the values: what is between them is no value.
    """

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array for values of a shape, with any of them."""

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array with some values; otherwise as `Device.upload`."""

    def download(self, array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return values of a shape on the host."""

    def held(
        self, array: Array, shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | DeviceValues:
        """Return an array with values of a shape, for who holds or lends them."""

    def put(self, array: Array, ids: Array, values: Array) -> None:
        """Write some rows by their numbers; of one that comes twice, the last counts.

        `values` are host arrays: one for each row, or one for all.
        """

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of which a mark, one byte each, is 1."""


class Trees(Protocol):
    """What combines the blocks of a reduce, of which one rank has all."""

    def given(self, words: int) -> dict[str, int]:
        """Return what a kernel that leaves a block for each word is given beside."""

    def combine(self, rows: Array, words: int, result: Array, pair: np.ufunc) -> None:
        """Leave what all blocks come to, which stand first in `rows`."""


class Device(Protocol):
    """A target's arrays and launches, and its sets."""

    name: str
    #: Whether sets that are kept there take scarce memory.
    is_scarce: bool

    @property
    def sets(self) -> VertexSets:
        """What is done with sets of vertices."""

    @property
    def keys(self) -> SetKeys:
        """What is done with sets of vertices by their keys."""

    @property
    def rows(self) -> PropertyRows:
        """What is done with the values of properties."""

    @property
    def trees(self) -> Trees:
        """What combines the blocks of a reduce in a fixed tree."""

    @property
    def recorder(self) -> Recorder | None:
        """What makes launches of whole supersteps, where that is faster."""

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array of the device, in the memory of one that is given up.

        Values that are there already may be returned as they are.
        """

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array that kernels write before they use it."""

    def make_spare_memory(self) -> SpareMemory | None:
        """Return what keeps memory of States on a graph; None where nothing does."""

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its generated name."""

    def reduce_rows(self, graph: DeviceGraph, phase: Phase) -> int:
        """Return how many partial results a reduce over a graph's vertices leaves."""

    def form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: GraphSize,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return which form of a kernel runs a phase: see `FoldPlan`.

        `count` says how many vertices are active, where not all are and it is known;
        `is_listed`, whether there is a list of those that may be due.
        """

    def list_vertices(self, mask: npt.NDArray[np.bool_]) -> Array | None:
        """Return the vertices where `mask` holds, if kernels better go by a list."""

    def launch(self, bound: BoundEntry, given: Mapping[str, Any]) -> None:
        """Launch one entry of a kernel with what a superstep gives, by name."""

    def synchronize(self) -> None:
        """Wait for what was launched."""
