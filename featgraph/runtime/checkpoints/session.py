"""The checkpoints of one run of `iterate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from featgraph.program.saved import read_state
from featgraph.program.signature import PropertyKind
from featgraph.program.snapshot import Snapshot
from featgraph.program.state import State
from featgraph.runtime.checkpoints.identity import iterate_identity, refuse_other
from featgraph.runtime.checkpoints.packing import Packed, pack_run, unpack_run
from featgraph.runtime.checkpoints.public import single
from featgraph.runtime.checkpoints.resumable_call import Call, current_call
from featgraph.runtime.checkpoints.resume_point import go_on, put_back, take
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Agenda
from featgraph.runtime.superstep.foldmap import FoldMap

__all__ = ["Session", "iterating"]

_LARGE = {PropertyKind.VERTEX, PropertyKind.EDGE}


def iterating(checkpoint: Any, every: float) -> AbstractContextManager[Call | None]:
    """Have the checkpoints of a run: its own, or those of the call that iterates.

    What is iterated meanwhile, in callbacks, has none.
    """
    if checkpoint is None and current_call.get() is None:
        return nullcontext()
    return _iterating(checkpoint, every)


@contextmanager
def _iterating(checkpoint: Any, every: float) -> Iterator[Call | None]:
    with nullcontext() if checkpoint is None else single(checkpoint, every):
        call = current_call.get()
        with _apart(call):
            yield call


@contextmanager
def _apart(call: Call | None) -> Iterator[None]:
    token = current_call.set(None)
    try:
        yield
    finally:
        current_call.reset(token)
        if call is not None:
            call.leave()


class Session:
    """What a run is gone on from, and what is written of it.

    Parameters
    ----------
    call : Call or None
        None where nothing is to be written.
    foldmaps : sequence of FoldMap
    state : State
        Becomes what it was, if there is a checkpoint.
    asked : mapping
        All that the run was asked for.
    is_written : bool
        Whether a function of the user's, called meanwhile, may write to the State.

    Raises
    ------
    StateError
        If the checkpoint at this place is of something else.
    FileFormatError
        If there are checkpoints, and none of them is whole.
    """

    def __init__(
        self,
        call: Call | None,
        foldmaps: Sequence[FoldMap],
        state: State,
        asked: Mapping[str, Any],
        is_written: bool,
    ) -> None:
        self._call, self._state, self._is_written = call, state, is_written
        self._identity: dict[str, Any] = {}
        self._snapshot: Snapshot | None = None
        self._told: dict[str, Any] = {}
        self._packed = Packed()
        #: Supersteps behind which it was asked whether to write.
        self._seen = 0
        if call is None:
            return
        call.open(state.graph)
        self._identity = iterate_identity(foldmaps, state, asked)
        first = call.first_values(state)
        if first is not None:
            self._identity["first"] = first
        found = call.reach()
        if found is not None:
            path, body = found
            self._told = body["iterate"] | {"ended": body["ended"]}
            refuse_other(str(path), self._told["of"], self._identity)
            self._snapshot = read_state(path / "state", state.graph)
            self._packed = Packed(read_state(path / "record", state.graph))
            put_back(state, self._snapshot, {})

    @property
    def goes_on(self) -> bool:
        """Whether there is a checkpoint of this run."""
        return self._snapshot is not None

    @property
    def has_ended(self) -> bool:
        """Whether the run had ended in it."""
        return bool(self._told.get("ended"))

    def begin(self, run: Run, agenda: Agenda) -> None:
        """Have a run be where the checkpoint was taken."""
        call, is_shared = self._call, agenda.state.graph.ranks is not None
        if call is not None and is_shared:
            agenda.asks_within = lambda: call.supersteps_left
        elif call is not None:
            agenda.wants_host = call.is_due
        if self._snapshot is None:
            return
        go_on(agenda, self._snapshot.left, self._told["rest"])
        unpack_run(
            self._told["run"], self._packed, run, agenda.state.graph.vertex_count
        )
        self._seen = run.supersteps
        self._packed, self._snapshot = Packed(), Snapshot(0, {})

    def look(self, run: Run, agenda: Agenda) -> None:
        """Write a checkpoint behind a superstep, if it is time."""
        new, self._seen = run.supersteps - self._seen, run.supersteps
        if self._call is not None and self._call.is_due(new):
            self._write(self._call, run, agenda)

    def end(self, run: Run, agenda: Agenda, ended: bool) -> None:
        """Write one behind the last superstep, unless it was gone on from.

        `ended` says that the limit of supersteps was not the reason.
        """
        call = self._call
        if call is not None and not self.has_ended and call.is_due_behind():
            self._write(call, run, agenda, ended)

    def _write(self, call: Call, run: Run, agenda: Agenda, ended: bool = False) -> None:
        snapshot, rest = take(agenda, self._constant(agenda))
        packed = Packed()
        told = {"of": self._identity, "rest": rest, "run": pack_run(run, packed)}
        parts = {"state": snapshot, "record": packed.snapshot}
        call.write(self._state.graph, told, parts, run.supersteps, ended)

    def _constant(self, agenda: Agenda) -> frozenset[str]:
        """Return the properties that nothing writes: the next call has them as well."""
        if self._is_written:
            return frozenset()
        changes = agenda.steps[0].changes
        changed = {*changes.announced, *changes.silent}
        types = self._state.signature
        return frozenset(n for n in types if types[n].kind in _LARGE) - changed
