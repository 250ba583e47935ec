"""How many of several ranks work on a graph: the others would only be waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import ceil, exp
from typing import TYPE_CHECKING

import numpy as np

from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.counts import count_traffic
from featgraph.model.correction import Correction
from featgraph.model.links import Link
from featgraph.model.machine import Machine
from featgraph.model.times import Work, superstep_times

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["Choice", "learned", "numbers_of_ranks"]

#: So much less a superstep takes at least where more ranks work.
GAIN = 0.05


def numbers_of_ranks(size: int) -> list[int]:
    """Return how many of so many ranks may work: powers of two, and all."""
    found = [1 << bit for bit in range(size.bit_length()) if 1 << bit < size]
    return [*found, size]


class Choice:
    """Chooses how many ranks work, by supersteps in which every vertex is active.

    Parameters
    ----------
    machine : Machine
    link : Link
        Between any two ranks.
    size : int
        How many there are.
    taught : Correction, optional
        What supersteps that were measured say of the constants; see `learned`.
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
        """Return the least and the most that can be right, whatever is cut.

        They are those of a graph of which no edge is cut, and of one whose sources are
        drawn at random.
        """
        found = [
            self._best(lambda n, cut=cut: _work(vertices, edges, n, cut))  # type: ignore[misc]
            for cut in (True, False)
        ]
        return min(found), max(found)

    def of_size(self, vertices: int, edges: int, number: int) -> float:
        """Return what a superstep takes on so many ranks, with sources at random."""
        return self.seconds(_work(vertices, edges, number, False))

    def for_graph(self, graph: Structure, order: object) -> int:
        """Return how many are right for a graph that is here.

        Its cut edges are counted only where they decide.
        """
        least, most = self.for_size(graph.vertex_count, graph.edge_count)
        if least == most:
            return least

        def work(number: int) -> Work:
            partition = choose_partition(graph, order, number)
            return Work.whole(count_traffic(graph, partition))

        return self._best(work)

    def seconds(self, work: Work) -> float:
        """Return what a superstep takes, with the ranks that have nothing to do.

        On one that works, the others are not waited for.
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
    """Return what the supersteps of a run say of the constants of a machine.

    Parameters
    ----------
    work : Work
        Of a superstep in which every vertex is active.
    machine : Machine
    link : Link
    shares : list of float
        Which share of the vertices was active in each.
    seconds : list of float
        Of each, on the slowest rank. The first one holds compilation.
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
    """Return the work of ranks that have even shares of a graph."""
    own, into = ceil(vertices / number), ceil(edges / number)
    ghosts = 0
    if not is_cut_nowhere:
        # Of so many draws, those are found that are not own.
        ghosts = round((vertices - own) * -(exp(-into / vertices) - 1))
    each = {"edges": into, "vertices": own, "sent": ghosts, "received": ghosts,
            "combined": 0, "reads": own + ghosts}  # fmt: skip
    return Work(**{name: np.full(number, n, np.int64) for name, n in each.items()})


def _with_idle(work: Work, size: int) -> Work:
    """Return the work of ranks some of which have nothing."""
    more = size - work.ranks
    return Work(
        **{f.name: np.pad(getattr(work, f.name), (0, more)) for f in fields(work)}
    )
