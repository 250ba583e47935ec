"""Supersteps of a cycle that the host launches, one ahead of what it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from featgraph._interrupts import deferred_interrupts
from featgraph.runtime.loops.accounts import Accounts
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.run import Run
from featgraph.runtime.recording.cycles import Traced

__all__ = ["Flight"]

#: The next superstep is launched ahead unless at this rate of decay fewer vertices than
#: this would be active in it.
_FEWEST = 8


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
    most_late : float
        How long, in s, supersteps may be run otherwise than is decided by then.
    """

    def __init__(
        self,
        agenda: Agenda,
        run: Run,
        cycle: Sequence[Traced],
        recordings: Sequence[Any],
        most_late: float,
    ) -> None:
        self._agenda = agenda
        self._accounts = Accounts(agenda, run, cycle)
        self._recordings = recordings
        self._launched = 0
        self._begun = time.perf_counter()
        #: How long supersteps have been run otherwise than was decided, in s.
        self._late, self._most_late = 0.0, most_late
        #: Whether no further cycle is begun.
        self._ends = False

    def run(self, limit: int, is_enough: Callable[[], bool]) -> None:
        """Run supersteps, at most `limit`, which is a multiple of the cycle's.

        No further cycle is begun where `is_enough` says so.
        """
        with deferred_interrupts() as came:
            try:
                self._fly(limit, came, is_enough)
            except BaseException:
                try:
                    self._complete()
                finally:
                    for waiting in self._agenda.pending:
                        waiting.words = None
                raise

    def _fly(self, limit: int, came: list[int], is_enough: Callable[[], bool]) -> None:
        """Launch and account for supersteps until the last cycle has ended."""
        ahead = 0
        while True:
            if not self._is_within_a_cycle():
                self._ends = self._ends or bool(came) or is_enough()
            while self._launched <= self._accounts.done + ahead and (
                self._is_within_a_cycle() or not (self._ends or self._launched == limit)
            ):
                self._launch()
            if self._launched == self._accounts.done:
                return
            ahead = self._account()

    def _is_within_a_cycle(self) -> bool:
        return self._launched % len(self._recordings) != 0

    def _launch(self) -> None:
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
        before = agenda.pending[accounts.following.place].active_count
        number = self._recordings[accounts.done % len(self._recordings)].wait()
        begun, self._begun = self._begun, time.perf_counter()
        seconds = self._begun - begun
        is_run = accounts.add(number, seconds)
        following = accounts.following
        if agenda.pending[following.place].active_count == 0:
            self._ends = True
        is_late = agenda.decisions(following.place) != following.decisions
        self._late = self._late + seconds if is_late else 0.0
        self._ends |= self._late > self._most_late
        return int(is_run and number * number >= _FEWEST * (before or 0))
