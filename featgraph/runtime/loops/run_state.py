"""The agenda of a run: its foldmaps, what is due for each, and what was announced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.program.saved import Left
from featgraph.runtime.loops.foldmap_run import Step, decide, decides
from featgraph.runtime.loops.moves import Moves
from featgraph.runtime.loops.near_far import Waiting
from featgraph.runtime.loops.pending import (
    Pending,
    begin_pending,
    host_left,
    release_pending,
    store_pending,
)
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.stopping import Watching
from featgraph.runtime.memory.buffers import ScalarsRead, buffers_of
from featgraph.runtime.superstep.foldmap import FoldMap

__all__ = ["Agenda", "all_pending", "left_over"]


class Agenda:
    """The foldmaps of a run, and what is pending for each.

    Parameters
    ----------
    steps : list of Step
        One for each foldmap.
    pending : list of Pending
        What each has not seen yet.
    waiting : Waiting or None
        Tells near vertices from far ones.
    watching : Watching
        What is looked at behind each superstep.

    Attributes
    ----------
    turn : int
        The foldmap whose turn is next.
    stage : int
        How often the run has begun anew, or has gone on in another way.
    is_dense : bool
        Whether every vertex is active in every superstep.
    """

    def __init__(
        self,
        steps: list[Step],
        pending: list[Pending],
        waiting: Waiting | None,
        watching: Watching,
    ) -> None:
        self.steps = steps
        self.pending = pending
        self.waiting = waiting
        self.watching = watching
        self.foldmaps = [step.foldmap for step in steps]
        self.state, self.device = steps[0].state, steps[0].device
        self.exchange = steps[0].plain.bound.exchange
        self.is_dense = steps[0].change_driven is False
        self.is_asynchronous = steps[0].plan.options.asynchronous
        self.version = self.state.version
        self.superstep = self.begun = self.state.superstep
        #: What the pending sets account for: the graph's version, and puts.
        self.seen = self.state.follow()
        self.turn = self.stage = 0
        #: Tells whether loops are to come back to the host before they would.
        self.wants_host: Callable[[], bool] | None = None
        #: Tells how many supersteps may run before ranks ask each other something.
        self.asks_within: Callable[[], int] | None = None
        #: The sets that are recorded on the device, and those that say what is due;
        #: None where there are none.
        self.recorded: Any = None
        self.played: Any = None
        #: Has ranks own other vertices; None where they keep theirs.
        self.moves: Moves | None = None
        #: A foldmap that runs where nothing is due, and loops may run (0098).
        self.then: FoldMap | None = None
        #: Of each foldmap.
        self.scalars = [ScalarsRead(self.state, s.plan.facts.scalars) for s in steps]

    def begin(self, active: Any) -> bool:
        """Go on with some vertices, and no others; False if there are none."""
        begun = self.pending  # nothing is due, but for what .on leaves out
        if active is not None:
            begun = begin_pending(active, self.state, self.device, len(begun))
            for left_out in filter(None, (s.left_out for s in self.steps)):
                left_out.forget()
        for pending, step, scalars in zip(begun, self.steps, self.scalars, strict=True):
            pending.scalars = scalars.read()
            step.forget()  # what was written was not announced
        if self.waiting is not None:
            self.waiting.forget()
        self.pending, self.stage = begun, self.stage + 1
        self.version, self.superstep = self.state.version, self.state.superstep
        return active is not None and bool(begun[0].count)

    def follow(self, run: Run) -> None:
        """Go on with sets that are recorded, or played, behind supersteps of a run."""
        if self.recorded is not None and self.recorded.follow(run):
            self.stage += 1
        due = None if self.played is None else self.played.follow(run)
        if due is not None:
            self.pending, self.stage = [due], self.stage + 1
            self.version, self.superstep = self.state.version, self.state.superstep

    def release(self) -> None:
        """Let go of what an earlier call has left; `store_pending` ends that."""
        release_pending(self.foldmaps, self.state)

    def store_pending(self) -> None:
        """Remember what stays due for a later call: all, behind a write that failed."""
        self.refresh_version()
        pending = all_pending(self)
        has_run = self.state.superstep != self.begun
        store_pending(
            self.foldmaps, pending, self.state, self.device, self.seen, has_run
        )

    def refresh_version(self) -> None:
        """Make everything due behind a write, or a superstep, from outside."""
        seen = (self.version, self.superstep)
        if (self.state.version, self.state.superstep) != seen:
            self.version, self.superstep = self.state.version, self.state.superstep
            for pending in self.pending if self.played is None else ():
                pending.words = None
            if self.waiting is not None:
                self.waiting.forget()

    def let_go(self) -> None:
        """Have everything due: the sets that were pending are of no use any more."""
        self.pending = [Pending(None) for _ in self.steps]
        for step in self.steps:
            step.left_out = None

    def is_due(self, place: int) -> bool:
        """Whether a foldmap has something to do."""
        pending, step = self.pending[place], self.steps[place]
        if pending.words is None or self.reads_others(place):
            return True
        count = pending.count  # 0 only if nothing was committed
        if count is None:
            count = self.exchange.count(pending.words)
        if count > 0:
            return True
        left, on = pending.left, step.on
        if left is not None and on is not None:
            left = self.device.sets.intersection(left, on)
        return left is not None and self.exchange.count(left) > 0

    @property
    def knows_counts(self) -> bool:
        """Whether it is known how many vertices are pending for each foldmap."""
        return all(p.words is None or p.count is not None for p in self.pending)

    def has_work(self) -> bool:
        """Whether any foldmap has something due, or rounded aggregates."""
        self.refresh_version()
        places = range(len(self.steps))
        return any(self.is_due(p) for p in places) or self.unproven() is not None

    def unproven(self) -> tuple[int, Any] | None:
        """Return a foldmap whose aggregates are rounded by patches, and where."""
        for place, step in enumerate(self.steps):
            words = step.unproven()
            if words is not None and self.exchange.count(words) > 0:
                return place, words
        return None

    def find_due(self) -> int | None:
        """Return the next foldmap that has something due; its turn is over then."""
        count = len(self.steps)
        for _ in range(count):
            place, self.turn = self.turn, (self.turn + 1) % count
            if self.is_due(place):
                return place
        return None

    def cannot_announce(self, number: int) -> None:
        """Have everything due behind an error, if anything may have been committed.

        Parameters
        ----------
        number : int
            Of supersteps on the State, before this one.
        """
        in_place = self.is_asynchronous or any(s.in_place for s in self.steps)
        if in_place or self.state.superstep != number:
            for waiting in self.pending:
                waiting.words = None

    def watched_results(self, place: int) -> list[tuple[Any, bool]]:
        """Return what is looked at behind a foldmap: arrays, and if for the largest."""
        extremes = self.watching.given_by(self.steps[place].plan)
        current = buffers_of(self.state, self.device).current
        return [(current[name], is_largest) for name, is_largest in extremes]

    def note_scalars(self, place: int) -> None:
        """Remember what a foldmap has read, behind its superstep.

        Where everything is due anyway nothing asks for it, and a result of a reduce
        would have to be waited for.
        """
        pending = self.pending[place]
        everything = pending.words is None
        pending.scalars = () if everything else self.scalars[place].read()

    def reads_others(self, place: int) -> bool:
        """Whether scalars that a foldmap reads are not what it has read last."""
        before = self.pending[place].scalars
        return before is not None and before != self.scalars[place].read()

    def has_all_due(self, place: int) -> bool:
        """Whether every vertex is due for a foldmap, whatever is active (S7)."""
        is_late = self.steps[place].plan.facts.has_late_reduce
        is_first = self.pending[place].scalars is None
        return self.reads_others(place) or (is_late and not is_first)

    def decisions(self, place: int) -> tuple[Any, ...]:
        """Return what the number of active vertices decides of a superstep."""
        pending = self.pending[place]
        return self.decided(place, pending.words is None, pending.active_count)

    def decided(
        self, place: int, everything: bool, count: int | None
    ) -> tuple[Any, ...]:
        """Return what would be decided if so many vertices were active."""
        if self.is_dense:  # everything is due, however many were active
            return (True,)
        return everything, *decide(self.steps[place], count)

    def would_decide(self, place: int, count: int, meant: tuple[Any, ...]) -> bool:
        """Whether so many active vertices, not all, would decide what is meant.

        Nothing is folded to know that: see `decides`.
        """
        return not meant[0] and decides(self.steps[place], count, meant[1:])


def left_over(agenda: Agenda) -> dict[FoldMap, Left]:
    """Return what a later call would have to know if a run ended here."""
    state = agenda.state
    seen = (agenda.version, agenda.superstep, agenda.seen)
    is_whole = (state.version, state.superstep, state.follow()) == seen
    told = {}
    for foldmap, pending in zip(agenda.foldmaps, all_pending(agenda), strict=True):
        known = pending if is_whole else replace(pending, words=None)
        told[foldmap.base] = host_left(known, agenda.device)
    return told


def all_pending(agenda: Agenda) -> list[Pending]:
    """Return what is pending, with what ``.on`` has left out."""
    if agenda.played is not None:  # committed vertices were not announced
        return [Pending(None)]
    return [
        pending
        if pending.left is not None or step.left_out is None
        else replace(pending, left=step.left_out.words)
        for pending, step in zip(agenda.pending, agenda.steps, strict=True)
    ]
