"""Replays of a cycle: launches by the host, and the bookkeeping of all replays.

`HostReplay` launches recordings, one superstep ahead of the counts that it has read.
`ReplayReport` then updates the run, the pending vertices and the State as `HostLoop`
does for its own supersteps; `replay.DeviceReplay` uses it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.base.activity import ACTIVITY
from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import deferred_interrupts
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import RunState, announce
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording.cycles import Traced

__all__ = ["HostReplay", "ReplayMode", "ReplayReport"]


class ReplayReport:
    """Adds replayed supersteps to the record of a run, and updates pending vertices.

    Parameters
    ----------
    run_state : RunState
    run : Run
        The record to add them to.
    traced : sequence of Traced
        The cycle, which is repeated; its first superstep is due.

    Attributes
    ----------
    done : int
        Number of supersteps that have run.
    """

    def __init__(self, run_state: RunState, run: Run, traced: Sequence[Traced]) -> None:
        self._run_state, self._run, self._cycle = run_state, run, traced
        self.done = 0
        #: Number of supersteps without due vertices, which the host would not have run.
        self._idle = 0
        self._first = run_state.state.superstep
        self._everything = run_state.state.graph.living_count

    @property
    def is_whole(self) -> bool:
        """Whether the recorded supersteps are whole cycles."""
        return self.done % len(self._cycle) == 0

    @property
    def following(self) -> Traced:
        """The next superstep."""
        return self._cycle[self.done % len(self._cycle)]

    def add(self, number: int, seconds: float, seen: Sequence[float]) -> bool:
        """Record the next superstep, which has committed `number` vertices.

        `seen` are the watched extremes of its results. False if no vertex was due: then
        the run has no entry for it. The State is updated later, by the method `number`.
        """
        run_state, traced = self._run_state, self.following
        place = traced.place
        before = run_state.pending[place].active_count
        self._announce(traced, number)
        self.done += 1
        if before == 0 and number == 0:
            self._idle += 1
            return False
        self._run.add(number, seconds, traced.direction, traced.work)
        if traced.pieces is not None:
            self._run.pieces.append(traced.pieces)
        step = run_state.runs[place]
        if seen:
            run_state.watching.note(step.watched, seen)
        step.patched_supersteps += traced.work == "patched"
        run_state.turn = (place + 1) % len(run_state.runs)
        return True

    def add_all(
        self,
        numbers: Sequence[int],
        seconds: Sequence[float],
        seen: Sequence[Sequence[float]],
        last: int,
    ) -> None:
        """Record many supersteps, of which only the `last` ones may have been idle.

        The others are whole cycles. Only the last of these determines the pending
        vertices, since each foldmap runs in it.
        """
        length = len(self._cycle)
        many = len(numbers) - last
        cycles = many // length
        for place, traced in enumerate(self._cycle if many else ()):
            self._announce(traced, numbers[many - length + place])
            patches = cycles if traced.work == "patched" else 0
            self._run_state.runs[traced.place].patched_supersteps += patches
        self._run.add_all(
            numbers[:many], seconds[:many], [t.direction for t in self._cycle] * cycles,
            [t.work for t in self._cycle] * cycles,
        )  # fmt: skip
        self._run.pieces += [
            t.pieces for t in self._cycle if t.pieces is not None
        ] * cycles
        # With one foldmap, all supersteps of the cycle are its own.
        watched = [step.watched for step in self._run_state.runs]
        if len(watched) > 1:
            watched = [watched[t.place] for t in self._cycle]
        self._run_state.watching.note_all(watched, seen[:many])
        self.done += many
        for rest in zip(numbers[many:], seconds[many:], seen[many:], strict=True):
            self.add(*rest)

    def settle(self) -> None:
        """Update buffers, unsent rows, scalars and the State after the last superstep.

        After whole cycles, buffers are as before. Otherwise they swap once for each
        superstep of the last, partial cycle.
        """
        buffers = buffers_of(self._run_state.state, self._run_state.device)
        for traced in self._cycle[: self.done % len(self._cycle)]:
            step = self._run_state.runs[traced.place]
            step.plain.bound.stale.repeat(buffers, step.in_place and not traced.keeps)
        # After whole cycles, the sets of unsent rows are those of the host, too.
        ghosts = self._run_state.runs[0].plain.bound.ghosts
        if ghosts is not None and not self.is_whole:
            last = self._cycle[self.done % len(self._cycle) - 1]
            ghosts.have_wait(buffers, last.unsent)
        for place in range(len(self._run_state.runs)):
            self._run_state.note_scalars(place)
        self.number()

    def number(self) -> None:
        """Set `State.superstep` as a run by the host would have.

        Results of reduces become new versions of their properties, read from the device
        on demand.
        """
        run_state, number = self._run_state, self._first + self.done - self._idle
        run_state.superstep = run_state.state.superstep = number
        for step in run_state.runs:
            step.plain.bound.go_on()

    def _announce(self, traced: Traced, number: int) -> None:
        """Make the committed vertices pending, in the sets that the recording wrote."""
        run_state, made = self._run_state, traced.pending
        everything = 0 < number == self._everything
        committed = None if everything else traced.committed()
        announce(
            run_state.pending,
            traced.place,
            committed,
            number,
            lambda other, _: made[other](),
        )


#: Fewest active vertices, extrapolated from the last two supersteps, with which the
#: next superstep is launched ahead.
_FEWEST = 8


@dataclass
class ReplayMode:
    """How supersteps of a cycle are run.

    Attributes
    ----------
    limit : int
        Most supersteps: whole cycles, unless exact.
    most_late : float
        Longest time, in s, of supersteps that run as recorded though the active count
        leads to other choices.
    is_exact : bool
        Whether each superstep is launched only once it is known that the host would run
        it. An exact replay may end within a cycle.
    """

    limit: int
    most_late: float
    is_exact: bool


class HostReplay:
    """Launches a cycle from the host, one superstep ahead of the counts it has read.

    A superstep is so launched before the choices for it are known. This changes no
    result except the rounding of kept sums, which may be patched some more times: a
    count only determines how a superstep runs, and one without active vertices commits
    nothing. `replay.may_be_late` finds the exceptions.

    Parameters
    ----------
    run_state : RunState
    run : Run
    cycle : sequence of Traced
        The first of them is due.
    recordings : sequence
        The recording of each, with `launch` and `wait`.
    how : ReplayMode
    """

    def __init__(
        self,
        run_state: RunState,
        run: Run,
        cycle: Sequence[Traced],
        recordings: Sequence[Any],
        how: ReplayMode,
    ) -> None:
        self._run_state = run_state
        self._report = ReplayReport(run_state, run, cycle)
        self._recordings = recordings
        self._first, self._launched = run_state.state.superstep, 0
        self._begun = time.perf_counter()
        #: Time, in s, since the choices by the active count differ from the recording.
        self._late, self._how = 0.0, how
        #: (place, whether all are due, active count) -> choices: nothing else changes
        #: them in a replay, and counts mostly repeat.
        self._decided: dict[tuple[int, bool, int | None], tuple[Any, ...]] = {}
        #: Whether no further cycle is begun.
        self._ends = False

    def run(self, is_enough: Callable[[], bool]) -> bool:
        """Run supersteps until `is_enough` returns True at the end of a cycle.

        Return whether the last cycle is whole.
        """
        # An interrupt between a launch and its bookkeeping would lose commits.
        with deferred_interrupts() as came:
            try:
                self._run_cycles(came, is_enough)
                self._report.settle()
            except BaseException:
                try:
                    self._complete()
                finally:
                    for waiting in self._run_state.pending:
                        waiting.words = None
                raise
        return self._report.is_whole

    def _run_cycles(self, came: list[int], is_enough: Callable[[], bool]) -> None:
        """Launch supersteps, and record each when it has ended, until the replay ends.

        Unless the replay is exact, it ends after a whole cycle.
        """
        limit, report, ahead = self._how.limit, self._report, 0
        length, is_exact = len(self._recordings), self._how.is_exact
        while True:
            if self._launched % length == 0:
                self._ends = self._ends or bool(came) or is_enough()
            while self._launched <= report.done + ahead:
                must_go_on = self._launched % length != 0 and not is_exact
                if not must_go_on and (self._ends or self._launched == limit):
                    break
                self._launch()
            if self._launched == report.done:
                return
            ahead = self._account()

    def _is_within_a_cycle(self) -> bool:
        """Whether the launched supersteps are not whole cycles."""
        return self._launched % len(self._recordings) != 0

    def _launch(self) -> None:
        ACTIVITY.enter(self._first + self._launched, "all, from a recording")
        self._recordings[self._launched % len(self._recordings)].launch()
        self._launched += 1

    def _complete(self) -> None:
        """After an error, run the cycle to its end, where buffers fit the host's State.

        A further interrupt is ignored: one is being handled.
        """
        while self._is_within_a_cycle() or self._report.done < self._launched:
            try:
                if self._is_within_a_cycle():
                    self._launch()
                else:
                    self._account()
            except KeyboardInterrupt:
                continue
        self._report.number()

    def _account(self) -> int:
        """Wait for a superstep and record it.

        Returns the number of supersteps, 0 or 1, to launch ahead of the next read.
        """
        run_state, report = self._run_state, self._report
        recording = self._recordings[report.done % len(self._recordings)]
        before = run_state.pending[report.following.place].active_count
        is_last = self._launched == report.done + 1
        number, seen = recording.wait(is_last=is_last)
        run_state.exchange.check_count(number)
        begun, self._begun = self._begun, time.perf_counter()
        seconds = self._begun - begun
        is_run = report.add(number, seconds, seen)
        following = report.following
        pending, place = run_state.pending[following.place], following.place
        count = pending.active_count
        if count == 0 or run_state.watching.is_met:
            self._ends = True
        key = place, pending.words is None, count
        decided = self._decided.get(key)
        if decided is None:
            decided = self._decided[key] = run_state.decisions(place)
        is_late = decided != following.decisions
        self._late = self._late + seconds if is_late else 0.0
        self._ends |= self._late > self._how.most_late
        # Extrapolated: number ** 2 / before vertices, fewer than `_FEWEST`.
        is_soon_over = not is_run or number * number < _FEWEST * (before or 0)
        return int(not (self._how.is_exact or is_soon_over))
