"""What the host does about supersteps of a cycle that the device has run."""

from __future__ import annotations

from collections.abc import Sequence

from featgraph.runtime.loops.pending import announce
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Agenda
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.recording.cycles import Traced

__all__ = ["Accounts"]


class Accounts:
    """Records supersteps of a cycle, and what is pending behind them.

    Parameters
    ----------
    agenda : Agenda
    run : Run
        Where they are recorded.
    traced : sequence of Traced
        A cycle: what runs, again and again; the first of them is due.

    Attributes
    ----------
    done : int
        Supersteps that have run.
    """

    def __init__(self, agenda: Agenda, run: Run, traced: Sequence[Traced]) -> None:
        self._agenda, self._run, self._cycle = agenda, run, traced
        self.done = 0
        #: Supersteps that the host would not have run.
        self._idle = 0
        self._first = agenda.state.superstep
        self._everything = agenda.state.graph.living_count

    @property
    def is_whole(self) -> bool:
        """Whether the last cycle has ended."""
        return self.done % len(self._cycle) == 0

    @property
    def following(self) -> Traced:
        """The superstep that comes next."""
        return self._cycle[self.done % len(self._cycle)]

    def add(self, number: int, seconds: float, seen: Sequence[float]) -> bool:
        """Account for the next superstep, which has committed `number` vertices.

        False if the host would not have run it. `seen` are the extremes of its results
        that the run looks at. What the State is told, it is told by `number`.
        """
        agenda, traced = self._agenda, self.following
        place = traced.place
        before = agenda.pending[place].active_count
        self._announce(traced, number)
        self.done += 1
        if before == 0 and number == 0:
            self._idle += 1
            return False
        self._run.add(number, seconds, traced.direction, traced.work)
        if traced.pieces is not None:
            self._run.pieces.append(traced.pieces)
        step = agenda.steps[place]
        if seen:
            agenda.watching.note(step.plan, seen)
        step.patched_supersteps += traced.work == "patched"
        agenda.turn = (place + 1) % len(agenda.steps)
        return True

    def add_all(
        self,
        numbers: Sequence[int],
        seconds: Sequence[float],
        seen: Sequence[Sequence[float]],
        last: int,
    ) -> None:
        """Account for cycles of which only the `last` supersteps may have been idle.

        What is pending follows from these, and from the cycle before them: each
        foldmap has its turn there.
        """
        length = len(self._cycle)
        many = len(numbers) - last
        cycles = many // length
        for place, traced in enumerate(self._cycle if many else ()):
            self._announce(traced, numbers[many - length + place])
            patches = cycles if traced.work == "patched" else 0
            self._agenda.steps[traced.place].patched_supersteps += patches
        self._run.add_all(
            numbers[:many], seconds[:many], [t.direction for t in self._cycle] * cycles,
            [t.work for t in self._cycle] * cycles,
        )  # fmt: skip
        self._run.pieces += [
            t.pieces for t in self._cycle if t.pieces is not None
        ] * cycles
        # Where there is one foldmap, all of the cycle is its.
        plans = [step.plan for step in self._agenda.steps]
        if len(plans) > 1:
            plans = [plans[t.place] for t in self._cycle]
        self._agenda.watching.note_all(plans, seen[:many])
        self.done += many
        for rest in zip(numbers[many:], seconds[many:], seen[many:], strict=True):
            self.add(*rest)

    def settle(self) -> None:
        """Have buffers where they are within a cycle, if a run has ended there."""
        buffers = buffers_of(self._agenda.state, self._agenda.device)
        for traced in self._cycle[: self.done % len(self._cycle)]:
            step = self._agenda.steps[traced.place]
            step.plain.bound.stale.repeat(buffers, step.in_place and not traced.keeps)
        # What waits behind a whole cycle is in the sets that the host knows.
        ghosts = self._agenda.steps[0].plain.bound.ghosts
        if ghosts is not None and not self.is_whole:
            last = self._cycle[self.done % len(self._cycle) - 1]
            ghosts.have_wait(buffers, last.unsent)
        for place in range(len(self._agenda.steps)):
            self._agenda.note_scalars(place)
        self.number()

    def number(self) -> None:
        """Tell the State how many supersteps the host would have run.

        Of what their reduces have left it has no copy yet.
        """
        agenda, number = self._agenda, self._first + self.done - self._idle
        agenda.superstep = agenda.state.superstep = number
        for step in agenda.steps:
            step.plain.bound.go_on()

    def _announce(self, traced: Traced, number: int) -> None:
        """Announce what was committed: its sets are where the recording makes them."""
        agenda, made = self._agenda, traced.pending
        everything = 0 < number == self._everything
        told = None if everything else traced.committed()
        announce(
            agenda.pending, traced.place, told, number, lambda other, _: made[other]()
        )
