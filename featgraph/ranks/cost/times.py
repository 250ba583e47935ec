"""The time of a superstep on P ranks: load, compute, update, transfer, and waits.

Lux sums these over nodes. Here each rank has its own times, since all wait for the
slowest one; and exchanges have a latency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.engines.links import Link

if TYPE_CHECKING:
    from featgraph.graph.partition.counts import Counts

__all__ = ["Times", "Work", "superstep_times"]

Numbers = NDArray[np.int64]
#: Time of a skipped edge relative to others: its source is read, and a bit of a set in
#: place of a row. Assumed.
SKIPPED = 0.5
#: Bytes of an edge and of an offset, and rows of a vertex: current, next, and one more.
#: Assumed, for a gather without weights.
EDGE_BYTES, OFFSET_BYTES, ROWS = 4, 4, 3


@dataclass(frozen=True, eq=False)
class Work:
    """The work of each rank in one superstep; arrays have shape (P,).

    Attributes
    ----------
    edges : ndarray of int64
        Edges along which values are gathered.
    vertices : ndarray of int64
        Swept vertices.
    sent, received : ndarray of int64
        Ghost rows and partial aggregates.
    combined : ndarray of int64
        Received partial aggregates that are combined at their owner.
    reads : ndarray of int64
        Own vertices and ghosts, whose rows are read at random.
    skipped : ndarray of int64, optional
        Further edges that are only tested, since their sources are not active and the
        gather takes active sources only. Default: none.
    """

    edges: Numbers
    vertices: Numbers
    sent: Numbers
    received: Numbers
    combined: Numbers
    reads: Numbers
    skipped: Numbers | None = None

    def __post_init__(self) -> None:
        if self.skipped is None:
            object.__setattr__(self, "skipped", np.zeros_like(self.edges))

    @property
    def ranks(self) -> int:
        """Number of ranks, P."""
        return self.edges.size

    @property
    def has_partials(self) -> bool:
        """Whether any aggregate is combined from several ranks."""
        return bool(self.combined.any())

    @classmethod
    def whole(cls, counts: Counts) -> Work:
        """Return the work of a superstep in which every vertex is active and due."""
        return cls(
            edges=counts.edges,
            vertices=counts.own + counts.partials,
            sent=counts.sent,
            received=counts.received,
            combined=counts.partials_elsewhere,
            reads=counts.own + counts.ghosts,
        )


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of each rank in a superstep; arrays have shape (P,).

    Attributes
    ----------
    load : ndarray
        Storing received ghost rows.
    compute : ndarray
        Sweeping edges and vertices.
    update : ndarray
        Packing own rows, and combining partial aggregates.
    transfer : ndarray
        Transfer of bytes, without latency.
    latency : float
        Latency of all exchanges of the superstep.
    fixed : float
        A superstep without due vertices.
    overlap : float
        The fraction of the shorter of work and transfer that the longer one hides.
    """

    load: NDArray[np.float64]
    compute: NDArray[np.float64]
    update: NDArray[np.float64]
    transfer: NDArray[np.float64]
    latency: float
    fixed: float
    overlap: float

    @property
    def work(self) -> NDArray[np.float64]:
        """Seconds of each rank without waits."""
        return self.load + self.compute + self.update + self.fixed

    @property
    def seconds(self) -> float:
        """Seconds of the superstep: all ranks wait for the slowest one."""
        work = float(self.work.max())
        wire = float(self.transfer.max()) + self.latency
        return work + wire - self.overlap * min(work, wire)


def superstep_times(
    work: Work,
    machine: Machine,
    link: Link,
    *,
    direction: str = "pull",
    k: int = 1,
    itemsize: int = 4,
) -> Times:
    """Return the times of a superstep on each rank.

    Parameters
    ----------
    work : Work
    machine : Machine
        The machine of each rank.
    link : Link
        The link between any two ranks.
    direction : {"pull", "push"}
        The direction of gathers.
    k : int
        Features of a row.
    itemsize : int
        Bytes of a feature.

    Returns
    -------
    Times

    Raises
    ------
    ArgumentError
        If the direction is unknown.
    """
    if direction not in ("pull", "push"):
        raise ArgumentError(
            "aggregates are gathered in two directions",
            where="direction",
            got=repr(direction),
            expected="'pull' or 'push'",
        )
    row_bytes = k * itemsize
    nbytes = np.maximum(work.sent, work.received) * row_bytes
    seconds = [link.seconds(n, work.ranks) for n in nbytes.tolist()]
    each = link.seconds(0, work.ranks)
    exchanges, end = machine.exchanges + work.has_partials, machine.row.at(k) / 2
    swept = [
        _swept_s(machine, rank, work, direction, k, row_bytes)
        for rank in range(work.ranks)
    ]
    return Times(
        load=np.asarray(work.received * end, np.float64),
        compute=np.array(swept, np.float64),
        update=np.asarray((work.sent + work.combined) * end, np.float64),
        transfer=np.array(seconds) - each,
        latency=exchanges * each,
        fixed=machine.fixed_s,
        overlap=machine.overlap,
    )


def _swept_s(
    machine: Machine, rank: int, work: Work, direction: str, k: int, row_bytes: int
) -> float:
    """Return the seconds of a rank's edges and vertices.

    Streaming of edges that do not fit in memory overlaps with the sweep.
    """
    edges, reads = float(work.edges[rank]), float(work.reads[rank])
    curve = machine.pull if direction == "pull" else machine.push
    looked = edges + SKIPPED * float(np.asarray(work.skipped)[rank])
    swept = looked * curve.at(k, row_bytes * reads)
    stays = reads * (OFFSET_BYTES + ROWS * row_bytes)
    swept = max(swept, machine.streamed_s(EDGE_BYTES * edges, stays))
    return swept + float(work.vertices[rank]) * machine.vertex.at(k)
