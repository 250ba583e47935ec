"""Stale entries of next buffers, and their refresh before a phase reads them.

The buffers of an iterated property swap after a superstep. The new next buffer then
differs from the current one at the committed entries. docs/design/0001-architecture.md
describes this protocol.
"""

from __future__ import annotations

from typing import Any

from featgraph.fold.plan.plan import Phase
from featgraph.fold.printing.module import KernelSource
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.program.signature import PropertyKind, Signature
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import ALL, Buffers, copy_values, note_written

__all__ = ["StaleEntries"]

Array = Any
#: A bitvector, or a `VertexSet`.
Words = Any


class StaleEntries:
    """Refreshes the next buffers that the phases of a kernel access.

    Parameters
    ----------
    source : KernelSource
        The kernel.
    signature : Signature
        Types of the State's properties.
    device : Device
    has_ghosts : bool
        Whether buffers have rows of vertices that other ranks own: no phase writes
        those.
    """

    def __init__(
        self,
        source: KernelSource,
        signature: Signature,
        device: Device,
        has_ghosts: bool,
    ) -> None:
        self._has_ghosts = has_ghosts
        self._forwarded = source.forwarded
        self._commits_in_kernel = source.plan.options.asynchronous
        self._written = source.plan.facts.writes_next
        self._of_vertices = frozenset(
            name for name, t in signature.items() if t.kind is PropertyKind.VERTEX
        )
        self._of_edges = [n for n in self._written if n not in self._of_vertices]
        self._device = device
        #: Properties that phases of the superstep in progress have accessed.
        self._touched: set[str] = set()
        #: Edge property -> the sources of the edges at which it was written.
        self._sources: dict[str, Words] = {}
        self._in_place = False

    def begin(self, in_place: bool = False) -> None:
        """Begin a superstep, in which nothing has been refreshed or written yet.

        With `in_place`, kernels write to the current buffers.
        """
        self._touched, self._sources, self._in_place = set(), {}, in_place

    def remember_sources(self, phase: Phase, sources: Words) -> None:
        """Store the sources of the edges whose next entries a phase writes."""
        for name in phase.writes_next:
            if name not in self._of_vertices:
                known, words = self._sources.get(name), words_of(sources)
                self._sources[name] = (
                    words if known is None else self._device.sets.union(known, words)
                )

    def leave_to_kernel(self, buffers: Buffers, phase: Phase) -> None:
        """Leave the refresh of edge entries to a kernel that finds the stale ones.

        For all later phases they are stale everywhere.
        """
        for name, _ in phase.touches_next:
            buffers.next_of(name)
            buffers.stale[name] = None
            self._touched.add(name)
        self._sources |= dict.fromkeys(phase.writes_next, ALL)

    def freshen(
        self, buffers: Buffers, phase: Phase, swept: Words, sources: Words = None
    ) -> None:
        """Refresh the next entries that a phase reads, and those it does not write.

        It writes edges out of `sources`, or of `swept` if that is None. Phases access
        ghosts only to read them; otherwise the refresh of stale ghosts waits until it
        is known which of them are received anyway.
        """
        if self._in_place:
            return
        for name, reads in phase.touches_next:
            if name in self._touched:
                continue
            of_vertices = sources is None or name in self._of_vertices
            if name in self._forwarded and not self._has_ghosts:
                # The kernel writes all in-edges of all vertices.
                of_vertices = of_vertices or isinstance(swept, VertexSet)
            written = swept if of_vertices else sources
            is_all, has_dead = isinstance(written, VertexSet), False
            if is_all:
                has_dead = written.has_dead and name in self._of_vertices
                is_all, written = not written.has_ghosts, written.words
            self._touched.add(name)
            next_ = buffers.next.get(name)
            if next_ is None:
                next_ = buffers.next_of(name)
            stale = buffers.stale.get(name, ALL)
            is_whole = stale is written or (is_all and not self._has_ghosts)
            if has_dead:  # no phase writes their entries
                is_whole = False
            elif not (is_whole or isinstance(stale, str)):
                is_whole = of_vertices and is_all
            # Drops the last reference to that set, whose memory is reused.
            buffers.stale[name] = None
            ghosts = buffers.stale_ghosts.pop(name, None)
            if ghosts is not None and not isinstance(stale, str):
                if reads or self._commits_in_kernel:
                    self._refresh(buffers, name, ghosts, None)
                else:
                    buffers.late_ghosts[name] = ghosts
            if stale is None or (not reads and is_whole):
                continue
            if isinstance(stale, str):
                copy_values(buffers, next_, buffers.property(name))
            else:
                self._refresh(buffers, name, stale, None if reads else written)

    def _refresh(
        self, buffers: Buffers, name: str, words: Words, without: Words | None
    ) -> None:
        device = self._device
        next_, current = buffers.next[name], buffers.current[name]
        if name in self._of_vertices:
            device.sets.refresh_vertices(words, next_, current, without)
            return
        if without is not None:
            words = device.sets.without(words, without)
        device.sets.refresh_edges(words, next_, current, buffers.graph)

    def restore(self, buffers: Buffers, name: str, words: Words, kept: Words) -> None:
        """Restore the rows of vertices in `words` that are not in `kept`.

        They are not to be committed.
        """
        self._refresh(buffers, name, words, kept)

    def restore_edges(self, buffers: Buffers, name: str, edge_state: Array) -> None:
        """Restore the entries of edges that were stopped."""
        current, next_ = buffers.property(name), buffers.next_of(name)
        self._device.rows.copy_marked(edge_state, current, next_)

    def commit(self, buffers: Buffers, passed: Words | None) -> None:
        """Swap the buffers of all written properties.

        Committed entries are stale in the next buffers: the vertices of `passed`, and
        all edges on which edge functions have run. A kernel that commits itself writes
        both buffers.
        """
        if self._commits_in_kernel:  # both buffers are equal
            buffers.end_in_place(dict.fromkeys(self._written))
        elif self._in_place:
            buffers.end_in_place(dict.fromkeys(self._written, ALL))
        else:
            sources, self._sources = self._sources, {}
            stale = dict.fromkeys(self._written, passed)
            for name in self._of_edges:
                stale[name] = sources.get(name)
            buffers.swap(stale)

    def repeat(self, buffers: Buffers, in_place: bool) -> None:
        """End a superstep that the device has repeated without the host.

        The entries that it committed are unknown, so that all become stale.
        """
        everywhere = dict.fromkeys(self._written, ALL)
        if self._commits_in_kernel or in_place:
            buffers.end_in_place(everywhere)
        else:
            buffers.swap(everywhere)

    def fail(self, buffers: Buffers) -> None:
        """End a superstep that failed before its commit.

        The buffers that it wrote may have values that were never committed.
        """
        touched = self._written if self._in_place else self._touched
        note_written(buffers, touched)
        buffers.late_ghosts.clear()
        buffers.mirrored.clear()
        buffers.stale.update(dict.fromkeys(touched, ALL))
