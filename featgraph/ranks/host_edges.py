"""Entries of cut edges in memory of the host: packed, handed over and stored there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Array, Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending, SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes, store
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.members import packed, unpacked
from featgraph.ranks.outboxes import combine_rows, identity, in_outbox
from featgraph.runtime.devices.protocol import Device, Words

__all__ = ["HostEdges"]

#: A truth value for each of `PartEdges.sent`.
Mask = npt.NDArray[np.bool_]


class HostEdges:
    """Hands entries of edges to other ranks and takes theirs: an `EdgeCarrier`.

    Parameters
    ----------
    edges : PartEdges
    engine : Engine
    device : CpuDevice
    forms : Counter of str
        Where messages are counted, by their form.
    """

    def __init__(
        self,
        edges: PartEdges,
        engine: Engine,
        device: Device,
        forms: Counter[str],
    ) -> None:
        self._edges, self._engine, self._device = edges, engine, device
        self._forms = forms

    def all(self) -> Mask:
        """Mark all of them."""
        return np.ones(self._edges.sent.size, np.bool_)

    def out_of(self, sources: Words) -> Mask:
        """Mark those that lead out of some vertices."""
        members = unpacked(self._device.download(sources))
        found: Mask = members[self._edges.sources]
        return found

    def marked(self, members: Mask) -> Mask:
        """Mark those of a mask of own edges."""
        found: Mask = members[self._edges.sent]
        return found

    def union(self, a: Mask, b: Mask) -> Mask:
        """Return what either has."""
        return a | b

    def that_differ(self, marks: Mask, now: Array, before: Array) -> Mask:
        """Return those of some edges whose bytes differ between two buffers."""
        at = np.flatnonzero(marks)
        ids = self._edges.sent[at]
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
        edges, sizes, messages = self._edges, row_bytes(values), []
        both = zip(edges.links, edges.bounds, strict=True)
        # An owner's own edges are no range that a receiver could take: only its list.
        form = "ms" if sending.exchange == "all" else sending.exchange
        for rank, (link, (begin, end)) in enumerate(both):
            listed = SendList(np.arange(end - begin, dtype=np.int32), end - begin)
            chosen = choose(listed, packed(marks[begin:end]), sizes, form)
            messages.append(encode(link, chosen, values))
            self._forms[chosen.form] += rank != self._engine.rank
        received = self._engine.all_to_allv(messages, about="entries of edges")
        for message, (first, taken) in zip(received, edges.taken, strict=True):
            arrived = decode(taken, message, values)
            store(arrived, values, first)
            for rows, other in zip(arrived.rows, others, strict=True):
                if other is not None:
                    other[first + arrived.positions] = rows

    def empty_outbox(self, outbox: Array, operation: str) -> None:
        """Make all entries such that combining them changes nothing."""
        outbox.fill(identity(operation, outbox.dtype))

    def deliver(self, outbox: Array, values: Array, operation: str) -> Mask:
        """Combine the entries of an outbox at the owners of edges: see `EdgeCarrier`.

        What ranks have is combined in their order.
        """
        edges, rank = self._edges, self._engine.rank
        ghosts = [slice(b, b + taken.numbers.size) for b, taken in edges.taken]
        ghosts[rank] = slice(0, edges.own)
        messages = [in_outbox(outbox[rows], operation) for rows in ghosts]
        received = self._engine.all_to_allv(messages, about="atomics at twins")
        reached = np.zeros(edges.own, np.bool_)
        for number, message in enumerate(received):
            ids = (
                np.arange(edges.own) if number == rank else edges.links[number].numbers
            )
            rows = values[ids]
            changed = combine_rows(message, rows, operation)
            values[ids] = rows
            reached[ids[changed]] = True
        return reached[edges.sent]


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return rows as bytes: 0.0 and -0.0 are not the same."""
    shape = rows.shape[0], row_bytes([rows])[0]
    found: npt.NDArray[np.uint8] = rows.reshape(-1).view(np.uint8).reshape(shape)
    return found
