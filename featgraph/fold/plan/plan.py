"""The plan: every decision about the kernels of a foldmap, as data.

A `FoldPlan` has a `Phase` for each kernel, and `PlanFacts` for the runtime. `planner`
makes it, `passes` and `printing` generate code from it, and it decides nothing itself.
"""

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

#: Frontier form of a plan that is a loop over supersteps of few vertices.
WORKLIST = "worklist"
#: Frontier form of a stage in such a loop (CPU): sweeps go over lists of vertices.
VERTICES = "vertices"


@dataclass(frozen=True)
class Phase:
    """One kernel.

    Attributes
    ----------
    kind : PhaseKind
        Kind: which functions run in it, its arguments and its nest.
    from_edges : bool
        Triangle phases: whether it runs on the triangles of edges that passed only.
    functions : tuple of int
        Positions of its functions in the foldmap.
    width : int
        K of its feature-indexed functions.
    mapping : ThreadMapping
        Assignment of features and edges to threads.
    reason : str
        Reason why it begins here, and why its functions do not join the phase before.
    loads, stores : tuple of str
        Temporaries that it reads from memory, and that it writes there.
    indexes : tuple of str
        Temporaries of which it reads single entries from memory, but no whole rows.
    copies : tuple of str
        Iterated properties whose current entries are copied to ``_next`` first, since
        some path does not write these.
    restores : tuple of str
        Iterated properties whose ``_next`` entries are reset to the current ones where
        a function returns False.
    restores_behind : tuple of str
        Iterated properties that are restored after the kernel, since until then its
        functions may read their ``_next`` entries at any vertex, or at twins.
    commits : tuple of str
        Iterated properties whose ``_next`` entries are committed in the kernel, where
        the last function returned True (``asynchronous=True``).
    spreads : bool
        Whether a committed vertex makes the vertices that gather from it due in the
        same superstep, if the sweep has not passed them yet.
    writes_next : tuple of str
        Iterated properties that it writes.
    incremental : tuple of str
        Temporaries that stay in memory between supersteps and are patched there.
    tiles : tuple of str
        Matrices that are sums of outer products, added up in registers tile by tile.
    in_registers : tuple of str
        Matrices that a thread sums in registers.
    solved : tuple of str
        Matrices of `in_registers` that are read by `fg.solve` only, so that they are
        never stored.
    stops : tuple of str
        Temporaries whose gathers may end before the last edge.
    finds_due : bool
        Whether its kernel finds which of the swept vertices are due: active vertices,
        and vertices with an edge from an active one.
    along : str
        Edges that its gathers go along: "in", "out" or "both".
    finds_edges : bool
        Whether a sweep that is not along in-edges looks up edge ids.
    into : str
        Result of a push or a reduce.
    touches_next : tuple of (str, bool)
        Iterated properties whose ``_next`` entries it reads, writes or restores, and
        whether it may read an entry that it has not written before.
    is_behind_vertices : bool
        Whether a vertex function runs in a phase before it.
    in_a_tree : bool
        Reduces: whether it stores a partial result for each word of 32 vertices, which
        are combined in the same tree on every device and any number of ranks.
    of_edges : tuple of str
        Edge properties that its functions access.
    reverses : bool
        Whether its functions use the reverse of an edge.
    changed_only : bool
        Whether it sweeps changed edges only, or follows a phase that does (0069).
    marks : tuple of str
        Edge properties to which it adds; it inserts the edges in the set of changed
        edges.
    record : str
        Exclusive phases: edge property that gets the turns of each edge.
    ordered : tuple of str
        Exclusive phases: edge properties that functions get by value, from copies in
        the order of edges.
    passes_all : bool
        Exclusive phases: whether each edge makes both ends due. If all edges run, the
        kernel then need not mark these.
    conflicts : str
        Exclusive phases: the ends, "u" and "v", at which edges conflict.
    by_slot : bool
        Whether its edges are numbered by slot: see `Rows`.
    any_width : str
        Text of K in a kernel that serves any K whose features are not unrolled (CPU);
        "1" for a phase without features in the same module; else "".
    combines : tuple of int
        Positions of later reduces to which vertices contribute in its sweep.
    combined_in : int
        Reduces: position of the phase in whose sweep vertices contribute; -1 if it has
        a sweep of its own.
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
        """K in words: "any" for a kernel that serves any K."""
        return "any" if self.any_width not in {"", "1"} else str(self.width)

    def describe_mapping(self) -> str:
        """Return the mapping in words."""
        is_any = self.width_text == "any"
        return describe(self.mapping, 0 if is_any else self.width)

    @property
    def schedule(self) -> Schedule:
        """Schedule of the mapping."""
        return SCHEDULES[self.mapping.schedule]

    @property
    def rows(self) -> Rows:
        """The rows of edges that its kernel walks."""
        rows = rows_along(self.rows_along, finds_edges=self.finds_edges)
        return replace(rows, by_slot=True) if self.by_slot else rows

    @property
    def rows_along(self) -> str:
        """Edges in these rows: `along`, seen from the sources if it pushes."""
        return self.along if self.kind.pulls else REVERSED[self.along]


@dataclass(frozen=True)
class Reduction:
    """The result of one reduce, ``d.name``.

    Attributes
    ----------
    shape : tuple of int
        Its shape.
    dtype, partial_dtype : str
        Dtype of the result, and of partial results.
    is_read : bool
        Whether a function of the foldmap reads it.
    combine : Combine
        Its combine.
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
        Name of the user's function.
    combine : Combine
        Its combine.
    of_neighbors : tuple of str
        Properties that it reads at the other end of an edge.
    anywhere : tuple of str
        All properties that it reads.
    along : str
        Declared direction: "in", "out" or "both".
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

    Places in the user's code have the form "file:line".

    Attributes
    ----------
    names : tuple of str
        Names of the user's functions.
    direction : str
        "pull" or "push", the direction of its gathers; "-" without gathers.
    may_push : bool
        Whether a superstep of this plan, which pulls, may be pushed instead, with the
        same bits.
    is_announced : bool
        Whether active sets have all vertices that change, and a vertex that runs
        without being due commits nothing.
    reads_foreign : bool
        Whether a function reads at computed vertices, neither source nor target.
    tells_targets : bool
        Whether targets of edges that returned True are active behind a superstep.
    has_late_reduce : bool
        Whether functions on due vertices read the result of a reduce that depends on
        values written in the same superstep. Every vertex is due then.
    from_active : tuple of str
        The gathers that combine over edges from active vertices only.
    gathers : tuple of GatherReads
        All gathers.
    changes : Changes
        Properties that the foldmap changes.
    writes : tuple of str
        Properties that it writes, in place or for the next superstep.
    writes_next : tuple of str
        Iterated properties that it writes.
    seen_elsewhere : tuple of str
        Properties that functions access at other vertices, or at edges.
    read_here, read_elsewhere : frozenset of str
        Properties and degrees that functions read at the vertex or edge on which they
        run; those that they read at other vertices, twins and ends of edges.
    along_edges : bool
        Whether there are functions of edges or of triangles.
    scalars : tuple of str
        Scalars and vectors that it reads, without the results of its own reduces.
    incremental_scalars : tuple of str
        Scalars and vectors that incremental gathers read.
    reductions : dict of str to Reduction
        Results of its reduces.
    not_queued : str
        Reason why no loop in one launch can run its supersteps; "" if it can.
    queue_keys : tuple of str
        Properties by which such a loop separates near vertices from far ones.
    triangles_at : str
        Place of a triangle function, which needs rows by degree; "" without one.
    twins_at : (str, str)
        An operation that needs twins, and its place; ("", "") without one.
    halos : tuple of Halo
        For each phase: properties that it reads at vertices of other ranks.
    sent_rows : tuple of str
        Properties whose committed rows are sent with the set of their vertices.
    split : Split
        The phase that may be swept in pieces, while rows of finished pieces are sent.
    not_shared : Refusal or None
        Reason why it does not run on several ranks; None if it does.
    edges_at : str
        Place of a function that writes edge properties, or reads their next entries; ""
        without one.
    out_edges_at : str
        Place of a function that needs out-edges; "" without one.
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
        Analysis of the program.
    options : Options
        Options of the call.
    traits : GraphTraits
        Traits of the graph.
    phases : tuple of Phase
        In the order in which they run.
    expands : tuple of str
        Edges along which vertices gather, "in", "out" or "both": vertices that gather
        from the active set are due. Empty if edge functions determine the due vertices.
    incremental : IncrementalGathers
        Gathers that can be incremental; they are if `is_incremental`.
    facts : PlanFacts
        Facts that the runtime needs besides the phases.
    frontier_form : str
        How kernels find the vertices of a set. On CUDA:

        - "plain": each vertex of the graph has its lanes in the grid.
        - "packed": for few vertices, which a warp finds in many words at a time and
          distributes over its lanes.
        - "listed": lanes take the vertices of a list of the set.
        - "worklist": one kernel runs superstep after superstep, each from the list that
          the one before has made.

        On the CPU "plain"; or "vertices", for a stage of a loop: vertices are those of
        a list, except in reduces that depend on the order of all vertices.
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
    def printed(self) -> tuple[Any, ...]:
        """Everything on which its text depends besides program, types and options.

        Traits such as the typical degree are in the mappings of the phases.
        """
        traits = self.traits
        of_rows = traits.layout, traits.undirected, traits.wide_offsets
        return self.phases, self.expands, of_rows, traits.renumbered

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
        """Target, "cpu" or "cuda"."""
        return self.options.target

    @property
    def real(self) -> Real:
        """The type of real numbers."""
        return self.analysis.real

    @property
    def strides(self) -> dict[str, int]:
        """Property with rows -> elements from the begin of one row to the next."""
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
        """The largest K of its phases."""
        return max(phase.width for phase in self.phases)

    def swept_by(self, phase: Phase) -> list[Analysed]:
        """Return the functions that the sweep of a phase calls.

        They include the reduces that it `combines`; such a reduce has no sweep itself.
        """
        phases = [phase] * (phase.combined_in < 0)
        phases += [self.phases[n] for n in phase.combines]
        return [f for one in phases for f in self.functions_of(one)]

    def can_take(self, frontier_form: str, phase: Phase) -> bool:
        """Return whether a phase can run in a frontier form, with the same results."""
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
        """Return whether a gather of a phase skips edges from inactive vertices."""
        return any(map(takes_active, self.functions_of(phase)))

    def widens_active(self, phase: Phase) -> bool:
        """Return whether committed vertices are active in the same superstep (S8)."""
        return self.options.asynchronous and self.takes_active(phase)

    def column_array(self, name: str) -> str:
        """Return the name of a graph's array for a property that is a column.

        "" for other properties. A name has three words: `COLUMN`, the order of the
        values ("id", or the edges of rows by slot), and the name of the column.
        """
        type_ = self.analysis.signature.get(name)
        if type_ is None or not type_.column:
            return ""
        order = next((p.rows_along for p in self.phases if p.by_slot), "id")
        return f"{COLUMN} {order} {type_.column}"

    def item_shape(self, temporary: str) -> tuple[int, ...]:
        """Return the shape of one entry of a temporary."""
        return self.analysis.temporaries[temporary].item_shape

    def check_any_order(self, changes: Changes, where: str) -> None:
        """Raise if the result could depend on the order in which vertices run.

        Parameters
        ----------
        changes : Changes
            Changes of all foldmaps of the run.
        where : str
            The option that requires this.

        Raises
        ------
        PlanError
            With the function, the reason, and a fix.
        """
        check_any_order(self.analysis, [changes], where)

    def check_dense(self, others: Sequence[FoldPlan], where: str) -> None:
        """Raise if the result depends on which vertices are due.

        Parameters
        ----------
        others : sequence of FoldPlan
            The other foldmaps of the run.
        where : str
            The option that requires this.

        Raises
        ------
        PlanError
            With the function, and the effect or read that forbids it.
        """
        theirs = [other.analysis.functions for other in others]
        check_dense(self.analysis.functions, theirs, where)

    def seen_of(self, phase: Phase) -> list[Analysed]:
        """Return the functions that compute old contributions in a phase."""
        found = [self.incremental.gathers[into] for into in phase.incremental]
        return [gather.seen for gather in found if gather.seen is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, strings and numbers, for JSON."""
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
