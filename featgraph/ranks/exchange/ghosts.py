"""Ghosts of vertices and edges: which entries are sent to other ranks, and when.

A written row stays unsent at its owner until a phase reads it at a neighbor, and is
sent before that phase. Rows that a superstep commits and its own kernels read are sent
together with the set of committed vertices. Entries that edge functions have written
stay unsent until a phase reads them at the reverse of an edge, or at an out-edge. An
edge entry that arrives is stored in the current and the next buffer: both have the same
ghosts if no entry is unsent.

Begin with `RankGhosts`, which has a method for each point of a superstep: `refresh`
before a phase, `note` after it, `announce` after the last one. `EdgeGhosts` has the
same methods for edges.

`Overlap` may cut a sweep into pieces, each sent while the next one is swept. Boundary
vertices come first, range by range; the others are swept while the last rows are in
flight (docs/design/0065-behind-work.md). `Choice` measures whether that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.remote_entries import empty_outbox
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.ranks.exchange.transport import EdgeTransport, Transport
from featgraph.ranks.exchange.triangles import TriangleSweeps
from featgraph.ranks.exchange.vertex_sets import Piece
from featgraph.runtime.devices.protocol import VertexSets
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.frontier import are_many

__all__ = ["EdgeGhosts", "RankGhosts", "send_unsent"]

Values = Any
Words = Any
#: A set of own edges that are ghosts on other ranks; its type depends on the transport.
Marks = Any


class RankGhosts:
    """The ghosts that the kernels of a plan read: see `Ghosts`.

    Parameters
    ----------
    plan : FoldPlan
    transport : Transport
    edges : EdgeGhosts
        Ghosts of edges.
    own : words
        The vertices of this rank.
    sets : VertexSets
    triangles : TriangleSweeps
        Runs the triangle functions of the plan.
    engine : Engine
    """

    def __init__(
        self,
        plan: FoldPlan,
        transport: Transport,
        edges: EdgeGhosts,
        own: Words,
        sets: VertexSets,
        triangles: TriangleSweeps,
        engine: Engine,
    ) -> None:
        self.triangle_batches = triangles.over
        self._halos, self._transport, self._edges = plan.facts.halos, transport, edges
        self._own, self._sets = own, sets
        options = plan.options
        self._sending = Sending(options.exchange, options.wire_dtype)
        transport.require(self._sending)
        self._overlap = Overlap(plan, transport, sets, self._sending, engine)
        self.in_pieces = self._overlap.pieces
        signature = plan.analysis.signature
        self._written = [
            name
            for name in plan.facts.writes_next
            if signature[name].kind is PropertyKind.VERTEX
        ]
        #: Committed properties whose rows may be sent with the committed set.
        self._sent = plan.facts.sent_rows
        #: Properties of which a phase reads ghost rows before they are committed.
        self._read_early = {name for halo in self._halos for name in halo.reads_next}

    def refresh_all(self, buffers: Buffers) -> None:
        """Refresh the ghost rows of current values that any phase reads."""
        self._send_unsent(buffers, sorted({n for h in self._halos for n in h.reads}))

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Refresh the ghost rows that a phase reads, and empty its outboxes."""
        halo = self._halos[number]
        if halo.reads:
            buffers.read_at_ghosts.update(halo.reads)
            self._send_unsent(buffers, halo.reads)
        for name, of in halo.mirrors:
            values = buffers.held(of, buffers.property(of))
            changed = buffers.mirrored.get((name, of), self._own)
            if changed is None:  # no row is outdated; other ranks may have rows to send
                changed = self._sets.empty(self._own.size)
            mirror = self._everywhere(buffers, name, of)
            self._transport.collect(values, mirror, changed)
            buffers.mirrored[name, of] = None
        for name, of, operation in halo.outboxes:
            empty_outbox(buffers.device, buffers.everywhere(name, of), operation)
        if self._edges.are_used[number]:
            self._edges.refresh(buffers, number)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Refresh all ghosts of ``_next`` rows that a phase reads."""
        halo = self._halos[number]
        if halo.reads_next:
            rows = [buffers.held(n, buffers.next_of(n)) for n in halo.reads_next]
            self._transport.share(rows, self._own, self._sending)
        for name, of in halo.mirrors_next:
            values = buffers.held(of, buffers.next_of(of))
            mirror = self._everywhere(buffers, name, of)
            self._transport.collect(values, mirror, self._own)
        if self._edges.are_used[number]:
            self._edges.refresh_next(buffers, number)

    def note(
        self, buffers: Buffers, number: int, vertices: Words | None, sources: Words
    ) -> None:
        """Record the rows written by a phase: see `Ghosts`."""
        halo = self._halos[number]
        if halo.writes:
            written = self._own if vertices is None else vertices
            self._mark_unsent(buffers, halo.writes, written)
        if self._edges.are_used[number]:
            self._edges.note(buffers, number, sources)
        for name, of, operation in halo.outboxes:
            outbox = self._everywhere(buffers, name, of)
            values = buffers.held(of, buffers.property(of))
            reached = self._transport.deliver(outbox, values, operation)
            self._mark_unsent(buffers, [of], reached)

    def announce(
        self, buffers: Buffers, committed: Words | None, active_own: Words
    ) -> Words:
        """Send the committed and the active vertices to other ranks.

        Returns the active vertices, ghosts included.
        """
        if self._edges.written:
            self._edges.announce(buffers)
        # Rows are sent with a set only if it is the set of their vertices.
        sent = self._sent if active_own is committed else []
        for name in self._written:
            # Ghosts read ahead by another phase may never have been committed.
            changed = self._own if name in self._read_early else committed
            if name in sent:
                if buffers.mirrored:
                    self._outdate(buffers, name, committed)
            else:
                self._mark_unsent(buffers, [name], changed)
        ghosts = self._overlap.came
        if ghosts is not None:  # their rows are in the buffers that are now current
            self._refresh_late(buffers, dict.fromkeys(sent, ghosts))
            buffers.ghosts_came(sent, ghosts)
            sent = []
        if self._transport.fused is not None:
            active = self._send_fused(buffers, sent, active_own)
        else:
            if ghosts is None:
                ghosts = self._share(buffers, sent, active_own)
                self._refresh_late(buffers, dict.fromkeys(sent, ghosts))
            active = self._sets.union(active_own, ghosts)
        self._overlap.end()
        return active

    @staticmethod
    def _refresh_late(buffers: Buffers, came: Mapping[str, Words]) -> None:
        """Copy late ghosts from the previous buffers, except rows that have arrived."""
        late, buffers.late_ghosts = buffers.late_ghosts, {}
        for name, ghosts in late.items():
            current, before = buffers.property(name), buffers.next_of(name)
            sets = buffers.device.sets
            sets.refresh_vertices(ghosts, current, before, came.get(name))

    def _send_fused(
        self, buffers: Buffers, sent: Sequence[str], active_own: Words
    ) -> Words:
        """Send the active set with all ghost rows that kernels read.

        Reduce results and the size of the active set are sent in the same exchange.
        """
        read = buffers.read_at_ghosts & buffers.unsent.keys()
        waiting = {name: buffers.unsent.pop(name) for name in read}
        also = sorted(n for n, words in waiting.items() if words is not active_own)
        sent = sorted({*sent, *(waiting.keys() - set(also))})
        active_rows, waits = (active_own, _held(buffers, sent)), None
        if also:
            # Properties written by one phase wait with the same set.
            distinct = {id(waiting[name]): waiting[name] for name in also}
            changed = reduce(self._sets.union, distinct.values())
            waits = changed, _held(buffers, also)
        fused = self._transport.fused
        posted = fused.post_active(active_rows, waits, self._sending)
        # Rows are stored in both buffers of a property, so that no ghost gets stale.
        others = _second_buffers(buffers, (*sent, *also))
        active, came = fused.receive_active(posted, others)
        arrivals = dict.fromkeys(sent, active) | dict.fromkeys(also, came)
        self._refresh_late(buffers, arrivals)
        return active

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

    def _send_unsent(self, buffers: Buffers, names: Sequence[str]) -> None:
        """Send the unsent rows of some properties of vertices to other ranks."""
        wire = self._sending.wire_dtype
        for name in names:  # ghosts must not depend on the rounding of earlier runs
            if buffers.rounded.get(name) != wire:
                self._mark_unsent(buffers, [name], self._own)
                buffers.rounded.pop(name, None)
                if wire is not None:
                    buffers.rounded[name] = wire
        found = [name for name in names if name in buffers.unsent]
        if found:
            changed = reduce(self._sets.union, [buffers.unsent.pop(n) for n in found])
            self._share(buffers, found, changed)

    @staticmethod
    def _everywhere(buffers: Buffers, name: str, of: str) -> Values:
        """Return a mirror or an outbox: a row for each vertex of the whole graph."""
        return buffers.held(of, buffers.everywhere(name, of))

    def _mark_unsent(
        self, buffers: Buffers, names: Sequence[str], words: Words
    ) -> None:
        """Record written rows of properties as unsent, and outdated in mirrors."""
        for name in names:
            self._outdate(buffers, name, words)
            known = buffers.unsent.get(name)
            kept = self._sets.snapshot(words)
            if known is not None and name not in buffers.read_at_ghosts:
                # No phase has read it at ghosts so far, and maybe none will: marking
                # all rows saves the union in each superstep.
                kept = self._own
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
        values = _held(buffers, names)
        ghosts = self._transport.share(values, changed, self._sending)
        buffers.ghosts_came(names, ghosts)
        return ghosts


class EdgeGhosts:
    """The ghosts of edges that the kernels of a plan read.

    Parameters
    ----------
    plan : FoldPlan
    transport : EdgeTransport
    """

    def __init__(self, plan: FoldPlan, transport: EdgeTransport) -> None:
        self._halos = [halo.edges for halo in plan.facts.halos]
        self._read_early = {name for halo in self._halos for name in halo.reads_next}
        self._transport = transport
        #: Whether each phase sweeps changed edges only, and leaves the ``_next``
        #: entries of all others as they are.
        self._are_left = [phase.changed_only for phase in plan.phases]
        self._sending = Sending(plan.options.exchange)
        #: Whether each phase reads or writes entries that other ranks have.
        self.are_used = [any(vars(halo).values()) for halo in self._halos]
        #: Property -> edges that may have been written for the next superstep.
        self.written: dict[str, Marks] = {}

    def all(self) -> Marks:
        """Mark all own edges that other ranks have as ghosts."""
        return self._transport.all()

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Refresh the ghost entries that a phase reads, and empty its outboxes."""
        names = [n for n in self._halos[number].reads if n in buffers.unsent]
        send_unsent(self._transport, buffers, names, self._sending)
        for name, of, operation in self._halos[number].outboxes:
            empty_outbox(buffers.device, buffers.everywhere(name, of), operation)

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Refresh all ghosts of ``_next`` entries that a phase reads."""
        names = self._halos[number].reads_next
        if names:
            values = [buffers.held(name, buffers.next_of(name)) for name in names]
            others = [None] * len(values)
            self._transport.share(values, self._transport.all(), others, self._sending)

    def note(self, buffers: Buffers, number: int, sources: Words) -> None:
        """Record the entries that a phase writes, on out-edges and at twins."""
        halo = self._halos[number]
        for name, of, operation in halo.outboxes:
            outbox = buffers.held(of, buffers.everywhere(name, of))
            values = buffers.held(of, buffers.property(of))
            reached = self._transport.deliver(outbox, values, operation)
            buffers.unsent[of] = self._transport.marked(reached, buffers.unsent.get(of))
        if not (halo.writes or halo.writes_next):
            return
        out = everything = self._transport.out_of(sources)
        if self._are_left[number]:  # also edges that the phase does not sweep
            everything = self._transport.all()
        for known, names, marks in (
            (buffers.unsent, halo.writes, out),
            (self.written, halo.writes_next, everything),
        ):
            for name in names:
                self._add(known, name, marks)

    def announce(self, buffers: Buffers) -> None:
        """Record the committed entries whose values have changed as unsent."""
        written, self.written = self.written, {}
        for name, marks in written.items():
            # Ghosts read ahead by another phase may never have been committed.
            if name in self._read_early:
                changed = self._transport.all()
            else:
                changed = self._changed(buffers, name, marks)
            self._add(buffers.unsent, name, changed)

    def _add(self, known: dict[str, Marks], name: str, marks: Marks) -> None:
        """Add marks to those of a property."""
        before = known.get(name)
        known[name] = marks if before is None else self._transport.union(before, marks)

    def _changed(self, buffers: Buffers, name: str, marks: Marks) -> Marks:
        """Return the marked edges whose entries differ from those before the commit."""
        # The next buffer may lack the entries from before the commit.
        if isinstance(buffers.stale[name], str):
            return marks
        now = buffers.held(name, buffers.property(name))
        before = buffers.held(name, buffers.next[name])
        return self._transport.that_differ(marks, now, before)


def _held(buffers: Buffers, names: Sequence[str]) -> list[Values]:
    """Return the values of properties as a transport takes them."""
    return [buffers.held(name, buffers.property(name)) for name in names]


def _second_buffers(buffers: Buffers, names: Iterable[str]) -> list[Values | None]:
    """Return the next buffers of properties, None for those that have none."""
    return [
        buffers.held(name, buffers.next[name]) if name in buffers.next else None
        for name in names
    ]


def send_unsent(
    transport: EdgeTransport,
    buffers: Buffers,
    names: Sequence[str],
    sending: Sending = AS_FITS,
) -> None:
    """Send the unsent entries of some edge properties to other ranks."""
    if names:
        marks = reduce(transport.union, [buffers.unsent.pop(name) for name in names])
        others = _second_buffers(buffers, names)
        transport.share(_held(buffers, names), marks, others, sending)


Given = dict[str, Any]
#: The entries of a kernel, and its arguments.
Turn = tuple[Any, Given]
#: Whether each of the timed first supersteps is cut into pieces. Those that count take
#: turns, so that a load that changes meanwhile meets both kinds.
_TRIED = (False, False, True, True, False, True)
#: Cut or not -> the supersteps of `_TRIED` whose least time counts. The first one of
#: each kind does not: it compiles kernels, or makes the pieces.
_COUNTED = {False: (1, 4), True: (3, 5)}
#: The number of supersteps after which pieces are given up if they cannot pay: overlap
#: hides at most the shorter of sweep and time on the wire.
_LOOK_AT = 2
#: The least fraction of a superstep's time that pieces must save.
_LEAST_GAIN = 0.03


class Choice:
    """The choice whether sweeps are cut into pieces: fixed by an option, or measured.

    It is the same on all ranks.

    Parameters
    ----------
    choice : bool or "auto"
    engine : Engine

    Attributes
    ----------
    best : bool or None
        Whether pieces are faster; None until that has been measured.
    """

    def __init__(self, choice: bool | str, engine: Engine) -> None:
        self._fixed, self._engine = choice, engine
        self.best: bool | None = choice if isinstance(choice, bool) else None
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
        if self._fixed != "auto":
            return bool(self._fixed)
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
        """End the timing of a superstep, when all of its rows have arrived.

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
            times = np.array([self._seconds[-1], wire_s()])
            about = "seconds of a superstep, and of its rows in flight"
            whole, wire = self._engine.all_reduce(times, "max", about=about)
            if wire <= _LEAST_GAIN * whole:
                self.best = False
        elif known == len(_TRIED):
            took = np.array([min(self._seconds[i] for i in _COUNTED[c])
                             for c in (False, True)])  # fmt: skip
            about = "seconds of supersteps, whole and in pieces"
            whole, cut = self._engine.all_reduce(took, "max", about=about)
            self.best = bool(cut <= (1 - _LEAST_GAIN) * whole)


class Overlap:
    """Overlap of a sweep with the exchange of the rows that it commits.

    Parameters
    ----------
    plan : FoldPlan
    transport : Transport
    sets : VertexSets
    sending : Sending
    engine : Engine

    Attributes
    ----------
    came : words or None
        The ghosts whose rows have arrived during the current superstep, in the next
        buffers; None if rows are sent after the superstep.
    """

    def __init__(
        self,
        plan: FoldPlan,
        transport: Any,
        sets: VertexSets,
        sending: Sending,
        engine: Engine,
    ) -> None:
        self._transport, self._sets, self._sending = transport, sets, sending
        self._names, self._phase = plan.facts.sent_rows, plan.facts.split.phase
        # Later runs of the same kernels continue with the choice of earlier ones.
        choices = transport.boundary.choices
        if plan not in choices:
            choices[plan] = Choice(plan.options.overlap, engine)
        self._choice: Choice = choices[plan]
        self.came: Words | None = None
        #: Bytes of the rows of one vertex (-1: not computed yet), and whether the rows
        #: of some rank may fill a piece.
        self._row, self._may_fill = -1, False

    def pieces(
        self, buffers: Buffers, own: Any, frontier: Any, given: Given
    ) -> Iterator[Turn] | None:
        """Return the pieces of a phase's sweep; None to sweep it whole."""
        if own.number != self._phase:
            return None
        transport, self.came = self._transport, None
        self._choice.forget()
        # In place, rows that arrive would be read by pieces that are still to be swept.
        if frontier.in_place or self._choice.best is False or not transport.can_overlap:
            return None
        if self._row < 0:
            rows = self._rows(buffers)
            self._row = sum(v.dtype.itemsize * prod(v.shape[1:]) for v in rows)
            self._may_fill = transport.boundary.may_pay(self._row)
        transport.begin_wire()
        may_pay = self._may_fill and (
            frontier.all_due
            or are_many(frontier.active_count, buffers.state.graph.vertex_count)
        )
        if not self._choice.take(transport.clock, may_pay):
            return None
        return self._in_pieces(own, given, self._rows(buffers))

    def _rows(self, buffers: Buffers) -> list[Any]:
        """Return the buffers of the rows that a sweep commits."""
        return [buffers.held(name, buffers.next_of(name)) for name in self._names]

    def end(self) -> None:
        """End a superstep, when all rows have arrived."""
        self.came = None
        self._choice.end(
            self._transport.clock, lambda: float(self._transport.wire_s(self._row))
        )

    def _in_pieces(
        self, own: Any, given: Given, values: Sequence[Any]
    ) -> Iterator[Turn]:
        """Yield the launch of each piece; send a piece while the next one is swept."""
        pieces, sets = self._transport.boundary.pieces(self._row), self._sets
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
                    came.append(begun())
                # `found` has all vertices that the piece commits: those that passed an
                # earlier phase are due in this one, too.
                piece = Piece(pieces, number)
                begun = self._transport.begin(values, found, self._sending, piece)
            if begun is not None:
                came.append(begun())
        finally:
            self._transport.join()
        self.came = reduce(sets.union, came)
