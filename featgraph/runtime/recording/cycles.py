"""Supersteps as they were run, and cycles of them that have come round before."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from featgraph.base.dataclass import dataclass

__all__ = ["Aside", "Cycles", "KnownCycles", "Traced"]

#: A cycle is looked for among so many times the foldmaps of a run.
_LONGEST = 4
#: Supersteps of cycles that a thread remembers.
_MOST_KNOWN = 512
#: Beginnings of runs that a thread remembers.
_MOST_BEGUN = 64


@dataclass(eq=False)
class Traced:
    """A superstep as it was run.

    Attributes
    ----------
    place : int
        Which of the foldmaps ran.
    decisions : tuple
        What the number of active vertices decided.
    everything : bool
        Whether all vertices were committed, of which no set is kept.
    committed : weakref
        The set of the committed ones: a reference would keep its memory from being
        used again.
    pending : list of weakref
        What was pending for each foldmap behind it; gives None for all vertices.
    direction, work : str
        What the record says of it.
    unsent : frozenset of str
        Properties of which something waits behind it that other ranks were not told.
    operations : tuple or None
        What it asked the device for; None if that cannot be recorded.
    pieces : int or None
        On several ranks, in how many pieces it sent rows while it swept others.
    behind : tuple of int
        Identities of the sets that are held behind it. They are in pools, which stay as
        long as their State, and then mostly go to another.
    stale : frozenset of (str, int)
        Where next buffers are stale behind it, and what other ranks were not told:
        properties, and identities of sets.
    taken : tuple of weakref
        The sets that it took from a pool.
    """

    place: int
    decisions: tuple[Any, ...]
    everything: bool
    committed: weakref.ref[Any]
    pending: list[Callable[[], Any]]
    direction: str
    work: str
    unsent: frozenset[str] = frozenset()
    pieces: int | None = None
    operations: tuple[Any, ...] | None = None
    behind: tuple[int, ...] = ()
    stale: frozenset[tuple[str, int]] = frozenset()
    taken: tuple[Callable[[], Any], ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether it has kept aggregates, to patch them."""
        return self.work in {"kept", "patched"}

    def repeats(self, other: Traced) -> bool:
        """Whether it did what another one did."""
        return (
            self.operations is not None
            and self.place == other.place
            and self.decisions == other.decisions
            and self.everything == other.everything
            and bool(self.operations == other.operations)
        )


class KnownCycles(threading.local):
    """Cycles that have repeated, in any run of a thread."""

    def __init__(self) -> None:
        #: Operations -> their cycle, and their place in it.
        self._places: OrderedDict[Any, tuple[Sequence[Traced], int]] = OrderedDict()
        #: What a run begins with, as its caller has it -> the cycle that came.
        self._begun: OrderedDict[Any, Sequence[Traced]] = OrderedDict()
        #: Operations of a run's first superstep, which is in no cycle -> that, and the
        #: cycle that came behind it.
        self._before: OrderedDict[Any, tuple[Traced, Sequence[Traced]]] = OrderedDict()

    def add(self, cycle: Sequence[Traced]) -> None:
        """Remember a cycle that has repeated; it refers to its sets weakly."""
        for place, traced in enumerate(cycle):
            self._places[traced.operations] = cycle, place
            self._places.move_to_end(traced.operations)
        while len(self._places) > _MOST_KNOWN:
            self._places.popitem(last=False)

    def find(self, traced: Traced) -> tuple[Sequence[Traced], int] | None:
        """Return a cycle with what a superstep did, and its place there."""
        return self._places.get(traced.operations)

    def note_beginning(self, key: Any, cycle: Sequence[Traced]) -> None:
        """Remember that a run has begun with a known cycle, from its first on."""
        self._begun[key] = cycle
        self._begun.move_to_end(key)
        if len(self._begun) > _MOST_BEGUN:
            self._begun.popitem(last=False)

    def note_before(self, first: Traced, cycle: Sequence[Traced]) -> None:
        """Remember that a known cycle has come behind the first superstep of a run."""
        self._before[first.operations] = first, cycle
        self._before.move_to_end(first.operations)
        if len(self._before) > _MOST_BEGUN:
            self._before.popitem(last=False)

    def behind(self, first: Traced) -> tuple[Traced, Sequence[Traced]] | None:
        """Return a first superstep that did what one does, and the cycle behind it."""
        return self._before.get(first.operations)

    def begins(self, key: Any) -> Sequence[Traced] | None:
        """Return the cycle with which a run like this has begun last, or None."""
        return self._begun.get(key)


class Cycles:
    """Finds what the supersteps of a run repeat.

    A cycle is one that has been run twice in a row, or once if it is known from other
    runs: then the sets that are held behind it must be those that were held a cycle
    ago, or behind it in one of those runs, where it committed the same sets.

    Where there is one foldmap, a known cycle may be joined behind a single superstep of
    a run, which has asked for all that one of the cycle asks for, and has left what
    that had left. What comes next there is then right here: it is the same kernel, on
    buffers that have changed places, with sets of the other pool. These must be there,
    and nobody's, which `find` asks for; and all of the cycle is decided alike, so that
    it works in the same memory besides. It may be joined so behind the first superstep
    of a run, too, which does something else, such as to copy all of what later ones
    refresh, if it has come behind one that did and left the same.

    Parameters
    ----------
    turns : int
        How many foldmaps there are.
    known : KnownCycles
    """

    def __init__(self, turns: int, known: KnownCycles) -> None:
        self._known, self._turns = known, turns
        self._traced: deque[Traced] = deque(maxlen=2 * _LONGEST * turns)
        #: Length of a cycle -> how many supersteps have repeated those before them.
        # Of even lengths, since sets come from two pools in turn.
        lengths = [turns * n for n in range(1, _LONGEST + 1)]
        self._repeated = {length: 0 for length in lengths if length % 2 == 0}
        #: Where the last superstep stands in a known cycle, and how many have followed
        #: that.
        self._place: tuple[Sequence[Traced], int] | None = None
        self._followed = 0

    def forget(self) -> None:
        """Begin anew: what comes knows nothing of what was."""
        self._traced.clear()
        self._repeated = dict.fromkeys(self._repeated, 0)
        self._place, self._followed = None, 0

    def add(self, made: Traced) -> None:
        """Add the superstep that was run last."""
        for length, count in self._repeated.items():
            is_same = len(self._traced) >= length
            is_same = is_same and made.repeats(self._traced[-length])
            self._repeated[length] = count + 1 if is_same else 0
        before, self._place = self._place, self._known.find(made)
        if before is None or self._place is None:
            self._followed = int(self._place is not None)
        else:
            (cycle, place), (now, its_place) = before, self._place
            follows = cycle is now and its_place == (place + 1) % len(cycle)
            self._followed = self._followed + 1 if follows else 1
        self._traced.append(made)

    def begin_with(self, traced: Traced) -> bool:
        """Whether one superstep has been run, which did what another one does."""
        return [t.operations for t in self._traced] == [traced.operations]

    def find(
        self, may_join: Callable[[Traced], bool] | None = None
    ) -> Iterator[list[Traced]]:
        """Give the cycles that may come next, as they were run here or elsewhere.

        They ask for the same operations, but may have been decided on other grounds.

        Parameters
        ----------
        may_join : callable, optional
            Whether the sets that a superstep has taken are there, and nobody's. None:
            whole cycles have to come round.
        """
        traced = list(self._traced)
        for length, count in self._repeated.items():
            if count >= length:
                cycle = traced[-length:]
                if count == length:
                    self._known.add(cycle)
                yield cycle
                return
        if self._place is None:
            yield from self._behind_first(traced, may_join)
            return
        known, place = self._place
        length, behind = len(known), traced[-1].behind
        cycle = [*known[place + 1 :], *known[: place + 1]]
        if self._followed < length:
            is_like = self._turns == 1 and _leaves_the_same(traced[-1], known[place])
            if is_like and _are_alike(known) and may_join and may_join(cycle[0]):
                if len(traced) == 2 and traced[0].operations is not None:
                    self._known.note_before(traced[0], [cycle[-1], *cycle[:-1]])
                yield cycle
            return
        last = traced[-length:]
        if behind in [t.behind for t in traced[-length - 1 : -length]]:
            yield last
        # The first of a run does what another one does, but since everything is due.
        if behind == known[place].behind and _commit_the_same(last, cycle):
            yield cycle

    def _behind_first(
        self, traced: Sequence[Traced], may_join: Callable[[Traced], bool] | None
    ) -> Iterator[list[Traced]]:
        """Give the cycle that has come behind a first superstep that did the same."""
        if len(traced) != 1 or self._turns != 1 or may_join is None:
            return
        found = self._known.behind(traced[0])
        if found is None:
            return
        first, cycle = found
        is_same = traced[0].repeats(first) and _leaves_the_same(traced[0], first)
        if is_same and _are_alike([first, *cycle]) and may_join(cycle[0]):
            yield list(cycle)


def _are_alike(supersteps: Sequence[Traced]) -> bool:
    """Whether supersteps of one foldmap were decided alike, and keep no aggregates."""
    decided = {(t.decisions, t.everything, t.keeps) for t in supersteps}
    return len(decided) == 1 and not supersteps[0].keeps


def _leaves_the_same(made: Traced, like: Traced) -> bool:
    """Whether a superstep has left what another one has that did the same."""
    return (
        not made.keeps
        and made.everything == like.everything
        and (made.behind, made.stale) == (like.behind, like.stale)
        and _commit_the_same([made], [like])
    )


def _commit_the_same(some: Sequence[Traced], others: Sequence[Traced]) -> bool:
    """Whether supersteps have committed the same sets, and these are still there.

    Others may have the number of a set that is gone, and its memory.
    """
    pairs = zip(some, others, strict=True)
    return all(s.committed() is o.committed() is not None for s, o in pairs)


class Aside:
    """What a superstep is expected to ask for, and how far it has come.

    The device is asked for nothing until the superstep asks for something else, and
    then for all of it; or until it has asked for everything, up to the read of its
    count. Then `instead` may have that and what follows run in another way.

    Parameters
    ----------
    expected : tuple
        Operations, the last of which reads a count.
    instead : callable
        Returns what is read, an array of words, or None where it has done nothing.
    """

    def __init__(
        self, expected: tuple[tuple[Any, ...], ...], instead: Callable[[], Any]
    ) -> None:
        self._expected, self._count = expected, 0
        self.instead = instead

    def takes(self, operation: tuple[Any, ...]) -> bool:
        """Whether an operation is the one that is expected next, which is over then."""
        count, self._count = self._count, self._count + 1
        expected = self._expected
        return count < len(expected) and bool(expected[count] == operation)
