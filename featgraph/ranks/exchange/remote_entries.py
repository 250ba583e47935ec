"""Entries of vertices or edges that another rank owns: ghosts, and outboxes.

`RemoteEntries` has the lists of entries to send and to receive, by rank; `PartEdges`
makes them for the edges of a part.

A ghost is a copy of an owner's entry. An edge belongs to the owner of its target. The
owner of its source has a ghost of it: in a directed graph for gathers along out-edges,
in an undirected graph also because the edge is the twin of one of its own. Both ranks
compute the lists of these entries in the same order, without an exchange.

An outbox collects atomic operations at vertices of other ranks, for one property and
operation: a row for every vertex of the graph, initialized to the identity. Kernels
combine into it as if it were the property. After the phase, rows with other values are
sent to the owners, and combined there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.graph import Graph
from featgraph.graph.building.edges import Adjacency
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.graph.views.structure import in_offsets, with_out_edges
from featgraph.ranks.exchange.row_messages import (
    SendList,
    choose,
    decode,
    encode,
    packing_of,
)
from featgraph.runtime.devices.protocol import Device

__all__ = [
    "LazyArray",
    "PartEdges",
    "RemoteEntries",
    "combine_rows",
    "empty_outbox",
    "identity",
    "in_outbox",
    "lists_of",
    "owned_ids",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RemoteEntries:
    """The entries of vertices or edges that are exchanged between ranks.

    Attributes
    ----------
    own : int
        Number of entries that this rank owns. They come before copies.
    count : int
        Number of entries that this rank has, copies included.
    sent : list of array of int32 or int64
        By rank, the own entries of which that rank has copies.
    received : list of array
        By rank, the copies here of entries that that rank owns, in the order of its
        `sent` list for this rank.
    find_sources : callable, optional
        For edges: returns the source of each entry that is sent.
    """

    own: int
    count: int
    sent: list[Array]
    received: list[Array]
    find_sources: Callable[[], Array] | None = None

    @cached_property
    def every(self) -> Array:
        """All entries that are sent, by rank."""
        return np.concatenate(self.sent)

    @cached_property
    def sources(self) -> Array:
        """The source of each edge of `every`."""
        if self.find_sources is None:
            raise TypeError("these are not the edges of a part")
        return self.find_sources()

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """The range of each rank's entries in `every`."""
        counts = np.concatenate(([0], np.cumsum([part.size for part in self.sent])))
        return list(pairwise(counts.tolist()))

    def alone(self) -> RemoteEntries:
        """Return the lists of a single rank, which sends nothing."""
        none = [self.every[:0]]
        return RemoteEntries(self.own, self.count, none, none, self.find_sources)


#: An array, or a function that returns it when it is first needed.
LazyArray = Array | Callable[[], Array]


class PartEdges:
    """The own edges and the ghosts of a part, and the entries that are exchanged.

    Parameters
    ----------
    shard : Shard
    along : str
        "in": a rank has the edges into its vertices, and no ghosts. "both": it also has
        the edges out of them, as ghosts if other ranks own them.
    given_rows : ndarray of integers, or a function that returns it
        Row in given order of each edge of the part, by its edge id here.
    starts : ndarray of integers, shape (own,)
        The edge id, in the whole graph, of the first in-edge of each own vertex.

    Attributes
    ----------
    own : int
        The number of edges into own vertices: they have the first edge ids.
    count : int
        The number of edges of the part, ghosts included.
    """

    def __init__(
        self, shard: Shard, along: str, given_rows: LazyArray, starts: Array
    ) -> None:
        self._shard, self.along = shard, along
        self._given_rows, self.starts = given_rows, starts
        self._offsets = in_offsets(shard.local)
        self.own = int(self._offsets[shard.own])
        self.count: int = shard.local.edge_count

    @cached_property
    def given_rows(self) -> Array:
        """Row in given order of each edge of the part, by its edge id here."""
        rows = self._given_rows
        return rows() if callable(rows) else rows

    def id_of_given(self, row: int) -> int:
        """Return the edge id, in the whole graph, of the own edge of a given row.

        Returns -1 if this rank owns no edge of that row.
        """
        found = np.flatnonzero(self.given_rows[: self.own] == row)
        if not found.size:
            return -1
        slot = int(found[0])
        target = int(np.searchsorted(self._offsets, slot, "right")) - 1
        return int(self.starts[target]) + slot - int(self._offsets[target])

    @cached_property
    def loops(self) -> Array:
        """The own edges that lead from a vertex to itself."""
        rows = self._shard.local.in_edges
        degrees = np.diff(self._offsets[: self._shard.own + 1])
        targets = np.repeat(np.arange(self._shard.own, dtype=np.int32), degrees)
        return np.flatnonzero(rows.column_indices[: self.own] == targets)

    @cached_property
    def into_own(self) -> Graph:
        """The part with out-edges into own vertices only."""
        local = self._shard.local
        if self.own == local.edge_count:
            return local  # type: ignore[no-any-return]
        # An edge function runs once, at the owner of the edge's target (0049).
        rows = local.out_edges
        is_own = rows.column_indices < self._shard.own
        before = np.zeros(is_own.size + 1, rows.row_offsets.dtype)
        np.cumsum(is_own, out=before[1:])
        found = rows.row_offsets, rows.column_indices, rows.edge_ids
        offsets, columns, ids = (np.asarray(array) for array in found)
        kept = Adjacency(before[offsets], columns[is_own], ids[is_own])
        return with_out_edges(local, kept)  # type: ignore[return-value]

    @cached_property
    def lists(self) -> RemoteEntries:
        """The entries that are exchanged between ranks, computed without an exchange.

        Ghosts owned by a rank are ordered by target, and then as given: so is that
        rank's list of the edges to send.
        """
        ends = self._offsets[self._shard.ghosts].tolist()
        # Edge ids ascend by target: those of edges into an owner's ghosts are a range.
        received = [np.arange(b, e, dtype=self._dtype) for b, e in pairwise(ends)]
        return RemoteEntries(
            self.own, self.count, self._parts, received, self._find_sources
        )

    def _find_sources(self) -> Array:
        columns = self._shard.local.in_edges.column_indices
        return np.asarray(columns[self.lists.every])

    @property
    def _dtype(self) -> Any:
        return np.int32 if self.count < 1 << 31 else np.int64

    @cached_property
    def _parts(self) -> list[Array]:
        """By rank, the own edges that are ghosts there: edges from its vertices.

        Ascending, edges are ordered by target and then as given, as ghosts are.
        """
        dtype = self._dtype
        if self.along != "both":
            return [np.zeros(0, dtype)] * self._shard.partition.parts
        sources = self._shard.local.in_edges.column_indices[: self.own]
        cut = np.flatnonzero(sources >= self._shard.own)
        owners = np.searchsorted(self._shard.ghosts, sources[cut], side="right") - 1
        ranks = range(self._shard.partition.parts)
        return [cut[owners == rank].astype(dtype) for rank in ranks]


Rows = npt.NDArray[Any]
#: Operation -> ufunc. Minimum and maximum ignore NaN, as atomics of the CPU do.
_COMBINES: dict[str, np.ufunc] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def identity(operation: str, dtype: np.dtype[Any]) -> Any:
    """Return the identity of an operation; for sums -0.0, since -0.0 + 0.0 is 0.0."""
    if dtype.kind == "f":
        return dtype.type({"add": -0.0, "min": np.inf, "max": -np.inf}[operation])
    limits = np.iinfo(dtype)
    return dtype.type({"add": 0, "min": limits.max, "max": limits.min}[operation])


def empty_outbox(device: Device, outbox: Any, operation: str) -> None:
    """Set all entries of an outbox to the identity of the operation."""
    device.fill(outbox, identity(operation, outbox.dtype))


def in_outbox(rows: Rows, operation: str) -> npt.NDArray[np.uint8]:
    """Return the message to an owner with the rows that differ from the identity."""
    nothing = identity(operation, rows.dtype)
    changed = (rows != nothing).any(axis=tuple(range(1, rows.ndim)))
    link, packing = SendList.whole(len(rows)), packing_of([rows])
    chosen = choose(link, np.flatnonzero(changed).astype(np.int32), packing.row)
    return encode(link, chosen, packing, [np.ascontiguousarray(rows)])


def combine_rows(
    message: npt.NDArray[np.uint8], own: Rows, operation: str
) -> npt.NDArray[np.int32]:
    """Combine received rows into the owner's; return the indices of these rows."""
    arrived = decode(SendList.whole(len(own)), message, packing_of([own]))
    positions = arrived.positions
    own[positions] = _COMBINES[operation](own[positions], arrived.rows[0])
    return positions


def lists_of(
    shard: Shard, others: Sequence[bool] | None = None
) -> tuple[list[Array], list[Array]]:
    """Return the send lists and the receive lists of ghost rows, by rank.

    `others` chooses ranks: lists of ranks for which it is False are empty.
    """
    ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
    both: list[list[Array]] = [list(shard.send_lists), ghosts]
    if others is not None:
        both = [
            [one if chosen else one[:0] for one, chosen in zip(of, others, strict=True)]
            for of in both
        ]
    return both[0], both[1]


def owned_ids(partition: Partition) -> list[Array]:
    """Return the given vertex ids of each rank's vertices."""
    order = partition.order
    numbers = np.arange(partition.cuts[-1]) if order is None else order
    return [numbers[slice(*pair)] for pair in pairwise(partition.cuts)]
