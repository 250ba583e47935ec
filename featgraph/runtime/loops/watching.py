"""What a run looks at behind each superstep: the largest or smallest entry of results.

A device finds it where the results are, and hands it over with the count of committed
vertices: nothing is waited for besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import ArgumentError, StateError
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.loops.stopping import StoppingTest

__all__ = ["Extreme", "Watching", "make_watching"]

#: The result of a reduce, and whether its largest entry is meant, or its smallest.
Extreme = tuple[str, bool]


@dataclass
class Watching:
    """The results that a run looks at.

    Attributes
    ----------
    log : str
        The result whose largest entry is logged; "" for none.
    test : StoppingTest or None
        Ends the run behind the first superstep that gives its result and meets it.
    values : list of float
        The log: a value for each superstep that gives the result.
    is_met : bool
        Whether the test is.
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
        #: What is looked at, each once.
        self.extremes = tuple(dict.fromkeys(wanted))
        #: Plan -> where in what it gives the logged one stands, and the tested one.
        self._places: dict[FoldPlan, tuple[int | None, int]] = {}

    def given_by(self, plan: FoldPlan) -> tuple[Extreme, ...]:
        """Return the extremes of results that a foldmap gives."""
        return tuple(e for e in self.extremes if e[0] in plan.facts.reductions)

    def tested(self, plan: FoldPlan) -> int:
        """Return which extreme of those that a foldmap gives is tested, from 1; or 0.

        It is the last one.
        """
        return self._place_of(plan)[1]

    def note(self, plan: FoldPlan, values: Sequence[float]) -> None:
        """Look at what a superstep of a foldmap has left: its extremes, in order.

        What comes behind them means nothing.
        """
        self.note_all([plan], [values])

    def note_all(
        self, plans: Sequence[FoldPlan], seen: Sequence[Sequence[float]]
    ) -> None:
        """Look at what supersteps have left, of foldmaps that take turns."""
        if not self.extremes:
            return
        places, count = [self._place_of(plan) for plan in plans], len(plans)
        if count == 1:
            [(logged, _)] = places
            if logged is not None:
                self.values += [values[logged] for values in seen]
        else:
            for number, values in enumerate(seen):
                logged, _ = places[number % count]
                if logged is not None:
                    self.values.append(values[logged])
        if self.test is None:
            return
        for number in range(len(seen) - 1, -1, -1):  # the last one tells
            _, tested = places[number % count]
            if tested:
                self.is_met = self.test.holds(seen[number][tested - 1])
                return

    def _place_of(self, plan: FoldPlan) -> tuple[int | None, int]:
        """Return where what is logged stands among what a foldmap gives, and tested."""
        known = self._places.get(plan)
        if known is None:
            given, logged = self.given_by(plan), (self.log, True)
            place = given.index(logged) if logged in given else None
            test = self.test
            is_given = test is not None and test.name in plan.facts.reductions
            tested = len(given) if is_given else 0
            self._places[plan] = known = place, tested
        return known


def make_watching(
    log: Any, test: StoppingTest | None, plans: Sequence[FoldPlan]
) -> Watching:
    """Return what a run looks at.

    Raises
    ------
    ArgumentError
        If `log` is no name.
    StateError
        If no foldmap of the run gives the result.
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
