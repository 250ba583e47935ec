"""Sweeps piece by piece: each piece is sent while the next one is swept.

Vertices that other ranks have as ghosts come first, range by range; those that nobody
has are swept while the last rows are on their way. See docs/design/0065-behind-work.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import Sending
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.devices.protocol import VertexSets
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.frontier import are_many

__all__ = ["Behind", "Choice"]

Words = Any
Given = dict[str, Any]
Turn = tuple[Any, Given]
#: Whether supersteps are cut that are tried, one behind the other. The first of each
#: kind compiles, or makes pieces, and does not count.
_TRIED = (False, False, True, True, False, True)
_COUNTED = {False: (1, 4), True: (3, 5)}
#: Behind so many it is known what can be hidden at most: the wire, or the sweep.
_LOOK_AT = 2
#: Pieces are kept where they save a share of the time at least.
_LEAST_GAIN = 0.03


class Choice:
    """Whether a sweep is cut in pieces: as asked for, or as was measured.

    All ranks choose alike.

    Parameters
    ----------
    asked : bool or "auto"
    engine : Engine

    Attributes
    ----------
    best : bool or None
        What has been measured to be faster; None as long as that is not known.
    """

    def __init__(self, asked: bool | str, engine: Engine) -> None:
        self._asked, self._engine = asked, engine
        self.best: bool | None = asked if isinstance(asked, bool) else None
        #: Seconds of what has been tried, and since when the one at hand is.
        self._seconds: list[float] = []
        self._begun: float | None = None

    def take(self, clock: Callable[[], float], may_pay: bool) -> bool:
        """Return whether the superstep at hand is cut.

        Parameters
        ----------
        clock : callable
            Returns the time at which all that was launched has been done.
        may_pay : bool
            Whether many vertices are due, so that it is worth a trial.
        """
        if self._asked != "auto":
            return bool(self._asked)
        if not may_pay:
            return False
        if self.best is None:
            self._begun = clock()
            return _TRIED[len(self._seconds)]
        return self.best

    def forget(self) -> None:
        """Have no superstep be tried: one that has begun, if any, has failed."""
        self._begun = None

    def end(self, clock: Callable[[], float], wire_s: Callable[[], float]) -> None:
        """Note that the rows of the superstep at hand have come.

        Parameters
        ----------
        clock : callable
            As for `take`.
        wire_s : callable
            Returns the most seconds that they have taken on their way.
        """
        if self._begun is None:
            return
        self._seconds.append(clock() - self._begun)
        self._begun = None
        known = len(self._seconds)
        if known == _LOOK_AT:
            # No more than the lesser of wire and sweep goes behind the other.
            told = np.array([self._seconds[-1], wire_s()])
            about = "what a superstep took, and its rows on their way"
            whole, wire = self._engine.all_reduce(told, "max", about=about)
            if wire <= _LEAST_GAIN * whole:
                self.best = False
        elif known == len(_TRIED):
            took = np.array([min(self._seconds[i] for i in _COUNTED[c])
                             for c in (False, True)])  # fmt: skip
            about = "what supersteps took, whole and in pieces"
            whole, cut = self._engine.all_reduce(took, "max", about=about)
            self.best = bool(cut <= (1 - _LEAST_GAIN) * whole)


class Behind:
    """Sends what a superstep commits while it sweeps.

    Parameters
    ----------
    plan : FoldPlan
    carrier : Carrier
    sets : VertexSets
    sending : Sending
    engine : Engine

    Attributes
    ----------
    came : words or None
        The ghosts whose rows have come in the superstep at hand, which are in the next
        buffers; None where they go behind it.
    """

    def __init__(
        self,
        plan: FoldPlan,
        carrier: Any,
        sets: VertexSets,
        sending: Sending,
        engine: Engine,
    ) -> None:
        self._carrier, self._sets, self._sending = carrier, sets, sending
        self._names, self._phase = plan.facts.sent_rows, plan.facts.split.phase
        # Later runs of the same kernels go on with what was found.
        choices = carrier.boundary.choices
        if plan not in choices:
            choices[plan] = Choice(plan.options.overlap, engine)
        self._choice: Choice = choices[plan]
        self.came: Words | None = None
        #: Bytes of a row that is sent.
        self._row = 0

    def turns(
        self, buffers: Buffers, own: Any, frontier: Any, given: Given
    ) -> Iterator[Turn] | None:
        """Give what sweeps a phase piece by piece; None where it is swept whole."""
        if own.number != self._phase:
            return None
        self.came = None
        self._choice.forget()
        if frontier.in_place:
            return None
        if self._choice.best is False or not self._carrier.sends_behind:
            return None
        values = [buffers.held(n, buffers.next_of(n)) for n in self._names]
        row = sum(v.dtype.itemsize * prod(v.shape[1:]) for v in values)
        self._row = row
        self._carrier.begin_wire()
        if not self._choice.take(
            self._carrier.clock, self._may_pay(buffers, frontier, row)
        ):
            return None
        return self._in_pieces(own, given, values, row)

    def end(self) -> None:
        """Note that all rows have come."""
        self.came = None
        self._choice.end(self._carrier.clock, self._wire_s)

    def _wire_s(self) -> float:
        """Return the seconds that the rows of the superstep at hand were on their way.

        Through windows it is what the model has of a link: no host sees stores.
        """
        return float(self._carrier.wire_s(self._row))

    def _may_pay(self, buffers: Buffers, frontier: Any, row: int) -> bool:
        """Whether many vertices are due, and rows are worth a piece each."""
        vertices = buffers.state.graph.vertex_count
        many = frontier.all_due or are_many(frontier.active_count, vertices)
        return many and self._carrier.boundary.may_pay(row)

    def _in_pieces(
        self, own: Any, given: Given, values: Sequence[Any], row: int
    ) -> Iterator[Turn]:
        pieces, sets = self._carrier.boundary.pieces(row), self._sets
        due, begun = given["due"], None
        parts = [*pieces.words, *([] if pieces.rest is None else [pieces.rest])]
        came: list[Words] = []
        try:
            for number, part in enumerate(parts):
                swept = sets.intersection(due, part)
                found = sets.empty(due.size)
                given_now = {**given, "due": swept, "passed": found}
                if pieces.listed and own.can_be_listed:
                    given_now["listed"] = pieces.listed[number]
                    yield (lambda _: own.entries("listed")), given_now
                else:
                    yield own.entries, given_now
                given["passed"] = sets.union(given["passed"], found)
                if number == len(pieces.words):
                    break
                if begun is not None:
                    came.append(begun.finish())
                # Whatever passed an earlier phase was due in this one, too.
                begun = self._carrier.begin(
                    values, found, self._sending, pieces, number
                )
            if begun is not None:
                came.append(begun.finish())
        finally:
            self._carrier.join()
        self.came = reduce(sets.union, came)
