"""One foldmap of a run, and the choices of how its supersteps run.

`FoldmapRun.choose` decides between patching and recomputing aggregates, pulling and
pushing, and sweeping due or all vertices. `commit_in_place` finds the foldmaps whose
supersteps may write to the current buffers (0022).
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from featgraph.base.errors import PlanError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.options import IN_PLACE, Changes, join_changes
from featgraph.graph import Graph
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device, Reach, is_dense
from featgraph.runtime.loops.background import is_ready
from featgraph.runtime.loops.stopping import WatchedResults
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.superstep.directions import (
    is_push_shorter,
    is_soon_swept,
    least_pulled,
    most_reached,
    pulls_all,
)
from featgraph.runtime.superstep.foldmap import FoldMap
from featgraph.runtime.superstep.frontier import (
    Frontier,
    Incremental,
    LeftOut,
    are_many,
)
from featgraph.runtime.superstep.superstep import Superstep

__all__ = [
    "FoldmapRun",
    "check_any_order",
    "check_dense",
    "commit_in_place",
    "connect_runs",
    "decide",
    "decides",
    "patches_left",
]

Words = Any
#: Largest fraction of the vertices gathered from that are active where "auto" patches.
#: With more, a patch took as long as all edges or longer, since it reads two versions
#: of a row; with less, a half to a sixth (bench change-driven, 2026-11-21, two cores of
#: an AMD EPYC).
MOST_ACTIVE = 0.125
#: Smallest mean degree times features where "auto" patches: below, a patch saves less
#: than incremental aggregates cost per vertex.
FEWEST_A_VERTEX = 64
#: Fewest edges times features where "auto" patches: another kernel takes a second or
#: more to compile, and rows in the caches are read as fast as they are tested.
FEWEST_CONTRIBUTIONS = 1 << 23
#: Active vertices and their out-edges, per vertex, from which "auto" sweeps all
#: vertices on a GPU: about two in three are due then. Finding them, and refreshing the
#: others, took 50 of 210 us on a road-like graph of 4M vertices (NVIDIA H200).
MOST_DUE = 1.0
#: The same with one thread per vertex: with one vertex in four due, a superstep over
#: them took 75 of the 88 us of a sweep if they were consecutive, and more than a sweep
#: if they were scattered.
MOST_DUE_ALONE = 1 / 4
#: Targets on which finding due vertices costs as much as evaluating them.
SWEEPING_TARGETS = {"cuda"}


#: Kernel -> changes of a run -> whether any aggregate can be incremental in it.
_patching: weakref.WeakKeyDictionary[Kernel, dict[Changes, bool]] = (
    weakref.WeakKeyDictionary()
)


class _Traits(NamedTuple):
    """Traits of a kernel on a graph, which all runs share.

    Attributes
    ----------
    most_in, most_reached : int
        Upper bounds of the in-edges of a vertex, and of it and its targets; 0 if no
        push may be chosen.
    width : int
        Features of its widest phase.
    is_alone : bool
        Whether each vertex has a thread of its own.
    """

    most_in: int
    most_reached: int
    width: int
    is_alone: bool


def _traits_of(plain: Superstep, graph: Graph) -> _Traits:
    """Return the traits of a superstep, which caches them."""
    known: _Traits | None = plain.traits
    if known is None:
        plan = plain.plan
        can_choose = plan.facts.may_push
        plain.traits = known = _Traits(
            *(most_reached(graph, plain.device.name) if can_choose else (0, 0)),
            plan.width,
            all(p.mapping.lanes_per_vertex == 1 for p in plan.phases),
        )
    return known


class FoldmapRun:
    """One foldmap of a run, with its kernels that patch aggregates and that do not.

    Attributes
    ----------
    plain : Superstep
        Recomputes aggregates.
    plan : FoldPlan
        The plan of its kernel.
    work : str
        Treatment of aggregates in the last superstep: "recomputed", "kept" (recomputed
        and kept), "patched", or "-" without a gather.
    """

    def __init__(
        self,
        foldmap: FoldMap,
        state: State,
        device: Device,
        options: dict[str, Any],
        recompute_every: int | None,
    ) -> None:
        self.foldmap = foldmap
        self.state = state
        self.device = device
        self.options = options
        self.recompute_every = recompute_every
        self.plain = foldmap.prepare(state, device, options)
        self.plan = self.plain.plan
        self.only = foldmap.restriction(state, device)
        #: Due vertices that `only` excludes.
        self.left_out: LeftOut | None = None
        if self.only is not None:
            self.left_out = LeftOut(device, self.only.words)
        #: Whether kernels that can may add to the due vertices.
        self.spreads = True
        #: Whether supersteps that recompute write to the current buffers.
        self.in_place = False
        self._traits = traits = _traits_of(self.plain, state.graph)
        #: Whether a gather is pulled or pushed; "-" without one.
        self.direction = self.plan.facts.direction
        self._can_choose = self.plan.facts.may_push
        self.change_driven = options.get("change_driven", "auto")
        #: Whether the run allows for incremental aggregates.
        self.may_be_incremental = True
        self.changes = Changes()
        self.work = "-"
        #: Whether "auto" may make aggregates incremental.
        self.may_pay = _may_pay(state.graph, traits.width)
        self._may_ever_patch = self.may_pay or self.change_driven is True
        self._patching: Superstep | None = None
        self._incremental: Incremental | None = None
        #: Supersteps that patched sums or products of reals since the last recompute.
        self.patched_supersteps = 0
        #: Whether each vertex has a thread of its own.
        self.is_alone = traits.is_alone
        self.announces = self.plan.facts.is_announced
        #: Whether vertices that are not due may be evaluated, too.
        self.may_sweep_all = False
        #: Whether every vertex has been evaluated in this run.
        self._knows_all = False
        #: Whether the last superstep could have been pushed, and counting edges waits.
        self.looks_ahead = False
        #: Whether exactly the active vertices are due.
        self.is_played = False
        #: The reach of the next superstep, if it was found after the last one.
        self._reach: Reach | None = None
        #: The watched results that it computes.
        self.watched = WatchedResults()

    @property
    def on(self) -> Words | None:
        """The vertices that the foldmap is restricted to."""
        return None if self.only is None else self.only.words

    @property
    def kernel(self) -> Kernel:
        """The kernel of the run: the one that patches aggregates if it was chosen."""
        return self.plain.kernel if self._patching is None else self._patching.kernel

    def choose(self, frontier: Frontier, changed: Words | None) -> Superstep:
        """Choose how the next superstep runs; return its `Superstep`.

        Parameters
        ----------
        frontier : Frontier
            Its input; the choices are written to it.
        changed : words or None
            The vertices committed since this foldmap last ran, except due ones excluded
            by ``.on``; None if they are unknown.
        """
        frontier.only, frontier.left_out = self.only, self.left_out
        frontier.spreads, frontier.options = self.spreads, self.options
        everything = frontier.all_due or frontier.active is None
        if not (self._may_ever_patch and self._is_incremental(frontier.active_count)):
            if self._incremental is not None:
                self._incremental.forget()
            self.work = "-" if self.direction == "-" else "recomputed"
            if self.may_sweep_all and not everything:
                everything = self._sweeps_all(frontier.active_count)
            frontier.all_due, frontier.in_place = everything, self.in_place
            if self.is_played and not everything:
                frontier.base = frontier.active
                return self.plain
            self._knows_all = self._knows_all or everything
            if self._can_choose and not everything:
                return self._shorter(frontier)
            self.looks_ahead, self._reach = False, None
            return self.plain
        self.looks_ahead, self._reach = False, None
        self._knows_all = self._knows_all or everything
        patching, frontier.incremental = self._prepare()
        is_patched = self._begin(patching, frontier.incremental, changed)
        self.work = "patched" if is_patched else "kept"
        return patching

    def end(self) -> None:
        """Count a superstep that has patched aggregates.

        Sums are recomputed after some of them: roundings add up.
        """
        self.patched_supersteps += 1
        known = self._incremental
        if self.recompute_every is None or known is None or known.is_exact:
            return
        if self.patched_supersteps >= self.recompute_every:
            known.recompute(known.patched)
            self.patched_supersteps = 0

    def _shorter(self, frontier: Frontier) -> Superstep:
        """Return the superstep along fewer edges: pulled or pushed."""
        active, count = frontier.active, frontier.active_count
        sets, bound = self.device.sets, self.plain.bound
        arrays = buffers_of(self.state, self.device).graph
        reach, self._reach = self._reach, None
        self.direction = "pull"
        may_push = self._may_push(count)
        self.looks_ahead = may_push and sets.counts_wait
        if not may_push:
            frontier.base = sets.expand(active, arrays, count)
            return self.plain
        if reach is None or reach.active is not active:
            reach = self._reached(active)
        pushed, most = reach.pushed, bound.graph.edge_count
        if count is not None:
            most = min(most, (pushed + count) * self._traits.most_in)

        def find_base() -> Words:
            if frontier.base is None:
                frontier.base = sets.expand(active, arrays, count, edges=pushed)
            return frontier.base

        if is_push_shorter(bound, reach, most, find_base):
            find_base()
            return self._pushing(count, frontier) or self.plain
        looks = most == bound.graph.edge_count and frontier.also_due is None
        if looks and self.plan.phases[0].finds_due:
            frontier.base, frontier.some_due = bound.full, True
        else:
            find_base()
        return self.plain

    def _pushing(self, count: int | None, frontier: Frontier) -> Superstep | None:
        """Return the superstep that pushes, if its kernels are compiled.

        Results are the same in both directions, so that they do not depend on
        compilation.
        """
        options = {**self.options, "direction": "push"}
        other = self.foldmap.prepare(self.state, self.device, options)
        if not is_ready(other, other.frontier_forms(count, frontier.only)):
            return None
        self.direction = "push"
        return other

    def _reached(self, active: Words) -> Reach:
        """Return the reach of a set, with its count; wait if counting waits."""
        sets, arrays = self.device.sets, self.plain.bound.buffers.graph
        reach = sets.reach(active, arrays) if sets.counts_wait else None
        if reach is None:
            return Reach(active, sets.edges_of(active, arrays, "out"))
        sets.count_and_look(active, (), reach)
        return reach

    def look_ahead(self, committed: Words) -> Reach | None:
        """Return the reach that the next superstep needs to choose a direction.

        Its count is read together with others. None if there is no choice, judged by
        the last superstep, or if counting needs no wait.
        """
        if self.looks_ahead:
            arrays = self.plain.bound.buffers.graph
            self._reach = self.device.sets.reach(committed, arrays)
        return self._reach

    def edges_out_of(self, words: Words) -> int | None:
        """Return the number of out-edges of a set, if the next superstep needs it."""
        reach = self._reach
        return reach.pushed if reach is not None and reach.active is words else None

    def note_edges(self, words: Words, edges: int) -> None:
        """Store the number of out-edges of the active set, found by another loop."""
        self._reach = Reach(words, edges)

    def unproven(self) -> Words | None:
        """Return the vertices whose aggregates are exact only up to rounded patches."""
        known = self._incremental
        if known is None or not known.is_known or known.is_exact:
            return None
        words = known.patched
        return (
            words if self.on is None else self.device.sets.intersection(words, self.on)
        )

    def prove(self, words: Words) -> Words:
        """Run a superstep on some vertices with recomputed aggregates."""
        patching, incremental = self._prepare()
        none = self.device.sets.empty(words.size)
        self._begin(patching, incremental, none)
        incremental.recompute(words)
        frontier = Frontier(
            none, base=words, only=self.only, left_out=self.left_out,
            incremental=incremental, tracks=True, spreads=self.spreads,
            options=self.options,
        )  # fmt: skip
        committed = patching.run(frontier)
        self.work = "recomputed"
        self.patched_supersteps = 0
        return committed

    def forget(self) -> None:
        """Forget all aggregates, and that all vertices were evaluated."""
        self._knows_all = False
        self._reach = None
        if self._incremental is not None:
            self._incremental.forget()

    @property
    def knows_patching(self) -> bool:
        """Whether it is known if any aggregate can be incremental in this run."""
        if not self.plan.incremental.gathers:
            return True
        return self.changes in _patching.get(self.plain.kernel, {})

    def takes_folding(self, active_count: int | None) -> bool:
        """Whether the choice for an active count needs another folded kernel."""
        return self._may_patch(active_count) and not self.knows_patching

    def _is_incremental(self, active_count: int | None) -> bool:
        return self._may_patch(active_count) and self._can_be_incremental()

    def _may_patch(self, active_count: int | None) -> bool:
        """Whether aggregates are incremental for an active count, if any can be."""
        if self.change_driven is False or not self.may_be_incremental:
            return False
        if self.change_driven is True:
            return True
        if active_count is None or not self.may_pay:
            return False
        return active_count <= MOST_ACTIVE * self.foldmap.source_count(self.state)

    def _sweeps_all(self, active_count: int | None) -> bool:
        """Whether all vertices are evaluated, though some are not due.

        The result is the same only if each vertex has been evaluated before, and all
        changes of values that it reads are announced.
        """
        if not (self.may_sweep_all and self._knows_all) or active_count is None:
            return False
        graph = self.state.graph
        if is_soon_swept(graph, self._traits.width):
            return True
        size = graph.vertex_count + graph.edge_count
        most = MOST_DUE_ALONE if self.is_alone else MOST_DUE
        return active_count * size >= most * graph.vertex_count**2

    def _may_push(self, active_count: int | None) -> bool:
        """Whether active vertices may reach enough edges for a push to be shorter."""
        # An upper bound of the in-edges of the vertices reached from few active ones.
        most = self.state.graph.edge_count
        if active_count is not None:
            most = min(most, active_count * self._traits.most_reached)
        return most > least_pulled(self.plan, self.state.graph)

    def _can_be_incremental(self) -> bool:
        """Whether any aggregate can be incremental, given the changes of the run."""
        if not self.plan.incremental.gathers:
            return False
        known = _patching.setdefault(self.plain.kernel, {})
        if self.changes not in known:
            phases = self._superstep_that_patches().plan.phases
            known[self.changes] = any(phase.incremental for phase in phases)
        return known[self.changes]

    def _superstep_that_patches(self) -> Superstep:
        return self.foldmap.prepare(
            self.state, self.device, self.options, incremental=self.changes
        )

    def _prepare(self) -> tuple[Superstep, Incremental]:
        if self._patching is None or self._incremental is None:
            self._patching = self._superstep_that_patches()
            self._incremental = Incremental(
                self._patching.kernel, self.state, self.device
            )
        return self._patching, self._incremental

    def _begin(
        self, patching: Superstep, incremental: Incremental, changed: Words | None
    ) -> bool:
        """Begin a superstep; return whether aggregates can be patched."""
        buffers, ghosts = buffers_of(self.state, self.device), patching.bound.ghosts
        if ghosts is not None:  # aggregates may copy their rows
            ghosts.refresh_all(buffers)
        return incremental.begin(buffers, changed)


def _may_pay(graph: Graph, width: int) -> bool:
    """Whether "auto" patches aggregates if few vertices are active."""
    fewest = max(FEWEST_CONTRIBUTIONS, FEWEST_A_VERTEX * graph.vertex_count)
    return graph.edge_count * width >= fewest


def decide(step: FoldmapRun, active_count: int | None) -> tuple[Any, ...]:
    """Return the choices that the number of active vertices determines."""
    incremental = step._is_incremental(active_count)
    if not incremental and step._sweeps_all(active_count):
        return ("all",)
    if step.is_played:
        return (*step.plain.frontier_forms(active_count, None),)
    graph = step.state.graph
    runs = step._prepare()[0] if incremental else step.plain
    vertices, edges = runs.bound.graph.whole  # as in `expand`
    sizes = [edges * (2 if a == "both" else 1) for a in runs.plan.expands]
    return (
        incremental,
        step._can_choose and step._may_push(active_count),
        *(is_dense(active_count, vertices, size) for size in sizes),
        pulls_all(runs.bound, active_count),
        graph.ranks is not None and are_many(active_count, graph.vertex_count),
        *runs.frontier_forms(active_count, step.only),
    )


def decides(step: FoldmapRun, active_count: int, meant: tuple[Any, ...]) -> bool:
    """Whether an active count leads to the choices `meant`, as `decide` returns them.

    Nothing is folded and no superstep is made for the answer: if that were needed, it
    is False.
    """
    if step.takes_folding(active_count):
        return False
    is_meant_incremental = meant[0] is True
    if step._is_incremental(active_count) != is_meant_incremental:
        return False
    return decide(step, active_count) == meant


def patches_left(step: FoldmapRun) -> int | None:
    """Return how many supersteps may patch before a recompute; None for any number."""
    known = step._incremental
    is_bounded = known is not None and not known.is_exact and step.work == "patched"
    if not is_bounded or step.recompute_every is None:
        return None
    return step.recompute_every - 1 - step.patched_supersteps


def connect_runs(steps: list[FoldmapRun]) -> None:
    """Pass the changes of all foldmaps of a run to each of them.

    Raises
    ------
    PlanError
        If due vertices that ``.on`` excludes would miss a change.
    """
    for step in steps:
        found = step.plan.facts.from_active
        if found and step.on is not None:
            raise PlanError(
                f"{found[0]} gathers from active vertices only, and vertices that "
                ".on excludes would miss them",
                where=".on",
                fix='drop sources="active", or .on',
            )
    changes = join_changes(s.plan.facts.changes for s in steps)
    sweeps = steps[0].device.name in SWEEPING_TARGETS
    announces = all(s.announces and s.change_driven == "auto" for s in steps)
    for step in steps:
        step.changes = changes
        step.may_sweep_all = sweeps and announces


def check_any_order(steps: list[FoldmapRun], where: str) -> None:
    """Check that a run may evaluate vertices in any order, and keeps no aggregates.

    Raises
    ------
    PlanError
        If a function or an option does not allow it.
    """
    change_driven = steps[0].change_driven
    if change_driven is True or (change_driven is False and where != IN_PLACE):
        raise PlanError(
            "kept aggregates need the values of sources at the start of a superstep"
            if change_driven
            else "every vertex is active in every superstep, and none can wait",
            where=where,
            got=f"change_driven={change_driven}",
            fix="use change_driven='auto', which keeps no aggregates here",
        )
    for step in steps:
        step.plan.check_any_order(step.changes, where)


def check_dense(steps: list[FoldmapRun], active: Any, goes_on: bool) -> None:
    """Check that evaluating every vertex in every superstep changes no result.

    Raises
    ------
    PlanError
        If it could.
    """
    where = "change_driven=False"
    if active is not None or goes_on:
        raise PlanError(
            "every vertex is active in every superstep",
            where=where,
            got="active=" if active is not None else "then=",
            fix="drop one of the two",
        )
    plans = [step.plan for step in steps]
    for place, plan in enumerate(plans):
        plan.check_dense(plans[:place] + plans[place + 1 :], where)


def commit_in_place(steps: list[FoldmapRun]) -> None:
    """Have the foldmaps of a run commit in place that can.

    Incremental aggregates need earlier values. And if buffers of a property swap for
    one foldmap, they swap for all that write the property.
    """
    if any(_may_be_incremental(step) for step in steps):
        return
    found = [step for step in steps if _can_commit_in_place(step)]
    while True:
        swapped = {n for s in steps if s not in found for n in _written_next(s)}
        left = [step for step in found if not _written_next(step) & swapped]
        if len(left) == len(found):
            break
        found = left
    for step in found:
        step.in_place = True


def _may_be_incremental(step: FoldmapRun) -> bool:
    """Whether aggregates of a superstep of the run may be incremental."""
    if step.change_driven is False or not step.may_be_incremental:
        return False
    is_wanted = step.change_driven is True or step.may_pay
    return is_wanted and bool(step.plan.incremental.gathers)


def _written_next(step: FoldmapRun) -> set[str]:
    return set(step.plan.facts.writes_next)


def _can_commit_in_place(step: FoldmapRun) -> bool:
    """Whether no vertex reads what another one commits in the superstep."""
    plan = step.plan
    if not step.plain.kernel.kernel_source.waits or plan.facts.may_push:
        return False
    if plan.options.asynchronous:
        return False
    if _written_next(step).isdisjoint(plan.facts.seen_elsewhere):
        return True
    found = np.array([step.foldmap.is_independent(step.state)], np.int64)
    # A rank tests its own edges, and all ranks must commit in one way.
    return bool(step.plain.bound.exchange.all_reduce(found, "min")[0])
