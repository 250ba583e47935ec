"""The plan: every decision about a kernel, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from featgraph.base.cached import cached_property
from featgraph.base.padding import stored_shape
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.changes import (
    Changes,
    IncrementalGathers,
    check_any_order,
    check_dense,
)
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.plan.halos import Halo, Refusal, Split
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.traits import (
    COLUMN,
    EDGES_ALONG,
    REVERSED,
    GraphTraits,
    Rows,
    rows_along,
)
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.schedules.mapping import Mapping as ThreadMapping
from featgraph.fold.schedules.table import SCHEDULES, describe
from featgraph.program.combines import Combine
from featgraph.program.signature import PropertyKind, Real

__all__ = [
    "VERTICES",
    "WORKLIST",
    "FoldPlan",
    "GatherReads",
    "Phase",
    "PlanFacts",
    "Reduction",
]

#: The frontier form of a plan that has nothing but a loop over supersteps of few
#: vertices.
WORKLIST = "worklist"
#: That of a stage within such a loop (CPU): sweeps go over lists of vertices.
VERTICES = "vertices"


@dataclass(frozen=True)
class Phase:
    """One kernel.

    Attributes
    ----------
    kind : PhaseKind
        The functions that it runs, and all that follows from that.
    from_edges : bool
        Of a triangle phase: whether it runs on the triangles of the edges that passed.
    functions : tuple of int
        Places of its functions in the foldmap.
    width : int
        K of its feature-indexed functions.
    mapping : ThreadMapping
        How features and edges go to threads.
    reason : str
        Why it begins here.
    loads, stores : tuple of str
        Temporaries read from, and left in, memory.
    indexes : tuple of str
        Temporaries of which single entries are read from memory, and no whole rows.
    copies : tuple of str
        Iterated properties whose ``_next`` entries are copied from the current ones
        first.
    restores : tuple of str
        Iterated properties whose ``_next`` entries are put back where a function
        returns False. A copy that no function has touched by then stays.
    restores_behind : tuple of str
        Those that are put back behind the kernel, since its functions may read them at
        any vertex, or at twins, until then.
    commits : tuple of str
        Iterated properties whose ``_next`` entries are committed in the kernel, where
        the last function returned True.
    spreads : bool
        Whether a vertex that was committed has those that gather from it run in the
        same superstep, as far as their turn is yet to come.
    writes_next : tuple of str
        Iterated properties that it writes.
    incremental : tuple of str
        Temporaries that stay in memory between supersteps and are patched there.
    tiles : tuple of str
        Matrices that are sums of outer products, added up in registers tile by tile.
    in_registers : tuple of str
        Matrices that a thread sums in registers.
    solved : tuple of str
        Those of them that go nowhere but into `fg.solve`, and never into memory.
    stops : tuple of str
        Temporaries whose gathers need not look at all edges.
    finds_due : bool
        Whether its kernel finds which of the vertices that it sweeps are due: those
        that are active, and those with an edge from an active one.
    along : str
        Which edges its gathers go along, as arrays of the graph list them.
    finds_edges : bool
        Whether a sweep that is not along in-edges looks up edge ids.
    into : str
        What a push or a reduce fills.
    touches_next : tuple of (str, bool)
        Iterated properties whose ``_next`` entries it reads, writes or puts back, and
        whether it may read any that it does not write before.
    is_behind_vertices : bool
        Whether a vertex function runs in a phase before it.
    in_a_tree : bool
        Of a reduce: whether it leaves a partial result for each word of vertices, and
        these are combined in a tree that no device and no number of ranks changes.
    of_edges : tuple of str
        Properties of edges that its functions access.
    reverses : bool
        Whether they use the reverse of an edge.
    changed_only : bool
        Whether it sweeps edges of which something has changed, and no others, or is
        behind a phase that does (0069).
    marks : tuple of str
        Properties of edges that it adds to, and notes where: they have changed then.
    record : str
        Of an exclusive phase: the property that gets the turns of each edge.
    ordered : tuple of str
        Of an exclusive phase: properties of edges whose values functions are given,
        from copies in the order in which edges are taken.
    passes_all : bool
        Of an exclusive phase: whether each edge makes its ends due. Where all edges
        run, these are known without marks.
    conflicts : str
        The ends, "u" and "v", at which its edges conflict with each other.
    by_slot : bool
        Whether slots number its edges: see `Rows`.
    any_width : str
        Text that K is read from where one kernel serves any K that is not unrolled
        (CPU); "1" beside such a phase where there are no features, "" elsewhere.
    combines : tuple of int
        Numbers of the later reduces to which vertices contribute in its sweep.
    combined_in : int
        Of a reduce: the number of the phase that sweeps its vertices; -1 for its own.
    """

    kind: PhaseKind
    functions: tuple[int, ...]
    width: int
    mapping: ThreadMapping
    reason: str
    loads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    restores_behind: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    spreads: bool = False
    writes_next: tuple[str, ...] = ()
    from_edges: bool = False
    incremental: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    in_registers: tuple[str, ...] = ()
    solved: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    finds_due: bool = False
    along: str = "in"
    finds_edges: bool = True
    into: str = ""
    touches_next: tuple[tuple[str, bool], ...] = ()
    is_behind_vertices: bool = False
    in_a_tree: bool = False
    of_edges: tuple[str, ...] = ()
    reverses: bool = False
    changed_only: bool = False
    marks: tuple[str, ...] = ()
    record: str = ""
    ordered: tuple[str, ...] = ()
    passes_all: bool = False
    conflicts: str = ""
    by_slot: bool = False
    any_width: str = ""
    combines: tuple[int, ...] = ()
    combined_in: int = -1

    @property
    def width_text(self) -> str:
        """K, to read."""
        return "any" if self.any_width not in {"", "1"} else str(self.width)

    def describe_mapping(self) -> str:
        """Return how features and edges go to threads, in words."""
        is_any = self.width_text == "any"
        return describe(self.mapping, 0 if is_any else self.width)

    @property
    def schedule(self) -> Schedule:
        """How vertices, edges and features go to threads."""
        return SCHEDULES[self.mapping.schedule]

    @property
    def rows(self) -> Rows:
        """The rows of edges that its kernels go through."""
        rows = rows_along(self.rows_along, finds_edges=self.finds_edges)
        return replace(rows, by_slot=True) if self.by_slot else rows

    @property
    def rows_along(self) -> str:
        """Along which edges these rows lead."""
        return self.along if self.kind.pulls else REVERSED[self.along]


@dataclass(frozen=True)
class Reduction:
    """The result of one reduce, ``d.name``.

    Attributes
    ----------
    shape : tuple of int
        Its shape.
    dtype, partial_dtype : str
        Of the result, and of what its parts leave.
    is_read : bool
        Whether a function of the foldmap reads it.
    combine : Combine
        The operator.
    """

    shape: tuple[int, ...]
    dtype: str
    partial_dtype: str
    is_read: bool
    combine: Combine


@dataclass(frozen=True)
class GatherReads:
    """The properties that a gather reads, and its combine.

    Attributes
    ----------
    name : str
        As the user has called it.
    combine : Combine
        The operator.
    of_neighbors : tuple of str
        Properties that it reads at the other end of an edge.
    anywhere : tuple of str
        All properties that it reads.
    along : str
        Along which edges: "in", "out" or "both".
    from_active : bool
        Whether it combines over edges from active vertices only.
    """

    name: str
    combine: Combine
    of_neighbors: tuple[str, ...]
    anywhere: tuple[str, ...]
    along: str
    from_active: bool


@dataclass(frozen=True)
class PlanFacts:
    """Facts of a plan that the runtime needs, besides its phases.

    Attributes
    ----------
    names : tuple of str
        The functions, as the user has called them.
    direction : str
        "pull" or "push", whichever its gathers are; "-" without any.
    may_push : bool
        Whether supersteps of this plan, which pulls, may as well be pushed: the result
        is the same bit for bit.
    is_announced : bool
        Whether all that changes is announced to what reads it, and a vertex that is
        evaluated without being due commits nothing.
    reads_foreign : bool
        Whether a function reads at vertices that are neither source nor target.
    tells_targets : bool
        Whether targets of edges that returned True are active behind a superstep.
    has_late_reduce : bool
        Whether functions on due vertices read what a reduce has made of values that
        functions in front of it wrote: every vertex is due.
    from_active : tuple of str
        The gathers that combine over edges from active vertices only.
    gathers : tuple of GatherReads
        All gathers.
    changes : Changes
        What the foldmap changes.
    writes : tuple of str
        Properties that it writes, in place or for the next superstep.
    writes_next : tuple of str
        Iterated properties that it writes.
    seen_elsewhere : tuple of str
        Properties that functions access at other vertices, or at edges.
    read_here, read_elsewhere : frozenset of str
        Properties and degrees that functions read at the vertex, or edge, that they run
        on, and at other vertices and at the ends of edges.
    along_edges : bool
        Whether there are functions of edges or of triangles.
    scalars : tuple of str
        Scalars and vectors that it reads, but for what its own reduces fill.
    incremental_scalars : tuple of str
        Those that incremental gathers read.
    reductions : dict of str to Reduction
        What its reduces fill.
    not_queued : str
        Why no compiled loop can run its supersteps; "" if one can.
    queue_keys : tuple of str
        Properties by which such a loop separates near vertices from far ones.
    triangles_at : str
        Where a triangle function stands, which needs rows by degree; "" without one.
    twins_at : (str, str)
        An operation that needs twins, and where it stands; "" twice without one.
    halos : tuple of Halo
        Of each phase: what it reads of vertices that other ranks may own.
    sent_rows : tuple of str
        Properties whose committed rows are sent with the set of their vertices.
    split : Split
        The phase that may be swept in pieces, while rows of finished pieces are sent.
    not_shared : Refusal or None
        Why it does not run on several ranks.
    edges_at : str
        Where a function stands that writes edges, or reads what they will be; ""
        without one.
    out_edges_at : str
        Where a function stands that needs the edges out of vertices; "" without one.
    """

    names: tuple[str, ...]
    direction: str
    may_push: bool
    is_announced: bool
    reads_foreign: bool
    tells_targets: bool
    has_late_reduce: bool
    from_active: tuple[str, ...]
    gathers: tuple[GatherReads, ...]
    changes: Changes
    writes: tuple[str, ...]
    writes_next: tuple[str, ...]
    seen_elsewhere: tuple[str, ...]
    read_here: frozenset[str]
    read_elsewhere: frozenset[str]
    along_edges: bool
    scalars: tuple[str, ...]
    incremental_scalars: tuple[str, ...]
    reductions: dict[str, Reduction]
    not_queued: str
    queue_keys: tuple[str, ...]
    triangles_at: str
    twins_at: tuple[str, str]
    halos: tuple[Halo, ...]
    sent_rows: tuple[str, ...]
    split: Split
    not_shared: Refusal | None
    edges_at: str
    out_edges_at: str


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """The kernels of a foldmap.

    Attributes
    ----------
    analysis : Analysis
        The middle end's result.
    options : Options
        Options of the call.
    phases : tuple of Phase
        In the order in which they run.
    expands : tuple of str
        Along which edges vertices gather: those that gather from the active set are
        due; empty where edge functions decide which are.
    incremental : IncrementalGathers
        Which gathers can be incremental; they are if `is_incremental`.
    facts : PlanFacts
        Facts that the runtime needs besides the phases.
    frontier_form : str
        How its kernels come to the vertices of a set (CUDA): "plain", a place of the
        grid for each vertex of the graph; "packed", for few, which a warp looks for in
        many words at a time and shares out among its lanes; "listed", those of a list
        that has all of the set; "worklist", supersteps hand lists on, and run one after
        the other in one kernel. On the CPU "plain", or "vertices" for a stage of a
        loop: a list, except for reduces that depend on the order of all vertices.
    """

    analysis: Analysis
    options: Options
    traits: GraphTraits
    phases: tuple[Phase, ...]
    expands: tuple[str, ...]
    incremental: IncrementalGathers
    facts: PlanFacts
    frontier_form: str = "plain"

    @property
    def is_incremental(self) -> bool:
        """Whether aggregates that can be patched stay in memory between supersteps."""
        return self.options.incremental is not None

    @property
    def has_edge_state(self) -> bool:
        """Whether a later phase needs the set of edges that passed."""
        edges = sum(p.kind.sweeps_edges for p in self.phases)
        return edges > 1 or any(p.from_edges for p in self.phases)

    @property
    def target(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self.options.target

    @property
    def real(self) -> Real:
        """The type of real numbers."""
        return self.analysis.real

    @property
    def strides(self) -> dict[str, int]:
        """Elements from one row to the next of properties that have rows, by name."""
        found = {}
        for name, type_ in self.analysis.signature.items():
            of_rows = type_.kind in {PropertyKind.VERTEX, PropertyKind.EDGE}
            if of_rows and len(type_.item_shape) == 1:
                shape = (1, *type_.item_shape)
                on_gpu = self.target == "cuda"
                found[name] = (stored_shape(shape, type_.dtype) if on_gpu else shape)[1]
        return found

    def functions_of(self, phase: Phase) -> list[Analysed]:
        """Return the functions of a phase."""
        return [self.analysis.functions[i] for i in phase.functions]

    @cached_property
    def width(self) -> int:
        """Features of its widest phase."""
        return max(phase.width for phase in self.phases)

    def swept_by(self, phase: Phase) -> list[Analysed]:
        """Return the functions that the sweep of a phase calls, with those of reduces.

        There are none for a reduce that another phase combines.
        """
        phases = [phase] * (phase.combined_in < 0)
        phases += [self.phases[n] for n in phase.combines]
        return [f for one in phases for f in self.functions_of(one)]

    def can_take(self, frontier_form: str, phase: Phase) -> bool:
        """Whether a phase sweeps a set so, and the lane of a vertex does not matter."""
        if frontier_form == WORKLIST:
            return not self.facts.not_queued
        if frontier_form == VERTICES:
            return self.target == "cpu"
        if self.options.checked or phase.changed_only:
            return False
        if frontier_form not in phase.schedule.frontier_forms:
            return False
        if frontier_form == "listed":  # pulled edges sweep others, too
            return phase.kind.pulls and not phase.kind.pulls_edges
        if phase.kind.pushes:
            return self.takes_active(phase)
        return phase.kind.reports_due

    def takes_active(self, phase: Phase) -> bool:
        """Whether a gather of a phase leaves out edges from vertices not active."""
        return any(map(takes_active, self.functions_of(phase)))

    def widens_active(self, phase: Phase) -> bool:
        """Whether vertices that a phase commits are active from then on (S8)."""
        return self.options.asynchronous and self.takes_active(phase)

    def column_array(self, name: str) -> str:
        """Return the array that a graph's column is, by the name of its property.

        "" for other properties.
        """
        type_ = self.analysis.signature.get(name)
        if type_ is None or not type_.column:
            return ""
        order = next((p.rows_along for p in self.phases if p.by_slot), "id")
        return f"{COLUMN} {order} {type_.column}"

    def item_shape(self, temporary: str) -> tuple[int, ...]:
        """Return the shape of one entry of what a gather fills."""
        return self.analysis.temporaries[temporary].item_shape

    def check_any_order(self, changes: Changes, where: str) -> None:
        """Refuse a foldmap whose result could depend on which vertices run when.

        Parameters
        ----------
        changes : Changes
            What all foldmaps of the run change.
        where : str
            The option that requires this.

        Raises
        ------
        PlanError
            Names the function, what it does, and a fix.
        """
        check_any_order(self.analysis, [changes], where)

    def check_dense(self, others: Sequence[FoldPlan], where: str) -> None:
        """Refuse a foldmap whose result depends on which vertices are due.

        Parameters
        ----------
        others : sequence of FoldPlan
            The other foldmaps of the run.
        where : str
            The option that requires this.

        Raises
        ------
        PlanError
            Names the function, and what it does or reads.
        """
        theirs = [other.analysis.functions for other in others]
        check_dense(self.analysis.functions, theirs, where)

    def seen_of(self, phase: Phase) -> list[Analysed]:
        """Return the kept gathers of a phase as they were: their old contributions."""
        found = [self.incremental.gathers[into] for into in phase.incremental]
        return [gather.seen for gather in found if gather.seen is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON and for people."""
        return {
            "target": self.target,
            "storage": self.real,
            "options": dataclasses.asdict(self.options),
            "expands": self.expands,
            "strides": self.strides,
            "phases": [
                dataclasses.asdict(p)
                | {"kind": p.kind.name, "pulls_edges": p.kind.pulls_edges}
                | {"functions": [f.name for f in self.functions_of(p)]}
                for p in self.phases
            ],
            "accesses": {
                f.name: [dataclasses.asdict(a) for a in f.accesses]
                for f in self.analysis.functions
            },
        }

    def __str__(self) -> str:
        return self.describe(range(len(self.phases)))

    def describe(self, numbers: Iterable[int]) -> str:
        """Return the decisions about some phases, in words."""
        lines = [f"FoldPlan for {self.target}, {self.real}"]
        for number in numbers:
            phase = self.phases[number]
            of_phase = " + ".join(f.name for f in self.functions_of(phase))
            k = phase.width_text
            lines.append(f"  kernel {number}: {phase.kind} phase, K = {k}: {of_phase}")
            lines.append(f"    begins here: {phase.reason}")
            if phase.kind.pulls_edges:
                lines.append(
                    "    edge functions run along in-edges whose source is active"
                )
            if phase.from_edges:
                lines.append("    on the triangles of edges that passed")
            elif phase.changed_only:
                lines.append("    on edges of which something has changed")
            if phase.along != "in":
                lines.append(f"    gathers along: {EDGES_ALONG[phase.along]}")
            if phase.kind.in_turns:
                ends = " and ".join(phase.conflicts) or "neither end"
                lines.append(f"    edges conflict at: {ends}")
            if phase.combined_in < 0:
                lines.append(f"    mapping: {phase.describe_mapping()}")
            else:
                lines.append(
                    f"    combined in: the sweep of kernel {phase.combined_in}"
                )
            if phase.in_a_tree:
                lines.append("    sums: of 32 vertices, in a tree of 32 branches")
            if phase.mapping.block:
                lines.append(f"    sums: in blocks of {phase.mapping.block}, pairwise")
            for label in (
                "loads",
                "indexes",
                "stores",
                "incremental",
                "copies",
                "restores",
                "restores_behind",
                "commits",
                "tiles",
                "in_registers",
                "stops",
            ):
                names = ", ".join(getattr(phase, label))
                if names:
                    lines.append(f"    {label}: {names}")
        return "\n".join(lines)
