"""The driver: supersteps until nothing is active, or a limit is reached."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from featgraph.errors import ConvergenceWarning, StateError
from featgraph.program.active import ActiveSet
from featgraph.program.state import State
from featgraph.runtime.device import Device, choose_device
from featgraph.runtime.foldmap import FoldMap, as_active
from featgraph.runtime.superstep import Outcome, Superstep, full_words

__all__ = ["Run", "iterate"]


@dataclass
class Run:
    """The record of `iterate`.

    Attributes
    ----------
    supersteps : int
        How many ran.
    converged : bool
        Whether nothing was active, or `until` was met, at the end.
    target : str
        "cpu" or "cuda".
    active_counts : list of int
        Vertices committed by each superstep.
    directions : list of str
        "pull", "push" or "-" (no gather), for each superstep.
    seconds : list of float
        Time of each superstep; the first holds compilation.
    kernels : list of Kernel
        The kernels used, one for each foldmap.
    active_sets : list of ActiveSet or None
        What each superstep committed, if asked for.
    """

    target: str
    kernels: list[Any]
    supersteps: int = 0
    converged: bool = False
    active_counts: list[int] = field(default_factory=list)
    directions: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    active_sets: list[ActiveSet] | None = None

    def __repr__(self) -> str:
        end = "converged" if self.converged else "not converged"
        return (
            f"<Run: {self.supersteps} supersteps on {self.target}, {end}, "
            f"{sum(self.seconds):.3g} s>"
        )


@dataclass
class _Pending:
    """What one foldmap has not seen yet: committed vertices, and due ones left out.

    `words` is A; None means every vertex is due.
    """

    words: Any
    left: Any = None
    scalars: tuple[Any, ...] | None = None


#: State -> foldmap -> what is pending there, as host words, with the State's version.
_kept: weakref.WeakKeyDictionary[State, tuple[int, dict[FoldMap, Any]]] = (
    weakref.WeakKeyDictionary()
)


def iterate(
    steps: FoldMap | Sequence[FoldMap],
    state: State,
    *,
    active: Any = None,
    max_supersteps: int = 1000,
    until: Callable[[State], bool] | None = None,
    progress: bool = False,
    callback: Callable[[Run, State], Any] | None = None,
    record_active: bool = False,
    target: str = "auto",
    **options: Any,
) -> Run:
    """Run supersteps until nothing is active.

    A list of foldmaps runs in turn, each on what was committed since it last ran. A
    second call goes on from the state it finds: what is not announced yet stays due,
    and writing to the state from outside makes everything due.

    Parameters
    ----------
    steps : FoldMap or sequence of FoldMap
        What to run.
    state : State
        Changed in place.
    active : ActiveSet or array_like, optional
        The vertices to begin with; default all, or what an earlier call left due.
    max_supersteps : int, optional
        The limit; reaching it warns and leaves `converged` False.
    until : callable, optional
        ``until(state)`` after each superstep; True ends the run as converged.
    progress : bool, optional
        Show a progress bar.
    callback : callable, optional
        ``callback(run, state)`` after each superstep; returning True ends the run.
    record_active : bool, optional
        Keep what each superstep committed.
    target : {"auto", "cpu", "cuda"}, optional
        Where to run; "auto" takes a GPU where there is one.
    **options
        As for calling a foldmap.

    Returns
    -------
    Run
        The record.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit; nothing has been changed then.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.
    """
    given: Any = steps if isinstance(steps, list | tuple) else [steps]
    foldmaps: list[FoldMap] = list(given)
    if not foldmaps or not all(isinstance(s, FoldMap) for s in foldmaps):
        raise StateError(
            "iterate runs foldmaps",
            got=repr(steps),
            expected="a FoldMap or a list of them",
        )
    if not isinstance(max_supersteps, int | np.integer) or max_supersteps < 0:
        raise StateError(
            "the limit of supersteps is a count",
            where="max_supersteps=",
            got=repr(max_supersteps),
            expected="an integer, 0 or more",
        )
    device = choose_device(target)
    loop = _Loop(foldmaps, state, device, options, active)
    run = Run(
        device.name,
        [s.kernel for s in loop.steps],
        active_sets=[] if record_active else None,
    )
    bar = _progress_bar(progress, max_supersteps)
    try:
        while run.supersteps < max_supersteps and not run.converged:
            if not loop.advance(run):
                run.converged = True
                break
            bar.update(1)
            bar.set_postfix(active=run.active_counts[-1])
            if until is not None and until(state):
                run.converged = True
            if callback is not None and callback(run, state):
                break
        else:
            run.converged = run.converged or not loop.has_work()
    finally:
        bar.close()
        loop.keep()
    if not run.converged and run.supersteps >= max_supersteps:
        warnings.warn(
            f"not converged after {run.supersteps} supersteps; raise max_supersteps",
            ConvergenceWarning,
            stacklevel=2,
        )
    return run


class _Loop:
    """The foldmaps of one call, and what is pending for each."""

    def __init__(
        self,
        foldmaps: list[FoldMap],
        state: State,
        device: Device,
        options: dict[str, Any],
        active: Any,
    ) -> None:
        self.foldmaps = foldmaps
        self.state = state
        self.device = device
        self.steps: list[Superstep] = [
            f.prepare(state, device, options) for f in foldmaps
        ]
        self.version = state.version
        self.turn = 0
        self.full = full_words(device, state.graph.vertex_count)
        self.pending = [self._start(f, active) for f in foldmaps]

    def _start(self, foldmap: FoldMap, active: Any) -> _Pending:
        if active is not None:
            return _Pending(
                self.device.upload(as_active(active, self.state).words.copy())
            )
        version, kept = _kept.get(self.state, (-1, {}))
        known = kept.get(foldmap.base)
        if known is None or version != self.state.version:
            return _Pending(None)
        words, left, scalars = known
        upload = self.device.upload
        return _Pending(
            None if words is None else upload(words),
            None if left is None else upload(left),
            scalars,
        )

    def keep(self) -> None:
        """Remember what stays due for a later call."""
        version, kept = _kept.get(self.state, (-1, {}))
        if version != self.state.version:
            kept = {}
        for foldmap, pending in zip(self.foldmaps, self.pending, strict=True):
            kept[foldmap.base] = (
                self._host(pending.words), self._host(pending.left), pending.scalars
            )  # fmt: skip
        _kept[self.state] = (self.state.version, kept)

    def _host(self, words: Any) -> Any:
        return None if words is None else np.array(self.device.download(words))

    def _scalars(self, step: Superstep) -> tuple[Any, ...]:
        """Return the scalars and vectors that a foldmap reads, `superstep` apart."""
        names = {
            n
            for f in step.plan.analysis.functions
            for n in f.scalars
            if n in self.state
        }
        reduced = {f.into for f in step.plan.analysis.functions if f.kind == "reduce"}
        vectors = {
            a.name for f in step.plan.analysis.functions for a in f.accesses
            if a.where == "global" and a.name not in reduced and a.name in self.state
        }  # fmt: skip
        values = [(n, np.asarray(self.state.stored(n)).tobytes()) for n in names]
        # As bytes: nan differs from itself.
        values += [(n, np.asarray(self.state.stored(n)).tobytes()) for n in vectors]
        return tuple(sorted(values))

    def _refresh_version(self) -> None:
        """Make everything due behind a write from outside."""
        if self.state.version != self.version:
            self.version = self.state.version
            for pending in self.pending:
                pending.words = None

    def _is_due(self, place: int) -> bool:
        pending, step = self.pending[place], self.steps[place]
        if pending.words is None or _differ(pending.scalars, self._scalars(step)):
            return True
        if self.device.count(pending.words) > 0:
            return True
        if pending.left is None:
            return False
        left = (
            pending.left
            if step.on is None
            else self.device.words_and(pending.left, step.on)
        )
        return self.device.count(left) > 0

    def has_work(self) -> bool:
        """Whether any foldmap has something due."""
        self._refresh_version()
        return any(self._is_due(place) for place in range(len(self.steps)))

    def advance(self, run: Run) -> bool:
        """Run the next foldmap that has something due; False if none has."""
        self._refresh_version()
        count = len(self.steps)
        for _ in range(count):
            place, self.turn = self.turn, (self.turn + 1) % count
            if self._is_due(place):
                self._run(place, run)
                return True
        return False

    def _run(self, place: int, run: Run) -> None:
        step, pending = self.steps[place], self.pending[place]
        scalars = self._scalars(step)
        changed = pending.words is not None and _differ(pending.scalars, scalars)
        active = pending.words
        begun = time.perf_counter()
        if active is not None and pending.left is not None:
            active = self.device.words_or(active, pending.left)
        number = self.state.superstep
        try:
            outcome = step.run(active, all_due=changed, track=True)
            self._note(place, run, outcome, begun)
        except BaseException:
            if self.state.superstep != number:  # committed, but not yet announced
                for waiting in self.pending:
                    waiting.words = None
            raise
        pending.scalars = scalars
        pending.left = None
        if step.on is not None and outcome.due is not None:
            pending.left = self.device.words_without(outcome.due, step.on)

    def _note(self, place: int, run: Run, outcome: Outcome, begun: float) -> None:
        """Announce what was committed, and record the superstep."""
        committed = outcome.active_out
        number = self.device.count(committed)
        run.seconds.append(time.perf_counter() - begun)
        run.supersteps += 1
        run.active_counts.append(number)
        run.directions.append(_direction(self.steps[place]))
        if run.active_sets is not None:
            words = np.array(self.device.download(committed))
            count = self.state.graph.vertex_count
            run.active_sets.append(ActiveSet.from_words(count, words))
        everything = number == self.state.graph.vertex_count
        for other, waiting in enumerate(self.pending):
            if everything:  # None saves looking for who gathers from them: all are due
                waiting.words = None
            elif other == place:
                waiting.words = committed
            elif waiting.words is not None:
                waiting.words = self.device.words_or(waiting.words, committed)


def _differ(before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> bool:
    return before is not None and before != now


def _direction(step: Superstep) -> str:
    kinds = {f.kind for f in step.plan.analysis.functions}
    if "gather" not in kinds:
        return "-"
    return "push" if any(p.kind == "push" for p in step.plan.phases) else "pull"


class _NoBar:
    """Stands in for a progress bar that was not asked for."""

    def update(self, count: int) -> None: ...
    def set_postfix(self, **values: Any) -> None: ...
    def close(self) -> None: ...


def _progress_bar(wanted: bool, total: int) -> Any:
    if not wanted:
        return _NoBar()
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="superstep")
