"""What a loop on a GPU is told, and what it leaves.

Words of 64 bits, in one array: the header, how many vertices are pending for each
foldmap, what is known of each superstep of the cycle, and the log. The host writes all
but the log before a loop is launched, and reads all behind it. Meanwhile they belong to
`featgraph.runtime.devices.cuda_control`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ANY", "EVERYTHING", "Orders", "Report", "log_begins", "pack", "unpack"]

# The header: supersteps that have run, and may; whether no further cycle is begun; when
# the loop began, and when the last superstep ended; how long supersteps have been run
# otherwise than was decided, and may be; how long the loop may take; how many vertices
# there are; the handle of the conditional node. Times are in ns.
DONE, LIMIT, ENDS, BEGUN, LAST, LATE, MOST_LATE, MOST, VERTICES, NODE = range(10)
HEADER = 10
#: Of a superstep: the foldmap that runs, and the least and largest count of vertices
#: pending for that with which it is run as it was recorded.
TURN, LEAST, LARGEST = range(3)
OF_A_STEP = 3
#: Of the log: the count of committed vertices, and the time.
OF_AN_ENTRY = 2
#: Stands for the count where all vertices are pending and there is no set.
EVERYTHING = -1
#: The counts with which anything is run alike.
ANY = EVERYTHING, (1 << 62)


@dataclass(frozen=True)
class Orders:
    """What a loop is told.

    Attributes
    ----------
    limit : int
        Supersteps that may run, as many as may run together or a multiple of that.
    seconds, late_seconds : float
        How long it may take; how long supersteps may be run otherwise than is decided.
    vertices : int
        How many vertices there are.
    pending : sequence of int
        How many vertices are pending for each foldmap; `EVERYTHING` for all.
    steps : sequence of (int, int, int)
        Of each superstep of the cycle: the foldmap, and the least and largest count of
        vertices pending for that with which it is run so.
    """

    limit: int
    seconds: float
    late_seconds: float
    vertices: int
    pending: tuple[int, ...]
    steps: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Report:
    """What a loop has left.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep that has run.
    seconds : list of float
        The time of each but the first, of which it knows no beginning: 0.
    """

    counts: list[int]
    seconds: list[float]


def log_begins(turns: int, length: int) -> int:
    """Return at which word the log of a cycle begins."""
    return HEADER + turns + OF_A_STEP * length


def pack(orders: Orders, node: int, words: npt.NDArray[np.int64]) -> int:
    """Write orders to words; return how many they take."""
    head = [0] * HEADER
    # A limit of time that a float cannot hold is none.
    most = float(ANY[1])
    head[LIMIT], head[VERTICES], head[NODE] = orders.limit, orders.vertices, node
    head[MOST] = int(min(orders.seconds * 1e9, most))
    head[MOST_LATE] = int(min(orders.late_seconds * 1e9, most))
    told = [*head, *orders.pending, *(word for step in orders.steps for word in step)]
    words[: len(told)] = told
    return len(told)


def unpack(words: npt.NDArray[np.int64], first: int) -> Report:
    """Return what the log says that begins at `first`."""
    log = words[first : first + OF_AN_ENTRY * int(words[DONE])].reshape(-1, OF_AN_ENTRY)
    return Report(log[:, 0].tolist(), (log[:, 1] * 1e-9).tolist())
