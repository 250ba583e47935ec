"""Entries of cut edges in memory of the host: packed, handed over and stored there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Array, Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending, SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes, store
from featgraph.ranks.lists import Lists
from featgraph.ranks.members import packed, unpacked
from featgraph.ranks.outboxes import combine_rows, identity, in_outbox
from featgraph.runtime.devices.protocol import Device, Words

__all__ = ["HostEdges"]

#: What an edge's state is where it has passed: see `BoundState.edge_state`.
PASSED = 2
#: A truth value for each of `Lists.every`.
Mask = npt.NDArray[np.bool_]


class HostEdges:
    """Hands entries of edges to other ranks and takes theirs: an `EdgeCarrier`.

    Parameters
    ----------
    lists : Lists
    engine : Engine
    device : CpuDevice
    forms : Counter of str
        Where messages are counted, by their form.
    """

    def __init__(
        self,
        lists: Lists,
        engine: Engine,
        device: Device,
        forms: Counter[str],
    ) -> None:
        self._lists, self._engine, self._device = lists, engine, device
        self._forms = forms

    def all(self) -> Mask:
        """Mark all of them."""
        return np.ones(self._lists.every.size, np.bool_)

    def out_of(self, sources: Words) -> Mask:
        """Mark those that lead out of some vertices."""
        members = unpacked(self._device.download(sources))
        found: Mask = members[self._lists.sources]
        return found

    def marked(self, members: Words, also: Mask | None = None) -> Mask:
        """Mark those of a set of own edges, beside others."""
        found: Mask = unpacked(members)[self._lists.every]
        return found if also is None else found | also

    def passed(self, state: Array, wide: Array, also: Mask | None) -> Mask:
        """Mark those that passed, beside others: see `EdgeCarrier`."""
        own = self._lists.own
        wide.fill(0)
        np.copyto(wide[:own], PASSED, where=state[:own] == PASSED)
        found: Mask = wide[self._lists.every] == PASSED
        return found if also is None else found | also

    def union(self, a: Mask, b: Mask) -> Mask:
        """Return what either has."""
        return a | b

    def that_differ(self, marks: Mask, now: Array, before: Array) -> Mask:
        """Return those of some edges whose bytes differ between two buffers."""
        at = np.flatnonzero(marks)
        ids = self._lists.every[at]
        differs = (_bytes(now[ids]) != _bytes(before[ids])).any(axis=1)
        found = np.zeros_like(marks)
        found[at[differs]] = True
        return found

    def share(
        self,
        values: Sequence[Array],
        marks: Mask,
        others: Sequence[Array | None],
        sending: Sending = AS_FITS,
    ) -> None:
        """Send entries of own edges to the ranks that have them: see `EdgeCarrier`."""
        lists, sizes, messages = self._lists, row_bytes(values), []
        both = zip(lists.links, lists.bounds, strict=True)
        # An owner's own edges are no range that a receiver could take: only its list.
        form = "ms" if sending.exchange == "all" else sending.exchange
        for rank, (link, (begin, end)) in enumerate(both):
            listed = SendList(np.arange(end - begin, dtype=np.int32), end - begin)
            chosen = choose(listed, packed(marks[begin:end]), sizes, form)
            messages.append(encode(link, chosen, values))
            self._forms[chosen.form] += rank != self._engine.rank
        received = self._engine.all_to_allv(messages, about="entries of edges")
        for message, taken in zip(received, lists.taken, strict=True):
            arrived = decode(SendList(_places(taken.size), taken.size), message, values)
            there = replace(arrived, positions=taken[arrived.positions])
            store(there, values, 0)
            for rows, other in zip(arrived.rows, others, strict=True):
                if other is not None:
                    other[there.positions] = rows

    def empty_outbox(self, outbox: Array, operation: str) -> None:
        """Make all entries such that combining them changes nothing."""
        outbox.fill(identity(operation, outbox.dtype))

    def deliver(self, outbox: Array, values: Array, operation: str) -> Words:
        """Combine the entries of an outbox at their owners: see `EdgeCarrier`.

        What ranks have is combined in their order.
        """
        lists, rank = self._lists, self._engine.rank
        there, here = list(lists.taken), list(lists.sent)
        there[rank] = here[rank] = _places(lists.own)
        messages = [in_outbox(outbox[places], operation) for places in there]
        received = self._engine.all_to_allv(messages, about="entries of outboxes")
        reached = np.zeros(lists.count, np.bool_)
        for message, places in zip(received, here, strict=True):
            rows = values[places]
            changed = combine_rows(message, rows, operation)
            values[places] = rows
            reached[places[changed]] = True
        return self._device.sets.upload(packed(reached))


def _places(count: int) -> npt.NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return rows as bytes: 0.0 and -0.0 are not the same."""
    shape = rows.shape[0], row_bytes([rows])[0]
    found: npt.NDArray[np.uint8] = rows.reshape(-1).view(np.uint8).reshape(shape)
    return found
