"""Exchange of ghost rows and ghost edge entries in memory of the host."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

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
    Arrived,
    Sending,
    SendList,
    choose,
    decode,
    encode,
    row_bytes,
    store,
)
from featgraph.ranks.exchange.transport import InFlight
from featgraph.ranks.exchange.vertex_sets import Boundary, Pieces, packed, unpacked
from featgraph.runtime.devices.protocol import Device, Words

__all__ = ["MIRROR", "HostRows"]

#: The name of the exchange of rows for mirrors.
MIRROR = "a mirror"


@dataclass(frozen=True, eq=False)
class _Links:
    """The send lists of this rank, and the send lists of each rank to this one.

    Attributes
    ----------
    sent, taken : list of SendList
        By rank.
    firsts : list of int
        The first row of this rank for the rows of each rank's list.
    """

    sent: list[SendList]
    taken: list[SendList]
    firsts: list[int]

    def within(
        self, sent: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]
    ) -> _Links:
        """Return the lists cut to a range of entries for each rank."""
        return _Links(
            [_cut(link, *ends) for link, ends in zip(self.sent, sent, strict=True)],
            [_cut(link, *ends) for link, ends in zip(self.taken, taken, strict=True)],
            [a + begin for a, (begin, _) in zip(self.firsts, taken, strict=True)],
        )


def _cut(link: SendList, begin: int, end: int) -> SendList:
    return SendList(link.numbers[begin:end], link.own)


class HostRows:
    """Exchange of rows with other ranks through the engine: a `Transport`.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CpuDevice

    Attributes
    ----------
    forms : Counter of str
        Number of row messages sent, by form.
    boundary : Boundary
        The vertices whose rows are sent.
    can_overlap : bool
        Whether rows can be sent while other vertices are swept.
    sent_behind : int
        Number of pieces sent while other vertices were swept.
    spent_s : dict of str to float
        Seconds spent on row messages: to "choose" forms, to "encode", and to "store".
        The last two are within exchanges.
    """

    fused = None  # on the CPU, sets, rows and results have an exchange each
    clock = staticmethod(time.perf_counter)

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        self._links = _Links(
            [SendList(numbers, shard.own) for numbers in shard.send_lists],
            _lists_taken(shard),
            shard.ghosts[:-1].tolist(),
        )
        #: Pieces and the number of one -> its part of the links.
        self._links_of: dict[tuple[Pieces, int], _Links] = {}
        self.boundary = Boundary(shard, engine, device)
        self.can_overlap = engine.size > 1
        self.sent_behind = 0
        self._moved_s = 0.0
        self.spent_s = dict.fromkeys(("choose", "encode", "store"), 0.0)

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
        return HostEdges(lists, self._engine, self._device, self.forms)

    def share(
        self, values: Sequence[Array], changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        return self._begin(values, changed, sending, self._links, "").finish()

    def collect(self, values: Array, mirror: Array, changed: Words) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Transport`."""
        order, links = self._shard.partition.order, self._everyone
        begin = links.firsts[self._engine.rank]
        own = slice(begin, begin + self._shard.own)
        mirror[own if order is None else order[own]] = values[: self._shard.own]

        def put(rank: int, arrived: Arrived) -> None:
            first = links.firsts[rank]
            if order is None:
                store(arrived, [mirror], first)
            else:
                mirror[order[first:][arrived.places]] = arrived.rows[0]

        self._hand_over([values], changed, AS_FITS, links, MIRROR, put)()

    @cached_property
    def _everyone(self) -> _Links:
        """Lists of all own vertices for each other rank, and of all of theirs."""
        cuts, rank = self._shard.partition.cuts, self._engine.rank
        lists = [SendList(np.arange(n, dtype=np.int32), n) for n in np.diff(cuts)]
        nothing = SendList(np.empty(0, np.int32), self._shard.own)
        sent, taken = [lists[rank]] * len(lists), lists.copy()
        sent[rank] = taken[rank] = nothing
        return _Links(sent, taken, cuts[:-1].tolist())

    def begin(
        self,
        values: Sequence[Array],
        changed: Words,
        sending: Sending,
        pieces: Pieces,
        number: int,
    ) -> InFlight:
        """Begin to send the rows of a piece: see `Transport`."""
        key = pieces, number
        if key not in self._links_of:
            bounds = pieces.sent[number], pieces.received[number]
            self._links_of[key] = self._links.within(*bounds)
        self.sent_behind += 1
        piece = f", piece {number + 1} of {len(pieces.words)}"
        return self._begin(values, changed, sending, self._links_of[key], piece)

    def join(self) -> None:
        """Do nothing: rows have been stored when a piece is finished."""

    def _begin(
        self,
        values: Sequence[Array],
        changed: Words,
        sending: Sending,
        links: _Links,
        piece: str,
    ) -> InFlight:
        """Begin to send the rows of changed vertices."""
        ghosts = np.zeros(self._shard.numbers.size, np.bool_)

        def put(rank: int, arrived: Arrived) -> None:
            first = links.firsts[rank]
            store(arrived, values, first)
            ghosts[first:][arrived.places] = True

        wire = "" if sending.wire_dtype is None else f" in {sending.wire_dtype}"
        about = f"rows of ghosts{wire}{piece}"
        take = self._hand_over(values, changed, sending, links, about, put)

        def finish() -> Words:
            take()
            return self._device.sets.upload(packed(ghosts))

        return InFlight(finish)

    def _hand_over(
        self,
        values: Sequence[Array],
        changed: Words,
        sending: Sending,
        links: _Links,
        about: str,
        put: Callable[[int, Arrived], None],
    ) -> Callable[[], None]:
        """Begin an exchange of changed rows; return a function that finishes it.

        That calls `put` for each received message, and raises DivergenceError if an own
        value did not fit the wire dtype.
        """
        begun = time.perf_counter()
        wire, failed = sending.wire_dtype, []
        sizes, form = row_bytes(values, wire), sending.exchange
        chosen = [choose(link, changed, sizes, form) for link in links.sent]
        others = (c for r, c in enumerate(chosen) if r != self._engine.rank)
        self.forms.update(one.form for one in others)
        self._spend("choose", begun)

        def write(rank: int, message: Array) -> None:
            begun = time.perf_counter()
            try:
                encode(links.sent[rank], chosen[rank], values, message, wire)
            except DivergenceError as error:  # raised when the message is sent
                failed.append(error)
            self._spend("encode", begun)

        def read(rank: int, message: Array) -> None:
            begun = time.perf_counter()
            put(rank, decode(links.taken[rank], message, values, wire))
            self._spend("store", begun)

        counts = [one.nbytes for one in chosen]
        exchange = self._engine.begin_bytes(counts, write, read, about=about)

        def finish() -> None:
            exchange.finish()
            if failed:
                raise failed[0]

        return finish

    def _spend(self, on: str, begun: float) -> None:
        self.spent_s[on] += time.perf_counter() - begun

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Transport`.

        Contributions are combined in the order of ranks.
        """
        partition, messages = self._shard.partition, []
        for begin, end in pairwise(partition.cuts.tolist()):
            places = slice(begin, end)
            order = partition.order
            messages.append(
                in_outbox(outbox[places if order is None else order[places]], operation)
            )
        received = self._engine.all_to_allv(messages, about="atomic operations")
        own = values[: self._shard.own]
        reached = np.zeros(self._shard.numbers.size, np.bool_)
        for message in received:
            reached[combine_rows(message, own, operation)] = True
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
    engine : Engine
    device : CpuDevice
    forms : Counter of str
        The counter of messages, by form.
    """

    def __init__(
        self,
        lists: RemoteEntries,
        engine: Engine,
        device: Device,
        forms: Counter[str],
    ) -> None:
        self._lists, self._engine, self._device = lists, engine, device
        self._forms = forms

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
        lists, sizes, messages = self._lists, row_bytes(values), []
        both = zip(lists.links, lists.bounds, strict=True)
        # Form "all" would need the owner's edges as a range: only its list is sent.
        form = "ms" if sending.exchange == "all" else sending.exchange
        for rank, (link, (begin, end)) in enumerate(both):
            listed = SendList(np.arange(end - begin, dtype=np.int32), end - begin)
            chosen = choose(listed, packed(marks[begin:end]), sizes, form)
            messages.append(encode(link, chosen, values))
            self._forms[chosen.form] += rank != self._engine.rank
        received = self._engine.all_to_allv(messages, about="entries of edges")
        for message, taken in zip(received, lists.received, strict=True):
            arrived = decode(SendList(_places(taken.size), taken.size), message, values)
            there = replace(arrived, positions=taken[arrived.positions])
            store(there, values, 0)
            for rows, other in zip(arrived.rows, others, strict=True):
                if other is not None:
                    other[there.positions] = rows

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeTransport`.

        Contributions are combined in the order of ranks.
        """
        lists, rank = self._lists, self._engine.rank
        there, here = list(lists.received), list(lists.sent)
        there[rank] = here[rank] = _places(lists.own)
        messages = [in_outbox(outbox[places], operation) for places in there]
        received = self._engine.all_to_allv(messages, about="entries of outboxes")
        reached = np.zeros(lists.count, np.bool_)
        for message, places in zip(received, here, strict=True):
            rows = values[places]
            changed = combine_rows(message, rows, operation)
            values[places] = rows
            reached[places[changed]] = True
        return self._device.sets.upload(packed(reached))


def _places(count: int) -> npt.NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return a view of rows as bytes, in which 0.0 and -0.0 differ."""
    shape = rows.shape[0], row_bytes([rows])[0]
    found: npt.NDArray[np.uint8] = rows.reshape(-1).view(np.uint8).reshape(shape)
    return found
