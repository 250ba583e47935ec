"""The time of a superstep on P ranks: load, compute, update, transfer, and waits.

Lux has the sums of these over nodes. Here each rank has its own, since all wait for the
slowest of them; and exchanges of few bytes take their latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import ArgumentError
from featgraph.model.links import Link
from featgraph.model.machine import Machine

if TYPE_CHECKING:
    from featgraph.graph.partition.counts import Counts

__all__ = ["Times", "Work", "superstep_times"]

Numbers = NDArray[np.int64]
#: What an edge takes that is skipped, of one that is not: its source is read, and a bit
#: of a set where the other's row is. Assumed.
SKIPPED = 0.5
#: Bytes of an edge that kernels read, of an offset, and rows that a vertex has at a
#: time: current, next, and one more. Assumed, of a gather without weights.
EDGE_BYTES, OFFSET_BYTES, ROWS = 4, 4, 3


@dataclass(frozen=True, eq=False)
class Work:
    """What each rank does in one superstep; arrays have one entry a rank, shape (P,).

    Attributes
    ----------
    edges : ndarray of int64
        Along which anything is gathered.
    vertices : ndarray of int64
        That are swept.
    sent, received : ndarray of int64
        Rows of ghosts, and partial aggregates.
    combined : ndarray of int64
        Partial aggregates that are combined at their owner, of `received`.
    reads : ndarray of int64
        Vertices, own ones and ghosts, whose rows are read at random.
    skipped : ndarray of int64, optional
        Edges beside those that are looked at, and no more: their sources are not
        active, and the gather takes those that are. Default: none.
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
        """P."""
        return self.edges.size

    @property
    def has_partials(self) -> bool:
        """Whether any aggregate is put together from several ranks."""
        return bool(self.combined.any())

    @classmethod
    def whole(cls, counts: Counts) -> Work:
        """Return that of a superstep in which every vertex is active and due."""
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
        Rows of ghosts are stored where kernels read them.
    compute : ndarray
        Edges and vertices.
    update : ndarray
        Own rows are packed for others; partial aggregates are combined.
    transfer : ndarray
        Bytes on the wire, without latency.
    latency : float
        Of all exchanges of the superstep.
    fixed : float
        Of a superstep in which nothing is due.
    overlap : float
        The share of the lesser of work and wire that is behind the other.
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
    machine: Machine | Sequence[Machine],
    link: Link,
    *,
    direction: str = "pull",
    k: int = 1,
    itemsize: int = 4,
) -> Times:
    """Return what a superstep takes on each rank.

    Parameters
    ----------
    work : Work
    machine : Machine, or one for each rank
    link : Link
        Between any two ranks.
    direction : {"pull", "push"}
        Which way aggregates are gathered.
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
        No such direction.
    """
    if direction not in ("pull", "push"):
        raise ArgumentError(
            "aggregates are gathered in two directions",
            where="direction",
            got=repr(direction),
            expected="'pull' or 'push'",
        )
    machines = [machine] * work.ranks if isinstance(machine, Machine) else [*machine]
    row_bytes = k * itemsize
    nbytes = np.maximum(work.sent, work.received) * row_bytes
    seconds = [link.seconds(n, work.ranks) for n in nbytes.tolist()]
    each = link.seconds(0, work.ranks)
    exchanges = max(one.exchanges for one in machines) + work.has_partials
    end = np.array([one.row.at(k) / 2 for one in machines])
    swept = [
        _swept_s(one, rank, work, direction, k, row_bytes)
        for rank, one in enumerate(machines)
    ]
    return Times(
        load=np.asarray(work.received * end, np.float64),
        compute=np.array(swept, np.float64),
        update=np.asarray((work.sent + work.combined) * end, np.float64),
        transfer=np.array(seconds) - each,
        latency=exchanges * each,
        fixed=max(one.fixed_s for one in machines),
        overlap=min(one.overlap for one in machines),
    )


def _swept_s(
    machine: Machine, rank: int, work: Work, direction: str, k: int, row_bytes: int
) -> float:
    """Return the seconds of a rank's edges and vertices.

    Edges that do not fit come while others are swept, all of them where they are.
    """
    edges, reads = float(work.edges[rank]), float(work.reads[rank])
    curve = machine.pull if direction == "pull" else machine.push
    looked = edges + SKIPPED * float(np.asarray(work.skipped)[rank])
    swept = looked * curve.at(k, row_bytes * reads)
    stays = reads * (OFFSET_BYTES + ROWS * row_bytes)
    swept = max(swept, machine.streamed_s(EDGE_BYTES * edges, stays))
    return swept + float(work.vertices[rank]) * machine.vertex.at(k)
