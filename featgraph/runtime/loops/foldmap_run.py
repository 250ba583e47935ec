"""One foldmap of a run: which of its kernels runs a superstep."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from featgraph.base.errors import PlanError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.options import IN_PLACE, Changes, join_changes
from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph import Graph
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device, Reach, is_dense
from featgraph.runtime.loops.background import is_ready
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.superstep.directions import (
    is_push_shorter,
    is_soon_swept,
    least_pulled,
    most_reached,
    pulls_all,
)
from featgraph.runtime.superstep.foldmap import FoldMap
from featgraph.runtime.superstep.frontier import Frontier, LeftOut, are_many
from featgraph.runtime.superstep.incremental import Incremental
from featgraph.runtime.superstep.superstep import Superstep

__all__ = [
    "Step",
    "check_any_order",
    "check_dense",
    "connect_steps",
    "decide",
    "decides",
    "patches_left",
]

Words = Any
#: "auto" patches while no more than this share of the vertices that it may gather from
#: is active. With more, a patch took as long as all edges or longer, since it reads two
#: versions of a row; with less, a half to a sixth (bench change-driven, 2026-11-21, two
#: cores of an AMD EPYC).
MOST_ACTIVE = 0.125
#: "auto" patches nothing where the mean degree times the features is less: there is too
#: little to save for what a vertex with incremental aggregates has to do.
FEWEST_A_VERTEX = 64
#: "auto" patches nothing where edges times features are fewer: a kernel more takes a
#: second or more to compile, and rows that fit the caches are read as fast as tested.
FEWEST_CONTRIBUTIONS = 1 << 23
#: "auto" sweeps all vertices on a GPU from so many active ones and out-edges of theirs
#: a vertex on: about two in three are due then. Finding them, and refreshing entries of
#: the others, took 50 of 210 us on a road-like graph of 4M vertices (NVIDIA H200).
MOST_DUE = 1.0
#: The same where a thread has a vertex: with one in four due, a superstep over them
#: took 75 of the 88 us of a sweep where they stood in runs, and more than a sweep where
#: they were anywhere.
MOST_DUE_ALONE = 1 / 4
#: Where finding the due vertices costs what evaluating them does.
SWEEPING_TARGETS = {"cuda"}


#: Kernel -> what a run changes -> whether any aggregate can be incremental in it.
_patching: weakref.WeakKeyDictionary[Kernel, dict[Changes, bool]] = (
    weakref.WeakKeyDictionary()
)


class _Traits(NamedTuple):
    """What all runs of a kernel on a graph have in common.

    Attributes
    ----------
    most_in, most_reached : int
        In-edges of a vertex, and of it and its targets, at most, where a push may be
        chosen.
    width : int
        Features of its widest phase.
    is_alone : bool
        Whether a thread has a vertex for itself.
    """

    most_in: int
    most_reached: int
    width: int
    is_alone: bool


def _traits_of(plain: Superstep, graph: Graph) -> _Traits:
    """Return the traits of what runs supersteps, which keeps them."""
    known: _Traits | None = plain.traits
    if known is None:
        plan = plain.plan
        can_choose = plan.facts.may_push
        plain.traits = known = _Traits(
            *(most_reached(graph, plain.device.name) if can_choose else (0, 0)),
            max(p.width for p in plan.phases),
            all(p.mapping.lanes_per_vertex == 1 for p in plan.phases),
        )
    return known


class Step:
    """One foldmap of a run: a kernel that patches aggregates, and one that does not.

    Attributes
    ----------
    plain : Superstep
        Recomputes aggregates.
    work : str
        What the last superstep did with them: "recomputed", "kept" (recomputed and
        kept), "patched", or "-" where nothing gathers.
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
        self.only = foldmap.restriction(state, device)
        #: What `only` has left out.
        self.left_out: LeftOut | None = None
        if self.only is not None:
            self.left_out = LeftOut(device, self.only.words)
        #: Whether kernels that can may add to the due vertices.
        self.spreads = True
        #: Whether supersteps that recompute write to the current buffers.
        self.in_place = False
        #: What holds for each run of the kernel on the graph.
        self._traits = traits = _traits_of(self.plain, state.graph)
        #: Whether a gather is pulled or pushed; "-" without one.
        self.direction = self.plain.plan.facts.direction
        self._can_choose = self.plain.plan.facts.may_push
        self.change_driven = options.get("change_driven", "auto")
        #: Whether the run allows for incremental aggregates.
        self.may_be_incremental = True
        self.changes = Changes()
        self.work = "-"
        #: Whether "auto" may make aggregates incremental.
        self.may_pay = _may_pay(state.graph, traits.width)
        self._patching: Superstep | None = None
        self._incremental: Incremental | None = None
        #: In which sums or products of reals were patched since they were recomputed.
        self.patched_supersteps = 0
        #: Whether a thread has a vertex for itself.
        self.is_alone = traits.is_alone
        self.announces = self.plain.plan.facts.is_announced
        #: Whether a vertex that is not due may be evaluated all the same.
        self.may_sweep_all = False
        #: Whether every vertex has been evaluated in this run.
        self._knows_all = False
        #: Whether the last superstep could have been pushed.
        self._looks_ahead = False
        #: Whether what is active is all that is due.
        self.is_played = False
        #: What the next superstep reaches, where that was found behind the last one.
        self._reach: Reach | None = None

    @property
    def plan(self) -> FoldPlan:
        """The plan of the kernel that recomputes."""
        return self.plain.plan

    @property
    def on(self) -> Words | None:
        """The vertices that the foldmap is restricted to."""
        return None if self.only is None else self.only.words

    @property
    def kernel(self) -> Kernel:
        """The kernel of the run: the one that patches aggregates if it was chosen."""
        return self.plain.kernel if self._patching is None else self._patching.kernel

    def choose(self, frontier: Frontier, changed: Words | None) -> Superstep:
        """Decide how the next superstep is run; return what runs it from `frontier`.

        Parameters
        ----------
        frontier : Frontier
            Where it starts; it is told how the superstep is run.
        changed : words or None
            The vertices that were committed since this foldmap last ran, which is less
            where ``.on`` left out due ones; None if they are not known.
        """
        frontier.only, frontier.left_out = self.only, self.left_out
        frontier.spreads, frontier.options = self.spreads, self.options
        everything = frontier.all_due or frontier.active is None
        if not self._is_incremental(frontier.active_count):
            if self._incremental is not None:
                self._incremental.forget()
            self.work = "-" if self.direction == "-" else "recomputed"
            everything = everything or self._sweeps_all(frontier.active_count)
            frontier.all_due, frontier.in_place = everything, self.in_place
            if self.is_played and not everything:
                frontier.base = frontier.active
                return self.plain
            self._knows_all = self._knows_all or everything
            if self._can_choose and not everything:
                return self._shorter(frontier)
            self._looks_ahead = False
            return self.plain
        self._looks_ahead = False
        self._knows_all = self._knows_all or everything
        patching, frontier.incremental = self._prepare()
        is_patched = self._begin(patching, frontier.incremental, changed)
        self.work = "patched" if is_patched else "kept"
        return patching

    def end(self) -> None:
        """Note that the superstep has run."""
        if self.work == "patched" and self._incremental is not None:
            self._count_patches(self._incremental)

    def _shorter(self, frontier: Frontier) -> Superstep:
        """Return what runs a superstep along fewer edges: pulled or pushed."""
        active, count = frontier.active, frontier.active_count
        sets, bound = self.device.sets, self.plain.bound
        arrays = buffers_of(self.state, self.device).graph
        reach, self._reach = self._reach, None
        self.direction = "pull"
        self._looks_ahead = self._may_push(count)
        if not self._looks_ahead:
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
        """Return what pushes, if its kernels are there.

        Results are the same in both directions, so that they do not depend on when.
        """
        options = {**self.options, "direction": "push"}
        other = self.foldmap.prepare(self.state, self.device, options)
        if not is_ready(other, other.forms(count, frontier.only)):
            return None
        self.direction = "push"
        return other

    def _reached(self, active: Words) -> Reach:
        """Return how far a set reaches, counted: a wait, where there are any."""
        sets, arrays = self.device.sets, self.plain.bound.buffers.graph
        reach = sets.reach(active, arrays)
        if reach is None:
            return Reach(active, sets.edges_of(active, arrays, "out"))
        sets.count_and_look(active, (), reach)
        return reach

    def look_ahead(self, committed: Words) -> Reach | None:
        """Return what the next superstep has to know to choose, from vertices like A.

        Its count comes with others that are waited for. None if it has no choice, as
        far as the last superstep tells, or if to count waits for nothing.
        """
        self._reach = None
        if self._looks_ahead:
            arrays = self.plain.bound.buffers.graph
            self._reach = self.device.sets.reach(committed, arrays)
        return self._reach

    def edges_out_of(self, words: Words) -> int | None:
        """Return how many edges lead out of a set, if the next superstep's is known."""
        reach = self._reach
        return reach.pushed if reach is not None and reach.active is words else None

    def note_edges(self, words: Words, edges: int) -> None:
        """Note how many edges lead out of what is active behind others' supersteps."""
        self._reach = Reach(words, edges)

    def unproven(self) -> Words | None:
        """Return the vertices whose aggregates hold only up to what patches rounded."""
        known = self._incremental
        if known is None or not known.is_known or known.is_exact:
            return None
        words = known.patched
        return (
            words if self.on is None else self.device.sets.intersection(words, self.on)
        )

    def prove(self, words: Words) -> Words:
        """Run a superstep on some vertices with their aggregates recomputed."""
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
        """Take nothing for granted: no aggregate, nor that all were evaluated."""
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
        """Whether another kernel is folded to know what so many vertices decide."""
        return self._may_patch(active_count) and not self.knows_patching

    def _is_incremental(self, active_count: int | None) -> bool:
        return self._may_patch(active_count) and self._can_be_incremental()

    def _may_patch(self, active_count: int | None) -> bool:
        """Whether aggregates are incremental with so many active, if any can be."""
        if self.change_driven is False or not self.may_be_incremental:
            return False
        if self.change_driven is True:
            return True
        if active_count is None or not self.may_pay:
            return False
        return active_count <= MOST_ACTIVE * self.foldmap.source_count(self.state)

    def _sweeps_all(self, active_count: int | None) -> bool:
        """Whether all vertices are evaluated, though some are not due.

        That gives the same only if each of them has been evaluated before, and whatever
        it reads is announced where it changes.
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
        """Whether enough vertices could be reached for a push to be shorter."""
        # Few vertices cannot have enough edges into the vertices they reach.
        most = self.state.graph.edge_count
        if active_count is not None:
            most = min(most, active_count * self._traits.most_reached)
        return most > least_pulled(self.plan, self.state.graph)

    def _can_be_incremental(self) -> bool:
        """Whether any aggregate can be, in a run that changes `changes`."""
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
        """Begin a superstep; return whether anything is left to patch."""
        buffers, ghosts = buffers_of(self.state, self.device), patching.bound.ghosts
        if ghosts is not None:  # of which copies may be taken
            ghosts.refresh_all(buffers)
        return incremental.begin(buffers, changed)

    def _count_patches(self, incremental: Incremental) -> None:
        """Have what was patched recomputed from time to time: roundings add up."""
        self.patched_supersteps += 1
        if self.recompute_every is None or incremental.is_exact:
            return
        if self.patched_supersteps >= self.recompute_every:
            incremental.recompute(incremental.patched)
            self.patched_supersteps = 0


def _may_pay(graph: Graph, width: int) -> bool:
    """Whether "auto" patches aggregates where few vertices are active."""
    fewest = max(FEWEST_CONTRIBUTIONS, FEWEST_A_VERTEX * graph.vertex_count)
    return graph.edge_count * width >= fewest


def decide(step: Step, active_count: int | None) -> tuple[Any, ...]:
    """Return what the number of active vertices decides of a superstep."""
    incremental = step._is_incremental(active_count)
    if not incremental and step._sweeps_all(active_count):
        return ("all",)
    if step.is_played:
        return (*step.plain.forms(active_count, None),)
    graph = step.state.graph
    runs = step._prepare()[0] if incremental else step.plain
    vertices, edges = runs.bound.graph.whole  # as `expand` asks
    sizes = [edges * (2 if a == "both" else 1) for a in runs.plan.expands]
    return (
        incremental,
        step._can_choose and step._may_push(active_count),
        *(is_dense(active_count, vertices, size) for size in sizes),
        pulls_all(runs.bound, active_count),
        graph.ranks is not None and are_many(active_count, graph.vertex_count),
        *runs.forms(active_count, step.only),
    )


def decides(step: Step, active_count: int, meant: tuple[Any, ...]) -> bool:
    """Whether so many active vertices decide what is meant, as `decide` has it.

    Nothing is folded, nor a superstep made, to know that: where it would take some, the
    answer is no.
    """
    if step.takes_folding(active_count):
        return False
    is_meant_incremental = meant[0] is True
    if step._is_incremental(active_count) != is_meant_incremental:
        return False
    return decide(step, active_count) == meant


def patches_left(step: Step) -> int | None:
    """Return how many supersteps may yet patch before all is recomputed; None: any."""
    known = step._incremental
    is_bounded = known is not None and not known.is_exact and step.work == "patched"
    if not is_bounded or step.recompute_every is None:
        return None
    return step.recompute_every - 1 - step.patched_supersteps


def connect_steps(steps: list[Step]) -> None:
    """Tell each step of a run what all of them change.

    Raises
    ------
    PlanError
        If due vertices that ``.on`` leaves out would miss something.
    """
    for step in steps:
        found = step.plan.facts.from_active
        if found and step.on is not None:
            raise PlanError(
                f"{found[0]} gathers from active vertices only, and what "
                ".on leaves out would miss them",
                where=".on",
                fix='drop sources="active", or .on',
            )
    changes = join_changes(s.plan.facts.changes for s in steps)
    sweeps = steps[0].device.name in SWEEPING_TARGETS
    announces = all(s.announces and s.change_driven == "auto" for s in steps)
    for step in steps:
        step.changes = changes
        step.may_sweep_all = sweeps and announces


def check_any_order(steps: list[Step], where: str) -> None:
    """See that a run may evaluate vertices in any order, and keep nothing.

    Raises
    ------
    PlanError
        Where a function or an option is against it.
    """
    change_driven = steps[0].change_driven
    if change_driven is True or (change_driven is False and where != IN_PLACE):
        raise PlanError(
            "kept aggregates account for what sources were when a superstep began"
            if change_driven
            else "every vertex is active in every superstep, and none can wait",
            where=where,
            got=f"change_driven={change_driven}",
            fix="use change_driven='auto', which keeps nothing here",
        )
    for step in steps:
        step.plan.check_any_order(step.changes, where)


def check_dense(steps: list[Step], active: Any, goes_on: bool) -> None:
    """See that evaluating every vertex in every superstep changes no result.

    Raises
    ------
    PlanError
        Where it could.
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
