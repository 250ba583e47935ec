"""One foldmap of a run, and the choices of how its supersteps run.

`FoldmapRun.choose` decides before each superstep between patching and recomputing
aggregates, pulling and pushing, and sweeping due or all vertices. `decide` returns the
same choices for a given count of active vertices, for recordings. `connect_runs` and
`commit_in_place` compare the foldmaps of a run: the latter finds those whose supersteps
may write to the current buffers (0022). Begin with `FoldmapRun.choose`.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

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
#: "auto" patches if at most this fraction of the vertices that gathers read is active.
#: With more, a patch took as long as a gather over all edges or longer, since it reads
#: two versions of a row; with less, a half to a sixth of the time (bench change-driven,
#: 2026-11-21, two cores of an AMD EPYC).
MOST_ACTIVE = 0.125
#: Smallest mean degree times features where "auto" patches: below, a patch saves less
#: than incremental aggregates cost per vertex.
FEWEST_A_VERTEX = 64
#: Fewest edges times features where "auto" patches: another kernel takes a second or
#: more to compile, and rows in the caches are read as fast as they are tested.
FEWEST_CONTRIBUTIONS = 1 << 23
#: A GPU sweeps all vertices if active vertices and their out-edges together are at
#: least this number per vertex of the graph: about two in three are due then. Finding
#: the due ones, and refreshing the others, took 50 of 210 us on a road-like graph of 4M
#: vertices (NVIDIA H200).
MOST_DUE = 1.0
#: The same with one thread per vertex. With one vertex in four due, a superstep over
#: consecutive due vertices took 75 us and a sweep of all 88 us; over scattered ones it
#: took longer than the sweep.
MOST_DUE_ALONE = 1 / 4
#: Targets on which finding due vertices can cost as much as evaluating all vertices.
SWEEPING_TARGETS = {"cuda"}


#: Kernel -> changes of a run -> whether any aggregate can be incremental in it.
_patching: WeakKeyDictionary[Kernel, dict[Changes, bool]] = WeakKeyDictionary()


class _Traits(NamedTuple):
    """Traits of a kernel on a graph, cached for all runs.

    Attributes
    ----------
    most_in, most_reached : int
        Upper bounds of the in-edges of a vertex, and of a vertex with its targets: see
        `directions.most_reached`. 0 if the gather cannot be pushed.
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
    """One foldmap of a run, with kernels that recompute aggregates or patch them.

    Attributes
    ----------
    plain : Superstep
        Supersteps of the kernel that recomputes aggregates.
    plan : FoldPlan
        The plan of that kernel.
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
        #: Whether asynchronous kernels may add vertices to the due set they sweep.
        self.spreads = True
        #: Whether supersteps that recompute aggregates write to the current buffers.
        self.in_place = False
        #: Whether it updates properties that it reads: half a superstep has no meaning.
        self.is_exclusive = any(f.kind.exclusive for f in foldmap.program.functions)
        self._traits = traits = _traits_of(self.plain, state.graph)
        #: Whether a gather is pulled or pushed; "-" without one.
        self.direction = self.plan.facts.direction
        self._can_choose = self.plan.facts.may_push
        self.change_driven = options.get("change_driven", "auto")
        #: Whether the options of the run allow for incremental aggregates.
        self.may_be_incremental = True
        #: The changes that foldmaps of the run make: see `connect_runs`.
        self.changes = Changes()
        self.work = "-"
        #: Whether the graph has so many edges that "auto" may patch aggregates.
        self.may_pay = _may_pay(state.graph, traits.width)
        self._may_ever_patch = self.may_pay or self.change_driven is True
        self._patching: Superstep | None = None
        self._incremental: Incremental | None = None
        #: Number of supersteps that patched since all aggregates were last recomputed.
        self.patched_supersteps = 0
        self.announces = self.plan.facts.is_announced
        #: Whether vertices that are not due may be evaluated, too.
        self.may_sweep_all = False
        #: Whether every vertex has been evaluated in this run.
        self._knows_all = False
        #: Whether edges are counted for the next superstep along with the committed
        #: vertices: the direction is open, and a count of its own would be a wait.
        self.looks_ahead = False
        #: Whether exactly the active vertices are due, as with ``due=``.
        self.is_played = False
        #: The active set of the next superstep and the number of its out-edges, if they
        #: were counted at the end of the last one.
        self._reach: Reach | None = None
        #: The watched results that the foldmap computes.
        self.watched = WatchedResults()

    @property
    def on(self) -> Words | None:
        """The vertices that the foldmap is restricted to."""
        return None if self.only is None else self.only.words

    @property
    def kernel(self) -> Kernel:
        """The kernel that patches aggregates if the run has one; else the plain one."""
        return self.plain.kernel if self._patching is None else self._patching.kernel

    def choose(self, frontier: Frontier, changed: Words | None) -> Superstep:
        """Choose how the next superstep runs; return the `Superstep` that runs it.

        Parameters
        ----------
        frontier : Frontier
            The input of the superstep; the choices are written to it.
        changed : words or None
            The vertices committed since this foldmap last ran, except due ones excluded
            by ``.on``; None if they are unknown.
        """
        frontier.only, frontier.left_out = self.only, self.left_out
        frontier.spreads, frontier.options = self.spreads, self.options
        everything = frontier.all_due or frontier.active is None
        if not (self._may_ever_patch and self._is_incremental(frontier.active_count)):
            if self._incremental is not None:  # this superstep does not update it
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

        After `recompute_every` of these, patched sums are marked as stale, since
        rounding errors add up.
        """
        self.patched_supersteps += 1
        known = self._incremental
        if self.recompute_every is None or known is None or known.is_exact:
            return
        if self.patched_supersteps >= self.recompute_every:
            known.recompute(known.patched)
            self.patched_supersteps = 0

    def _shorter(self, frontier: Frontier) -> Superstep:
        """Return the superstep in the direction with fewer edges: pulled or pushed."""
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
        # Bound the edges of a pull before they are counted: active vertices and their
        # targets have at most `most_in` in-edges each.
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
        # If a pull may read all edges, the kernel finds the due vertices in its sweep.
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
        """Return the reach of a set with its edges counted, which may be a wait."""
        sets, arrays = self.device.sets, self.plain.bound.buffers.graph
        reach = sets.reach(active, arrays) if sets.counts_wait else None
        if reach is None:
            return Reach(active, sets.edges_of(active, arrays, "out"))
        sets.count_and_look(active, (), reach)
        return reach

    def look_ahead(self, committed: Words) -> Reach | None:
        """Return the reach of committed vertices, which chooses the next direction.

        The host reads its count together with the number of committed vertices. None if
        the last superstep had no choice of direction, or if counting needs no wait.
        """
        if self.looks_ahead:
            arrays = self.plain.bound.buffers.graph
            self._reach = self.device.sets.reach(committed, arrays)
        return self._reach

    def edges_out_of(self, words: Words) -> int | None:
        """Return the number of out-edges of a set, if it was counted; else None."""
        reach = self._reach
        return reach.pushed if reach is not None and reach.active is words else None

    def note_edges(self, words: Words, edges: int) -> None:
        """Store the number of out-edges of the active set, found by another loop."""
        self._reach = Reach(words, edges)

    def unproven(self) -> Words | None:
        """Return the vertices the aggregates of which may have rounding errors.

        They have been patched since they were recomputed. None if all are exact.
        """
        known = self._incremental
        if known is None or not known.is_known or known.is_exact:
            return None
        words = known.patched
        return (
            words if self.on is None else self.device.sets.intersection(words, self.on)
        )

    def prove(self, words: Words) -> Words:
        """Run a superstep on some vertices, with recomputed aggregates."""
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
        """Forget kept aggregates, and that all vertices have been evaluated."""
        self._knows_all = False
        self._reach = None
        if self._incremental is not None:
            self._incremental.forget()

    @property
    def knows_patching(self) -> bool:
        """Whether `_can_be_incremental` needs no folding of another kernel."""
        if not self.plan.incremental.gathers:
            return True
        return self.changes in _patching.get(self.plain.kernel, {})

    def _is_incremental(self, active_count: int | None) -> bool:
        """Whether a superstep with an active count keeps or patches aggregates."""
        return self._may_patch(active_count) and self._can_be_incremental()

    def _may_patch(self, active_count: int | None) -> bool:
        """Whether options and active count allow for incremental aggregates."""
        if self.change_driven is False or not self.may_be_incremental:
            return False
        if self.change_driven is True:
            return True
        if active_count is None or not self.may_pay:
            return False
        return active_count <= MOST_ACTIVE * self.foldmap.source_count(self.state)

    def _sweeps_all(self, active_count: int | None) -> bool:
        """Whether all vertices are evaluated, though some are not due.

        An evaluation of a vertex that is not due changes nothing, provided that the run
        has evaluated it before, and that foldmaps announce all changes of values that
        it reads.
        """
        if not (self.may_sweep_all and self._knows_all) or active_count is None:
            return False
        graph = self.state.graph
        if is_soon_swept(graph, self._traits.width):
            return True
        size = graph.vertex_count + graph.edge_count
        most = MOST_DUE_ALONE if self._traits.is_alone else MOST_DUE
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
        """Return the supersteps of the kernel that patches aggregates."""
        return self.foldmap.prepare(
            self.state, self.device, self.options, incremental=self.changes
        )

    def _prepare(self) -> tuple[Superstep, Incremental]:
        """Return the supersteps that patch, and the aggregates; make them once."""
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
    """Whether a graph has enough edges and features for "auto" to patch aggregates."""
    fewest = max(FEWEST_CONTRIBUTIONS, FEWEST_A_VERTEX * graph.vertex_count)
    return graph.edge_count * width >= fewest


def decide(step: FoldmapRun, active_count: int | None) -> tuple[Any, ...]:
    """Return all choices of `FoldmapRun.choose` that the active count determines.

    A recording of the superstep holds for all counts with equal choices.
    """
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
    """Whether `decide` returns `meant` for an active count.

    False if `decide` would have to fold another kernel first.
    """
    if step._may_patch(active_count) and not step.knows_patching:
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
    """Set the options of each foldmap of a run that depend on the other foldmaps.

    These are the changes that any of them makes, which decide about patching, and
    whether vertices that are not due may be evaluated.

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
                ".on excludes would miss contributions",
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
    """Let all foldmaps of a run write to the current buffers that can.

    None does if aggregates may be patched, since a patch reads the earlier value. If a
    property is written to its next buffer by one foldmap, it is by all.
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
    """Return the iterated properties that a foldmap writes."""
    return set(step.plan.facts.writes_next)


def _can_commit_in_place(step: FoldmapRun) -> bool:
    """Whether a kernel may write to the current buffers.

    No vertex may read an entry that another vertex commits in the same superstep.
    """
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
