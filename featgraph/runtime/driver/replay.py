"""Supersteps that repeat, run by the device alone (docs/design/0019-replay.md).

Behind its first supersteps a run asks the device for the same operations again and
again: the same kernels, on the same memory, since buffers and sets change places in a
cycle. Once a cycle has come round, its supersteps are launched as they were recorded,
until something that is decided by the number of active vertices has been decided
otherwise for some time, or nothing is active. The host only reads how many vertices
were committed, while the next superstep runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from featgraph._interrupts import held_back
from featgraph.config import config
from featgraph.runtime.devices.cycles import Cycles, Traced
from featgraph.runtime.driver.loop import decisions_of
from featgraph.runtime.driver.pending import announce
from featgraph.runtime.driver.step import patches_left
from featgraph.runtime.memory.buffers import buffers_of

if TYPE_CHECKING:
    from featgraph.runtime.devices.protocol import Recorder
    from featgraph.runtime.driver.loop import Loop
    from featgraph.runtime.driver.run import Run

__all__ = ["advancing"]

#: Supersteps that take longer, in s, gain nothing: they keep the device busy, and one
#: that is launched ahead for nothing costs as long.
_MOST_SECONDS = 1e-3
#: The next superstep is launched ahead unless at this rate of decay fewer vertices than
#: this would be active in it.
_FEWEST = 8
#: Supersteps are launched as they were recorded, though they would be run otherwise by
#: now, until they have taken so long, in s: to change takes the host about as much,
#: which runs three or four supersteps and records them (NVIDIA H200). So no run takes
#: much longer than it would either way.
_MOST_LATE = 5e-4


def may_be_late(loop: Loop, traced: Traced) -> bool:
    """Whether the next supersteps may be run in the way of one before.

    Where all vertices are due without a set, edges are looked at whose sources have not
    been announced, and what is kept is recomputed. That must not go on, but where all
    that changes is announced and nothing is kept.
    """
    all_due, announces = traced.decisions[0], loop.steps[traced.place].announces
    is_kept = traced.work in {"kept", "patched"}
    return loop.is_dense or not all_due or (announces and not is_kept)


def advancing(loop: Loop, alone: bool) -> Callable[[Run, int], bool]:
    """Return what runs the supersteps of a loop; `alone`, if it is not observed.

    It takes a record and how many may run, and returns False if nothing is due.
    """
    recorder = loop.device.recorder
    if recorder is None or not alone or not config.replay:
        return loop.advance
    return Replayer(loop, recorder).advance


class Replayer:
    """Runs the supersteps of a loop, by the host or from their recordings."""

    def __init__(self, loop: Loop, recorder: Recorder) -> None:
        self._loop = loop
        self._recorder = recorder
        loop.is_traced = True
        self._cycles = Cycles(len(loop.steps), recorder.known)
        self._stage = loop.stage

    def advance(self, run: Run, most: int) -> bool:
        """Run one superstep, or up to `most`; False if nothing is due."""
        loop = self._loop
        if self._stage != loop.stage:  # with other scalars, and other sets
            self._stage = loop.stage
            self._cycles.forget()
        if self._replay(run, most):
            return True
        self._recorder.begin(buffers_of(loop.state, loop.device).pools[0])
        try:
            is_run = loop.advance(run, most)
        finally:
            operations = self._recorder.end()
        made, loop.traced = loop.traced, None
        if is_run and made is not None:
            made.operations = operations
            made.behind = tuple(id(s) for p in loop.pending for s in (p.words, p.left))
            self._cycles.add(made)
        return is_run

    def _replay(self, run: Run, most: int) -> bool:
        """Run supersteps of a cycle, if one was seen; False if none was run."""
        for cycle in self._cycles.find():
            length = len(cycle)
            if sum(run.seconds[-length:]) > length * _MOST_SECONDS:
                continue
            limit = self._limit(cycle, most)
            if limit == 0 or not self._continues(cycle[0]):
                continue
            recordings = [self._recorder.record(t.operations) for t in cycle]
            if None in recordings:
                continue
            _Flight(self._loop, run, cycle, recordings).run(limit)
            return True
        return False

    def _limit(self, cycle: list[Traced], most: int) -> int:
        """Return how many supersteps may be replayed: whole cycles."""
        loop, length = self._loop, len(cycle)
        if not all(may_be_late(loop, t) for t in cycle):
            return 0
        places = [t.place for t in cycle]
        turns = len(loop.steps)
        if places != [(loop.turn + i) % turns for i in range(length)]:
            return 0
        if turns > 1 and any(made() is None for t in cycle for made in t.pending):
            return 0  # what others have not seen yet was in no set
        cycles = most // length
        for place, step in enumerate(loop.steps):
            left = patches_left(step)
            if left is not None:
                cycles = min(cycles, left // places.count(place))
        return cycles * length

    def _continues(self, first: Traced) -> bool:
        """Whether the next superstep is due, and would be like the first of a cycle."""
        loop = self._loop
        loop.refresh_version()
        is_due = loop.pending[first.place].active_count != 0
        return is_due and decisions_of(loop, first.place) == first.decisions


class _Flight:
    """Launches of a cycle, one superstep ahead of what the host knows.

    Deciding late changes no result but how kept sums are rounded, which may be patched
    some times more: what a count decides is how a superstep is run, and one without
    active vertices commits nothing. `may_be_late` says where it would.
    """

    def __init__(
        self, loop: Loop, run: Run, cycle: list[Traced], recordings: list[Any]
    ) -> None:
        self._loop = loop
        self._run = run
        self._cycle = cycle
        self._recordings = recordings
        self._launched = self._done = 0
        self._begun = time.perf_counter()
        #: Supersteps that the host would not have run.
        self._idle = 0
        self._first = loop.state.superstep
        #: How long supersteps have been run otherwise than was decided, in s.
        self._late = 0.0
        #: Whether no further cycle is begun.
        self._ends = False

    def run(self, limit: int) -> None:
        """Run supersteps, at most `limit`, which is a multiple of the cycle's."""
        with held_back() as came:
            try:
                self._fly(limit, came)
            except BaseException:
                try:
                    self._complete()
                finally:
                    for waiting in self._loop.pending:
                        waiting.words = None
                raise

    def _fly(self, limit: int, came: list[int]) -> None:
        """Launch and account for supersteps until the last cycle has ended."""
        ahead = 0
        while True:
            self._ends |= bool(came)
            while self._launched <= self._done + ahead and (
                self._is_within_a_cycle() or not (self._ends or self._launched == limit)
            ):
                self._launch()
            if self._launched == self._done:
                return
            ahead = self._account()

    def _is_within_a_cycle(self) -> bool:
        return self._launched % len(self._cycle) != 0

    def _launch(self) -> None:
        self._recordings[self._launched % len(self._cycle)].launch()
        self._launched += 1

    def _complete(self) -> None:
        """Run the cycle to its end: the host takes the buffers for what they are there.

        Another interrupt adds nothing to the one that is on its way.
        """
        while self._is_within_a_cycle() or self._done < self._launched:
            try:
                if self._is_within_a_cycle():
                    self._launch()
                else:
                    self._account()
            except KeyboardInterrupt:
                continue
        loop = self._loop
        loop.superstep = loop.state.superstep = self._first + self._done - self._idle

    def _account(self) -> int:
        """Wait for a superstep; return how many may be launched ahead of the next."""
        loop, place = self._loop, self._done % len(self._cycle)
        traced, number = self._cycle[place], self._recordings[place].wait()
        self._done += 1
        begun, self._begun = self._begun, time.perf_counter()
        before = loop.pending[traced.place].active_count
        # Sets that the host would have made are where the recorded superstep made them.
        everything = number == loop.state.graph.vertex_count
        told = None if everything else traced.committed()
        made = traced.pending
        announce(
            loop.pending, traced.place, told, number, lambda other, _: made[other]()
        )
        following = self._cycle[self._done % len(self._cycle)]
        if loop.pending[following.place].active_count == 0:
            self._ends = True
        seconds = self._begun - begun
        is_late = decisions_of(loop, following.place) != following.decisions
        self._late = self._late + seconds if is_late else 0.0
        self._ends |= self._late > _MOST_LATE
        if before == 0 and number == 0:
            self._idle += 1
            return 0
        self._run.add(number, seconds, traced.direction, traced.work)
        loop.steps[traced.place].patched_supersteps += traced.work == "patched"
        loop.turn = (traced.place + 1) % len(loop.steps)
        loop.superstep = loop.state.superstep = self._first + self._done - self._idle
        return int(number * number >= _FEWEST * (before or 0))
