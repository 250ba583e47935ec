"""One superstep: the phases of a plan, the due sets between them, and the commit.

The protocol is that of docs/design/0001-architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from featgraph.errors import GraphInputError, StateError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import Phase
from featgraph.program.active import word_count
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import ALL, buffers_of
from featgraph.runtime.superstep.kept import Kept
from featgraph.runtime.superstep.left_out import LeftOut
from featgraph.runtime.superstep.stale import StaleEntries

__all__ = ["Outcome", "Superstep", "full_words"]

Words = Any
#: Phases that announce nothing.
SILENT = {"reduce", "triangle"}


@dataclass
class Outcome:
    """What a superstep did.

    Attributes
    ----------
    active_out : words
        Committed vertices, and targets of edges where the foldmap tells them; these
        alone where it ends in edge functions.
    """

    active_out: Words


#: Sizes of graphs whose sets of all vertices are kept.
_MOST_FULL_SETS = 16


def full_words(device: Device, vertex_count: int) -> Words:
    """Return the bitvector of all vertices; do not write it, others have it, too."""
    known = device.full_sets.get(vertex_count)
    if known is not None:
        return known
    words = np.full(word_count(vertex_count), 0xFFFFFFFF, np.uint32)
    tail = vertex_count % 32
    if tail:
        words[-1] = (1 << tail) - 1
    if len(device.full_sets) >= _MOST_FULL_SETS:
        device.full_sets.clear()
    device.full_sets[vertex_count] = uploaded = device.upload(words)
    return uploaded


class Superstep(StaleEntries):
    """Runs supersteps of one kernel on one state.

    Parameters
    ----------
    on : words or None
        The vertices that the foldmap is restricted to.
    find_listed : callable or None
        Gives a list of those vertices, or None where they are too many for one.

    Attributes
    ----------
    left_out : LeftOut or None
        What `on` has left out.
    """

    def __init__(
        self,
        kernel: Kernel,
        state: State,
        device: Device,
        on: Words | None,
        find_listed: Callable[[], Any] | None = None,
    ) -> None:
        full = full_words(device, state.graph.vertex_count)
        super().__init__(kernel, state, device, full if on is None else on)
        self.on, self.find_listed = on, find_listed
        self.full = full
        self.left_out = None if on is None else LeftOut(device, on, full)
        #: Whether kernels that can may add to the due vertices.
        self.spreads = True
        self.reads_foreign = self.plan.facts.reads_foreign
        _check_state(kernel, state)

    def run(
        self,
        active: Words | None,
        *,
        all_due: bool = False,
        track: bool = False,
        kept: Kept | None = None,
        due: Words | None = None,
        also_due: Words | None = None,
        active_count: int | None = None,
    ) -> Outcome:
        """Run one superstep.

        Parameters
        ----------
        active : words or None
            A; None for all vertices.
        all_due : bool
            Every vertex is due, as after a changed scalar.
        track : bool
            Make everything due where a reduce gives another value than the State has.
        kept : Kept or None
            The aggregates that the kernel keeps, if it keeps any; `begin` was called.
        due : words or None
            The due vertices, where that is not for A to say.
        also_due : words or None
            Vertices that are due besides.
        active_count : int or None
            About how many vertices A has, if that is known.
        """
        self.buffers = buffers_of(self.state, self.device)
        sets = SimpleNamespace(
            active=self.full if active is None else active,
            base=due, also_due=also_due,
            passed=None, stopped=None, targets=None,
            all_due=all_due or active is None, track=track, kept=kept,
            active_count=active_count,
        )  # fmt: skip
        self.forget_touched()
        try:
            self.extra = kept.arrays if kept is not None else {}
            for number, phase in enumerate(self.plan.phases):
                self._phase(number, phase, sets)
            if kept is not None:
                kept.settle(self.buffers)
        except BaseException:
            # The next buffers may hold what was never committed, or the current ones.
            touched = self.committed if self.in_place else self.touched
            self.buffers.stale.update(dict.fromkeys(touched, ALL))
            if kept is not None:
                kept.forget()
            raise
        self.commit(sets.passed)
        told = [p.kind for p in self.plan.phases if p.kind not in SILENT]
        if told and told[-1] == "edge":
            return Outcome(sets.targets)
        out = self._empty_words() if sets.passed is None else sets.passed
        return Outcome(_told(self, out, sets))

    def beside(self, kernel: Kernel) -> Superstep:
        """Return what runs another kernel, in turn; neither commits in place."""
        made = Superstep(kernel, self.state, self.device, self.on, self.find_listed)
        made.left_out = self.left_out
        return made

    # -- sets

    def _empty_words(self) -> Words:
        return self.device.empty_words(word_count(self.graph.vertex_count))

    def _base(self, sets: Any) -> Words:
        """Return A, A and its readers, or all: due but for targets and stops."""
        if sets.base is None:
            if sets.all_due:
                sets.base = self.full
            elif self.reads_foreign:
                anything = self.device.count(sets.active) > 0
                sets.base = self.full if anything else sets.active
            elif self.plan.expands:
                sets.base = _expand(self, sets.active, sets, self.plan.expands)
            else:
                sets.base = sets.active
        return sets.base

    def _reached(self, sets: Any) -> Words:
        """Return what A makes due, and what is due besides."""
        base = self._base(sets)
        if sets.also_due is None or base is self.full:
            return base
        return self.device.words_or(base, sets.also_due)

    def _due(self, sets: Any) -> Words:
        due = self._reached(sets)
        if sets.targets is not None:
            due = self.device.words_or(due, sets.targets)
        if sets.stopped is not None:
            due = self.device.words_without(due, sets.stopped)
        return due if self.left_out is None else self.left_out.cut(due)

    # -- phases

    def _phase(self, number: int, phase: Phase, sets: Any) -> None:
        arguments: dict[str, Any] = {"vertex_count": self.graph.vertex_count}
        if phase.kind == "reduce":
            self.freshen(phase, self.full)
            self.reduce(number, phase, sets, arguments)
            return
        if phase.kind == "edge":
            self._edges(number, phase, sets, arguments)
            return
        if phase.pulls_edges:
            self._pull(number, phase, sets, arguments)
            return
        if phase.kind == "triangle":
            self._triangles(number, phase, sets, arguments)
            return
        due = self._due(sets)
        self.freshen(phase, due)
        arguments["due"] = due
        everything = sets.all_due or due is self.full
        arguments["active_count"] = None if everything else sets.active_count
        arguments["active_sources"] = self._active(sets)
        if phase.keeps:
            arguments["changed_sources"] = sets.kept.changed
            arguments["stale"] = sets.kept.stale
            sets.kept.due = due
        if phase.spreads:
            arguments["allowed"] = self.full if self.on is None else self.on
            # These two sets are shared; any other was made here.
            own = due is not self.full and due is not self.on
            arguments["spreads"] = self.spreads and own
        if phase.kind == "push":
            self.fill_pushed(phase)
            self.launch(number, arguments)
            passed = due
        else:
            passed = self._empty_words()
            arguments["passed"] = passed
            self.launch(number, arguments)
        _settle(self, number, sets, due, passed)

    def _edges(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        sources = self._sources(number, sets)
        # A later edge phase leaves out the edges that an earlier one has stopped.
        first = not any(p.kind == "edge" for p in self.plan.phases[:number])
        self.freshen(phase, sources if first else self._empty_words())
        arguments["sources"] = sources
        if sources is sets.active and sources is not self.full:
            arguments["active_count"] = sets.active_count
        arguments["targets"] = sets.targets = self._empty_words()
        several = any("edge_state" in e.arguments for e in self.kernel.entries)
        if several:
            arguments["edge_state"] = self.edge_state(number)
        self.remember_sources(phase, sources)
        self.launch(number, arguments)
        if several:
            sets.targets = self.device.targets(
                arguments["edge_state"], self.buffers.graph
            )

    def _triangles(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        """Run a triangle function: on triangles of edges, or of vertices (S4)."""
        self.freshen(phase, self.full)
        if phase.from_edges:
            arguments["edge_state"] = self.edge_state(number)
        else:
            arguments["active"] = sources = self._sources(number, sets)
            arguments["all_active"] = sources is self.full
        self.launch(number, arguments)

    def _sources(self, number: int, sets: Any) -> Words:
        """Return whose out-edges the edge functions of a phase run on (S4)."""
        if self.plan.phases[number].is_behind_vertices:
            return sets.passed
        return self._active(sets)

    def _active(self, sets: Any) -> Words:
        """Return A, as edge functions and gathers from active vertices see it."""
        if sets.all_due:
            return self.full
        return self._base(sets) if self.reads_foreign else sets.active

    def _pull(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        """Run a vertex phase whose edge functions run along in-edges.

        It sweeps the vertices that are due in any case, and the targets of the sources:
        whether those are due, the kernel finds out.
        """
        device = self.device
        sources, due = self._sources(number, sets), self._reached(sets)
        swept = due
        if sources is self.full or self.pulls_all(sets.active_count):
            swept = self.full
        elif due is not self.full:
            swept = _expand(self, sources, sets)
            if due is not sources:
                swept = device.words_or(swept, due)
        allowed = self.full if self.on is None else self.on
        if sets.stopped is not None:
            allowed = device.words_without(allowed, sets.stopped)
        if allowed is not self.full:
            due = device.words_and(due, allowed)
        self.freshen(phase, swept, sources)
        self.remember_sources(phase, sources)
        arguments["active_sources"] = self._active(sets)
        sets.targets, passed = self._empty_words(), self._empty_words()
        if swept is not self.full:
            arguments["active_count"] = sets.active_count
        arguments |= {
            "swept": swept, "due": due, "allowed": allowed, "sources": sources,
            "all_sources": sources is self.full, "targets": sets.targets,
            "passed": passed,
        }  # fmt: skip
        self.launch(number, arguments)
        _settle(self, number, sets, self._due(sets), passed)


def _told(step: Superstep, committed: Words, sets: Any) -> Words:
    """Return the active set behind a superstep that has committed some vertices."""
    if step.plan.facts.tells_targets:
        return step.device.words_or(committed, sets.targets)
    return committed


def _settle(step: Superstep, number: int, sets: Any, due: Words, passed: Words) -> None:
    """Update which vertices passed and stopped, as far as later phases need it."""
    device = step.device
    later = any(p.kind != "reduce" for p in step.plan.phases[number + 1 :])
    first = sets.passed is None
    if first and not later:
        sets.passed = passed
        return
    stopped = device.words_without(due, passed)
    kept = passed
    if not first:
        kept = device.words_or(device.words_without(sets.passed, stopped), passed)
    sets.passed = kept
    sets.stopped = (
        stopped if sets.stopped is None else device.words_or(sets.stopped, stopped)
    )


def _expand(
    step: Superstep, words: Words, sets: Any, alongs: tuple[str, ...] = ("in",)
) -> Words:
    """Return a set and the vertices that gather from it, along any of some edges."""
    count = sets.active_count if words is sets.active else None
    graph, device = step.buffers.graph, step.device
    found = [device.expand(words, graph, count, along) for along in alongs]
    return reduce(device.words_or, found)


def _check_state(kernel: Kernel, state: State) -> None:
    """Refuse what only the graph can tell."""
    facts = kernel.plan.facts
    if facts.triangles_at:
        try:
            _ = state.graph.oriented
        except GraphInputError as error:
            raise StateError(
                error.what,
                where=f"{facts.triangles_at}: {error.where or 'graph'}",
                got=error.got,
                expected=error.expected,
                fix=error.fix,
            ) from error
    operation, where = facts.twins_at
    if operation and state.graph.directed:
        raise StateError(
            f"fg.{operation} needs an undirected graph",
            where=where,
            got="a directed graph",
            fix="build the graph with directed=False",
        )
