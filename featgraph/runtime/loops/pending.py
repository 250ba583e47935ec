"""What each foldmap of a run has not seen yet, also from one call to the next."""

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
    """What one foldmap has not seen yet: committed vertices, and due ones left out.

    `words` is A; None means every vertex is due.
    """

    words: Any
    left: Any = None
    scalars: tuple[Any, ...] | None = None
    #: How many vertices `words` has at most; None if that is not known.
    count: int | None = None

    @property
    def active_count(self) -> int | None:
        """How many vertices have not been seen, if that is known; None for all."""
        return None if self.words is None else self.count


@dataclass(eq=False)
class _Left:
    """What a call has left for the next one, on the device that it ran on."""

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
    """Return a copy of what is pending, in host memory."""
    words, left = (
        None if w is None else np.array(device.download(w), np.uint32)
        for w in (pending.words, pending.left)
    )
    return Left(words, left, pending.scalars, seen)


def begin_pending(active: Any, state: State, device: Device, of: int) -> list[Pending]:
    """Return what is pending for so many foldmaps where some vertices are given.

    Each has words of its own; on ranks, what is brought there is found on the host.
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
    """Return what an earlier call has left, and what has become due since.

    That is everything, if there was no call.
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
    """Add what has become due since a version of the graph, and some puts."""
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
    """Return what an earlier call has left, on a device."""
    room = word_count(arrays_for(state, device).vertex_count)
    sets = known.words, known.left
    if isinstance(known, _Left):
        if known.device is device and all(w is None or w.size == room for w in sets):
            return Pending(*sets, known.scalars)
        known = known.on_host()
    words, left = (  # of a copy, of another process, or of a graph with other room
        None if w is None else device.sets.upload(resized(w, room))
        for w in (known.words, known.left)
    )
    return Pending(words, left, known.scalars)


def _key(foldmap: FoldMap, entries: dict[Any, Any]) -> Any:
    """Return by what a State knows a foldmap: itself, or the digest of its program."""
    is_named = foldmap.base not in entries and any(isinstance(k, str) for k in entries)
    return foldmap.program.digest if is_named else foldmap.base


def release_pending(foldmaps: Sequence[FoldMap], state: State) -> None:
    """Forget what an earlier call has left, once it has been recalled.

    The memory of those sets is used again then, and where it is decides which: a run
    that is repeated has the same sets.
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
    """Tell every foldmap which vertices the one at `place` has committed.

    Parameters
    ----------
    committed : words or None
        None for all vertices: that saves finding the vertices that gather from them.
    number : int
        How many they are.
    join : callable
        ``join(other, words)`` gives the set in which another foldmap finds them, too.
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
    """Remember what stays due for a later call, and as of which version.

    Where supersteps have run, everything is due for other foldmaps.
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
