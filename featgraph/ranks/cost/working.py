"""The number of ranks that minimizes the time of a superstep, by the cost model."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp
from typing import TYPE_CHECKING

import numpy as np

from featgraph.base.dataclass import fields
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.counts import count_traffic
from featgraph.ranks.cost.correction import Correction
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.cost.times import Work, superstep_times
from featgraph.ranks.engines.links import Link

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = ["Choice", "learned", "numbers_of_ranks"]

#: The least gain of a superstep for which more ranks are used, as a fraction.
GAIN = 0.05


def numbers_of_ranks(size: int) -> list[int]:
    """Return the possible numbers of working ranks: powers of two, and `size`."""
    found = [1 << bit for bit in range(size.bit_length()) if 1 << bit < size]
    return [*found, size]


class Choice:
    """The choice of the number of working ranks, with every vertex active.

    Parameters
    ----------
    machine : Machine
    link : Link
        The link between any two ranks.
    size : int
        Number of ranks.
    taught : Correction, optional
        A correction of the constants by measured supersteps; see `learned`.
    """

    def __init__(
        self,
        machine: Machine,
        link: Link,
        size: int,
        taught: Correction | None = None,
    ) -> None:
        self._machine, self._link, self.size = machine, link, size
        self._taught = taught

    def for_size(self, vertices: int, edges: int) -> tuple[int, int]:
        """Return the least and the largest best number, whichever edges are cut.

        These are the numbers for a graph without cut edges, and for one with sources at
        random.
        """
        found = [
            self._best(lambda n, cut=cut: _work(vertices, edges, n, cut))  # type: ignore[misc]
            for cut in (True, False)
        ]
        return min(found), max(found)

    def of_size(self, vertices: int, edges: int, number: int) -> float:
        """Return the seconds of a superstep on `number` ranks, sources at random."""
        return self.seconds(_work(vertices, edges, number, False))

    def for_graph(self, graph: Structure, order: object) -> int:
        """Return the best number of ranks for a whole graph.

        Cut edges are counted only if `for_size` leaves a choice.
        """
        least, most = self.for_size(graph.vertex_count, graph.edge_count)
        if least == most:
            return least

        def work(number: int) -> Work:
            partition = choose_partition(graph, order, number)
            return Work.whole(count_traffic(graph, partition))

        return self._best(work)

    def seconds(self, work: Work) -> float:
        """Return the seconds of a superstep, idle ranks included.

        If only one rank works, it does not wait for the others.
        """
        if work.ranks > 1:
            work = _with_idle(work, self.size)
        times = superstep_times(work, self._machine, self._link)
        if self._taught is None:
            return times.seconds
        return self._taught.elsewhere(times)

    def _best(self, work: Callable[[int], Work]) -> int:
        best, least = 1, float("inf")
        for number in numbers_of_ranks(self.size):
            seconds = self.seconds(work(number))
            if seconds < (1 - GAIN) * least:
                best, least = number, seconds
        return best


def learned(
    work: Work,
    machine: Machine,
    link: Link,
    shares: list[float],
    seconds: list[float],
) -> Correction:
    """Return the correction of a machine's constants by the supersteps of a run.

    Parameters
    ----------
    work : Work
        The work of a superstep in which every vertex is active.
    machine : Machine
    link : Link
    shares : list of float
        The fraction of active vertices in each superstep.
    seconds : list of float
        Seconds of each superstep on the slowest rank; the first one includes
        compilation, and is not used.
    """
    found = Correction()
    for share, taken in [*zip(shares, seconds, strict=True)][1:]:
        some = {
            field.name: np.ceil(getattr(work, field.name) * share).astype(np.int64)
            for field in fields(work)
        }
        found.add(superstep_times(Work(**some), machine, link), taken)
    return found


def _work(vertices: int, edges: int, number: int, is_cut_nowhere: bool) -> Work:
    """Return the work of `number` ranks with equal shares of a graph."""
    own, into = ceil(vertices / number), ceil(edges / number)
    ghosts = 0
    if not is_cut_nowhere:
        # Expected number of distinct sources that are not own.
        ghosts = round((vertices - own) * -(exp(-into / vertices) - 1))
    each = {"edges": into, "vertices": own, "sent": ghosts, "received": ghosts,
            "combined": 0, "reads": own + ghosts}  # fmt: skip
    return Work(**{name: np.full(number, n, np.int64) for name, n in each.items()})


def _with_idle(work: Work, size: int) -> Work:
    """Return the work with idle ranks added up to `size`."""
    more = size - work.ranks
    return Work(
        **{f.name: np.pad(getattr(work, f.name), (0, more)) for f in fields(work)}
    )
