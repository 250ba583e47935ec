"""The driver: supersteps until nothing is active, or a limit is reached."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from featgraph._arguments import shown
from featgraph._interrupts import rare_collections
from featgraph.errors import ConvergenceWarning, StateError
from featgraph.program.active import ActiveSet
from featgraph.program.state import State
from featgraph.runtime.behind.queue import COMPILER, LONG
from featgraph.runtime.checkpoints.options import checked_options
from featgraph.runtime.checkpoints.session import Session, iterating
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.driver.course import Course
from featgraph.runtime.driver.setup import Asked, make_agenda
from featgraph.runtime.loops.moves import make_moves
from featgraph.runtime.loops.near_far import NearFar
from featgraph.runtime.loops.run import Run, progress_bar
from featgraph.runtime.loops.stopping import StoppingTest
from featgraph.runtime.superstep.exchange import exchange_of, losses_on
from featgraph.runtime.superstep.foldmap import FoldMap, require_state

__all__ = ["Run", "iterate"]

#: Options of a run that a checkpoint of it has.
_TOLD = (
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
    watch: str | None = None,
    target: str = "auto",
    recompute_every: int | None = 64,
    asynchronous: bool = False,
    near_far: NearFar | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = 60.0,
    repartition: str | bool | int | None = None,
    **options: Any,
) -> Run:
    """Run supersteps until nothing is active.

    A list of foldmaps runs in turn, each on what was committed since it last ran. A
    second call continues from the state: what is not announced yet stays due, and
    writing to the state from outside makes every vertex due.

    Parameters
    ----------
    steps : FoldMap or sequence of FoldMap
        What to run.
    state : State
        Changed in place.
    active : ActiveSet or array_like, optional
        The vertices to begin with; default all, or what an earlier call left due.
    max_supersteps : int, optional
        The limit, 1000 by default; reaching it warns and leaves `converged` False.
    supersteps : int, optional
        How many supersteps are wanted, in place of a limit. The run ends behind them
        without a warning, or sooner where no vertex is due: more would change nothing.
        `converged` is True only in that case, or where `until` was met. A run that goes
        on from a checkpoint counts the supersteps before it.
    until : callable or StoppingTest, optional
        ``until(state)`` after each superstep; True ends the run as converged. A test
        that `below` or `above` has made is judged behind supersteps that give its
        result, on the GPU without a wait.
    progress : bool, optional
        Show a progress bar.
    callback : callable, optional
        ``callback(run, state)`` after each superstep; returning True ends the run.
    then : callable or FoldMap, optional
        ``then(run, state)`` whenever nothing is due. It may write to the state, or run
        other foldmaps on it, and returns the vertices to continue with, as `active`: no
        others are due, whatever it has written. None, or no vertex, ends the run as
        converged. It is not called where the limit has been reached; the run has not
        converged then. If it writes and raises an error, every vertex is due in a
        later call. A foldmap runs over all vertices, on the run's target, and what it
        commits is continued with; results of its reduces stay where they are.
    record_active : bool, optional
        Keep what each superstep committed.
    watch : str, optional
        The result of a reduce: `Run.watched` has its largest entry behind each
        superstep that gives it, which costs no wait.
    target : {"auto", "cpu", "cuda"}, optional
        Where to run; "auto" takes a GPU where there is one.
    recompute_every : int or None, optional
        After so many supersteps in which sums or products of reals were patched, they
        are recomputed, since roundings add up; None for never.
    asynchronous : bool, optional
        Make updates visible within the superstep, which saves supersteps. Only the
        fixpoint is promised. The functions must be monotone: values have an order such
        that a vertex commits only values better than its own, commits them whenever the
        gathered values allow it, and gathers better values from better sources. Of
        several sources with equal keys a different one may be kept. Functions that are
        visibly not monotone are refused.
    near_far : NearFar, optional
        Vertices whose key is beyond a moving threshold wait, and stay due: fewer edges
        are evaluated. Only the fixpoint is promised, for functions as above.
    checkpoint : str or path, optional
        A folder, see `Checkpoints`: the same run on the same values goes on from the
        newest whole checkpoint there. One that had ended returns at once.
    every : float, optional
        Seconds from one checkpoint to the next.
    repartition : {"auto", False} or int, optional
        On several ranks: "auto" has them own other vertices where that makes
        supersteps faster by more than moving costs, an integer so often at most.
        `state.graph` is another graph then, and `Run.partitions` says what was done.
        Default: as the function that iterates was asked, or else False.
    **options
        As for calling a foldmap, and ``change_driven``: True keeps aggregates and
        patches them with changes, "auto" (the default) does so where that is
        expected to be faster, False evaluates every vertex in every superstep.

    Returns
    -------
    Run
        The record.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit; nothing has been changed then.
        PlanError, too, for ``change_driven=False``, ``asynchronous=True`` and
        ``near_far=`` where they could change the result, and for ``repartition=`` where
        ranks keep theirs. StateError, too, for checkpoints of something else.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.
    """
    foldmaps = _checked_foldmaps(steps)
    asked_for = checked_options({
        "max_supersteps": max_supersteps, "supersteps": supersteps, "until": until,
        "progress": progress, "callback": callback, "then": then, "watch": watch,
        "record_active": record_active, "recompute_every": recompute_every,
        "near_far": near_far, "checkpoint": checkpoint, "every": every,
        "repartition": repartition, "target": target, "asynchronous": asynchronous,
    } | options)  # fmt: skip
    limit, record_active = _limit(asked_for), asked_for["record_active"]
    if isinstance(then, FoldMap):
        then = _stage(then, target)
    test, call = (until, None) if isinstance(until, StoppingTest) else (None, until)
    calls = call, callback, then
    told = {name: asked_for[name] for name in _TOLD} | {"until": test}
    with (
        iterating(checkpoint, every) as saved,
        require_state(state).in_use.hold("fg.iterate"),
        losses_on(state.graph),
    ):
        is_written = any(function is not None for function in calls)
        session = Session(saved, foldmaps, state, options | told, is_written)
        device = choose_device(target)
        looks = {"until=": call, "callback=": callback, "record_active=": record_active}
        look = next((name for name in looks if looks[name] not in (None, False)), "")
        asked = Asked(
            foldmaps, state, device, None if session.goes_on else active,
            recompute_every, near_far, look, watch, test, then is not None,
            options | {"asynchronous": asynchronous},
        )  # fmt: skip
        moves = make_moves(repartition, state, options)
        course = Course(asked, *make_agenda(asked), most=limit, moves=moves)
        agenda = course.agenda
        run = Run(
            device.name,
            [s.kernel for s in agenda.steps],
            active_sets=[] if record_active else None,
            asynchronous=agenda.is_asynchronous,
            watched=agenda.watching.values,
            refused=course.refused,
            **_of_ranks(state, options),
        )
        bar = progress_bar(asked_for["progress"], limit)
        state.live.append(course.left_over)
        try:
            agenda.release()
            session.begin(run, agenda)
            bar.update(run.supersteps)
            if not session.has_ended:
                _run(run, course, bar, limit, calls, session)
        finally:
            bar.close()
            course.agenda.store_pending()
            state.live.remove(course.left_over)
            course.end(run)
    COMPILER.begin()
    if supersteps is None and not run.converged and run.supersteps >= limit:
        _warn_of_limit(run)
    return run


def _stage(foldmap: FoldMap, target: str) -> Callable[[Run, State], ActiveSet]:
    """Return a function ``then=`` that runs a foldmap over all vertices."""

    def begin(run: Run, state: State) -> ActiveSet:
        return foldmap(state, target=target)

    return begin


def _of_ranks(state: State, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the record of a run says of several ranks."""
    if state.graph.ranks is None:
        return {}
    partition = state.graph.ranks.shard.partition
    working = None if partition.working == partition.parts else partition.working
    return {"wire_dtype": options.get("wire_dtype"), "working": working}


def _warn_of_limit(run: Run) -> None:
    warnings.warn(
        f"not converged after {run.supersteps} supersteps; raise max_supersteps",
        ConvergenceWarning,
        stacklevel=3,
    )


def _limit(asked: dict[str, Any]) -> int:
    """Return how many supersteps may run."""
    given = [asked[name] for name in ("supersteps", "max_supersteps")]
    return next((number for number in given if number is not None), 1000)


def _checked_foldmaps(steps: Any) -> list[FoldMap]:
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
    course: Course,
    bar: Any,
    max_supersteps: int,
    calls: tuple[Callable[..., Any] | None, ...],
    session: Session,
) -> None:
    """Run supersteps until nothing is due, or a call of the user's ends the run."""
    until, callback, then = calls
    state, ends = course.agenda.state, False
    with rare_collections(state.graph.ranks is not None):
        while run.supersteps < max_supersteps and not run.converged:
            before, agenda = run.supersteps, course.agenda
            for loop in course.loops:
                ran = loop.run(run, max_supersteps - before)
                if ran is not None:
                    break
            if not ran:
                if then is not None and agenda.begin(then(run, state)):
                    continue
                run.converged = True
                break
            if run.supersteps >= LONG:
                COMPILER.begin()
            bar.update(run.supersteps - before)
            bar.set_postfix(active=run.active_counts[-1])
            if agenda.watching.is_met or (until is not None and until(state)):
                run.converged = True
            if callback is not None and callback(run, state):
                ends = True
                break
            session.look(run, agenda)
            if not run.converged:
                course.look(run)
        else:
            run.converged = run.converged or (
                then is None and not course.agenda.has_work()
            )
    course.note_sent(run)
    session.end(run, course.agenda, ends or run.converged)
    exchange_of(state.graph, course.agenda.device).catch_up()
