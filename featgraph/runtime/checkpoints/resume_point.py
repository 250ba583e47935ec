"""All that a run needs to go on from behind a superstep, and putting it back."""

from __future__ import annotations

import math
from typing import Any

from featgraph.base.errors import FileFormatError
from featgraph.program.column import Column
from featgraph.program.snapshot import Left, Snapshot
from featgraph.program.state import State
from featgraph.runtime.checkpoints.packing import wrong_record
from featgraph.runtime.loops.pending import Pending, host_left
from featgraph.runtime.loops.run_state import Agenda, all_pending

__all__ = ["go_on", "put_back", "take", "values_of"]


def values_of(
    state: State, without: frozenset[str] = frozenset(), *, copied: bool = True
) -> dict[str, Column]:
    """Return the properties of a State in host memory, copied or as they are there."""
    return {
        name: _column(state, name, column, copied)
        for name, column in state._columns.items()
        if name not in without
    }


def _column(state: State, name: str, column: Column, copied: bool) -> Column:
    values = state.stored(name)
    is_ours = values is column.current() or values is column.values
    if copied and is_ours:
        return column.copy(values)
    return Column(column.type, values, column.per_direction)


def take(agenda: Agenda, without: frozenset[str]) -> tuple[Snapshot, dict[str, Any]]:
    """Return a State, what is pending for each foldmap by its place, and the rest.

    Aggregates that are kept are computed again. Where patches have rounded them, their
    vertices are due: else those might never be evaluated with exact ones.
    """
    agenda.refresh_version()
    state, device = agenda.state, agenda.device
    left, counts = {}, []
    pairs = zip(all_pending(agenda), agenda.steps, strict=True)
    for place, (pending, step) in enumerate(pairs):
        found = host_left(pending, device)
        unproven = step.unproven()
        if unproven is not None:
            words = device.download(unproven)
            also = words if found.left is None else found.left | words
            found = Left(found.words, also, found.scalars)
        left[str(place)] = found
        counts.append(None if pending.count is None else int(pending.count))
    limit = -math.inf if agenda.waiting is None else agenda.waiting.limit
    rest = {
        "turn": agenda.turn,
        "counts": counts,
        "limit": float(limit).hex(),
        "is_met": bool(agenda.watching.is_met),
    }
    return Snapshot(state.superstep, values_of(state, without), left), rest


def put_back(state: State, snapshot: Snapshot, left: dict[Any, Left]) -> None:
    """Have a State be what it was, in place."""
    with state.in_use.hold("going on from a checkpoint"):
        for name, column in snapshot.columns.items():
            known = state._columns.get(name)
            if known is None or known.type != column.type:
                state.types_version += 1
            if known is not None:
                known.mark_written(None)
            state._columns[name] = column
            state.version += 1
        state.superstep = snapshot.superstep
        state.keep_left(left)


def go_on(agenda: Agenda, left: dict[Any, Left], rest: dict[str, Any]) -> None:
    """Have pending what was pending.

    Raises
    ------
    FileFormatError
        If that is of no such run.
    """
    device = agenda.device
    try:
        lefts = [left[str(place)] for place in range(len(agenda.steps))]
        counts = [None if c is None else int(c) for c in rest["counts"]]
        turn, limit = int(rest["turn"]), float.fromhex(rest["limit"])
        if not 0 <= turn < len(lefts) == len(left) == len(counts):
            raise ValueError("turn")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise wrong_record(f"what is pending: {error!r}") from error
    for place, found in enumerate(lefts):
        words, also = (
            None if w is None else device.sets.upload(w)
            for w in (found.words, found.left)
        )
        agenda.pending[place] = Pending(words, also, found.scalars, counts[place])
    agenda.turn = turn
    agenda.watching.is_met = bool(rest.get("is_met"))
    if agenda.waiting is not None:
        agenda.waiting.limit = limit
