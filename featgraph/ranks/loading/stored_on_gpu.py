"""Parts built on the GPU from rows (CSR) of a rank's own vertices, without sorting.

As in `rows`, with all long arrays on the GPU: cut edges are sent from GPU to GPU in
rounds, and sources are replaced by local numbers there. The host has counts and ghosts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building import gpu_edge_kernels, gpu_part_kernels
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.gpu_edges import marked, taken
from featgraph.graph.building.gpu_part_edges import GpuRowEdges
from featgraph.graph.building.row_edges import GpuRowEdgeList
from featgraph.graph.slices.on_gpu import RowsOnGpu, closed_offsets, count_inside
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import on_all
from featgraph.ranks.loading.chunks import Division
from featgraph.ranks.loading.on_gpu import gpu_sender_for, take_columns
from featgraph.ranks.loading.parts import Found

__all__ = ["ROUND_EDGES", "GpuOwnRows", "part_on_gpu"]

HostArray = npt.NDArray[Any]
#: An array of the dialect.
Array = Any

#: Edge slots per round: messages have 4 or 8 bytes of each.
ROUND_EDGES = 1 << 24
_ABOUT = "edges of a graph"


@dataclass(eq=False)
class GpuOwnRows:
    """The edges into a rank's own vertices, row by row, on its GPU.

    Attributes
    ----------
    division : Division
    rank : int
    rows : RowsOnGpu
    sources : array of int32
        Places in the folder, and after `renumber` numbers of the division; released
        when they are copied to those of all edges.
    out : array of int64, or None
        Out-degrees; None if they equal the in-degrees.
    starts : ndarray of int64, or None
        The edge id of each vertex's first in-edge; None if it follows from the order of
        ranks.
    sums : ndarray of uint64
        Sums for `require_sums`; those over edges are added when all edges are read.
    """

    division: Division
    rank: int
    rows: RowsOnGpu
    sources: Array
    out: Array | None
    starts: HostArray | None
    sums: npt.NDArray[np.uint64]

    def has_inside(self, begin: int, end: int, low: int, high: int) -> bool:
        """Whether any source of the edges `begin` to `end` is from `low` to `high`."""
        return bool(count_inside(self.sources, begin, end, low, high))

    def renumber(self) -> None:
        """Replace sources, which are places, by numbers of the division."""
        numbers = self.division.numbers
        if numbers is not None:
            self.sources = taken(arrays.upload(numbers), self.sources)


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges into own vertices, followed by the received ones.

    Attributes
    ----------
    ends : array of int32
        Sources.
    targets : array of int32
        Targets of the received edges.
    numbers : array of integers, or None
        Rows in given order; None if they are on the host.
    weights : array or None
    on_host : ndarray of integers, or None
        Rows in given order, for a part along in-edges only.
    """

    ends: Array
    targets: Array
    numbers: Array | None
    weights: Array | None
    on_host: HostArray | None


def part_on_gpu(engine: Engine, own: GpuOwnRows, along: str, about: str) -> Found:
    """Return the part of this rank; all ranks call it."""
    manifest = own.rows.slices.manifest
    gpu_sender = gpu_sender_for(engine)
    edges = _with_ghosts(engine, gpu_sender, own, (along == "both", about))
    ghosts, offsets = _localized(own, edges)
    into, listed = own.rows.degrees, arrays.read(ghosts)
    is_directed, bound = manifest.directed or along == "in", manifest.given_count
    numbers, dtype = edges.numbers, offset_dtype(2 * bound)
    there = GpuRowEdges(
        offsets,
        edges.ends,
        is_directed,
        None if numbers is None else lambda: numbers,
        max(bound, 1),
        is_by_slot=is_directed,
    )

    def given_rows() -> HostArray:
        found = arrays.read(numbers) if edges.on_host is None else edges.on_host
        return found.astype(dtype, copy=False)

    known = {"in_offsets": arrays.read(offsets)}
    local = Graph(GpuRowEdgeList(there, edges.weights, known))
    out = into if own.out is None else own.out
    places = own.division.places(listed)
    ghost_exchange = _WindowGhosts(
        engine, gpu_sender, ghosts, own.division.own(own.rank)[0]
    )
    return Found(local, places, given_rows, (into, out), own.starts, ghost_exchange)


def _with_ghosts(
    engine: Engine, gpu_sender: Any, own: GpuOwnRows, how: tuple[bool, str]
) -> _Edges:
    """Read rows and weights, and send cut edges to the owners of their sources."""
    is_both, about = how
    size, ranks = own.rows.size, engine.size
    rounds = np.array([-(-size // ROUND_EDGES) if is_both else 0])
    most = engine.all_reduce(rounds, "max", about="rounds of edges")
    going = _counted(own, int(most[0]), ranks)
    sent_counts = [going[:, rank].copy() for rank in range(ranks)]
    coming = np.stack(engine.all_to_allv(sent_counts, about=_ABOUT), axis=1)
    came = int(coming.sum())
    has_weights = "weights" in own.rows.slices.manifest.arrays

    def read() -> tuple[Array, Array | None]:
        numbers = own.rows.read("rows", came)
        weights = own.rows.read("weights", came) if has_weights else None
        first, vertices = own.division.own(own.rank)[0], own.division.vertices
        own.sums += own.rows.sums((own.sources, numbers, weights), first, vertices)
        return numbers, weights

    numbers, weights = on_all(engine, read, about)
    on_host = None
    if not is_both:
        numbers, on_host = None, arrays.read(numbers)
    ends = own.sources
    if came:
        ends = arrays.empty((size + came,), np.int32)
        arrays.launch_over(gpu_part_kernels.put_at, size, own.sources, 0, ends)
    own.sources = None
    targets = arrays.empty((came,), np.int32)
    edges = _Edges(ends, targets, numbers, weights, on_host)
    if is_both:
        _exchange(gpu_sender, own, edges, (going, coming))
    return edges


def _counted(own: GpuOwnRows, rounds: int, ranks: int) -> npt.NDArray[np.int64]:
    """Return the number of sources of each other rank by round: shape (rounds, P)."""
    found = arrays.filled((max(rounds * ranks, 1),), 0, np.int64)
    for turn in range(rounds):
        begin, end = _slots_of(turn, own.rows.size)
        for rank in range(ranks):
            bounds = own.division.own(rank)
            if rank != own.rank:
                given = own.sources, begin, end, *bounds, found, turn * ranks + rank
                arrays.launch_over(gpu_part_kernels.count_inside, end - begin, *given)
    return arrays.read(found)[: rounds * ranks].reshape(rounds, ranks)


def _slots_of(turn: int, size: int) -> tuple[int, int]:
    begin = min(turn * ROUND_EDGES, size)
    return begin, min(begin + ROUND_EDGES, size)


def _exchange(
    gpu_sender: Any,
    own: GpuOwnRows,
    edges: _Edges,
    counts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    """Send cut edges to the owners of their sources, in rounds."""
    going, coming = counts
    size, offsets = own.rows.size, closed_offsets(own.rows.degrees)
    at = np.cumsum(coming.sum(axis=0)) - coming.sum(axis=0)
    stores = [(edges.ends, size), (edges.targets, 0), (edges.numbers, size)]
    if edges.weights is not None:
        stores.append((edges.weights, size))
    for turn in range(going.shape[0]):
        begin, end = _slots_of(turn, size)
        sent = [
            _cut(own, edges, offsets, (begin, end), rank, count) if count else []
            for rank, count in enumerate(going[turn].tolist())
        ]
        take_columns(gpu_sender, sent, stores, coming[turn], at)
        at += coming[turn]


def _cut(
    own: GpuOwnRows,
    edges: _Edges,
    offsets: Array,
    slots: tuple[int, int],
    rank: int,
    count: int,
) -> list[Array]:
    """Return the columns of the edges whose source a rank owns, of a round's slots."""
    begin, size = slots[0], slots[1] - slots[0]
    flags = arrays.empty((size,), np.uint8)
    bounds = own.division.own(rank)
    arrays.launch_over(
        gpu_part_kernels.flag_inside, size, edges.ends, begin, *bounds, flags
    )
    chosen = flags, sorting.scanned(flags)[0]
    columns = [edges.ends, None, edges.numbers, edges.weights]
    made = []
    for number, column in enumerate(columns):
        if number == 1:
            targets = arrays.empty((count,), np.int32)
            first = own.division.own(own.rank)[0]
            given = offsets, begin, first, *chosen, targets
            arrays.launch_over(gpu_part_kernels.keep_rows, size, *given)
            made.append(targets)
        elif column is not None:
            values = arrays.empty((count,), column.dtype)
            arrays.launch_over(
                gpu_part_kernels.keep_some, size, column, begin, *chosen, values
            )
            made.append(values)
    return made


def _localized(own: GpuOwnRows, edges: _Edges) -> tuple[Array, Array]:
    """Replace sources by local numbers; return ghosts, and offsets of all rows."""
    (first, last), size = own.division.own(own.rank), own.division.size
    marks = arrays.filled((size,), 0, np.uint8)
    for ends in (edges.ends, edges.targets):
        arrays.launch_over(
            gpu_part_kernels.mark_others, ends.size, ends, first, last, marks
        )
    ghosts = marked(marks)
    del marks
    # Rows of ghosts have the received edges, own rows the read ones.
    degrees = arrays.filled((size,), 0, np.int32)
    arrays.launch_over(
        gpu_part_kernels.count_entries, edges.targets.size, edges.targets, degrees
    )
    arrays.launch_over(
        gpu_part_kernels.put_at, last - first, own.rows.degrees, first, degrees
    )
    known, local_count = (first, ghosts, last - first), last - first + ghosts.size
    numbers = arrays.empty((local_count,), np.int32)
    arrays.launch_over(gpu_part_kernels.list_own, local_count, *known, numbers)
    offsets = closed_offsets(taken(degrees, numbers))
    del degrees, numbers
    local = arrays.filled((size,), gpu_part_kernels.ABSENT, np.int32)
    arrays.launch_over(gpu_part_kernels.number_own, local_count, *known, local)
    arrays.launch_over(gpu_part_kernels.localize, edges.ends.size, edges.ends, local)
    return ghosts, offsets


class _WindowGhosts:
    """The exchange of ghosts from GPU to GPU: see `GhostExchange`.

    Parameters
    ----------
    engine : Engine
    gpu_sender : GpuEngine, ThroughHost or ThroughWindows
        See `gpu_sender_for`.
    ghosts : array of int32
        Numbers of the division.
    first : int
        The number of the first own vertex.
    """

    def __init__(
        self, engine: Engine, gpu_sender: Any, ghosts: Array, first: int
    ) -> None:
        self._engine, self._courier = engine, gpu_sender
        self._ghosts, self._first = ghosts, first
        self._lists: list[Array | None] = []

    def send_lists(
        self, ghosts: HostArray, bounds: npt.NDArray[np.int64], first: int
    ) -> tuple[npt.NDArray[np.int32], ...]:
        sizes = 4 * np.diff(bounds)
        sent_counts = list(sizes.reshape(-1, 1))
        coming = np.concatenate(self._engine.all_to_allv(sent_counts, about="ghosts"))
        spans = zip((4 * bounds).tolist(), sizes.tolist(), strict=False)
        messages = [
            arrays.piece_of(self._ghosts, begin, size, 1) if size else None
            for begin, size in spans
        ]
        came = self._courier.hand_over(messages, coming.tolist(), about="ghosts")
        self._lists, lists = [], []
        for message in came:
            listed = None
            if message is not None:  # messages are read-only
                listed = arrays.copy_of(message.view(np.dtype(np.int32)))
                arrays.launch_over(
                    gpu_part_kernels.lower, listed.size, listed, self._first
                )
            self._lists.append(listed)
            found = np.empty(0, np.int32) if listed is None else arrays.read(listed)
            lists.append(freeze(found))
        return tuple(lists)

    def degrees(
        self, values: Array, bounds: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> HostArray:
        own, about = values.size, "degrees of ghosts"
        made = arrays.empty((own + int(bounds[-1]),), dtype)
        arrays.launch_over(gpu_part_kernels.put_at, own, values, 0, made)
        messages: list[Array | None] = []
        for listed in self._lists:
            message = None
            if listed is not None:
                taken_here = arrays.empty(listed.shape, dtype)
                given = values, listed, taken_here
                arrays.launch_over(gpu_edge_kernels.take, listed.size, *given)
                message = taken_here.view(np.dtype(np.uint8))
            messages.append(message)
        sizes = (dtype.itemsize * np.diff(bounds)).tolist()
        came = self._courier.hand_over(messages, sizes, about=about)
        for begin, message in zip(bounds.tolist(), came, strict=False):
            if message is not None:
                sent_counts = message.view(dtype)
                given = sent_counts, own + begin, made
                arrays.launch_over(gpu_part_kernels.put_at, sent_counts.size, *given)
        return arrays.read(made)
