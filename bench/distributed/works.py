"""The work of ranks in the supersteps of a run, from its recorded active sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.ranks.cost.forecast import Work

if TYPE_CHECKING:
    from featgraph.graph import Graph
    from featgraph.runtime.loops.run import Run

Array: TypeAlias = NDArray[Any]
Mask = NDArray[np.bool_]


class Parts:
    """The owners and ghosts of a partition of a graph.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    partition : Partition

    Notes
    -----
    O(E + V P) time for P ranks, two integers for each ghost, and arrays of E integers.
    """

    def __init__(self, graph: Graph, partition: Partition) -> None:
        check_fits(graph, partition)
        self.graph, self.ranks = graph, partition.parts
        count, rows = graph.vertex_count, graph.in_edges
        self.owner = partition.owner(np.arange(count))
        self._rows = rows.row_offsets, rows.column_indices
        # Each ghost once: the vertex, and the rank of the ghost.
        reader = np.repeat(self.owner, np.diff(rows.row_offsets))
        order = np.argsort(reader, kind="stable")  # linear where ranks have ranges
        cuts = np.cumsum(np.bincount(reader, minlength=self.ranks))[:-1]
        found = []
        for rank, sources in enumerate(np.split(rows.column_indices[order], cuts)):
            is_read = np.zeros(count, np.bool_)
            is_read[sources] = True
            found.append(np.flatnonzero(is_read & (self.owner != rank)))
        self.ghost_of = np.concatenate(found)
        self.reader = np.repeat(np.arange(self.ranks), list(map(len, found)))
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
        """Return the work of each rank in a superstep.

        Parameters
        ----------
        active : mask, shape (V,)
            The active set.
        committed : mask, shape (V,)
            The vertices whose rows are sent after the superstep.
        gathers : {"due", "active", "none"}
            Along all in-edges of due vertices; along out-edges of active vertices
            (push, or patched aggregates); or not at all.
        only_active : bool
            Whether due vertices take active sources only.
        """
        edges, skipped = np.zeros((2, self.ranks), np.int64)
        if gathers == "none":
            due = self._by_owner(active)
        else:
            offsets, sources = self._rows
            sums = np.append(0, np.cumsum(active[sources]))
            from_active = np.diff(sums[offsets])
            is_due = active | (from_active > 0)
            due = self._by_owner(is_due)
            of_due = self._by_owner(is_due, np.diff(offsets))
            taken = self._by_owner(is_due, from_active)
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

    def _by_owner(self, mask: Mask, values: Array | None = None) -> NDArray[np.int64]:
        """Count vertices by owner, or add up values of theirs."""
        weights = None if values is None else values[mask]
        found = np.bincount(self.owner[mask], weights, minlength=self.ranks)
        return found.astype(np.int64)


def works_of(
    graph: Graph, run: Run, partition: Partition, first: Any = None
) -> list[Work]:
    """Return the work of a partition's ranks in each superstep of a run.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    run : Run
        A run with ``record_active=True``, on any number of ranks.
    partition : Partition
    first : mask, shape (V,), optional
        The first active set; default all vertices.

    Raises
    ------
    ArgumentError
        If the run has no record of active sets.

    Notes
    -----
    If several foldmaps take turns, the active set of each has the vertices committed
    since its last turn. Vertices that a vertex function stops before a gather are not
    recorded, and count as if they gathered.
    """
    if run.active_sets is None:
        raise ArgumentError(
            "the run has no record of what was active",
            where="run",
            got=repr(run),
            fix="fg.iterate(..., record_active=True)",
        )
    parts, works = Parts(graph, partition), []
    begun = np.ones(graph.vertex_count, np.bool_) if first is None else first
    steps = [_Step.of(kernel, begun) for kernel in run.kernels]
    supersteps = zip(run.active_sets, run.directions, run.aggregates, strict=True)
    for place, (found, direction, aggregate) in enumerate(supersteps):
        step, committed = steps[place % len(steps)], found.mask
        along = _along(direction, aggregate)
        works.append(
            parts.work(step.active, committed, along, only_active=step.only_active)
        )
        step.active = np.zeros_like(begun)
        for other in steps:
            other.active = other.active | committed
    return works


@dataclass(eq=False)
class _Step:
    """A foldmap of a run.

    Attributes
    ----------
    active : mask, shape (V,)
        The vertices committed since its last turn.
    only_active : bool
        Whether its gathers take active sources only.
    """

    active: Mask
    only_active: bool

    @classmethod
    def of(cls, kernel: Any, active: Mask) -> _Step:
        """Return the foldmap of a kernel."""
        functions = [one.declared for one in kernel.plan.analysis.functions]
        taken = {one.sources for one in functions if one.kind.gathers}
        return cls(active, taken == {"active"})


def _along(direction: str, aggregate: str) -> str:
    """Return `gathers` of `Parts.work` by direction and aggregate."""
    if direction == "-":
        return "none"
    return "active" if direction == "push" or aggregate == "patched" else "due"
