"""Rows and numbers that ranks store into each other's windows, without the host.

See docs/design/0055-windows.md and 0064: a rank posts, by a kernel that stores at all
others, and takes, by one that waits for what they have posted. How much that is stays
on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.distributed.rows.messages import does_not_fit
from featgraph.errors import DivergenceError
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.gpu import window_kernels as kernels
from featgraph.ranks.gpu.kernels import mark_used
from featgraph.ranks.gpu.links import BLOCK
from featgraph.ranks.gpu.messages import as_rows
from featgraph.ranks.gpu.window_channel import Channel, Others, Part, Posted
from featgraph.ranks.gpu.window_numbers import WindowNumbers
from featgraph.ranks.outboxes import identity
from featgraph.runtime.devices.protocol import Device

__all__ = ["WindowRows"]

Words = Any
#: Vertices, and the values of properties whose rows are sent.
Pair = tuple[Words, Sequence[DeviceValues]]


class WindowRows:
    """Hands rows to other ranks through windows: a `Carrier`.

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
        #: Whether what this rank works is timed, superstep by superstep.
        self.is_timed = False
        #: What reals were rounded to last.
        self._wire: str | None = None
        #: The set whose count is where sets are counted, until that is asked for: as
        #: long as it is held, its memory is no other set's.
        self._counted: Words | None = None
        #: What has posted what is known behind a superstep.
        self._told: Channel

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`.

        Numbers that wait go with them.
        """
        self._wire = sending.wire_dtype or self._wire
        channel = self._rows(sending)
        return channel.take(
            channel.post([Part(changed, values)], sending=sending)
        ).first

    def post_told(
        self, told: Pair, waiting: Pair | None, sending: Sending = AS_FITS
    ) -> Posted:
        """Store what is known behind a superstep: see `Together`."""
        self._wire = sending.wire_dtype or self._wire
        parts = [Part(*told)] if waiting is None else [Part(*told), Part(*waiting)]
        self._told = self._rows(sending)
        return self._told.post(parts, counts=True, sending=sending)

    def take_told(self, posted: Posted, others: Others = ()) -> tuple[Words, Words]:
        """Take what others have stored: see `Together`."""
        told, came = self._told.take(posted, others=others)
        self._counted = told
        return told, came

    def rounding_error(self, number: int) -> DivergenceError | None:
        """Return the error for a count that says that a value did not fit, or None."""
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
        """Have what is launched from here on be timed, but for its waits."""
        self.is_timed = True
        self._launch(kernels.begin_clock, 1, 32, (self.numbers.notes,))

    def worked_ns(self) -> int:
        """Return how long this rank has worked since, up to the last exchange."""
        self.is_timed = False
        return int(self._device.download(self.numbers.notes)[kernels.WORK])

    def settle(self) -> None:
        """Combine the numbers that wait."""
        if self.numbers.any_wait:
            self._ghosts.take(self._ghosts.post([]))

    def leave_known(self, words: Words) -> bool:
        """Leave how many vertices a set has, where sets are counted, if that was told.

        It is told once. Numbers that wait are combined then, too.
        """
        counted, self._counted = self._counted, None
        if counted is not words:
            return False
        self.settle()
        return True

    def leave_count(self, words: Words) -> None:
        """Leave how many vertices sets of all ranks have together."""
        own = self._device.own  # type: ignore[attr-defined]
        self._device.sets.leave_count(words, ())  # type: ignore[attr-defined]
        self.numbers.add(own.total, "sum", 1)
        self._ghosts.take(self._ghosts.post([]), told=own.total)

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Carrier`."""
        rows, channel = mirror.array.shape[0], self._mirrors
        posted = channel.post([Part(changed, [values])], rows=rows)
        channel.take(posted, [mirror])

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        self._device.fill(outbox.array, identity(operation, outbox.dtype))

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`."""
        used = self._device.sets.empty(-(-outbox.array.shape[0] // 32))
        nothing = outbox.dtype.type(identity(operation, outbox.dtype))
        width = math.prod(outbox.shape[1:])
        blocks = -(-int(used.size) * 32 // BLOCK)
        given = as_rows(outbox.array), width, nothing, used
        self._launch(mark_used, blocks, BLOCK, given)
        reached = self._device.sets.empty(self._word_count)
        posted = self._outboxes.post([Part(used, [outbox])])
        self._outboxes.combine(values, posted, reached, operation)
        return reached

    def _rows(self, sending: Sending) -> Channel:
        """Return what rows of ghosts go through: as "all", with all others."""
        return self._everything if sending.exchange == "all" else self._ghosts

    @cached_property
    def _everything(self) -> Channel:
        """All vertices of a rank for each other, of which it takes its ghosts."""
        shard, engine = self._shard, self._engine
        cuts = shard.partition.cuts
        sent = [np.arange(shard.own, dtype=np.int32)] * engine.size
        sent[engine.rank] = sent[engine.rank][:0]
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
        shard = self._shard
        ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
        return Channel(
            shard.send_lists, ghosts, self._engine, self._device, "rows of ghosts",
            self.numbers,
        )  # fmt: skip

    @cached_property
    def _mirrors(self) -> Channel:
        """Own vertices for each rank, and those of each by the user's numbers."""
        own = [np.arange(self._shard.own)] * self._engine.size
        owned = self._owned()
        numbers = WindowNumbers(self._device, beside=self.numbers)
        return Channel(own, owned, self._engine, self._device, "a mirror", numbers)

    @cached_property
    def _outboxes(self) -> Channel:
        """All vertices by their owners, and own ones for each rank."""
        own = [np.arange(self._shard.own)] * self._engine.size
        given = self._engine, self._device, "atomic operations"
        numbers = WindowNumbers(self._device, beside=self.numbers)
        return Channel(self._owned(), own, *given, numbers)

    def _owned(self) -> list[npt.NDArray[Any]]:
        """Return the user's numbers of each rank's vertices."""
        partition = self._shard.partition
        order = partition.order
        numbers = np.arange(partition.cuts[-1]) if order is None else order
        return [numbers[slice(*pair)] for pair in pairwise(partition.cuts)]
