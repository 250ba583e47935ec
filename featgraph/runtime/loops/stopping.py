"""Stopping tests that can be looked at: a run need not call Python to judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.errors import ArgumentError, StateError
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State

__all__ = ["StoppingTest", "above", "below"]

_LOOSE = {PropertyKind.SCALAR, PropertyKind.VECTOR}


@dataclass(frozen=True)
class StoppingTest:
    """Whether all entries of a result are on one side of a limit.

    Made by `below` and `above`, for ``until=`` of `iterate`. Called with a State, it
    says whether the test is met. Values are compared as float64; NaN is on no side.

    Attributes
    ----------
    name : str
        The result of a reduce.
    side : str
        "below" or "above".
    limit : float
    """

    name: str
    side: str
    limit: float

    def __repr__(self) -> str:
        return f"{self.side}({self.name!r}, {self.limit!r})"

    def __call__(self, state: State) -> bool:
        """Return whether a State meets the test.

        Raises
        ------
        StateError
            If it has no such value, or one that belongs to vertices or edges.
        """
        values = np.asarray(state[self.name], np.float64)
        if state.signature[self.name].kind not in _LOOSE:
            raise StateError(
                "a stopping test looks at what belongs to no vertex or edge",
                where=repr(self),
                got=state.signature[self.name].describe(),
                expected="the result of a reduce",
                fix=f"reduce {self.name} to one value for each feature",
            )
        return all(map(self.holds, values.ravel().tolist()))

    def holds(self, value: float) -> bool:
        """Return whether a value is on the right side of the limit."""
        return value < self.limit if self.side == "below" else value > self.limit


def below(name: str, limit: float) -> StoppingTest:
    """Return a stopping test: all entries of a result are less than a limit.

    Parameters
    ----------
    name : str
        The result of a reduce.
    limit : float
        Not NaN.

    Raises
    ------
    ArgumentError
        If `name` is no text, or `limit` no number.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.below("residual", 1e-6)
    below('residual', 1e-06)
    """
    return _test(name, "below", limit)


def above(name: str, limit: float) -> StoppingTest:
    """Return a stopping test: all entries of a result are greater than a limit.

    Parameters
    ----------
    name : str
        The result of a reduce.
    limit : float
        Not NaN.

    Raises
    ------
    ArgumentError
        If `name` is no text, or `limit` no number.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.above("reached", 100)
    above('reached', 100.0)
    """
    return _test(name, "above", limit)


def _test(name: Any, side: str, limit: Any) -> StoppingTest:
    if not isinstance(name, str):
        raise ArgumentError(
            "not a name",
            where=f"fg.{side}: name",
            got=shown(name),
            expected="the name of a reduce's result",
        )
    is_number = isinstance(limit, int | float | np.integer | np.floating)
    try:
        number = float(limit) if is_number and not isinstance(limit, bool) else math.nan
    except OverflowError:
        number = math.nan
    if math.isnan(number):
        raise ArgumentError(
            "not a limit",
            where=f"fg.{side}: limit",
            got=shown(limit),
            expected="a number that float64 can hold, not NaN",
        )
    return StoppingTest(name, side, number)
