"""A call with several runs of `iterate` that is resumed from checkpoints (0054).

A repeated call is executed again up to the point of the newest checkpoint, and resumes
there (`Call`). Its runs of `iterate` are numbered; a loop of rounds skips to the round
of the checkpoint. A checkpoint contains the `Identity` of the call, and digests of
arguments, programs and options, so that another call is refused.

All ranks follow the first one on when a checkpoint is due, and on the checkpoint to
resume from (`RankAgreement`). Checkpoints are written in the background (`Writer`); on
several ranks the first rank writes, and all wait.
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
from contextlib import ExitStack, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from featgraph.base.activity import ACTIVITY, doing
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import CheckpointWarning, DistributedError, StateError
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
    unpacking,
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

#: Options that may differ when a run is resumed: the target, the limit, progress and
#: callbacks, and the form in which ranks send rows.
_FREE = frozenset({"target", "max_supersteps", "progress", "callback", "exchange"})

#: Names of arguments for random seeds; with None, each call draws other numbers.
_SEEDS = frozenset({"seed", "random_state"})


def argument_digests(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    """Return a digest of each argument of a call, except those that may differ."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
    if given.get("samples", True) is not None:  # otherwise nothing is drawn
        for name in _SEEDS & given.keys():
            if given[name] is None:
                given[name] = secrets.token_bytes(8)  # no two calls are equal
    return {n: _digest(value) for n, value in given.items() if n not in _FREE}


def _digest(value: Any) -> str:
    """Return a digest of a value, as hexadecimal text."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    """Add a value to a digest, by its content."""

    def add(*parts: object) -> None:
        found.update(repr(parts).encode())

    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        add(type(value).__name__, value)
    elif isinstance(value, Graph):
        add("graph", value.digest, value.weights_digest)
    elif isinstance(value, np.random.Generator):
        add("generator", value.bit_generator.state)
    elif isinstance(value, np.dtype | type):
        add("type", str(value))
    elif isinstance(value, ActiveSet):
        _add(found, value.words)
    elif isinstance(value, os.PathLike):
        add("path", os.fspath(value))
    elif isinstance(value, np.generic):
        add(value.dtype.name, value.item())
    elif isinstance(value, Mapping):
        add("mapping", len(value))
        for key in value:
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple) and not all(
        type(item) in (int, float) for item in value
    ):
        add("sequence", len(value))
        for item in value:
            _add(found, item)
    elif callable(value):
        add("function")  # callbacks may differ
    elif hasattr(value, "tocoo"):  # scipy.sparse
        rows = value.tocoo()
        for part in (np.asarray(rows.shape), *rows.coords, rows.data):
            _add(found, part)
    elif dataclasses.is_dataclass(value):
        _add(found, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    else:
        _add_array(found, value)


def _add_array(found: Any, value: Any) -> None:
    """Add an array of any library to a digest, or another object by its attributes."""
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    elif hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # a CuPy array
    elif hasattr(value, "detach"):
        value = value.detach().cpu()
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] == "networkx":
        found.update(name.encode())  # the graph that is built from it has a digest
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
    foldmaps: Sequence[FoldMap], state: State, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the identity of a run of foldmaps, without its initial values."""
    options = {
        name: repr(value)
        for name, value in given.items()
        if name not in _FREE
        and (isinstance(value, StoppingTest) or not callable(value))
    }
    return {
        "graph": state.graph.digest,
        "programs": [_program(foldmap, state) for foldmap in foldmaps],
        "options": dict(sorted(options.items())),
        "properties": {n: type_.describe() for n, type_ in state.signature.items()},
    }


def _program(foldmap: FoldMap, state: State) -> str:
    """Return the digest of a foldmap's program and of its ``.on``."""
    if foldmap.vertices is None:
        return foldmap.program.digest
    words = as_active(foldmap.vertices, state).words
    return f"{foldmap.program.digest} on {_digest(words)}"


#: Key of an identity -> text for the error if the values differ.
_CALLED = {
    "function": "another function",
    "arguments": "other arguments",
    "graph": "another graph",
    "programs": "other functions, or vertices that they run on",
    "options": "other options",
    "properties": "other properties",
    "first": "other values to begin with",
}


def refuse_other(where: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a checkpoint is of the current call.

    Raises
    ------
    StateError
        If it is not; the message names the difference.
    """
    for key, what in _CALLED.items():
        before, given = stored.get(key), now.get(key)
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
#: Folder and record of a checkpoint.
Found = tuple[Path, dict[str, Any]]

#: The call in progress; None within its runs of `iterate`.
current_call: ContextVar[Call | None] = ContextVar("featgraph_call", default=None)
#: After a run, and between rounds, a checkpoint is written before ``every=`` is over if
#: writing takes at most `_SHARE` of the time since the last one, and that time is at
#: least `_SOONEST`, in s.
_SHARE = 1 / 20
_SOONEST = 1.0


@dataclass(frozen=True)
class Identity:
    """The identity of a call.

    Attributes
    ----------
    function : str
        Name of the function; "" for a ``with`` block.
    arguments : dict of str to str
        Digests of the arguments; None if these are unknown.
    is_single : bool
        Whether the call is a single `iterate`.
    """

    function: str = ""
    arguments: dict[str, str] | None = None
    is_single: bool = False

    @property
    def as_saved(self) -> dict[str, Any]:
        """The identity as written to a checkpoint."""
        return {"function": self.function, "arguments": self.arguments or {}}


class Call:
    """A call whose runs are checkpointed.

    Parameters
    ----------
    path : Path
        The folder.
    every : float
        Time between checkpoints, in s.
    identity : Identity
    """

    def __init__(self, path: Path, every: float, identity: Identity) -> None:
        self._path, self._every, self._identity = path, every, identity
        #: Writes checkpoints, from the first run to the end of the call.
        self._writer: Writer | None = None
        #: Position in the call: index of the round that was saved last, and number of
        #: runs since that round began.
        self._place = [0, 0]
        self._round: dict[str, Any] | None = None
        self._round_parts: dict[str, Snapshot] = {}
        self._in_rounds = self._has_written = False
        #: The checkpoint to resume from, until it is reached.
        self._found: Found | None = None

    def open(self, graph: Graph) -> None:
        """Open the folder, and find the checkpoint to resume from; only once a call.

        Raises
        ------
        StateError
            If it is of another call, or the folder has other files.
        FileFormatError
            If none of the checkpoints is whole.
        OSError
            If the folder cannot be written.
        """
        if self._writer is not None:
            return
        require_fixed(graph, "checkpoint=")
        agreement = RankAgreement(graph, self._every)
        ACTIVITY.checkpoints = os.path.abspath(self._path)
        folder = agreement.first(lambda: CheckpointFolder(self._path))
        self._writer = Writer(folder, agreement)

        def find() -> list[Any] | None:
            found = None if folder is None else folder.newest()
            if found is None:
                return None
            where = os.fspath(found[0])
            refuse_other(where, found[1].get("call", {}), self._identity.as_saved)
            return [where, found[1]]

        with doing("loading", self._path):
            found = agreement.sent(agreement.first(find))
        self._found = None if found is None else (Path(found[0]), found[1])

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and unlock the folder."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.wait()
        finally:
            if writer.folder is not None:
                writer.folder.close()

    # -- position in the call

    def reach(self) -> Found | None:
        """Return the checkpoint, if the next run is the one that resumes from it."""
        found = self._found
        if found is None or self._place < found[1]["place"]:
            return None
        self._found = None
        is_here = self._place == found[1]["place"] and found[1]["iterate"] is not None
        return found if is_here else None

    def leave(self) -> None:
        """Count a run that has ended."""
        self._place[1] += 1

    def first_values(self, state: State) -> dict[str, str] | None:
        """Return digests of the values of a State before a run.

        None if the arguments of the call, which have digests, determine the values.
        """
        if self._identity.arguments is not None or self._writer is None:
            return None
        found = digests_of(state.graph, Snapshot(0, state._columns))
        return self._writer.agreement.sent(found)  # type: ignore[no-any-return]

    # -- writing

    @property
    def supersteps_left(self) -> int:
        """Number of supersteps until ranks next compare whether to write."""
        return 1 if self._writer is None else self._writer.agreement.supersteps_left

    def is_due(self, supersteps: int = 0) -> bool:
        """Whether all ranks write a checkpoint, `supersteps` after the last call."""
        if self._found is not None or self._writer is None:
            return False
        is_free = self._every == 0 or self._writer.is_free
        return self._writer.agreement.is_time(supersteps) and is_free

    def is_due_behind(self) -> bool:
        """Whether to write a checkpoint after a run, or before a round."""
        if self._found is not None or self._writer is None:
            return False
        soonest = max(_SOONEST, self._writer.seconds / _SHARE)
        is_at_once = self._identity.is_single or not self._has_written
        least = 0.0 if is_at_once else min(self._every, soonest)
        return self._writer.agreement.has_been(least)

    def write(
        self,
        graph: Graph,
        iterate: dict[str, Any] | None,
        parts: dict[str, Snapshot],
        supersteps: int = 0,
        ended: bool = False,
    ) -> None:
        """Start writing a checkpoint of the current point of the call."""
        if self._writer is None:
            return
        body = {
            "call": self._identity.as_saved, "place": list(self._place),
            "round": self._round, "iterate": iterate,
            "supersteps": supersteps, "ended": ended,
        }  # fmt: skip
        self._has_written = True
        self._writer.write(graph, body, parts | self._round_parts)
        self._writer.agreement.begin()

    # -- rounds

    def begin_rounds(
        self, state: State, runs: list[Run], arrays: dict[str, Array]
    ) -> int | None:
        """Return the index of the first round; None within another loop of rounds."""
        if self._in_rounds:
            return None
        self.open(state.graph)
        self._in_rounds = True
        if self._found is None or self._found[1]["round"] is None:
            return 0
        path, body = self._found
        saved = body["round"]
        snapshot = read_state(path / "round", state.graph)
        packed = Packed(read_state(path / "round_record", state.graph))
        put_back(state, _copied(snapshot), snapshot.left)
        with unpacking("the record of rounds"):
            number = int(saved["number"])
            for name, values in arrays.items():
                values[...] = packed.get(saved["arrays"][name], values.dtype)
            runs[:] = [_unpacked(run, packed, state.graph) for run in saved["runs"]]
        self._keep_round(number, runs, arrays, snapshot)
        if body["iterate"] is None:
            self._found = None
        return number

    def begin_round(
        self, state: State, number: int, runs: list[Run], arrays: dict[str, Array]
    ) -> None:
        """Begin a round, and write a checkpoint of its beginning if one is due."""
        if self.is_due_behind():
            snapshot = take_snapshot(state).by_digest()
            self._keep_round(number, runs, arrays, snapshot)
            self.write(state.graph, None, {})

    def end_rounds(self) -> None:
        """End the loop of rounds."""
        self._in_rounds = False

    def _keep_round(
        self,
        number: int,
        runs: list[Run],
        arrays: dict[str, Array],
        snapshot: Snapshot,
    ) -> None:
        """Store the beginning of a round, which later checkpoints include."""
        packed = Packed()
        self._round = {
            "number": number,
            "arrays": {name: packed.put(values) for name, values in arrays.items()},
            "runs": [pack_run(run, packed) for run in runs],
        }
        self._round_parts = {"round": snapshot, "round_record": packed.snapshot}
        self._place = [number, 0]


def _copied(snapshot: Snapshot) -> Snapshot:
    """Return a copy of a snapshot with values of its own."""
    columns = {n: column.copy(column.values) for n, column in snapshot.columns.items()}
    return Snapshot(snapshot.superstep, columns, snapshot.left)


def _unpacked(packed_run: Any, packed: Packed, graph: Graph) -> Run:
    """Return a new record of a run from a packed one."""
    run = Run(
        str(packed_run["target"]), [], asynchronous=bool(packed_run["asynchronous"])
    )
    unpack_run(packed_run, packed, run, graph.vertex_count)
    return run


_R = TypeVar("_R")
#: Ranks compare again after the supersteps of this fraction of the time that remains to
#: the next checkpoint, and after at most `_MOST_SUPERSTEPS`.
_SHARE_LEFT = 0.5
_MOST_SUPERSTEPS = 1 << 16


class RankAgreement:
    """Makes all ranks follow the first one on times and files of checkpoints.

    Parameters
    ----------
    graph : Graph
        All ranks have a part of it, or there is one rank.
    every : float
        Time between checkpoints, in s.
    """

    def __init__(self, graph: Graph, every: float) -> None:
        self._ranks, self._every = graph.ranks, every
        self.begin()

    def begin(self) -> None:
        """Start the time to the next checkpoint."""
        self._begun = time.monotonic()
        #: Number of supersteps since then, and number at which ranks compare again.
        self._done, self._next = 0, 1

    @property
    def supersteps_left(self) -> int:
        """Number of supersteps that may run before ranks compare again."""
        return max(self._next - self._done, 1)

    def has_been(self, seconds: float) -> bool:
        """Whether the first rank has measured this many s since `begin`."""
        return self._of_first(time.monotonic() - self._begun >= seconds) > 0

    def is_time(self, supersteps: int) -> bool:
        """Whether a checkpoint is due, `supersteps` after the last call.

        On several ranks, most calls compare nothing: the first rank has predicted the
        number of supersteps until the next comparison.
        """
        self._done += supersteps
        if self._ranks is None:
            return time.monotonic() - self._begun >= self._every
        if self._done < self._next:
            return False
        gone = time.monotonic() - self._begun
        each, left = gone / self._done, self._every - gone
        wait = left * _SHARE_LEFT / each if each > 0 else 1
        wait = 0 if left <= 0 else int(min(max(wait, 1), _MOST_SUPERSTEPS))
        wait = self._of_first(wait)
        self._next = self._done + max(wait, 1)
        return wait == 0

    def _of_first(self, number: int) -> int:
        """Return the number that the first rank passes, on all ranks."""
        if self._ranks is None:
            return int(number)
        mine = np.array([number], np.int64)
        about = "whether a checkpoint is due"
        return int(self._ranks.engine.broadcast(mine, 0, about=about)[0])

    def first(self, function: Callable[[], _R]) -> _R | None:
        """Run a function on the first rank; if it raises, all ranks raise."""
        if self._ranks is None:
            return function()
        is_first = self._ranks.engine.rank == 0
        run = function if is_first else lambda: None
        return self._ranks.on_all(run, "opening checkpoints")  # type: ignore[no-any-return]

    def sent(self, value: Any) -> Any:
        """Return the value that the first rank passes, of JSON types, on all ranks."""
        if self._ranks is None:
            return value
        text = json.dumps(value if self._ranks.engine.rank == 0 else None).encode()
        mine = np.frombuffer(text, np.uint8)
        parts = self._ranks.engine.all_gather(mine, about="the record of a checkpoint")
        return json.loads(parts[0].tobytes())


#: Errors of a write that become a warning; others are raised.
_FAILURES = (OSError, MemoryError)


class Writer:
    """Writes one checkpoint at a time, on a thread of its own.

    Ranks send their rows to the first rank piece by piece, between two supersteps, so
    that a run on several ranks waits for a write.

    Parameters
    ----------
    folder : CheckpointFolder or None
        None on all ranks except the first.
    agreement : RankAgreement
    """

    def __init__(
        self, folder: CheckpointFolder | None, agreement: RankAgreement
    ) -> None:
        self.folder, self.agreement = folder, agreement
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_warned = False
        #: Time of the last write, in s.
        self.seconds = 0.0

    @property
    def is_free(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._thread is None or not self._thread.is_alive()

    def write(
        self, graph: Graph, body: dict[str, Any], parts: dict[str, Snapshot]
    ) -> None:
        """Start writing a checkpoint, after the previous one is complete.

        Parameters
        ----------
        graph : Graph
            The graph of all parts.
        body : dict
            The record, in JSON types.
        parts : dict of str to Snapshot
            The saved States, by the name of their folder; nothing else writes to them.
        """
        self.wait()
        if graph.ranks is not None:
            self._write(graph, body, parts)
            self._report()
            return
        # Not a daemon: the interpreter's exit waits for the checkpoint.
        self._thread = threading.Thread(
            target=self._write, args=(graph, body, parts), name="featgraph checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the write in progress."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._report()

    def _write(
        self, graph: Graph, body: dict[str, Any], parts: dict[str, Snapshot]
    ) -> None:
        """Write a checkpoint; store an error for `_report`."""
        begun, folder = time.perf_counter(), self.folder
        try:
            with doing("writing", "a checkpoint"), ExitStack() as ends:

                def begin() -> Path:
                    new = nullcontext(Path()) if folder is None else folder.beside()
                    return ends.enter_context(new)

                about = "writing a checkpoint"
                new = (
                    begin() if graph.ranks is None else graph.ranks.on_all(begin, about)
                )
                for name, snapshot in parts.items():
                    write_state(new / name, graph, snapshot)
                if folder is not None:
                    folder.finish(new, body)
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - begun

    def _report(self) -> None:
        """Warn of the first failed write; the run goes on, and so do later writes."""
        error, self._error = self._error, None
        if error is None:
            return
        # Raised on other ranks for a failure of the first rank.
        has_failed_elsewhere = type(error) is DistributedError
        if not (has_failed_elsewhere or isinstance(error, _FAILURES)):
            raise error
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a checkpoint could not be written; the run goes on: {error}",
                CheckpointWarning,
                stacklevel=2,
            )
