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
from collections.abc import Sequence
from typing import Any, ClassVar

from featgraph._interrupts import deferred_interrupts
from featgraph.config import config
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.pending import announce
from featgraph.runtime.loops.protocol import Watched
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.step import patches_left
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording.cycles import Cycles, Traced

__all__ = ["ReplayLoop"]

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


def may_be_late(agenda: Agenda, traced: Traced) -> bool:
    """Whether the next supersteps may be run in the way of one before.

    Where all vertices are due without a set, edges are looked at whose sources have not
    been announced, and incremental aggregates are recomputed. That must not go on, but
    where all that changes is announced and no aggregate is incremental.
    """
    all_due, announces = traced.decisions[0], agenda.steps[traced.place].announces
    is_incremental = traced.work in {"kept", "patched"}
    return agenda.is_dense or not all_due or (announces and not is_incremental)


class ReplayLoop:
    """Runs the supersteps of a run from their recordings, or as the host does.

    Parameters
    ----------
    agenda : Agenda
    """

    name: ClassVar[str] = "replay"

    def __init__(self, agenda: Agenda) -> None:
        recorder = agenda.device.recorder
        if recorder is None:
            raise TypeError("a device without a recorder")
        self._agenda = agenda
        self._host = HostLoop(agenda, traces=True)
        self._recorder = recorder
        self._cycles = Cycles(len(agenda.steps), recorder.known)
        self._stage = agenda.stage

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why it cannot run any superstep of a run; "" if it can."""
        if watched.device.recorder is None:
            return f"{watched.device.name} has no launches to record"
        if watched.by:
            return f"{watched.by} looks at each superstep"
        return "" if config.replay else "fg.config.replay is False"

    def run(self, run: Run, most: int) -> bool:
        """Run one superstep, or up to `most`; False if nothing is due."""
        agenda = self._agenda
        if self._stage != agenda.stage:  # with other scalars, and other sets
            self._stage = agenda.stage
            self._cycles.forget()
        if self._replay(run, most):
            return True
        self._recorder.begin(buffers_of(agenda.state, agenda.device).pools[0])
        try:
            is_run = self._host.run(run, most)
        finally:
            operations = self._recorder.end()
        made, self._host.traced = self._host.traced, None
        if is_run and made is not None:
            made.operations = operations
            sets = [s for p in agenda.pending for s in (p.words, p.left)]
            made.behind = tuple(map(id, sets))
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
            _Flight(self._agenda, run, cycle, recordings).run(limit)
            return True
        return False

    def _limit(self, cycle: list[Traced], most: int) -> int:
        """Return how many supersteps may be replayed: whole cycles."""
        agenda, length = self._agenda, len(cycle)
        if not all(may_be_late(agenda, t) for t in cycle):
            return 0
        places = [t.place for t in cycle]
        turns = len(agenda.steps)
        if places != [(agenda.turn + i) % turns for i in range(length)]:
            return 0
        if turns > 1 and any(made() is None for t in cycle for made in t.pending):
            return 0  # what others have not seen yet was in no set
        cycles = most // length
        for place, step in enumerate(agenda.steps):
            left = patches_left(step)
            if left is not None:
                cycles = min(cycles, left // places.count(place))
        return cycles * length

    def _continues(self, first: Traced) -> bool:
        """Whether the next superstep is due, and would be like the first of a cycle."""
        agenda = self._agenda
        agenda.refresh_version()
        is_due = agenda.pending[first.place].active_count != 0
        return is_due and agenda.decisions(first.place) == first.decisions


class _Flight:
    """Launches of a cycle, one superstep ahead of what the host knows.

    Deciding late changes no result but how kept sums are rounded, which may be patched
    some times more: what a count decides is how a superstep is run, and one without
    active vertices commits nothing. `may_be_late` says where it would.
    """

    def __init__(
        self, agenda: Agenda, run: Run, cycle: list[Traced], recordings: list[Any]
    ) -> None:
        self._agenda = agenda
        self._run = run
        self._cycle = cycle
        self._recordings = recordings
        self._launched = self._done = 0
        self._begun = time.perf_counter()
        #: Supersteps that the host would not have run.
        self._idle = 0
        self._first = agenda.state.superstep
        #: How long supersteps have been run otherwise than was decided, in s.
        self._late = 0.0
        #: Whether no further cycle is begun.
        self._ends = False

    def run(self, limit: int) -> None:
        """Run supersteps, at most `limit`, which is a multiple of the cycle's."""
        with deferred_interrupts() as came:
            try:
                self._fly(limit, came)
            except BaseException:
                try:
                    self._complete()
                finally:
                    for waiting in self._agenda.pending:
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
        self._number()

    def _number(self) -> None:
        """Tell the State how many supersteps the host would have run."""
        agenda, number = self._agenda, self._first + self._done - self._idle
        agenda.superstep = agenda.state.superstep = number

    def _account(self) -> int:
        """Wait for a superstep; return how many may be launched ahead of the next."""
        agenda, place = self._agenda, self._done % len(self._cycle)
        traced, number = self._cycle[place], self._recordings[place].wait()
        self._done += 1
        begun, self._begun = self._begun, time.perf_counter()
        before = agenda.pending[traced.place].active_count
        # Sets that the host would have made are where the recorded superstep made them.
        everything = number == agenda.state.graph.vertex_count
        told = None if everything else traced.committed()
        made = traced.pending
        announce(
            agenda.pending, traced.place, told, number, lambda other, _: made[other]()
        )
        following = self._cycle[self._done % len(self._cycle)]
        if agenda.pending[following.place].active_count == 0:
            self._ends = True
        seconds = self._begun - begun
        is_late = agenda.decisions(following.place) != following.decisions
        self._late = self._late + seconds if is_late else 0.0
        self._ends |= self._late > _MOST_LATE
        if before == 0 and number == 0:
            self._idle += 1
            return 0
        self._run.add(number, seconds, traced.direction, traced.work)
        agenda.steps[traced.place].patched_supersteps += traced.work == "patched"
        agenda.turn = (traced.place + 1) % len(agenda.steps)
        self._number()
        return int(number * number >= _FEWEST * (before or 0))
