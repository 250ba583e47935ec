"""Ghost entries of edges: which are sent to other ranks, and when.

Entries that edge functions have written stay unsent at their owner until a phase reads
them at the reverse of an edge, or at an out-edge. An entry that arrives is stored in
the current and the next buffer: both have the same ghosts if no entry is unsent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol

from featgraph.fold.plan.plan import FoldPlan
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["EdgeCarrier", "EdgeGhosts", "send_waiting"]

Values = Any
Words = Any
#: A set of own edges that are ghosts on other ranks; its type depends on the carrier.
Marks = Any


class EdgeCarrier(Protocol):
    """The exchange of edge entries between ranks; all ranks call `share` together.

    Values are as `PropertyRows.held` returns them. Marks are sets of own edges that
    are ghosts on other ranks.
    """

    def all(self) -> Marks:
        """Mark all of them."""

    def out_of(self, sources: Words) -> Marks:
        """Mark the edges that lead out of some vertices."""

    def marked(self, members: Words, also: Marks | None = None) -> Marks:
        """Mark the edges of a set of own edges, and those of `also`."""

    def passed(self, state: Any, wide: Any, also: Marks | None) -> Marks:
        """Mark the edges that passed, and those of `also`.

        Parameters
        ----------
        state : array
            The state of edges: see `BoundState.edge_state`.
        wide : array
            The same, written here for own edges that passed and are ghosts nowhere.
        also : marks or None
        """

    def union(self, a: Marks, b: Marks) -> Marks:
        """Return the union of two sets of marks."""

    def that_differ(self, marks: Marks, now: Values, before: Values) -> Marks:
        """Return the marked edges whose bytes differ between two buffers."""

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
            The edges whose entries are sent.
        others : sequence of values or None
            For each property another buffer in which they are replaced.
        sending : Sending
            The form of messages; "all" means "ms" here.
        """

    def empty_outbox(self, outbox: Values, operation: str) -> None:
        """Set all entries to the identity of the operation."""

    def deliver(self, outbox: Values, values: Values, operation: str) -> Words:
        """Combine the entries of an outbox into the property of the edges' owners.

        Parameters
        ----------
        outbox : values
            This rank's entries for the edges of its part.
        values : values
            The buffer of the property.
        operation : str
            "add", "min" or "max".

        Returns
        -------
        words
            Own edges for which entries have arrived.
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
        """Refresh the ghost entries that a phase reads, and empty its outboxes."""
        names = [n for n in self._halos[number].reads if n in buffers.unsent]
        send_waiting(self._carrier, buffers, names, self._sending)
        for name, of, operation in self._halos[number].outboxes:
            outbox = buffers.held(of, buffers.everywhere(name, of))
            self._carrier.empty_outbox(outbox, operation)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Refresh all ghosts of ``_next`` entries that a phase reads."""
        names = self._halos[number].reads_next
        if names:
            values = [buffers.held(name, buffers.next_of(name)) for name in names]
            marks, others = self._carrier.all(), [None] * len(values)
            self._carrier.share(values, marks, others, self._sending)

    def note(self, buffers: Buffers, number: int, sources: Words) -> None:
        """Record what a phase has written, on out-edges of sources and at twins."""
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
        """Record the committed entries whose values have changed as unsent."""
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
        """Return the marked edges whose entries differ from those before the commit."""
        if isinstance(buffers.stale[name], str):  # the entries before are not kept
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
    """Send the unsent entries of some edge properties to other ranks."""
    if names:
        marks = reduce(carrier.union, [buffers.unsent.pop(name) for name in names])
        values = [buffers.held(name, buffers.property(name)) for name in names]
        others = [
            buffers.held(name, buffers.next[name]) if name in buffers.next else None
            for name in names
        ]
        carrier.share(values, marks, others, sending)
