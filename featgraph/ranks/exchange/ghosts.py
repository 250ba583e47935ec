"""Ghost rows of vertices: which are sent to other ranks, and when.

A written row stays unsent at its owner until a phase reads it at a neighbor, and is
sent before that phase. Rows that a superstep commits and its own kernels read are sent
together with the set of committed vertices.

A sweep may be cut into pieces, each sent while the next one is swept. Boundary vertices
come first, range by range; the others are swept while the last rows are in flight
(docs/design/0065-behind-work.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, Protocol

import numpy as np

from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.edge_ghosts import EdgeCarrier, EdgeGhosts
from featgraph.ranks.exchange.remote_entries import Lists
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.ranks.exchange.triangles import TriangleTurns
from featgraph.ranks.exchange.vertex_sets import Pieces
from featgraph.runtime.devices.protocol import VertexSets
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.frontier import are_many

__all__ = ["Carrier", "RankGhosts"]

Values = Any
Words = Any


class Together(Protocol):
    """One exchange behind a superstep for the active set, rows, counts and results.

    `take_told` may be called long after `post_told`. Then the active set is complete,
    and its size on all ranks is stored for the next count.
    """

    def post_told(
        self, told: Any, waiting: Any | None, sending: Sending = AS_FITS
    ) -> Any:
        """Post the active vertices and those written before, each set with its rows.

        Both are pairs of a vertex set and the values of properties. `waiting` is None
        if there are no unsent rows.
        """

    def take_told(
        self, posted: Any, others: Sequence[Values | None] = ()
    ) -> tuple[Words, Words]:
        """Receive the sets and rows posted by other ranks.

        `others` has for each posted property a second buffer for its rows, or None.
        Returns the active vertices, ghosts included, and the ghosts whose rows have
        come with `waiting`.
        """
        ...


class Carrier(Protocol):
    """The exchange of rows between ranks; all ranks call each method together.

    Values are as `PropertyRows.held` returns them: arrays of the host, or of a device.

    Attributes
    ----------
    forms : Counter of str
        Number of row messages sent, by form.
    together : Together or None
        The exchange of sets, counts and results with rows.
    sends_behind : bool
        Whether rows can be sent while other vertices are swept.
    sent_behind : int
        Number of pieces sent during a sweep.
    """

    forms: Counter[str]
    sends_behind: bool
    sent_behind: int

    @property
    def together(self) -> Any:
        """The exchange of sets, counts and results with rows; None if there is none."""

    def require(self, sending: Sending) -> None:
        """Raise PlanError if rows cannot be sent like this; all ranks call it."""

    def over(self, lists: Lists, stays: bool = True) -> EdgeCarrier:
        """Return the exchange of the entries of some lists, of edges or others.

        `stays` says whether it will be used many times.
        """
        ...

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
        ...

    def begin(
        self,
        values: Sequence[Values],
        changed: Words,
        sending: Sending,
        pieces: Pieces,
        number: int,
    ) -> Any:
        """Begin to send the rows of a piece, which are written within the call.

        Parameters
        ----------
        values, changed, sending
            As for `share`.
        pieces : Pieces
        number : int
            The index of the piece. The pieces before it have begun.

        Returns
        -------
        object
            Its `finish` waits, and returns the ghosts that have been sent. Their rows
            may be stored before it is called.
        """
        ...

    def join(self) -> None:
        """Make later work wait for the rows of all finished pieces.

        The sets that `finish` has returned must not be read before.
        """

    def clock(self) -> float:
        """Wait for all launched work, and return the time in seconds."""
        ...

    def begin_wire(self) -> None:
        """Reset the measurement of `wire_s`."""

    def wire_s(self, row_bytes: int) -> float:
        """Return the longest time in flight of rows of `row_bytes`, in seconds."""
        ...

    def collect(self, values: Values, mirror: Values, changed: Words) -> None:
        """Store rows of own vertices, by given vertex id, in the mirrors of all ranks.

        Parameters
        ----------
        values, mirror : values
            The buffer of the property, and the rows of all vertices.
        changed : words
            The vertices whose rows in mirrors are outdated.
        """

    def empty_outbox(self, outbox: Values, operation: str) -> None:
        """Set all rows of an outbox to the identity of the operation."""

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
        ...


class RankGhosts:
    """The ghosts that the kernels of a plan read: see `Ghosts`.

    Parameters
    ----------
    plan : FoldPlan
    carrier : Carrier
    edges : EdgeGhosts
        Ghosts of edges.
    own : words
        The vertices of this rank.
    sets : VertexSets
    triangles : TriangleTurns
        Runs the triangle functions of the plan.
    engine : Engine
    """

    def __init__(
        self,
        plan: FoldPlan,
        carrier: Carrier,
        edges: EdgeGhosts,
        own: Words,
        sets: VertexSets,
        triangles: TriangleTurns,
        engine: Engine,
    ) -> None:
        self.turns = triangles.over
        self._halos, self._carrier, self._edges = plan.facts.halos, carrier, edges
        self._own, self._sets = own, sets
        options = plan.options
        self._sending = Sending(options.exchange, options.wire_dtype)
        carrier.require(self._sending)
        self._behind = Behind(plan, carrier, sets, self._sending, engine)
        self.in_pieces = self._behind.turns
        signature = plan.analysis.signature
        self._written = [
            name
            for name in plan.facts.writes_next
            if signature[name].kind is PropertyKind.VERTEX
        ]
        #: Committed properties whose rows may be sent with the committed set.
        self._sent = plan.facts.sent_rows
        #: Properties of which a phase reads ghost rows before they are committed.
        self._ahead = {name for halo in self._halos for name in halo.reads_next}

    def refresh_all(self, buffers: Buffers) -> None:
        """Refresh the ghost rows of current values that any phase reads."""
        self._send_waiting(buffers, sorted({n for h in self._halos for n in h.reads}))

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Refresh the ghost rows that a phase reads, and empty its outboxes."""
        buffers.read_at_ghosts.update(self._halos[number].reads)
        self._send_waiting(buffers, self._halos[number].reads)
        for name, of in self._halos[number].mirrors:
            values = buffers.held(of, buffers.property(of))
            changed = buffers.mirrored.get((name, of), self._own)
            if changed is None:
                changed = self._sets.empty(self._own.size)
            mirror = self._everywhere(buffers, name, of)
            self._carrier.collect(values, mirror, changed)
            buffers.mirrored[name, of] = None
        for name, of, operation in self._halos[number].outboxes:
            outbox = self._everywhere(buffers, name, of)
            self._carrier.empty_outbox(outbox, operation)
        self._edges.refresh(buffers, number)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Refresh all ghosts of ``_next`` rows that a phase reads."""
        names = self._halos[number].reads_next
        if names:
            rows = [buffers.held(n, buffers.next_of(n)) for n in names]
            self._carrier.share(rows, self._own, self._sending)
        for name, of in self._halos[number].mirrors_next:
            values = buffers.held(of, buffers.next_of(of))
            mirror = self._everywhere(buffers, name, of)
            self._carrier.collect(values, mirror, self._own)
        self._edges.refresh_next(buffers, number)

    def note(
        self, buffers: Buffers, number: int, vertices: Words | None, sources: Words
    ) -> None:
        """Record the rows written by a phase: see `Ghosts`."""
        halo = self._halos[number]
        self._wait(buffers, halo.writes, self._own if vertices is None else vertices)
        self._edges.note(buffers, number, sources)
        for name, of, operation in halo.outboxes:
            outbox = self._everywhere(buffers, name, of)
            values = buffers.held(of, buffers.property(of))
            reached = self._carrier.deliver(outbox, values, operation)
            self._wait(buffers, [of], reached)

    def announce(self, buffers: Buffers, committed: Words | None, told: Words) -> Words:
        """Send the committed and the active vertices to other ranks.

        Returns the active vertices, ghosts included.
        """
        self._edges.announce(buffers)
        # Rows are sent with a set only if it is the set of their vertices.
        sent = self._sent if told is committed else []
        for name in self._written:
            # Ghosts read ahead by another phase may never have been committed.
            changed = self._own if name in self._ahead else committed
            if name in sent:
                self._outdate(buffers, name, committed)
            else:
                self._wait(buffers, [name], changed)
        ghosts = self._behind.came
        if ghosts is not None:  # their rows are in the buffers that are now current
            self._refresh_late(buffers, dict.fromkeys(sent, ghosts))
            buffers.ghosts_came(sent, ghosts)
            sent = []
        if self._carrier.together is not None:
            active = self._tell_together(buffers, sent, told)
        else:
            if ghosts is None:
                ghosts = self._share(buffers, sent, told)
                self._refresh_late(buffers, dict.fromkeys(sent, ghosts))
            active = self._sets.union(told, ghosts)
        self._behind.end()
        return active

    @staticmethod
    def _refresh_late(buffers: Buffers, came: Mapping[str, Words]) -> None:
        """Refresh the late ghosts of the superstep, except those whose rows came."""
        late, buffers.late_ghosts = buffers.late_ghosts, {}
        for name, ghosts in late.items():
            current, before = buffers.property(name), buffers.next_of(name)
            sets = buffers.device.sets
            sets.refresh_vertices(ghosts, current, before, came.get(name))

    def _tell_together(
        self, buffers: Buffers, sent: Sequence[str], told: Words
    ) -> Words:
        """Send the active set with all ghost rows that kernels read.

        Reduce results and the size of the active set are sent in the same exchange.
        """
        read = buffers.read_at_ghosts & buffers.unsent.keys()
        waiting = {name: buffers.unsent.pop(name) for name in read}
        also = sorted(n for n, words in waiting.items() if words is not told)
        sent = sorted({*sent, *(waiting.keys() - set(also))})
        parts = [(told, self._held(buffers, sent))]
        if also:
            distinct = {id(waiting[name]): waiting[name] for name in also}
            changed = reduce(self._sets.union, distinct.values())
            parts.append((changed, self._held(buffers, also)))
        together = self._carrier.together
        waits = parts[1] if also else None
        posted = together.post_told(parts[0], waits, self._sending)
        # Rows are stored in both buffers of a property, so that no ghost gets stale.
        others = [
            buffers.held(name, buffers.next[name]) if name in buffers.next else None
            for name in (*sent, *also)
        ]
        active, came = together.take_told(posted, others)
        told_of = dict.fromkeys(sent, active) | dict.fromkeys(also, came)
        self._refresh_late(buffers, told_of)
        return active

    @staticmethod
    def _held(buffers: Buffers, names: Sequence[str]) -> list[Values]:
        """Return the values of properties as a carrier takes them."""
        return [buffers.held(name, buffers.property(name)) for name in names]

    def have_wait(self, buffers: Buffers, names: Iterable[str]) -> None:
        """Mark all rows of some properties as unsent, and of all others as sent."""
        types = buffers.state.signature
        buffers.mirrored.clear()
        buffers.unsent = {
            name: self._edges.all()
            if types[name].kind is PropertyKind.EDGE
            else self._own
            for name in names
        }

    def _send_waiting(self, buffers: Buffers, names: Sequence[str]) -> None:
        wire = self._sending.wire_dtype
        for name in names:  # ghosts must not depend on the rounding of earlier runs
            if buffers.rounded.get(name) != wire:
                self._wait(buffers, [name], self._own)
                buffers.rounded.pop(name, None)
                if wire is not None:
                    buffers.rounded[name] = wire
        found = [name for name in names if name in buffers.unsent]
        if found:
            changed = reduce(self._sets.union, [buffers.unsent.pop(n) for n in found])
            self._share(buffers, found, changed)

    @staticmethod
    def _everywhere(buffers: Buffers, name: str, of: str) -> Values:
        """Return the values of a property at all vertices of the whole graph."""
        return buffers.held(of, buffers.everywhere(name, of))

    def _wait(self, buffers: Buffers, names: Sequence[str], words: Words) -> None:
        for name in names:
            self._outdate(buffers, name, words)
            known = buffers.unsent.get(name)
            kept = self._sets.snapshot(words)
            if known is not None and name not in buffers.read_at_ghosts:
                kept = self._own  # kernels may never read it: rather send all rows once
            elif known is not None:
                kept = self._sets.union(known, kept)
            buffers.unsent[name] = kept

    def _outdate(self, buffers: Buffers, name: str, words: Words) -> None:
        """Record written rows as outdated in the mirrors of their property."""
        for (mirror, of), known in buffers.mirrored.items():
            if of == name:
                kept = self._sets.snapshot(words)
                if known is not None:
                    kept = self._sets.union(known, kept)
                buffers.mirrored[mirror, of] = kept

    def _share(self, buffers: Buffers, names: Sequence[str], changed: Words) -> Words:
        """Send rows of changed vertices; return the ghosts that have come."""
        values = self._held(buffers, names)
        ghosts = self._carrier.share(values, changed, self._sending)
        buffers.ghosts_came(names, ghosts)
        return ghosts


Given = dict[str, Any]
Turn = tuple[Any, Given]
#: Whether each of the first supersteps, which are timed, is cut. The first of each kind
#: compiles, or makes pieces, and does not count.
_TRIED = (False, False, True, True, False, True)
_COUNTED = {False: (1, 4), True: (3, 5)}
#: After so many supersteps the most that overlap can hide is known: wire or sweep.
_LOOK_AT = 2
#: The least fraction of the time that pieces must save.
_LEAST_GAIN = 0.03


class Choice:
    """The choice whether sweeps are cut into pieces: fixed by an option, or measured.

    It is the same on all ranks.

    Parameters
    ----------
    asked : bool or "auto"
    engine : Engine

    Attributes
    ----------
    best : bool or None
        Whether pieces are faster; None until that has been measured.
    """

    def __init__(self, asked: bool | str, engine: Engine) -> None:
        self._asked, self._engine = asked, engine
        self.best: bool | None = asked if isinstance(asked, bool) else None
        #: Seconds of the timed supersteps, and when the current one began.
        self._seconds: list[float] = []
        self._begun: float | None = None

    def take(self, clock: Callable[[], float], may_pay: bool) -> bool:
        """Return whether the current superstep is cut into pieces.

        Parameters
        ----------
        clock : callable
            Waits for all launched work, and returns the time in seconds.
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
        """Drop the timing of a superstep that has begun and failed."""
        self._begun = None

    def end(self, clock: Callable[[], float], wire_s: Callable[[], float]) -> None:
        """Note that all rows of the current superstep have arrived.

        Parameters
        ----------
        clock : callable
            As for `take`.
        wire_s : callable
            Returns the longest time in flight of these rows, in seconds.
        """
        if self._begun is None:
            return
        self._seconds.append(clock() - self._begun)
        self._begun = None
        known = len(self._seconds)
        if known == _LOOK_AT:
            # Overlap hides at most the shorter of wire time and sweep.
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
    """Overlap of a sweep with the exchange of the rows that it commits.

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
        The ghosts whose rows have come during the current superstep, into the next
        buffers; None if rows are sent behind the superstep.
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
        # Later runs of the same kernels continue with the choice of earlier ones.
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
        """Return the turns of a phase's sweep in pieces; None to sweep it whole."""
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
        """Note that all rows have arrived."""
        self.came = None
        self._choice.end(self._carrier.clock, self._wire_s)

    def _wire_s(self) -> float:
        """Return the time in flight of the current superstep's rows, in seconds.

        Through windows it is the model's time of the link: the host sees no stores.
        """
        return float(self._carrier.wire_s(self._row))

    def _may_pay(self, buffers: Buffers, frontier: Any, row: int) -> bool:
        """Whether many vertices are due, with enough bytes of rows for pieces."""
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
                # Every vertex that passed an earlier phase is due in this one, too.
                begun = self._carrier.begin(
                    values, found, self._sending, pieces, number
                )
            if begun is not None:
                came.append(begun.finish())
        finally:
            self._carrier.join()
        self.came = reduce(sets.union, came)
