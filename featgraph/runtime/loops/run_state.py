"""The state of a run, and the interface of the loops that run its supersteps (0033).

`RunState` has the foldmaps of a run and the pending vertices of each. A vertex is
pending for a foldmap if it was committed after the foldmap last ran. At the end of a
run `RunState.store_pending` stores these vertices in the State, and `recall_pending`
returns them in the next call of `iterate`. A `SuperstepLoop` is made for one run state;
`Watched` lists the properties of a run that may rule a loop out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import resized, word_count
from featgraph.program.following import Seen
from featgraph.program.saved import Left
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.foldmap_run import FoldmapRun, decide
from featgraph.runtime.loops.near_far import Waiting
from featgraph.runtime.loops.run import Moves, Run
from featgraph.runtime.loops.stopping import Watching
from featgraph.runtime.memory.buffers import ScalarsRead, arrays_for
from featgraph.runtime.superstep.catch_up import find_due, warn_of_losses
from featgraph.runtime.superstep.exchange import exchange_of
from featgraph.runtime.superstep.foldmap import FoldMap, as_active, words_on

__all__ = [
    "SHARED",
    "Pending",
    "QueueRun",
    "RunState",
    "SuperstepLoop",
    "Watched",
    "all_pending",
    "announce",
    "begin_pending",
    "host_left",
    "left_over",
    "recall_pending",
]


@dataclass
class Pending:
    """Vertices that one foldmap has not processed yet.

    Attributes
    ----------
    words : words or None
        The active set A of the next superstep: vertices committed since the foldmap
        last ran. None if every vertex is due.
    left : words or None
        Vertices that were due in an earlier superstep, and that ``.on`` excluded.
    scalars : tuple or None
        The scalars that the foldmap read when it last ran: see `ScalarsRead`.
    count : int or None
        Upper bound of the size of `words`; None if it is unknown.
    """

    words: Any
    left: Any = None
    scalars: tuple[Any, ...] | None = None
    count: int | None = None

    @property
    def active_count(self) -> int | None:
        """Upper bound of the size of `words`; None if unknown or all are pending."""
        return None if self.words is None else self.count


@dataclass(eq=False)
class _Left:
    """Pending vertices that a call has stored in the State, as sets on its device."""

    device: Device
    words: Any
    left: Any
    scalars: tuple[Any, ...] | None
    seen: Seen

    def on_host(self) -> Left:
        """Return a copy in host memory."""
        pending = Pending(self.words, self.left, self.scalars)
        return host_left(pending, self.device, self.seen)


def host_left(pending: Pending, device: Device, seen: Seen | None = None) -> Left:
    """Return a copy of pending vertices in host memory."""
    words, left = (
        None if w is None else np.array(device.download(w), np.uint32)
        for w in (pending.words, pending.left)
    )
    return Left(words, left, pending.scalars, seen)


def begin_pending(active: Any, state: State, device: Device, of: int) -> list[Pending]:
    """Return the pending vertices of `of` foldmaps, from the option ``active=``.

    Each foldmap gets a set of its own. On ranks, the sets are made on the host.
    """
    holder = exchange_of(state.graph, device).holder
    given = as_active(active, state)
    words = words_on(given, state, device)
    count = len(given) if state.graph.living is None else holder.sets.count(words)
    others = [holder.sets.snapshot(words) for _ in range(of - 1)]
    return [Pending(own, count=count) for own in (words, *others)]


def recall_pending(
    foldmap: FoldMap, state: State, device: Device, plan: FoldPlan
) -> Pending:
    """Return the vertices that an earlier call left pending, and those due since.

    All vertices are pending if there was no such call, or the caller has written to the
    State since.
    """
    version, entries = state.left
    if version != state.version:
        return Pending(None)
    known = entries.get(_key(foldmap, entries))
    if known is None:
        return Pending(None)
    pending = _recalled(known, state, device)
    if pending.words is not None and known.seen != state.follow():
        _catch_up(pending, plan, state, device, known.seen)
    return pending


def _catch_up(
    pending: Pending, plan: FoldPlan, state: State, device: Device, since: Seen
) -> None:
    """Add the vertices that updates of the graph and `State.put` have made due."""
    added = find_due(plan, state, since)
    warn_of_losses(plan, state, since)
    if added is None or added.everything:
        pending.words, pending.left, pending.count = None, None, None
        return
    active, due = added.sets(plan, state, device)
    sets, living = device.sets, arrays_for(state, device).everyone.words
    pending.words = sets.intersection(sets.union(pending.words, active), living)
    pending.count = sets.count(pending.words)
    if due is not None:
        due = due if pending.left is None else sets.union(pending.left, due)
    due = pending.left if due is None else due
    pending.left = None if due is None else sets.intersection(due, living)


def _recalled(known: Any, state: State, device: Device) -> Pending:
    """Return the pending vertices that an earlier call stored, as sets on a device."""
    room = word_count(arrays_for(state, device).vertex_count)
    sets = known.words, known.left
    if isinstance(known, _Left):
        if known.device is device and all(w is None or w.size == room for w in sets):
            return Pending(*sets, known.scalars)
        known = known.on_host()
    words, left = (  # from a copy, another process, or a graph of another capacity
        None if w is None else device.sets.upload(resized(w, room))
        for w in (known.words, known.left)
    )
    return Pending(words, left, known.scalars)


def _key(foldmap: FoldMap, entries: dict[Any, Any]) -> Any:
    """Return the key of a foldmap in a State: itself, or the digest of its program."""
    is_named = foldmap.base not in entries and any(isinstance(k, str) for k in entries)
    return foldmap.program.digest if is_named else foldmap.base


def announce(
    pending: Sequence[Pending],
    place: int,
    committed: Any,
    number: int,
    join: Callable[[int, Any], Any],
) -> None:
    """Add the vertices that the foldmap at `place` has committed to all pending sets.

    Parameters
    ----------
    committed : words or None
        None for all vertices, which saves finding the vertices that gather from them.
    number : int
        Number of committed vertices.
    join : callable
        ``join(other, words)`` returns the union of the committed vertices and the
        pending set `words` of the foldmap at place `other`.
    """
    for other, waiting in enumerate(pending):
        if committed is None:
            waiting.words = None
        elif other == place:
            waiting.words, waiting.count = committed, number
        elif waiting.words is not None:
            waiting.words = join(other, waiting.words)
            if waiting.count is not None:
                waiting.count += number


class RunState:
    """The foldmaps of a run, and the pending vertices of each.

    Parameters
    ----------
    steps : list of FoldmapRun
        One for each foldmap.
    pending : list of Pending
        The vertices that each has not processed yet.
    waiting : Waiting or None
        Splits near vertices from far ones.
    watching : Watching
        The results that are inspected after each superstep.

    Attributes
    ----------
    turn : int
        Index of the foldmap that runs next.
    stage : int
        A number that changes whenever recorded supersteps no longer fit: when the run
        continues with new active vertices or another log of sets, or after a worklist
        loop.
    is_dense : bool
        Whether every vertex is active in every superstep.
    is_shared : bool
        Whether other ranks take part.
    living_count : int
        Number of vertices that are not dead.
    """

    def __init__(
        self,
        steps: list[FoldmapRun],
        pending: list[Pending],
        waiting: Waiting | None,
        watching: Watching,
    ) -> None:
        self.runs = steps
        self.pending = pending
        self.waiting = waiting
        self.watching = watching
        self.foldmaps = [step.foldmap for step in steps]
        self.state, self.device = steps[0].state, steps[0].device
        self.exchange = steps[0].plain.bound.exchange
        self.is_shared = self.state.graph.ranks is not None
        self.is_dense = steps[0].change_driven is False
        self.is_asynchronous = steps[0].plan.options.asynchronous
        self.version = self.state.version
        self.superstep = self.begun = self.state.superstep
        #: Version of the graph, and puts, that the pending sets include.
        self.seen = self.state.follow()
        self.turn = self.stage = 0
        #: Returns whether loops should return to the host early.
        self.wants_host: Callable[[], bool] | None = None
        #: Returns how many supersteps may run before the next exchange of hosts.
        self.supersteps_left: Callable[[], int] | None = None
        #: The sets that are recorded on the device, and those that are processed in
        #: order; None without the options.
        self.recorded: Any = None
        self.played: Any = None
        #: Moves vertices between ranks; None if they keep theirs.
        self.moves: Moves | None = None
        #: A foldmap that runs when nothing is due, and that loops may run (0098).
        self.then: FoldMap | None = None
        #: The scalars that each foldmap reads.
        self.scalars = [ScalarsRead(self.state, s.plan.facts.scalars) for s in steps]
        self.living_count = self.state.graph.living_count
        for step in steps:
            step.watched = watching.results_of(step.plan)

    def begin(self, active: Any) -> bool:
        """Continue with the vertices that ``then=`` returned; False if there are none.

        No other vertices are pending then; None leaves only those that ``.on``
        excluded.
        """
        begun = self.pending  # nothing is due except vertices excluded by .on
        if active is not None:
            begun = begin_pending(active, self.state, self.device, len(begun))
            for left_out in filter(None, (s.left_out for s in self.runs)):
                left_out.forget()
        for pending, step, scalars in zip(begun, self.runs, self.scalars, strict=True):
            pending.scalars = scalars.read()
            step.forget()  # earlier writes were not announced
        if self.waiting is not None:
            self.waiting.forget()
        self.pending, self.stage = begun, self.stage + 1
        self.version, self.superstep = self.state.version, self.state.superstep
        return active is not None and bool(begun[0].count)

    def follow(self, run: Run) -> None:
        """Update recorded and played sets after supersteps of a run."""
        if self.recorded is not None and self.recorded.follow(run):
            self.stage += 1
        due = None if self.played is None else self.played.follow(run)
        if due is not None:
            self.pending, self.stage = [due], self.stage + 1
            self.version, self.superstep = self.state.version, self.state.superstep

    def release(self) -> None:
        """Drop the sets that an earlier call left, once they have been recalled.

        Their memory is reused then, in a fixed order, so that a repeated run gets sets
        at the same addresses and its recordings fit. `store_pending` replaces them.
        """
        _, entries = self.state.left
        for foldmap in self.foldmaps:
            entries.pop(_key(foldmap, entries), None)

    def store_pending(self) -> None:
        """Store the pending vertices in the State for a later call.

        All vertices are stored if the caller has written to the State since the last
        superstep. If supersteps have run, all vertices become due for foldmaps that
        were not part of the run.
        """
        self.refresh_version()
        state, device = self.state, self.device
        version, entries = state.left
        if version != state.version:
            entries = {}
        elif state.superstep != self.begun:
            entries = {k: replace(e, words=None, left=None) for k, e in entries.items()}
        for foldmap, waits in zip(self.foldmaps, all_pending(self), strict=True):
            words, left = map(device.sets.snapshot, (waits.words, waits.left))
            found = _Left(device, words, left, waits.scalars, self.seen)
            entries[foldmap.base] = found
        state.left = (state.version, entries)

    def refresh_version(self) -> None:
        """Make all vertices due if the caller has written to the State.

        A superstep that the caller has run counts as a write.
        """
        seen = (self.version, self.superstep)
        if (self.state.version, self.state.superstep) != seen:
            self.version, self.superstep = self.state.version, self.state.superstep
            for pending in self.pending if self.played is None else ():
                pending.words = None
            if self.waiting is not None:
                self.waiting.forget()

    def let_go(self) -> None:
        """Make all vertices due: pending sets do not fit the new partition."""
        self.pending = [Pending(None) for _ in self.runs]
        for step in self.runs:
            step.left_out = None

    def is_due(self, place: int) -> bool:
        """Whether a foldmap has due vertices."""
        is_all = self.pending[place].words is None
        return is_all or self.reads_others(place) or self._has_pending(place)

    def _has_pending(self, place: int) -> bool:
        """Whether a foldmap has pending vertices; for one with a pending set."""
        pending, step = self.pending[place], self.runs[place]
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
        """Whether the number of pending vertices of each foldmap is known."""
        return all(p.words is None or p.count is not None for p in self.pending)

    def has_work(self) -> bool:
        """Whether any foldmap has due vertices, or aggregates to prove."""
        self.refresh_version()
        for place in range(len(self.runs)):
            if self.is_due(place):
                return True
        return self.unproven() is not None

    def unproven(self) -> tuple[int, Any] | None:
        """Return the place of a foldmap with rounded aggregates, and their vertices.

        Patches accumulate rounding errors. Before a run counts as converged, aggregates
        that have been patched are recomputed (`FoldmapRun.prove`). None without any.
        """
        for place, step in enumerate(self.runs):
            words = step.unproven()
            if words is not None and self.exchange.count(words) > 0:
                return place, words
        return None

    def find_due(self) -> tuple[int, bool] | None:
        """Return the place of the next foldmap with due vertices, and advance the turn.

        The second value is True if a changed scalar makes all vertices due (S7). None
        if no foldmap has due vertices.
        """
        state, count = self.state, len(self.runs)
        if state.version != self.version or state.superstep != self.superstep:
            self.refresh_version()
        for _ in range(count):
            place, self.turn = self.turn, (self.turn + 1) % count
            pending = self.pending[place]
            if pending.words is None:
                return place, False
            if self.scalars[place].names and self.reads_others(place):
                return place, True
            if self._has_pending(place):
                is_late = self.runs[place].plan.facts.has_late_reduce
                return place, is_late and pending.scalars is not None
        return None

    def cannot_announce(self, number: int) -> None:
        """Make all vertices due after a failed superstep that may have committed.

        Parameters
        ----------
        number : int
            `State.superstep` before the superstep began.
        """
        in_place = self.is_asynchronous or any(s.in_place for s in self.runs)
        if in_place or self.state.superstep != number:
            for waiting in self.pending:
                waiting.words = None

    def watched_results(self, place: int) -> list[tuple[Any, bool]]:
        """Return the watched results of a foldmap as pairs: an array, `is_largest`."""
        buffers: Any = self.state.residency  # a superstep has run
        found, current = [], buffers.current
        for name, is_largest in self.runs[place].watched.extremes:
            found.append((current[name], is_largest))
        return found

    def note_scalars(self, place: int) -> None:
        """Store the scalars that a foldmap has read, after its superstep.

        They are not needed if all vertices are due anyway; reading a result of a reduce
        would wait for the device then.
        """
        pending = self.pending[place]
        everything = pending.words is None
        pending.scalars = () if everything else self.scalars[place].read()

    def reads_others(self, place: int) -> bool:
        """Whether scalars that a foldmap reads have changed since it last ran."""
        before = self.pending[place].scalars
        return before is not None and before != self.scalars[place].read()

    def decisions(self, place: int) -> tuple[Any, ...]:
        """Return all choices for the next superstep that depend on the active count.

        A recorded superstep may be replayed while these are equal.
        """
        if self.is_dense:  # everything is due, however many were active
            return (True,)
        pending = self.pending[place]
        return pending.words is None, *decide(self.runs[place], pending.active_count)


def left_over(run_state: RunState) -> dict[FoldMap, Left]:
    """Return host copies of the pending vertices, as if the run ended now."""
    state = run_state.state
    seen = (run_state.version, run_state.superstep, run_state.seen)
    is_whole = (state.version, state.superstep, state.follow()) == seen
    found = {}
    pairs = zip(run_state.foldmaps, all_pending(run_state), strict=True)
    for foldmap, pending in pairs:
        known = pending if is_whole else replace(pending, words=None)
        found[foldmap.base] = host_left(known, run_state.device)
    return found


def all_pending(run_state: RunState) -> list[Pending]:
    """Return the pending vertices of each foldmap, with those that ``.on`` excluded."""
    if run_state.played is not None:  # committed vertices were not announced
        return [Pending(None)]
    return [
        pending
        if pending.left is not None or step.left_out is None
        else replace(pending, left=step.left_out.words)
        for pending, step in zip(run_state.pending, run_state.runs, strict=True)
    ]


#: Reason why only the host runs supersteps of several ranks.
SHARED = "other ranks need an exchange after each superstep"


@dataclass(eq=False)
class Watched:
    """Properties of a run that a loop has to support, besides its plans.

    Attributes
    ----------
    device : Device
    size : int
        Number of vertices and edges of the graph, together.
    by : str
        The option of `iterate` that inspects each superstep; "" without one.
    looks_at_results : bool
        Whether that option reads results of reduces only, which a device can do.
    is_dense : bool
        Whether every vertex is active in every superstep.
    key : str
        The property that separates near vertices from far ones; "" where none wait.
    is_shared : bool
        Whether other ranks take part, with an exchange after each superstep.
    stays_on_device : bool
        Whether the exchange runs on the device, without the host.
    is_timed : bool
        Whether the host collects the times of ranks after each superstep.
    sets : str
        The option that records or sets the vertices of each superstep; "" without one.
    are_sets_here : bool
        Whether these sets stay on the device.
    """

    device: Device
    size: int
    by: str = ""
    looks_at_results: bool = False
    is_dense: bool = False
    key: str = ""
    is_shared: bool = False
    stays_on_device: bool = True
    is_timed: bool = False
    sets: str = ""
    are_sets_here: bool = False


@dataclass
class QueueRun:
    """Results of the supersteps that one call of a worklist loop has run.

    Attributes
    ----------
    counts : list of int
        Number of vertices committed by each superstep.
    seconds : list of float
        Time of each superstep, in s.
    words : words
        The pending set after the last superstep.
    active, waiting : int
        Number of near vertices in `words`, and of far ones, which wait; without near
        and far, all are near.
    edges : int
        On the CPU, the number of edges that were followed; on a GPU, the number of
        out-edges of the active vertices.
    limits : sequence of float
        With near and far, the limit of each superstep, and of the next one.
    stages : int
        Number of times that the loop ran the foldmap ``then=`` itself (0098).
    has_ended : bool
        Whether the last superstep committed nothing.
    """

    counts: list[int]
    seconds: list[float]
    words: Any
    active: int
    waiting: int
    edges: int
    limits: Sequence[float] = ()
    stages: int = 0
    has_ended: bool = False


class SuperstepLoop(Protocol):
    """A way to run supersteps of a run, made for one `RunState`.

    All loops give the same results: values, vertices due after each superstep, and
    numbers of committed vertices.
    """

    name: ClassVar[str]

    def __init__(self, run_state: RunState) -> None: ...

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why the loop cannot run any superstep of a run; "" if it can."""

    def run(self, run: Run, most: int) -> bool | None:
        """Run up to `most` supersteps, and record them.

        Returns
        -------
        bool or None
            False if nothing is due; None if another loop must run the next superstep.
        """
