"""Exchange of ghost rows on a GPU with ranks on GPUs and CPUs.

Messages of a GPU and of the host have different layouts for the same data: a set of
entries of a list, and their rows. Messages of a GPU are translated on its host, and
sent as those of a rank on the CPU (`featgraph.ranks.exchange.row_messages`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.errors import DivergenceError
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Beside, Engine
from featgraph.ranks.exchange.boundary import Boundary
from featgraph.ranks.exchange.gpu_edges import GpuEdges
from featgraph.ranks.exchange.gpu_links import GpuLinks
from featgraph.ranks.exchange.gpu_messages import Entries, Outline
from featgraph.ranks.exchange.gpu_rows import GpuRows
from featgraph.ranks.exchange.gpu_through_host import ThroughHost
from featgraph.ranks.exchange.host_rows import MIRROR, ROWS, about_rows
from featgraph.ranks.exchange.lists import Lists
from featgraph.ranks.exchange.members import packed, unpacked
from featgraph.ranks.exchange.row_forms import (
    AS_FITS,
    Chosen,
    Sending,
    SendList,
    choose,
)
from featgraph.ranks.exchange.row_messages import Arrived, decode, encode, row_bytes
from featgraph.runtime.devices.protocol import Device

__all__ = ["TranslatedRows"]

Words = Any


class TranslatedRows:
    """Exchange of rows of a GPU with ranks of any target: a `Carrier`.

    Rows are packed and stored on the GPU, and sent as messages of the host. They are
    not sent during sweeps; numbers are combined by the host.

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
    """

    together = None
    sends_behind, sent_behind = False, 0
    clock = staticmethod(time.perf_counter)

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        self.boundary = Boundary(shard, engine, device)
        self.deliver, self.empty_outbox = self._rows.deliver, self._rows.empty_outbox
        self.collect = self._rows.collect

    @cached_property
    def _rows(self) -> GpuRows:
        given = self._shard, self._engine, self._device, self.forms
        return GpuRows(*given, post=HostMessages(*given[1:]))

    def require(self, sending: Sending) -> None:
        """Do nothing: `check_plan` has checked the options."""

    def wire_s(self, row_bytes: int) -> float:
        """Return 0: no rows are sent during sweeps."""
        return 0.0

    def over(self, lists: Lists, stays: bool = True) -> GpuEdges:
        """Return the exchange of the entries of some lists of edges."""
        return self._rows.over(lists)

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Carrier`."""
        return self._rows.share(values, changed, sending)


Array = Any
Bytes = npt.NDArray[np.uint8]
_NONE = Outline.of("none", 0, 0, ())


class HostMessages:
    """Exchange of messages of a GPU with ranks of any target: a `Post`.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    forms : Counter of str
        The counter of messages, by form.
    """

    def __init__(self, engine: Engine, device: Device, forms: Counter[str]) -> None:
        self._engine, self._device, self._forms = engine, device, forms
        self._through = ThroughHost(engine, device)
        self._lists: dict[int, SendList] = {}

    def hand_over(
        self,
        sent: Sequence[tuple[Outline, Array | None]],
        links: tuple[GpuLinks, GpuLinks],
        entries: Sequence[Entries],
        about: str,
        sending: Sending,
        beside: Beside | None = None,
    ) -> list[tuple[Outline, Array | None]]:
        """Send a message to each rank; return the received ones: see `Post`."""
        own = self._engine.rank
        outlines, arrays = ([*each] for each in zip(*sent, strict=True))
        kept, outlines[own], arrays[own] = sent[own], _NONE, None
        fetched = self._through.fetch(arrays)
        made = [
            _made_of(outline, landed, self._whole(size), entries, sending)
            for outline, landed, size in zip(
                outlines, fetched, links[0].sizes, strict=True
            )
        ]
        self._forms.update(m.chosen.form for r, m in enumerate(made) if r != own)
        sizes = links[1].sizes
        most = [most_bytes(size, entries) * (r != own) for r, size in enumerate(sizes)]
        room = self._through.room(most)
        came: dict[int, tuple[Outline, Bytes]] = {}
        like = [np.empty((0, one.width), one.dtype) for one in entries]

        def read(rank: int, message: Bytes) -> None:
            if rank != own:
                link = self._whole(sizes[rank])
                arrived = decode(link, message, like, sending.wire_dtype)
                came[rank] = write_arrived(arrived, link.size, entries, room[rank])

        self._swap(made, read, about, sending)
        found = {rank: self._uploaded(*one) for rank, one in came.items()}
        return [kept if r == own else found[r] for r in range(len(sent))]

    def _whole(self, size: int) -> SendList:
        """Return the list of the indices 0 to size - 1."""
        known = self._lists.get(size)
        if known is None:
            known = SendList(np.arange(size, dtype=np.int32), size)
            self._lists[size] = known
        return known

    def _uploaded(self, outline: Outline, message: Bytes) -> Any:
        if not message.size:
            return outline, None
        array = self._device.empty((message.size,), "uint8")
        self._through.put(message, array)
        return outline, array

    def _swap(
        self,
        made: Sequence[_Made],
        read: Callable[[int, Bytes], None],
        about: str,
        sending: Sending,
    ) -> None:
        """Exchange messages by the same engine call as ranks on the CPU."""
        if about not in {ROWS, MIRROR}:
            received = self._engine.all_to_allv([m.write() for m in made], about=about)
            for rank, message in enumerate(received):
                read(rank, message)
            return
        failed: list[DivergenceError] = []

        def write(rank: int, message: Bytes) -> None:
            try:
                made[rank].write(message)
            except DivergenceError as error:  # raised when the message is sent
                failed.append(error)

        counts = [one.chosen.nbytes for one in made]
        self._engine.begin_bytes(
            counts, write, read, about=about_rows(sending, about)
        ).finish()
        if failed:
            raise failed[0]


class _Made:
    """A message for one rank, before it is written.

    Parameters
    ----------
    chosen : Chosen
    link : SendList
        The index of the row of each entry of the list that is sent.
    rows : list of array
        Rows by property.
    wire_dtype : str or None
    """

    def __init__(
        self,
        chosen: Chosen,
        link: SendList,
        rows: list[Array],
        wire_dtype: str | None,
    ) -> None:
        self.chosen = chosen
        self._link, self._rows, self._wire = link, rows, wire_dtype

    def write(self, message: Bytes | None = None) -> Bytes:
        """Write the message to `message`, or to new memory; return it."""
        return encode(self._link, self.chosen, self._rows, message, self._wire)


def _made_of(
    outline: Outline,
    message: Bytes,
    whole: SendList,
    entries: Sequence[Entries],
    sending: Sending,
) -> _Made:
    """Return the host's message for a rank, from one fetched from the GPU.

    `whole` lists the indices of all entries.
    """
    rows = [
        message[first * one.item :][: outline.count * one.width * one.item]
        .view(one.dtype)
        .reshape(outline.count, one.width)
        for one, first in zip(
            entries, outline.firsts or [0] * len(entries), strict=True
        )
    ]
    link, size = whole, whole.size
    if outline.form == "ms":
        changed = packed(np.ones(size, np.bool_))
    else:
        words = message[: 4 * outline.words].view(np.uint32)
        changed = words
        if outline.form == "vr-list":
            mask = np.zeros(size, np.bool_)
            mask[words] = True
            changed = packed(mask)
        elif outline.form == "none":
            changed = packed(np.zeros(size, np.bool_))
        # The rows of the sent entries are contiguous.
        numbers = np.cumsum(unpacked(changed)[:size], dtype=np.int32)
        np.maximum(numbers - 1, 0, out=numbers)
        link = SendList(numbers, max(outline.count, 1))
    sizes, wire = row_bytes(rows, sending.wire_dtype), sending.wire_dtype
    chosen = choose(whole, changed, sizes, sending.exchange)
    return _Made(chosen, link, rows, wire)


def write_arrived(
    arrived: Arrived, size: int, entries: Sequence[Entries], room: Bytes
) -> tuple[Outline, Bytes]:
    """Write received rows as a message for the GPU; return its outline and bytes."""
    positions = arrived.positions
    outline = Outline.choose(positions.size, size, entries)
    message = room[: outline.nbytes]
    words = message[: 4 * outline.words].view(np.uint32)
    if outline.form == "vr":
        mask = np.zeros(size, np.bool_)
        mask[positions] = True
        words[:] = packed(mask)
    elif outline.form == "vr-list":
        words[:] = positions
    firsts = outline.firsts if outline.count else ()
    for one, rows, first in zip(entries, arrived.rows, firsts, strict=False):
        part = message[first * one.item :][: rows.nbytes].view(one.dtype)
        part.reshape(rows.shape)[:] = rows
    return outline, message


def most_bytes(size: int, entries: Sequence[Entries]) -> int:
    """Return the most bytes of a message of a list of `size` entries, in any form."""
    return Outline.of("vr", size, -(-size // 32), entries).nbytes
