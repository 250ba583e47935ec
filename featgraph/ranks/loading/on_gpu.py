"""Parts built on the GPUs of ranks, of streamed edges or of edges given there.

`part_of_stream`: all edges pass through every rank, which keeps its own. `build_on_gpu`
sends edges that were given on the GPU of a rank to the GPUs of their owners, in rounds
of bounded memory. `GpuRows` has the steps of `rows` with all long arrays on the GPU:
cut edges are sent from GPU to GPU, and sources are replaced by local numbers there. The
host has counts and ghosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building import gpu_edge_kernels
from featgraph.graph.building import gpu_part_kernels as kernels
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.gpu_edges import marked, taken
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
from featgraph.graph.slices.on_gpu import closed_offsets
from featgraph.graph.views.structure import gpu_edges
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine, GpuMessages
from featgraph.ranks.exchange.gpu_messages import gpu_sender_of
from featgraph.ranks.exchange.gpu_transport import have_windows
from featgraph.ranks.exchange.windows import ThroughWindows
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.chunks import EdgeChunks, exchange_counts
from featgraph.ranks.loading.cutting import Counted, Cut, Kind, cut_evenly, kind_of
from featgraph.ranks.loading.parts import Found, made_graph
from featgraph.ranks.loading.rows import CutEdges, OwnRows
from featgraph.runtime.devices.choose import choose_device

__all__ = [
    "ROUND_EDGES",
    "GpuRows",
    "build_on_gpu",
    "cut_on_gpu",
    "part_of_stream",
    "surveyed",
]

Array = Any
HostArray = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

#: Edges that a rank sends in a round: messages to the owners of both ends of an edge
#: have up to 20 bytes of it.
ROUND_EDGES = 1 << 23
_ABOUT = "edges of a graph"


def surveyed(engine: Engine, pieces: Pieces, kind: Kind) -> Counted:
    """Count streamed edges on the GPUs of all ranks; all ranks call it."""
    own = survey(pieces, kind.counters, kind.shift, kind.directed)
    sums = np.concatenate((own.ends, own.weights))
    return Counted.of_all(engine, Counted(own.into, sums))


def _between(pieces: Pieces, partition: Partition) -> Pieces:
    """Return the same stream of edges, with places in a partition's order as ends."""
    if partition.places is None:
        return pieces
    return renumbered(pieces, arrays.upload(partition.places))


def _wanted_of(engine: Engine, kind: Kind, partition: Partition, given: int) -> Wanted:
    """Return the entries that this rank keeps of `given` streamed edges."""
    first, last = map(int, partition.cuts[engine.rank : engine.rank + 2])
    count, is_both = kind.vertex_count, kind.along == "both"
    return Wanted(first, last, count, given, is_both, kind.directed)


def _finish(
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
    columns, rows = _exchanged(engine, given, kind, partition)
    size = int(rows.size)
    wanted = _wanted_of(engine, kind, partition, size)
    # Edges are numbered by their index among those that have arrived, in given order.
    part = Part(partial(_cut, columns, 0, PIECE_EDGES), wanted)
    edges = GpuRowEdgeList.of_part(part, kind.weights_dtype, lambda: places)
    places = part.numbers()
    # Received edges are released: only the numbers of slots are needed from here on.
    del columns
    part.forget()

    def numbers() -> HostArray:
        found, twins_from = arrays.read(places), max(size, 1)
        made: HostArray = rows[found % twins_from]
        made += (found >= size) * made.dtype.type(kind.given_count)
        return made

    whole = counted.whole(kind)
    return _finish(engine, whole, cut, (part, edges), numbers, out)


def cut_on_gpu(
    engine: Engine, graph: Graph, cut: Cut, whole: Whole, along: str
) -> DistributedGraph:
    """Build this rank's part of a whole graph on its GPU; all ranks call it."""
    edges, weights = gpu_edges(graph), graph._edges.weights_on_gpu()
    columns = edges.sources, edges.targets, weights
    known = graph.directed, along, whole.weights_dtype
    kind = Kind(graph.vertex_count, graph.given_edge_count, *known)
    pieces = partial(_cut, columns, 0, PIECE_EDGES)
    return part_of_stream(engine, pieces, kind, cut, whole, keeps_numbers=True)


def part_of_stream(
    engine: Engine,
    pieces: Pieces,
    kind: Kind,
    cut: Cut,
    whole: Whole,
    *,
    keeps_numbers: bool = False,
) -> DistributedGraph:
    """Build this rank's part of a stream of all edges on its GPU; all ranks call it.

    Parameters
    ----------
    engine : Engine
    pieces : callable
        The stream, with vertices as ends.
    kind : Kind
    cut : Cut
    whole : Whole
    keeps_numbers : bool, optional
        Whether the GPU keeps the numbers of edges, and the stream is released. By
        default, edges are streamed again where their numbers are needed.
    """
    count, partition = kind.given_count, cut.partition
    wanted = _wanted_of(engine, kind, partition, count)
    part = Part(_between(pieces, partition), wanted)
    edges = GpuRowEdgeList.of_part(part, kind.weights_dtype, lambda: numbers())
    numbers: Callable[[], Array] = part.numbers
    if keeps_numbers:
        kept = part.numbers()
        part.forget()
        numbers = lambda: kept  # noqa: E731

    def on_host() -> HostArray:
        return arrays.read(numbers()).astype(offset_dtype(2 * count), copy=False)

    return _finish(engine, whole, cut, (part, edges), on_host)


def _sources_of_all(
    engine: Engine, given: EdgeChunks, partition: Partition
) -> HostArray:
    """Return the out-degrees of own vertices, summed over the edges of all ranks."""
    counts = arrays.filled((given.vertex_count,), 0, np.int32)
    for chunk in given.chunks:
        sources = chunk.sources
        arrays.launch_over(kernels.count_entries, sources.size, sources, counts)
    found = arrays.read(counts)
    if partition.order is not None:
        found = found[partition.order]
    parts = np.split(found, partition.cuts[1:-1])
    return np.sum(engine.all_to_allv(parts, about="out-degrees"), axis=0)  # type: ignore[no-any-return]


def _pieces(given: EdgeChunks) -> Iterator[Piece]:
    for chunk in given.chunks:
        columns = chunk.sources, chunk.targets, chunk.weights
        yield from _cut(columns, int(chunk.rows), ROUND_EDGES)


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
            arrays.launch_over(kernels.copy_some, size, column, begin, some[-1])
        yield Piece(first + begin, *some)


def _exchanged(
    engine: Engine, given: EdgeChunks, kind: Kind, partition: Partition
) -> tuple[tuple[Array, Array, Array | None], HostArray]:
    """Send each edge to the owners of its ends; release the given edges.

    Returns sources, targets and weights of the received edges, in given order, and the
    row in given order of each.
    """
    gpu_sender = _gpu_sender(engine)
    bounds, is_both = list(pairwise(partition.cuts.tolist())), kind.both_ends
    passing = _between(lambda: _pieces(given), partition)
    # Only counts are kept: flags are made again when the edges are sent.
    going = [
        [_flagged(piece, bound, is_both)[2] for bound in bounds] for piece in passing()
    ]
    most = reduce_number(engine, len(going), "max", "rounds of edges")
    counts = np.zeros((most, engine.size), np.int64)
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
        _take_columns(gpu_sender, sent, [(s, 0) for s in stores], coming[number], at)
    given.chunks.clear()
    u, v, rows, *weights = stores
    return (u, v, weights[0] if weights else None), arrays.read(rows)


def _gpu_sender(engine: Engine) -> Any:
    """Return the transport of edges between GPUs; all ranks call it.

    It uses windows if all ranks can store into each other's.
    """
    device = choose_device("cuda")
    if have_windows(engine, device):
        return ThroughWindows(engine, device)
    return gpu_sender_of(engine, device)


def _take_columns(
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
        See `_gpu_sender`.
    sent : list of list of array
        By rank, the columns that it gets; an empty list without edges.
    stores : list of (array, int)
        By column, the array for received values, and the index of its first one.
    coming, at : ndarray of int64, shape (P,)
        Number of edges received from each rank, and of those stored before them, which
        is advanced.
    """
    for column, (store, first) in enumerate(stores):
        byte = np.dtype(np.uint8)
        messages = [some[column].view(byte) if some else None for some in sent]
        sizes = [int(count) * store.dtype.itemsize for count in coming]
        came = gpu_sender.hand_over(GpuMessages(messages, sizes, _ABOUT))
        for rank, message in enumerate(came):
            if message is not None and sizes[rank]:
                values = message.view(store.dtype)
                begin = first + int(at[rank])
                arrays.launch_over(kernels.put_at, values.size, values, begin, store)
    at += coming


def _flagged(
    piece: Piece, bound: tuple[int, int], is_both: bool
) -> tuple[Array, Array, int]:
    """Return flags of the edges of a range, prefix sums of flags, and their number."""
    size = piece.targets.size
    flags = arrays.empty((size,), np.uint8)
    ends = piece.sources, piece.targets
    arrays.launch_over(kernels.flag_owned, size, *ends, *bound, is_both, flags)
    places, total = sorting.scanned(flags)
    return flags, places, int(arrays.read(total)[0])


def _columns_for(
    piece: Piece, bound: tuple[int, int], is_both: bool, dtypes: list[np.dtype[Any]]
) -> list[Array]:
    """Return ends, row numbers and weights of a range's edges; [] without edges."""
    flags, places, count = _flagged(piece, bound, is_both)
    if not count:
        return []
    made = [arrays.empty((count,), dtype) for dtype in dtypes]
    size, chosen = flags.size, (flags, places)
    first, keep = piece.first, kernels.keep
    arrays.launch_over(kernels.keep_numbers, size, first, *chosen, made[2])
    columns = (piece.sources, made[0]), (piece.targets, made[1])
    for column, kept in (*columns, *((piece.weights, kept) for kept in made[3:])):
        arrays.launch_over(keep, size, column, 0, *chosen, kept)
    return made


# -- parts from rows (CSR), without sorting


class GpuRows:
    """The steps on a GPU; see `rows.RowSteps`."""

    #: Messages have 4 or 8 bytes of each edge.
    round_edges = 1 << 24
    most_rounds = 1 << 30

    def __init__(self, engine: Engine, own: OwnRows) -> None:
        self._engine, self._own = engine, own
        self._sender = _gpu_sender(engine)
        self._size, self._span = int(own.sources.size), own.division.own(own.rank)

    def room(self, values: Array | None, more: int) -> Array:
        """Return sources, or an empty array, with room for `more` ends."""
        if values is None:
            return arrays.empty((more,), np.int32)
        if not more:
            return values
        made = arrays.empty((values.size + more,), values.dtype)
        arrays.launch_over(kernels.put_at, values.size, values, 0, made)
        return made

    def count_cut(self, spans: list[tuple[int, int]]) -> Counts:
        """Return, by round and rank, the number of sources that other ranks own."""
        own, ranks = self._own, self._engine.size
        found = arrays.filled((max(len(spans) * ranks, 1),), 0, np.int64)
        for turn, (begin, end) in enumerate(spans):
            for rank in range(ranks):
                if rank != own.rank:
                    bounds, at = own.division.own(rank), turn * ranks + rank
                    given = own.sources, begin, end, *bounds, found, at
                    count = kernels.count_inside
                    arrays.launch_over(count, end - begin, *given)
        return arrays.read(found)[: len(spans) * ranks].reshape(-1, ranks)

    def exchange(
        self,
        edges: CutEdges,
        span: tuple[int, int],
        counts: tuple[Counts, Counts],
        at: Counts,
    ) -> None:
        """Send the cut edges of a round to the owners of their sources."""
        going, coming = counts
        stores = [(edges.sources, self._size), (edges.targets, 0)]
        stores.append((edges.rows, self._size))
        if edges.weights is not None:
            stores.append((edges.weights, self._size))
        sent = [
            self._cut(edges, span, rank, count) if count else []
            for rank, count in enumerate(going.tolist())
        ]
        _take_columns(self._sender, sent, stores, coming, at)

    def _cut(
        self, edges: CutEdges, span: tuple[int, int], rank: int, count: int
    ) -> list[Array]:
        """Return the columns of a round's edges whose source a rank owns."""
        begin, size = span[0], span[1] - span[0]
        flags = arrays.empty((size,), np.uint8)
        given = edges.sources, begin, *self._own.division.own(rank), flags
        arrays.launch_over(kernels.flag_inside, size, *given)
        chosen = flags, sorting.scanned(flags)[0]
        targets = arrays.empty((count,), np.int32)
        rows = self._own.offsets, begin, self._span[0], *chosen, targets
        arrays.launch_over(kernels.keep_rows, size, *rows)
        made = []
        for column in (edges.sources, edges.rows, edges.weights):
            if column is not None:
                values = arrays.empty((count,), column.dtype)
                some = column, begin, *chosen, values
                arrays.launch_over(kernels.keep, size, *some)
                made.append(values)
        return [made[0], targets, *made[1:]]

    def finish(self, edges: CutEdges, along: str) -> Found:
        """Return the part of this rank, with local numbers."""
        own, is_both, kept = self._own, along == "both", edges.rows
        bound, dtype = own.given_count, offset_dtype(2 * own.given_count)
        on_host = None
        if not is_both:  # rows in given order are not needed on the GPU
            on_host, kept, edges.rows = arrays.read(kept), None, None
        ghosts, offsets = self._localized(edges)
        listed = arrays.read(ghosts)
        is_directed = own.directed or not is_both
        row_edges = GpuRowEdges(
            offsets,
            edges.sources,
            is_directed,
            (lambda: kept) if is_both else None,
            max(bound, 1),
            is_by_slot=is_directed,
        )

        def given_rows() -> HostArray:
            found = arrays.read(kept) if on_host is None else on_host
            return found.astype(dtype, copy=False)

        known = {"in_offsets": arrays.read(offsets)}
        local = Graph(GpuRowEdgeList(row_edges, edges.weights, known))
        out = own.degrees if own.out is None else arrays.upload(own.out)
        places = own.division.places(listed)
        exchange = _GpuGhosts(self._engine, self._sender, ghosts, self._span[0])
        degrees = own.degrees, out
        return Found(local, places, given_rows, degrees, own.starts, exchange)

    def _localized(self, edges: CutEdges) -> tuple[Array, Array]:
        """Replace sources by local numbers; return ghosts, and offsets of all rows."""
        (first, last), size = self._span, self._own.division.size
        # An array over all numbers is released before the next one is made.
        marks = arrays.filled((size,), 0, np.uint8)
        for ends in (edges.sources, edges.targets):
            arrays.launch_over(kernels.mark_others, ends.size, ends, first, last, marks)
        ghosts = marked(marks)
        del marks
        # Rows of ghosts have the received edges, own rows the read ones.
        degrees = arrays.filled((size,), 0, np.int32)
        arrays.launch_over(
            kernels.count_entries, edges.targets.size, edges.targets, degrees
        )
        arrays.launch_over(
            kernels.put_at, last - first, self._own.degrees, first, degrees
        )
        known, local_count = (first, ghosts, last - first), last - first + ghosts.size
        numbers = arrays.empty((local_count,), np.int32)
        arrays.launch_over(kernels.list_own, local_count, *known, numbers)
        offsets = closed_offsets(taken(degrees, numbers))
        del degrees, numbers
        local = arrays.filled((size,), kernels.ABSENT, np.int32)
        arrays.launch_over(kernels.number_own, local_count, *known, local)
        arrays.launch_over(kernels.localize, edges.sources.size, edges.sources, local)
        return ghosts, offsets


class _GpuGhosts:
    """The exchange of ghosts from GPU to GPU: see `GhostExchange`.

    Parameters
    ----------
    engine : Engine
    gpu_sender : GpuEngine, ThroughHost or ThroughWindows
        See `_gpu_sender`.
    ghosts : array of int32
        Numbers of the division.
    first : int
        The number of the first own vertex.
    """

    def __init__(
        self, engine: Engine, gpu_sender: Any, ghosts: Array, first: int
    ) -> None:
        self._engine, self._gpu_sender = engine, gpu_sender
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
        given = GpuMessages(messages, coming.tolist(), "ghosts")
        came = self._gpu_sender.hand_over(given)
        self._lists, lists = [], []
        for message in came:
            listed = None
            if message is not None:  # messages are read-only
                listed = arrays.copy_of(message.view(np.dtype(np.int32)))
                arrays.launch_over(kernels.lower, listed.size, listed, self._first)
            self._lists.append(listed)
            found = np.empty(0, np.int32) if listed is None else arrays.read(listed)
            lists.append(freeze(found))
        return tuple(lists)

    def degrees(
        self, values: Array, bounds: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> HostArray:
        own = values.size
        made = arrays.empty((own + int(bounds[-1]),), dtype)
        arrays.launch_over(kernels.put_at, own, values, 0, made)
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
        sent = GpuMessages(messages, sizes, "degrees of ghosts")
        came = self._gpu_sender.hand_over(sent)
        for begin, message in zip(bounds.tolist(), came, strict=False):
            if message is not None:
                sent_counts = message.view(dtype)
                given = sent_counts, own + begin, made
                arrays.launch_over(kernels.put_at, sent_counts.size, *given)
        return arrays.read(made)
