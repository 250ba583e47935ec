"""Exchange of ghost rows as messages between GPUs: packed and stored there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.engines.protocol import Beside, Engine, GpuEngine
from featgraph.ranks.exchange import gpu_kernels
from featgraph.ranks.exchange.gpu_edges import GpuEdges
from featgraph.ranks.exchange.gpu_links import GpuLinks, blocks_for
from featgraph.ranks.exchange.gpu_messages import Entries, Outline, as_rows
from featgraph.ranks.exchange.gpu_packing import Came, Packer
from featgraph.ranks.exchange.gpu_row_copies import OPERATIONS
from featgraph.ranks.exchange.gpu_through_host import ThroughHost, courier_of
from featgraph.ranks.exchange.host_rows import MIRROR
from featgraph.ranks.exchange.lists import Lists
from featgraph.ranks.exchange.outboxes import identity
from featgraph.ranks.exchange.row_forms import AS_FITS, Sending
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.recording.cuda_trace import OPAQUE

__all__ = ["GpuRows", "lists_of"]

Array = Any
Words = Any
Numbers = list[npt.NDArray[np.integer]]


class GpuRows:
    """Exchange of rows with other ranks as messages: a `Carrier`.

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

    def over(self, lists: Lists) -> GpuEdges:
        """Return the exchange of the entries of some lists of edges."""
        return GpuEdges(lists, self, self._device)

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Carrier`."""
        entries = [Entries.of(one) for one in values]
        ghosts = self._device.sets.empty(self._word_count)
        links = self._sent, self._taken
        for came in self.swap(links, entries, changed, "rows of ghosts", sending):
            self.packer.store(came, entries, ghosts)
        return ghosts

    def collect(
        self, values: DeviceValues, mirror: DeviceValues, changed: Words
    ) -> None:
        """Store rows of own vertices in the mirrors of all ranks: see `Carrier`."""
        own, whole, links = Entries.of(values), Entries.of(mirror), self._ends[::-1]
        for came in self.swap(links, [own], changed, MIRROR):
            [first] = came.outline.firsts
            self.packer.scatter(came.message, first, whole, came.listed, came.count)

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Set all rows of an outbox to the identity of the operation."""
        self._device.fill(outbox.array, identity(operation, outbox.dtype))

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`.

        Contributions are combined in the order of ranks.
        """
        every, own = Entries.of(outbox), Entries.of(values)
        nothing = identity(operation, outbox.dtype)
        words = self._device.sets.empty(-(-every.array.shape[0] // 32))
        typed, how = as_rows(outbox.array), OPERATIONS.index(operation)
        given = typed, every.width, outbox.dtype.type(nothing), words
        blocks = blocks_for(int(words.size) * 32)
        self.packer.launch(gpu_kernels.mark_used, blocks, given)
        reached = self._device.sets.empty(self._word_count)
        target = as_rows(values.array)
        for came in self.swap(self._ends, [every], words, "atomic operations"):
            rows = came.message.view(outbox.dtype), came.outline.firsts[0], own.width
            blocks = blocks_for(came.count * own.width)
            combined = *rows, *came.listed, came.count, target, how
            self.packer.launch(gpu_kernels.combine_rows, blocks, combined)
            self.packer.add(came, reached)
        return reached

    @cached_property
    def courier(self) -> GpuEngine | ThroughHost:
        """The transport of arrays, determined by all ranks at the first exchange."""
        return courier_of(self._engine, self._device)

    @cached_property
    def _ends(self) -> tuple[GpuLinks, GpuLinks]:
        """Lists of all vertices by owner, and of the own vertices for each rank."""
        partition, shard = self._shard.partition, self._shard
        order = partition.order
        numbers = np.arange(partition.cuts[-1]) if order is None else order
        owned = [numbers[slice(*pair)] for pair in pairwise(partition.cuts)]
        own = [np.arange(shard.own)] * self._engine.size
        return GpuLinks(owned, self._device), GpuLinks(own, self._device)

    def swap(
        self,
        links: tuple[GpuLinks, GpuLinks],
        entries: Sequence[Entries],
        changed: Words,
        about: str,
        sending: Sending = AS_FITS,
    ) -> Iterator[Came]:
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
    ) -> Iterator[Came]:
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
        self._device.driver.note(*OPAQUE)  # type: ignore[attr-defined]
        self._forms.update(o.form for r, o in enumerate(outlines) if r != self.rank)
        told = self._engine.all_to_allv([o.told for o in outlines], about=about)
        pairs = zip(told, taken.sizes, strict=True)
        coming = [Outline.read(one, size, entries) for one, size in pairs]
        sizes = [outline.nbytes for outline in coming]
        given: dict[str, Any] = {"about": about, "beside": beside}
        received = self.courier.hand_over(messages, sizes, **given)
        for rank, outline in enumerate(coming):
            if outline.count:
                yield packer.came(taken, rank, outline, received[rank])


def lists_of(
    shard: Shard, others: Sequence[bool] | None = None
) -> tuple[Numbers, Numbers]:
    """Return the send lists and the receive lists of ghost rows, by rank.

    With `others`, the lists of all other ranks are empty.
    """
    ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
    sent: Numbers = list(shard.send_lists)
    if others is None:
        return sent, ghosts
    chosen = [
        [one if is_one else one[:0] for one, is_one in zip(of, others, strict=True)]
        for of in (sent, ghosts)
    ]
    return chosen[0], chosen[1]
