"""The loop on the host, which decides and launches supersteps one by one."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from featgraph.base.interrupts import deferred_interrupts
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import ActiveSet
from featgraph.runtime.loops.foldmap_run import Step
from featgraph.runtime.loops.near_far import Waiting
from featgraph.runtime.loops.pending import announce
from featgraph.runtime.loops.protocol import Watched
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Agenda
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording.cycles import Traced
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["HostLoop"]


class HostLoop:
    """Runs due foldmaps, one superstep at a time.

    Parameters
    ----------
    agenda : Agenda
    traces : bool
        Set `traced` to the trace of the last superstep.
    """

    name: ClassVar[str] = "host"

    def __init__(self, agenda: Agenda, traces: bool = False) -> None:
        self._agenda = agenda
        self._traces = traces
        self.traced: Traced | None = None
        #: Returns the time of other supersteps since the current one began, in s.
        self.others_s: Callable[[], float] = float
        self._waited_s = 0.0
        self._forms: dict[str, int] = {}
        self._sent_behind = 0

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return "": the host can run every superstep."""
        return ""

    def run(self, run: Run, most: int) -> bool:
        """Run the next foldmap with due vertices; False if none has any."""
        agenda = self._agenda
        agenda.refresh_version()
        place = agenda.find_due()
        if place is None:
            unproven = agenda.unproven()
            if unproven is not None:
                self._prove(*unproven, run)
            return unproven is not None
        step, pending = agenda.steps[place], agenda.pending[place]
        changed = pending.words is not None and agenda.has_all_due(place)
        self._begin()
        begun = time.perf_counter()
        due = None if agenda.is_dense else pending.words
        count = pending.active_count
        decisions = agenda.decisions(place) if self._traces else ()
        far = far_count = None
        if agenda.waiting is not None and not changed:
            due, far, count, far_count = self._nearest(due, agenda.waiting, step)
        if agenda.waiting is not None:
            run.thresholds.append(agenda.waiting.threshold)
        announced = due if far is not None else pending.words
        frontier = Frontier(
            due, changed, also_due=pending.left, active_count=count,
            tracks=pending.scalars is not None,
        )  # fmt: skip
        # An interrupt between a kernel and its bookkeeping would lose a commit.
        with deferred_interrupts(step.in_place):
            number = agenda.state.superstep
            try:
                chosen = step.choose(frontier, announced)
                if run.evaluated is not None:
                    run.evaluated += chosen.count_edges(frontier)
                committed = chosen.run(frontier)
                del frontier  # its sets go back to their pool
                step.end()
                self._note(place, run, committed, begun, decisions)
            except BaseException:
                agenda.cannot_announce(number)
                raise
            if far is not None and pending.words is not None:
                pending.words = agenda.device.sets.union(pending.words, far)
                if far_count is None or pending.count is None:
                    pending.count = None
                else:
                    pending.count += far_count
            agenda.note_scalars(place)
            pending.left = None  # `step.left_out` has them
        return True

    def _prove(self, place: int, words: Any, run: Run) -> None:
        """Recompute aggregates that patches have rounded: convergence must be exact."""
        self._begin()
        begun = time.perf_counter()
        number = self._agenda.state.superstep
        try:
            committed = self._agenda.steps[place].prove(words)
            self._note(place, run, committed, begun, ())
        except BaseException:
            self._agenda.cannot_announce(number)
            raise

    def _begin(self) -> None:
        """Store the counters of the exchange before a superstep."""
        exchange = self._agenda.exchange
        if self._agenda.moves is not None:
            exchange.begin_timed()
        self._waited_s, self._forms = exchange.waited_s, dict(exchange.forms)
        self._sent_behind = exchange.sent_behind

    def _nearest(
        self, words: Any, waiting: Waiting, step: Step
    ) -> tuple[Any, Any, int, int | None]:
        """Return the near and far vertices of an announced set, and their numbers."""
        device, count = self._agenda.device, self._agenda.state.graph.living_count
        everyone = self._agenda.steps[0].plain.bound.everyone.words
        announced = everyone if words is None else words
        near, number, others = waiting.split(announced, step.look_ahead)
        far = device.sets.without(announced, near)
        return (None if 0 < number == count else near), far, number, others

    def _note(
        self, place: int, run: Run, committed: Any, begun: float, decisions: Any
    ) -> None:
        """Announce the committed vertices, and record the superstep."""
        agenda, step = self._agenda, self._agenda.steps[place]
        if agenda.recorded is not None:
            agenda.recorded.add(committed)
        if agenda.played is not None:
            committed = agenda.played.next(committed)
        results = agenda.watched_results(place)
        number, seen = self._counted(step, committed, results, begun)
        graph = agenda.state.graph
        seconds = time.perf_counter() - begun - self.others_s()
        run.add(number, seconds, step.direction, step.work)
        pieces = None
        if graph.ranks is not None:
            pieces = agenda.exchange.sent_behind - self._sent_behind
            run.waits.append(agenda.exchange.waited_s - self._waited_s)
            run.pieces.append(pieces)
            for form, sent in agenda.exchange.forms.items():
                more = sent - self._forms.get(form, 0)
                if more:
                    run.forms[form] = run.forms.get(form, 0) + more
        agenda.watching.note(step.plan, seen)
        if run.active_sets is not None and agenda.recorded is None:
            words = agenda.device.sets.snapshot(committed)
            holder = agenda.exchange.holder
            run.active_sets.append(ActiveSet.held(graph.vertex_count, holder, words))
        everything = 0 < number == graph.living_count  # there may be no vertex
        union = agenda.device.sets.union
        told = None if everything else committed
        announce(agenda.pending, place, told, number, lambda _, w: union(w, committed))
        if self._traces:
            sets = [p.words for p in agenda.pending]
            self.traced = Traced(
                place, decisions, everything, weakref.ref(committed),
                [_nothing if words is None else weakref.ref(words) for words in sets],
                step.direction, step.work,
                frozenset(buffers_of(agenda.state, agenda.device).unsent), pieces,
            )  # fmt: skip
        agenda.superstep = agenda.state.superstep

    def _counted(
        self, step: Step, committed: Any, results: Any, begun: float
    ) -> tuple[int, list[float]]:
        """Return the number of committed vertices, and extremes of results.

        If ranks may get other vertices, they exchange their times with it.
        """
        agenda, exchange = self._agenda, self._agenda.exchange
        if agenda.moves is not None and agenda.moves.times_ranks:
            waited = exchange.waited_s - self._waited_s
            own = time.perf_counter() - begun - waited
            number, seen, taken = exchange.count_and_time(committed, results, own)
            agenda.moves.add(taken)
            return number, seen
        reach = None
        if len(agenda.steps) == 1 and agenda.waiting is None:
            reach = step.look_ahead(committed)
        return exchange.count_and_look(committed, results, reach)


def _nothing() -> None:
    """Return None, as a weak reference to the set of all vertices would."""
