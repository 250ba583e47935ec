"""Ranges of a graph for several unequal machines, balanced by the cost model.

A superstep takes as long as the slowest rank. So ranges are cut where all ranks take
the same time by the model, with sources at random; a rank whose exchange takes longer
than the work that it saves gets no vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass, replace
from featgraph.graph.partition.cuts import word_places
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.cost.times import Times, Work, superstep_times
from featgraph.ranks.cost.working import GAIN
from featgraph.ranks.engines.links import Link

__all__ = ["Shares", "share_out", "speaking"]

#: Steps of the bisection: the last two bounds are a millionth apart.
_BOUNDS = 24


@dataclass(frozen=True, eq=False)
class Shares:
    """Ranges of several machines.

    Attributes
    ----------
    cuts : ndarray of int64, shape (P + 1,)
        Cuts at words of vertices; ranks without a gain have an empty range.
    seconds : float
        Seconds of a superstep in which every vertex is active.
    alone_s : float
        Seconds of the same on the fastest machine alone, without exchanges.
    """

    cuts: NDArray[np.int64]
    seconds: float
    alone_s: float


def share_out(
    into: NDArray[np.int64],
    machines: Sequence[Machine],
    link: Link,
    *,
    k: int = 1,
    itemsize: int = 4,
) -> Shares:
    """Return the ranges that minimize the time of a superstep.

    Parameters
    ----------
    into : ndarray of integers, shape (V,)
        In-degrees of the vertices, in the order of the ranges.
    machines : sequence of Machine
        One for each rank.
    link : Link
        The link between any two ranks.
    k, itemsize : int
        Features of a row, and bytes of a feature.
    """
    count, ranks = into.size, len(machines)
    places = word_places(count)
    sums = np.concatenate(([0], np.cumsum(into, dtype=np.int64)))
    told = _Told(places, sums[places], link, (k, itemsize))
    machines = speaking(machines, k)
    order = sorted(range(ranks), key=lambda r: told.alone(machines[r]))
    best: Shares | None = None
    alone_s = told.alone(machines[order[0]])
    for size in range(1, ranks + 1):
        chosen = sorted(order[:size])
        ends = _ends_of(told, [machines[rank] for rank in chosen])
        own = np.zeros(ranks, np.int64)
        own[chosen] = np.diff(ends)
        cuts = np.concatenate(([0], np.cumsum(own)))
        seconds = told.seconds(cuts, machines) if size > 1 else alone_s
        if best is None or seconds < (1 - GAIN) * best.seconds:
            best = Shares(cuts, seconds, alone_s)
    assert best is not None  # there is a rank  # noqa: S101
    return best


def speaking(machines: Sequence[Machine], k: int) -> list[Machine]:
    """Return machines with the row times of the slowest, unless all are the same.

    Between different machines, rows of a GPU go through its host, too.
    """
    slowest = max(machines, key=lambda machine: machine.row.at(k)).row
    if len({machine.name for machine in machines}) == 1:
        return [*machines]
    return [replace(machine, row=slowest) for machine in machines]


@dataclass(frozen=True, eq=False)
class _Told:
    """A graph as the model sees it: in-edges before each possible cut.

    Attributes
    ----------
    places : ndarray of int64
        Allowed places of cuts.
    before : ndarray of int64
        Number of in-edges before each place.
    """

    places: NDArray[np.int64]
    before: NDArray[np.int64]
    link: Link
    row: tuple[int, int]

    def work(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Work:
        """Return the work of ranges of places, with sources at random."""
        own = self.places[ends] - self.places[begins]
        edges = self.before[ends] - self.before[begins]
        count, every = max(int(self.places[-1]), 1), int(self.before[-1])
        # Expected number of distinct sources that are not own.
        drawn = np.array([1 - exp(-n / count) for n in edges.tolist()])
        read = np.array([1 - exp(-(every - n) / count) for n in edges.tolist()])
        ghosts = ((count - own) * drawn).astype(np.int64)
        sent = (own * read).astype(np.int64)
        return Work(edges, own, sent, ghosts, np.zeros_like(own), own + ghosts)

    def times(self, work: Work, machines: Sequence[Machine]) -> Times:
        """Return the times of a superstep on each machine."""
        k, itemsize = self.row
        return superstep_times(work, machines, self.link, k=k, itemsize=itemsize)

    def alone(self, machine: Machine) -> float:
        """Return the seconds of a superstep on one machine with all vertices."""
        last = np.array([self.places.size - 1])
        return self.times(self.work(0 * last, last), [machine]).seconds

    def range_s(self, begin: int, end: int, machine: Machine) -> float:
        """Return the seconds of one machine of several for a range, with transfer."""
        work = self.work(np.array([begin, 0]), np.array([end, 0]))
        times = self.times(work, [machine, machine])
        return float(times.work[0] + times.transfer[0])

    def seconds(self, cuts: NDArray[np.int64], machines: Sequence[Machine]) -> float:
        """Return the seconds of a superstep with some cuts."""
        at = np.searchsorted(self.places, cuts)
        return self.times(self.work(at[:-1], at[1:]), machines).seconds


def _ends_of(told: _Told, machines: Sequence[Machine]) -> NDArray[np.int64]:
    """Return cuts with equal times of all machines, by bisection of their bound."""
    last = told.places.size - 1
    high = min(told.range_s(0, last, machine) for machine in machines)
    low, found = 0.0, [0, *[last] * len(machines)]
    if len(machines) == 1:
        return told.places[found]
    for _ in range(_BOUNDS):
        bound, ends = (low + high) / 2, [0]
        for machine in machines:
            ends.append(_furthest(told, ends[-1], machine, bound))
        if ends[-1] == last:
            high, found = bound, ends
        else:
            low = bound
    return told.places[found]


def _furthest(told: _Told, begin: int, machine: Machine, bound: float) -> int:
    """Return the last place up to which a machine's range takes at most `bound`."""
    low, high = begin, told.places.size - 1
    while low < high:
        middle = (low + high + 1) // 2
        if told.range_s(begin, middle, machine) <= bound:
            low = middle
        else:
            high = middle - 1
    return low
