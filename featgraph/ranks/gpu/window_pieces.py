"""Rows of a piece of the vertices, through windows, beside what the GPU sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from featgraph._cuda import cuda
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import Sending
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.boundary import Pieces, within
from featgraph.ranks.gpu.window_channel import Channel, Part, Posted
from featgraph.ranks.gpu.window_numbers import WindowNumbers
from featgraph.runtime.devices.protocol import Device

__all__ = ["WindowPieces"]

Words = Any


class WindowPieces:
    """Posts rows piece by piece, and takes those of others, on a stream of its own.

    That stream is urgent: blocks that store at other GPUs are few, and begin before
    those of a sweep that have not begun. What it does waits for what was launched
    before, and the default stream waits for it when all pieces have come.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    numbers : WindowNumbers
        Those of the rows that go behind a sweep.
    """

    def __init__(
        self, shard: Shard, engine: Engine, device: Device, numbers: WindowNumbers
    ) -> None:
        self._numbers = numbers
        self._shard, self._engine, self._device = shard, engine, device
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        aside = self._driver.aside
        self._stream = aside.make_stream(is_urgent=True)
        self._swept, self._taken = aside.make_event(), aside.make_event()
        self._launched_on = cuda.external_stream(int(self._stream))
        self._channels: dict[tuple[Pieces, int], Channel] = {}
        #: Sets that the stream reads or writes, until the default one has waited.
        self._held: list[Words] = []

    def begin(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending,
        pieces: Pieces,
        number: int,
    ) -> PostedPiece:
        """Post the rows of a piece behind what has been launched."""
        key = pieces, number
        if key not in self._channels:
            self._channels[key] = self._channel(pieces, number)
        self._driver.mark(self._swept, 0)
        self._driver.hold(self._stream, self._swept)
        self._held.append(changed)
        channel = self._channels[key]
        posted = channel.post([Part(changed, values)], sending=sending)
        return PostedPiece(channel, posted, self._held)

    def join(self) -> None:
        """Have what is launched next wait for all that has come."""
        self._driver.mark(self._taken, self._stream)
        self._driver.hold(0, self._taken)
        self._held.clear()

    def _channel(self, pieces: Pieces, number: int) -> Channel:
        """Return what posts and takes the rows of a piece."""
        shard = self._shard
        ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
        sent = within(shard.send_lists, pieces.sent[number])
        taken = within(ghosts, pieces.taken[number])
        about = f"rows of ghosts, piece {number + 1} of {len(pieces.words)}"
        numbers = WindowNumbers(self._device, beside=self._numbers)
        given = self._engine, self._device, about, numbers
        made = Channel(sent, taken, *given)
        made.stream = self._launched_on
        return made


class PostedPiece:
    """Rows of a piece that are on their way; `finish` returns the ghosts that come.

    They are there behind `WindowPieces.join`.
    """

    def __init__(self, channel: Channel, posted: Posted, held: list[Words]) -> None:
        self._channel, self._posted, self._held = channel, posted, held

    def finish(self) -> Words:
        """Take what the others have posted."""
        came: Words = self._channel.take(self._posted).first
        self._held.append(came)
        return came
