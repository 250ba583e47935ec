"""The course of a run: its agenda, and the loops for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from featgraph.program.snapshot import Left
from featgraph.runtime.driver.setup import Asked, make_agenda, make_loops
from featgraph.runtime.loops.agenda import Agenda, left_over
from featgraph.runtime.loops.in_place import commit_in_place
from featgraph.runtime.loops.moves import Moves
from featgraph.runtime.loops.protocol import SuperstepLoop, Watched
from featgraph.runtime.loops.run import Run
from featgraph.runtime.superstep.foldmap import FoldMap

__all__ = ["Course"]


class Course:
    """The agenda of a run, and the loops for it: both anew behind a move.

    Parameters
    ----------
    asked : Asked
    agenda : Agenda
    watched : Watched
        As `make_agenda` has made them of it.
    most : int
        How many supersteps there may be.
    moves : Moves or None
        Has ranks own other vertices.

    Attributes
    ----------
    agenda : Agenda
    loops : sequence of SuperstepLoop
    refused : dict of str to str
        Why the other loops cannot run supersteps.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit.
    """

    def __init__(
        self,
        asked: Asked,
        agenda: Agenda,
        watched: Watched,
        *,
        most: int,
        moves: Moves | None,
    ) -> None:
        self._asked, self._most, self._moves = asked, most, moves
        self._begin(agenda, watched)

    def _begin(self, agenda: Agenda, watched: Watched) -> None:
        if self._most > len(agenda.steps):  # whether they may is asked of all edges
            commit_in_place(agenda.steps)
        if self._moves is not None:
            watched = replace(watched, is_timed=True)
        loops, self.refused = make_loops(agenda, watched)
        self.agenda = agenda
        self._sent = agenda.exchange.sent_bytes
        self.loops: Sequence[SuperstepLoop] = loops
        agenda.moves = self._moves

    def look(self, run: Run) -> None:
        """Go on between other cuts, if that pays; asked behind each superstep."""
        if self._moves is None:
            return
        before = self.agenda
        go_on = self._moves.move(run, before, self._most - run.supersteps)
        if go_on is None:
            return
        before.let_go()
        self.note_sent(run)
        self._begin(*make_agenda(replace(self._asked, active=None)))
        agenda = self.agenda
        agenda.watching, agenda.wants_host = before.watching, before.wants_host
        agenda.asks_within = before.asks_within
        if agenda.waiting is not None and before.waiting is not None:
            agenda.waiting.delta = before.waiting.delta
        go_on(agenda)

    def left_over(self) -> dict[FoldMap, Left]:
        """Return what a later call would have to know if the run ended here."""
        return left_over(self.agenda)

    def note_sent(self, run: Run) -> None:
        """Record the bytes that this rank has sent; once for each agenda."""
        for kind, sent in self.agenda.exchange.sent_bytes.items():
            more = sent - self._sent.get(kind, 0)
            if more.any():
                known = run.sent_bytes.get(kind, [0] * more.size)
                run.sent_bytes[kind] = (more + known).tolist()

    def end(self, run: Run) -> None:
        """Have the record of a run complete."""
        run.kernels = [step.kernel for step in self.agenda.steps]
        if self._moves is not None:
            self._moves.end(run)
