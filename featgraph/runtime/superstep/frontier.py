"""The vertex sets of one superstep: its input, and the sets that phases have computed.

`Frontier` stores the sets. `Due` computes from them the vertices that a phase sweeps
(S4), `Restriction` and `LeftOut` apply ``.on``, and `Incremental` stores aggregates
that are kept between supersteps and patched with changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.program.active import word_count
from featgraph.program.state import State
from featgraph.runtime.devices.cpu_sweeps import CpuSets
from featgraph.runtime.devices.protocol import Device, DeviceGraph
from featgraph.runtime.memory.buffers import Buffers, ScalarsRead
from featgraph.runtime.superstep.exchange import Exchange

__all__ = ["Due", "Frontier", "Incremental", "LeftOut", "Restriction", "are_many"]


Words = Any


class Incremental:
    """Aggregates of a foldmap, with its ``.on``, that a run keeps and patches.

    In each superstep: `begin`, the kernels of the foldmap, `settle`.

    Attributes
    ----------
    stale : words
        Vertices whose aggregates must be recomputed from all edges.
    patched : words
        Vertices whose aggregates have been patched since they were last recomputed.
    changed : words or None
        The vertices that changed before the superstep in progress.
    due : words or None
        The vertices that the gathers of the superstep in progress run on.
    is_known : bool
        Whether the arrays hold aggregates of an earlier superstep.
    scalars : tuple or None
        The scalars that the gathers read in the last superstep.
    arrays : dict of str to array
        Field of `d` -> device memory of an aggregate, or of a copy of the property that
        the gathers read, as they last saw it.
    """

    def __init__(self, kernel: Kernel, state: State, device: Device) -> None:
        self.kernel = kernel
        self.state = state
        self.device = device
        self.stale: Words = None
        self.patched: Words = None
        self.changed: Words = None
        self.due: Words = None
        self.is_known = False
        self.scalars: tuple[Any, ...] | None = None
        self.arrays: dict[str, Any] = {}
        plan = kernel.plan
        gathers = [
            plan.incremental.gathers[n] for p in plan.phases for n in p.incremental
        ]
        #: Whether all patches are exact.
        self.is_exact = all(g.is_exact for g in gathers)
        #: Whether no aggregate changes once it has been computed.
        self.is_constant = all(g.is_constant for g in gathers)

    def forget(self) -> None:
        """Recompute all aggregates when they are next due."""
        self.is_known = False

    def begin(self, buffers: Buffers, changed: Words | None) -> bool:
        """Begin a superstep; return whether its kernels may patch aggregates.

        All aggregates become stale if the changes are unknown (None), or if a scalar
        that the gathers read has changed.
        """
        names = self.kernel.plan.facts.incremental_scalars
        scalars = ScalarsRead(self.state, names).read()
        holds = self.is_known and changed is not None and scalars == self.scalars
        if not holds:
            self._make_stale(buffers)
            changed = self.device.sets.empty(self.stale.size)
        self.changed, self.scalars = changed, scalars
        return holds

    def settle(self, buffers: Buffers) -> None:
        """Update the sets, and the copies of properties, after the last kernel.

        It must run before buffers swap: the current buffers still have the values that
        the gathers have read.
        """
        self.device.sets.settle(self.due, self.stale, self.patched)
        for kept in self._fields("seen"):
            self.device.sets.refresh_vertices(
                self.changed, self.arrays[kept.name], buffers.property(kept.of)
            )

    def recompute(self, words: Words) -> None:
        """Mark the aggregates of some vertices as stale."""
        self.stale = self.device.sets.union(self.stale, words)

    def _make_stale(self, buffers: Buffers) -> None:
        """Mark all aggregates as stale; allocate memory on the first call."""
        count = buffers.graph.vertex_count
        for kept in self._fields("incremental"):
            if kept.name not in self.arrays:
                shape = self.kernel.plan.item_shape(kept.of)
                memory = self.device.working_memory((count, *shape), kept.dtype)
                self.arrays[kept.name] = memory
        for kept in self._fields("seen"):
            current = buffers.property(kept.of)
            if kept.name not in self.arrays:
                made = self.device.empty(current.shape, kept.dtype)
                self.arrays[kept.name] = made
            self.device.copy(self.arrays[kept.name], current)
        self.stale = self.device.sets.empty(word_count(count))
        self.device.fill(self.stale, np.uint32(0xFFFFFFFF))
        self.patched = self.device.sets.empty(word_count(count))
        self.is_known = True

    def _fields(self, source: str) -> list[Any]:
        """Return the fields of `d` from a source: "incremental", or "seen" (copies)."""
        return [f for f in self.kernel.kernel_source.fields if f.source == source]


@dataclass(frozen=True, eq=False)
class Restriction:
    """The vertices that ``.on`` restricts a foldmap to.

    Attributes
    ----------
    words : words
        The vertices, as a set.
    find_listed : callable
        Returns an array of the vertices, made on the first call; None if there are too
        many, or if the set exists on a GPU only.
    """

    words: Words
    find_listed: Callable[[], Any]


class LeftOut:
    """Vertices that were due in a superstep of a run but are excluded by ``.on``.

    They stay due for a later call.

    Parameters
    ----------
    device : Device
    on : words
        The vertices that the foldmap is restricted to.

    Attributes
    ----------
    words : words or None
        The excluded vertices; None if there are none yet.
    """

    def __init__(self, device: Device, on: Words) -> None:
        self._device, self._on = device, on
        self.forget()

    def forget(self) -> None:
        """Drop the excluded vertices."""
        self.words: Words | None = None
        self._is_all = False

    def cut(self, due: Words) -> Words:
        """Return the due vertices that may run; add the others to `words`.

        The returned set is read-only.
        """
        device, on = self._device, self._on
        if isinstance(due, VertexSet):
            if not self._is_all:
                self.words, self._is_all = device.sets.without(due.words, on), True
            return on
        if self.words is None:
            self.words = device.sets.empty(due.size)
        return device.sets.leave_out(due, on, self.words)


def are_many(active_count: int | None, vertex_count: int) -> bool:
    """Whether half of all vertices are active: ranks then send rows during the sweep.

    Sending pieces of rows while the next piece is swept pays for long messages only.
    """
    return active_count is not None and 2 * active_count >= vertex_count


@dataclass(eq=False, slots=True)
class Frontier:
    """The input of one superstep, and its sets so far.

    Attributes
    ----------
    active : words or None
        The active set A; None for all vertices.
    all_due : bool
        Whether every vertex is due, as after a changed scalar.
    base : words or None
        Vertices that are due because of A; None until `Due` has computed them.
    some_due : bool
        Whether `base` is all vertices, from which the kernel itself selects the active
        ones and those with an active neighbor.
    also_due : words or None
        Further due vertices, such as those that ``.on`` excluded in an earlier call.
    active_count : int or None
        Upper bound of the number of vertices of A; None if it is unknown.
    only : Restriction or None
        The restriction of the foldmap.
    left_out : LeftOut or None
        Collects the due vertices that `only` excludes.
    incremental : Incremental or None
        The aggregates that the kernel patches, after `Incremental.begin`; None if it
        recomputes.
    tracks : bool
        Whether all vertices become due if a reduce gives another result than before.
    spreads : bool
        Whether asynchronous kernels may add vertices to the due set that they sweep.
    in_place : bool
        Whether kernels write to the current buffers, which requires that no vertex
        reads an entry that another vertex writes in the superstep.
    options : mapping
        Options of the call, some of which are arguments of kernels.
    passed, stopped : words or None
        The vertices on which the last function that ran returned True, and those on
        which one has returned False, if a later phase or the commit reads them.
    targets : words or None
        Targets of edges whose last function returned True.
    data : namedtuple or None
        The argument `d` of the next phases; None if it has to be built.
    """

    active: Words = None
    all_due: bool = False
    base: Words = None
    some_due: bool = False
    also_due: Words = None
    active_count: int | None = None
    only: Restriction | None = None
    left_out: LeftOut | None = None
    incremental: Incremental | None = None
    tracks: bool = False
    spreads: bool = True
    in_place: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    passed: Words = None
    stopped: Words = None
    targets: Words = None
    data: Any = None


class Due:
    """Computes the due sets of the phases of a plan on a graph.

    Parameters
    ----------
    plan : FoldPlan
    graph : DeviceGraph
    device : Device
    full : VertexSet
        All vertices that may be due: those that this rank owns.
    everyone : VertexSet
        All vertices that may be active: with the ghosts of this rank.
    exchange : Exchange
        Counts sets on all ranks, and finds the ghosts in them.
    """

    def __init__(
        self,
        plan: FoldPlan,
        graph: DeviceGraph,
        device: Device,
        full: VertexSet,
        everyone: VertexSet,
        exchange: Exchange,
    ) -> None:
        self._expands = plan.expands
        self._reads_foreign = plan.facts.reads_foreign
        self._graph = graph
        self._device = device
        self._full, self._everyone, self._exchange = full, everyone, exchange

    def _base(self, frontier: Frontier) -> Words:
        """Return the vertices that are due because of A.

        If functions read at computed vertices, all vertices are due unless A is empty.
        Otherwise these are A and the vertices that gather from it, or A alone if every
        gather has an edge function before it.
        """
        if frontier.base is None:
            active = frontier.active
            if frontier.all_due:
                frontier.base = self._full
            elif self._reads_foreign:
                count = frontier.active_count
                if count is None:  # a known count is 0 only for the empty set
                    count = self._exchange.count(active)
                frontier.base = self._full if count > 0 else active
            elif self._expands:
                frontier.base = self._expand(active, frontier, self._expands)
            else:
                frontier.base = active
        return frontier.base

    def _expand(
        self, words: Words, frontier: Frontier, alongs: tuple[str, ...] = ("in",)
    ) -> Words:
        """Return the union of a set and the vertices that gather from it.

        `alongs` are the edges of the gathers: "in", "out" or "both".
        """
        count = frontier.active_count if words is frontier.active else None
        device = self._device
        first, *others = alongs
        found = device.sets.expand(words, self._graph, count, first)
        for along in others:
            more = device.sets.expand(words, self._graph, count, along)
            found = device.sets.union(found, more)
        return found

    def widen(self, frontier: Frontier, flag: Any) -> None:
        """Make all vertices due for the remaining phases if a device flag is set.

        `flag` is the result of `VertexSets.differ`; the host does not read it.
        """
        sets, full, active = self._device.sets, self._full, frontier.active
        frontier.base = sets.all_if(flag, full, lambda: self._base(frontier))
        frontier.active = sets.all_if(flag, self._everyone, lambda: active)
        if frontier.active is not active:  # its size is known on the device only
            frontier.active_count = None

    def reached(self, frontier: Frontier) -> Words:
        """Return the vertices that A makes due, with those of `also_due`."""
        base, sets = self._base(frontier), self._device.sets
        if frontier.also_due is None or isinstance(base, VertexSet):
            return base
        due = sets.union(base, frontier.also_due)
        if isinstance(sets, CpuSets):  # few vertices are swept on the calling thread
            sets.look(due, self._graph)
        return due

    def vertices(self, frontier: Frontier) -> Words:
        """Return the vertices that the next vertex phase sweeps.

        They are those of `reached` and the targets of edges, without stopped vertices,
        ghosts, and vertices that ``.on`` excludes.
        """
        is_plain = frontier.only is None and frontier.stopped is None
        if is_plain and frontier.all_due:
            return self._full
        due = self.reached(frontier)
        is_all = isinstance(due, VertexSet)
        if is_all and is_plain:
            return due
        if frontier.targets is not None and not is_all:
            due = self._device.sets.union(due, frontier.targets)
        if frontier.stopped is not None:  # last: targets may have stopped, too
            due = self._device.sets.without(words_of(due), frontier.stopped)
        if self._everyone.has_ghosts:
            due = self._own(due)
        if frontier.left_out is not None:
            return frontier.left_out.cut(due)
        if frontier.only is None:
            return due
        on = frontier.only.words
        if isinstance(due, VertexSet):
            return on
        return self._device.sets.intersection(due, on)

    def active(self, frontier: Frontier) -> Words:
        """Return the vertices that count as active for edge functions and gathers."""
        if frontier.all_due:
            return self._everyone
        if not self._reads_foreign:
            return frontier.active
        base = self._base(frontier)
        return self._everyone if isinstance(base, VertexSet) else base

    def sources(self, phase: Phase, frontier: Frontier) -> Words:
        """Return the vertices whose out-edges the edge functions of a phase run on."""
        if phase.is_behind_vertices:
            return self._exchange.with_ghosts(frontier.passed)
        return self.active(frontier)

    def targeted(self, sources: Words, due: Words, frontier: Frontier) -> Words:
        """Return the union of `due` and the targets of the out-edges of `sources`."""
        if isinstance(due, VertexSet):
            return due
        found = self._expand(sources, frontier)
        if due is not sources:
            found = self._device.sets.union(found, due)
        return self._own(found) if self._everyone.has_ghosts else found

    def _own(self, words: Words) -> Words:
        """Return a set without ghosts, which may not be due on this rank."""
        if isinstance(words, VertexSet):
            return words
        return self._device.sets.intersection(words, self._full.words)
