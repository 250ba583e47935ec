"""Work of ranks in the supersteps of a run: each counts its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.graph import Graph
from featgraph.ranks.cost.times import Work
from featgraph.ranks.cost.works import Turn, turns_of

if TYPE_CHECKING:
    from featgraph.runtime.loops.run import Run

__all__ = ["works_here"]

Array = npt.NDArray[Any]
#: Counts of a rank, as `Work` has them.
_FIELDS = ("edges", "vertices", "sent", "received", "combined", "reads", "skipped")


def works_here(graph: Graph, run: Run, first: Any = None) -> list[Work]:
    """Return the work of each rank in each superstep of a run; all ranks call it.

    Parameters
    ----------
    graph : Graph
        Of the run, in parts or whole: each rank needs its own part alone.
    run : Run
        With ``record_active=True``.
    first : mask, shape (V,), optional
        The vertices that it began with; default all.

    Raises
    ------
    ArgumentError
        The run has no record of active sets.
    """
    own = _Own(graph)
    turns = turns_of(run, graph.vertex_count, first)
    counts = np.array([own.count(turn) for turn in turns], np.int64)
    counts = counts.reshape(-1, len(_FIELDS))
    ranks = graph.ranks
    of_all = [counts]
    if ranks is not None:
        of_all = ranks.engine.all_gather(counts, about="what ranks have done")
    return [
        Work(**dict(zip(_FIELDS, one.T.copy(), strict=True)))
        for one in np.stack(of_all, axis=1)
    ]


class _Own:
    """The edges into own vertices of this rank, and the lists of rows it sends."""

    def __init__(self, graph: Graph) -> None:
        ranks, rows = graph.ranks, graph.part.in_edges
        self._numbers: Any = slice(None)
        self._own, self._sent = graph.vertex_count, np.empty(0, np.int32)
        self._size = self._own
        if ranks is not None:
            shard = ranks.shard
            self._numbers, self._own = shard.numbers, shard.own
            self._sent = np.concatenate(shard.send_lists)
            self._size = shard.numbers.size
        self._offsets = rows.row_offsets[: self._own + 1]
        self._sources = rows.column_indices[: int(self._offsets[-1])]

    def count(self, turn: Turn) -> list[int]:
        """Return the counts of a superstep."""
        from featgraph.graph.partition import kernels  # loads Numba

        own, edges = self._own, int(self._offsets[-1])
        active = turn.active[self._numbers]
        committed = turn.committed[self._numbers]
        due, of_due, taken = own, edges, edges
        if turn.gathers == "none":
            due, of_due, taken = int(np.count_nonzero(active[:own])), 0, 0
        elif not active.all():
            counts, owner = np.zeros((3, 1), np.int64), np.zeros(own, np.int8)
            rows = self._offsets, self._sources, active
            kernels.count_due_by_owner(*rows, owner, counts)
            due, of_due, taken = counts[:, 0].tolist()
        looked_at, skipped = of_due, 0
        if turn.gathers == "active":
            looked_at = taken
        elif turn.gathers == "due" and turn.only_active:
            looked_at, skipped = taken, of_due - taken
        sent = int(np.count_nonzero(committed[self._sent]))
        received = int(np.count_nonzero(committed[own:]))
        return [looked_at, due, sent, received, 0, self._size, skipped]
