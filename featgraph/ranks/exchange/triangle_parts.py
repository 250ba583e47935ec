"""The edges of a part, oriented to the end of higher degree, and rows of other ranks.

A triangle is found by the rank that owns its first vertex by (degree, id), which has
both edges at that vertex. The third edge is in the row of the second vertex, which may
belong to another rank: `TrianglePart.batch` fetches such rows, a batch at a time. They
depend on the graph alone, so batches are kept as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.graph.building.edges import Adjacency
from featgraph.graph.building.oriented import Oriented
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.remote_entries import PartEdges, RemoteEntries, lists_of

__all__ = ["Batch", "BatchRows", "TrianglePart"]

Array = npt.NDArray[Any]
#: Approximate bytes of a batch, with the arrays made from it; and of all kept batches.
BATCH_BYTES, KEPT_BYTES = 1 << 28, 1 << 30
#: Estimated bytes of an edge of a batch (ends, ids and slots in both directions, places
#: in lists of sender and receiver, and values), and per batch of an edge of the part.
_EDGE_BYTES, _OWN_BYTES = 128, 48
#: A name of these exchanges, for errors.
_ABOUT = "rows of neighbors"


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The rows of an oriented graph for kernels: see `Oriented`.

    Attributes
    ----------
    is_own, is_middle : array of bool
        By degree order: vertices of this rank, and middle vertices of triangles.
    """

    vertices: Array
    degree_order: Array
    upper: Adjacency
    lower: Adjacency
    work: Array
    is_own: Array
    is_middle: Array

    @cached_property
    def both(self) -> Adjacency:
        """All neighbors, ascending; `edge_ids` are of the edges to higher ends."""
        return Oriented(self.vertices, self.degree_order, self.upper).both


@dataclass(frozen=True, eq=False)
class Batch:
    """Fetched rows, merged with those of this rank.

    Edges between vertices of other ranks have ids behind those of the part, by owner.

    Attributes
    ----------
    number : int
    stays : bool
        Whether it is kept from one superstep to the next.
    rows : BatchRows
        Rows of own vertices, and of ghosts whose rows were fetched. Rows of `lower`
        have own vertices only, for this batch's middle vertices.
    lists : RemoteEntries
        The entries of edges that ranks exchange: of the part, and of the batch.
    twins, sources : array
        The twin and the source of each edge.
    """

    number: int
    stays: bool
    rows: BatchRows
    lists: RemoteEntries
    twins: Array
    sources: Array


class TrianglePart:
    """The oriented edges of a part; all ranks make it, and call `batch` together.

    Parameters
    ----------
    shard : Shard
        The part of an undirected graph, distributed along "both".
    edges : PartEdges
    engine : Engine

    Attributes
    ----------
    rounds : int
        Number of batches, the same on all ranks.
    vertices, edges : RemoteEntries
        The vertices, and the entries of edges, that ranks exchange.

    Raises
    ------
    GraphInputError
        On all ranks, if two edges have the same ends.
    """

    def __init__(self, shard: Shard, edges: PartEdges, engine: Engine) -> None:
        self._shard, self._engine, local = shard, engine, shard.local
        self.edges, count = edges.lists, shard.numbers.size
        self.vertices = RemoteEntries(shard.own, count, *lists_of(shard))
        degree = np.asarray(local.in_degree)
        self._vertices = np.lexsort((shard.numbers, degree)).astype(np.int32)
        self._order = np.empty_like(self._vertices)
        self._order[self._vertices] = np.arange(self._vertices.size, dtype=np.int32)
        self._low, self._high, self._edges = self._turned(up=True)
        self._refuse_repeated()
        self._request_rows()

    def _turned(self, up: bool) -> tuple[Array, Array, Array]:
        """Return the edges from own vertices to higher vertices, or to lower ones.

        Returns both ends by degree order, the lower one first, and the ids of the edges
        that lead out of own vertices; sorted by ends.
        """
        rows, order = self._shard.local.out_edges, self._order
        offsets = np.asarray(rows.row_offsets)[: self._shard.own + 1]
        u = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        low, high = order[u], order[np.asarray(rows.column_indices)[: offsets[-1]]]
        edges = np.asarray(rows.edge_ids)[: offsets[-1]]
        if not up:
            low, high = high, low
        chosen = np.flatnonzero(high > low)
        chosen = chosen[np.lexsort((high[chosen], low[chosen]))]
        return low[chosen], high[chosen], edges[chosen]

    def _refuse_repeated(self) -> None:
        """Raise GraphInputError on all ranks if two edges have the same ends."""
        low, high = self._low, self._high
        same = np.flatnonzero((low[1:] == low[:-1]) & (high[1:] == high[:-1]))[:1]
        numbers = self._shard.numbers[self._vertices]
        pair = np.sort(np.array([numbers[low[same]], numbers[high[same]]]).ravel())
        found = self._engine.all_gather(pair.astype(np.int64), about="parallel edges")
        twice = next((ends for ends in found if ends.size), None)
        if twice is not None:
            raise GraphInputError(
                "triangles of a graph with parallel edges",
                where="the edge between {} and {}".format(*twice.tolist()),
                got="the edge more than once",
                expected="one edge between two vertices",
                fix='make the graph with duplicates="first"',
            )

    def _request_rows(self) -> None:
        """Request rows of ghosts from their owners, and divide them into batches."""
        shard, engine, low, high = self._shard, self._engine, self._low, self._high
        # A middle vertex is a higher end that another one of the same row follows.
        is_followed = np.append(low[1:] == low[:-1], False)[: low.size]
        middle = np.unique(self._vertices[high[is_followed]])
        wanted = middle[middle >= shard.own]
        bounds = np.searchsorted(wanted, shard.ghosts)
        #: The ghosts whose rows come from each rank.
        self._wanted = [wanted[b:e] for b, e in pairwise(bounds.tolist())]
        requested = [
            (one - begin).astype(np.int64)
            for one, begin in zip(self._wanted, shard.ghosts, strict=False)
        ]
        received = engine.all_to_allv(requested, about=_ABOUT)
        self._requested = [
            self._order[listed[places]]
            for listed, places in zip(shard.send_lists, received, strict=True)
        ]
        offsets = self._offsets
        sizes = [
            (offsets[r + 1] - offsets[r]).astype(np.int64) for r in self._requested
        ]
        self._sizes = engine.all_to_allv(sizes, about=_ABOUT)
        cuts = _cut(np.concatenate(self._sizes), max(BATCH_BYTES // _EDGE_BYTES, 1))
        self.rounds = max(reduce_number(engine, cuts.size - 1, "max", _ABOUT), 1)
        self._count_kept(np.concatenate(self._sizes), cuts)
        cuts = np.pad(cuts, (0, self.rounds + 1 - cuts.size), "edge")
        ends = np.cumsum([0, *(one.size for one in self._wanted)])
        #: By rank, the bounds of batches among the ghosts whose rows that rank sends.
        self._cuts = [
            np.clip(cuts, begin, end) - begin for begin, end in pairwise(ends.tolist())
        ]
        self._cuts_requested = engine.all_to_allv(self._cuts, about=_ABOUT)

    def _count_kept(self, sizes: Array, cuts: Array) -> None:
        """Set the number of batches to keep, the same on all ranks."""
        before = np.concatenate([[0], np.cumsum(sizes)])[cuts[1:]] * _EDGE_BYTES
        taken = before + np.arange(1, cuts.size) * self._low.size * _OWN_BYTES
        fits = np.count_nonzero(taken <= KEPT_BYTES)
        # Further batches of other ranks are empty here.
        own = self.rounds if fits == taken.size else int(fits)
        found = reduce_number(self._engine, own, "min", _ABOUT)
        #: The first batches are kept; a single one always is.
        self._stay = max(found, self.rounds == 1)

    @cached_property
    def _offsets(self) -> Array:
        """Offsets of own rows, by degree order."""
        return np.searchsorted(self._low, np.arange(self._order.size + 1))

    def batch(self, number: int) -> Batch:
        """Fetch a batch of rows, and merge it with own rows; all ranks call it.

        `DeviceTriangles` keeps those that stay.
        """
        middle, row, places, edge_numbers = self._fetched(number)
        order, of = self._order, self._owners(places)
        is_own = of == self._engine.rank
        edges = np.empty(row.size, np.int64)
        edges[is_own] = self._known_edges(row[is_own], order[places[is_own]])
        lists, ahead, behind = self._listed(row, of, edge_numbers, ~is_own)
        edges[~is_own] = ahead
        local, extra = self._shard.local, 2 * ahead.size
        rows = self._joined(row, order[places], edges, middle, number == 0)
        twins = np.append(local.twins, np.empty(extra, local.twins.dtype))
        twins[ahead], twins[behind] = behind, ahead
        sources = np.asarray(local.in_edges.column_indices)
        sources = np.append(sources, np.empty(extra, sources.dtype))
        sources[ahead], sources[behind] = (
            self._vertices[row[~is_own]],
            places[~is_own],
        )
        return Batch(number, number < self._stay, rows, lists, twins, sources)

    def _fetched(self, number: int) -> tuple[Array, Array, Array, Array]:
        """Return the middle vertices of a batch, and the edges of their rows.

        For each edge to a vertex of this part: its row, that vertex, and the numbers of
        both directions on the sending rank: see `_listed`.
        """
        shard, order, lists = self._shard, self._order, self.edges
        # Ghost edges are sent as positions in the list of their owner.
        begins = [int(one[0]) if one.size else 0 for one in lists.received]
        ends = [b + one.size for b, one in zip(begins, lists.received, strict=True)]
        local_twins, sent = np.asarray(shard.local.twins), []
        for requested, cuts in zip(self._requested, self._cuts_requested, strict=True):
            slots = self._slots(requested[slice(*cuts[number : number + 2])])
            high = self._vertices[self._high[slots]]
            edges = self._edges[slots].astype(np.int64)
            names = edges.copy()
            for begin, end in zip(begins, ends, strict=True):
                is_there = (edges >= begin) & (edges < end) & (edges >= lists.own)
                names[is_there] -= begin
            both = names, local_twins[edges].astype(np.int64)
            sent.append(np.stack([shard.numbers[high].astype(np.int64), *both]).ravel())
        came = self._engine.all_to_allv(sent, about=_ABOUT)
        ghosts, sizes = [], []
        for rank, cuts in enumerate(self._cuts):
            part = slice(*cuts[number : number + 2])
            ghosts.append(self._wanted[rank][part])
            sizes.append(self._sizes[rank][part])
        middle = order[np.concatenate(ghosts)]
        row = np.repeat(middle, np.concatenate(sizes))
        edge_numbers = np.concatenate([one.reshape(3, -1) for one in came], axis=1)
        places = shard.locals_of(edge_numbers[0])
        kept = np.flatnonzero(places >= 0)
        return middle, row[kept], places[kept], edge_numbers[1:, kept]

    def _owners(self, vertices: Array) -> Array:
        """Return the owners of some vertices of this part."""
        found = np.searchsorted(self._shard.ghosts, vertices, side="right") - 1
        return np.where(vertices < self._shard.own, self._engine.rank, found)

    def _known_edges(self, low: Array, high: Array) -> Array:
        """Return the ids of the part's edges from ghosts to own vertices.

        `low` and `high` are the ghosts and the own vertices, by degree order.
        """
        lower, upper, edges = self._downward
        # Pairs of ends as numbers, in the order in which `_turned` sorts them.
        count = np.int64(self._order.size)
        keys = lower.astype(np.int64) * count + upper
        at = np.searchsorted(keys, low.astype(np.int64) * count + high)
        found: Array = np.asarray(self._shard.local.twins)[edges[at]]
        return found

    @cached_property
    def _downward(self) -> tuple[Array, Array, Array]:
        return self._turned(up=False)

    def _listed(
        self, row: Array, of: Array, edge_numbers: Array, chosen: Array
    ) -> tuple[RemoteEntries, Array, Array]:
        """Add the entries of some edges, in both directions, to the lists of owners.

        The rank that sent a row owns the edges into the row's vertex, and numbers them
        by its edge ids. Edges out of that vertex belong to the owners of their targets:
        the sender numbers them by edge id if it is the owner, else by position in the
        owner's send list for it. So requests to owners are pairs (sender, number).

        Returns
        -------
        lists, ahead, behind
            The extended lists, and this rank's edge ids of both directions.
        """
        lists = self.edges
        via = self._owners(self._vertices[row[chosen]])
        owners = np.concatenate([of[chosen], via])
        requested = np.stack([np.append(via, via), edge_numbers[:, chosen].ravel()])
        placed = np.argsort(owners, kind="stable")
        requested, counts = requested[:, placed], np.bincount(
            owners, minlength=len(lists.sent)
        )  # fmt: skip
        ends = np.cumsum([0, *counts]).tolist()
        messages = [
            requested[:, b:e].ravel().astype(np.int64) for b, e in pairwise(ends)
        ]
        received = self._engine.all_to_allv(messages, about=_ABOUT)
        sent = [
            np.append(known, self._meant(*one.reshape(2, -1))).astype(known.dtype)
            for known, one in zip(lists.sent, received, strict=True)
        ]
        ids = np.empty(owners.size, np.int64)
        ids[placed] = lists.count + np.arange(owners.size)
        taken = [
            np.append(known, np.arange(b, e) + lists.count).astype(known.dtype)
            for known, (b, e) in zip(lists.received, pairwise(ends), strict=True)
        ]
        count = lists.count + owners.size
        return RemoteEntries(lists.own, count, sent, taken), *np.split(ids, 2)  # type: ignore[return-value]

    def _meant(self, via: Array, numbers: Array) -> Array:
        """Return the own edges that ranks `via` number by `numbers`: see `_listed`."""
        found = numbers.copy()
        for rank, listed in enumerate(self.edges.sent):
            is_its = (via == rank) & (via != self._engine.rank)
            found[is_its] = listed[numbers[is_its]]
        return found

    def _slots(self, rows: Array) -> Array:
        """Return the indices of the edges of some rows, row by row."""
        begins, ends = self._offsets[rows], self._offsets[rows + 1]
        sizes = ends - begins
        before = np.cumsum(sizes) - sizes
        slots: Array = np.arange(int(sizes.sum())) + np.repeat(begins - before, sizes)
        return slots

    def _joined(
        self, low: Array, high: Array, edges: Array, middle: Array, with_own: bool
    ) -> BatchRows:
        """Return own and fetched rows; `with_own` adds own vertices as middle ones."""
        count, own = self._vertices.size, self._shard.own
        dtype = self._shard.local.in_edges.row_offsets.dtype
        is_own = np.repeat([True, False], [self._low.size, low.size])
        low, high = np.append(self._low, low), np.append(self._high, high)
        placed = np.lexsort((high, low))
        low, high, is_own = low[placed], high[placed], is_own[placed]
        edges = np.append(self._edges, edges)[placed].astype(dtype)
        begins = np.searchsorted(low, np.arange(count + 1))
        upper = Adjacency(begins.astype(dtype), high.astype(np.int32), edges)
        begins_here = self._vertices < own
        is_middle = begins_here & with_own
        is_middle[middle] = True
        slots = np.flatnonzero(is_own & is_middle[high])
        slots = slots[np.argsort(high[slots], kind="stable")]
        ends = np.searchsorted(high[slots], np.arange(count + 1))
        columns = low[slots].astype(np.int32)
        lower = Adjacency(ends.astype(dtype), columns, slots.astype(dtype))
        behind = np.bincount(high[slots], begins[low[slots] + 1] - slots, count)
        work = 1 + np.diff(begins) + behind.astype(np.int64)
        return BatchRows(
            self._vertices, self._order, upper, lower, work, begins_here, is_middle
        )


def _cut(sizes: Sequence[int] | Array, most: int) -> Array:
    """Return cuts of rows into pieces of at most `most` entries, or of one row."""
    before, cuts = np.concatenate([[0], np.cumsum(sizes)]), [0]
    while cuts[-1] < before.size - 1:
        fits = np.searchsorted(before, before[cuts[-1]] + most, side="right") - 1
        cuts.append(max(int(fits), cuts[-1] + 1))
    return np.array(cuts, np.int64)
