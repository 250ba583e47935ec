"""Exchange of rows of vertices and entries of edges, packed and stored on the GPU.

`GpuRows` exchanges ghost rows as messages, `MessagePieces` does so piece by piece while
the GPU sweeps, and `GpuEdges` exchanges entries of edges, as messages or through
windows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import GraphInputError
from featgraph.cuda.arrays import piece_of
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of
from featgraph.cuda.values import DeviceValues, name_of
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Beside, Engine, GpuEngine, GpuMessages
from featgraph.ranks.exchange import gpu_kernels as kernels
from featgraph.ranks.exchange.gpu_messages import (
    BLOCK,
    EdgeLinks,
    Entries,
    GpuLinks,
    Outline,
    Packer,
    Received,
    ThroughHost,
    as_rows,
    blocks_for,
    gpu_sender_of,
    used_rows,
)
from featgraph.ranks.exchange.gpu_row_copies import OPERATIONS
from featgraph.ranks.exchange.host_rows import MIRROR
from featgraph.ranks.exchange.remote_entries import RemoteEntries, lists_of, owned_ids
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.ranks.exchange.vertex_sets import Piece, Pieces
from featgraph.ranks.exchange.window_channel import Channel, Part, WindowNumbers
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["GpuEdges", "GpuRows", "MessagePieces"]

Array = Any
Words = Any
Values = Sequence[DeviceValues]


class GpuRows:
    """Exchange of rows with other ranks as messages: a `Transport`.

    The host reads the number of changed rows of each list, and sends it to the other
    rank's host. All else stays on the GPU if the engine can send arrays from there.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    forms : Counter of str
        The counter of messages, by form.
    others : array of bool, shape (P,), optional
        The ranks with which ghost rows are exchanged. Default: all.

    Attributes
    ----------
    packer : Packer
        Writes and stores messages on the default stream.
    rank : int
        This rank.
    """

    def __init__(
        self,
        shard: Shard,
        engine: Engine,
        device: Device,
        forms: Counter[str],
        others: Sequence[bool] | None = None,
    ) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.rank, self._forms = engine.rank, forms
        self.packer = Packer(device)
        sent, taken = lists_of(shard, others)
        self._sent, self._taken = GpuLinks(sent, device), GpuLinks(taken, device)
        self._word_count = -(-shard.numbers.size // 32)

    def over(self, lists: RemoteEntries) -> GpuEdges:
        """Return the exchange of the entries of some lists of edges."""
        return GpuEdges(lists, self, self._device)

    def share(
        self, values: Values, changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        entries = [Entries.of(one) for one in values]
        ghosts = self._device.sets.empty(self._word_count)
        links = self._sent, self._taken
        for came in self.swap(links, entries, changed, "rows of ghosts", sending):
            self.packer.store(came, entries, ghosts)
        return ghosts

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Transport`."""
        # The lists of `deliver`, in the other direction.
        own, whole, links = Entries.of(values), Entries.of(mirror), self._ends[::-1]
        for came in self.swap(links, [own], changed, MIRROR):
            self.packer.scatter(came, 0, whole)

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Transport`.

        Contributions are combined in the order of ranks.
        """
        every, own = Entries.of(outbox), Entries.of(values)
        words = used_rows(self._device, outbox, operation)
        how = OPERATIONS.index(operation)
        reached = self._device.sets.empty(self._word_count)
        target = as_rows(values.array)
        for came in self.swap(self._ends, [every], words, "atomic operations"):
            count, first = came.outline.count, came.outline.firsts[0]
            rows = came.message.view(outbox.dtype), first, own.width, *came.listed
            blocks = blocks_for(count * own.width)
            self.packer.launch(
                kernels.combine_rows, blocks, (*rows, count, target, how)
            )
            self.packer.add(came, reached)
        return reached

    @cached_property
    def gpu_sender(self) -> GpuEngine | ThroughHost:
        """The transport of arrays, determined by all ranks at the first exchange."""
        return gpu_sender_of(self._engine, self._device)

    @cached_property
    def _ends(self) -> tuple[GpuLinks, GpuLinks]:
        """Lists of all vertices by owner, and of the own vertices for each rank."""
        owned = owned_ids(self._shard.partition)
        own = [np.arange(self._shard.own)] * self._engine.size
        return GpuLinks(owned, self._device), GpuLinks(own, self._device)

    def swap(
        self,
        links: tuple[GpuLinks, GpuLinks],
        entries: Sequence[Entries],
        changed: Words,
        about: str,
        sending: Sending = AS_FITS,
    ) -> Iterator[Received]:
        """Send the listed rows of a set; yield the received messages, by rank."""
        counts = links[0].mark(changed)
        yield from self.swap_marked(self.packer, links, entries, counts, about, sending)

    def swap_marked(
        self,
        packer: Packer,
        links: tuple[GpuLinks, GpuLinks],
        entries: Sequence[Entries],
        counts: Sequence[int],
        about: str,
        sending: Sending,
        beside: Beside | None = None,
    ) -> Iterator[Received]:
        """Send the marked rows of lists, with their counts by list: see `swap`."""
        (sent, taken), form = links, sending.exchange
        both = zip(counts, sent.sizes, strict=True)
        outlines = [Outline.choose(*pair, entries, form) for pair in both]
        if any(outline.words for outline in outlines):
            sent.list_all()
        messages = [
            packer.encode(sent, rank, outline, entries)
            for rank, outline in enumerate(outlines)
        ]
        # No recording can repeat an exchange of the host.
        self._device.driver.note(*OPAQUE)  # type: ignore[attr-defined]
        self._forms.update(o.form for r, o in enumerate(outlines) if r != self.rank)
        announced = self._engine.all_to_allv(
            [o.announcement for o in outlines], about=about
        )
        pairs = zip(announced, taken.sizes, strict=True)
        coming = [Outline.read(one, size, entries) for one, size in pairs]
        sizes = [outline.nbytes for outline in coming]
        given = GpuMessages(messages, sizes, about, beside)
        received = self.gpu_sender.hand_over(given)
        for rank, outline in enumerate(coming):
            if outline.count:
                yield packer.received(taken, rank, outline, received[rank])


#: Alignment of messages, in bytes.
_ALIGNMENT = 256


class MessagePieces:
    """Exchange of rows as messages, piece by piece, while the GPU sweeps the next one.

    `begin` marks and counts the changed vertices of a piece after its sweep, on a
    stream of its own. When the piece is finished, the next sweep has been launched: the
    host waits for the counts, sends them, and has messages packed, exchanged and stored
    on a second stream. So the host waits only for the sweep of the piece itself, and
    the counts of a piece do not wait for the rows of the one before.

    Parameters
    ----------
    shard : Shard
    device : CudaDevice
    rows : GpuRows
        Exchanges the marked rows.
    """

    def __init__(self, shard: Shard, device: Device, rows: GpuRows) -> None:
        self._shard, self._device, self._rows = shard, device, rows
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        streams, self._streams = self._driver.streams, _streams_of(device)
        self._swept, self._moved = streams.make_event(), streams.make_event()
        self._out, self._into = _Room(device), _Room(device)
        moving = self._streams.moving
        self._packer = Packer(device, moving.stream, self._out.units)
        self._beside = Beside(moving.handle, partial(self._into.units, item=1))
        self._known: dict[Piece, _Links] = {}
        #: Sets that the streams use, kept until the default stream waits for them.
        self._held: list[Words] = []

    def begin(
        self, values: Values, changed: Words, sending: Sending, piece: Piece
    ) -> Callable[[], Words]:
        """Begin to count the rows of a piece after all earlier launches."""
        entries = [Entries.of(one) for one in values]
        if piece.number == 0:  # no piece is in flight
            self._make_room(piece.pieces, entries)
        if piece not in self._known:
            self._known[piece] = _Links(self._shard, self._device, piece)
        links, streams = self._known[piece], self._driver.streams
        ghosts = self._device.sets.empty(-(-self._shard.numbers.size // 32))
        self._held += [changed, ghosts]
        marking = self._streams.marking
        streams.mark(self._swept, 0)
        streams.hold(marking.handle, self._swept)
        links.sent.leave_marks(changed, marking.stream)
        source, landed = links.sent.totals, links.landed
        target = int(landed.ctypes.data)
        streams.start_read(target, address_of(source), landed.nbytes, marking.handle)
        streams.mark(links.marked, marking.handle)

        def finish() -> Words:
            streams.wait(links.marked)
            streams.hold(self._streams.moving.handle, links.marked)
            self._out.begin()
            self._into.begin()
            given = self._packer, (links.sent, links.taken), entries, landed.tolist()
            last = f"rows of ghosts, {piece}", sending, self._beside
            for came in self._rows.swap_marked(*given, *last):
                self._packer.store(came, entries, ghosts)
            return ghosts

        return finish

    def join(self) -> None:
        """Make the default stream wait for the rows of all pieces."""
        streams = self._driver.streams
        for stream in self._streams:
            streams.mark(self._moved, stream.handle)
            streams.hold(0, self._moved)
        self._held.clear()

    def _make_room(self, pieces: Pieces, entries: Sequence[Entries]) -> None:
        """Reserve memory for the messages of any piece, in any form."""
        # The longest form has a position of 4 bytes for each row.
        row = 4 + sum(one.width * one.item for one in entries)
        for room, bounds in ((self._out, pieces.sent), (self._into, pieces.received)):
            room.reserve(
                max(
                    sum((end - begin) * row + 2 * _ALIGNMENT for begin, end in ranks)
                    for ranks in bounds
                )
            )


class _Links:
    """The send and receive lists of a piece, and host memory for its counts."""

    def __init__(self, shard: Shard, device: Device, piece: Piece) -> None:
        moving = _streams_of(device).moving.stream
        sent, taken = piece.of_lists(*lists_of(shard))
        self.sent = GpuLinks(sent, device, moving)
        self.taken = GpuLinks(taken, device, moving)
        self.landed: npt.NDArray[np.int32]
        self.landed = cuda.pinned_array(len(sent), np.int32)
        self.marked = device.driver.streams.make_event()  # type: ignore[attr-defined]


class _Room:
    """GPU memory for the messages of one piece, reused by the next one.

    Memory from the pool would be ordered by the default stream, and messages would
    wait for its sweeps.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._at = device, 0
        self._memory: Any = device.empty((1,), "uint8")

    def reserve(self, nbytes: int) -> None:
        """Reserve `nbytes` bytes, while no message is in flight."""
        if self._memory.size < nbytes:
            self._memory = self._device.empty((nbytes,), "uint8")

    def begin(self) -> None:
        """Reuse the memory for the messages of another piece."""
        self._at = 0

    def units(self, nbytes: int, item: int) -> Any:
        """Return `nbytes` bytes of memory as unsigned integers of `item` bytes."""
        begin, self._at = self._at, -(-(self._at + nbytes) // _ALIGNMENT) * _ALIGNMENT
        return piece_of(self._memory, begin, nbytes, item)


class _Stream:
    """A stream: its handle for the driver, and its object for the dialect."""

    def __init__(self, streams: Any) -> None:
        # Urgent: its few blocks start before pending blocks of a sweep.
        made = streams.make_stream(is_urgent=True)
        self._made, self.handle = made, int(made)
        self.stream = cuda.external_stream(self.handle)


class _Streams(NamedTuple):
    """Streams shared by all ranks of a process, which store each other's messages.

    Attributes
    ----------
    marking : _Stream
        Marks and counts changed vertices.
    moving : _Stream
        Packs, exchanges and stores rows.
    """

    marking: _Stream
    moving: _Stream


#: Device -> its streams.
_known: WeakKeyDictionary[Any, _Streams] = WeakKeyDictionary()


def _streams_of(device: Any) -> _Streams:
    if device not in _known:
        streams = device.driver.streams
        _known[device] = _Streams(_Stream(streams), _Stream(streams))
    return _known[device]


#: Kernels over lists index edges by int32.
_MOST_EDGES = 1 << 31
_ABOUT, _ABOUT_OUTBOXES = "entries of edges", "entries of outboxes"


class GpuEdges:
    """Exchange of entries of edges with other ranks: an `EdgeTransport`.

    Marks are words with a bit for each edge of the lists of all ranks; each list begins
    at a whole word.

    Parameters
    ----------
    lists : RemoteEntries
    rows : GpuRows
        Exchanges listed rows, of vertices or of edges, as messages.
    device : CudaDevice
    windows : (Engine, WindowNumbers), optional
        If given, entries go through windows.

    Raises
    ------
    GraphInputError
        If the part has too many edges.
    """

    def __init__(
        self,
        lists: RemoteEntries,
        rows: Any,
        device: Device,
        windows: tuple[Engine, WindowNumbers] | None = None,
    ) -> None:
        if lists.count >= _MOST_EDGES:
            raise GraphInputError(
                "too many edges for entries that are sent between GPUs",
                got=f"{lists.count} edges at the vertices of a rank",
                expected=f"fewer than {_MOST_EDGES}",
                fix="more ranks",
            )
        self._lists, self._rows, self._device = lists, rows, device
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self._windows = windows
        self._sent = EdgeLinks(lists.sent, device)
        self._channel: Channel | None = None
        if windows is not None:
            engine, numbers = windows
            given = engine, device, _ABOUT, numbers
            self._channel = Channel(lists.sent, lists.received, *given, are_places=True)
        self._count = int(self._sent.bits.size)

    @cached_property
    def _taken(self) -> EdgeLinks:
        return EdgeLinks(self._lists.received, self._device)

    @cached_property
    def _sources(self) -> Array:
        """The source of each edge of the lists, padded as the lists are."""
        lists = self._lists
        return self._sent.along([lists.sources[b:e] for b, e in lists.bounds])

    def all(self) -> Words:
        """Mark all edges of the lists."""
        return self._everything

    @cached_property
    def _everything(self) -> Words:
        listed = self._device.download(self._sent.numbers) >= 0
        words = np.packbits(listed, bitorder="little").view("<u4")
        return self._device.upload(words.astype(np.uint32))

    def out_of(self, sources: Words) -> Words:
        """Mark the edges that lead out of some vertices."""
        given = sources, self._sources, self._nothing
        return self._marked(kernels.mark_members, *given)

    def marked(self, members: Words, also: Words | None = None) -> Words:
        """Mark the edges of a set of own edges, and those of `also`."""
        given = members, self._sent.numbers
        return self._marked(kernels.mark_members, *given, self._or_nothing(also))

    def passed(self, state: Array, wide: Array, also: Words | None) -> Words:
        """Mark the edges that passed, and those of `also`: see `EdgeTransport`."""
        marks = self._device.sets.empty(self._count)
        size = max(32 * self._count, wide.size)
        if size:
            numbers, own = self._sent.numbers, np.int32(self._lists.own)
            given = state, own, numbers, self._or_nothing(also), wide, marks
            self._launch(kernels.mark_passed, blocks_for(size), BLOCK, given)
        return marks

    def _or_nothing(self, marks: Words | None) -> Words:
        return self._nothing if marks is None else marks

    @cached_property
    def _nothing(self) -> Words:
        return self._device.upload(np.zeros(max(self._count, 1), np.uint32))

    def union(self, a: Words, b: Words) -> Words:
        """Return the union of two sets of marks."""
        return self._device.sets.union(a, b)

    def that_differ(
        self, marks: Words, now: DeviceValues, before: DeviceValues
    ) -> Words:
        """Return the marked edges whose bytes differ between two buffers."""
        one, other = Entries.of(now), Entries.of(before)
        given = marks, self._sent.numbers, one.array, other.array, one.width
        return self._marked(kernels.mark_differing, *given)

    def _marked(self, kernel: Any, *given: Any) -> Words:
        """Launch a kernel that marks a word per warp; return these words."""
        marks = self._device.sets.empty(self._count)
        if self._count:
            blocks = blocks_for(32 * self._count)
            self._launch(kernel, blocks, BLOCK, (*given, marks))
        return marks

    def share(
        self,
        values: Sequence[DeviceValues],
        marks: Words,
        others: Sequence[DeviceValues | None],
        sending: Sending = AS_FITS,
    ) -> None:
        """Send entries of own edges to the ranks with ghosts: see `EdgeTransport`."""
        if self._channel is not None:
            if sending.exchange == "all":
                sending = replace(sending, exchange="ms")
            posted = self._channel.post([Part(marks, values)], sending=sending)
            self._channel.take(posted, values, others=others)
            return
        entries = [Entries.of(one) for one in values]
        stored = [None if one is None else Entries.of(one) for one in others]
        links = self._sent, self._taken
        for came in self._rows.swap(links, entries, marks, _ABOUT, sending):
            # Into both buffers: ghosts are the same in either (0049).
            for buffers in (entries, stored):
                for which, own in enumerate(buffers):
                    if own is not None:
                        self._rows.packer.scatter(came, which, own)

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeTransport`.

        Contributions are combined in the order of ranks.
        """
        return self._returns.deliver(outbox, values, operation)

    @cached_property
    def _returns(self) -> _Returns:
        return _Returns(self._lists, self._rows, self._device, self._windows)


class _Returns:
    """Exchange of outboxes: entries combined on other ranks are sent to their owners.

    Received entries are stored apart, by rank, and combined from there. So the
    contributions to an entry are combined in the order of ranks, from any set of ranks.

    Parameters
    ----------
    lists, rows, device, windows
        As for `GpuEdges`.
    """

    def __init__(
        self,
        lists: RemoteEntries,
        rows: Any,
        device: Device,
        windows: tuple[Engine, WindowNumbers] | None,
    ) -> None:
        self._rows, self._device, self._lists = rows, device, lists
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        ends = np.cumsum([0, *(one.size for one in lists.sent)]).tolist()
        self._size = max(ends[-1], 1)
        places = [np.arange(b, e, dtype=np.int32) for b, e in lists.bounds]
        self._channel: Channel | None = None
        if windows is None:
            self._links = tuple(
                GpuLinks(one, device) for one in (lists.received, places)
            )
            rank = rows.rank
        else:
            engine, beside = windows
            numbers = WindowNumbers(device, beside=beside)
            common = engine, device, _ABOUT_OUTBOXES, numbers
            self._channel, rank = Channel(lists.received, places, *common), engine.rank
        begins, listed = _by_entry(lists, rank)
        self._begins, self._listed = device.upload(begins), device.upload(listed)
        #: (shape of an entry, dtype) -> memory for received entries.
        self._memory: dict[Any, DeviceValues] = {}

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeTransport`."""
        lists, sets = self._lists, self._device.sets
        box, landed = as_rows(outbox.array), self._memory_of(outbox)
        width = math.prod(outbox.shape[1:])
        used = used_rows(self._device, outbox, operation)
        came = self._swapped(outbox, landed, used)
        reached = sets.empty(max(-(-lists.count // 32), 1))
        if lists.own:
            given = (
                as_rows(values.array), width, box, used, as_rows(landed.array), came,
                self._begins, self._listed, OPERATIONS.index(operation), reached,
            )  # fmt: skip
            self._launch(kernels.combine_listed, blocks_for(lists.own), BLOCK, given)
        return reached

    def _swapped(
        self, outbox: DeviceValues, landed: DeviceValues, used: Words
    ) -> Words:
        """Send used entries to their owners; return the positions that have arrived."""
        if self._channel is not None:
            posted = self._channel.post([Part(used, [outbox])], rows=self._size)
            return self._channel.take(posted, [landed]).first
        came = self._device.sets.empty(-(-self._size // 32))
        entries, target = [Entries.of(outbox)], Entries.of(landed)
        packer = self._rows.packer
        for one in self._rows.swap(self._links, entries, used, _ABOUT_OUTBOXES):
            packer.scatter(one, 0, target)
            packer.add(one, came)
        return came

    def _memory_of(self, outbox: DeviceValues) -> DeviceValues:
        """Return memory for all entries that may arrive, with the outbox's dtype."""
        shape, dtype = outbox.shape[1:], name_of(outbox.dtype)
        if (shape, dtype) not in self._memory:
            rows = self._device.rows
            whole = (self._size, *shape)
            held: Any = rows.held(rows.empty(whole, dtype), whole)
            self._memory[shape, dtype] = held
        return self._memory[shape, dtype]


def _by_entry(
    lists: RemoteEntries, rank: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return for each own entry its positions in received entries, as in CSR.

    Returns offsets by own entry, and positions in the order of ranks; -1 stands for the
    contribution of this rank itself.
    """
    sent = list(lists.sent)
    places = [np.arange(begin, end) for begin, end in lists.bounds]
    sent[rank], places[rank] = np.arange(lists.own), np.full(lists.own, -1)
    entries = np.concatenate(sent)
    order = np.argsort(entries, kind="stable")
    begins = np.zeros(lists.own + 1, np.int32)
    np.cumsum(np.bincount(entries, minlength=lists.own), out=begins[1:])
    # Kernels take no empty array.
    listed = np.append(np.concatenate(places)[order], -1)
    return begins, listed.astype(np.int32)
