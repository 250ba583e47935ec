"""The work of ranks in the supersteps of a run, from its recorded active sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError
from featgraph.base.store import jit
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.ranks.cost.forecast import Work

if TYPE_CHECKING:
    from featgraph.graph import Graph
    from featgraph.runtime.loops.run import Run

__all__ = ["Parts", "works_of"]

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
    O(V + E) time, two integers for each ghost, and three arrays of V integers.
    """

    def __init__(self, graph: Graph, partition: Partition) -> None:
        check_fits(graph, partition)
        self.graph, self.ranks = graph, partition.parts
        count, rows = graph.vertex_count, graph.in_edges
        self.owner = partition.owner(np.arange(count))
        self._rows = rows.row_offsets, rows.column_indices
        vertices = partition.order
        if vertices is None:
            vertices = np.arange(count, dtype=np.int32)
        # Each ghost once: the vertex, and the rank of the ghost.
        found = np.empty((0, 2), np.int32)
        for _ in range(2):  # counted, then stored
            seen = np.full(count, -1, np.int32)
            given = *self._rows, vertices, self.owner, seen
            number = _list_ghosts(*given, found)
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
            counts = np.zeros((3, self.ranks), np.int64)
            _count_due_by_owner(*self._rows, active, self.owner, counts)
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


@jit
def _count_due_by_owner(
    offsets: Array, sources: Array, active: Array, owner: Array, counts: Array
) -> None:
    """Count rows that are active or have an active source, by the owners of rows.

    The other counts, of shape (3, P), are all edges in such rows, and those from active
    sources.
    """
    for v in range(offsets.size - 1):
        taken = 0
        for e in range(offsets[v], offsets[v + 1]):
            taken += active[sources[e]]
        if active[v] or taken:
            of = owner[v]
            counts[0, of] += 1
            counts[1, of] += offsets[v + 1] - offsets[v]
            counts[2, of] += taken


@jit
def _list_ghosts(
    offsets: Array,
    sources: Array,
    vertices: Array,
    owner: Array,
    seen: Array,
    found: Array,
) -> int:
    """Store each vertex that a rank has edges from and does not own, and that rank.

    Parameters
    ----------
    vertices : array of int32
        All of them, owner by owner.
    seen : array of int32
        Of each vertex the rank that has it last; -1 at first.
    found : array of int32, shape (N, 2)
        Without entries they are counted only.
    """
    count = 0
    for v in vertices:
        rank = owner[v]
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            if owner[u] != rank and seen[u] != rank:
                seen[u] = rank
                if found.size:
                    found[count, 0], found[count, 1] = u, rank
                count += 1
    return count
