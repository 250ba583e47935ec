"""Parts built on the GPU from rows (CSR) of a rank's own vertices, without sorting.

As in `rows`, with all long arrays on the GPU: cut edges are sent from GPU to GPU in
rounds, and sources are replaced by local numbers there. The host has counts and ghosts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda import arrays, sorting
from featgraph.cuda.values import offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building import gpu_edge_kernels, gpu_part_kernels
from featgraph.graph.building.edges import freeze
from featgraph.graph.building.gpu_edges import marked, taken
from featgraph.graph.building.gpu_part_edges import GpuRowEdges
from featgraph.graph.building.row_edges import GpuRowEdgeList
from featgraph.graph.slices.on_gpu import closed_offsets
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.loading.on_gpu import gpu_sender_for, take_columns
from featgraph.ranks.loading.parts import Found
from featgraph.ranks.loading.rows import CutEdges, OwnRows

__all__ = ["GpuRows"]

HostArray = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
#: An array of the dialect.
Array = Any


class GpuRows:
    """The steps on a GPU; see `rows.RowSteps`."""

    #: Messages have 4 or 8 bytes of each edge.
    round_edges = 1 << 24
    most_rounds = 1 << 30

    def __init__(self, engine: Engine, own: OwnRows) -> None:
        self._engine, self._own = engine, own
        self._sender = gpu_sender_for(engine)
        self._size, self._span = int(own.sources.size), own.division.own(own.rank)

    def room(self, values: Array | None, more: int) -> Array:
        """Return sources, or none, with room for further ends."""
        if values is None:
            return arrays.empty((more,), np.int32)
        if not more:
            return values
        made = arrays.empty((values.size + more,), values.dtype)
        arrays.launch_over(gpu_part_kernels.put_at, values.size, values, 0, made)
        return made

    def count_cut(self, spans: list[tuple[int, int]]) -> Counts:
        """Return the number of sources of each other rank by round."""
        own, ranks = self._own, self._engine.size
        found = arrays.filled((max(len(spans) * ranks, 1),), 0, np.int64)
        for turn, (begin, end) in enumerate(spans):
            for rank in range(ranks):
                if rank != own.rank:
                    bounds, at = own.division.own(rank), turn * ranks + rank
                    given = own.sources, begin, end, *bounds, found, at
                    count = gpu_part_kernels.count_inside
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
        take_columns(self._sender, sent, stores, coming, at)

    def _cut(
        self, edges: CutEdges, span: tuple[int, int], rank: int, count: int
    ) -> list[Array]:
        """Return the columns of a round's edges whose source a rank owns."""
        begin, size = span[0], span[1] - span[0]
        flags = arrays.empty((size,), np.uint8)
        given = edges.sources, begin, *self._own.division.own(rank), flags
        arrays.launch_over(gpu_part_kernels.flag_inside, size, *given)
        chosen = flags, sorting.scanned(flags)[0]
        targets = arrays.empty((count,), np.int32)
        rows = self._own.offsets, begin, self._span[0], *chosen, targets
        arrays.launch_over(gpu_part_kernels.keep_rows, size, *rows)
        made = []
        for column in (edges.sources, edges.rows, edges.weights):
            if column is not None:
                values = arrays.empty((count,), column.dtype)
                some = column, begin, *chosen, values
                arrays.launch_over(gpu_part_kernels.keep_some, size, *some)
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
        there = GpuRowEdges(
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
        local = Graph(GpuRowEdgeList(there, edges.weights, known))
        out = own.degrees if own.out is None else arrays.upload(own.out)
        places = own.division.places(listed)
        exchange = _WindowGhosts(self._engine, self._sender, ghosts, self._span[0])
        degrees = own.degrees, out
        return Found(local, places, given_rows, degrees, own.starts, exchange)

    def _localized(self, edges: CutEdges) -> tuple[Array, Array]:
        """Replace sources by local numbers; return ghosts, and offsets of all rows."""
        (first, last), size = self._span, self._own.division.size
        marks = arrays.filled((size,), 0, np.uint8)
        for ends in (edges.sources, edges.targets):
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
            gpu_part_kernels.put_at, last - first, self._own.degrees, first, degrees
        )
        known, local_count = (first, ghosts, last - first), last - first + ghosts.size
        numbers = arrays.empty((local_count,), np.int32)
        arrays.launch_over(gpu_part_kernels.list_own, local_count, *known, numbers)
        offsets = closed_offsets(taken(degrees, numbers))
        del degrees, numbers
        local = arrays.filled((size,), gpu_part_kernels.ABSENT, np.int32)
        arrays.launch_over(gpu_part_kernels.number_own, local_count, *known, local)
        arrays.launch_over(
            gpu_part_kernels.localize, edges.sources.size, edges.sources, local
        )
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
