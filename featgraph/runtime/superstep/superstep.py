"""Supersteps of a kernel on a State: the phases of a plan in order, then the commit.

A `Superstep` belongs to one kernel, one State and one device. Its `run` goes through
the phases: it finds the vertices of each phase, refreshes stale and remote entries,
launches the kernels, and updates the vertex sets of the `Frontier`. Then the buffers of
iterated properties swap. `kinds` has the functions that prepare and finish a phase of
each kind. Begin with `Superstep.run`; docs/design/0001-architecture.md describes the
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.activity import ACTIVITY
from featgraph.base.errors import GraphInputError, PlanError, StateError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.traits import REVERSED, backward_edge
from featgraph.graph import Graph
from featgraph.graph.views.view import Stamp, words_of
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import advance_clock
from featgraph.runtime.superstep.bound import (
    BoundPhase,
    BoundState,
    explained,
    raise_fault,
)
from featgraph.runtime.superstep.frontier import Frontier, Restriction
from featgraph.runtime.superstep.kinds import Given, functions_for

__all__ = ["Superstep"]

Words = Any


class Superstep:
    """Supersteps of one kernel on one State.

    One object runs all supersteps; values of a single one are in its `Frontier`. The
    reference to the State is weak. After the State has been deleted, the object runs
    another State of the same types on the same graph.

    Parameters
    ----------
    kernel : Kernel
    state : State
    device : Device

    Attributes
    ----------
    bound : BoundState
        The State, bound to the kernel.
    phases : tuple of BoundPhase
    is_prepared : bool
        Whether the schedule of any phase prepares arrays before launches.
    made_for : (int, Stamp, Stamp) or None
        The version of the State's types, and shape and version of its graph, for which
        kernel and values of edges have been checked.

    Raises
    ------
    StateError
        If a function reads the reverse of an edge and the graph is directed, or lists
        triangles and the graph cannot be oriented.
    PlanError
        If the kernel cannot run on several ranks, or a schedule needs a graph with two
        sides.
    """

    def __init__(self, kernel: Kernel, state: State, device: Device) -> None:
        _check_graph(kernel, state)
        self.kernel = kernel
        self.plan = kernel.plan
        self.device = device
        self.made_for: tuple[int, Stamp, Stamp] | None = None
        #: Traits of kernel and graph that `loops.foldmap_run` computes and caches here.
        self.traits: Any = None
        #: Another kernel of the foldmap -> the State, bound to that kernel.
        self._others: dict[Kernel, BoundState] = {}
        self._bind(state)
        self._is_checked = self.plan.options.checked
        # The last phase that makes vertices due determines which set is returned.
        ends = [p.kind.ends for p in self.plan.phases if p.kind.reports_due]
        self._ends = ends[-1] if ends else {"passed"}
        has_targets = self._ends != {"passed"}
        self._reports_targets = has_targets or self.plan.facts.tells_targets

    def _bind(self, state: State) -> None:
        """Bind the kernel to the State and its graph."""
        bound, count = (
            BoundState(self.kernel, state, self.device),
            len(self.plan.phases),
        )
        phases = tuple(BoundPhase(bound, number) for number in range(count))
        steps = [(own, *functions_for(own.phase)) for own in phases]
        self.is_prepared = any(own.is_prepared for own in phases)
        # An interrupt comes before all of these, or behind them.
        self.bound, self.phases, self._steps = bound, phases, steps

    def take_up(self, state: State) -> None:
        """Continue with another State of the same types on the same graph."""
        if not self.bound.take_up(state):  # arrays of the graph have moved
            self._bind(state)

    def renew(self, made_for: tuple[int, Stamp, Stamp]) -> None:
        """Store the versions of types and graph that the kernel has been checked for.

        The cached traits hold for one shape of the graph, and are dropped with it.
        """
        if self.made_for is None or made_for[1] is not self.made_for[1]:
            self.traits = None
        self.made_for = made_for

    def make_ready(self, options: Mapping[str, Any]) -> None:
        """Prepare the arrays that schedules need in a call with some options.

        This is done before the first superstep, since a recording of a superstep must
        contain no preparation.
        """
        for own in self.phases:
            if own.is_prepared:
                self.bound.arrive()
                own.find_own(self.bound, options)

    def bound_for(self, kernel: Kernel) -> BoundState:
        """Return the State, bound to another kernel of the foldmap."""
        state, known = self.bound.state, self._others.get(kernel)
        if known is None or not known.works_on(state):
            known = self._others[kernel] = BoundState(kernel, state, self.device)
        return known

    def let_go(self) -> None:
        """Give this object to the graph for its next State, if the State is deleted."""
        if self.bound.let_go():
            for other in self._others.values():
                other.let_go()
            self.bound.graph.idle.give((self.kernel, self.device), self)

    def run(self, frontier: Frontier | None = None) -> Words:
        """Run one superstep.

        Parameters
        ----------
        frontier : Frontier, optional
            The input, updated in place. By default, all vertices are active.

        Returns
        -------
        words
            The next active set: the committed vertices, with the targets of edges if
            the foldmap reports these; only the targets if it ends in edge functions.
        """
        frontier, bound = frontier or Frontier(), self.bound
        buffers, graph = bound.arrive(), bound.graph
        moved = buffers.graph is not graph or graph.stamps is not bound.stamps
        if moved and not bound.fits(buffers):
            self._bind(bound.state)
            bound = self.bound
        device, ghosts = self.device, bound.ghosts
        if frontier.active is None:
            frontier.active, frontier.all_due = bound.full, True
        bound.stale.begin(frontier.in_place)
        # The entry in progress: an error of its launch is explained by its kernel.
        launched, superstep = None, bound.find_state().superstep
        try:
            for own, prepare, finish in self._steps:
                ACTIVITY.superstep, ACTIVITY.phase = superstep, own.name
                if ACTIVITY.page is not None:
                    ACTIVITY.show()
                if ghosts is not None:
                    ghosts.refresh(buffers, own.number)
                given = prepare(bound, own, frontier)
                if ghosts is not None:
                    ghosts.refresh_next(buffers, own.number)
                    if own.reads_results:
                        bound.exchange.settle()
                fault = self._begin_checks() if self._is_checked else None
                if frontier.data is None:  # of the first phase, or a result has moved
                    frontier.data = bound.data(frontier, fault)
                given["d"], form = frontier.data, "plain"
                if own.takes_own:
                    given |= own.find_own(bound, frontier.options)
                if own.has_forms:
                    count = given.get("active_count")
                    form = own.frontier_form(count, frontier.only)
                if form == "listed" and frontier.only is not None:
                    given["listed"] = frontier.only.find_listed()
                if own.is_whole:
                    for launched in own.in_form.get(form) or own.entries(form):
                        device.launch(launched, given)
                else:
                    for entries, given_now in self._parts(own, frontier, given, form):
                        for launched in entries(form):
                            device.launch(launched, given_now)
                launched = None
                if fault is not None:
                    sites = self.kernel.kernel_source.sites
                    found = np.array(device.download(fault))
                    raise_fault(sites, *bound.exchange.first_fault(found))
                if bound.sliced is not None:
                    bound.sliced.note_written()
                finish(bound, own, frontier, given)
                if ghosts is not None:
                    vertices = given.get("swept", given.get("due"))
                    sources = given.get("sources")
                    ghosts.note(buffers, own.number, vertices, sources)
                del given  # unused sets go back to their pool
            if frontier.incremental is not None:
                frontier.incremental.settle(buffers)
        except BaseException as error:
            bound.stale.fail(buffers)
            bound.exchange.forget()
            if frontier.incremental is not None:
                frontier.incremental.forget()
            if bound.sliced is not None:
                bound.sliced.fail()
            if launched is None:
                raise
            raised = explained(launched.kernel, launched.entry.name, error)
            if raised is error:
                raise
            raise raised from error
        if buffers.clock is not None:  # equals `State.superstep`, which commits advance
            advance_clock(buffers, buffers.clock)
        bound.stale.commit(buffers, frontier.passed)
        active = frontier.passed
        if self._reports_targets or active is None:
            active = self._active_after(frontier)
        if ghosts is None:
            return active
        return ghosts.announce(buffers, frontier.passed, active)

    def count_edges(self, frontier: Frontier) -> int:
        """Return the number of edges that the gathers of a superstep combine over."""
        alongs = [gather.along for gather in self.plan.facts.gathers]
        if frontier.all_due or frontier.active is None:
            return len(alongs) * self.bound.state.graph.edge_count
        graph, words = self.bound.arrive().graph, frontier.active
        if self.plan.facts.direction == "push":
            alongs = [REVERSED[along] for along in alongs]
        elif alongs:
            words = words_of(self.bound.due.vertices(frontier))
        return sum(self.device.sets.edges_of(words, graph, a) for a in alongs)

    def _parts(
        self, own: BoundPhase, frontier: Frontier, given: Given, frontier_form: str
    ) -> Any:
        """Return the parts of a phase, each as a function and arguments.

        The function takes a frontier form and returns the entries to launch. A part is
        a batch of rows (triangles on ranks), the words of a reduce in a tree, a slice
        of edges in host memory, or vertices whose rows are sent to other ranks during
        the next part. Other phases have a single part.
        """
        bound, ghosts = self.bound, self.bound.ghosts
        if ghosts is not None and own.phase.kind.intersects:
            fields = self.kernel.kernel_source.fields
            return ghosts.triangle_batches(bound.buffers, own, given, fields)
        if own.phase.in_a_tree:
            return bound.exchange.blocks.slices(own.entries, given)
        parts: Any = bound.sliced and bound.sliced.over(own, given, frontier_form)
        if parts is None and ghosts is not None:
            parts = ghosts.in_pieces(bound.buffers, own, frontier, given)
        return parts or ((own.entries, given),)

    def _active_after(self, frontier: Frontier) -> Words:
        """Return the active vertices after a superstep, as `run` returns them."""
        if "passed" not in self._ends:
            return frontier.targets
        passed = frontier.passed
        bound, device = self.bound, self.device
        out = device.sets.empty(bound.word_count) if passed is None else passed
        if self.plan.facts.tells_targets or "targets" in self._ends:
            return self.device.sets.union(out, frontier.targets)
        return out

    def frontier_forms(self, count: int | None, only: Restriction | None) -> list[str]:
        """Return the frontier form of each phase: see `BoundPhase.frontier_form`."""
        return [own.frontier_form(count, only) for own in self.phases]

    def _begin_checks(self) -> Any:
        """Return a record of zeros for the first violation of a checked kernel.

        Its six int64 are those that `raise_fault` reads.
        """
        fault = self.bound.buffers.temporary("fault", "int64", (6,))
        self.device.fill(fault, 0)
        return fault


def _check_shared(kernel: Kernel, state: State) -> None:
    """Raise PlanError if a kernel cannot run on several ranks."""
    found = kernel.plan.facts.not_shared
    if found is not None:
        raise PlanError(found.why, where=found.where, got=state.graph, fix=found.fix)
    facts = kernel.plan.facts
    far_edges_at = facts.out_edges_at or facts.twins_at[1] or facts.triangles_at
    if far_edges_at and state.graph.ranks.along == "in":
        raise PlanError(
            "ranks have the edges into their vertices only",
            where=far_edges_at,
            got='fg.distribute(graph, along="in")',
            fix='fg.distribute(graph, along="both")',
        )
    has_outboxes = any(halo.edges.outboxes for halo in facts.halos)
    if kernel.plan.target == "cuda" and has_outboxes:
        raise PlanError(
            "atomic operations at the reverse of an edge run on ranks of the CPU only",
            where=facts.twins_at[1],
            got="target='cuda'",
            fix="target='cpu', or gather what they combine",
        )


def _check_order(plan: FoldPlan, graph: Graph) -> None:
    """Check the graph for schedules that need every edge to lead from side 0 to side 1.

    Raises
    ------
    PlanError
        If an edge leads elsewhere, or the graph has no two sides.
    """
    for phase in plan.phases:
        if not phase.schedule.needs_sides:
            continue
        row = backward_edge(graph)
        if row == -1:  # no such edge
            continue
        got = "a graph without two sides"
        if row is not None:
            u, v = graph.sources[row], graph.targets[row]
            got = f"edge {row}, which leads from {u} to {v}, with sides={graph.sides}"
        raise PlanError(
            "this schedule takes edges that lead from the first of two sides to the "
            "second",
            where=f"schedule={phase.mapping.schedule!r}",
            got=got,
            expected="fg.Graph.from_edges(..., directed=True, sides=(U, I)), with "
            "sources below U and targets from U on",
            fix="use schedule='levels', or name sources and targets apart",
        )


def _check_graph(kernel: Kernel, state: State) -> None:
    """Raise if the graph does not fit the kernel: see `Superstep`."""
    facts = kernel.plan.facts
    if state.graph.ranks is not None:
        _check_shared(kernel, state)
    _check_order(kernel.plan, state.graph.part)
    if facts.triangles_at:
        try:
            state.graph.orient(kernel.plan.target)
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
