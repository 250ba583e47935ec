"""What is told of other cuts that ranks have taken within a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Repartition"]


@dataclass
class Repartition:
    """Other cuts that ranks have taken within a run.

    Attributes
    ----------
    superstep : int
        Behind how many supersteps of the run.
    cuts : ndarray of int64, shape (P + 1,)
        Rank r owns what stands at places ``cuts[r]`` to ``cuts[r + 1]`` from then on.
    moved : int
        How many vertices have another owner.
    slowest_s : float
        Seconds of a superstep that the slowest rank has taken before, without waits.
    expected_s : float
        Seconds of a superstep that were expected to be gained.
    gained_s : float
        How many were, by what the slowest rank has taken since; NaN where no superstep
        has run since.
    cost_s : float
        Seconds that moving has taken.
    within_hosts : bool
        Whether each host has kept its range, and only its ranks have shared it anew.
    """

    superstep: int
    cuts: npt.NDArray[np.int64]
    moved: int
    slowest_s: float
    expected_s: float
    gained_s: float = math.nan
    cost_s: float = math.nan
    within_hosts: bool = True
