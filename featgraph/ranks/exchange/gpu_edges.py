"""Exchange of edge entries on the GPU: packed, sent, stored and combined there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import DeviceValues, name_of
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange import gpu_edge_kernels as kernels
from featgraph.ranks.exchange.gpu_kernels import mark_used
from featgraph.ranks.exchange.gpu_links import BLOCK, EdgeLinks, GpuLinks, blocks_for
from featgraph.ranks.exchange.gpu_messages import Entries, as_rows
from featgraph.ranks.exchange.gpu_row_copies import OPERATIONS
from featgraph.ranks.exchange.lists import Lists
from featgraph.ranks.exchange.outboxes import identity
from featgraph.ranks.exchange.row_forms import AS_FITS, Sending
from featgraph.ranks.exchange.window_channel import Channel, Part
from featgraph.ranks.exchange.window_numbers import WindowNumbers
from featgraph.runtime.devices.protocol import Device

__all__ = ["GpuEdges"]

Array = Any
Words = Any
#: Kernels over lists index edges by int32.
_MOST_EDGES = 1 << 31
_ABOUT, _ABOUT_OUTBOXES = "entries of edges", "entries of outboxes"


class GpuEdges:
    """Exchange of entries of edges with other ranks: an `EdgeCarrier`.

    Marks are words with a bit for each edge of the lists of all ranks; each list begins
    at a whole word.

    Parameters
    ----------
    lists : Lists
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
        lists: Lists,
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
            self._channel = Channel(lists.sent, lists.taken, *given, are_places=True)
        self._count = int(self._sent.bits.size)

    @cached_property
    def _taken(self) -> EdgeLinks:
        return EdgeLinks(self._lists.taken, self._device)

    @cached_property
    def _sources(self) -> Array:
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
        """Mark the edges that passed, and those of `also`: see `EdgeCarrier`."""
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
        """Send entries of own edges to the ranks with ghosts: see `EdgeCarrier`."""
        if self._channel is not None:
            if sending.exchange == "all":
                sending = replace(sending, exchange="ms")
            posted = self._channel.post([Part(marks, values)], sending=sending)
            self._channel.take(posted, values, others=others)
            return
        entries = [Entries.of(one) for one in values]
        stored = [None if one is None else Entries.of(one) for one in others]
        links = self._sent, self._taken
        scatter = self._rows.packer.scatter
        for came in self._rows.swap(links, entries, marks, _ABOUT, sending):
            firsts = came.outline.firsts
            for first, *buffers in zip(firsts, entries, stored, strict=True):
                for own in buffers:
                    if own is not None:
                        listed, count = came.listed, came.count
                        scatter(came.message, first, own, listed, count)

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Set all entries to the identity of the operation."""
        self._device.fill(outbox.array, identity(operation, outbox.dtype))

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeCarrier`.

        Contributions are combined in the order of ranks.
        """
        return self._returns.deliver(outbox, values, operation)

    @cached_property
    def _returns(self) -> _Returns:
        return _Returns(self._lists, self._rows, self._device, self._windows)


class _Returns:
    """The exchange of outboxes: entries combined on other ranks return to their owners.

    They arrive in memory of their own, by rank, and are combined from there. So each
    entry is combined in the order of ranks, whichever ranks contribute.

    Parameters
    ----------
    lists, rows, device, windows
        As for `GpuEdges`.
    """

    def __init__(
        self,
        lists: Lists,
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
            self._links = tuple(GpuLinks(one, device) for one in (lists.taken, places))
            rank = rows.rank
        else:
            engine, beside = windows
            numbers = WindowNumbers(device, beside=beside)
            told = engine, device, _ABOUT_OUTBOXES, numbers
            self._channel, rank = Channel(lists.taken, places, *told), engine.rank
        begins, listed = _by_entry(lists, rank)
        self._begins, self._listed = device.upload(begins), device.upload(listed)
        #: Memory for entries that arrive, by shape and dtype.
        self._memory: dict[Any, DeviceValues] = {}

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeCarrier`."""
        lists, sets = self._lists, self._device.sets
        box, landed = as_rows(outbox.array), self._memory_of(outbox)
        width = math.prod(outbox.shape[1:])
        nothing = outbox.dtype.type(identity(operation, outbox.dtype))
        used = sets.empty(max(-(-lists.count // 32), 1))
        if lists.count:
            blocks = blocks_for(32 * int(used.size))
            self._launch(mark_used, blocks, BLOCK, (box, width, nothing, used))
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
        entries, there = [Entries.of(outbox)], Entries.of(landed)
        packer = self._rows.packer
        for one in self._rows.swap(self._links, entries, used, _ABOUT_OUTBOXES):
            first = one.outline.firsts[0]
            packer.scatter(one.message, first, there, one.listed, one.count)
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
    lists: Lists, rank: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the positions of own entries among those that arrive, as offsets and list.

    The position is -1 in the list of this rank itself.
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
