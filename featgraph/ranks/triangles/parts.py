"""The edges of a part, turned towards the end of higher degree, and rows of others.

A triangle is found by the rank that owns its first vertex by (degree, number). That
rank has both edges at it. Whether the other two vertices are neighbors stands in the
row of the second one, which its owner has: such rows are fetched, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.graph.building.adjacency import Adjacency
from featgraph.graph.partition.shard import Shard

__all__ = ["Batch", "BatchRows", "TrianglePart"]

Array = npt.NDArray[Any]
#: Bytes that the rows of a batch take, about, with what is made of them.
BATCH_BYTES = 1 << 28
#: Bytes of an edge in a batch: ends, ids and slots, both directions, and its values.
_EDGE_BYTES = 64


@dataclass(frozen=True, eq=False)
class BatchRows:
    """What kernels are given of an oriented graph: see `Oriented`.

    Attributes
    ----------
    is_own, is_middle : array of bool
        By degree order: vertices of this rank, and those in the middle of triangles.
    """

    vertices: Array
    degree_order: Array
    upper: Adjacency
    lower: Adjacency
    work: Array
    is_own: Array
    is_middle: Array


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that were fetched, among those of this rank.

    Edges that have come have ids behind those of the part: first all of them, and then
    their other directions.

    Attributes
    ----------
    rows : BatchRows
        Rows of own vertices, and of the ghosts whose rows have come. Those below list
        own vertices only, and those of this batch's middle vertices.
    twins : array
        The other direction of each edge.
    sent : list of array
        The edges that each rank has been sent, by their ids here.
    counts : list of int
        How many have come from each.
    kept : array of int64
        Which of these, one rank's behind the other's, have both ends here.
    """

    rows: BatchRows
    twins: Array
    sent: list[Array]
    counts: list[int]
    kept: Array


class TrianglePart:
    """The oriented edges of a part; all ranks make it, and ask it for batches.

    Parameters
    ----------
    shard : Shard
        Of an undirected graph, cut along "both".
    engine : Engine

    Attributes
    ----------
    rounds : int
        How many batches there are: as many on each rank.

    Raises
    ------
    GraphInputError
        On all ranks, if two edges have the same ends.
    """

    def __init__(self, shard: Shard, engine: Engine) -> None:
        self._shard, self._engine, local = shard, engine, shard.local
        degree = np.asarray(local.in_degree)
        self._vertices = np.lexsort((shard.numbers, degree)).astype(np.int32)
        self._order = np.empty_like(self._vertices)
        self._order[self._vertices] = np.arange(self._vertices.size, dtype=np.int32)
        self._low, self._high, self._edges = self._turned()
        self._refuse_repeated()
        self._ask()
        self._kept: Batch | None = None

    def batch(self, number: int) -> Batch:
        """Fetch the rows of a batch; it stays where it is the only one."""
        if self._kept is not None:
            return self._kept
        made = self._made(number)
        if self.rounds == 1:
            self._kept = made
        return made

    def _turned(self) -> tuple[Array, Array, Array]:
        """Return own edges to higher vertices: both ends by degree order, and ids."""
        rows, order = self._shard.local.out_edges, self._order
        offsets = np.asarray(rows.row_offsets)[: self._shard.own + 1]
        u = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        low, high = order[u], order[np.asarray(rows.column_indices)[: offsets[-1]]]
        edges = np.asarray(rows.edge_ids)[: offsets[-1]]
        is_up = np.flatnonzero(high > low)
        is_up = is_up[np.lexsort((high[is_up], low[is_up]))]
        return low[is_up], high[is_up], edges[is_up]

    def _refuse_repeated(self) -> None:
        low, high = self._low, self._high
        same = np.flatnonzero((low[1:] == low[:-1]) & (high[1:] == high[:-1]))[:1]
        numbers = self._shard.numbers[self._vertices]
        pair = np.sort(np.array([numbers[low[same]], numbers[high[same]]]).ravel())
        found = self._engine.all_gather(
            pair.astype(np.int64), about="edges that are there twice"
        )
        twice = next((ends for ends in found if ends.size), None)
        if twice is not None:
            raise GraphInputError(
                "triangles of a graph with parallel edges",
                where="the edge between {} and {}".format(*twice.tolist()),
                got="the edge more than once",
                expected="one edge between two vertices",
                fix='make the graph with duplicates="first"',
            )

    def _ask(self) -> None:
        """Ask owners for the rows of ghosts, and tell which come in which batch."""
        shard, engine, low, high = self._shard, self._engine, self._low, self._high
        is_followed = np.append(low[1:] == low[:-1], False)[: low.size]
        middle = np.unique(self._vertices[high[is_followed]])
        wanted = middle[middle >= shard.own]
        bounds = np.searchsorted(wanted, shard.ghosts)
        #: The ghosts whose rows come from each rank.
        self._wanted = [wanted[b:e] for b, e in pairwise(bounds.tolist())]
        asked = [
            (one - begin).astype(np.int64)
            for one, begin in zip(self._wanted, shard.ghosts, strict=False)
        ]
        received = engine.all_to_allv(asked, about="rows of neighbors")
        self._asked = [
            self._order[listed[places]]
            for listed, places in zip(shard.send_lists, received, strict=True)
        ]
        offsets = self._offsets
        told = [(offsets[r + 1] - offsets[r]).astype(np.int64) for r in self._asked]
        self._sizes = engine.all_to_allv(told, about="rows of neighbors")
        cuts = _cut(np.concatenate(self._sizes), max(BATCH_BYTES // _EDGE_BYTES, 1))
        most = engine.all_reduce(
            np.array([cuts.size - 1], np.int64), "max", about="rows of neighbors"
        )
        self.rounds = max(int(most[0]), 1)
        cuts = np.pad(cuts, (0, self.rounds + 1 - cuts.size), "edge")
        ends = np.cumsum([0, *(one.size for one in self._wanted)])
        #: Of each rank, where batches begin and end among the ghosts wanted of it.
        self._cuts = [
            np.clip(cuts, begin, end) - begin for begin, end in pairwise(ends.tolist())
        ]
        self._cuts_asked = engine.all_to_allv(self._cuts, about="rows of neighbors")

    @cached_property
    def _offsets(self) -> Array:
        """Where own rows begin, by degree order."""
        return np.searchsorted(self._low, np.arange(self._order.size + 1))

    def _made(self, number: int) -> Batch:
        local, order = self._shard.local, self._order
        sent, ends_sent = [], []
        for asked, cuts in zip(self._asked, self._cuts_asked, strict=True):
            slots = self._slots(asked[slice(*cuts[number : number + 2])])
            sent.append(self._edges[slots])
            ends = self._vertices[self._high[slots]]
            ends_sent.append(self._shard.numbers[ends].astype(np.int64))
        came = self._engine.all_to_allv(ends_sent, about="rows of neighbors")
        ghosts, sizes = [], []
        for rank, cuts in enumerate(self._cuts):
            part = slice(*cuts[number : number + 2])
            ghosts.append(self._wanted[rank][part])
            sizes.append(self._sizes[rank][part])
        middle = order[np.concatenate(ghosts)]
        row = np.repeat(middle, np.concatenate(sizes))
        places = self._places_of(np.concatenate(came))
        kept = np.flatnonzero(places >= 0)
        count, extra = local.edge_count, kept.size
        behind = np.arange(count, count + 2 * extra, dtype=self._edges.dtype)
        rows = self._joined(
            row[kept], order[places[kept]], behind[:extra], middle, number == 0
        )
        twins = np.concatenate([local.twins, behind[extra:], behind[:extra]])
        twins = twins.astype(local.twins.dtype)
        return Batch(rows, twins, sent, [one.size for one in came], kept)

    def _slots(self, rows: Array) -> Array:
        """Return the places of the edges of some rows, one row behind the other."""
        begins, ends = self._offsets[rows], self._offsets[rows + 1]
        sizes = ends - begins
        before = np.cumsum(sizes) - sizes
        slots: Array = np.arange(int(sizes.sum())) + np.repeat(begins - before, sizes)
        return slots

    def _places_of(self, numbers: Array) -> Array:
        """Return which vertices here have some numbers; -1 where none has."""
        sorter = self._by_number
        own = self._shard.numbers[sorter]
        places = np.minimum(np.searchsorted(own, numbers), own.size - 1)
        return np.where(own[places] == numbers, sorter[places], -1)

    @cached_property
    def _by_number(self) -> Array:
        return np.argsort(self._shard.numbers, kind="stable")

    def _joined(
        self, low: Array, high: Array, edges: Array, middle: Array, with_own: bool
    ) -> BatchRows:
        """Return own rows and others; own vertices are in the middle, too, or not."""
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
    """Return where to cut rows so that a piece has `most` entries, or one row."""
    before, cuts = np.concatenate([[0], np.cumsum(sizes)]), [0]
    while cuts[-1] < before.size - 1:
        fits = np.searchsorted(before, before[cuts[-1]] + most, side="right") - 1
        cuts.append(max(int(fits), cuts[-1] + 1))
    return np.array(cuts, np.int64)
