"""FoldPlan: every decision about a foldmap's kernels, not how they are printed.

`plan_phases` finds which neighbouring functions can share a kernel; `choose` picks the
mapping of features and edges to threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featgraph.errors import PlanError
from featgraph.fold import choose
from featgraph.fold.accumulators import in_blocks, rounds
from featgraph.fold.adjacency import (
    REVERSED,
    SAID,
    Rows,
    along_of,
    expands_along,
    phase_along,
    rows_along,
    traits_along,
)
from featgraph.fold.analyse import Analysed, Analysis, analyse
from featgraph.fold.choose import (
    MOST_HELD,
    GraphTraits,
    choose_mapping,
    intersect_at_edges,
)
from featgraph.fold.choose import Mapping as ThreadMapping
from featgraph.fold.first import find_stops, takes_active
from featgraph.fold.functions import temporaries_of
from featgraph.fold.gathered import base_name
from featgraph.fold.group import Group, group_functions
from featgraph.fold.keep import Keeping, changes_of, find_kept, join_changes
from featgraph.fold.options import INTERSECTIONS, Options
from featgraph.fold.pulled import pull_edges
from featgraph.fold.small_solve import is_only_solved
from featgraph.fold.unordered import IN_PLACE, check_in_place, check_unordered
from featgraph.program.program import Program
from featgraph.program.signature import Signature

__all__ = ["FoldPlan", "Phase", "make_plan"]


@dataclass(frozen=True)
class Phase:
    """One kernel.

    Attributes
    ----------
    kind : str
        "vertex" (gathers pulled and vertex functions), "push" (one gather, atomics into
        memory), "edge", "triangle" or "reduce".
    pulls_edges : bool
        Of a vertex phase: whether it begins with edge functions, which run along the
        in-edges whose source is active.
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
        returns False.
    commits : tuple of str
        Iterated properties whose ``_next`` entries are committed in the kernel, where
        the last function returned True.
    spreads : bool
        Whether a vertex that was committed has those that gather from it run in the
        same superstep, as far as their turn is yet to come.
    writes_next : tuple of str
        Iterated properties that it writes.
    keeps : tuple of str
        Temporaries that stay in memory between supersteps and are patched there.
    tiles : tuple of str
        Matrices that are sums of outer products, added up in registers tile by tile.
    held : tuple of str
        Matrices that a thread sums in registers.
    solved : tuple of str
        Those of them that go nowhere but into `fg.solve`, and never into memory.
    stops : tuple of str
        Temporaries whose gathers need not look at all edges.
    along : str
        Which edges its gathers go along, as arrays of the graph list them.
    finds_edges : bool
        Whether a sweep that is not along in-edges looks up edge ids.
    """

    kind: str
    functions: tuple[int, ...]
    width: int
    mapping: ThreadMapping
    reason: str
    loads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    spreads: bool = False
    writes_next: tuple[str, ...] = ()
    pulls_edges: bool = False
    from_edges: bool = False
    keeps: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    solved: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    along: str = "in"
    finds_edges: bool = True

    @property
    def rows(self) -> Rows:
        """The rows of edges that its kernels go through."""
        along = self.along if self.kind == "vertex" else REVERSED[self.along]
        return rows_along(along, finds_edges=self.finds_edges)


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """The kernels of a foldmap.

    Attributes
    ----------
    analysis : Analysis
        The middle end's result.
    options : Options
        What was asked for.
    phases : tuple of Phase
        In the order in which they run.
    expands : tuple of str
        Along which edges vertices gather, so that all who gather from the active set
        are due; empty where edge functions say who is.
    keeping : Keeping
        Which aggregates can be kept between supersteps; they are if `keeps`.
    form : str
        How its kernels come to the vertices of a set (CUDA): "plain", a place of the
        grid for each vertex of the graph; "packed", for few, which a warp looks for in
        many words at a time and shares out among its lanes; "listed", those of a list
        that has all of the set.
    """

    analysis: Analysis
    options: Options
    traits: GraphTraits
    phases: tuple[Phase, ...]
    expands: tuple[str, ...]
    keeping: Keeping = dataclasses.field(default_factory=Keeping)
    form: str = "plain"

    @property
    def keeps(self) -> bool:
        """Whether it keeps the aggregates that can be kept."""
        return self.options.keep is not None

    @property
    def keeps_edge_state(self) -> bool:
        """Whether a later phase must know which edges passed."""
        edges = sum(p.kind == "edge" for p in self.phases)
        return edges > 1 or any(p.from_edges for p in self.phases)

    @property
    def target(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self.options.target

    @property
    def real(self) -> str:
        """Storage type of real numbers."""
        return self.analysis.real

    def functions_of(self, phase: Phase) -> list[Analysed]:
        """Return the functions of a phase."""
        return [self.analysis.functions[i] for i in phase.functions]

    def can_take(self, form: str, phase: Phase) -> bool:
        """Whether a phase sweeps a set so, and nothing depends on who sweeps whom."""
        if self.options.checked:
            return False
        if form == "listed":  # pulled edges sweep others, too
            return phase.kind == "vertex" and not phase.pulls_edges
        if phase.kind == "push":
            return self.takes_active(phase)
        return phase.kind in {"vertex", "edge"}

    def takes_active(self, phase: Phase) -> bool:
        """Whether a gather of a phase leaves out edges from vertices not active."""
        functions = self.functions_of(phase)
        return not self.options.asynchronous and any(map(takes_active, functions))

    def seen_of(self, phase: Phase) -> list[Analysed]:
        """Return the kept gathers of a phase as they were: their old contributions."""
        kept = [self.keeping.gathers[into] for into in phase.keeps]
        return [k.seen for k in kept if k.seen is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON and for people."""
        return {
            "target": self.target,
            "storage": self.real,
            "options": dataclasses.asdict(self.options),
            "expands": self.expands,
            "phases": [
                dataclasses.asdict(p)
                | {"functions": [f.name for f in self.functions_of(p)]}
                for p in self.phases
            ],
            "accesses": {
                f.name: [dataclasses.asdict(a) for a in f.accesses]
                for f in self.analysis.functions
            },
        }

    def __str__(self) -> str:
        lines = [f"FoldPlan for {self.target}, {self.real}"]
        for number, phase in enumerate(self.phases):
            names = " + ".join(f.name for f in self.functions_of(phase))
            lines.append(
                f"  kernel {number}: {phase.kind} phase, K = {phase.width}: {names}"
            )
            lines.append(f"    begins here: {phase.reason}")
            if phase.pulls_edges:
                lines.append(
                    "    edge functions run along in-edges whose source is active"
                )
            if phase.from_edges:
                lines.append("    on the triangles of edges that passed")
            if phase.along != "in":
                lines.append(f"    gathers along: {SAID[phase.along]}")
            lines.append(f"    mapping: {phase.mapping.describe(phase.width)}")
            if phase.mapping.block:
                lines.append(f"    sums: in blocks of {phase.mapping.block}, pairwise")
            for label in (
                "loads",
                "indexes",
                "stores",
                "keeps",
                "copies",
                "restores",
                "commits",
                "tiles",
                "held",
                "stops",
            ):
                names = ", ".join(getattr(phase, label))
                if names:
                    lines.append(f"    {label}: {names}")
        return "\n".join(lines)


def make_plan(
    program: Program, signature: Signature, options: Options, traits: GraphTraits
) -> FoldPlan:
    """Decide how `program` is folded.

    Raises
    ------
    UserFunctionError
        If a function does not fit the model or the signature.
    PlanError
        If the options cannot be honoured.
    """
    analysis = analyse(program, signature)
    functions = analysis.functions
    _check_widths(functions)
    _check_schedule(functions, options)
    changes = [changes_of(analysis), *([options.keep] if options.keep else [])]
    keeping = find_kept(analysis, join_changes(changes))
    kept = frozenset(keeping.gathers) if options.keep is not None else frozenset()
    alongs = {f.name: along_of(f, analysis, traits) for f in functions}
    if traits.wide_both and "both" in alongs.values():
        traits = dataclasses.replace(traits, wide_offsets=True)
    groups = group_functions(functions, options, kept, alongs)
    groups, pulled = pull_edges(groups, analysis, options, alongs)
    phases = _finish(analysis, groups, pulled, options, traits, kept, alongs)
    if options.asynchronous:
        check_unordered(analysis, [], IN_PLACE)
        check_in_place(analysis, phases, options)
    expands = expands_along(functions, alongs)
    plan = FoldPlan(analysis, options, traits, tuple(phases), expands, keeping)
    _check_deterministic(plan)
    return plan


def _check_widths(functions: Sequence[Analysed]) -> None:
    for function in functions:
        if function.width > 1024:
            raise PlanError(
                "more features than a kernel can take",
                where=function.name,
                got=function.width,
                expected="K <= 1024",
            )


def _check_schedule(functions: Sequence[Analysed], options: Options) -> None:
    has_triangles = any(f.kind == "triangle" for f in functions)
    if options.schedule in INTERSECTIONS and not has_triangles:
        raise PlanError(
            "this schedule intersects rows of neighbors",
            where="schedule=",
            got=repr(options.schedule),
            expected="a foldmap with a triangle function",
        )


def _finish(
    analysis: Analysis,
    groups: list[Group],
    pulled: int | None,
    options: Options,
    traits: GraphTraits,
    kept: frozenset[str],
    alongs: Mapping[str, str],
) -> list[Phase]:
    """Work out temporaries, copies and restores of each phase."""
    functions = analysis.functions
    phase_of = {i: n for n, (_, places, _) in enumerate(groups) for i in places}
    filled_in = {
        f.into: phase_of[i] for i, f in enumerate(functions) if f.kind == "gather"
    }
    phases: list[Phase] = []
    written_before: dict[str, set[str]] = {"vertex": set(), "edge": set()}
    for number, (kind, places, reason) in enumerate(groups):
        members = [functions[i] for i in places]
        here = {n for n, phase in filled_in.items() if phase == number}
        loads, indexes = _read_in_memory(members, analysis, here)
        later = [f for i, f in enumerate(functions) if phase_of[i] > number]
        stores = {
            f.into for f in members if f.kind == "gather" and kind == "vertex"
            and f.into not in kept
            and any(f.into in _temporaries_read(g, analysis) for g in later)
        }  # fmt: skip
        writes = {n for f in members for n in f.writes("next")}
        # Whose functions may return False; a gather never does.
        sides = {f.kind for f in members} & set(written_before)
        before = {n for side in sides for n in written_before[side]}
        # Behind an earlier phase of this side every entry is written, restored or
        # refreshed already.
        copies = tuple(sorted(writes - _definite(members) - before))
        restores = tuple(sorted(writes | before))
        for side in sides:
            written_before[side] |= {
                n for f in members if f.kind == side for n in f.writes("next")
            }
        width = max((f.width for f in members if not f.is_scalar), default=1)
        along, finds = phase_along(members, analysis, options, alongs)
        own = traits_along(along, traits)
        mapping = choose_mapping(kind, members, analysis, width, options, own)
        held = _held(kind, members, mapping, width, analysis)
        phases.append(
            Phase(
                kind=kind,
                functions=tuple(places),
                width=width,
                mapping=_with_blocks(mapping, kind, members, own),
                reason=reason,
                loads=tuple(sorted(loads)),
                indexes=tuple(sorted(indexes)),
                stores=tuple(sorted(s for s in stores if s)),
                copies=copies,
                restores=restores,
                commits=restores if options.asynchronous else (),
                spreads=options.asynchronous
                and options.target == "cpu"
                and any(
                    getattr(f.declared, "along", "") in {"in", "both"} for f in members
                ),
                writes_next=tuple(sorted(writes)),
                pulls_edges=number == pulled,
                keeps=tuple(str(f.into) for f in members if f.into in kept),
                tiles=_tiles(kind, members, options),
                held=held,
                stops=(
                    find_stops(members, mapping, options, kept)
                    if kind == "vertex" and number != pulled
                    else ()
                ),
                solved=_solved(held, stores, members),
                along=along,
                finds_edges=finds,
            )
        )
    return _start_at_edges(phases, options)


def _start_at_edges(phases: list[Phase], options: Options) -> list[Phase]:
    """Have triangle phases behind edge functions sweep the edges that passed."""
    made: list[Phase] = []
    for phase in phases:
        if phase.kind == "triangle" and any(p.kind == "edge" for p in made):
            mapping = intersect_at_edges(options)
            phase = dataclasses.replace(phase, from_edges=True, mapping=mapping)
        made.append(phase)
    return made


def _with_blocks(
    mapping: ThreadMapping, kind: str, members: list[Analysed], traits: GraphTraits
) -> ThreadMapping:
    """Have sums of real numbers cut into blocks where they may have many terms."""
    many = kind == "reduce" or (kind == "vertex" and traits.long_rows)
    if not many or not any(map(in_blocks, members)):
        return mapping
    return dataclasses.replace(mapping, block=choose.SUM_BLOCK)


def _solved(
    held: tuple[str, ...], stores: set[str | None], members: list[Analysed]
) -> tuple[str, ...]:
    body = [s for f in members for s in f.body]
    return tuple(n for n in held if n not in stores and is_only_solved(n, body))


def _tiles(kind: str, members: list[Analysed], options: Options) -> tuple[str, ...]:
    if kind == "push" or options.target != "cpu":
        return ()
    return tuple(sorted(str(f.into) for f in members if f.rank_one is not None))


def _held(
    kind: str,
    members: list[Analysed],
    mapping: ThreadMapping,
    width: int,
    analysis: Analysis,
) -> tuple[str, ...]:
    """Return the matrices that a thread sums in registers."""
    if kind != "vertex" or mapping.schedule != "thread" or width > MOST_HELD:
        return ()
    into = sorted(str(f.into) for f in members if f.kind == "gather")
    temporaries = [(n, analysis.temporaries[n]) for n in into]
    return tuple(
        n
        for n, t in temporaries
        if len(t.item_shape) == 2 and not t.is_arg
        if not any(other.startswith(f"{n}_") for other in into)  # as elements are named
    )


def _read_in_memory(
    members: list[Analysed], analysis: Analysis, here: set[str | None]
) -> tuple[set[str], set[str]]:
    """Return the temporaries that functions take from memory: rows, single entries."""
    read = {n for f in members for n in _temporaries_read(f, analysis)} - here
    given = {n for f in members for n in temporaries_of(f, analysis)}
    rows = read & {str(base_name(n, analysis.temporaries)) for n in given}
    return rows, read - rows


def _temporaries_read(function: Analysed, analysis: Analysis) -> set[str]:
    bases = (base_name(a.name, analysis.temporaries) for a in function.accesses)
    return {name for name in bases if name is not None}


def _definite(members: list[Analysed]) -> set[str]:
    """Return what the first function that touches it writes for certain."""
    found: set[str] = set()
    touched: set[str] = set()
    for function in members:
        found |= function.next_definite - touched
        touched |= {a.name for a in function.accesses if a.version == "next"}
    return found


def _check_deterministic(plan: FoldPlan) -> None:
    if not plan.options.deterministic:
        return
    for phase in plan.phases:
        for function in plan.functions_of(phase):
            if phase.kind == "push" and rounds(function):
                raise PlanError(
                    f"{function.name} is pushed with atomics, whose order changes the "
                    "rounding",
                    where="deterministic=True",
                    fix="use direction='pull'",
                )
            if any(a.mode == "atomic" for a in function.accesses):
                raise PlanError(
                    f"{function.name} uses fg.atomic, whose order is not defined",
                    where="deterministic=True",
                )
