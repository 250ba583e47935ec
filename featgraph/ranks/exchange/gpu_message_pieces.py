"""Rows of pieces of the vertices, sent as messages while the GPU sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from featgraph.cuda.arrays import piece_of
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Beside
from featgraph.ranks.exchange.boundary import Pieces, within
from featgraph.ranks.exchange.gpu_links import GpuLinks
from featgraph.ranks.exchange.gpu_messages import Entries
from featgraph.ranks.exchange.gpu_packing import Packer
from featgraph.ranks.exchange.gpu_rows import GpuRows
from featgraph.ranks.exchange.row_forms import Sending
from featgraph.runtime.devices.protocol import Device

__all__ = ["MessagePieces", "SentPiece"]

Words = Any
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
        aside, self._streams = self._driver.streams, _streams_of(device)
        self._swept, self._moved = aside.make_event(), aside.make_event()
        self._out, self._into = _Room(device), _Room(device)
        moving = self._streams.moving
        self._packer = Packer(device, moving.lent, self._out.units)
        self._beside = Beside(moving.handle, partial(self._into.units, item=1))
        self._known: dict[tuple[Pieces, int], _Piece] = {}
        #: Sets that the streams read or write, until the default one has waited.
        self._held: list[Words] = []

    def begin(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending,
        pieces: Pieces,
        number: int,
    ) -> SentPiece:
        """Begin to count the rows of a piece after all earlier launches."""
        entries = [Entries.of(one) for one in values]
        if number == 0:  # no piece is in flight
            self._make_room(pieces, entries)
        key = pieces, number
        if key not in self._known:
            self._known[key] = _Piece(self._shard, self._device, pieces, number)
        piece, aside = self._known[key], self._driver.streams
        ghosts = self._device.sets.empty(-(-self._shard.numbers.size // 32))
        self._held += [changed, ghosts]
        marking = self._streams.marking
        aside.mark(self._swept, 0)
        aside.hold(marking.handle, self._swept)
        piece.sent.leave_marks(changed, marking.lent)
        source, landed = piece.sent.totals, piece.landed
        target = int(landed.ctypes.data)
        aside.start_read(target, address_of(source), landed.nbytes, marking.handle)
        aside.mark(piece.marked, marking.handle)
        about = f"rows of ghosts, piece {number + 1} of {len(pieces.words)}"
        return SentPiece(partial(self._swap, piece, entries, ghosts, about, sending))

    def _swap(
        self,
        piece: _Piece,
        entries: Sequence[Entries],
        ghosts: Words,
        about: str,
        sending: Sending,
    ) -> Words:
        """Exchange the counted rows; return the ghosts whose rows have come."""
        aside, moving = self._driver.streams, self._streams.moving
        aside.wait(piece.marked)
        aside.hold(moving.handle, piece.marked)
        self._out.begin()
        self._into.begin()
        given = self._packer, (piece.sent, piece.taken), entries, piece.landed.tolist()
        for came in self._rows.swap_marked(*given, about, sending, self._beside):
            self._packer.store(came, entries, ghosts)
        return ghosts

    def join(self) -> None:
        """Make the default stream wait for the rows of all pieces."""
        aside = self._driver.streams
        for stream in self._streams:
            aside.mark(self._moved, stream.handle)
            aside.hold(0, self._moved)
        self._held.clear()

    def _make_room(self, pieces: Pieces, entries: Sequence[Entries]) -> None:
        """Reserve memory for the messages of any piece, in any form."""
        row = 4 + sum(one.width * one.item for one in entries)
        for room, bounds in ((self._out, pieces.sent), (self._into, pieces.taken)):
            room.reserve(
                max(
                    sum((end - begin) * row + 2 * _ALIGNMENT for begin, end in ranks)
                    for ranks in bounds
                )
            )


class SentPiece:
    """Rows of a piece in flight; `finish` returns the ghosts whose rows arrive.

    The rows may be read after `MessagePieces.join`.
    """

    def __init__(self, finish: Any) -> None:
        self.finish = finish


class _Piece:
    """The send and receive lists of a piece, and host memory for its counts."""

    def __init__(
        self, shard: Shard, device: Device, pieces: Pieces, number: int
    ) -> None:
        moving = _streams_of(device).moving.lent
        ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
        sent = within(shard.send_lists, pieces.sent[number])
        self.sent = GpuLinks(sent, device, moving)
        self.taken = GpuLinks(within(ghosts, pieces.taken[number]), device, moving)
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
        """Begin with the messages of another piece."""
        self._at = 0

    def units(self, nbytes: int, item: int) -> Any:
        """Return `nbytes` bytes of memory as unsigned integers of `item` bytes."""
        begin, self._at = self._at, -(-(self._at + nbytes) // _ALIGNMENT) * _ALIGNMENT
        return piece_of(self._memory, begin, nbytes, item)


class _Stream:
    """A stream: its handle for the driver, and its object for the dialect."""

    def __init__(self, aside: Any) -> None:
        made = aside.make_stream(is_urgent=True)
        self._made, self.handle = made, int(made)
        self.lent = cuda.external_stream(self.handle)


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


_known: WeakKeyDictionary[Any, _Streams] = WeakKeyDictionary()


def _streams_of(device: Any) -> _Streams:
    if device not in _known:
        aside = device.driver.streams
        _known[device] = _Streams(_Stream(aside), _Stream(aside))
    return _known[device]
