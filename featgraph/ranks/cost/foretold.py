"""Predictions of the supersteps of a run by the model, beside the measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.correction import Correction, predict
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.cost.times import Times, Work, superstep_times
from featgraph.ranks.cost.works import works_of
from featgraph.ranks.engines.links import Link, named_link

if TYPE_CHECKING:
    from featgraph.graph import Graph
    from featgraph.runtime.loops.run import Run

__all__ = ["Foretold", "foretell", "foretell_works"]


@dataclass(frozen=True, eq=False)
class Foretold:
    """A run with the model's times of its supersteps.

    Attributes
    ----------
    times : list of Times
        Times of each superstep, by the constants of the machine.
    kinds : list of tuple
        The kind of each superstep, by direction and by foldmap if several take turns;
        each kind has its own correction.
    measured : ndarray
        Seconds of each superstep on this rank.
    """

    times: list[Times]
    kinds: list[tuple[Any, ...]]
    measured: NDArray[np.float64]

    @property
    def uncorrected(self) -> NDArray[np.float64]:
        """Seconds of each superstep by the constants alone."""
        return np.array([one.seconds for one in self.times])

    def predicted(self, learn: int = 2) -> NDArray[np.float64]:
        """Return the seconds of each superstep, predicted from earlier ones.

        NaN for the first one, which includes compilation, and for the next `learn` of
        each kind.
        """
        return predict(self.times, self.measured.tolist(), self.kinds, learn)

    def taught(self) -> dict[tuple[Any, ...], Correction]:
        """Return the correction of the constants by measured supersteps, by kind.

        The first superstep, which includes compilation, is not used.
        """
        found: dict[tuple[Any, ...], Correction] = {}
        for place, kind in enumerate(self.kinds):
            correction = found.setdefault(kind, Correction())
            if place:
                correction.add(self.times[place], float(self.measured[place]))
        return found

    def elsewhere(self, other: Foretold) -> NDArray[np.float64]:
        """Return the seconds on other ranks, corrected by the times of this run.

        Parameters
        ----------
        other : Foretold
            The same run with another partition, machine or link.
        """
        taught = self.taught()
        return np.array(
            [
                taught.get(kind, Correction()).predict(one)
                for one, kind in zip(other.times, other.kinds, strict=True)
            ]
        )


def foretell(
    graph: Graph,
    run: Run,
    partition: Partition,
    on: tuple[Machine, str | Link],
    *,
    k: int = 1,
    itemsize: int = 4,
    first: NDArray[np.bool_] | None = None,
) -> Foretold:
    """Return the supersteps of a run on the ranks of a partition, by the model.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    run : Run
        A run with ``record_active=True``, on any number of ranks.
    partition : Partition
    on : (Machine, link)
        See `forecast`.
    k : int
        Features of a row.
    itemsize : int
        Bytes of a feature.
    first : mask, shape (V,), optional
        The first active set; default all vertices.

    Returns
    -------
    Foretold

    Raises
    ------
    ArgumentError
        If the run has no record of active sets, or the link is unknown.
    """
    works = works_of(graph, run, partition, first)
    return foretell_works(works, run, on, k=k, itemsize=itemsize)


def foretell_works(
    works: Sequence[Work],
    run: Run,
    on: tuple[Machine, str | Link],
    *,
    k: int = 1,
    itemsize: int = 4,
) -> Foretold:
    """Return the supersteps of a run from known work: see `foretell`."""
    machine, named = on
    link = named if isinstance(named, Link) else named_link(named, machine.links)
    times, kinds, turns = [], [], len(run.kernels)
    for place, work in enumerate(works):
        way = run.directions[place]
        direction = "push" if way == "push" else "pull"
        times.append(
            superstep_times(
                work, machine, link, direction=direction, k=k, itemsize=itemsize
            )
        )
        kinds.append((way, run.aggregates[place], turns, place % turns))
    return Foretold(times, kinds, np.array(run.seconds))
