"""Where a call is that may iterate several times, and what it is gone on from (0054).

A call is repeated up to where the newest checkpoint was taken, and goes on from there.
What it iterates is numbered; a loop of rounds goes to the round in which that was.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from featgraph._activity import ACTIVITY, doing
from featgraph.errors import FileFormatError
from featgraph.graph import Graph
from featgraph.program.saved import digests_of, read_state
from featgraph.program.snapshot import Snapshot
from featgraph.program.state import State, take_snapshot
from featgraph.runtime.checkpoints.folder import CheckpointFolder
from featgraph.runtime.checkpoints.identity import refuse_other
from featgraph.runtime.checkpoints.moment import put_back, values_of
from featgraph.runtime.checkpoints.packing import Packed, pack_run, unpack_run
from featgraph.runtime.checkpoints.ranks import Together
from featgraph.runtime.checkpoints.writing import Content, Writer
from featgraph.runtime.loops.run import Run

__all__ = ["Call", "current_call"]

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
