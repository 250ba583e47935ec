"""Entries of edges that other ranks own: when they are sent, and which of them.

What edge functions have written waits at its owner until a phase reads it at the
reverse of an edge, or at an edge out of a vertex. An entry that arrives is stored for
the next superstep, too: so both buffers have the same ghosts, wherever none waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol

from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["EdgeCarrier", "EdgeGhosts", "send_waiting"]

Values = Any
Words = Any
#: Which of the own edges that other ranks have as ghosts; of the carrier.
Marks = Any


class EdgeCarrier(Protocol):
    """What hands entries of edges to other ranks; all of them call `share`.

    Values are as `PropertyRows.held` returns them. What is marked are own edges that
    other ranks have as ghosts.
    """

    def all(self) -> Marks:
        """Mark all of them."""

    def out_of(self, sources: Words) -> Marks:
        """Mark those that lead out of some vertices."""

    def marked(self, members: Words, also: Marks | None = None) -> Marks:
        """Mark those of a set of own edges, beside others."""

    def passed(self, state: Any, wide: Any, also: Marks | None) -> Marks:
        """Mark those that passed, beside others.

        Parameters
        ----------
        state : array
            What became of edges: see `BoundState.edge_state`.
        wide : array
            Told the same of own edges that passed, and that no other has.
        also : marks or None
        """

    def union(self, a: Marks, b: Marks) -> Marks:
        """Return what either has."""

    def that_differ(self, marks: Marks, now: Values, before: Values) -> Marks:
        """Return those of some edges whose bytes differ between two buffers."""

    def share(
        self,
        values: Sequence[Values],
        marks: Marks,
        others: Sequence[Values | None],
        sending: Sending = AS_FITS,
    ) -> None:
        """Send entries of own edges to the ranks that have them as ghosts.

        Parameters
        ----------
        values : sequence of values
            Buffers of properties, in which the entries of ghosts are replaced.
        marks : marks
            What to send.
        others : sequence of values or None
            For each property another buffer in which they are replaced.
        sending : Sending
            In which form; "all" is "ms" here.
        """

    def empty_outbox(self, outbox: Values, operation: str) -> None:
        """Make all entries such that combining them changes nothing."""

    def deliver(self, outbox: Values, values: Values, operation: str) -> Words:
        """Combine the entries of an outbox into those of edges, at their owners.

        Parameters
        ----------
        outbox : values
            What this rank has for the edges of its part.
        values : values
            The buffer of the property.
        operation : str
            "add", "min" or "max".

        Returns
        -------
        words
            Own edges for which anything has come.
        """


class EdgeGhosts:
    """The ghosts of edges that the kernels of a plan read.

    Parameters
    ----------
    plan : FoldPlan
    carrier : EdgeCarrier
    """

    def __init__(self, plan: FoldPlan, carrier: EdgeCarrier) -> None:
        self._halos = [halo.edges for halo in plan.facts.halos]
        self._ahead = {name for halo in self._halos for name in halo.reads_next}
        self._carrier = carrier
        #: Whether a phase leaves next entries of all edges but some as they are.
        self._are_left = [phase.changed_only for phase in plan.phases]
        self._sending = Sending(plan.options.exchange)
        #: Property -> edges that may have been written for the next superstep.
        self._written: dict[str, Marks] = {}

    def all(self) -> Marks:
        """Mark all own edges that other ranks have as ghosts."""
        return self._carrier.all()

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Bring entries up to date that a phase reads, and empty its outboxes."""
        names = [n for n in self._halos[number].reads if n in buffers.unsent]
        send_waiting(self._carrier, buffers, names, self._sending)
        for name, of, operation in self._halos[number].outboxes:
            outbox = buffers.held(of, buffers.everywhere(name, of))
            self._carrier.empty_outbox(outbox, operation)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Bring ``_next`` entries up to date that a phase reads: all of them."""
        names = self._halos[number].reads_next
        if names:
            values = [buffers.held(name, buffers.next_of(name)) for name in names]
            marks, others = self._carrier.all(), [None] * len(values)
            self._carrier.share(values, marks, others, self._sending)

    def note(self, buffers: Buffers, number: int, sources: Words) -> None:
        """Remember what a phase has written, on out-edges of sources and at twins."""
        halo = self._halos[number]
        for name, of, operation in halo.outboxes:
            outbox = buffers.held(of, buffers.everywhere(name, of))
            values = buffers.held(of, buffers.property(of))
            reached = self._carrier.deliver(outbox, values, operation)
            buffers.unsent[of] = self._carrier.marked(reached, buffers.unsent.get(of))
        if not (halo.writes or halo.writes_next):
            return
        out = everything = self._carrier.out_of(sources)
        if self._are_left[number]:  # ghosts among them, of which others ask later
            everything = self._carrier.all()
        for known, names, marks in (
            (buffers.unsent, halo.writes, out),
            (self._written, halo.writes_next, everything),
        ):
            for name in names:
                before = known.get(name)
                is_new = before is None
                known[name] = marks if is_new else self._carrier.union(before, marks)

    def announce(self, buffers: Buffers) -> None:
        """Remember what was committed: entries that are not what they were."""
        written, self._written = self._written, {}
        for name, marks in written.items():
            known = buffers.unsent.get(name)
            if name in self._ahead:  # what others have had of it may not be committed
                changed = self._carrier.all()
            else:
                changed = self._changed(buffers, name, marks)
            is_new = known is None
            buffers.unsent[name] = (
                changed if is_new else self._carrier.union(known, changed)
            )

    def _changed(self, buffers: Buffers, name: str, marks: Marks) -> Marks:
        """Return those of some edges whose entries differ from what they were."""
        if isinstance(buffers.stale[name], str):  # nobody knows what they were
            return marks
        now = buffers.held(name, buffers.property(name))
        before = buffers.held(name, buffers.next[name])
        return self._carrier.that_differ(marks, now, before)


def send_waiting(
    carrier: EdgeCarrier,
    buffers: Buffers,
    names: Sequence[str],
    sending: Sending = AS_FITS,
) -> None:
    """Send what was written of some properties since other ranks have had it."""
    if names:
        marks = reduce(carrier.union, [buffers.unsent.pop(name) for name in names])
        values = [buffers.held(name, buffers.property(name)) for name in names]
        others = [
            buffers.held(name, buffers.next[name]) if name in buffers.next else None
            for name in names
        ]
        carrier.share(values, marks, others, sending)
