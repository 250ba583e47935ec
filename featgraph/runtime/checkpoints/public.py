"""Checkpoints as users and algorithms use them, and checks of the options of runs.

`checked_options` checks the options of `iterate`, for `iterate` itself and for
functions that pass them on. `Checkpoints`, `checkpointed`, `algorithm` and `rounds` are
public: they begin a `Call`, in which all runs of `iterate` are checkpointed. A
`Session` restores and saves one of these runs.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import Token
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy.typing as npt

from featgraph.base.arguments import (
    checked_arguments,
    near_name,
    require_callable,
    require_flag,
    require_integer,
    require_path,
    require_real,
    require_text,
    shown,
)
from featgraph.base.errors import ArgumentError, PlanError, StateError
from featgraph.fold.plan.options import OPTIONS, parse_options
from featgraph.program.active import ActiveSet
from featgraph.program.saved import Snapshot, read_state
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.checkpoints.resumable_call import (
    Call,
    Identity,
    argument_digests,
    current_call,
    iterate_identity,
    refuse_other,
)
from featgraph.runtime.checkpoints.resume_point import (
    Packed,
    go_on,
    pack_run,
    put_back,
    take,
    unpack_run,
)
from featgraph.runtime.loops.near_far import checked_near_far
from featgraph.runtime.loops.run import Run, checked_repartition, repartition_option
from featgraph.runtime.loops.run_state import RunState
from featgraph.runtime.superstep.foldmap import FoldMap

__all__ = [
    "EVERY",
    "NAMES",
    "Checkpoints",
    "Session",
    "algorithm",
    "checked_options",
    "checkpointed",
    "iterating",
    "rounds",
]

#: Largest number of supersteps: loops count them in int64.
_MOST = (1 << 63) - 1


def require_folder(given: Any) -> Path:
    """Return the path of a folder that exists, or can be created.

    Raises
    ------
    ArgumentError
        If part of the path is a file, or the folder cannot be written.
    """
    wrong: Any = None
    try:
        path = Path(require_path(given, "checkpoint="))
        part = Path(os.path.abspath(path))
        while not _is_there(part):
            part = part.parent
        if not part.is_dir():
            wrong = f"{os.fspath(part)}, which is a file"
    except (ArgumentError, OSError, ValueError) as error:
        wrong = getattr(error, "got", error)
    if wrong is not None:
        raise ArgumentError(
            "not a folder",
            where="checkpoint=",
            got=wrong,
            expected="the path of a folder, which may be a new one",
        )
    if not os.access(part, os.W_OK | os.X_OK):
        raise ArgumentError(
            "the folder cannot be written",
            where="checkpoint=",
            got=os.fspath(part),
            expected="a folder that this user may write to",
        )
    return path


def _is_there(path: Path) -> bool:
    """Whether a path exists; raise OSError if that cannot be determined."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def require_every(given: Any) -> float:
    """Return the time between checkpoints, in s."""
    return require_real("every", given, 0, error=ArgumentError)


def require_count(name: str, value: Any, least: int = 0) -> int:
    """Return a number of supersteps; StateError if it is not one."""
    what = "not a number of supersteps"
    return require_integer(name, value, least, _MOST, what=what, error=StateError)


def require_sets(name: str, value: Any) -> list[ActiveSet]:
    """Return the vertex sets of ``due=``; ArgumentError if they are not sets."""
    given = [*value] if isinstance(value, Sequence) else []
    if not isinstance(value, Sequence) or not all(
        isinstance(one, ActiveSet) for one in given
    ):
        raise ArgumentError(
            "not sets of vertices",
            where=f"{name}=",
            got=shown(value),
            expected="a list of fg.ActiveSet, one for each superstep",
        )
    return given


#: Expected values of options, for errors.
_BEHIND = "a function that is called after each superstep"
_THEN = "a foldmap, or a function that is called when nothing is due"
#: Default of ``every=``.
EVERY = 60.0
#: Option of `iterate` -> its default, which needs no check, and a function that takes
#: the name and another value, and returns the checked value.
_CHECKS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "max_supersteps": (None, require_count),
    "supersteps": (None, require_count),
    "until": (None, partial(require_callable, expected=_BEHIND)),
    "callback": (None, partial(require_callable, expected=_BEHIND)),
    "then": (None, partial(require_callable, expected=_THEN)),
    "progress": (False, require_flag),
    "record_active": (False, require_flag),
    "due": (None, require_sets),
    "watch": (None, require_text),
    "recompute_every": (
        64,
        lambda name, value: None if value is None else require_count(name, value, 1),
    ),
    "near_far": (None, lambda name, value: checked_near_far(value)),
    "checkpoint": (None, lambda name, value: require_folder(value)),
    "every": (EVERY, lambda name, value: require_every(value)),
    "repartition": (None, lambda name, value: checked_repartition(value)),
}
#: All options of `iterate`.
NAMES = ("active", "target", *_CHECKS, *OPTIONS)


def checked_options(
    given: Mapping[str, Any], functions: Sequence[Any] = ()
) -> dict[str, Any]:
    """Check the options of `iterate`, and return them in the form that it uses.

    Raises
    ------
    ArgumentError, StateError, PlanError
        For an unknown option, and for a wrong value.
    """
    made, folds = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        made[name] = value
        if name in _CHECKS:
            default, check = _CHECKS[name]
            if value is not default:
                made[name] = check(name, value)
        elif name != "active":
            folds[name] = value
    if given.get("supersteps") is not None and given.get("max_supersteps") is not None:
        raise PlanError(
            "supersteps is a number of supersteps, and max_supersteps a limit",
            where="options",
            got=f"supersteps={given['supersteps']}, "
            f"max_supersteps={given['max_supersteps']}",
            fix="drop one of the two",
        )
    if folds:
        parse_options(folds.pop("target", "auto"), False, folds, functions)
    return made


def check_names(
    given: Mapping[str, Any],
    own: Collection[str],
    where: str,
    without: Collection[str] = (),
) -> None:
    """Check that each option belongs to a function or to `iterate`.

    Parameters
    ----------
    given : mapping
    own : collection of str
        Parameters of the function.
    where : str
        The function, for errors.
    without : collection of str
        Options of `iterate` that the function does not take.

    Raises
    ------
    ArgumentError
        If one does not; the message suggests the nearest name.
    """
    for name in given:
        is_known = name in own or (name in NAMES and name not in without)
        if not is_known and not name.startswith("_"):
            known = [*own, *(n for n in NAMES if n not in without)]
            raise ArgumentError(
                f"there is no option {name!r}",
                where=where,
                expected=", ".join(known),
                fix=near_name(name, known),
            )


# -- checkpoints of calls

#: Kinds of parameters that can be passed by name.
_BY_NAME = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


class Checkpoints:
    """Write checkpoints of all runs within a ``with`` block, and resume from them.

    The same block, executed again, resumes from the newest whole checkpoint in the
    folder. All code before that point runs again, so that the block must be
    deterministic, with the same graphs and values. In functions of
    `featgraph.algorithms`, and in `iterate`, ``checkpoint=`` does the same.

    Parameters
    ----------
    folder : str or path
        Created if it does not exist. One run at a time may use it. On several ranks,
        all must have access to the same folder; the first rank writes.
    every : float, optional
        Time between checkpoints, in s; 0 for one after each superstep, for which the
        run waits.

    Raises
    ------
    ArgumentError
        If an argument has a wrong type.

    Notes
    -----
    A checkpoint is copied to host memory between two supersteps and written in the
    background. If it cannot be written, one CheckpointWarning is issued and the run
    goes on; it is an error only at the beginning of the run. The two newest checkpoints
    are kept.

    Examples
    --------
    >>> import featgraph as fg, tempfile
    >>> from featgraph.algorithms import bfs, pagerank
    >>> graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> with tempfile.TemporaryDirectory() as folder, fg.Checkpoints(folder, every=60):
    ...     ranks, levels = pagerank(graph).ranks, bfs(graph, 0).levels
    """

    def __init__(self, folder: str | os.PathLike[str], every: float = 60.0) -> None:
        self._path, self._every = require_folder(folder), require_every(every)
        self._identity = Identity()
        self._entered: list[tuple[Call, Token[Call | None]]] = []

    def __enter__(self) -> Checkpoints:
        call = Call(self._path, self._every, self._identity)
        self._entered.append((call, current_call.set(call)))
        return self

    def __exit__(self, *error: object) -> None:
        call, token = self._entered.pop()
        current_call.reset(token)
        call.close()


def _of(folder: Any, every: Any, identity: Identity) -> Checkpoints:
    """Return `Checkpoints` of a call with an identity."""
    made = Checkpoints(folder, every)
    made._identity = identity
    return made


def rounds(
    items: Iterable[_T], state: State, runs: list[Run], **arrays: npt.NDArray[Any]
) -> Iterator[_T]:
    """Generate the items of a loop of rounds, between which checkpoints are written.

    If the call is resumed from a checkpoint, the rounds that had ended are skipped, and
    the State, `runs` and `arrays` are restored as of the beginning of the next round.
    No other data may be passed from round to round.

    Parameters
    ----------
    items : iterable
        The same items whenever the call is repeated.
    state : State
        The State that all rounds work on.
    runs : list of Run
        Rounds append their runs; changed in place.
    **arrays
        NumPy arrays for results of rounds; changed in place.

    Yields
    ------
    object
        An item, for its round.

    Examples
    --------
    >>> import featgraph as fg
    >>> state = fg.State(fg.Graph.from_edges([0], [1]), x=0)
    >>> [item for item in fg.rounds("ab", state, [])]
    ['a', 'b']
    """
    call = current_call.get()
    begin = None if call is None else call.begin_rounds(state, runs, arrays)
    if call is None or begin is None:
        yield from items
        return
    try:
        for number, item in enumerate(items):
            if number > begin:
                call.begin_round(state, number, runs, arrays)
            if number >= begin:
                yield item
    finally:
        call.end_rounds()


def checkpointed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add ``checkpoint=`` and ``every=`` to a function, as algorithms have them.

    All its runs of `iterate` are checkpointed, without further code: see `Checkpoints`.
    Checkpoints of a call with other arguments are refused. ``repartition=`` is added,
    too, for all its runs: see `iterate`.

    Parameters
    ----------
    function : callable
        It must be deterministic: a call with the same arguments does the same. It
        passes its ``**options`` to `iterate`. An unknown option, or a wrong value, is
        refused before the function runs.

    Returns
    -------
    callable
        The function with the three options.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.checkpointed
    ... def spread(graph, step, **options):
    ...     state = fg.State(graph, x=fg.vertex_property(0.0, iterated=True))
    ...     return fg.iterate(step, state, **options)
    """
    parameters = inspect.signature(function).parameters
    own = tuple(n for n, p in parameters.items() if p.kind in _BY_NAME)
    hands_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    name = getattr(function, "__name__", "function")

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        options = {key: v for key, v in kwargs.items() if key not in own}
        if hands_on:
            check_names(options, own, f"{name}()")
            kwargs.update(checked_options(options))
        folder, every = kwargs.pop("checkpoint", None), kwargs.pop("every", 60.0)
        repartition = kwargs.pop("repartition", None)
        if folder is None and repartition is None:
            return function(*args, **kwargs)
        with ExitStack() as kept:
            if repartition is not None:
                kept.enter_context(repartition_option(repartition))
            if folder is not None:
                digests = argument_digests(function, args, kwargs)
                kept.enter_context(_of(folder, every, Identity(name, digests)))
            return function(*args, **kwargs)

    return call


#: Options of `iterate` that no algorithm takes.
_NOT_GIVEN = ("active", "due", "supersteps", "then", "until", "watch")


def algorithm(*sets: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Declare an algorithm: its arguments are checked, and it takes checkpoints.

    Arguments are checked first, as by `checked_arguments`, and options as by `iterate`.
    ``active``, ``due``, ``supersteps``, ``then``, ``until`` and ``watch`` are not
    taken: an algorithm passes them itself. Checkpoints are those of `checkpointed`. A
    result of `featgraph.algorithms` on a `DynamicGraph` keeps the call, for its
    ``update()``.

    Parameters
    ----------
    *sets : str
        Further options of `iterate` that the algorithm passes itself.

    Returns
    -------
    callable
        A decorator for a function.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.algorithm("max_supersteps")
    ... def spread(graph, step, depth: int, **options):
    ...     state = fg.State(graph, x=fg.vertex_property(0.0, iterated=True))
    ...     return fg.iterate(step, state, max_supersteps=depth, **options)
    >>> spread(fg.Graph.from_edges([0], [1]), None, depth="3")
    Traceback (most recent call last):
    ...
    featgraph.base.errors.ArgumentError: depth=: not an integer
      got:      '3' (str)
      expected: an integer
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        checked = checked_arguments(checkpointed(function))
        own = inspect.signature(function).parameters
        hands_on = any(p.kind is p.VAR_KEYWORD for p in own.values())
        parameters = [name for name, p in own.items() if p.kind in _BY_NAME]
        first = next(iter(own), "")
        without = (*_NOT_GIVEN, *sets)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in without:
                if name in kwargs and name not in own:
                    raise ArgumentError(
                        f"{function.__name__} takes no {name}=",
                        where=f"{name}=",
                        got=shown(kwargs[name]),
                        fix="leave it out; to iterate otherwise, give its foldmaps to "
                        "iterate",
                    )
            if hands_on:
                check_names(kwargs, parameters, f"{function.__name__}()", without)
            if "max_supersteps" in own and "max_supersteps" in kwargs:
                require_count("max_supersteps", kwargs["max_supersteps"])
            graph: Any = args[0] if args else kwargs.get(first)
            version = getattr(graph, "version", None)  # only graphs that change have it
            made = checked(*args, **kwargs)
            if version is not None and hasattr(made, "_follow"):
                made._follow(version, call, args, kwargs)
            return made

        return call

    return decorate


#: Kinds of properties that are left out of a checkpoint if no function writes them.
_LARGE = {PropertyKind.VERTEX, PropertyKind.EDGE}


def iterating(checkpoint: Any, every: float) -> AbstractContextManager[Call | None]:
    """Return a context for one run of `iterate`, which yields its `Call` or None.

    With ``checkpoint=`` the run is a call of its own; otherwise it belongs to the call
    in progress, if any. Runs within callbacks have no checkpoints.
    """
    if checkpoint is None and current_call.get() is None:
        return nullcontext()
    return _iterating(checkpoint, every)


@contextmanager
def _iterating(checkpoint: Any, every: float) -> Iterator[Call | None]:
    """Hide the call from runs within the block, and count the run at its end."""
    with ExitStack() as ends:
        if checkpoint is not None:
            single = Identity("iterate", is_single=True)
            ends.enter_context(_of(checkpoint, every, single))
        call = current_call.get()
        token = current_call.set(None)  # for runs within callbacks
        try:
            yield call
        finally:
            current_call.reset(token)
            if call is not None:
                call.leave()


class Session:
    """Restores one run of `iterate` from a checkpoint, and writes further ones.

    Parameters
    ----------
    call : Call
        The call that writes the checkpoints.
    foldmaps : sequence of FoldMap
    state : State
        Restored, if there is a checkpoint.
    options : mapping
        All options of the run.
    is_written : bool
        Whether a function of the user may write to the State during the run.

    Raises
    ------
    StateError
        If the checkpoint at this point is of another run.
    FileFormatError
        If there are checkpoints, and none of them is whole.
    """

    def __init__(
        self,
        call: Call,
        foldmaps: Sequence[FoldMap],
        state: State,
        options: Mapping[str, Any],
        is_written: bool,
    ) -> None:
        self._call, self._state, self._is_written = call, state, is_written
        self._identity: dict[str, Any] = {}
        self._snapshot: Snapshot | None = None
        self._saved: dict[str, Any] = {}
        self._packed = Packed()
        #: Number of supersteps at the last call of `look`.
        self._seen = 0
        call.open(state.graph)
        self._identity = iterate_identity(foldmaps, state, options)
        first = call.first_values(state)
        if first is not None:
            self._identity["first"] = first
        found = call.reach()
        if found is not None:
            path, body = found
            self._saved = body["iterate"] | {"ended": body["ended"]}
            refuse_other(str(path), self._saved["of"], self._identity)
            self._snapshot = read_state(path / "state", state.graph)
            self._packed = Packed(read_state(path / "record", state.graph))
            put_back(state, self._snapshot, {})

    @property
    def goes_on(self) -> bool:
        """Whether the run is resumed from a checkpoint."""
        return self._snapshot is not None

    @property
    def has_ended(self) -> bool:
        """Whether the run had already ended when the checkpoint was written."""
        return bool(self._saved.get("ended"))

    def begin(self, run: Run, run_state: RunState) -> None:
        """Restore the record and the pending vertices of a run from the checkpoint.

        Loops are made to return to the host when a checkpoint is due.
        """
        call, is_shared = self._call, run_state.state.graph.ranks is not None
        if is_shared:
            run_state.supersteps_left = lambda: call.supersteps_left
        else:
            run_state.wants_host = call.is_due
        if self._snapshot is None:
            return
        go_on(run_state, self._snapshot.left, self._saved["rest"])
        unpack_run(
            self._saved["run"], self._packed, run, run_state.state.graph.vertex_count
        )
        self._seen = run.supersteps
        # The State has the values now; `goes_on` only needs an object.
        self._packed, self._snapshot = Packed(), Snapshot(0, {})

    def look(self, run: Run, run_state: RunState) -> None:
        """Write a checkpoint after a superstep, if one is due."""
        new, self._seen = run.supersteps - self._seen, run.supersteps
        if self._call.is_due(new):
            self._write(self._call, run, run_state)

    def end(self, run: Run, run_state: RunState, ended: bool) -> None:
        """Write a checkpoint after the last superstep.

        `ended` is False if the run has reached its limit of supersteps.
        """
        if self._call.is_due_behind():
            self._write(self._call, run, run_state, ended)

    def _write(
        self, call: Call, run: Run, run_state: RunState, ended: bool = False
    ) -> None:
        """Write a checkpoint of the run, as of now."""
        snapshot, rest = take(run_state, self._constant(run_state))
        packed = Packed()
        record = {"of": self._identity, "rest": rest, "run": pack_run(run, packed)}
        parts = {"state": snapshot, "record": packed.snapshot}
        call.write(self._state.graph, record, parts, run.supersteps, ended)

    def _constant(self, run_state: RunState) -> frozenset[str]:
        """Return the large properties that no function writes during the run.

        They are not saved, since a repeated call has them anyway.
        """
        if self._is_written:
            return frozenset()
        changes = run_state.runs[0].changes
        changed = {*changes.announced, *changes.silent}
        types = self._state.signature
        return frozenset(n for n in types if types[n].kind in _LARGE) - changed
