"""Traces of supersteps, and the cycles in which they repeat.

A cycle is a sequence of supersteps after which a run makes the same CUDA calls again,
with the same arguments. `Cycles` compares the traces of a run's supersteps
(`cuda_trace` makes them) and finds cycles that have run before: in this run, or in an
earlier one (`KnownCycles`). `DeferredCalls` holds back the calls of a superstep that is
expected to repeat, until all of them can run as one recording. Begin with `Traced` and
`Cycles.find`.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from featgraph.base.dataclass import dataclass

__all__ = ["Cycles", "DeferredCalls", "KnownCycles", "Traced"]

#: Longest cycle, in multiples of the number of foldmaps.
_LONGEST = 4
#: Most supersteps of known cycles of a thread.
_MOST_KNOWN = 512
#: Most first supersteps of runs that a thread remembers.
_MOST_BEGUN = 64


@dataclass(eq=False)
class Traced:
    """The trace of one superstep.

    Attributes
    ----------
    place : int
        Index of the foldmap that ran.
    decisions : tuple
        The choices that the number of active vertices determined.
    everything : bool
        Whether all vertices were committed, in which case no set is kept.
    committed : weakref
        The set of committed vertices. A strong reference would keep its memory from
        being reused.
    pending : list of weakref
        The set pending for each foldmap after the superstep; gives None for all
        vertices.
    direction, work : str
        Entries of the record of the run.
    unsent : frozenset of str
        Properties with values that have not been sent to other ranks yet.
    operations : tuple or None
        The CUDA calls; None if they cannot be recorded.
    pieces : int or None
        On several ranks: the number of pieces in which rows were sent while others were
        swept.
    behind : tuple of int
        Identities of the pending sets after the superstep. The sets are in pools of
        their State, which later States mostly take over, so that an identity mostly
        stands for the same memory in another run, too.
    stale : frozenset of (str, int)
        Properties whose next buffers are stale after the superstep, or that have unsent
        values, with the identities of the sets.
    taken : tuple of weakref
        The sets that the superstep took from a pool.
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
        """Whether the superstep stored or patched aggregates."""
        return self.work in {"kept", "patched"}

    def repeats(self, other: Traced) -> bool:
        """Whether the superstep made the calls and choices of another one."""
        return (
            self.operations is not None
            and self.place == other.place
            and self.decisions == other.decisions
            and self.everything == other.everything
            and bool(self.operations == other.operations)
        )


class _Newest(OrderedDict[Any, Any]):
    """A dictionary of at most `most` entries, which drops the oldest ones."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: Any, value: Any) -> None:
        """Store an entry as the newest one."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)


class KnownCycles(threading.local):
    """Cycles that have repeated in any run of a thread, with weak references to sets.

    Attributes
    ----------
    places : dict
        Operations of a superstep -> its cycle, and its index in the cycle.
    begun : dict
        Key of a run's beginning, made by `ReplayLoop` -> the cycle with which the last
        run with this key has begun, from its first superstep on.
    before : dict
        Operations of a run's first superstep, which is in no cycle -> its trace, and
        the cycle that followed.
    """

    def __init__(self) -> None:
        self.places, self.begun = _Newest(_MOST_KNOWN), _Newest(_MOST_BEGUN)
        self.before = _Newest(_MOST_BEGUN)


class Cycles:
    """The cycles that the supersteps of a run repeat.

    A cycle is found when it has run twice in a row, or once if it is known from another
    run. In that case the sets that are alive after it must be those that were alive one
    cycle ago, or those that were alive after it in the other run with the same
    committed sets.

    A run of one foldmap may join a known cycle after a single superstep, if that
    superstep made the same calls and left the same sets as one of the cycle. The next
    superstep of the cycle then fits this run, too: it launches the same kernel, on
    swapped buffers, with sets of the other pool. The caller of `find` checks that these
    sets exist and are unused. All supersteps of the cycle must have made the same
    choices, so that they use the same working memory.

    A run may join a known cycle in the same way after its first superstep, which makes
    other calls (it copies whole buffers of which later ones refresh some entries), if
    the cycle has followed a superstep that made the same calls and left the same sets.

    Parameters
    ----------
    turns : int
        Number of foldmaps.
    known : KnownCycles
    """

    def __init__(self, turns: int, known: KnownCycles) -> None:
        self._known, self._turns = known, turns
        self._traced: deque[Traced] = deque(maxlen=2 * _LONGEST * turns)
        #: Length of a cycle -> number of supersteps in a row that repeated the one that
        #: many supersteps earlier.
        # Even lengths only, since sets are taken from two pools alternately.
        lengths = [turns * n for n in range(1, _LONGEST + 1)]
        self._repeated = {length: 0 for length in lengths if length % 2 == 0}
        #: The known cycle of the last superstep with its index in it, and how many
        #: supersteps in a row have followed that cycle.
        self._place: tuple[Sequence[Traced], int] | None = None
        self._followed = 0

    def forget(self) -> None:
        """Forget all supersteps; the next one starts a new history."""
        self._traced.clear()
        self._repeated = dict.fromkeys(self._repeated, 0)
        self._place, self._followed = None, 0

    def add(self, made: Traced) -> None:
        """Add the superstep that was run last."""
        for length, count in self._repeated.items():
            is_same = len(self._traced) >= length
            is_same = is_same and made.repeats(self._traced[-length])
            self._repeated[length] = count + 1 if is_same else 0
        before, self._place = self._place, self._known.places.get(made.operations)
        if before is None or self._place is None:
            self._followed = int(self._place is not None)
        else:
            (cycle, place), (now, its_place) = before, self._place
            follows = cycle is now and its_place == (place + 1) % len(cycle)
            self._followed = self._followed + 1 if follows else 1
        self._traced.append(made)

    def begin_with(self, traced: Traced) -> bool:
        """Whether exactly one superstep has run, with the operations of `traced`."""
        return [t.operations for t in self._traced] == [traced.operations]

    def find(
        self, may_join: Callable[[Traced], bool] | None = None
    ) -> Iterator[list[Traced]]:
        """Generate cycles that may come next, as traced in this run or in another.

        Their operations repeat, but the recorded choices may not be those of the next
        superstep, which the caller compares.

        Parameters
        ----------
        may_join : callable, optional
            Returns whether the sets that a superstep has taken exist and are unused.
            With None, cycles are joined after a whole repetition only.
        """
        traced = list(self._traced)
        for length, count in self._repeated.items():
            if count >= length:
                cycle = traced[-length:]
                for place, made in enumerate(cycle if count == length else ()):
                    self._known.places.put(made.operations, (cycle, place))
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
                    followed = traced[0], [cycle[-1], *cycle[:-1]]
                    self._known.before.put(traced[0].operations, followed)
                yield cycle
            return
        last = traced[-length:]
        if behind in [t.behind for t in traced[-length - 1 : -length]]:
            yield last
        # Its choices may differ from those in `last`: the first superstep of a run may
        # make the calls of a later one, but because all vertices are due.
        if behind == known[place].behind and _commit_the_same(last, cycle):
            yield cycle

    def _behind_first(
        self, traced: Sequence[Traced], may_join: Callable[[Traced], bool] | None
    ) -> Iterator[list[Traced]]:
        """Generate the cycle that has followed an equal first superstep of a run."""
        if len(traced) != 1 or self._turns != 1 or may_join is None:
            return
        found = self._known.before.get(traced[0].operations)
        if found is None:
            return
        first, cycle = found
        is_same = traced[0].repeats(first) and _leaves_the_same(traced[0], first)
        if is_same and _are_alike([first, *cycle]) and may_join(cycle[0]):
            yield list(cycle)


def _are_alike(supersteps: Sequence[Traced]) -> bool:
    """Whether supersteps of one foldmap had the same choices and keep no aggregates."""
    decided = {(t.decisions, t.everything, t.keeps) for t in supersteps}
    return len(decided) == 1 and not supersteps[0].keeps


def _leaves_the_same(made: Traced, like: Traced) -> bool:
    """Whether a superstep left the same sets as another one with equal operations."""
    return (
        not made.keeps
        and made.everything == like.everything
        and (made.behind, made.stale) == (like.behind, like.stale)
        and _commit_the_same([made], [like])
    )


def _commit_the_same(some: Sequence[Traced], others: Sequence[Traced]) -> bool:
    """Whether supersteps committed the same sets, which still exist.

    A deleted set cannot be compared: another set may have its identity and memory.
    """
    pairs = zip(some, others, strict=True)
    return all(s.committed() is o.committed() is not None for s, o in pairs)


class DeferredCalls:
    """Holds back the CUDA calls of a superstep while they equal the expected ones.

    At the first other call, the driver gets all held calls in their order. If the
    superstep makes all expected calls, up to the read of its count, `instead` may run
    them and later supersteps in another way, such as a loop on the device.

    Parameters
    ----------
    expected : tuple
        Operations, the last of which reads a count.
    instead : callable
        Runs the held calls, and returns the words for the read; None if it has run
        nothing.
    """

    def __init__(
        self, expected: tuple[tuple[Any, ...], ...], instead: Callable[[], Any]
    ) -> None:
        self._expected, self._count = expected, 0
        self.instead = instead

    def takes(self, operation: tuple[Any, ...]) -> bool:
        """Return whether an operation is the next expected one, and advance."""
        count, self._count = self._count, self._count + 1
        expected = self._expected
        return count < len(expected) and bool(expected[count] == operation)
