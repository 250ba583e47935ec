"""Supersteps of a cycle that the host launches, one ahead of what it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from featgraph.base.activity import ACTIVITY
from featgraph.base.dataclass import dataclass
from featgraph.base.interrupts import deferred_interrupts
from featgraph.runtime.loops.replay_report import Accounts
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Agenda
from featgraph.runtime.recording.cycles import Traced

__all__ = ["Flight", "Flown"]

#: The next superstep is launched ahead unless at this rate of decay fewer vertices than
#: this would be active in it.
_FEWEST = 8


@dataclass
class Flown:
    """How supersteps of a cycle are run.

    Attributes
    ----------
    limit : int
        So many at most: whole cycles, unless exactly.
    most_late : float
        How long, in s, they may be run otherwise than is decided by then.
    is_exact : bool
        Whether none is run before it is known that the host would run it. Then they end
        anywhere in the cycle.
    """

    limit: int
    most_late: float
    is_exact: bool


class Flight:
    """Launches of a cycle, one superstep ahead of what the host knows.

    Deciding late changes no result but how kept sums are rounded, which may be patched
    some times more: what a count decides is how a superstep is run, and one without
    active vertices commits nothing. `may_be_late` says where it would.

    Parameters
    ----------
    agenda : Agenda
    run : Run
    cycle : sequence of Traced
        The first of them is due.
    recordings : sequence
        With `launch` and `wait`, of each.
    how : Flown
    """

    def __init__(
        self,
        agenda: Agenda,
        run: Run,
        cycle: Sequence[Traced],
        recordings: Sequence[Any],
        how: Flown,
    ) -> None:
        self._agenda = agenda
        self._accounts = Accounts(agenda, run, cycle)
        self._recordings = recordings
        self._first, self._launched = agenda.state.superstep, 0
        self._begun = time.perf_counter()
        #: How long supersteps have been run otherwise than was decided, in s.
        self._late, self._how = 0.0, how
        #: Place, whether all are due and how many are active -> what that decides:
        #: nothing else changes it in a flight, and counts mostly come again.
        self._decided: dict[tuple[int, bool, int | None], tuple[Any, ...]] = {}
        #: Whether no further cycle is begun.
        self._ends = False

    def run(self, is_enough: Callable[[], bool]) -> bool:
        """Run supersteps; no further cycle is begun where `is_enough` says so.

        Return whether the last cycle is whole.
        """
        with deferred_interrupts() as came:
            try:
                self._fly(came, is_enough)
                self._accounts.settle()
            except BaseException:
                try:
                    self._complete()
                finally:
                    for waiting in self._agenda.pending:
                        waiting.words = None
                raise
        return self._accounts.is_whole

    def _fly(self, came: list[int], is_enough: Callable[[], bool]) -> None:
        """Launch and account for supersteps until the last cycle has ended."""
        limit, accounts, ahead = self._how.limit, self._accounts, 0
        length, is_exact = len(self._recordings), self._how.is_exact
        while True:
            if self._launched % length == 0:
                self._ends = self._ends or bool(came) or is_enough()
            while self._launched <= accounts.done + ahead:
                must_go_on = self._launched % length != 0 and not is_exact
                if not must_go_on and (self._ends or self._launched == limit):
                    break
                self._launch()
            if self._launched == accounts.done:
                return
            ahead = self._account()

    def _is_within_a_cycle(self) -> bool:
        return self._launched % len(self._recordings) != 0

    def _launch(self) -> None:
        ACTIVITY.enter(self._first + self._launched, "all, from a recording")
        self._recordings[self._launched % len(self._recordings)].launch()
        self._launched += 1

    def _complete(self) -> None:
        """Run the cycle to its end: the host takes the buffers for what they are there.

        Another interrupt adds nothing to the one that is on its way.
        """
        while self._is_within_a_cycle() or self._accounts.done < self._launched:
            try:
                if self._is_within_a_cycle():
                    self._launch()
                else:
                    self._account()
            except KeyboardInterrupt:
                continue
        self._accounts.number()

    def _account(self) -> int:
        """Wait for a superstep; return how many may be launched ahead of the next."""
        agenda, accounts = self._agenda, self._accounts
        recording = self._recordings[accounts.done % len(self._recordings)]
        before = agenda.pending[accounts.following.place].active_count
        is_last = self._launched == accounts.done + 1
        number, seen = recording.wait(is_last=is_last)
        agenda.exchange.check_count(number)
        begun, self._begun = self._begun, time.perf_counter()
        seconds = self._begun - begun
        is_run = accounts.add(number, seconds, seen)
        following = accounts.following
        pending, place = agenda.pending[following.place], following.place
        count = pending.active_count
        if count == 0 or agenda.watching.is_met:
            self._ends = True
        key = place, pending.words is None, count
        decided = self._decided.get(key)
        if decided is None:
            decided = self._decided[key] = agenda.decisions(place)
        is_late = decided != following.decisions
        self._late = self._late + seconds if is_late else 0.0
        self._ends |= self._late > self._how.most_late
        is_soon_over = not is_run or number * number < _FEWEST * (before or 0)
        return int(not (self._how.is_exact or is_soon_over))
