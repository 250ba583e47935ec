"""Transports of rows and numbers on GPUs: windows, messages, or both.

`GpuTransport` uses windows (GPU memory mapped by other ranks) if all GPUs reach each
other, messages if none do; if only some do, ghost rows go through windows between
these and as messages between the others (docs/design/0055-windows.md, 0064). To post, a
kernel stores into the windows of all other ranks; to take, a kernel waits for what they
have posted. Counts stay on the device. Rows of a piece of the vertices go the same way,
while the GPU sweeps the next piece.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.config import config
from featgraph.base.errors import ArgumentError, DivergenceError, PlanError
from featgraph.cuda.dialect import cuda
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.failures import lost_rank
from featgraph.ranks.engines.links import named_link
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange import window_kernels as kernels
from featgraph.ranks.exchange.gpu_messages import used_rows
from featgraph.ranks.exchange.gpu_rows import GpuEdges, GpuRows, MessagePieces
from featgraph.ranks.exchange.remote_entries import RemoteEntries, lists_of, owned_ids
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending, does_not_fit
from featgraph.ranks.exchange.vertex_sets import Boundary, Piece
from featgraph.ranks.exchange.window_channel import (
    Channel,
    Others,
    Part,
    Posted,
    WindowNumbers,
)
from featgraph.ranks.exchange.windows import Near, find_near
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["GpuTransport"]

Words = Any
Values = Sequence[DeviceValues]
#: Vertices, and the values of properties whose rows are sent.
Pair = tuple[Words, Values]


class WindowRows:
    """Exchange of rows, sets, counts and results through windows.

    After a superstep, one exchange sends the active set with rows, counts and results:
    `post_active`, and possibly long after it `receive_active`. It completes the active
    set, and stores its size on all ranks for the next count.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self._word_count = -(-shard.numbers.size // 32)
        self.numbers = WindowNumbers(device, shard.own)
        #: Whether the work of this rank is timed, superstep by superstep.
        self.is_timed = False
        #: The dtype to which reals were rounded last.
        self._wire: str | None = None
        #: The set whose size the device has already counted, until the size is read.
        #: Holding it keeps its memory from being reused by another set.
        self._counted: Words | None = None
        #: The channel of the last `post_active`.
        self._posted_by: Channel

    def share(
        self, values: Values, changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`.

        Deferred numbers are sent with them.
        """
        self._wire = sending.wire_dtype or self._wire
        channel = self._rows(sending)
        posted = channel.post([Part(changed, values)], sending=sending)
        return channel.take(posted).first

    def post_active(
        self, active: Pair, waiting: Pair | None, sending: Sending = AS_FITS
    ) -> Posted:
        """Post the active vertices and those written before, each set with its rows.

        `waiting` is None if there are no unsent rows.
        """
        self._wire = sending.wire_dtype or self._wire
        parts = [Part(*active)] if waiting is None else [Part(*active), Part(*waiting)]
        self._posted_by = self._rows(sending)
        return self._posted_by.post(parts, counts=True, sending=sending)

    def receive_active(
        self, posted: Posted, others: Others = ()
    ) -> tuple[Words, Words]:
        """Receive the sets and rows posted by other ranks.

        `others` has for each posted property a second buffer for its rows, or None.
        Returns the active vertices, ghosts included, and the ghosts whose rows have
        come with `waiting`.
        """
        active, came = self._posted_by.take(posted, others=others)
        self._counted = active
        return active, came

    def rounding_error(self, number: int) -> DivergenceError | None:
        """Return the error for a count that flags a value too large for `wire_dtype`.

        Returns None for any other count.
        """
        if number > -(kernels.TOO_LARGE // 2):
            return None
        notes = self._device.download(self.numbers.notes)
        self._device.fill(self.numbers.notes, 0)
        place = int(notes[kernels.FAULT]) - 1
        where = f"rank {self._engine.rank}"
        got = f"a row of vertex {int(self._shard.numbers[place])}, on {where}"
        if place < 0:
            got = f"a row of another rank than {where}"
        return does_not_fit("a property", got, str(self._wire))

    def begin_timed(self) -> None:
        """Start the device clock, which counts work without waits."""
        self.is_timed = True
        self._launch(kernels.begin_clock, 1, 32, (self.numbers.notes,))

    def worked_ns(self) -> int:
        """Return the work from `begin_timed` to the last exchange, in nanoseconds."""
        self.is_timed = False
        return int(self._device.download(self.numbers.notes)[kernels.WORK])

    def settle(self) -> None:
        """Combine the deferred numbers."""
        # All ranks defer the same combines, and so agree on whether to exchange.
        if self.numbers.has_deferred:
            self._ghosts.take(self._ghosts.post([]))

    def leave_known(self, words: Words) -> bool:
        """Return whether the device has the size of a set on all ranks already.

        Returns True once for a set; deferred numbers are then combined, too.
        """
        counted, self._counted = self._counted, None
        if counted is not words:
            return False
        self.settle()
        return True

    def leave_count(self, words: Words) -> None:
        """Store the size of a set, summed over all ranks, on the device."""
        own = self._device.own  # type: ignore[attr-defined]
        self._device.sets.leave_count(words, ())  # type: ignore[attr-defined]
        self.numbers.add(own.total, "sum", 1)
        self._ghosts.take(self._ghosts.post([]), total=own.total)

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Transport`."""
        rows, channel = mirror.array.shape[0], self._mirrors
        posted = channel.post([Part(changed, [values])], rows=rows)
        channel.take(posted, [mirror])

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Transport`."""
        used = used_rows(self._device, outbox, operation)
        reached = self._device.sets.empty(self._word_count)
        posted = self._outboxes.post([Part(used, [outbox])])
        self._outboxes.combine(values, posted, reached, operation)
        return reached

    def _rows(self, sending: Sending) -> Channel:
        """Return the channel of ghost rows; with exchange "all", that of all rows."""
        return self._everything if sending.exchange == "all" else self._ghosts

    @cached_property
    def _everything(self) -> Channel:
        """A channel for all own vertices, of which each rank stores its ghosts."""
        shard, engine = self._shard, self._engine
        cuts = shard.partition.cuts
        sent = [np.arange(shard.own, dtype=np.int32)] * engine.size
        sent[engine.rank] = sent[engine.rank][:0]  # no rank sends rows to itself
        places = shard.numbers
        if shard.partition.places is not None:
            places = shard.partition.places[places]
        taken = []
        for rank, (begin, end) in enumerate(pairwise(shard.ghosts)):
            count = 0 if rank == engine.rank else int(cuts[rank + 1] - cuts[rank])
            numbers = np.full(count, -1, np.int32)
            numbers[places[begin:end] - cuts[rank]] = np.arange(begin, end)
            taken.append(numbers)
        about = "rows of all vertices"
        return Channel(sent, taken, engine, self._device, about, self.numbers)

    @cached_property
    def _ghosts(self) -> Channel:
        sent, taken = lists_of(self._shard)
        about = "rows of ghosts"
        return Channel(sent, taken, self._engine, self._device, about, self.numbers)

    @cached_property
    def _mirrors(self) -> Channel:
        """A channel from own vertices to the mirrors of all ranks."""
        own = [np.arange(self._shard.own)] * self._engine.size
        owned = owned_ids(self._shard.partition)
        numbers = WindowNumbers(self._device, beside=self.numbers)
        return Channel(own, owned, self._engine, self._device, "a mirror", numbers)

    @cached_property
    def _outboxes(self) -> Channel:
        """A channel from the vertices of the whole graph to their owners."""
        own = [np.arange(self._shard.own)] * self._engine.size
        given = self._engine, self._device, "atomic operations"
        numbers = WindowNumbers(self._device, beside=self.numbers)
        return Channel(owned_ids(self._shard.partition), own, *given, numbers)


class WindowPieces:
    """Exchange of rows through windows, piece by piece, on a stream of its own.

    The stream has high priority: its few blocks start before pending blocks of a
    sweep. It waits for earlier launches on the default stream, which in turn waits for
    it in `join`.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    numbers : WindowNumbers
        The numbers of the rank's `WindowRows`.
    """

    def __init__(
        self, shard: Shard, engine: Engine, device: Device, numbers: WindowNumbers
    ) -> None:
        self._numbers = numbers
        self._shard, self._engine, self._device = shard, engine, device
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        streams = self._driver.streams
        self._stream = streams.make_stream(is_urgent=True)
        self._swept, self._taken = streams.make_event(), streams.make_event()
        self._launched_on = cuda.external_stream(int(self._stream))
        self._channels: dict[Piece, Channel] = {}
        #: Sets that the stream uses, kept until the default stream waits for it.
        self._held: list[Words] = []

    def begin(
        self, values: Values, changed: Words, sending: Sending, piece: Piece
    ) -> Callable[[], Words]:
        """Post the rows of a piece after all earlier launches."""
        if piece not in self._channels:
            self._channels[piece] = self._channel(piece)
        self._driver.mark(self._swept, 0)
        self._driver.hold(self._stream, self._swept)
        self._held.append(changed)
        channel = self._channels[piece]
        posted = channel.post([Part(changed, values)], sending=sending)

        def finish() -> Words:
            came: Words = channel.take(posted).first
            self._held.append(came)
            return came

        return finish

    def join(self) -> None:
        """Make the default stream wait for the rows of all pieces."""
        self._driver.mark(self._taken, self._stream)
        self._driver.hold(0, self._taken)
        self._held.clear()

    def _channel(self, piece: Piece) -> Channel:
        """Return the channel for the rows of a piece."""
        sent, taken = piece.of_lists(*lists_of(self._shard))
        numbers = WindowNumbers(self._device, beside=self._numbers)
        given = self._engine, self._device, f"rows of ghosts, {piece}", numbers
        made = Channel(sent, taken, *given)
        made.stream = self._launched_on
        return made


#: Values of `config.gpu_links`.
_WAYS = ("auto", "windows", "engine", "host")
#: Engine -> which of its ranks can store into each other's windows, found once: the
#: trial maps a window on each rank.
_known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def have_windows(engine: Engine, device: Device) -> bool:
    """Whether all ranks can store into each other's windows; all ranks call it."""
    return engine.size > 1 and bool(near_ranks(engine, device).all())


def near_ranks(engine: Engine, device: Device) -> Near:
    """Return which ranks can store into each other's windows: bool, shape (P, P).

    All ranks call it. Raises ArgumentError if `config.gpu_links` is unknown.
    """
    way = config.gpu_links
    if way not in _WAYS:
        raise ArgumentError(
            "unknown transport of rows between GPUs",
            where="fg.config.gpu_links",
            got=repr(way),
            expected=", ".join(map(repr, _WAYS)),
        )
    if way in {"engine", "host"} or engine.size == 1:
        return np.eye(engine.size, dtype=np.bool_)
    if engine not in _known:
        _known[engine] = find_near(engine, device)
    found: Near = _known[engine]
    return found


class GpuTransport:
    """Exchange of rows through windows or as messages: a `Transport`.

    The transport is chosen for each pair of ranks at the first exchange. Only if all
    ranks reach each other, numbers go through windows, too; else windows carry ghost
    rows between near ranks, and messages carry everything else.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice

    Attributes
    ----------
    forms : Counter of str
        Number of row messages sent, by form.
    boundary : Boundary
        The vertices whose rows are sent.
    sent_behind : int
        Number of pieces sent while other vertices were swept.
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        self.boundary = Boundary(shard, engine, device)
        self.sent_behind = 0

    def require(self, sending: Sending) -> None:
        """Raise PlanError if rows cannot be sent in this form; all ranks call it."""
        form, wire = sending.exchange, sending.wire_dtype
        if (form, wire) == ("auto", None) or self.fused is not None:
            return
        if wire is not None:
            raise PlanError(
                "GPUs round only the rows that they store in windows",
                where="wire_dtype=",
                got=f"{wire!r}, with messages between ranks",
                fix='fg.config.gpu_links="auto" and GPUs of one host, target="cpu", or '
                "no wire_dtype",
            )
        if form in {"all", "ms"}:
            raise PlanError(
                "GPUs send only the rows that changed",
                where="exchange=",
                got=repr(form),
                expected="'auto', 'vr' or 'vr-list'",
                fix='target="cpu" sends rows in every form',
            )

    @cached_property
    def fused(self) -> WindowRows | None:
        """The exchange of rows, counts and results at once; None without windows."""
        if not have_windows(self._engine, self._device):
            return None
        return WindowRows(self._shard, self._engine, self._device)

    def sent_bytes(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the bytes that kernels have stored in windows, by target rank."""
        rows = self.fused or vars(self).get("_ghosts")  # {} before the first exchange
        if not isinstance(rows, WindowRows | MixedRows):
            return {}
        return rows.numbers.stored(self._engine.size).read(self._engine.rank)

    @property
    def can_overlap(self) -> bool:
        """Whether rows can be sent while other vertices are swept.

        False while the device clock is on: the timed work would include waits.
        """
        is_timed = self.fused is not None and self.fused.is_timed
        return self._engine.size > 1 and not is_timed

    def clock(self) -> float:
        """Wait for the GPU, and return the time in seconds; this ends any recording."""
        self._device.driver.note(*OPAQUE)  # type: ignore[attr-defined]
        self._device.synchronize()
        return time.perf_counter()

    def begin_wire(self) -> None:
        """Do nothing: the host cannot time the stores of kernels."""

    def wire_s(self, row_bytes: int) -> float:
        """Return the longest time in flight of rows, in seconds: see `Transport`.

        Through windows it is an estimate: all boundary rows at half of NVLink's rate,
        the least measured for rows at random places (0055). For messages it is inf.
        """
        if self.fused is None:
            return math.inf
        size = 2 * self.boundary.most_rows * row_bytes
        return named_link("nvlink").seconds(size, self._engine.size)

    @cached_property
    def _pieces(self) -> WindowPieces | MessagePieces:
        if self.fused is None:
            return MessagePieces(self._shard, self._device, self._messages)
        given = self._shard, self._engine, self._device
        return WindowPieces(*given, self.fused.numbers)

    @cached_property
    def _messages(self) -> GpuRows:
        given = self._shard, self._engine, self._device
        return GpuRows(*given, self.forms)

    @property
    def _rows(self) -> WindowRows | GpuRows:
        return self.fused or self._messages

    @cached_property
    def _ghosts(self) -> WindowRows | GpuRows | MixedRows:
        """The transport of ghost rows."""
        near, alone = near_ranks(self._engine, self._device), self._engine.size
        if self.fused is not None or near.sum() == alone:
            return self._rows
        given = self._shard, self._engine, self._device
        return MixedRows(*given, near, self.forms)

    def over(self, lists: RemoteEntries, stays: bool = True) -> GpuEdges:
        """Return the exchange of the entries of some lists of edges.

        Windows are used only with `stays`, since they are expensive to set up.
        """
        if stays and self.fused is not None:
            numbers = WindowNumbers(self._device, beside=self.fused.numbers)
            return GpuEdges(lists, None, self._device, (self._engine, numbers))
        return self._messages.over(lists)

    def share(
        self, values: Values, changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        return self._ghosts.share(values, changed, sending)

    def begin(
        self, values: Values, changed: Words, sending: Sending, piece: Piece
    ) -> Callable[[], Words]:
        """Begin to send the rows of a piece: see `Transport`."""
        self.sent_behind += 1
        return self._pieces.begin(values, changed, sending, piece)

    def join(self) -> None:
        """Make later work wait for the rows of all pieces."""
        self._pieces.join()

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Transport`."""
        self._rows.collect(values, mirror, changed)

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Transport`."""
        return self._rows.deliver(outbox, values, operation)


class MixedRows:
    """Exchange of rows through windows with near ranks, by messages with the others.

    Rows for near ranks are stored first, then messages are exchanged, then rows of near
    ranks are taken: no rank waits for another before it has sent all of its own rows.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    near : array of bool, shape (P, P)
        See `find_near`.
    forms : Counter of str
        The counter of messages, by form.

    Attributes
    ----------
    numbers : WindowNumbers
        The counters of stored bytes; no numbers go through these windows.
    """

    def __init__(
        self,
        shard: Shard,
        engine: Engine,
        device: Device,
        near: Near,
        forms: Counter[str],
    ) -> None:
        self.numbers = WindowNumbers(device)
        self._engine, self._device = engine, device
        own = near[engine.rank]
        self._far = GpuRows(shard, engine, device, forms, (~own).tolist())
        sent, taken = lists_of(shard, own.tolist())
        about = "rows of ghosts of this host"
        self._near = Channel(sent, taken, engine, device, about, self.numbers)
        self._near.near = near
        #: Negative if a kernel has reached the limit of its wait.
        self._total = device.upload(np.zeros(1, np.int64))

    def share(
        self, values: Values, changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        posted = self._near.post([Part(changed, values)], sending=sending)
        far = self._far.share(values, changed, sending)
        near = self._near.take(posted, total=self._total).first
        # Counts go through the engine, which does not see the failure of this kernel.
        found = int(self._device.download(self._total)[0])
        if found < 0:
            raise lost_rank(self._engine, found)
        return self._device.sets.union(far, near)
