"""The point at which a run is resumed: its State, pending vertices and record.

`take` and `pack_run` read the three from a run after a superstep. `put_back` restores
the State, `go_on` the pending vertices, and `unpack_run` the record. Arrays of a record
are stored as a `Packed` State, and all else in JSON types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import FileFormatError
from featgraph.program.active import ActiveSet
from featgraph.program.column import Column
from featgraph.program.saved import Left, Snapshot
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.program.state import State
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Pending, RunState, all_pending, host_left

__all__ = [
    "Packed",
    "go_on",
    "pack_run",
    "put_back",
    "take",
    "unpack_run",
    "unpacking",
]

Array = npt.NDArray[Any]

#: Entries of `Run.directions` and `Run.aggregates`, which are stored by their index.
_WORDS = ("-", "pull", "push", "recomputed", "kept", "patched")
#: Lists of numbers in `Run` -> dtype in a checkpoint.
_LISTS = {
    "active_counts": np.int64,
    "seconds": np.float64,
    "watched": np.float64,
    "thresholds": np.float64,
}
#: Lists in `Run` with entries of `_WORDS`.
_WORD_LISTS = ("directions", "aggregates")


@contextmanager
def unpacking(part: str) -> Iterator[None]:
    """Return a context that raises FileFormatError for missing and wrong entries."""
    try:
        yield
    except FileFormatError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            "not a checkpoint of this run, or an altered one",
            where=part,
            got=repr(error)[:200],
            fix="remove the newest folder of the checkpoints, to load the older one; "
            "or to begin anew, give another folder as checkpoint=",
        ) from error


class Packed:
    """Arrays of a record, as vectors of a saved State without a graph.

    Parameters
    ----------
    snapshot : Snapshot, optional
        The saved State, if it was read from a checkpoint; default: an empty one.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = Snapshot(0, {}) if snapshot is None else snapshot

    def put(self, values: Array) -> dict[str, Any]:
        """Add an array; return its reference, in JSON types."""
        record = {"dtype": values.dtype.name, "shape": list(values.shape)}
        if values.size:  # a property has at least one entry
            name = f"part_{len(self.snapshot.columns)}"
            kind, flat = PropertyKind.VECTOR, values.reshape(-1).copy()
            type_ = PropertyType(kind, values.dtype.name, flat.shape)
            self.snapshot.columns[name] = Column(type_, flat, False)
            record["name"] = name
        return record

    def get(self, record: Any, dtype: Any = None) -> Array:
        """Return an array by its reference, with a check of its dtype and shape.

        Raises
        ------
        FileFormatError
            If the array is missing, or has another dtype or shape.
        """
        with unpacking("an array"):
            shape = tuple(int(n) for n in record["shape"])
            wanted = np.dtype(record["dtype"] if dtype is None else dtype)
            if record["dtype"] != wanted.name or min(shape, default=0) < 0:
                raise ValueError(record)
            if math.prod(shape) == 0:
                return np.empty(shape, wanted)
            column = self.snapshot.columns[record["name"]]
            found: Array = np.asarray(column.values).reshape(shape)
            if found.dtype != wanted:
                raise ValueError(found.dtype)
        return found


def pack_run(run: Run, packed: Packed) -> dict[str, Any]:
    """Return the record of a run in JSON types; its arrays are added to `packed`."""
    record: dict[str, Any] = {
        name: packed.put(np.array(getattr(run, name), dtype))
        for name, dtype in _LISTS.items()
    }
    for name in _WORD_LISTS:
        codes = [_WORDS.index(word) for word in getattr(run, name)]
        record[name] = packed.put(np.array(codes, np.uint8))
    record["notes"] = {
        name: packed.put(np.array(values, np.float64))
        for name, values in run.notes.items()
    }
    record["active_sets"] = None
    if run.active_sets is not None:
        words = [found.words for found in run.active_sets]
        width = words[0].size if words else 0
        sets = np.array(words, np.uint32).reshape(len(words), width)
        record["active_sets"] = packed.put(sets)
    record["supersteps"], record["converged"] = run.supersteps, bool(run.converged)
    record["target"], record["asynchronous"] = run.target, bool(run.asynchronous)
    return record


def unpack_run(record: Any, packed: Packed, run: Run, vertex_count: int) -> None:
    """Fill the record `run` from a packed one, in place."""
    with unpacking("the record of a run"):
        for name, dtype in _LISTS.items():
            getattr(run, name)[:] = packed.get(record[name], dtype).tolist()
        for name in _WORD_LISTS:
            codes = packed.get(record[name], np.uint8).tolist()
            getattr(run, name)[:] = [_WORDS[code] for code in codes]
        run.notes.clear()
        for name, values in record["notes"].items():
            run.notes[str(name)] = packed.get(values, np.float64).tolist()
        run.supersteps = int(record["supersteps"])
        run.converged = bool(record["converged"])
        if record["active_sets"] is not None:
            sets = packed.get(record["active_sets"], np.uint32)
            run.active_sets = [ActiveSet.from_words(vertex_count, w) for w in sets]


def take(
    run_state: RunState, without: frozenset[str]
) -> tuple[Snapshot, dict[str, Any]]:
    """Return the State of a run with its pending vertices, and the rest, in JSON types.

    Properties named in `without` are left out. Kept aggregates are not saved, and a
    resumed run computes them again. Vertices with aggregates that patches have rounded
    become due: otherwise they might never be evaluated with exact ones.
    """
    run_state.refresh_version()
    state, device = run_state.state, run_state.device
    left, counts = {}, []
    pairs = zip(all_pending(run_state), run_state.runs, strict=True)
    for place, (pending, step) in enumerate(pairs):
        found = host_left(pending, device)
        unproven = step.unproven()
        if unproven is not None:
            words = device.download(unproven)
            also = words if found.left is None else found.left | words
            found = Left(found.words, also, found.scalars)
        left[str(place)] = found
        counts.append(None if pending.count is None else int(pending.count))
    limit = -math.inf if run_state.waiting is None else run_state.waiting.limit
    rest = {
        "turn": run_state.turn,
        "counts": counts,
        "limit": float(limit).hex(),
        "is_met": bool(run_state.watching.is_met),
    }
    columns = {
        name: column.copy(column.on_host())
        for name, column in state._columns.items()
        if name not in without
    }
    return Snapshot(state.superstep, columns, left), rest


def put_back(state: State, snapshot: Snapshot, left: dict[Any, Left]) -> None:
    """Restore a State, and the pending vertices of foldmaps in it, in place."""
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


def go_on(run_state: RunState, left: dict[Any, Left], rest: dict[str, Any]) -> None:
    """Restore the pending vertices of a run, and the rest that `take` returned.

    Raises
    ------
    FileFormatError
        If the checkpoint is of another run.
    """
    device = run_state.device
    with unpacking("pending vertices"):
        lefts = [left[str(place)] for place in range(len(run_state.runs))]
        counts = [None if c is None else int(c) for c in rest["counts"]]
        turn, limit = int(rest["turn"]), float.fromhex(rest["limit"])
        if not 0 <= turn < len(lefts) == len(left) == len(counts):
            raise ValueError(f"turn {turn} of {len(counts)} foldmaps")
    for place, found in enumerate(lefts):
        words, also = (
            None if w is None else device.sets.upload(w)
            for w in (found.words, found.left)
        )
        run_state.pending[place] = Pending(words, also, found.scalars, counts[place])
    run_state.turn = turn
    run_state.watching.is_met = bool(rest.get("is_met"))
    if run_state.waiting is not None:
        run_state.waiting.limit = limit
