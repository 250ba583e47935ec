"""Supersteps of a cycle that the device runs by itself (0039)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain

from featgraph._activity import ACTIVITY
from featgraph._interrupts import deferred_interrupts
from featgraph.runtime.loops.accounts import Accounts
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.flight import Flown
from featgraph.runtime.loops.run import Run
from featgraph.runtime.recording.control import (
    ABOVE,
    ANY,
    BELOW,
    EVERYTHING,
    Orders,
    Report,
)
from featgraph.runtime.recording.cycles import Traced
from featgraph.runtime.recording.device_loop import DeviceLoop

__all__ = ["DeviceFlight", "find_counts"]

#: So long, in s, the device may be away.
_MOST_AWAY = 0.05
Counts = tuple[int, int]
#: The counts of a superstep that is never run as it was recorded.
_NONE = 1, 0


class DeviceFlight:
    """A loop of cycles, which the host hears of when it has ended.

    It ends where `Flight` would begin no further cycle: nothing is due, the limit is
    reached, or supersteps have been run too long otherwise than is decided by now. Then
    the host accounts for what has run. Besides, it ends when it has taken some time, so
    that an interrupt is heard, or when one has come.

    Parameters
    ----------
    agenda : Agenda
        It knows how many vertices are pending for each foldmap, where not all are.
    run : Run
    cycle : sequence of Traced
        The first of them is due.
    loop : DeviceLoop
        Of these.
    """

    def __init__(
        self, agenda: Agenda, run: Run, cycle: Sequence[Traced], loop: DeviceLoop
    ) -> None:
        self._agenda, self._cycle, self._loop = agenda, cycle, loop
        self._run = run
        self._report: Report | None = None

    def run(self, how: Flown) -> bool:
        """Run supersteps, some at least; return whether the last cycle is whole."""
        with deferred_interrupts() as came:
            try:
                try:
                    self.fly(how, came)
                finally:
                    is_whole = self.account()
            except BaseException:
                for waiting in self._agenda.pending:
                    waiting.words = None
                raise
        return is_whole

    def fly(self, how: Flown, came: list[int]) -> Report:
        """Run supersteps, some at least; return what they have left.

        Interrupts are deferred, and end the loop where one is in `came`.
        """
        agenda, loop = self._agenda, self._loop
        orders = Orders(
            limit=min(how.limit - how.limit % loop.step, loop.most),
            seconds=_MOST_AWAY,
            late_seconds=how.most_late,
            vertices=agenda.state.graph.vertex_count,
            pending=tuple(
                EVERYTHING if p.words is None or p.count is None else p.count
                for p in agenda.pending
            ),
            steps=tuple(
                (t.place, *self._counts(t), self._tested(t)) for t in self._cycle
            ),
            test=self._test(),
        )
        begun = time.perf_counter()
        ACTIVITY.enter(agenda.state.superstep, "all, in a loop of the GPU")
        loop.launch(orders)
        try:
            while not loop.is_done():
                if came:
                    loop.stop()
        finally:
            loop.stop()
            self._report = report = loop.read()
            seconds = report.seconds
            seconds[0] = max(time.perf_counter() - begun - sum(seconds), 0.0)
        return report

    def _test(self) -> tuple[int, float]:
        """Return the stopping test of the run, as the device takes it."""
        test = self._agenda.watching.test
        side = ABOVE if test is not None and test.side == "above" else BELOW
        return side, 0.0 if test is None else test.limit

    def _tested(self, traced: Traced) -> int:
        """Return which of the values that a superstep hands over is tested, or 0."""
        return self._agenda.watching.tested(self._agenda.steps[traced.place].plan)

    def account(self, first: int = 0) -> bool:
        """Account for what has run, all of it but a superstep that a rank has left.

        Parameters
        ----------
        first : int
            Supersteps that the host has accounted for.

        Returns
        -------
        bool
            Whether what comes next is what has come behind these.
        """
        report, shape, cycle = self._report, self._loop.shape, self._cycle
        if report is None:
            return True
        accounts = Accounts(self._agenda, self._run, [*cycle[first:], *cycle[:first]])
        lost = min(report.counts[-1], 0)
        ran = slice(first, len(report.counts) - (lost < 0))
        counts = report.counts[ran]
        # An exact loop has run nothing that the host would not have run.
        last = shape.together + -first % shape.length
        last = len(counts) % shape.length if shape.is_exact else last
        last = min(last, len(counts))
        accounts.add_all(counts, report.seconds[ran], report.seen[ran], last)
        accounts.settle()
        self._agenda.exchange.check_count(lost)
        return accounts.is_whole

    def _counts(self, traced: Traced) -> Counts:
        """Return the counts of pending vertices with which a superstep is run so."""
        agenda, place, meant = self._agenda, traced.place, traced.decisions
        if agenda.is_dense:
            return ANY
        if meant[0]:
            return EVERYTHING, EVERYTHING

        def is_meant(count: int) -> bool:
            return agenda.would_decide(place, count, meant)

        # What takes another kernel to be known is found out when it is decided.
        key = place, meant, agenda.steps[place].knows_patching
        known: Counts | None = self._loop.decided.get(key)
        if known is None or not all(map(is_meant, known)):
            count = agenda.pending[place].count or 1
            most = len(agenda.steps) * agenda.state.graph.vertex_count
            known = self._loop.decided[key] = find_counts(is_meant, count, most)
        return known


def find_counts(is_meant: Callable[[int], bool], near: int, most: int) -> Counts:
    """Return the least and the largest count of which something holds.

    It is taken to hold for all between them, since each thing that is decided changes
    at one count, and not to hold where it does for no power of two, nor `near`.

    Parameters
    ----------
    is_meant : callable
        Whether it holds of a count.
    near : int
        Which is tried first.
    most : int
        The largest count that there is; the least is 1.
    """
    tried = chain([near], (1 << bit for bit in range(most.bit_length())), [most])
    known = next(filter(is_meant, tried), None)
    if known is None:
        return _NONE
    return _last(is_meant, known, 1), _last(is_meant, known, most)


def _last(is_meant: Callable[[int], bool], known: int, end: int) -> int:
    """Return the last count that holds on the way from one that does to an end."""
    if is_meant(end):
        return end
    while abs(end - known) > 1:
        middle = (known + end) // 2
        if is_meant(middle):
            known = middle
        else:
            end = middle
    return known
