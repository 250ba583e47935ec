"""Entries of edges that other ranks own: when they are sent, and which of them.

What edge functions have written waits at its owner until a phase reads it at the
reverse of an edge, or at an edge out of a vertex. An entry that arrives is stored for
the next superstep, too: so both buffers have the same ghosts, wherever none waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes, store
from featgraph.fold.plan.plan import FoldPlan
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.members import packed, unpacked
from featgraph.runtime.devices.protocol import Array, Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["EdgeGhosts", "send_waiting"]

Words = Any
#: Which of the own edges that other ranks have as ghosts.
Mask = npt.NDArray[np.bool_]


class EdgeGhosts:
    """The ghosts of edges that the kernels of a plan read.

    Parameters
    ----------
    plan : FoldPlan
    edges : PartEdges
    engine : Engine
    device : Device
    """

    def __init__(
        self, plan: FoldPlan, edges: PartEdges, engine: Engine, device: Device
    ) -> None:
        self._halos = [halo.edges for halo in plan.facts.halos]
        self._ahead = {name for halo in self._halos for name in halo.reads_next}
        self._edges, self._engine, self._device = edges, engine, device
        #: Property -> edges that may have been written for the next superstep.
        self._written: dict[str, Mask] = {}

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Bring entries up to date that a phase reads."""
        names = [n for n in self._halos[number].reads if n in buffers.unsent]
        send_waiting(self._edges, self._engine, buffers, names)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Bring ``_next`` entries up to date that a phase reads: all of them."""
        names = self._halos[number].reads_next
        if names:
            arrays = [buffers.next_of(name) for name in names]
            none = [None] * len(arrays)
            _share(self._edges, self._engine, arrays, self._all(), none)

    def note(self, buffers: Buffers, number: int, sources: Words) -> None:
        """Remember what a phase has written, on out-edges of sources."""
        halo = self._halos[number]
        if not (halo.writes or halo.writes_next):
            return
        members = unpacked(self._device.download(sources))
        mask = members[self._edges.sources]
        for known, names in (
            (buffers.unsent, halo.writes),
            (self._written, halo.writes_next),
        ):
            for name in names:
                known[name] = known[name] | mask if name in known else mask

    def announce(self, buffers: Buffers) -> None:
        """Remember what was committed: entries that are not what they were."""
        written, self._written = self._written, {}
        for name, mask in written.items():
            known = buffers.unsent.get(name)
            if name in self._ahead:  # what others have had of it may not be committed
                changed = self._all()
            else:
                changed = self._changed(buffers, name, mask)
            buffers.unsent[name] = changed if known is None else known | changed

    def _all(self) -> Mask:
        return np.ones(self._edges.sent.size, np.bool_)

    def _changed(self, buffers: Buffers, name: str, mask: Mask) -> Mask:
        """Return those of some edges whose entries differ from what they were."""
        if isinstance(buffers.stale[name], str):  # nobody knows what they were
            return mask
        at = np.flatnonzero(mask)
        ids = self._edges.sent[at]
        now, before = buffers.property(name)[ids], buffers.next[name][ids]
        differs = (_bytes(now) != _bytes(before)).any(axis=1)
        changed = np.zeros_like(mask)
        changed[at[differs]] = True
        return changed


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return rows as bytes: 0.0 and -0.0 are not the same."""
    shape = rows.shape[0], row_bytes([rows])[0]
    found: npt.NDArray[np.uint8] = rows.reshape(-1).view(np.uint8).reshape(shape)
    return found


def send_waiting(
    edges: PartEdges, engine: Engine, buffers: Buffers, names: Sequence[str]
) -> None:
    """Send what was written of some properties since other ranks have had it."""
    if names:
        changed = reduce(np.logical_or, [buffers.unsent.pop(n) for n in names])
        arrays = [buffers.property(name) for name in names]
        others = [buffers.next.get(name) for name in names]
        _share(edges, engine, arrays, changed, others)


def _share(
    edges: PartEdges,
    engine: Engine,
    arrays: Sequence[Array],
    changed: Mask,
    others: Sequence[Array | None],
) -> None:
    """Send entries of own edges to the ranks that have them as ghosts.

    Parameters
    ----------
    edges : PartEdges
    engine : Engine
    arrays : sequence of array
        Buffers of properties, in which the entries of ghosts are replaced.
    changed : mask
        Which of `edges.sent` to send.
    others : sequence of array or None
        For each property another buffer in which they are replaced.
    """
    sizes, messages = row_bytes(arrays), []
    for link, (begin, end) in zip(edges.links, edges.bounds, strict=True):
        listed = SendList(np.arange(end - begin, dtype=np.int32), end - begin)
        chosen = choose(listed, packed(changed[begin:end]), sizes)
        messages.append(encode(link, chosen, arrays))
    received = engine.all_to_allv(messages, about="entries of edges")
    for message, (first, taken) in zip(received, edges.taken, strict=True):
        arrived = decode(taken, message, arrays)
        store(arrived, arrays, first)
        for rows, other in zip(arrived.rows, others, strict=True):
            if other is not None:
                other[first + arrived.positions] = rows
