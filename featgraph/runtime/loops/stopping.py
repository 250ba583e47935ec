"""Stopping tests and watched results of runs, for ``until=`` and ``watch=``.

Both read the largest or the smallest entry of a reduce's result (an `Extreme`). Loops
on the device compute these extremes and evaluate the test without calling Python.
`Watching` stores the values of a run; `WatchedResults` lists the extremes that one
foldmap computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import ArgumentError, StateError
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State

__all__ = [
    "Extreme", "StoppingTest", "WatchedResults", "Watching", "above", "below",
    "make_watching",
]  # fmt: skip

#: Kinds of values that belong to no vertex or edge.
_LOOSE = {PropertyKind.SCALAR, PropertyKind.VECTOR}


@dataclass(frozen=True)
class StoppingTest:
    """A test whether all entries of a result are on one side of a limit.

    Made by `below` and `above`, for ``until=`` of `iterate`. Called with a State, it
    returns whether the test is met. Values are compared as float64; NaN is on no side.

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
            If it has no such value, or the value belongs to vertices or edges.
        """
        values = np.asarray(state[self.name], np.float64)
        if state.signature[self.name].kind not in _LOOSE:
            raise StateError(
                "a stopping test needs a value that belongs to no vertex or edge",
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


#: The result of a reduce, and True for its largest entry, False for its smallest.
Extreme = tuple[str, bool]


class WatchedResults(NamedTuple):
    """The watched extremes that one foldmap computes.

    Attributes
    ----------
    extremes : tuple of Extreme
    logged : int or None
        Index of the extreme for ``watch=``; None if the foldmap does not compute it.
    tested : int
        1-based index of the extreme for ``until=``, which is the last one; 0 for none.
    """

    extremes: tuple[Extreme, ...] = ()
    logged: int | None = None
    tested: int = 0


@dataclass
class Watching:
    """The results that a run watches, and their values so far.

    Attributes
    ----------
    log : str
        The result whose largest entry is logged; "" for none.
    test : StoppingTest or None
        Ends the run after the first superstep that computes its result and meets it.
    values : list of float
        The log: a value for each superstep that computes the result.
    is_met : bool
        Whether the test is met.
    """

    log: str = ""
    test: StoppingTest | None = None
    values: list[float] = field(default_factory=list)
    is_met: bool = False

    def __post_init__(self) -> None:
        wanted: list[Extreme] = []
        if self.log:
            wanted.append((self.log, True))
        if self.test is not None:
            wanted.append((self.test.name, self.test.side == "below"))
        #: The watched extremes, without duplicates.
        self.extremes = tuple(dict.fromkeys(wanted))

    def results_of(self, plan: FoldPlan) -> WatchedResults:
        """Return the watched results that a foldmap computes."""
        given = tuple(e for e in self.extremes if e[0] in plan.facts.reductions)
        logged, test = (self.log, True), self.test
        place = given.index(logged) if logged in given else None
        is_given = test is not None and test.name in plan.facts.reductions
        return WatchedResults(given, place, len(given) if is_given else 0)

    def note(self, watched: WatchedResults, values: Sequence[float]) -> None:
        """Log and test the extremes of a superstep.

        `values` are in the order of `watched.extremes`; further ones are ignored.
        """
        if watched.logged is not None:
            self.values.append(values[watched.logged])
        if watched.tested and self.test is not None:
            self.is_met = self.test.holds(values[watched.tested - 1])

    def note_all(
        self, watched: Sequence[WatchedResults], seen: Sequence[Sequence[float]]
    ) -> None:
        """Log and test the extremes of supersteps of alternating foldmaps."""
        count = len(watched)
        if self.extremes:
            for number, values in enumerate(seen):
                self.note(watched[number % count], values)


def make_watching(
    log: Any, test: StoppingTest | None, plans: Sequence[FoldPlan]
) -> Watching:
    """Return the watched results of a run.

    Raises
    ------
    ArgumentError
        If `log` is not a name.
    StateError
        If no foldmap of the run computes the result.
    """
    if not (log is None or isinstance(log, str)):
        raise ArgumentError(
            "not a name",
            where="watch=",
            got=shown(log),
            expected="the name of a reduce's result, or None",
        )
    made = Watching(log or "", test)
    known = sorted({name for plan in plans for name in plan.facts.reductions})
    for name, _ in made.extremes:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            raise StateError(
                f"no reduce of the run's foldmaps gives {name!r:.100}",
                where="watch=" if name == log else "until=",
                expected=", ".join(known) or "a foldmap with a reduce",
                fix=f"did you mean {near[0]!r}?"
                if near
                else f"@fg.reduce(into={name!r:.100}, combine=...)",
            )
    return made
