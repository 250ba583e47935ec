"""How ranks on GPUs hand rows and numbers over: the first way that all of them can."""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.config import config
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.errors import ArgumentError, PlanError
from featgraph.graph.partition.shard import Shard
from featgraph.model.links import named_link
from featgraph.ranks.boundary import Boundary, Pieces
from featgraph.ranks.gpu.edges import GpuEdges
from featgraph.ranks.gpu.message_pieces import MessagePieces, SentPiece
from featgraph.ranks.gpu.mixed_rows import MixedRows
from featgraph.ranks.gpu.rows import GpuRows
from featgraph.ranks.gpu.window_numbers import WindowNumbers
from featgraph.ranks.gpu.window_pieces import PostedPiece, WindowPieces
from featgraph.ranks.gpu.window_rows import WindowRows
from featgraph.ranks.gpu.windows import find_near
from featgraph.ranks.lists import Lists
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["GpuCarrier"]

Words = Any
_WAYS = ("auto", "windows", "engine", "host")
#: Engine -> which of its ranks store at each other.
_known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def have_windows(engine: Engine, device: Device) -> bool:
    """Whether all ranks store at each other; all of them call it."""
    return engine.size > 1 and bool(near_ranks(engine, device).all())


def near_ranks(engine: Engine, device: Device) -> npt.NDArray[np.bool_]:
    """Return which ranks store at each other, (P, P); all of them call it."""
    way = config.gpu_links
    if way not in _WAYS:
        raise ArgumentError(
            "ranks on GPUs do not hand rows over so",
            where="fg.config.gpu_links",
            got=repr(way),
            expected=", ".join(map(repr, _WAYS)),
        )
    if way in {"engine", "host"} or engine.size == 1:
        return np.eye(engine.size, dtype=np.bool_)
    if engine not in _known:
        _known[engine] = find_near(engine, device)
    found: npt.NDArray[np.bool_] = _known[engine]
    return found


class GpuCarrier:
    """Hands rows over through windows, or as messages: a `Carrier`.

    Which it is, is found out when all ranks send something, for each pair of them. Only
    where all reach each other do numbers go through windows, too; else rows of ghosts
    do, and all else goes as messages.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice

    Attributes
    ----------
    forms : Counter of str
        Messages of rows that have been sent, by their form.
    boundary : Boundary
        The vertices whose rows are sent.
    sent_behind : int
        Pieces that have been sent while others were swept.
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        self.boundary = Boundary(shard, engine, device)
        self.sent_behind = 0

    def require(self, sending: Sending) -> None:
        """Raise where rows are not sent so; all ranks call it."""
        asked, wire = sending.exchange, sending.wire_dtype
        if (asked, wire) == ("auto", None) or self.together is not None:
            return
        if wire is not None:
            raise PlanError(
                "GPUs round rows that they store in windows, and no others",
                where="wire_dtype=",
                got=f"{wire!r}, with ranks that hand over messages",
                fix='fg.config.gpu_links="auto" and GPUs of one host, target="cpu", or '
                "no wire_dtype",
            )
        if asked in {"all", "ms"}:
            raise PlanError(
                "GPUs send the rows that changed, and no others",
                where="exchange=",
                got=repr(asked),
                expected="'auto', 'vr' or 'vr-list'",
                fix='target="cpu" sends rows in every form',
            )

    @cached_property
    def together(self) -> WindowRows | None:
        """What takes rows, counts and results in one exchange; None without windows."""
        if not have_windows(self._engine, self._device):
            return None
        return WindowRows(self._shard, self._engine, self._device)

    @cached_property
    def _numbers(self) -> WindowNumbers:
        """Those of windows between some pairs of ranks: none, but bytes are counted."""
        return WindowNumbers(self._device)

    def sent_bytes(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the bytes that kernels have stored at each rank: see `Carrier`."""
        engine = self._engine
        if self.together is not None:
            return self.together.numbers.stored(engine.size).read(engine.rank)
        if "_numbers" not in vars(self):
            return {}
        return self._numbers.stored(engine.size).read(engine.rank)

    @property
    def sends_behind(self) -> bool:
        """Whether rows can go while others are swept: where there are other ranks.

        But not where a GPU times work, which would then have waits within.
        """
        is_timed = self.together is not None and self.together.is_timed
        return self._engine.size > 1 and not is_timed

    def clock(self) -> float:
        """Return the time at which the GPU has done all; no recording could."""
        self._device.driver.note(*OPAQUE)  # type: ignore[attr-defined]
        self._device.synchronize()
        return time.perf_counter()

    def begin_wire(self) -> None:
        """Nothing is measured: kernels store rows while the host goes on."""

    def wire_s(self, row_bytes: int) -> float:
        """Return the most seconds that rows take on their way: see `Carrier`.

        They are those of all rows that others have, at half of NVLink's rate, which
        rows at random places do not fall below (0055). Of messages they are not known.
        """
        if self.together is None:
            return math.inf
        size = 2 * self.boundary.most_rows * row_bytes
        return named_link("nvlink").seconds(size, self._engine.size)

    @cached_property
    def _pieces(self) -> WindowPieces | MessagePieces:
        if self.together is None:
            return MessagePieces(self._shard, self._device, self._messages)
        given = self._shard, self._engine, self._device
        return WindowPieces(*given, self.together.numbers)

    @cached_property
    def _messages(self) -> GpuRows:
        given = self._shard, self._engine, self._device
        return GpuRows(*given, self.forms)

    @property
    def _rows(self) -> WindowRows | GpuRows:
        return self.together or self._messages

    @cached_property
    def _ghosts(self) -> WindowRows | GpuRows | MixedRows:
        """What shares rows of ghosts."""
        near, alone = near_ranks(self._engine, self._device), self._engine.size
        if self.together is not None or near.sum() == alone:
            return self._rows
        given = self._shard, self._engine, self._device
        return MixedRows(*given, near, self.forms, self._numbers)

    def over(self, lists: Lists, stays: bool = True) -> GpuEdges:
        """Return what hands over entries of edges likewise.

        Windows pay where they are used again and again.
        """
        if stays and self.together is not None:
            numbers = WindowNumbers(self._device, beside=self.together.numbers)
            return GpuEdges(lists, None, self._device, (self._engine, numbers))
        return self._messages.over(lists)

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        return self._ghosts.share(values, changed, sending)

    def begin(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending,
        pieces: Pieces,
        number: int,
    ) -> PostedPiece | SentPiece:
        """Begin to send the rows of a piece: see `Carrier`."""
        self.sent_behind += 1
        return self._pieces.begin(values, changed, sending, pieces, number)

    def join(self) -> None:
        """Have what is done next wait for the rows of all pieces."""
        self._pieces.join()

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Carrier`."""
        self._rows.collect(values, mirror, changed)

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        self._rows.empty_outbox(outbox, operation)

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`."""
        return self._rows.deliver(outbox, values, operation)
