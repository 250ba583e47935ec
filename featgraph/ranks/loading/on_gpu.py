"""Parts built on the GPUs of ranks, of streamed edges or of edges given there.

Streamed edges pass through every rank, which keeps its own. Edges given on a rank's GPU
are sent to the GPUs of their owners, in rounds of bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building import gpu_part_kernels
from featgraph.graph.building.gpu_part_edges import PIECE_EDGES, GpuRowEdges
from featgraph.graph.building.gpu_parts import (
    Part,
    Piece,
    Pieces,
    Wanted,
    renumbered,
    survey,
)
from featgraph.graph.building.row_edges import GpuRowEdgeList
from featgraph.graph.partition.partition import Partition
from featgraph.graph.views.structure import gpu_edges
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.gpu_through_host import gpu_sender_of
from featgraph.ranks.exchange.gpu_transport import have_windows
from featgraph.ranks.exchange.windows import ThroughWindows
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.chunks import EdgeChunks
from featgraph.ranks.loading.cutting import Counted, Cut, Kind, cut_evenly, kind_of
from featgraph.ranks.loading.parts import Found, made_graph
from featgraph.ranks.loading.rounds import exchange_counts
from featgraph.runtime.devices.choose import choose_device

__all__ = [
    "ROUND_EDGES",
    "between",
    "build_on_gpu",
    "cut_on_gpu",
    "finish_on_gpu",
    "gpu_sender_for",
    "surveyed",
    "take_columns",
    "wanted_of",
]

Array = Any
HostArray = npt.NDArray[Any]

#: Edges that a rank sends in a round: messages have up to 20 bytes of each, twice.
ROUND_EDGES = 1 << 23
_ABOUT = "edges of a graph"


def surveyed(engine: Engine, pieces: Pieces, kind: Kind) -> Counted:
    """Count streamed edges on the GPUs of all ranks; all ranks call it."""
    own = survey(pieces, kind.counters, kind.shift, kind.directed)
    sums = np.concatenate((own.ends, own.weights))
    return Counted.of_all(engine, Counted(own.into, sums), kind)


def between(pieces: Pieces, partition: Partition) -> Pieces:
    """Return the same stream of edges, with places in a partition's order as ends."""
    if partition.places is None:
        return pieces
    return renumbered(pieces, arrays.upload(partition.places))


def wanted_of(engine: Engine, kind: Kind, partition: Partition, given: int) -> Wanted:
    """Return the entries that this rank keeps of `given` streamed edges."""
    first, last = map(int, partition.cuts[engine.rank : engine.rank + 2])
    count, is_both = kind.vertex_count, kind.along == "both"
    return Wanted(first, last, count, given, is_both, kind.directed)


def finish_on_gpu(
    engine: Engine,
    whole: Whole,
    cut: Cut,
    made: tuple[Part, GpuRowEdgeList],
    numbers: Callable[[], HostArray],
    out: HostArray | None = None,
) -> DistributedGraph:
    """Return the graph of the parts that ranks have on their GPUs; all ranks call it.

    Parameters
    ----------
    engine : Engine
    whole : Whole
    cut : Cut
    made : (Part, GpuRowEdgeList)
    numbers : callable
        Returns the row in given order of each edge.
    out : ndarray, optional
        Out-degrees of own vertices. Default: those counted in the stream.
    """
    (part, edges), partition = made, cut.partition
    out = part.out if out is None else out
    own = int(np.diff(partition.cuts)[engine.rank])
    into = part.on_host[1 : own + 1] - part.on_host[:own]
    degrees = into, out if whole.directed else into
    along = "both" if part.wanted.is_both else "in"
    starts = cut.starts(engine.rank)
    found = Found(Graph(edges), part.ghosts, numbers, degrees, starts)
    return made_graph(engine, whole, partition, along, found, cut.is_idle)


def build_on_gpu(
    engine: Engine, given: EdgeChunks, along: str, ranks: object = None
) -> DistributedGraph:
    """Build a graph of edges given on the GPUs of ranks; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : EdgeChunks
        Chunks with arrays on the GPU; they are released.
    along : {"both", "in"}
    ranks : optional
        The number of ranks that get vertices: see `working_ranks`.
    """
    kind = kind_of(engine, given, along)
    counted = surveyed(engine, lambda: _pieces(given), kind)
    cut = cut_evenly(engine, kind, counted, ranks)
    partition, out = cut.partition, None
    if not kind.both_ends:
        out = _sources_of_all(engine, given, partition)
    arrived = _exchanged(engine, given, kind, partition)
    size = arrived.size
    wanted = wanted_of(engine, kind, partition, size)
    # Edges are numbered by their index among those that have arrived, in given order.
    part = Part(lambda: arrived.pieces(PIECE_EDGES), wanted)
    edges, places = _edges_of(part, kind.weights_dtype)
    arrived.let_go()

    def numbers() -> HostArray:
        found, twins_from = arrays.read(places), max(size, 1)
        rows: HostArray = arrived.rows[found % twins_from]
        rows += (found >= size) * rows.dtype.type(kind.given_count)
        return rows

    whole = counted.whole(kind)
    return finish_on_gpu(engine, whole, cut, (part, edges), numbers, out)


def cut_on_gpu(
    engine: Engine, graph: Graph, cut: Cut, whole: Whole, along: str
) -> DistributedGraph:
    """Build this rank's part of a whole graph on its GPU; all ranks call it."""
    edges, partition = gpu_edges(graph), cut.partition
    weights = graph._edges.weights_on_gpu()
    columns, count = (edges.sources, edges.targets, weights), graph.given_edge_count
    kind = Kind(graph.vertex_count, count, graph.directed, along, whole.weights_dtype)
    pieces = between(lambda: _cut(columns, 0, PIECE_EDGES), partition)
    part = Part(pieces, wanted_of(engine, kind, partition, count))
    own, places = _edges_of(part, kind.weights_dtype)
    part.forget()

    def numbers() -> HostArray:
        found = arrays.read(places)
        return found.astype(offset_dtype(2 * count), copy=False)

    return finish_on_gpu(engine, whole, cut, (part, own), numbers)


def _edges_of(part: Part, dtype: Any) -> tuple[GpuRowEdgeList, Array]:
    """Return the edges of a part, with weights of a dtype, and their numbers."""
    ends, weights = part.rows(dtype)
    places, wanted = part.numbers(), part.wanted
    directed = wanted.directed or not wanted.is_both
    rows = GpuRowEdges(
        part.offsets,
        ends,
        directed,
        (lambda: places) if wanted.is_both else None,
        max(wanted.given_count, 1),
        is_by_slot=directed,
    )
    return GpuRowEdgeList(rows, weights, {"in_offsets": part.on_host}), places


def _sources_of_all(
    engine: Engine, given: EdgeChunks, partition: Partition
) -> HostArray:
    """Return the out-degrees of own vertices, summed over the edges of all ranks."""
    counts = arrays.filled((given.vertex_count,), 0, np.int32)
    for chunk in given.chunks:
        sources = chunk.sources
        arrays.launch_over(
            gpu_part_kernels.count_entries, sources.size, sources, counts
        )
    found = arrays.read(counts)
    if partition.order is not None:
        found = found[partition.order]
    parts = np.split(found, partition.cuts[1:-1])
    return np.sum(engine.all_to_allv(parts, about="out-degrees"), axis=0)  # type: ignore[no-any-return]


def _pieces(given: EdgeChunks) -> Iterator[Piece]:
    for chunk in given.chunks:
        first = int(chunk.rows)
        yield from _cut(
            (chunk.sources, chunk.targets, chunk.weights), first, ROUND_EDGES
        )


def _cut(
    columns: tuple[Array, Array, Array | None], first: int, most: int
) -> Iterator[Piece]:
    """Yield columns of edges in pieces of at most `most`, numbered from `first`."""
    count = columns[0].size
    for begin in range(0, count, most):
        size = min(most, count - begin)
        some = []
        for column in columns:
            if column is None or size == count:
                some.append(column)
                continue
            some.append(arrays.empty((size,), column.dtype))
            arrays.launch_over(
                gpu_part_kernels.copy_some, size, column, begin, some[-1]
            )
        yield Piece(first + begin, *some)


class _Arrived:
    """Received edges, in given order.

    Attributes
    ----------
    rows : ndarray of int32 or int64
        Row in given order of each edge.
    """

    def __init__(self, columns: tuple[Array, Array, Array | None], rows: Any) -> None:
        self._columns: Any = columns
        self.rows: HostArray = rows

    @property
    def size(self) -> int:
        """Number of edges."""
        return int(self.rows.size)

    def pieces(self, most: int) -> Iterator[Piece]:
        """Yield the edges in pieces, numbered from 0."""
        return _cut(self._columns, 0, most)

    def let_go(self) -> None:
        """Release all arrays but the rows."""
        self._columns = None


def _exchanged(
    engine: Engine, given: EdgeChunks, kind: Kind, partition: Partition
) -> _Arrived:
    """Send each edge to the owners of its ends; release the given edges."""
    gpu_sender = gpu_sender_for(engine)
    bounds, is_both = list(pairwise(partition.cuts.tolist())), kind.both_ends
    passing = between(lambda: _pieces(given), partition)
    going = [
        [_flagged(piece, bound, is_both)[2] for bound in bounds] for piece in passing()
    ]
    most = engine.all_reduce(np.array([len(going)]), "max", about="rounds of edges")
    counts = np.zeros((int(most[0]), engine.size), np.int64)
    for number, row in enumerate(going):
        counts[number] = row
    coming = exchange_counts(engine, counts)
    sizes = coming.sum(axis=0)
    at, total = np.cumsum(sizes) - sizes, int(sizes.sum())
    dtypes: list[Any] = [np.dtype(np.int32)] * 2
    dtypes += [np.dtype(offset_dtype(2 * kind.given_count))]
    if kind.weights_dtype is not None:
        dtypes.append(kind.weights_dtype)
    stores = [arrays.empty((total,), dtype) for dtype in dtypes]
    pieces = passing()
    for number in range(counts.shape[0]):
        piece = next(pieces, None)
        sent = [
            [] if piece is None else _columns_for(piece, bound, is_both, dtypes)
            for bound in bounds
        ]
        take_columns(gpu_sender, sent, [(s, 0) for s in stores], coming[number], at)
    given.chunks.clear()
    u, v, rows, *weights = stores
    ends = u, v, weights[0] if weights else None
    return _Arrived(ends, arrays.read(rows))


def gpu_sender_for(engine: Engine) -> Any:
    """Return the transport of edges between GPUs; all ranks call it.

    It uses windows if all ranks can store into each other's.
    """
    device = choose_device("cuda")
    if have_windows(engine, device):
        return ThroughWindows(engine, device)
    return gpu_sender_of(engine, device)


def take_columns(
    gpu_sender: Any,
    sent: list[list[Array]],
    stores: list[tuple[Array, int]],
    coming: HostArray,
    at: HostArray,
) -> None:
    """Send columns of edges to other ranks, and store theirs; all ranks call it.

    Parameters
    ----------
    gpu_sender : GpuEngine, ThroughHost or ThroughWindows
        See `gpu_sender_for`.
    sent : list of list of array
        By rank, the columns that it gets; an empty list without edges.
    stores : list of (array, int)
        By column, the array for received values, and the index of its first one.
    coming, at : ndarray of int64, shape (P,)
        Number of edges received from each rank, and of those stored before them, which
        is advanced.
    """
    for column, (store, first) in enumerate(stores):
        messages = [_as_message(some, column) for some in sent]
        sizes = [int(count) * store.dtype.itemsize for count in coming]
        came = gpu_sender.hand_over(messages, sizes, about=_ABOUT)
        for rank, message in enumerate(came):
            if message is not None and sizes[rank]:
                values = message.view(store.dtype)
                begin = first + int(at[rank])
                arrays.launch_over(
                    gpu_part_kernels.put_at, values.size, values, begin, store
                )
    at += coming


def _flagged(
    piece: Piece, bound: tuple[int, int], is_both: bool
) -> tuple[Array, Array, int]:
    """Return flags of a range's edges, prefix sums of these, and their number."""
    size = piece.targets.size
    flags = arrays.empty((size,), np.uint8)
    ends = piece.sources, piece.targets
    arrays.launch_over(gpu_part_kernels.flag_owned, size, *ends, *bound, is_both, flags)
    places, total = sorting.scanned(flags)
    return flags, places, int(arrays.read(total)[0])


def _columns_for(
    piece: Piece, bound: tuple[int, int], is_both: bool, dtypes: list[np.dtype[Any]]
) -> list[Array]:
    """Return the ends, numbers and weights of a range's edges; [] if it has none."""
    flags, places, count = _flagged(piece, bound, is_both)
    if not count:
        return []
    made = [arrays.empty((count,), dtype) for dtype in dtypes]
    size, chosen = flags.size, (flags, places)
    arrays.launch_over(gpu_part_kernels.keep, size, piece.sources, *chosen, made[0])
    arrays.launch_over(gpu_part_kernels.keep, size, piece.targets, *chosen, made[1])
    arrays.launch_over(
        gpu_part_kernels.keep_numbers, size, piece.first, *chosen, made[2]
    )
    if len(made) > 3:
        arrays.launch_over(gpu_part_kernels.keep, size, piece.weights, *chosen, made[3])
    return made


def _as_message(columns: list[Array], number: int) -> Array | None:
    """Return a view of a column as bytes; None without edges."""
    return columns[number].view(np.dtype(np.uint8)) if columns else None
