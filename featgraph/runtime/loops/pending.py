"""Pending vertices of each foldmap of a run, and those left for the next call.

A vertex is pending for a foldmap if it was committed after the foldmap last ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import resized, word_count
from featgraph.program.following import Seen
from featgraph.program.saved import Left
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import arrays_for
from featgraph.runtime.superstep.catch_up import find_due, warn_of_losses
from featgraph.runtime.superstep.exchange import exchange_of
from featgraph.runtime.superstep.foldmap import FoldMap, as_active, words_on

__all__ = [
    "Pending",
    "announce",
    "begin_pending",
    "host_left",
    "recall_pending",
    "release_pending",
    "store_pending",
]


@dataclass
class Pending:
    """Vertices that one foldmap has not processed yet.

    Attributes
    ----------
    words : words or None
        A, the committed vertices; None if every vertex is due.
    left : words or None
        Due vertices that ``.on`` excluded.
    scalars : tuple or None
        Values of the scalars that the foldmap last read.
    count : int or None
        Upper bound of the size of `words`; None if it is unknown.
    """

    words: Any
    left: Any = None
    scalars: tuple[Any, ...] | None = None
    count: int | None = None

    @property
    def active_count(self) -> int | None:
        """Number of pending vertices, if it is known; None if all are."""
        return None if self.words is None else self.count


@dataclass(eq=False)
class _Left:
    """Pending vertices that a call has left for the next one, on its device."""

    device: Device
    words: Any
    left: Any
    scalars: tuple[Any, ...] | None
    seen: Seen

    def on_host(self) -> Left:
        """Return a copy in host memory."""
        pending = Pending(self.words, self.left, self.scalars)
        return host_left(pending, self.device, self.seen)


def host_left(pending: Pending, device: Device, seen: Seen | None = None) -> Left:
    """Return a copy of pending vertices in host memory."""
    words, left = (
        None if w is None else np.array(device.download(w), np.uint32)
        for w in (pending.words, pending.left)
    )
    return Left(words, left, pending.scalars, seen)


def begin_pending(active: Any, state: State, device: Device, of: int) -> list[Pending]:
    """Return the pending vertices of `of` foldmaps, given the active ones of a call.

    Each has a set of its own. On ranks, the sets are made on the host.
    """
    holder = exchange_of(state.graph, device).holder
    given = as_active(active, state)
    words = words_on(given, state, device)
    count = len(given) if state.graph.living is None else holder.sets.count(words)
    others = [holder.sets.snapshot(words) for _ in range(of - 1)]
    return [Pending(own, count=count) for own in (words, *others)]


def recall_pending(
    foldmap: FoldMap, state: State, device: Device, plan: FoldPlan
) -> Pending:
    """Return the pending vertices that an earlier call left, and those due since.

    All vertices, if there was no call.
    """
    version, entries = state.left
    if version != state.version:
        return Pending(None)
    known = entries.get(_key(foldmap, entries))
    if known is None:
        return Pending(None)
    pending = _recalled(known, state, device)
    if pending.words is not None and known.seen != state.follow():
        _catch_up(pending, plan, state, device, known.seen)
    return pending


def _catch_up(
    pending: Pending, plan: FoldPlan, state: State, device: Device, since: Seen
) -> None:
    """Add the vertices that have become due since a version of the graph, and puts."""
    added = find_due(plan, state, since)
    warn_of_losses(plan, state, since)
    if added is None or added.everything:
        pending.words, pending.left, pending.count = None, None, None
        return
    active, due = added.sets(plan, state, device)
    sets, living = device.sets, arrays_for(state, device).everyone.words
    pending.words = sets.intersection(sets.union(pending.words, active), living)
    pending.count = sets.count(pending.words)
    if due is not None:
        due = due if pending.left is None else sets.union(pending.left, due)
    due = pending.left if due is None else due
    pending.left = None if due is None else sets.intersection(due, living)


def _recalled(known: Any, state: State, device: Device) -> Pending:
    """Return the pending vertices that an earlier call left, on a device."""
    room = word_count(arrays_for(state, device).vertex_count)
    sets = known.words, known.left
    if isinstance(known, _Left):
        if known.device is device and all(w is None or w.size == room for w in sets):
            return Pending(*sets, known.scalars)
        known = known.on_host()
    words, left = (  # from a copy, another process, or a graph of another capacity
        None if w is None else device.sets.upload(resized(w, room))
        for w in (known.words, known.left)
    )
    return Pending(words, left, known.scalars)


def _key(foldmap: FoldMap, entries: dict[Any, Any]) -> Any:
    """Return the key of a foldmap in a State: itself, or the digest of its program."""
    is_named = foldmap.base not in entries and any(isinstance(k, str) for k in entries)
    return foldmap.program.digest if is_named else foldmap.base


def release_pending(foldmaps: Sequence[FoldMap], state: State) -> None:
    """Drop the sets that an earlier call left, once they have been recalled.

    Their memory is reused then, in a fixed order: a run that is repeated gets the same
    sets.
    """
    _, entries = state.left
    for foldmap in foldmaps:
        entries.pop(_key(foldmap, entries), None)


def announce(
    pending: Sequence[Pending],
    place: int,
    committed: Any,
    number: int,
    join: Callable[[int, Any], Any],
) -> None:
    """Add the vertices that the foldmap at `place` has committed to all pending sets.

    Parameters
    ----------
    committed : words or None
        None for all vertices, which saves finding the vertices that gather from them.
    number : int
        Number of committed vertices.
    join : callable
        ``join(other, words)`` returns the pending set of another foldmap with them.
    """
    for other, waiting in enumerate(pending):
        if committed is None:
            waiting.words = None
        elif other == place:
            waiting.words, waiting.count = committed, number
        elif waiting.words is not None:
            waiting.words = join(other, waiting.words)
            if waiting.count is not None:
                waiting.count += number


def store_pending(
    foldmaps: Sequence[FoldMap],
    pending: Sequence[Pending],
    state: State,
    device: Device,
    seen: Seen,
    has_run: bool,
) -> None:
    """Store the pending vertices for a later call, with their version.

    If supersteps have run, everything is due for other foldmaps.
    """
    version, entries = state.left
    if version != state.version:
        entries = {}
    elif has_run:
        entries = {k: replace(e, words=None, left=None) for k, e in entries.items()}
    for foldmap, waits in zip(foldmaps, pending, strict=True):
        words, left = map(device.sets.snapshot, (waits.words, waits.left))
        entries[foldmap.base] = _Left(device, words, left, waits.scalars, seen)
    state.left = (state.version, entries)
