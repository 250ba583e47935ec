"""Constants corrected by the supersteps of a run that are over."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.model.times import Times

__all__ = ["Correction", "elsewhere", "predict"]

#: How much one factor for all parts weighs, against a superstep that was measured.
PRIOR = 1e-2


class Correction:
    """By how much a program's work, rows on the wire and idle supersteps differ.

    Measured times are fitted, relative to themselves, by the three parts of those that
    the model has; where they do not tell parts apart, all have one factor.
    """

    def __init__(self) -> None:
        self._left, self._right = np.zeros((3, 3)), np.zeros(3)
        self._logarithms: list[float] = []

    @property
    def has_wire(self) -> bool:
        """Whether anything was on the wire in what was measured."""
        return bool(self._left[1, 1] > 0)

    def add(self, times: Times, seconds: float) -> None:
        """Learn from a superstep."""
        if seconds > 0:
            row = _parts_of(times) / seconds
            self._left += np.outer(row, row)
            self._right += row
            self._logarithms.append(-float(np.log(row.sum())))

    @property
    def factors(self) -> NDArray[np.float64]:
        """Those of work, wire, and what does not depend on either."""
        told = self._logarithms
        common = float(np.exp(np.mean(told))) if told else 1.0
        weight = PRIOR / common**2
        left = self._left + weight * np.eye(3)
        right = self._right + weight * common
        kept = np.ones(3, np.bool_)
        found = np.zeros(3)
        while kept.any():  # no part takes less than nothing
            some = np.ix_(kept, kept)
            found[:] = 0
            found[kept] = np.linalg.solve(left[some], right[kept])
            if (found >= 0).all():
                break
            kept &= found > 0
        return found

    def predict(self, times: Times) -> float:
        """Return the seconds of a superstep."""
        return float(self.factors @ _parts_of(times))

    def elsewhere(self, times: Times) -> float:
        """Return the seconds of a superstep on other ranks than were measured."""
        return elsewhere(self.factors, times, self.has_wire)


def elsewhere(factors: Any, times: Times, has_wire: bool) -> float:
    """Return the seconds of a superstep on other ranks, by factors of three parts.

    Latency is on the wire then; where no wire was measured, it is as it is known.
    """
    work, wire, rest = map(float, factors)
    compute = float(times.work.max()) - times.fixed
    on_wire = (wire if has_wire else 1.0) * (
        float(times.transfer.max()) + times.latency
    )
    busy = work * compute + rest * times.fixed
    return busy + on_wire - times.overlap * min(busy, on_wire)


def _parts_of(times: Times) -> NDArray[np.float64]:
    work = float(times.work.max()) - times.fixed
    wire = float(times.transfer.max())
    rest = times.fixed + times.latency
    # What is behind something else shortens all of it alike.
    share = times.seconds / max(work + wire + rest, 1e-300)
    return np.array([work, wire, rest]) * share


def predict(
    times: Sequence[Times],
    seconds: Sequence[float],
    kinds: Sequence[Hashable] | None = None,
    learn: int = 2,
) -> NDArray[np.float64]:
    """Return the time of each superstep, as those before it of its kind foretell it.

    Parameters
    ----------
    times : sequence of Times
        As the model has them.
    seconds : sequence of float
        Measured; the first one, which holds compilation, teaches nothing.
    kinds : sequence, optional
        Which supersteps have constants of their own, such as directions.
    learn : int
        How many of a kind come before the first that is foretold; times of others are
        NaN.
    """
    known: dict[Hashable, tuple[Correction, int]] = {}
    found = np.full(len(times), np.nan)
    of = kinds if kinds is not None else [None] * len(times)
    for place, (one, taken, kind) in enumerate(zip(times, seconds, of, strict=True)):
        correction, count = known.get(kind, (Correction(), 0))
        if count >= learn:
            found[place] = correction.predict(one)
        if place:
            correction.add(one, taken)
            known[kind] = correction, count + 1
    return found
