"""Which vertices and edges are due in a superstep (S4)."""

from __future__ import annotations

from functools import reduce
from typing import Any

from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.runtime.devices.protocol import Device, DeviceGraph
from featgraph.runtime.superstep.exchange import Exchange
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["Due"]

#: A bitvector, or a `VertexSet`.
Words = Any


class Due:
    """Finds the due sets of a plan on a graph.

    Parameters
    ----------
    plan : FoldPlan
    graph : DeviceGraph
    device : Device
    full : VertexSet
        All vertices that may be due.
    everyone : VertexSet
        All that may be active: on several ranks, ghosts are, too.
    exchange : Exchange
        Counts sets on all ranks, and tells which ghosts are in them.
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
        """Return A, A with the vertices that gather from it, or all."""
        if frontier.base is None:
            active = frontier.active
            if frontier.all_due:
                frontier.base = self._full
            elif self._reads_foreign:
                count = frontier.active_count
                if count is None:  # else it is 0 for the empty set alone
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
        """Return a set with the vertices that gather from it, along some edges."""
        count = frontier.active_count if words is frontier.active else None
        device = self._device
        found = [device.sets.expand(words, self._graph, count, a) for a in alongs]
        return reduce(device.sets.union, found)

    def widen(self, frontier: Frontier, flag: Any) -> None:
        """Have everything due in what comes yet, if a flag of `differ` is set."""
        sets, full, active = self._device.sets, self._full, frontier.active
        frontier.base = sets.all_if(flag, full, lambda: self._base(frontier))
        frontier.active = sets.all_if(flag, self._everyone, lambda: active)
        if frontier.active is not active:  # how many they are, only the device knows
            frontier.active_count = None

    def reached(self, frontier: Frontier) -> Words:
        """Return what A makes due, and what is due besides."""
        base = self._base(frontier)
        if frontier.also_due is None or isinstance(base, VertexSet):
            return base
        return self._device.sets.union(base, frontier.also_due)

    def vertices(self, frontier: Frontier) -> Words:
        """Return the vertices that run next: reached, or targets, and not stopped."""
        due = self.reached(frontier)
        is_all = isinstance(due, VertexSet)
        if is_all and frontier.only is None and frontier.stopped is None:
            return due
        if frontier.targets is not None and not is_all:
            due = self._device.sets.union(due, frontier.targets)
        if frontier.stopped is not None:
            due = self._device.sets.without(words_of(due), frontier.stopped)
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
        """Return A, as edge functions and gathers from active vertices see it."""
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
        """Return due vertices, and the targets of the out-edges of `sources`."""
        if isinstance(due, VertexSet):
            return due
        found = self._expand(sources, frontier)
        if due is not sources:
            found = self._device.sets.union(found, due)
        return self._own(found)

    def _own(self, words: Words) -> Words:
        """Return those of a set that may be due."""
        if isinstance(words, VertexSet) or not self._everyone.has_ghosts:
            return words
        return self._device.sets.intersection(words, self._full.words)
