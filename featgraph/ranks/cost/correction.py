"""Correction of the model's constants by measured supersteps of a run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.ranks.cost.times import Times

__all__ = ["Correction", "elsewhere", "predict"]

#: Weight of the common factor of all parts, relative to a measured superstep.
PRIOR = 1e-2


class Correction:
    """Factors on the model's times of work, transfer, and fixed costs.

    Measured times are fitted by these three parts, with relative errors; parts that
    the measurements do not separate get a common factor.
    """

    def __init__(self) -> None:
        self._left, self._right = np.zeros((3, 3)), np.zeros(3)
        self._logarithms: list[float] = []

    @property
    def has_wire(self) -> bool:
        """Whether any measured superstep had a transfer."""
        return bool(self._left[1, 1] > 0)

    def add(self, times: Times, seconds: float) -> None:
        """Add the predicted times and the measured seconds of a superstep."""
        if seconds > 0:
            row = _parts_of(times) / seconds
            self._left += np.outer(row, row)
            self._right += row
            self._logarithms.append(-float(np.log(row.sum())))

    @property
    def factors(self) -> NDArray[np.float64]:
        """Factors of work, transfer and fixed costs: float64, shape (3,), 0 or more."""
        told = self._logarithms
        common = float(np.exp(np.mean(told))) if told else 1.0
        weight = PRIOR / common**2
        left = self._left + weight * np.eye(3)
        right = self._right + weight * common
        kept = np.ones(3, np.bool_)
        found = np.zeros(3)
        while kept.any():  # factors must not be negative
            some = np.ix_(kept, kept)
            found[:] = 0
            found[kept] = np.linalg.solve(left[some], right[kept])
            if (found >= 0).all():
                break
            kept &= found > 0
        return found

    def predict(self, times: Times) -> float:
        """Return the corrected seconds of a superstep."""
        return float(self.factors @ _parts_of(times))

    def elsewhere(self, times: Times) -> float:
        """Return the corrected seconds of a superstep on other ranks."""
        return elsewhere(self.factors, times, self.has_wire)


def elsewhere(factors: Any, times: Times, has_wire: bool) -> float:
    """Return the seconds of a superstep on other ranks, by factors of three parts.

    Latency counts as transfer; its factor is 1 if no transfer was measured.
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
    # Overlap shortens all parts by the same factor.
    share = times.seconds / max(work + wire + rest, 1e-300)
    return np.array([work, wire, rest]) * share


def predict(
    times: Sequence[Times],
    seconds: Sequence[float],
    kinds: Sequence[Hashable] | None = None,
    learn: int = 2,
) -> NDArray[np.float64]:
    """Return each superstep's time, predicted from earlier ones of the same kind.

    Parameters
    ----------
    times : sequence of Times
        The times of the model.
    seconds : sequence of float
        Measured seconds; the first one includes compilation and is not used.
    kinds : sequence, optional
        The kind of each superstep, such as its direction; each has its own correction.
    learn : int
        Supersteps of a kind before the first prediction; their results are NaN.
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
