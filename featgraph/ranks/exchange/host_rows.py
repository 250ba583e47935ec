"""Exchange of ghost rows and ghost edge entries in memory of the host.

`HostRows` is the transport of rows of vertices, `HostEdges` that of entries of edges.
Both encode messages by `row_messages`, and send them through the engine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import DivergenceError
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Array, Engine
from featgraph.ranks.exchange.remote_entries import (
    RemoteEntries,
    combine_rows,
    in_outbox,
)
from featgraph.ranks.exchange.row_messages import (
    AS_FITS,
    NOT_SENT,
    Arrived,
    Sending,
    SendList,
    choose,
    decode,
    encode,
    packing_of,
    store,
)
from featgraph.ranks.exchange.vertex_sets import Boundary, Piece, packed, unpacked
from featgraph.runtime.devices.protocol import Device, Words

__all__ = ["MIRROR", "HostRows"]

#: The name of the exchange of rows for mirrors.
MIRROR = "a mirror"
#: The arrays of properties that are sent together.
Values = Sequence[Array]
#: Positions of a send list.
Positions = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Links:
    """The send lists of this rank, and the send lists of each rank to this one.

    Attributes
    ----------
    sent, taken : list of SendList
        By rank.
    firsts : list of int
        By rank, the first row of this rank in which that rank's list is stored.
    """

    sent: list[SendList]
    taken: list[SendList]
    firsts: list[int]

    def within(self, piece: Piece) -> _Links:
        """Return the lists cut to the entries that are in a piece."""
        bounds = piece.pieces.received[piece.number]
        return _Links(
            *piece.of_lists(self.sent, self.taken),
            [a + begin for a, (begin, _) in zip(self.firsts, bounds, strict=True)],
        )


class HostRows:
    """Exchange of rows with other ranks through the engine: a `Transport`.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CpuDevice

    Attributes
    ----------
    rank : int
        This rank.
    forms : Counter of str
        Number of row messages sent, by form.
    boundary : Boundary
        The vertices whose rows are sent.
    can_overlap : bool
        Whether rows can be sent while other vertices are swept.
    sent_behind : int
        Number of pieces sent while other vertices were swept.
    """

    fused = None  # on the CPU, sets, rows and results have an exchange each
    clock = staticmethod(time.perf_counter)

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.rank = engine.rank
        self.forms: Counter[str] = Counter()
        self._links = _Links(
            [SendList(numbers, shard.own) for numbers in shard.send_lists],
            _lists_taken(shard),
            shard.ghosts[:-1].tolist(),
        )
        self._links_of: dict[Piece, _Links] = {}
        self.boundary = Boundary(shard, engine, device)
        self.can_overlap = engine.size > 1
        self.sent_behind = 0
        self._moved_s = 0.0

    def begin_wire(self) -> None:
        """Reset the measurement of `wire_s`."""
        self._moved_s = self._engine.moved_s

    def wire_s(self, row_bytes: int) -> float:
        """Return the seconds of exchanges since `begin_wire`, waits included."""
        return self._engine.moved_s - self._moved_s

    def require(self, sending: Sending) -> None:
        """Accept all forms and wire dtypes."""

    def over(self, lists: RemoteEntries, stays: bool = True) -> HostEdges:
        """Return the exchange of the entries of some lists of edges."""
        return HostEdges(lists, self, self._device)

    def share(
        self, values: Values, changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        return self._begin(values, changed, sending, self._links, "")()

    def collect(self, values: Array, mirror: Array, changed: Words) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Transport`."""
        order, links = self._shard.partition.order, self._everyone
        begin = links.firsts[self.rank]
        own = slice(begin, begin + self._shard.own)
        mirror[own if order is None else order[own]] = values[: self._shard.own]

        def find(rank: int) -> Positions:
            return links.sent[rank].changed(changed)

        def put(rank: int, arrived: Arrived) -> None:
            first = links.firsts[rank]
            if order is None:
                store(arrived, [mirror], first)
            else:
                mirror[order[first:][arrived.places]] = arrived.rows[0]

        self.hand_over([values], find, AS_FITS, links, MIRROR, put)()

    @cached_property
    def _everyone(self) -> _Links:
        """Links of all own vertices to each other rank, and of all vertices of each."""
        cuts, rank = self._shard.partition.cuts, self.rank
        lists = [SendList.whole(int(count)) for count in np.diff(cuts)]
        nothing = SendList(np.empty(0, np.int32), self._shard.own)
        sent, taken = [lists[rank]] * len(lists), lists.copy()
        sent[rank] = taken[rank] = nothing
        return _Links(sent, taken, cuts[:-1].tolist())

    def begin(
        self, values: Values, changed: Words, sending: Sending, piece: Piece
    ) -> Callable[[], Words]:
        """Begin to send the rows of a piece: see `Transport`."""
        if piece not in self._links_of:
            self._links_of[piece] = self._links.within(piece)
        self.sent_behind += 1
        links = self._links_of[piece]
        return self._begin(values, changed, sending, links, f", {piece}")

    def join(self) -> None:
        """Do nothing: rows have been stored when a piece is finished."""

    def _begin(
        self,
        values: Values,
        changed: Words,
        sending: Sending,
        links: _Links,
        piece: str,
    ) -> Callable[[], Words]:
        """Begin to send the rows of changed vertices: see `Transport.begin`."""
        ghosts = np.zeros(self._shard.numbers.size, np.bool_)

        def find(rank: int) -> Positions:
            return links.sent[rank].changed(changed)

        def put(rank: int, arrived: Arrived) -> None:
            first = links.firsts[rank]
            store(arrived, values, first)
            ghosts[first:][arrived.places] = True

        wire = "" if sending.wire_dtype is None else f" in {sending.wire_dtype}"
        about = f"rows of ghosts{wire}{piece}"
        take = self.hand_over(values, find, sending, links, about, put)

        def finish() -> Words:
            take()
            return self._device.sets.upload(packed(ghosts))

        return finish

    def hand_over(
        self,
        values: Sequence[Array],
        find: Callable[[int], Positions],
        sending: Sending,
        links: _Links,
        about: str,
        put: Callable[[int, Arrived], None],
    ) -> Callable[[], None]:
        """Begin an exchange of listed rows; return a function that finishes it.

        Parameters
        ----------
        values : sequence of array
        find : callable
            Returns the changed positions of the list of a rank.
        sending : Sending
        links : _Links
        about : str
            The name of the exchange.
        put : callable
            ``put(rank, arrived)`` stores the rows received from a rank.

        Raises
        ------
        DivergenceError
            From the returned function, if an own value did not fit the wire dtype.
        """
        packing, chosen = packing_of(values, sending.wire_dtype), []
        failed: list[DivergenceError] = []
        for rank, link in enumerate(links.sent):
            one = NOT_SENT
            if link.size:
                one = choose(link, find(rank), packing.row, sending.exchange)
            chosen.append(one)
            self.forms[one.form] += rank != self.rank

        def write(rank: int, message: Array) -> None:
            try:
                encode(links.sent[rank], chosen[rank], packing, values, message)
            except DivergenceError as error:  # raised by `finish`, after all writes
                failed.append(error)

        def read(rank: int, message: Array) -> None:
            put(rank, decode(links.taken[rank], message, packing))

        counts = [one.nbytes for one in chosen]
        exchange = self._engine.begin_bytes(counts, write, read, about=about)

        def finish() -> None:
            exchange.finish()
            if failed:
                raise failed[0]

        return finish

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Transport`.

        Contributions are combined in the order of ranks.
        """
        partition, shard = self._shard.partition, self._shard
        bounds = pairwise(partition.cuts.tolist())
        outbox_places: list[Any] = [slice(*pair) for pair in bounds]
        if partition.order is not None:
            outbox_places = [partition.order[places] for places in outbox_places]
        ends = outbox_places, [slice(shard.own)] * len(outbox_places)
        given = outbox, values, operation, ends, shard.numbers.size
        return self.combine(*given, "atomic operations")

    def combine(
        self,
        outbox: Array,
        values: Array,
        operation: str,
        ends: tuple[Sequence[Any], Sequence[Any]],
        count: int,
        about: str,
    ) -> Words:
        """Combine entries of outboxes into `values`; return the set of these entries.

        Parameters
        ----------
        outbox, values : array
        operation : str
        ends : (sequence, sequence)
            By rank: indices in `outbox` of the entries that the rank owns, and indices
            in `values` of the own entries that are in the rank's outbox.
        count : int
            Number of entries of the set.
        about : str
            The name of the exchange.
        """
        outbox_places, own_places = ends
        messages = [in_outbox(outbox[places], operation) for places in outbox_places]
        received = self._engine.all_to_allv(messages, about=about)
        reached = np.zeros(count, np.bool_)
        for message, places in zip(received, own_places, strict=True):
            rows, found = values[places], reached[places]
            found[combine_rows(message, rows, operation)] = True
            values[places], reached[places] = rows, found
        return self._device.sets.upload(packed(reached))


def _lists_taken(shard: Shard) -> list[SendList]:
    """Return the send list of each rank to this one, in row numbers of the sender."""
    partition, found = shard.partition, []
    for rank, (begin, end) in enumerate(pairwise(shard.ghosts)):
        places = shard.numbers[begin:end]
        if partition.places is not None:
            places = partition.places[places]
        first, last = partition.cuts[rank : rank + 2]
        numbers = np.ascontiguousarray(places - first, np.int32)
        found.append(SendList(numbers, int(last - first)))
    return found


#: The state of an edge that has passed: see `BoundState.edge_state`.
PASSED = 2
#: A boolean for each entry of `RemoteEntries.every`.
Mask = npt.NDArray[np.bool_]


class HostEdges:
    """Exchange of edge entries with other ranks by the engine: an `EdgeTransport`.

    Parameters
    ----------
    lists : RemoteEntries
    rows : HostRows
        Exchanges listed rows, of vertices or of edges.
    device : CpuDevice
    """

    def __init__(self, lists: RemoteEntries, rows: HostRows, device: Device) -> None:
        self._lists, self._rows, self._device = lists, rows, device
        sent = [SendList(one, lists.own) for one in lists.sent]
        taken = [SendList.whole(one.size) for one in lists.received]
        self._links = _Links(sent, taken, [])

    def all(self) -> Mask:
        """Mark all edges of the lists."""
        return np.ones(self._lists.every.size, np.bool_)

    def out_of(self, sources: Words) -> Mask:
        """Mark the edges that lead out of some vertices."""
        members = unpacked(self._device.download(sources))
        found: Mask = members[self._lists.sources]
        return found

    def marked(self, members: Words, also: Mask | None = None) -> Mask:
        """Mark the edges of a set of own edges, and those of `also`."""
        found: Mask = unpacked(members)[self._lists.every]
        return found if also is None else found | also

    def passed(self, state: Array, wide: Array, also: Mask | None) -> Mask:
        """Mark the edges that passed, and those of `also`: see `EdgeTransport`."""
        own = self._lists.own
        wide.fill(0)
        np.copyto(wide[:own], PASSED, where=state[:own] == PASSED)
        found: Mask = wide[self._lists.every] == PASSED
        return found if also is None else found | also

    def union(self, a: Mask, b: Mask) -> Mask:
        """Return the union of two sets of marks."""
        return a | b

    def that_differ(self, marks: Mask, now: Array, before: Array) -> Mask:
        """Return the marked edges whose bytes differ between two buffers."""
        at = np.flatnonzero(marks)
        ids = self._lists.every[at]
        differs = (_bytes(now[ids]) != _bytes(before[ids])).any(axis=1)
        found = np.zeros_like(marks)
        found[at[differs]] = True
        return found

    def share(
        self,
        values: Sequence[Array],
        marks: Mask,
        others: Sequence[Array | None],
        sending: Sending = AS_FITS,
    ) -> None:
        """Send entries of own edges to the ranks with ghosts: see `EdgeTransport`."""
        lists = self._lists
        if sending.exchange == "all":  # lists do not cover a whole range of edges
            sending = Sending("ms")

        def find(rank: int) -> Positions:
            begin, end = lists.bounds[rank]
            return np.flatnonzero(marks[begin:end]).astype(np.int32)

        def put(rank: int, arrived: Arrived) -> None:
            taken = lists.received[rank]
            arrived = replace(arrived, positions=taken[arrived.positions])
            store(arrived, values, 0)
            store(arrived, others, 0)

        about = "entries of edges"
        self._rows.hand_over(values, find, sending, self._links, about, put)()

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeTransport`.

        Contributions are combined in the order of ranks.
        """
        lists, rank = self._lists, self._rows.rank
        outbox_places, own_places = list(lists.received), list(lists.sent)
        outbox_places[rank] = own_places[rank] = np.arange(lists.own, dtype=np.int32)
        given = outbox, values, operation, (outbox_places, own_places), lists.count
        return self._rows.combine(*given, "entries of outboxes")


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return a view of rows as bytes, in which 0.0 and -0.0 differ."""
    shape = rows.shape[0], rows.itemsize * prod(rows.shape[1:])
    found: npt.NDArray[np.uint8] = rows.reshape(-1).view(np.uint8).reshape(shape)
    return found
