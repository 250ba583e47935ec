"""Protocols of transports, which exchange entries of properties between ranks.

A `Transport` sends rows of vertices, an `EdgeTransport` entries of edges: through the
engine, as messages between GPUs, or through windows of GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from featgraph.ranks.exchange.remote_entries import RemoteEntries
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.ranks.exchange.vertex_sets import Piece

__all__ = ["EdgeTransport", "Transport"]

Values = Any
Words = Any
#: A set of own edges that are ghosts on other ranks; its type depends on the transport.
Marks = Any


class Transport(Protocol):
    """The exchange of rows between ranks; all ranks call each method together.

    Values are as `PropertyRows.held` returns them: arrays of the host, or of a device.

    Attributes
    ----------
    forms : Counter of str
        Number of row messages sent, by form.
    fused : WindowRows or None
        The exchange of sets, counts and results with rows, if supersteps stay on the
        device.
    can_overlap : bool
        Whether rows can be sent while other vertices are swept.
    sent_behind : int
        Number of pieces sent during a sweep.
    """

    forms: Counter[str]
    can_overlap: bool
    sent_behind: int

    @property
    def fused(self) -> Any:
        """The exchange of sets, counts and results with rows; None if there is none."""

    def require(self, sending: Sending) -> None:
        """Raise PlanError if rows cannot be sent in this form; all ranks call it."""

    def over(self, lists: RemoteEntries, stays: bool = True) -> EdgeTransport:
        """Return the exchange of the entries in some lists, of edges or of vertices.

        `stays` is whether several supersteps use it.
        """

    def share(
        self, values: Sequence[Values], changed: Words, sending: Sending = AS_FITS
    ) -> Words:
        """Send rows of own vertices to the ranks that have them as ghosts.

        Parameters
        ----------
        values : sequence of values
            Buffers of properties, in which the rows of ghosts are replaced.
        changed : words
            The vertices to send.
        sending : Sending
            The form of messages, and the dtype of reals in them.

        Returns
        -------
        words
            The ghosts that have been sent from other ranks.
        """

    def begin(
        self, values: Sequence[Values], changed: Words, sending: Sending, piece: Piece
    ) -> Callable[[], Words]:
        """Begin to send the rows of a piece, which are written within the call.

        Parameters
        ----------
        values, changed, sending
            As for `share`.
        piece : Piece
            The pieces before it have begun.

        Returns
        -------
        callable
            Waits, and returns the ghosts that have been sent. Their rows may be stored
            before it is called, and are to be read after `join`.
        """

    def join(self) -> None:
        """Make later work wait for the rows of all finished pieces.

        The sets of ghosts must not be read before.
        """

    def clock(self) -> float:
        """Wait for all launched work, and return the time in seconds."""

    def begin_wire(self) -> None:
        """Reset the measurement of `wire_s`."""

    def wire_s(self, row_bytes: int) -> float:
        """Return the longest time in flight of rows of `row_bytes`, in seconds."""

    def collect(self, values: Values, mirror: Values, changed: Words) -> None:
        """Store rows of own vertices, by given vertex id, in the mirrors of all ranks.

        Parameters
        ----------
        values, mirror : values
            The buffer of the property, and the rows of all vertices.
        changed : words
            The vertices whose rows in mirrors are outdated.
        """

    def deliver(self, outbox: Values, values: Values, operation: str) -> Words:
        """Combine the rows of an outbox into the property at the vertices' owners.

        Parameters
        ----------
        outbox : values
            This rank's rows for the vertices of the whole graph.
        values : values
            The buffer of the property.
        operation : str
            "add", "min" or "max".

        Returns
        -------
        words
            Own vertices for which rows have arrived.
        """


class EdgeTransport(Protocol):
    """The exchange of edge entries between ranks; all ranks call `share` together.

    Values are as `PropertyRows.held` returns them. Marks are sets of own edges that
    are ghosts on other ranks.
    """

    def all(self) -> Marks:
        """Mark all own edges that are ghosts on other ranks."""

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
            Set to the state of each own edge that passed, and to 0 for other entries.
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
            For each property another buffer in which ghosts are replaced, or None.
        sending : Sending
            The form of messages; "all" means "ms" here.
        """

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
