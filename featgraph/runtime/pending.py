"""What each foldmap of a run has not seen yet, also from one call to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from featgraph.program.state import State
from featgraph.runtime.device import Device
from featgraph.runtime.foldmap import FoldMap, as_active

__all__ = [
    "Pending",
    "announce",
    "begin_pending",
    "keep_pending",
    "recall_pending",
    "release_pending",
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


@dataclass(frozen=True)
class _Left:
    """What a call has left for the next one, on the device that it ran on."""

    device: Device
    words: Any
    left: Any
    scalars: tuple[Any, ...] | None

    def on(self, device: Device) -> Pending:
        """Return it on a device."""
        words, left = self.words, self.left
        if device is not self.device:
            words, left = (
                None if w is None else device.upload_words(self.device.download(w))
                for w in (words, left)
            )
        return Pending(words, left, self.scalars)


#: State -> foldmap -> what is pending there, with the State's version.
_kept: weakref.WeakKeyDictionary[State, tuple[int, dict[FoldMap, _Left]]] = (
    weakref.WeakKeyDictionary()
)


def begin_pending(active: Any, state: State, device: Device) -> Pending:
    """Return what is pending where some vertices are given, and no others."""
    given = as_active(active, state)
    return Pending(device.upload_words(given.words.copy()), count=len(given))


def recall_pending(foldmap: FoldMap, state: State, device: Device) -> Pending:
    """Return what an earlier call has left; everything, if there was none."""
    version, kept = _kept.get(state, (-1, {}))
    known = kept.get(foldmap.base)
    if known is None or version != state.version:
        return Pending(None)
    return known.on(device)


def release_pending(foldmaps: Sequence[FoldMap], state: State) -> None:
    """Forget what an earlier call has left, once it has been recalled.

    The memory of those sets is used again then, and where it is decides which: a run
    that is repeated has the same sets.
    """
    _, kept = _kept.get(state, (-1, {}))
    for foldmap in foldmaps:
        kept.pop(foldmap.base, None)


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
        None for all vertices: that saves looking for who gathers from them.
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


def keep_pending(
    foldmaps: Sequence[FoldMap],
    pending: Sequence[Pending],
    state: State,
    device: Device,
) -> None:
    """Remember what stays due for a later call."""
    version, kept = _kept.get(state, (-1, {}))
    if version != state.version:
        kept = {}
    for foldmap, waits in zip(foldmaps, pending, strict=True):
        words, left = map(device.hold, (waits.words, waits.left))
        kept[foldmap.base] = _Left(device, words, left, waits.scalars)
    _kept[state] = (state.version, kept)
