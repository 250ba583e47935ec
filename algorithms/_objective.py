"""What factorisations minimise, and how: their options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_number

__all__ = ["MOST_FOR_CHOLESKY", "Options", "checked_options"]

Array = npt.NDArray[Any]
#: Target -> the factors up to which "auto" takes exact solutions. On the CPU, these
#: then cost at most twice as much as three steps of conjugate gradients: 58 against 31
#: ms of CPU an iteration with 1M ratings at K = 32, 178 against 52 ms at K = 64.
MOST_FOR_CHOLESKY = {"cpu": 32, "cuda": 128}


@dataclass(frozen=True)
class Options:
    """What is minimised, and how."""

    regularization: float
    weighted: bool
    implicit: bool
    alpha: float
    uses_cg: bool

    def of_rating(self, real: np.dtype[Any]) -> dict[str, float]:
        """Return what makes confidence, and what a rating asks for, of a rating r.

        The first is ``slope * abs(r) + above`` beyond that of pairs that are not given,
        the second, times the confidence, ``max(scale * r, least)``.
        """
        if self.implicit:
            alpha = self.alpha
            return {"slope": alpha, "above": -1.0, "scale": alpha, "least": 0.0}
        least = float(np.finfo(real).min)
        return {"slope": 0.0, "above": 1.0, "scale": 1.0, "least": least}

    def of_ridge(self) -> dict[str, float]:
        """Return what size adds to the error, for a vertex and for each rating."""
        ridge = self.regularization
        return {
            "ridge": 0.0 if self.weighted else ridge,
            "ridge_each": ridge if self.weighted else 0.0,
        }

    def of_edges(self, values: Array) -> tuple[Array, Array]:
        """Return the confidence of each rating, and confidence times what it wants."""
        r = values.astype(np.float64)
        if not self.implicit:
            return np.ones_like(r), r
        confidence = self.alpha * r
        return np.abs(confidence), np.maximum(confidence, 0.0)


def checked_options(
    factors: int,
    regularization: float,
    weighted: bool,
    implicit: bool,
    alpha: float,
    *,
    solver: str = "cholesky",
    iterations: int = 1,
    tolerance: float = 0.0,
    target: str = "cpu",
) -> Options:
    """Return the options; `target` is where solver="auto" has to be fast.

    Raises
    ------
    GraphInputError
        If one is out of range.
    """
    for name, count, least in (("factors", factors, 1), ("iterations", iterations, 0)):
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise fg.GraphInputError(f"{name} is a count", got=repr(count))
        require_number(name, count, least <= count < 1 << 31, f"{least} or more")
    for name, value in (
        ("regularization", regularization),
        ("alpha", alpha),
        ("tolerance", tolerance),
    ):
        if not (math.isfinite(value) and value >= 0):
            raise fg.GraphInputError(
                f"{name} out of range", got=value, expected="0 or more, finite"
            )
    if solver not in {"auto", "cholesky", "cg"}:
        raise fg.GraphInputError(
            "no such solver", got=repr(solver), expected="'auto', 'cholesky' or 'cg'"
        )
    is_wide = factors > MOST_FOR_CHOLESKY[target]
    uses_cg = solver == "cg" or (solver == "auto" and is_wide)
    return Options(float(regularization), weighted, implicit, float(alpha), uses_cg)
