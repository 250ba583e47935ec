"""Where a call is that may iterate several times, and what it is gone on from (0054).

A call is repeated up to where the newest checkpoint was taken, and goes on from there.
What it iterates is numbered; a loop of rounds goes to the round in which that was.

Ranks agree on when a checkpoint is due, and on what the first one has found.

Checkpoints are written beside a run; with several ranks, by the first of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from featgraph.base.activity import ACTIVITY, doing
from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import (
    CheckpointWarning,
    DistributedError,
    FileFormatError,
    StateError,
)
from featgraph.graph import Graph
from featgraph.graph.views.structure import require_fixed
from featgraph.program.active import ActiveSet
from featgraph.program.saved import Snapshot, digests_of, read_state, write_state
from featgraph.program.state import State, take_snapshot
from featgraph.runtime.checkpoints.folder import CheckpointFolder
from featgraph.runtime.checkpoints.resume_point import (
    Packed,
    pack_run,
    put_back,
    unpack_run,
    values_of,
)
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.stopping import StoppingTest
from featgraph.runtime.superstep.foldmap import FoldMap, as_active

__all__ = [
    "Call",
    "argument_digests",
    "current_call",
    "iterate_identity",
    "refuse_other",
]

#: Options that may be others when a run is gone on with: where it runs, how far, what
#: is told of it, and in which form ranks send rows.
_FREE = frozenset({"target", "max_supersteps", "progress", "callback", "exchange"})

#: Arguments that stand for random numbers; None for others in each call.
_SEEDS = frozenset({"seed", "random_state"})


def argument_digests(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    """Return a digest of each argument of a call, but of those that may change."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
    if given.get("samples", True) is not None:  # else nothing is drawn
        for name in _SEEDS & given.keys():
            if given[name] is None:
                given[name] = secrets.token_bytes(8)  # the next call draws anew
    return {n: _digest(value) for n, value in given.items() if n not in _FREE}


def _digest(value: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    """Add a value to a digest, by its content."""

    def say(*parts: object) -> None:
        found.update(repr(parts).encode())

    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        say(type(value).__name__, value)
    elif isinstance(value, Graph):
        say("graph", value.digest, value.weights_digest)
    elif isinstance(value, np.random.Generator):
        say("generator", value.bit_generator.state)
    elif isinstance(value, np.dtype | type):
        say("type", str(value))
    elif isinstance(value, ActiveSet):
        _add(found, value.words)
    elif isinstance(value, os.PathLike):
        say("path", os.fspath(value))
    elif isinstance(value, np.generic):
        say(value.dtype.name, value.item())
    elif isinstance(value, Mapping):
        say("mapping", len(value))
        for key in value:
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple) and not _is_numbers(value):
        say("sequence", len(value))
        for item in value:
            _add(found, item)
    elif callable(value):
        say("function")  # what is called behind supersteps may change
    elif hasattr(value, "tocoo"):  # scipy.sparse
        rows = value.tocoo()
        for part in (np.asarray(rows.shape), *rows.coords, rows.data):
            _add(found, part)
    elif dataclasses.is_dataclass(value):
        _add(found, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    else:
        _add_array(found, value)


def _is_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _add_array(found: Any, value: Any) -> None:
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    elif hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # of CuPy
    elif hasattr(value, "detach"):
        value = value.detach().cpu()
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] == "networkx":
        found.update(name.encode())  # the graph that is made of it has a digest
        return
    array = np.asarray(value)
    if array.dtype != object:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    elif array.ndim:
        _add(found, array.ravel().tolist())
    else:
        found.update(name.encode())
        _add(found, getattr(value, "__dict__", {}))


def iterate_identity(
    foldmaps: Sequence[FoldMap], state: State, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run of foldmaps is, beside the values it begins with."""
    options = {
        name: repr(value)
        for name, value in asked.items()
        if name not in _FREE and not (callable(value) and not _is_test(value))
    }
    return {
        "graph": state.graph.digest,
        "programs": [_program(foldmap, state) for foldmap in foldmaps],
        "options": dict(sorted(options.items())),
        "properties": {n: type_.describe() for n, type_ in state.signature.items()},
    }


def _is_test(value: Any) -> bool:
    return isinstance(value, StoppingTest)


def _program(foldmap: FoldMap, state: State) -> str:
    if foldmap.vertices is None:
        return foldmap.program.digest
    words = as_active(foldmap.vertices, state).words
    return f"{foldmap.program.digest} on {_digest(words)}"


#: What differs, for people.
_CALLED = {
    "function": "another function",
    "arguments": "other arguments",
    "graph": "another graph",
    "programs": "other functions, or vertices that they run on",
    "options": "other options",
    "properties": "other properties",
    "first": "other values to begin with",
}


def refuse_other(where: str, told: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """See that a checkpoint is of what is called now.

    Raises
    ------
    StateError
        If not; it says what differs.
    """
    for key, what in _CALLED.items():
        before, given = told.get(key), now.get(key)
        if key not in now or before == given:
            continue
        got, expected = given, before
        if isinstance(before, dict) and isinstance(given, dict):
            names = [n for n in {**before, **given} if before.get(n) != given.get(n)]
            what += f": {', '.join(names)}"
            got = {n: given.get(n, "not given") for n in names}
            expected = {n: before.get(n, "not given") for n in names}
        raise StateError(
            f"the checkpoint is of {what}",
            where=where,
            got=f"{got!s:.300}",
            expected=f"{expected!s:.300}",
            fix="to begin anew, give another folder as checkpoint=, or remove this one",
        )


Array = npt.NDArray[Any]
Found = tuple[Path, dict[str, Any]]

#: The call that iterates now; None also while it does.
current_call: ContextVar[Call | None] = ContextVar("featgraph_call", default=None)
#: Behind an iterate, and between rounds, a checkpoint is written sooner: where that
#: takes at most so much of the time since the last one.
_SHARE = 1 / 20
#: But not more often than this, in s.
_SOONEST = 1.0


@dataclass(frozen=True)
class Identity:
    """What is called.

    Attributes
    ----------
    function : str
        Of which the checkpoints are; "" for a block.
    arguments : dict of str to str
        Digests of what it was given; none where that is not known.
    is_single : bool
        Whether it is one `iterate`.
    """

    function: str = ""
    arguments: dict[str, str] | None = None
    is_single: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """As it stands in a checkpoint."""
        return {"function": self.function, "arguments": self.arguments or {}}


@dataclass(frozen=True)
class _Opened:
    """What works on the folder, from the first `iterate` on."""

    folder: CheckpointFolder | None
    writer: Writer
    together: Together


class Call:
    """A call whose runs are checkpointed.

    Parameters
    ----------
    path : Path
        The folder.
    every : float
        Seconds from one checkpoint to the next.
    identity : Identity
    """

    def __init__(self, path: Path, every: float, identity: Identity) -> None:
        self._path, self._every, self._identity = path, every, identity
        self._opened: _Opened | None = None
        #: The round that is kept, and how often was iterated since it began.
        self._place = [0, 0]
        self._round: dict[str, Any] | None = None
        self._round_parts: dict[str, Snapshot] = {}
        self._in_rounds = self._has_written = False
        #: What is to be gone on from, and has not been reached yet.
        self._found: Found | None = None

    def open(self, graph: Graph) -> None:
        """Find what there is to go on from, once.

        Raises
        ------
        StateError
            If it is of another call, or the folder is no folder of checkpoints.
        FileFormatError
            If none of the checkpoints is whole.
        OSError
            If the folder cannot be written.
        """
        if self._opened is not None:
            return
        require_fixed(graph, "checkpoint=")
        together = Together(graph, self._every)
        ACTIVITY.checkpoints = os.path.abspath(self._path)
        folder = together.first(lambda: CheckpointFolder(self._path))
        self._opened = _Opened(folder, Writer(folder), together)

        def find() -> Found | None:
            found = None if folder is None else folder.newest()
            if found is not None:
                told = found[1].get("call", {})
                refuse_other(os.fspath(found[0]), told, self._identity.told)
            return found

        with doing("loading", self._path):
            self._found = together.told(find)

    def close(self) -> None:
        """End with what is being written."""
        if self._opened is None:
            return
        try:
            self._opened.writer.wait()
        finally:
            if self._opened.folder is not None:
                self._opened.folder.close()
            self._opened = None

    # -- where it is, and where it goes on

    def reach(self) -> Found | None:
        """Return what the next iterate goes on from, if it is at that place."""
        found = self._found
        if found is None or self._place < found[1]["place"]:
            return None
        self._found = None
        is_here = self._place == found[1]["place"] and found[1]["iterate"] is not None
        return found if is_here else None

    def leave(self) -> None:
        """Note that an iterate has ended."""
        self._place[1] += 1

    def first_values(self, state: State) -> dict[str, str] | None:
        """Return digests of what an iterate begins with, unless arguments have them."""
        if self._identity.arguments is not None or self._opened is None:
            return None
        snapshot = Snapshot(0, values_of(state, copied=False))
        told: dict[str, str] = self._opened.together.text(
            lambda: digests_of(state.graph, snapshot)
        )
        return told

    # -- writing

    @property
    def supersteps_left(self) -> int:
        """How many supersteps may run until ranks ask each other whether to write."""
        return 1 if self._opened is None else self._opened.together.supersteps_left

    def is_due(self, supersteps: int = 0) -> bool:
        """Whether to write behind so many supersteps more; all ranks ask, and agree."""
        if self._found is not None or self._opened is None:
            return False
        is_free = self._every == 0 or self._opened.writer.is_free
        return self._opened.together.is_time(supersteps) and is_free

    def is_due_behind(self) -> bool:
        """Whether to write behind an iterate, or before a round."""
        if self._found is not None or self._opened is None:
            return False
        soonest = max(_SOONEST, self._opened.writer.seconds / _SHARE)
        is_at_once = self._identity.is_single or not self._has_written
        least = 0.0 if is_at_once else min(self._every, soonest)
        return self._opened.together.has_been(least)

    def write(
        self,
        graph: Graph,
        iterate: dict[str, Any] | None,
        parts: dict[str, Snapshot],
        supersteps: int = 0,
        ended: bool = False,
    ) -> None:
        """Begin to write a checkpoint of where the call is."""
        if self._opened is None:
            return
        body = {
            "call": self._identity.told,
            "place": list(self._place),
            "round": self._round,
            "iterate": iterate,
            "supersteps": supersteps,
            "ended": ended,
        }
        content = Content(body, graph, {**parts, **self._round_parts})
        self._has_written = True
        self._opened.writer.write(content)
        self._opened.together.begin()

    # -- rounds

    def begin_rounds(
        self, state: State, runs: list[Run], arrays: dict[str, Array]
    ) -> int | None:
        """Return the round to begin with; None within another loop of rounds."""
        if self._in_rounds:
            return None
        self.open(state.graph)
        self._in_rounds = True
        if self._found is None or self._found[1]["round"] is None:
            return 0
        path, body = self._found
        told = body["round"]
        snapshot = read_state(path / "round", state.graph)
        packed = Packed(read_state(path / "round_record", state.graph))
        put_back(state, _copied(snapshot), snapshot.left)
        try:
            number = int(told["number"])
            for name, values in arrays.items():
                values[...] = packed.get(told["arrays"][name], values.dtype)
            runs[:] = [_unpacked(run, packed, state.graph) for run in told["runs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                "not a checkpoint of these rounds",
                where=os.fspath(path),
                got=repr(error)[:200],
                fix="to begin anew, give another folder as checkpoint=",
            ) from error
        self._keep_round(number, runs, arrays, snapshot)
        if body["iterate"] is None:
            self._found = None
        return number

    def begin_round(
        self, state: State, number: int, runs: list[Run], arrays: dict[str, Array]
    ) -> None:
        """Note that another round begins; what came before is not repeated then."""
        if self.is_due_behind():
            snapshot = take_snapshot(state).by_digest()
            self._keep_round(number, runs, arrays, snapshot)
            self.write(state.graph, None, {})

    def end_rounds(self) -> None:
        """Note that no other round comes."""
        self._in_rounds = False

    def _keep_round(
        self,
        number: int,
        runs: list[Run],
        arrays: dict[str, Array],
        snapshot: Snapshot,
    ) -> None:
        packed = Packed()
        self._round = {
            "number": number,
            "arrays": {name: packed.put(values) for name, values in arrays.items()},
            "runs": [pack_run(run, packed) for run in runs],
        }
        self._round_parts = {"round": snapshot, "round_record": packed.snapshot}
        self._place = [number, 0]


def _copied(snapshot: Snapshot) -> Snapshot:
    columns = {n: column.copy(column.values) for n, column in snapshot.columns.items()}
    return Snapshot(snapshot.superstep, columns, snapshot.left)


def _unpacked(told: Any, packed: Packed, graph: Graph) -> Run:
    run = Run(str(told["target"]), [], asynchronous=bool(told["asynchronous"]))
    unpack_run(told, packed, run, graph.vertex_count)
    return run


_R = TypeVar("_R")
#: Ranks ask each other again when this share of the time that is left has gone.
_SHARE_LEFT = 0.5
#: And behind so many supersteps at most.
_MOST_SUPERSTEPS = 1 << 16


class Together:
    """Times, and what is found in files, by the first rank for all.

    Parameters
    ----------
    graph : Graph
        All ranks have a part of it, or it is of one rank.
    every : float
        Seconds from one checkpoint to the next.
    """

    def __init__(self, graph: Graph, every: float) -> None:
        self._ranks, self._every = graph.ranks, every
        self.begin()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reads and writes."""
        return self._ranks is None or self._ranks.engine.rank == 0

    def begin(self) -> None:
        """Have the time to the next checkpoint begin."""
        self._begun = time.monotonic()
        #: Supersteps since, and behind how many ranks ask each other.
        self._done, self._next = 0, 1

    @property
    def supersteps_left(self) -> int:
        """How many supersteps may run until ranks ask each other."""
        return max(self._next - self._done, 1)

    def has_been(self, seconds: float) -> bool:
        """Whether so much time has gone, as the first rank says."""
        return self._said(time.monotonic() - self._begun >= seconds) > 0

    def is_time(self, supersteps: int) -> bool:
        """Whether a checkpoint is due, behind so many supersteps since it was asked."""
        self._done += supersteps
        if self._ranks is None:
            return time.monotonic() - self._begun >= self._every
        if self._done < self._next:
            return False
        gone = time.monotonic() - self._begun
        each, left = gone / self._done, self._every - gone
        wait = left * _SHARE_LEFT / each if each > 0 else 1
        wait = self._said(0 if left <= 0 else int(min(max(wait, 1), _MOST_SUPERSTEPS)))
        self._next = self._done + max(wait, 1)
        return wait == 0

    def _said(self, number: int) -> int:
        """Return a number of the first rank."""
        if self._ranks is None:
            return int(number)
        mine = np.array([number], np.int64)
        about = "whether a checkpoint is due"
        return int(self._ranks.engine.broadcast(mine, 0, about=about)[0])

    def first(self, function: Callable[[], _R]) -> _R | None:
        """Run a function on the first rank; where it raises, all do."""
        if self._ranks is None:
            return function()

        def run() -> _R | None:
            return function() if self.is_first else None

        return self._ranks.on_all(run, "opening checkpoints")  # type: ignore[no-any-return]

    def text(self, function: Callable[[], Any]) -> Any:
        """Return what the first rank has got of a function that all run, of JSON."""
        found = function()
        return self._sent(found)

    def told(
        self, function: Callable[[], tuple[Path, dict[str, Any]] | None]
    ) -> tuple[Path, dict[str, Any]] | None:
        """Return a path and a record that the first rank has found, or None."""
        found = self.first(function)
        if self._ranks is None:
            return found
        sent = self._sent(None if found is None else [str(found[0]), found[1]])
        return None if sent is None else (Path(sent[0]), sent[1])

    def _sent(self, value: Any) -> Any:
        if self._ranks is None:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        mine = np.frombuffer(text, np.uint8)
        parts = self._ranks.engine.all_gather(mine, about="what a checkpoint says")
        return json.loads(parts[0].tobytes())


#: What a write may meet that is no fault of the program's.
_FAILURES = (OSError, MemoryError)


@dataclass(frozen=True)
class Content:
    """What a checkpoint has.

    Attributes
    ----------
    body : dict
        Its record, in JSON.
    graph : Graph
        That of all its parts.
    parts : dict of str to Snapshot
        What is saved, by the name of its folder; nothing else writes it.
    """

    body: dict[str, Any]
    graph: Graph
    parts: dict[str, Snapshot] = field(default_factory=dict)


class Writer:
    """Writes one checkpoint at a time, on a thread of its own.

    Ranks hand their rows to the first one piece by piece, between two supersteps: so a
    run waits for that there.

    Parameters
    ----------
    folder : CheckpointFolder or None
        None on ranks but the first.
    """

    def __init__(self, folder: CheckpointFolder | None) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_warned = False
        #: How long the last write took, in s.
        self.seconds = 0.0

    @property
    def is_free(self) -> bool:
        """Whether nothing is being written."""
        return self._thread is None or not self._thread.is_alive()

    def write(self, content: Content) -> None:
        """Begin to write a checkpoint; what was written before has ended then."""
        self.wait()
        if content.graph.ranks is not None:
            self._write(content)
            self._report()
            return
        self._thread = threading.Thread(
            target=self._write, args=(content,), name="featgraph checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._report()

    def _write(self, content: Content) -> None:
        begun = time.perf_counter()
        try:
            with doing("writing", "a checkpoint"), ExitStack() as ends:
                self._write_on(content, ends)
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - begun

    def _write_on(self, content: Content, ends: ExitStack) -> None:
        folder, graph = self._folder, content.graph

        def begin() -> Path:
            return Path() if folder is None else ends.enter_context(folder.beside())

        about = "writing a checkpoint"
        beside = begin() if graph.ranks is None else graph.ranks.on_all(begin, about)
        for name, snapshot in content.parts.items():
            write_state(beside / name, graph, snapshot)
        if folder is not None:
            folder.finish(beside, content.body)

    def _report(self) -> None:
        """Say once that writes fail; the run goes on, and later ones are tried."""
        error, self._error = self._error, None
        if error is None:
            return
        is_told = type(error) is DistributedError  # of the first rank's failure
        if not (is_told or isinstance(error, _FAILURES)):
            raise error
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a checkpoint could not be written, the run goes on: {error}",
                CheckpointWarning,
                stacklevel=2,
            )
