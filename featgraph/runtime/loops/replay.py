"""Supersteps that repeat, launched from recordings (0019, 0039).

After its first supersteps a run repeats its CUDA calls in a cycle: the same kernels on
the same memory, since buffers and sets swap. `ReplayLoop` traces supersteps that the
host runs. Once a cycle has repeated, its supersteps are launched from recordings, until
nothing is active, or until choices that depend on the number of active vertices have
differed from the recorded ones for some time. At first the host launches one recording
after the other, and reads the number of committed vertices while the next superstep
runs (`HostReplay`). A longer run becomes a loop on the device (`DeviceReplay`).

If another run of the same kernel has begun with a known cycle, this one may begin with
a loop at once (`StartedLoop`). The host makes the calls of the first superstep, which
are held back while they equal those of the cycle (`runtime.recording.cycles`). When it
reads the number of committed vertices, the loop runs instead, first superstep included,
and the read returns the first number in its log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from featgraph.base.activity import ACTIVITY
from featgraph.base.config import config
from featgraph.base.interrupts import deferred_interrupts
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.loops.foldmap_run import decides, patches_left
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.replay_report import HostReplay, ReplayMode, ReplayReport
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import SHARED, RunState, Watched
from featgraph.runtime.memory.buffers import Buffers, buffers_of, held_sets
from featgraph.runtime.recording.control import (
    ABOVE,
    ANY,
    BELOW,
    EVERYTHING,
    DeviceLoop,
    Orders,
    Report,
)
from featgraph.runtime.recording.cycles import Cycles, DeferredCalls, Traced

__all__ = ["ReplayLoop"]

#: With at most this many remaining supersteps, a loop has a conditional node for each,
#: so that it can end after any. A superstep takes 9 us longer then; one that a loop of
#: whole cycles would leave to the host takes 200 us (NVIDIA H100, R-MAT 2^14).
_FEW = 32
#: Longest superstep, in s, that is replayed: longer ones keep the device busy anyway,
#: and one that is launched ahead in vain costs as much.
_MOST_SECONDS = 1e-3
#: The same on ranks, which launch nothing in vain. The host's time between supersteps
#: does not shrink with the number of ranks, and all wait for the slowest host.
_MOST_SHARED_SECONDS = 2e-2
#: Longest time, in s, of supersteps that are launched as recorded though the active
#: count now leads to other choices. Changing takes about as long, since the host runs
#: and traces three or four supersteps first (NVIDIA H200), so that neither way costs
#: much more than the other.
_MOST_LATE = 5e-4


def may_be_late(run_state: RunState, traced: Traced) -> bool:
    """Whether a recorded superstep may be repeated though its choices have changed.

    In a superstep with all vertices due, gathers also read sources that were not
    announced, and aggregates are recomputed. Repeating it gives the same values only if
    the foldmap announces all changes and no aggregate is incremental. The same holds
    for reduces, which give the same result after the end of a run only if all changes
    are announced.
    """
    all_due, step = traced.decisions[0], run_state.runs[traced.place]
    all_due = all_due or step.plan.facts.reads_foreign
    if run_state.is_dense or not (all_due or step.plan.facts.reductions):
        return True
    return step.announces and not (all_due and traced.keeps)


class ReplayLoop:
    """Runs supersteps from recordings, or as `HostLoop` does to record them.

    Parameters
    ----------
    run_state : RunState
    """

    name: ClassVar[str] = "replay"

    def __init__(self, run_state: RunState) -> None:
        recorder = run_state.device.recorder
        if recorder is None:
            raise TypeError("a device without a recorder")
        self._run_state = run_state
        self._host = HostLoop(run_state, traces=True)
        self._recorder = recorder
        self._cycles = Cycles(len(run_state.runs), recorder.known)
        self._stage = run_state.stage
        #: Key of the beginning of the run: see `_beginning`. None before it.
        self._begins: tuple[Any, ...] | None = None
        self._is_shared = run_state.state.graph.ranks is not None
        # With uploads, the calls of the first superstep would not equal known ones.
        for step in run_state.runs:
            step.plain.bound.bring()

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why the loop cannot run any superstep of a run; "" if it can."""
        if watched.device.recorder is None:
            return f"{watched.device.name} has no launches to record"
        if watched.is_shared and not watched.stays_on_device:
            return SHARED
        if watched.sets and not watched.are_sets_here:
            return f"{watched.sets} takes sets of each superstep to the host"
        if watched.is_timed:
            return "repartition= inspects each superstep"
        if watched.by and not watched.looks_at_results:
            return f"{watched.by} inspects each superstep"
        return "" if config.replay else "fg.config.replay is False"

    def run(self, run: Run, most: int) -> bool:
        """Run one superstep, or up to `most`; False if nothing is due."""
        run_state = self._run_state
        if self._stage != run_state.stage:  # sets and scalars may be others
            self._stage = run_state.stage
            self._cycles.forget()
        if self._replay(run, most):
            return True
        if self._begins is None and len(run_state.runs) == 1:
            self._begins = self._beginning()
            cycle = self._recorder.known.begun.get(self._begins)
            if cycle is not None and self._is_likely(cycle):
                return self._start(run, cycle, most)
        return self._trace(run, most)

    def _trace(self, run: Run, most: int, deferred: Any = None) -> bool:
        """Run a superstep as the host does, and add the trace of its calls to `Cycles`.

        `deferred` holds back the calls that it expects.
        """
        run_state = self._run_state
        self._recorder.begin(self._buffers.pools[0], deferred)
        try:
            is_run = self._host.run(run, most)
        finally:
            operations = self._recorder.end()
        made, self._host.traced = self._host.traced, None
        if is_run and made is not None:
            made.operations, made.taken = operations, self._recorder.taken
            made.stale = held_sets(self._buffers)
            sets = [s for p in run_state.pending for s in (p.words, p.left)]
            made.behind = tuple(map(id, sets))
            self._cycles.add(made)
        return is_run

    @property
    def _buffers(self) -> Buffers:
        return buffers_of(self._run_state.state, self._run_state.device)

    def _beginning(self) -> tuple[Any, ...]:
        """Return the key for known first cycles, for a run of one foldmap.

        Runs with equal keys mostly make equal calls, but need not.
        """
        buffers, run_state = self._buffers, self._run_state
        arrays = map(id, buffers.current.values())
        extremes, kernel = run_state.watching.extremes, run_state.runs[0].plain.kernel
        return id(kernel), extremes, id(buffers.pools[0]), *arrays

    def _is_likely(self, cycle: Sequence[Traced]) -> bool:
        """Whether the first superstep of this run may begin a known cycle."""
        [pending], [step] = self._run_state.pending, self._run_state.runs
        is_all = pending.words is None and pending.left is None and step.on is None
        return is_all and not self._is_shared and self._continues(cycle[0])

    def _start(self, run: Run, cycle: Sequence[Traced], most: int) -> bool:
        """Run the first superstep, and further ones in a loop that begins with it.

        If the calls of the superstep differ from those of the cycle, it runs alone.
        """
        _, how = self._how(cycle, most)
        recordings = self._recordings(cycle)
        loop = None
        if None not in recordings:
            loop = self._recorder.loop(recordings, 1, how.is_exact)
        if loop is None or loop.step > how.limit:
            return self._trace(run, most)
        with deferred_interrupts() as came:
            started = StartedLoop(
                self._run_state, run, cycle, loop, how, came, self._recorder.are_free
            )
            # No reference cycle: the State is freed without the garbage collector.
            deferred = DeferredCalls(cycle[0].operations or (), started.run)
            self._host.others_s = lambda: started.away_s
            try:
                is_run = self._trace(run, most, deferred)
            except BaseException:
                started.account()
                for waiting in self._run_state.pending:
                    waiting.words = None
                raise
            finally:
                self._host.others_s = float
            if not started.account():
                self._cycles.forget()
        return is_run

    def _recordings(self, cycle: Sequence[Traced]) -> list[Any]:
        """Return the recording of each superstep; None for one that cannot be made."""
        return [self._recorder.record(t.operations or ()) for t in cycle]

    def _replay(self, run: Run, most: int) -> bool:
        """Run supersteps of a repeated cycle; False if none was run."""
        if self._is_shared and not self._run_state.knows_counts:
            return False  # counting pending vertices takes an exchange of hosts
        longest = _MOST_SECONDS
        if self._is_shared:
            longest = max(longest, _MOST_SHARED_SECONDS)
        for cycle in self._cycles.find(self._may_join):
            length = len(cycle)
            if sum(run.seconds[-length:]) > length * longest:
                continue
            how, looped = self._how(cycle, most)
            if looped.limit == 0 or not self._continues(cycle[0]):
                continue
            recordings = self._recordings(cycle)
            if None in recordings:
                continue
            if not self._run_cycles(run, cycle, recordings, how, looped):
                continue
            return True
        return False

    def _how(self, cycle: Sequence[Traced], most: int) -> tuple[ReplayMode, ReplayMode]:
        """Return the modes in which the host and a loop run supersteps of a cycle.

        For few remaining supersteps the loop is exact, so that it leaves none of them
        to the host.
        """
        may_all = all(may_be_late(self._run_state, t) for t in cycle)
        # Another rank may run a superstep by its host. So no superstep is run that the
        # host would not run, which all hosts decide by the same counts.
        late = _MOST_LATE if may_all and not self._is_shared else 0
        is_exact = late == 0 or self._run_state.watching.test is not None
        how = ReplayMode(self._limit(cycle, most, is_exact), late, is_exact)
        if is_exact or most > _FEW or any(t.work == "kept" for t in cycle):
            return how, how
        return how, ReplayMode(self._limit(cycle, most, True), late, True)

    def _run_cycles(
        self,
        run: Run,
        cycle: list[Traced],
        recordings: list[Any],
        how: ReplayMode,
        looped: ReplayMode,
    ) -> bool:
        """Run supersteps of a cycle, in a loop on the device if one exists.

        `how` is for launches by the host, `looped` for the loop. False if no superstep
        has run.
        """
        run_state = self._run_state
        turns = len(run_state.runs)
        loop_of = partial(self._recorder.loop, recordings, turns, looped.is_exact)
        loop = loop_of()
        wants_host = run_state.wants_host or bool
        known = run_state.knows_counts
        is_looped = loop is not None and loop.step <= looped.limit and known
        if not is_looped and how.limit == 0:
            return False
        is_first = run.supersteps == 1 and self._begins is not None
        if is_first and self._cycles.begin_with(cycle[-1]):
            begun = [cycle[-1], *cycle[:-1]]
            self._recorder.known.begun.put(self._begins, begun)
        if is_looped and loop is not None:
            is_whole = DeviceReplay(run_state, run, cycle, loop).run(looped)
        else:
            host_replay = HostReplay(run_state, run, cycle, recordings, how)
            is_short = loop is not None and known
            is_whole = host_replay.run(
                lambda: (not is_short and loop_of() is not None) or wants_host()
            )
        if not is_whole:  # the next superstep is not the first of the cycle
            self._cycles.forget()
        return True

    def _limit(self, cycle: Sequence[Traced], most: int, is_exact: bool) -> int:
        """Return the most supersteps to replay: whole cycles, unless `is_exact`."""
        run_state, length = self._run_state, len(cycle)
        if is_exact and any(t.work == "kept" for t in cycle):
            return 0  # `Incremental` has new sets then, known after a whole cycle only
        places = [t.place for t in cycle]
        turns = len(run_state.runs)
        if places != [(run_state.turn + i) % turns for i in range(length)]:
            return 0
        if turns > 1 and any(made() is None for t in cycle for made in t.pending):
            return 0  # all vertices were pending for a foldmap, without a set
        lefts = [
            length * (left // places.count(place))
            for place, step in enumerate(run_state.runs)
            if (left := patches_left(step)) is not None
        ]
        if run_state.supersteps_left is not None:
            most = min(most, run_state.supersteps_left())
        if run_state.recorded is not None:
            most = min(most, run_state.recorded.room)
        return min([most if is_exact else most - most % length, *lefts])

    def _may_join(self, following: Traced) -> bool:
        """Whether `following`, traced in another run, may be the next superstep here.

        Its predecessor there made the calls of the last superstep here. False on ranks,
        which join whole repetitions only, and for foldmaps with ``.on``.
        """
        run_state, place = self._run_state, following.place
        if self._is_shared or run_state.runs[place].on is not None:
            return False
        if run_state.pending[place].words is not None and run_state.reads_others(place):
            return False
        pools = self._buffers.pools
        return self._recorder.are_free(following.taken, pools[0])

    def _continues(self, first: Traced) -> bool:
        """Whether the next superstep is due, with the choices of a cycle's first."""
        run_state = self._run_state
        run_state.refresh_version()
        is_due = run_state.pending[first.place].active_count != 0
        return is_due and run_state.decisions(first.place) == first.decisions


class StartedLoop:
    """A loop on the device that begins with the first superstep of a run.

    The host makes the calls of that superstep, and `DeferredCalls` holds them back.

    Parameters
    ----------
    run_state : RunState
        Of one foldmap, with every vertex due.
    run : Run
    cycle : sequence of Traced
        The supersteps of the loop, from the first superstep of the run on.
    loop : DeviceLoop
    how : ReplayMode
    came : list
        Deferred interrupts that have come so far.
    are_free : callable
        Returns whether sets that were taken from some pools exist and are unused.

    Attributes
    ----------
    away_s : float
        Time, in s, of the supersteps after the first.
    """

    def __init__(
        self,
        run_state: RunState,
        run: Run,
        cycle: Sequence[Traced],
        loop: DeviceLoop,
        how: ReplayMode,
        came: list[int],
        are_free: Any,
    ) -> None:
        self._run_state, self._cycle = run_state, cycle
        self._how, self._came = how, came
        self._replay_on_device = DeviceReplay(run_state, run, cycle, loop)
        self._are_free = are_free
        self.away_s = 0.0

    def run(self) -> npt.NDArray[np.int64] | None:
        """Run the loop; return the words that the host reads after the first superstep.

        They are its number of committed vertices and its watched extremes. Called when
        the host has made all calls of that superstep. None, without a run, if the next
        superstep is not certain to be the second of the cycle: see `Cycles.find`.
        """
        run_state, first, following = self._run_state, self._cycle[0], self._cycle[1]
        buffers = buffers_of(run_state.state, run_state.device)
        if first.committed() is None or held_sets(buffers) != first.stale:
            return None
        if not self._are_free(following.taken, buffers.pools[0]):
            return None
        report = self._replay_on_device.launch(self._how, self._came)
        self.away_s = sum(report.seconds[1:])
        seen = np.array(report.seen[0], np.float64).view(np.int64)
        return np.concatenate([np.array(report.counts[:1], np.int64), seen])

    def account(self) -> bool:
        """Record the supersteps after the first; True if the last cycle is whole."""
        return self._replay_on_device.account(1)


#: Time limit of a loop on the device, in s: Python handles no interrupts meanwhile.
_MOST_AWAY = 0.05
#: Smallest and largest active count for which a superstep runs as recorded.
Counts = tuple[int, int]
#: An empty range: the superstep must not be launched as recorded.
_NONE = 1, 0


class DeviceReplay:
    """Runs cycles in a loop on the device, and adds them to the record of the run.

    The loop ends where `HostReplay` would begin no further cycle: nothing is due, the
    limit is reached, or supersteps have run too long with other choices than their
    active counts imply. It also ends after `_MOST_AWAY`, and at an interrupt. `launch`
    runs the loop and reads its log, `account` updates run, pending sets and State.

    Parameters
    ----------
    run_state : RunState
        The number of pending vertices of each foldmap must be known, or all pending.
    run : Run
    cycle : sequence of Traced
        The first of them is due.
    loop : DeviceLoop
        The loop of the cycle.
    """

    def __init__(
        self, run_state: RunState, run: Run, cycle: Sequence[Traced], loop: DeviceLoop
    ) -> None:
        self._run_state, self._cycle, self._loop = run_state, cycle, loop
        self._run = run
        self._report: Report | None = None

    def run(self, how: ReplayMode) -> bool:
        """Run one loop; return whether it has ended with a whole cycle."""
        # An interrupt between a launch and its bookkeeping would lose commits.
        with deferred_interrupts() as came:
            try:
                try:
                    self.launch(how, came)
                finally:
                    is_whole = self.account()
            except BaseException:
                for waiting in self._run_state.pending:
                    waiting.words = None
                raise
        return is_whole

    def launch(self, how: ReplayMode, came: list[int]) -> Report:
        """Run one loop, and return its results.

        An interrupt in `came`, which is otherwise deferred, ends the loop.
        """
        run_state, loop = self._run_state, self._loop
        orders = Orders(
            limit=min(how.limit - how.limit % loop.step, loop.most),
            seconds=_MOST_AWAY,
            late_seconds=how.most_late,
            # -1, which no count equals: a count of 0 must not stand for all vertices.
            vertices=run_state.state.graph.living_count or -1,
            pending=tuple(
                EVERYTHING if p.words is None or p.count is None else p.count
                for p in run_state.pending
            ),
            steps=tuple(
                (t.place, *self._counts(t), run_state.runs[t.place].watched.tested)
                for t in self._cycle
            ),
            test=self._test(),
        )
        begun = time.perf_counter()
        ACTIVITY.enter(run_state.state.superstep, "all, in a loop of the GPU")
        loop.launch(orders)
        try:
            while not loop.is_done():
                if came:
                    loop.stop()
        finally:
            # After an exception the device is still in the loop; `read` waits for it.
            loop.stop()
            self._report = report = loop.read()
            seconds = report.seconds
            seconds[0] = max(time.perf_counter() - begun - sum(seconds), 0.0)
        return report

    def _test(self) -> tuple[int, float]:
        """Return the stopping test of the run: `BELOW` or `ABOVE`, and the bound."""
        test = self._run_state.watching.test
        side = ABOVE if test is not None and test.side == "above" else BELOW
        return side, 0.0 if test is None else test.limit

    def account(self, first: int = 0) -> bool:
        """Record the supersteps of the loop, except a last one that failed on a rank.

        Parameters
        ----------
        first : int
            Number of supersteps that the host has recorded itself.

        Returns
        -------
        bool
            Whether the next superstep is the next of the cycle.
        """
        report, shape, cycle = self._report, self._loop.shape, self._cycle
        if report is None:
            return True
        rotated = [*cycle[first:], *cycle[:first]]
        records = ReplayReport(self._run_state, self._run, rotated)
        lost = min(report.counts[-1], 0)
        ran = slice(first, len(report.counts) - (lost < 0))
        counts = report.counts[ran]
        # An exact loop runs no superstep that the host would not run.
        last = shape.together + -first % shape.length
        last = len(counts) % shape.length if shape.is_exact else last
        last = min(last, len(counts))
        records.add_all(counts, report.seconds[ran], report.seen[ran], last)
        records.settle()
        self._run_state.exchange.check_count(lost)
        return records.is_whole

    def _counts(self, traced: Traced) -> Counts:
        """Return the range of active counts for which a superstep runs as recorded."""
        run_state, place, meant = self._run_state, traced.place, traced.decisions
        if run_state.is_dense:
            return ANY
        if meant[0]:
            return EVERYTHING, EVERYTHING

        def is_meant(count: int) -> bool:
            return decides(run_state.runs[place], count, meant[1:])

        # A choice that needs another kernel is made when it is due.
        key = place, meant, run_state.runs[place].knows_patching
        known: Counts | None = self._loop.decided.get(key)
        if known is None or not all(map(is_meant, known)):
            count = run_state.pending[place].count or 1
            most = len(run_state.runs) * run_state.state.graph.vertex_count
            known = self._loop.decided[key] = find_counts(is_meant, count, most)
        return known


def find_counts(is_meant: Callable[[int], bool], near: int, most: int) -> Counts:
    """Return the smallest and the largest count for which a condition holds.

    The condition is assumed to hold for all counts in between, since each choice
    changes at one threshold. `near`, all powers of two and `most` are tried; if it
    holds for none of these, it is assumed to hold nowhere.

    Parameters
    ----------
    is_meant : callable
        Whether the condition holds for a count.
    near : int
        The count that is tried first.
    most : int
        The largest possible count; the smallest is 1.
    """
    tried = chain([near], (1 << bit for bit in range(most.bit_length())), [most])
    known = next(filter(is_meant, tried), None)
    if known is None:
        return _NONE
    return _last(is_meant, known, 1), _last(is_meant, known, most)


def _last(is_meant: Callable[[int], bool], known: int, end: int) -> int:
    """Return the last count for which a condition holds, by bisection.

    It holds for `known`; the result lies between `known` and `end`.
    """
    if is_meant(end):
        return end
    while abs(end - known) > 1:
        middle = (known + end) // 2
        if is_meant(middle):
            known = middle
        else:
            end = middle
    return known
