"""What ranks would have done in the supersteps of a run, from the sets it recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import ArgumentError
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.model.times import Work

if TYPE_CHECKING:
    from featgraph.graph import Graph
    from featgraph.runtime.loops.run import Run

__all__ = ["Parts", "Turn", "turns_of", "works_of"]

Mask = NDArray[np.bool_]


class Parts:
    """Who owns which vertices of a graph, and who has which of them as ghosts.

    Parameters
    ----------
    graph : Graph
        The whole.
    partition : Partition

    Notes
    -----
    O(V + E) time, two numbers for each ghost, and three arrays of V integers.
    """

    def __init__(self, graph: Graph, partition: Partition) -> None:
        from featgraph.graph.partition import kernels  # loads Numba

        check_fits(graph, partition)
        self.graph, self.ranks = graph, partition.parts
        count, rows = graph.vertex_count, graph.in_edges
        self.owner = partition.owner(np.arange(count))
        self._rows = rows.row_offsets, rows.column_indices
        vertices = partition.order
        if vertices is None:
            vertices = np.arange(count, dtype=np.int32)
        # Each ghost once: a vertex, and a rank that has it.
        found = np.empty((0, 2), np.int32)
        for _ in range(2):  # counted, then stored
            seen = np.full(count, -1, np.int32)
            given = *self._rows, vertices, self.owner, seen
            number = kernels.list_ghosts(*given, found)
            if found.size or not number:
                break
            found = np.empty((number, 2), np.int32)
        self.ghost_of, self.reader = found.T
        self.reads = self._by_owner(np.ones(count, np.bool_))
        self.reads += np.bincount(self.reader, minlength=self.ranks)

    def work(
        self,
        active: Mask,
        committed: Mask,
        gathers: str,
        *,
        only_active: bool = False,
    ) -> Work:
        """Return what each rank does in a superstep.

        Parameters
        ----------
        active : mask, shape (V,)
            A.
        committed : mask, shape (V,)
            Whose rows other ranks get behind it.
        gathers : {"due", "active", "none"}
            Along all in-edges of due vertices; along out-edges of active ones, which
            are pushed or patch what is kept; or not at all.
        only_active : bool
            Whether due vertices take active sources alone.
        """
        from featgraph.graph.partition import kernels  # loads Numba

        edges, skipped = np.zeros((2, self.ranks), np.int64)
        if gathers == "none":
            due = self._by_owner(active)
        else:
            counts = np.zeros((3, self.ranks), np.int64)
            kernels.count_due_by_owner(*self._rows, active, self.owner, counts)
            due, of_due, taken = counts
            edges = of_due if gathers == "due" and not only_active else taken
            if gathers == "due":
                skipped = of_due - edges
        is_sent = committed[self.ghost_of]
        by = self.owner[self.ghost_of[is_sent]]
        return Work(
            edges=edges,
            vertices=due,
            sent=np.bincount(by, minlength=self.ranks),
            received=np.bincount(self.reader[is_sent], minlength=self.ranks),
            combined=np.zeros(self.ranks, np.int64),
            reads=self.reads,
            skipped=skipped,
        )

    def _by_owner(self, mask: Mask) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.bincount(self.owner[mask], minlength=self.ranks)
        return found


def works_of(
    graph: Graph, run: Run, partition: Partition, first: Any = None
) -> list[Work]:
    """Return what the ranks of a partition do in each superstep of a run.

    Parameters
    ----------
    graph : Graph
        The whole.
    run : Run
        On any number of ranks, with ``record_active=True``.
    partition : Partition
    first : mask, shape (V,), optional
        The vertices that it began with; default all.

    Raises
    ------
    ArgumentError
        The run has no record of active sets.

    Notes
    -----
    Of several foldmaps, each has active what was committed since its last turn. Where a
    vertex function comes before a gather, vertices that it stops take nothing; which
    these are is not recorded, and they are counted with the others.
    """
    parts = Parts(graph, partition)
    return [
        parts.work(
            turn.active, turn.committed, turn.gathers, only_active=turn.only_active
        )
        for turn in turns_of(run, graph.vertex_count, first)
    ]


@dataclass(frozen=True, eq=False)
class Turn:
    """What a superstep of a run began with, and what came of it; see `Parts.work`."""

    active: Mask
    committed: Mask
    gathers: str
    only_active: bool


def turns_of(run: Run, vertex_count: int, first: Any = None) -> Iterator[Turn]:
    """Yield what each superstep of a run did, from the sets that it recorded.

    On ranks all of them go through it.

    Raises
    ------
    ArgumentError
        The run has no record of active sets.
    """
    if run.active_sets is None:
        raise ArgumentError(
            "the run has no record of what was active",
            where="run",
            got=repr(run),
            fix="fg.iterate(..., record_active=True)",
        )
    begun = np.ones(vertex_count, np.bool_) if first is None else first
    steps = [_Step.of(kernel, begun) for kernel in run.kernels]
    told = zip(run.active_sets, run.directions, run.aggregates, strict=True)
    for place, (found, direction, aggregate) in enumerate(told):
        step, committed = steps[place % len(steps)], found.mask
        along = _along(direction, aggregate)
        yield Turn(step.active, committed, along, step.only_active)
        step.active = np.zeros_like(begun)
        for other in steps:
            other.active = other.active | committed


@dataclass(eq=False)
class _Step:
    """A foldmap of a run.

    Attributes
    ----------
    active : mask, shape (V,)
        What was committed since its last turn.
    only_active : bool
        Whether its gathers take active sources alone.
    """

    active: Mask
    only_active: bool

    @classmethod
    def of(cls, kernel: Any, active: Mask) -> _Step:
        """Return that of a kernel."""
        functions = [one.declared for one in kernel.plan.analysis.functions]
        taken = {one.sources for one in functions if one.kind.gathers}
        return cls(active, taken == {"active"})


def _along(direction: str, aggregate: str) -> str:
    """Return what is gathered along: see `Parts.work`."""
    if direction == "-":
        return "none"
    return "active" if direction == "push" or aggregate == "patched" else "due"
