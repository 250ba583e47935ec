"""The loop on the host, which decides and launches supersteps one by one.

For each superstep, `HostLoop.run` finds the next foldmap with due vertices, lets it
choose how to run, runs it, counts the committed vertices, and makes them pending for
all foldmaps. For `ReplayLoop` it also makes a trace.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from featgraph.base.interrupts import deferred_interrupts
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import ActiveSet
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from featgraph.runtime.loops.near_far import Waiting
from featgraph.runtime.loops.run import Moves, Run
from featgraph.runtime.loops.run_state import RunState, Watched, announce
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording.cycles import Traced
from featgraph.runtime.superstep.exchange import Counters
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["HostLoop"]


class HostLoop:
    """Runs due foldmaps, one superstep at a time.

    Parameters
    ----------
    run_state : RunState
    traces : bool
        Whether to store a trace of each superstep in `traced`.

    Attributes
    ----------
    traced : Traced or None
        The trace of the last superstep, without its CUDA calls, which `ReplayLoop`
        adds.
    """

    name: ClassVar[str] = "host"

    def __init__(self, run_state: RunState, traces: bool = False) -> None:
        self._run_state = run_state
        self._traces = traces
        self.traced: Traced | None = None
        #: Returns the time, in s, of replayed supersteps since the current one began:
        #: it is not part of the current superstep's time.
        self.others_s: Callable[[], float] = float
        #: The counters of exchanges before the current superstep.
        self._before = Counters()

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return "": the host can run every superstep."""
        return ""

    def run(self, run: Run, most: int) -> bool:
        """Run the next foldmap with due vertices; False if none has any."""
        run_state = self._run_state
        due_next = run_state.find_due()
        if due_next is None:
            unproven = run_state.unproven()
            if unproven is not None:
                self._prove(*unproven, run)
            return unproven is not None
        place, changed = due_next
        step, pending = run_state.runs[place], run_state.pending[place]
        if run_state.is_shared:
            self._begin()
        begun = time.perf_counter()
        due = None if run_state.is_dense else pending.words
        count = None if pending.words is None else pending.count
        decisions = run_state.decisions(place) if self._traces else ()
        far = far_count = None
        if run_state.waiting is not None and not changed:
            due, far, count, far_count = self._nearest(due, run_state.waiting, step)
        if run_state.waiting is not None:
            run.thresholds.append(run_state.waiting.threshold)
        announced = due if far is not None else pending.words
        frontier = Frontier(
            due, changed, also_due=pending.left, active_count=count,
            tracks=pending.scalars is not None,
        )  # fmt: skip
        # An interrupt between a kernel and its bookkeeping would lose a commit.
        waits = step.in_place or step.is_exclusive
        with deferred_interrupts() if waits else _AT_ONCE:
            number = run_state.state.superstep
            try:
                chosen = step.choose(frontier, announced)
                if run.evaluated is not None:
                    run.evaluated += chosen.count_edges(frontier)
                committed = chosen.run(frontier)
                del frontier  # its sets go back to their pool
                if step.work == "patched":
                    step.end()
                self._note(place, run, committed, begun, decisions)
            except BaseException:
                run_state.cannot_announce(number)
                raise
            # `_note` has replaced the pending set: far vertices stay due, too.
            if far is not None and pending.words is not None:
                pending.words = run_state.device.sets.union(pending.words, far)
                if far_count is None or pending.count is None:
                    pending.count = None
                else:
                    pending.count += far_count
            run_state.note_scalars(place)
            pending.left = None  # `step.left_out` has them
        return True

    def _prove(self, place: int, words: Any, run: Run) -> None:
        """Recompute rounded aggregates in a superstep, before the run may converge."""
        if self._run_state.is_shared:
            self._begin()
        begun = time.perf_counter()
        number = self._run_state.state.superstep
        try:
            committed = self._run_state.runs[place].prove(words)
            self._note(place, run, committed, begun, ())
        except BaseException:
            self._run_state.cannot_announce(number)
            raise

    def _begin(self) -> None:
        """Store the counters of the exchange before a superstep."""
        exchange = self._run_state.exchange
        if self._run_state.moves is not None:
            exchange.begin_timed()
        self._before = exchange.counters

    def _nearest(
        self, words: Any, waiting: Waiting, step: FoldmapRun
    ) -> tuple[Any, Any, int, int | None]:
        """Return the near and far vertices of an announced set, and their numbers.

        `words` is None for all vertices, and so are the near vertices if all are near.
        The number of far ones is None on several ranks.
        """
        device, count = self._run_state.device, self._run_state.living_count
        everyone = self._run_state.runs[0].plain.bound.everyone.words
        announced = everyone if words is None else words
        near, number, others = waiting.split(announced, step.look_ahead)
        far = device.sets.without(announced, near)
        return (None if 0 < number == count else near), far, number, others

    def _note(
        self, place: int, run: Run, committed: Any, begun: float, decisions: Any
    ) -> None:
        """Count and announce the committed vertices, and record the superstep.

        Parameters
        ----------
        place : int
            Index of the foldmap that ran.
        committed : words
        begun : float
            Start of the superstep, by `time.perf_counter`.
        decisions : tuple
            The choices to store in the trace.
        """
        run_state, step = self._run_state, self._run_state.runs[place]
        if run_state.recorded is not None:
            run_state.recorded.add(committed)
        if run_state.played is not None:
            committed = run_state.played.next(committed)
        results = run_state.watched_results(place) if step.watched.extremes else ()
        reach, exchange = None, run_state.exchange
        if run_state.moves is not None:
            number, seen = self._timed(run_state.moves, committed, results, begun)
        else:
            is_alone = len(run_state.runs) == 1 and run_state.waiting is None
            if step.looks_ahead and is_alone:
                reach = step.look_ahead(committed)
            number, seen = exchange.count_and_look(committed, results, reach)
        seconds = time.perf_counter() - begun - self.others_s()
        run.add(number, seconds, step.direction, step.work)
        pieces = None
        if run_state.is_shared:
            before, now = self._before, exchange.counters
            pieces = now.sent_behind - before.sent_behind
            run.waits.append(now.waited_s - before.waited_s)
            run.pieces.append(pieces)
            for form, sent in now.forms.items():
                more = sent - before.forms.get(form, 0)
                if more:
                    run.forms[form] = run.forms.get(form, 0) + more
        if seen:
            run_state.watching.note(step.watched, seen)
        if run.active_sets is not None and run_state.recorded is None:
            words = run_state.device.sets.snapshot(committed)
            count = run_state.state.graph.vertex_count
            run.active_sets.append(ActiveSet.held(count, exchange.holder, words))
        everything = 0 < number == run_state.living_count  # there may be no vertex
        union = run_state.device.sets.union
        committed_set = None if everything else committed
        pending = run_state.pending
        announce(
            pending, place, committed_set, number, lambda _, w: union(w, committed)
        )
        if self._traces:
            sets = [p.words for p in pending]
            self.traced = Traced(
                place, decisions, everything, weakref.ref(committed),
                [_nothing if words is None else weakref.ref(words) for words in sets],
                step.direction, step.work,
                frozenset(buffers_of(run_state.state, run_state.device).unsent), pieces,
            )  # fmt: skip
        run_state.superstep = run_state.state.superstep

    def _timed(
        self, moves: Moves, committed: Any, results: Any, begun: float
    ) -> tuple[int, list[float]]:
        """Return the number of committed vertices, and extremes of results.

        All ranks exchange the times of their work with it, for `Moves`.
        """
        exchange = self._run_state.exchange
        waited = exchange.counters.waited_s - self._before.waited_s
        own = time.perf_counter() - begun - waited
        number, seen, taken = exchange.count_and_time(committed, results, own)
        moves.add(taken)
        return number, seen


#: A context in which interrupts are not deferred.
_AT_ONCE: AbstractContextManager[None] = nullcontext()


def _nothing() -> None:
    """Return None, as a weak reference to the set of all vertices would."""
