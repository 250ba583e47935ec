"""Rows of ghosts in memory of the host: packed, handed over and stored there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from featgraph.distributed.engines.protocol import Array, Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending, SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes, store
from featgraph.errors import DivergenceError
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.host_edges import HostEdges
from featgraph.ranks.joined import join_rows
from featgraph.ranks.members import packed
from featgraph.ranks.outboxes import combine_rows, identity, in_outbox
from featgraph.runtime.devices.protocol import Device

__all__ = ["HostRows"]

Words = Any


class HostRows:
    """Hands rows to other ranks and takes theirs: a `Carrier`.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CpuDevice

    Attributes
    ----------
    forms : Counter of str
        Messages of rows that have been sent, by their form.
    """

    together = None  # ranks of the CPU tell each other one thing after the other

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self.forms: Counter[str] = Counter()
        #: What this rank sends to each rank, and what each sends to this one.
        self._sent = [SendList(numbers, shard.own) for numbers in shard.send_lists]
        self._taken = _lists_taken(shard)

    def require(self, sending: Sending) -> None:
        """Rows are sent in every form."""

    def over(self, edges: PartEdges) -> HostEdges:
        """Return what hands over entries of edges likewise."""
        return HostEdges(edges, self._engine, self._device, self.forms)

    def share(
        self, values: Sequence[Array], changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        wire, failed = sending.wire_dtype, []
        sizes, form = row_bytes(values, wire), sending.exchange
        chosen = [choose(link, changed, sizes, form) for link in self._sent]
        others = (c for r, c in enumerate(chosen) if r != self._engine.rank)
        self.forms.update(one.form for one in others)
        ghosts = np.zeros(self._shard.numbers.size, np.bool_)

        def write(rank: int, message: Array) -> None:
            try:
                encode(self._sent[rank], chosen[rank], values, message, wire)
            except DivergenceError as error:  # the others have a whole message
                failed.append(error)

        def read(rank: int, message: Array) -> None:
            arrived = decode(self._taken[rank], message, values, wire)
            first = int(self._shard.ghosts[rank])
            store(arrived, values, first)
            ghosts[first:][arrived.places] = True

        counts = [one.nbytes for one in chosen]
        about = "rows of ghosts" + ("" if wire is None else f" in {wire}")
        self._engine.hand_bytes(counts, write, read, about=about)
        if failed:
            raise failed[0]
        return self._device.sets.upload(packed(ghosts))

    def collect(self, values: Array, mirror: Array) -> None:
        """Fill the mirror of a property with the rows that each rank owns."""
        own = values[: self._shard.own]
        join_rows(self._engine, self._shard.partition, own, mirror, "a mirror")

    def empty_outbox(self, outbox: Array, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        outbox.fill(identity(operation, outbox.dtype))

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`.

        What ranks have is combined in their order.
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
    """Return the send list of each rank to this one, in that rank's numbers."""
    partition, found = shard.partition, []
    for rank, (begin, end) in enumerate(pairwise(shard.ghosts)):
        places = shard.numbers[begin:end]
        if partition.places is not None:
            places = partition.places[places]
        first, last = partition.cuts[rank : rank + 2]
        numbers = np.ascontiguousarray(places - first, np.int32)
        found.append(SendList(numbers, int(last - first)))
    return found
