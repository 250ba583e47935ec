"""`iterate`: supersteps until nothing is active, or a limit is reached.

`iterate` checks its arguments and stores them as `RunOptions`. `make_run_state` makes a
`RunState` of them: a `FoldmapRun` and pending vertices for each foldmap. `_run` then
offers the next supersteps to the loops of `LoopOrder`, one after the other: the loop
over few vertices, the replay of recorded supersteps, and the loop on the host, which
can run every superstep.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass, field, replace
from featgraph.base.errors import ConvergenceWarning, StateError
from featgraph.base.interrupts import rare_collections
from featgraph.fold.plan.options import IN_PLACE
from featgraph.graph.views.view import Preparation
from featgraph.program.active import ActiveSet, word_count
from featgraph.program.saved import Left
from featgraph.program.state import State
from featgraph.runtime.checkpoints.public import (
    EVERY,
    Session,
    checked_options,
    iterating,
)
from featgraph.runtime.checkpoints.resumable_call import Call
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.background import COMPILER, LONG
from featgraph.runtime.loops.foldmap_run import (
    FoldmapRun,
    check_any_order,
    check_dense,
    commit_in_place,
    connect_runs,
)
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.near_far import NEAR_FAR, NearFar, Waiting
from featgraph.runtime.loops.recorded_sets import PlayedSets, RecordedSets, check_played
from featgraph.runtime.loops.replay import ReplayLoop
from featgraph.runtime.loops.run import Moves, Run, make_moves, progress_bar
from featgraph.runtime.loops.run_state import (
    Pending,
    RunState,
    SuperstepLoop,
    Watched,
    begin_pending,
    left_over,
    recall_pending,
)
from featgraph.runtime.loops.stopping import StoppingTest, make_watching
from featgraph.runtime.loops.worklist import WorklistLoop, pays_to_wait
from featgraph.runtime.memory.buffers import Buffers, buffers_of
from featgraph.runtime.superstep.exchange import exchange_of, losses_on
from featgraph.runtime.superstep.foldmap import FoldMap, require_state

__all__ = ["Run", "iterate"]

#: Options of a run that are part of its checkpoints.
_IDENTITY = (
    "asynchronous", "record_active", "until", "near_far", "recompute_every", "watch",
)  # fmt: skip


def iterate(
    steps: FoldMap | Sequence[FoldMap],
    state: State,
    *,
    active: Any = None,
    max_supersteps: int | None = None,
    supersteps: int | None = None,
    until: Callable[[State], bool] | StoppingTest | None = None,
    progress: bool = False,
    callback: Callable[[Run, State], Any] | None = None,
    then: Callable[[Run, State], Any] | FoldMap | None = None,
    record_active: bool = False,
    due: Sequence[ActiveSet] | None = None,
    watch: str | None = None,
    target: str = "auto",
    recompute_every: int | None = 64,
    asynchronous: bool = False,
    near_far: NearFar | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = EVERY,
    repartition: str | bool | int | None = None,
    **options: Any,
) -> Run:
    """Run supersteps until nothing is active.

    Several foldmaps run alternately, each on the vertices that were committed since it
    last ran. A second call continues from the State: vertices that were not announced
    yet stay due, and so do those that calls of foldmaps have committed since. A write
    to the State by the caller, or a run of other foldmaps, makes every vertex due.

    Parameters
    ----------
    steps : FoldMap or sequence of FoldMap
        The foldmaps to run.
    state : State
        Changed in place.
    active : ActiveSet or array_like, optional
        The vertices to begin with; default all, or those that an earlier call left due.
    max_supersteps : int, optional
        The limit, 1000 by default; reaching it warns and leaves `converged` False.
    supersteps : int, optional
        Number of supersteps to run, in place of a limit. The run ends after them
        without a warning, or earlier if no vertex is due: more would change nothing.
        `converged` is True only in that case, or if `until` was met. A run that is
        resumed from a checkpoint counts the supersteps before it.
    until : callable or StoppingTest, optional
        ``until(state)`` after each superstep; True ends the run as converged. A test
        made by `below` or `above` is evaluated after supersteps that compute its
        result, on the GPU without a wait.
    progress : bool, optional
        Show a progress bar.
    callback : callable, optional
        ``callback(run, state)`` after each superstep; returning True ends the run.
    then : callable or FoldMap, optional
        ``then(run, state)`` whenever nothing is due. It may write to the State, or run
        other foldmaps on it. It returns the vertices to continue with, as for `active`;
        no others are due, even if it has written to the State. None, or no vertex, ends
        the run as converged. It is not called once the limit has been reached; the run
        has not converged then. If it writes and raises an error, every vertex is due in
        a later call. A foldmap given here runs over all vertices, on the run's target,
        and the run continues with the vertices that it commits; results of its reduces
        stay on the device. Compiled loops run it themselves if it consists of reduces
        and vertex functions.
    record_active : bool, optional
        Keep the vertices that each superstep committed.
    due : sequence of ActiveSet, optional
        The vertices that are due in each superstep, and no others, such as those that
        another run has recorded; empty sets are left out. The run ends after the last
        one. It takes one foldmap of vertex functions and gathers.
    watch : str, optional
        The result of a reduce: `Run.watched` has its largest entry after each superstep
        that computes it, which costs no wait.
    target : {"auto", "cpu", "cuda"}, optional
        The target to run on; "auto" uses a GPU if there is one.
    recompute_every : int or None, optional
        Number of supersteps that patch sums or products of reals before these are
        recomputed, since rounding errors add up; None for never.
    asynchronous : bool, optional
        Make updates visible within the superstep, which saves supersteps. Only the
        fixpoint is guaranteed. The functions must be monotone: values have an order
        such that a vertex commits only values better than its own, commits them
        whenever the gathered values allow it, and gathers better values from better
        sources. Of several sources with equal keys a different one may be kept.
        Functions that are visibly not monotone are refused.
    near_far : NearFar, optional
        Vertices with a key beyond a moving threshold wait, and stay due: fewer edges
        are evaluated. Only the fixpoint is guaranteed, for functions as above.
    checkpoint : str or path, optional
        A folder, see `Checkpoints`: the same run on the same values is resumed from the
        newest whole checkpoint there. One that had ended returns at once.
    every : float, optional
        Time between checkpoints, in s.
    repartition : {"auto", False} or int, optional
        On several ranks: "auto" moves vertices between ranks if that saves more time in
        supersteps than it costs; an integer is the most moves. `state.graph` is another
        graph then, and `Run.partitions` records the moves. Default: the option of the
        algorithm that iterates, or else False.
    **options
        As for calling a foldmap, and ``change_driven``: True keeps aggregates and
        patches them with changes, "auto" (the default) does so if that is expected to
        be faster, False evaluates every vertex in every superstep.

    Returns
    -------
    Run
        The record.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit together; the State is unchanged
        then. PlanError also for ``change_driven=False``, ``asynchronous=True`` and
        ``near_far=`` if they could change the result, and for ``repartition=`` if ranks
        must keep their vertices. StateError also for checkpoints of another run.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.
    """
    foldmaps = _checked_foldmaps(steps)
    checked = checked_options({
        "max_supersteps": max_supersteps, "supersteps": supersteps, "until": until,
        "progress": progress, "callback": callback, "then": then, "watch": watch,
        "record_active": record_active, "due": due, "recompute_every": recompute_every,
        "near_far": near_far, "checkpoint": checkpoint, "every": every,
        "repartition": repartition, "target": target, "asynchronous": asynchronous,
    } | options, [f for step in foldmaps for f in step.program.functions])  # fmt: skip
    limit, records = _limit(checked), checked["record_active"]
    stage, then = _stage(then, target)
    test, call = (until, None) if isinstance(until, StoppingTest) else (None, until)
    calls = call, callback, then
    with (
        iterating(checkpoint, every) as saved,
        require_state(state).in_use.hold("fg.iterate"),
        losses_on(state.graph),
    ):
        device = choose_device(target, state.graph)
        is_seen = not (call is None and callback is None and then is None)
        settings = RunOptions(
            foldmaps, state, device, active, recompute_every, near_far, calls, watch,
            test, stage, options | {"asynchronous": asynchronous}, records,
            checked["due"], is_apart=saved is None and not is_seen,
        )  # fmt: skip
        session = None if saved is None else _session(saved, settings, checked)
        moves = make_moves(repartition, state, options)
        order = LoopOrder(settings, *make_run_state(settings), most=limit, moves=moves)
        run_state = order.run_state
        run = Run(
            device.name,
            [s.kernel for s in run_state.runs],
            active_sets=[] if records else None,
            asynchronous=run_state.is_asynchronous,
            watched=run_state.watching.values,
            refused=order.refused,
            **_of_graph(state, device.name, options),
        )
        bar = progress_bar(checked["progress"], limit)
        state.live.append(order.left_over)  # copies of the State have them, too
        try:
            run_state.release()
            if session is not None:
                session.begin(run, run_state)
            if bar is not None:
                bar.update(run.supersteps)
            if session is None or not session.has_ended:
                _run(run, order, bar, limit, calls, session)
        finally:
            if bar is not None:
                bar.close()
            order.run_state.store_pending()
            state.live.remove(order.left_over)
            order.end(run)
    COMPILER.begin()  # the run no longer needs the compiler, which has one lock
    if supersteps is None and not run.converged and run.supersteps >= limit:
        _warn_of_limit(run)
    return run


def _session(call: Call, settings: RunOptions, checked: dict[str, Any]) -> Session:
    """Return the checkpoints of a run.

    If they resume an earlier run, the option `active` is dropped.
    """
    identity = {name: checked[name] for name in _IDENTITY} | {"until": settings.test}
    is_seen = any(function is not None for function in settings.calls)
    options = settings.options | identity
    session = Session(call, settings.foldmaps, settings.state, options, is_seen)
    if session.goes_on:
        settings.active = None
    return session


def _stage(
    then: Any, target: str
) -> tuple[FoldMap | None, Callable[[Run, State], Any] | None]:
    """Return ``then=`` as a foldmap, or None, and as a function."""
    if not isinstance(then, FoldMap):
        return None, then
    return then, lambda run, state: then(state, target=target)


def _of_graph(state: State, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return fields of `Run` that exist only for dynamic and distributed graphs."""
    if state.graph.ranks is None:
        is_counted = state.graph.changing and device == "cpu"
        return {"evaluated": 0} if is_counted else {}
    partition = state.graph.ranks.shard.partition
    working = None if partition.working == partition.parts else partition.working
    return {"wire_dtype": options.get("wire_dtype"), "working": working}


def _warn_of_limit(run: Run) -> None:
    warnings.warn(
        f"not converged after {run.supersteps} supersteps; raise max_supersteps",
        ConvergenceWarning,
        stacklevel=3,
    )


def _limit(settings: dict[str, Any]) -> int:
    """Return the largest number of supersteps of a run."""
    for name in ("supersteps", "max_supersteps"):
        if settings[name] is not None:
            return int(settings[name])
    return 1000 if settings["due"] is None else len(settings["due"])


def _checked_foldmaps(steps: Any) -> list[FoldMap]:
    """Return the foldmaps of a run as a list; StateError if they are none."""
    given: Any = steps if isinstance(steps, list | tuple) else [steps]
    foldmaps: list[FoldMap] = list(given)
    if not foldmaps or not all(isinstance(s, FoldMap) for s in foldmaps):
        raise StateError(
            "iterate runs foldmaps",
            where="steps",
            got=shown(steps),
            expected="a FoldMap or a list of them",
        )
    return foldmaps


def _run(
    run: Run,
    order: LoopOrder,
    bar: Any,
    max_supersteps: int,
    calls: tuple[Callable[..., Any] | None, ...],
    session: Session | None,
) -> None:
    """Run supersteps until nothing is due, the limit, or an end by the user.

    `calls` are ``until=``, ``callback=`` and ``then=``.
    """
    until, callback, then = calls
    state, ends = order.run_state.state, False
    with rare_collections if order.run_state.is_shared else nullcontext():
        while run.supersteps < max_supersteps and not run.converged:
            order.follow(run)
            before, run_state = run.supersteps, order.run_state
            for loop in order.loops:  # None: the next loop must run the superstep
                ran = loop.run(run, max_supersteps - before)
                if ran is not None:
                    break
            if not ran:
                if then is not None and run_state.begin(then(run, state)):
                    continue
                run.converged = True
                break
            if run.supersteps >= LONG:
                COMPILER.begin()
            if bar is not None:
                bar.update(run.supersteps - before)
                bar.set_postfix(active=run.active_counts[-1])
            if run_state.watching.is_met or (until is not None and until(state)):
                run.converged = True
            if callback is not None and callback(run, state):
                ends = True
                break
            if session is not None:
                session.look(run, run_state)
            if order.moves is not None and not run.converged:
                order.move(order.moves, run)
        else:  # no break: the run has converged, or reached its limit, or both
            order.follow(run)
            run.converged = run.converged or (
                then is None and not order.run_state.has_work()
            )
    order.note_sent(run)
    if order.run_state.recorded is not None:
        order.run_state.recorded.end(run)
    if session is not None:
        session.end(run, order.run_state, ends or run.converged)
    order.run_state.exchange.catch_up()
    if isinstance(state.residency, Buffers):
        state.residency.check_stalled()


class LoopOrder:
    """The state of a run, and the loops that can run its supersteps.

    Both are made again after a repartition, and after a batch has changed the graph.

    Parameters
    ----------
    settings : RunOptions
    run_state : RunState
    watched : Watched
        Made of `settings` by `make_run_state`.
    most : int
        Most supersteps.
    moves : Moves or None
        Moves vertices between ranks.

    Attributes
    ----------
    run_state : RunState
    loops : sequence of SuperstepLoop
        The loops that can run supersteps, in the order in which they are tried.
    refused : dict of str to str
        Name of another loop -> reason why it cannot run this run.
    moves : Moves or None

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit together.
    """

    def __init__(
        self,
        settings: RunOptions,
        run_state: RunState,
        watched: Watched,
        *,
        most: int,
        moves: Moves | None,
    ) -> None:
        self._settings, self._most, self.moves = settings, most, moves
        self._begin(run_state, watched)

    def _begin(self, run_state: RunState, watched: Watched) -> None:
        """Make the loops of a run state."""
        if self._most > len(run_state.runs):  # the test may read all edges
            commit_in_place(run_state.runs)
        if self.moves is not None:
            watched = replace(watched, is_timed=True)
        loops, self.refused = make_loops(run_state, watched)
        self.run_state = run_state
        self._sent = run_state.exchange.sent_bytes
        self.loops: Sequence[SuperstepLoop] = loops
        run_state.moves = self.moves

    def move(self, moves: Moves, run: Run) -> None:
        """Move vertices between ranks if that pays; called after each superstep."""
        before = self.run_state
        go_on = moves.move(run, before, self._most - run.supersteps)
        if go_on is None:
            return
        before.let_go()
        self.note_sent(run)
        go_on(self._renew(before))

    def follow(self, run: Run) -> None:
        """Add vertices that are due because of graph updates, `State.put` or ``due=``.

        Called before supersteps. If graph or entries have changed, the run state is
        made anew from the pending vertices.
        """
        before = self.run_state
        if before.recorded is not None or before.played is not None:
            before.follow(run)
        seen = before.state.follow()
        if seen is before.seen or seen == before.seen:
            return
        before.store_pending()
        run_state = self._renew(before)
        run_state.release()
        run_state.turn = before.turn

    def _renew(self, before: RunState) -> RunState:
        """Make a new run state that continues `before`, and its loops.

        Watched results, recorded sets and the step of the threshold are taken over.
        """
        self._begin(*make_run_state(replace(self._settings, active=None)))
        run_state = self.run_state
        run_state.watching, run_state.wants_host = before.watching, before.wants_host
        run_state.supersteps_left = before.supersteps_left
        run_state.recorded, run_state.played = before.recorded, before.played
        if run_state.waiting is not None and before.waiting is not None:
            run_state.waiting.delta = before.waiting.delta
        return run_state

    def left_over(self) -> dict[FoldMap, Left]:
        """Return the pending vertices for a later call, if the run ended here."""
        return left_over(self.run_state)

    def note_sent(self, run: Run) -> None:
        """Add the bytes that this rank has sent during a run state to the record."""
        for kind, sent in self.run_state.exchange.sent_bytes.items():
            more = sent - self._sent.get(kind, 0)
            if more.any():
                known = run.sent_bytes.get(kind, [0] * more.size)
                run.sent_bytes[kind] = (more + known).tolist()

    def end(self, run: Run) -> None:
        """Complete the record of a run."""
        run.kernels = [step.kernel for step in self.run_state.runs]
        state, device = self.run_state.state, self.run_state.device
        run.preparation = buffers_of(state, device).preparation
        if self.moves is not None:
            self.moves.end(run)


#: Loops in the order in which they are tried; the last one can run every superstep.
LOOPS: tuple[type[SuperstepLoop], ...] = (WorklistLoop, ReplayLoop, HostLoop)


@dataclass(eq=False)
class RunOptions:
    """The options of a run, checked.

    Attributes
    ----------
    active : object
        The vertices to begin with; None for those left by an earlier call.
    calls : tuple
        The functions ``until=``, ``callback=`` and ``then=``; None if not given.
    log : str or None
        The option ``watch=``: the result the largest entry of which is logged.
    test : StoppingTest or None
        Ends the run when it is met.
    stage : FoldMap or None
        The option ``then=``, if it is a foldmap.
    records : bool
        Whether the sets that supersteps commit are kept.
    due : sequence of ActiveSet or None
        The due vertices of each superstep; None for the announced ones.
    is_apart : bool
        Whether no function of the user and no checkpoint reads the record of the run
        before its end.
    """

    foldmaps: list[FoldMap]
    state: State
    device: Device
    active: Any = None
    recompute_every: int | None = None
    near_far: NearFar | None = None
    calls: tuple[Any, ...] = (None, None, None)
    log: Any = None
    test: StoppingTest | None = None
    stage: FoldMap | None = None
    options: dict[str, Any] = field(default_factory=dict)
    records: bool = False
    due: Sequence[ActiveSet] | None = None
    is_apart: bool = True

    @property
    def log_fits(self) -> bool:
        """Whether recorded sets can stay on a GPU until the end of the run.

        On a graph that changes, sets may become longer.
        """
        graph = self.state.graph
        is_alone = graph.ranks is None and graph.changing is None
        return self.is_apart and is_alone and self.device.recorder is not None


def make_run_state(settings: RunOptions) -> tuple[RunState, Watched]:
    """Return the state of a run, and the requirements on its loops.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit together.
    """
    state, device = settings.state, settings.device
    buffers_of(state, device).preparation = Preparation()  # of this run alone
    options, every = settings.options, settings.recompute_every
    steps = [FoldmapRun(f, state, device, options, every) for f in settings.foldmaps]
    connect_runs(steps)
    is_dense = steps[0].change_driven is False
    if is_dense:  # every vertex is active in every superstep
        check_dense(steps, settings.active, settings.calls[-1] is not None)
    is_asynchronous = steps[0].plan.options.asynchronous
    if is_asynchronous:
        check_any_order(steps, IN_PLACE)
    size = state.graph.vertex_count + state.graph.edge_count
    watching = make_watching(settings.log, settings.test, [step.plan for step in steps])
    is_shared = state.graph.ranks is not None
    until, callback, _ = settings.calls
    by, looks_at_results = "until=" if until else "callback=" if callback else "", False
    if watching.extremes and not by:
        by, looks_at_results = "watch=" if settings.test is None else "until=", True
    watched = Watched(
        device, size, by, looks_at_results, is_dense, is_shared=is_shared,
        stays_on_device=exchange_of(state.graph, device).stays_on_device,
        sets="record_active=" if settings.records else "due=" if settings.due else "",
        are_sets_here=settings.log_fits,
    )  # fmt: skip
    waiting = _make_waiting(settings, steps, watched)
    # Kept aggregates need the values of sources at the start of a superstep.
    for step in steps:
        step.may_be_incremental = not (waiting or is_asynchronous)
        step.spreads = waiting is None
        step.may_sweep_all &= waiting is None  # far vertices wait
    if settings.active is None:
        pending = [
            recall_pending(step.foldmap, state, device, step.plan) for step in steps
        ]
    else:
        pending = begin_pending(settings.active, state, device, len(settings.foldmaps))
    if waiting is not None:
        watched = replace(watched, key=waiting.key)
    run_state = RunState(steps, pending, waiting, watching)
    run_state.then = settings.stage
    if settings.records and settings.log_fits:
        run_state.recorded = RecordedSets(state, device)
    if settings.due is not None:
        run_state.played = _played(settings, run_state)
    return run_state, watched


def _played(settings: RunOptions, run_state: RunState) -> PlayedSets:
    """Return the sets of ``due=``, and make the pending set of the run empty."""
    [step, *_] = steps = run_state.runs
    others = {
        "active": settings.active is not None, "record_active": settings.records,
        "near_far": settings.near_far, "until": settings.test, "watch": settings.log,
        "then": settings.calls[-1] is not None,
        "asynchronous": run_state.is_asynchronous,
        "change_driven": step.change_driven != "auto",
    }  # fmt: skip
    check_played(steps, others)
    step.is_played, step.may_be_incremental = True, False
    played = PlayedSets(settings.due or (), settings.state, settings.device)
    none = run_state.device.sets.empty(word_count(step.plain.bound.graph.vertex_count))
    run_state.pending = [Pending(none, count=0)]
    return played


def _make_waiting(
    settings: RunOptions, steps: list[FoldmapRun], watched: Watched
) -> Waiting | None:
    """Return the splitter of near and far vertices; None if no vertices wait."""
    near_far = settings.near_far
    if near_far is None:
        return None
    plans = [step.plan for step in steps]
    in_a_loop = not WorklistLoop.refuses(plans, replace(watched, key=near_far.key))
    if watched.device.name != "cpu":
        in_a_loop = in_a_loop and near_far.optional and pays_to_wait(steps[0])
    may_wait = in_a_loop and not watched.is_shared
    if near_far.optional and (not may_wait or steps[0].change_driven is True):
        return None
    check_any_order(steps, NEAR_FAR)
    bound = steps[0].plain.bound
    return Waiting(near_far, plans, settings.state, bound.exchange, in_a_loop)


def make_loops(
    run_state: RunState, watched: Watched
) -> tuple[list[SuperstepLoop], dict[str, str]]:
    """Return the loops that can run supersteps, and why the others cannot, by name."""
    plans = [step.plan for step in run_state.runs]
    refused = {loop.name: loop.refuses(plans, watched) for loop in LOOPS}
    loops = [loop(run_state) for loop in LOOPS if not refused[loop.name]]
    return loops, {name: why for name, why in refused.items() if why}
