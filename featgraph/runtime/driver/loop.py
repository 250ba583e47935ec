"""The loop of a run: which foldmap runs, and what it is told of commits."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from featgraph._interrupts import held_back
from featgraph.fold.plan.options import IN_PLACE
from featgraph.program.active import ActiveSet
from featgraph.program.snapshot import Left
from featgraph.program.state import State
from featgraph.runtime.devices.cycles import Traced
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.driver.foldmap import FoldMap
from featgraph.runtime.driver.near_far import (
    NEAR_FAR,
    NearFar,
    Waiting,
    checked_near_far,
)
from featgraph.runtime.driver.pending import (
    Pending,
    announce,
    begin_pending,
    host_left,
    keep_pending,
    recall_pending,
    release_pending,
)
from featgraph.runtime.driver.run import Run
from featgraph.runtime.driver.step import (
    check_any_order,
    check_dense,
    decide,
    make_steps,
)
from featgraph.runtime.driver.worklist import knows_key
from featgraph.runtime.memory.scalars import ScalarsRead
from featgraph.runtime.superstep.bound import full_words
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["Loop", "decisions_of", "left_over"]


class Loop:
    """The foldmaps of one call, and what is pending for each."""

    def __init__(
        self,
        foldmaps: list[FoldMap],
        state: State,
        device: Device,
        options: dict[str, Any],
        active: Any,
        recompute_every: int | None,
        near_far: NearFar | None,
        alone: bool,  # the state is not observed between supersteps
        goes_on: bool,  # `then=` may continue, where nothing is due
    ) -> None:
        self.foldmaps = foldmaps
        self.state = state
        self.device = device
        self.steps = make_steps(foldmaps, state, device, options, recompute_every)
        #: Every vertex is active in every superstep.
        self.is_dense = options.get("change_driven") is False
        if self.is_dense:
            check_dense(self.steps, active, goes_on)
        self.is_asynchronous = bool(options.get("asynchronous", False))
        self.waiting: Waiting | None = None
        if self.is_asynchronous:
            check_any_order(self.steps, IN_PLACE)
        #: Whether supersteps may run in one go.
        self.in_a_loop = alone and len(self.steps) == 1 and self.steps[0].may_queue
        near_far = checked_near_far(near_far)
        waits_in_a_loop = self.in_a_loop and knows_key(self.steps[0].plain, near_far)
        if near_far is not None and near_far.optional:
            is_free = waits_in_a_loop and self.steps[0].change_driven is not True
            near_far = near_far if is_free else None
        if near_far is not None:
            check_any_order(self.steps, NEAR_FAR)
            plans = [step.plan for step in self.steps]
            self.waiting = Waiting(near_far, plans, state, device, waits_in_a_loop)
        for step in self.steps:
            step.may_keep = self.waiting is None and not self.is_asynchronous
            step.spreads = self.waiting is None
            step.may_sweep_all &= self.waiting is None  # far vertices wait
        self.version = state.version
        self.superstep = state.superstep
        self.turn = 0
        #: How often the run has begun anew.
        self.stage = 0
        #: Whether `traced` tells of the superstep that was run last.
        self.is_traced = False
        self.traced: Traced | None = None
        self.scalars = [ScalarsRead(state, s.plan.facts.scalars) for s in self.steps]
        self.pending = [
            recall_pending(f, state, device) if active is None
            else begin_pending(active, state, device)
            for f in foldmaps
        ]  # fmt: skip

    def begin(self, active: Any) -> bool:
        """Go on with some vertices, and no others; False if there are none."""
        begun = self.pending  # nothing is due, but for what .on leaves out
        if active is not None:
            begun = [begin_pending(active, self.state, self.device) for _ in begun]
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

    def release(self) -> None:
        """Hold nothing of an earlier call but what is pending here; `keep` ends it."""
        release_pending(self.foldmaps, self.state)

    def keep(self) -> None:
        """Remember what stays due for a later call: all, behind a write that failed."""
        self.refresh_version()
        keep_pending(self.foldmaps, _all_pending(self), self.state, self.device)

    def refresh_version(self) -> None:
        """Make everything due behind a write, or a superstep, from outside."""
        seen = (self.version, self.superstep)
        if (self.state.version, self.state.superstep) != seen:
            self.version, self.superstep = self.state.version, self.state.superstep
            for pending in self.pending:
                pending.words = None
            if self.waiting is not None:
                self.waiting.forget()

    def _is_due(self, place: int) -> bool:
        pending, step = self.pending[place], self.steps[place]
        scalars = self.scalars[place].read()
        if pending.words is None or _differ(pending.scalars, scalars):
            return True
        count = pending.count  # 0 only if nothing was committed
        if count is None:
            count = self.device.count(pending.words)
        if count > 0:
            return True
        left, on = pending.left, step.on
        if left is not None and on is not None:
            left = self.device.words_and(left, on)
        return left is not None and self.device.count(left) > 0

    def has_work(self) -> bool:
        """Whether any foldmap has something due, or rounded aggregates."""
        self.refresh_version()
        places = range(len(self.steps))
        return any(self._is_due(p) for p in places) or self._unproven() is not None

    def _unproven(self) -> tuple[int, Any] | None:
        """Return a foldmap whose aggregates are rounded by patches, and where."""
        for place, step in enumerate(self.steps):
            words = step.unproven()
            if words is not None and self.device.count(words) > 0:
                return place, words
        return None

    def _find_due(self) -> int | None:
        """Return the next foldmap that has something due; its turn is over then."""
        count = len(self.steps)
        for _ in range(count):
            place, self.turn = self.turn, (self.turn + 1) % count
            if self._is_due(place):
                return place
        return None

    def advance(self, run: Run, most: int) -> bool:
        """Run the next foldmap that has something due; False if none has.

        Up to `most` supersteps may run in one go.
        """
        self.refresh_version()
        place = self._find_due()
        if place is None:
            unproven = self._unproven()
            if unproven is not None:
                self._prove(*unproven, run)
            return unproven is not None
        if self.in_a_loop and self._run_several(run, most):
            return True
        step, pending = self.steps[place], self.pending[place]
        scalars = self.scalars[place].read()
        changed = pending.words is not None and _differ(pending.scalars, scalars)
        begun = time.perf_counter()
        due = None if self.is_dense else pending.words
        count = pending.active_count
        decisions = decisions_of(self, place) if self.is_traced else ()
        far = None
        if self.waiting is not None and not changed:
            due, far, count = self._nearest(due, self.waiting)
        if self.waiting is not None:
            run.thresholds.append(self.waiting.threshold)
        announced = due if far is not None else pending.words
        frontier = Frontier(
            due, changed, also_due=pending.left, active_count=count,
            tracks=pending.scalars is not None,
        )  # fmt: skip
        # No interrupt between a kernel and what tells of it.
        with held_back(step.in_place):
            with self.announcing():
                committed = step.choose(frontier, announced).run(frontier)
                del frontier  # memory of its sets is used again
                step.end()
                self._note(place, run, committed, begun, decisions)
            if far is not None and pending.words is not None:
                pending.words = self.device.words_or(pending.words, far)
                pending.count = None
            pending.scalars = scalars
            pending.left = None  # the step knows
        return True

    def _prove(self, place: int, words: Any, run: Run) -> None:
        """Recompute what patches have rounded: convergence must be exact."""
        begun = time.perf_counter()
        with self.announcing():
            committed = self.steps[place].prove(words)
            self._note(place, run, committed, begun, ())

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Have everything due if what is committed here cannot be announced."""
        number = self.state.superstep
        in_place = self.is_asynchronous or any(s.in_place for s in self.steps)
        try:
            yield
        except BaseException:
            if in_place or self.state.superstep != number:
                for waiting in self.pending:
                    waiting.words = None
            raise

    def _run_several(self, run: Run, most: int) -> bool:
        """Run supersteps of the only foldmap in one go; False if none was run."""
        step, pending = self.steps[0], self.pending[0]
        words, scalars = pending.words, self.scalars[0].read()
        changed = _differ(pending.scalars, scalars)
        if self.is_dense or pending.left is not None or changed:
            return False
        begun = time.perf_counter()
        # Supersteps behind which an interrupt comes are from outside: see `keep`.
        ran = step.run_several(words, self.waiting, most)
        if ran is None:
            return False
        seconds = time.perf_counter() - begun
        run.add_several(ran.counts, step.work, seconds)
        run.thresholds += ran.thresholds
        everything = ran.size == self.state.graph.vertex_count
        pending.words = None if everything else ran.words
        pending.count, pending.scalars = ran.size, scalars
        self.superstep = self.state.superstep
        return True

    def _nearest(self, words: Any, waiting: Waiting) -> tuple[Any, Any, int]:
        """Return the near ones of what is announced, the others, how many are near."""
        full = full_words(self.device, self.state.graph.vertex_count)
        announced = full if words is None else words
        near, count = waiting.split(announced)
        far = self.device.words_without(announced, near)
        everything = count == self.state.graph.vertex_count
        return (None if everything else near), far, count

    def _note(
        self, place: int, run: Run, committed: Any, begun: float, decisions: Any
    ) -> None:
        """Announce what was committed, and record the superstep."""
        number = self.device.count(committed)
        step, seconds = self.steps[place], time.perf_counter() - begun
        run.add(number, seconds, step.direction, step.work)
        if run.active_sets is not None:
            words = np.array(self.device.download(committed))
            count = self.state.graph.vertex_count
            run.active_sets.append(ActiveSet.from_words(count, words))
        everything = number == self.state.graph.vertex_count
        union = self.device.words_or
        told = None if everything else committed
        announce(self.pending, place, told, number, lambda _, w: union(w, committed))
        if self.is_traced:
            sets = [p.words for p in self.pending]
            self.traced = Traced(
                place, decisions, everything, weakref.ref(committed),
                [_nothing if words is None else weakref.ref(words) for words in sets],
                step.direction, step.work,
            )  # fmt: skip
        self.superstep = self.state.superstep


def left_over(loop: Loop) -> dict[FoldMap, Left]:
    """Return what a later call would have to know if a run ended here."""
    seen, state = (loop.version, loop.superstep), loop.state
    is_whole = (state.version, state.superstep) == seen
    told = {}
    for foldmap, pending in zip(loop.foldmaps, _all_pending(loop), strict=True):
        known = pending if is_whole else replace(pending, words=None)
        told[foldmap.base] = host_left(known, loop.device)
    return told


def _all_pending(loop: Loop) -> list[Pending]:
    """Return what is pending, with what ``.on`` has left out."""
    return [
        pending
        if pending.left is not None or step.left_out is None
        else replace(pending, left=step.left_out.words)
        for pending, step in zip(loop.pending, loop.steps, strict=True)
    ]


def _nothing() -> None:
    """Stand in for a reference to the set of all vertices, which is None."""


def _differ(before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> bool:
    return before is not None and before != now


def decisions_of(loop: Loop, place: int) -> tuple[Any, ...]:
    """Return what the number of active vertices decides of a foldmap's superstep."""
    if loop.is_dense:  # everything is due, however many were active
        return (True,)
    count = loop.pending[place].active_count
    return loop.pending[place].words is None, *decide(loop.steps[place], count)
