"""Rows of vertices that other ranks own: when they are sent, and what of them.

What was written waits at its owner until a phase reads it at a neighbor, and is sent
before that phase; what a superstep commits and its own kernels read goes with the bits
that tell other ranks which vertices it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.protocol import Array, VertexSets
from featgraph.runtime.memory.buffers import ALL, Buffers

__all__ = ["RankGhosts"]

Words = Any


class RankGhosts:
    """The ghosts that the kernels of a plan read: see `Ghosts`.

    Parameters
    ----------
    plan : FoldPlan
    send : callable
        ``send(arrays, changed)`` hands rows of changed vertices to the ranks that have
        them as ghosts, and returns the ghosts that have come: `RankExchange.share`.
    collect : callable
        ``collect(array, mirror)`` fills a mirror with the rows of all ranks.
    own : words
        The vertices of this rank.
    sets : VertexSets
    """

    def __init__(
        self,
        plan: FoldPlan,
        send: Callable[[Sequence[Array], Words], Words],
        collect: Callable[[Array, Array], None],
        own: Words,
        sets: VertexSets,
    ) -> None:
        self._halos, self._send, self._collect = plan.facts.halos, send, collect
        self._own, self._sets = own, sets
        signature = plan.analysis.signature
        written = [
            name
            for name in plan.facts.writes_next
            if signature[name].kind is PropertyKind.VERTEX
        ]
        read = {name for halo in self._halos for name in halo.reads}
        ahead = {name for halo in self._halos for name in halo.reads_next}
        #: Committed properties that go with the bits, and those that wait.
        self._sent = [n for n in written if n in read and n not in ahead]
        self._waiting = [n for n in written if n not in self._sent]
        #: Properties of which a phase has had rows that were not committed yet.
        self._ahead = ahead

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Bring rows up to date that a phase reads."""
        names = [n for n in self._halos[number].reads if n in buffers.unsent]
        if names:
            changed = reduce(self._sets.union, [buffers.unsent.pop(n) for n in names])
            self._share(buffers, names, changed)
        for name in self._halos[number].mirrors:
            self._collect(buffers.property(name), buffers.mirror(name))

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Bring ``_next`` rows up to date that a phase reads: all of them."""
        names = self._halos[number].reads_next
        if names:
            self._send([buffers.next_of(n) for n in names], self._own)

    def note(self, buffers: Buffers, number: int, due: Words) -> None:
        """Remember what a phase has written in place, on due vertices."""
        self._wait(buffers, self._halos[number].writes, due)

    def announce(self, buffers: Buffers, committed: Words) -> Words:
        """Tell what was committed; return that with the ghosts that were, too."""
        for name in self._waiting:
            # What another phase has had of it may never have been committed.
            self._wait(buffers, [name], self._own if name in self._ahead else committed)
        ghosts = self._share(buffers, self._sent, committed)
        return self._sets.union(committed, ghosts)

    def _wait(self, buffers: Buffers, names: Sequence[str], words: Words) -> None:
        for name in names:
            known = buffers.unsent.get(name)
            kept = self._sets.snapshot(words)
            is_new = known is None
            buffers.unsent[name] = kept if is_new else self._sets.union(known, kept)

    def _share(self, buffers: Buffers, names: Sequence[str], changed: Words) -> Words:
        """Send rows of changed vertices; return the ghosts that have come."""
        arrays = [buffers.property(name) for name in names]
        ghosts = self._send(arrays, changed)
        for name in names:  # the other buffer has what they were
            stale = buffers.stale.get(name, ALL)
            if stale is None:
                buffers.stale[name] = ghosts
            elif not isinstance(stale, str):
                buffers.stale[name] = self._sets.union(stale, ghosts)
        return ghosts
