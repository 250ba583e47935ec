"""The planner: from a program, types, options and graph traits to a `FoldPlan`.

`make_plan` analyses the program, groups functions into phases (`fusion`), and completes
each phase in `_finish`: its temporaries in memory, the copies and restores of ``_next``
entries, its edges, and its mapping to threads (`schedules`).
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from featgraph.base.errors import PlanError
from featgraph.fold.analysis.access import base_name, next_dropped
from featgraph.fold.analysis.analyse import Analysed, Analysis, analyse
from featgraph.fold.analysis.changes import (
    changes_of,
    check_any_order,
    find_incremental,
    join_changes,
)
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    has_one_rounding,
    in_blocks,
    is_matrix,
    is_only_solved,
    rounds,
    temporaries_of,
)
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.plan.facts import check_in_place, check_wire_dtype, find_facts
from featgraph.fold.plan.fusion import (
    Group,
    combine_in_sweeps,
    find_stops,
    group_functions,
    have_due_found,
    pull_edges,
    sweep_changed,
)
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.schedules import (
    check_exclusive,
    choose_mapping,
    exclusive_mapping,
    in_order,
    with_record,
)
from featgraph.fold.plan.traits import (
    SUM_BLOCK,
    GraphTraits,
    along_of,
    expands_along,
    phase_along,
    traits_along,
)
from featgraph.fold.plan.worklist import why_not_queued
from featgraph.fold.schedules.exclusive import is_exclusive
from featgraph.fold.schedules.intersect_edges import passed_edges_intersected
from featgraph.fold.schedules.mapping import INTERSECTIONS
from featgraph.fold.schedules.mapping import Mapping as ThreadMapping
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.schedules.words import map_words
from featgraph.fold.tree.statements import Access, every, name_of
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, Signature

__all__ = ["make_plan"]


def make_plan(
    program: Program, signature: Signature, options: Options, traits: GraphTraits
) -> FoldPlan:
    """Make all decisions about the kernels of a program.

    Parameters
    ----------
    program : Program
        The user functions, in order.
    signature : Signature
        Types of the properties and scalars in these functions.
    options : Options
        Target and options of the call.
    traits : GraphTraits
        Traits of the graph on which mappings depend.

    Raises
    ------
    UserFunctionError
        If a function does not fit the model or the signature.
    PlanError
        If the program does not allow the options.
    """
    analysis = analyse(program, signature, renumbered=traits.renumbered)
    check_exclusive(analysis.functions, options)
    analysis = with_record(analysis, options)
    functions = analysis.functions
    _check_widths(functions)
    _check_schedule(functions, options)
    _check_atomics(analysis, options)
    # Found without the option, too: `iterate` and `explain` read which gathers can be.
    changes = [
        changes_of(analysis),
        *([options.incremental] if options.incremental else []),
    ]
    possible = find_incremental(analysis, join_changes(changes))
    is_incremental = options.incremental is not None
    incremental = frozenset(possible.gathers) if is_incremental else frozenset()
    alongs = {f.name: along_of(f, analysis, traits) for f in functions}
    # A module has one type of offsets: the widest of all rows in use.
    if traits.wide_both and "both" in alongs.values():
        traits = dataclasses.replace(traits, wide_offsets=True)
    groups = group_functions(functions, options, incremental, alongs)
    groups = pull_edges(groups, analysis, options, alongs)
    phases = _finish(analysis, groups, options, traits, incremental, alongs)
    if options.asynchronous:
        check_any_order(analysis, [], IN_PLACE)
        check_in_place(analysis, phases, options)
    expands = expands_along(functions, alongs)
    facts = find_facts(analysis, phases, options)
    final = have_due_found(phases, functions, options, facts)
    plan = FoldPlan(analysis, options, traits, final, expands, possible, facts)
    _check_deterministic(plan)
    check_wire_dtype(plan)
    return plan


def _check_widths(functions: Sequence[Analysed]) -> None:
    """Raise for more features than kernels support."""
    for function in functions:
        if function.width > 1024:
            raise PlanError(
                "more features than a kernel can take",
                where=function.name,
                got=function.width,
                expected="K <= 1024",
            )


def _check_atomics(analysis: Analysis, options: Options) -> None:
    """Raise for atomics on dtypes for which the target has none."""
    known = dict(analysis.signature)
    for name, (of, _) in analysis.outboxes.items():
        known[name] = known[of]
    for function in analysis.functions:
        for access in function.accesses:
            if access.mode != "atomic":
                continue
            dtype = np.dtype(known[access.name].dtype)
            # A GPU has atomics on words of 32 and 64 bits.
            narrow = options.target == "cuda" and dtype.itemsize < 4
            if narrow or dtype == np.bool_:
                of = analysis.outboxes.get(access.name, (access.name, ""))[0]
                raise PlanError(
                    f"{function.name}: there are no atomic operations on this type"
                    + ", on a GPU" * (dtype != np.bool_),
                    where=f"fg.atomic, d.{of}",
                    got=dtype.name,
                    expected="int32, int64, uint32, float32 or float64",
                    fix=f"give {of} such a dtype",
                )


def _check_schedule(functions: Sequence[Analysed], options: Options) -> None:
    """Raise for a schedule of triangles without a triangle function."""
    has_triangles = any(f.kind.intersects for f in functions)
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
    options: Options,
    traits: GraphTraits,
    incremental: frozenset[str],
    alongs: Mapping[str, str],
) -> list[Phase]:
    """Return the complete phases of groups of functions.

    The steps behind the loop need all phases, each also the result of the one before.
    """
    functions = analysis.functions
    phase_of = {i: n for n, (_, places, _) in enumerate(groups) for i in places}
    filled_in = {f.into: phase_of[i] for i, f in enumerate(functions) if f.kind.gathers}
    phases: list[Phase] = []
    written_before: dict[str, set[str]] = {"vertex": set(), "edge": set()}
    for number, (kind, places, reason) in enumerate(groups):
        members = [functions[i] for i in places]
        here = {n for n, phase in filled_in.items() if phase == number}
        loads, indexes = _read_in_memory(members, analysis, here)
        later = [f for i, f in enumerate(functions) if phase_of[i] > number]
        stores = {
            f.into for f in members if f.kind.gathers and kind.pulls
            and f.into not in incremental  # pushed and kept ones are in memory
            and any(f.into in _temporaries_read(g, analysis) for g in later)
        }  # fmt: skip
        writes = {n for f in members for n in f.writes("next")}
        # Sides, "vertex" and "edge", with functions that may return False.
        sides = {f.kind.writes for f in members} & set(written_before)
        before = {n for side in sides for n in written_before[side]}
        # If an earlier phase of a side writes a property, every entry is written,
        # restored or refreshed by then.
        copies = tuple(sorted(writes - _definite(members) - before))
        written = tuple(sorted(writes | before))
        for side in sides:
            written_before[side] |= {
                n for f in members if f.kind.writes == side for n in f.writes("next")
            }
        width = max((f.width for f in members if not f.is_scalar), default=1)
        along, finds = phase_along(members, analysis, options, alongs)
        own = traits_along(along, traits)
        mapping = _choose(kind, members, analysis, width, options, own)
        in_registers = _in_registers(kind, members, mapping, width, analysis)
        ran = [functions[i].kind for p in phases for i in p.functions]
        restores, behind = _restores(kind, members, written, copies)
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
                restores_behind=behind,
                commits=written if options.asynchronous else (),
                spreads=_spreads(members, options),
                writes_next=tuple(sorted(writes)),
                incremental=_kept(members, incremental),
                tiles=_tiles(kind, members, mapping, options),
                in_registers=in_registers,
                stops=(
                    find_stops(members, mapping, options, incremental)
                    if kind.pulls and not kind.pulls_edges
                    else ()
                ),
                solved=_solved(in_registers, stores, members),
                along=along,
                finds_edges=finds,
                into=str(members[0].into) if kind.fills else "",
                touches_next=_touches_next(members, written, writes),
                is_behind_vertices=any(k.writes_vertices for k in ran),
            )
        )
    phases = [in_order(phase, analysis, options, traits) for phase in phases]
    phases = _start_at_edges(_with_edges(phases, analysis), analysis, options, traits)
    phases = _numbered(phases, analysis, options, traits)
    phases = _sum_in_trees(phases, functions, options)
    phases = _with_any_width(phases, analysis, options)
    return combine_in_sweeps(phases, analysis, options, traits)


def _choose(
    kind: PhaseKind, members: Sequence[Analysed], analysis: Analysis, width: int,
    options: Options, traits: GraphTraits,
) -> ThreadMapping:  # fmt: skip
    """Choose the mapping of a phase.

    The option of a schedule for exclusive functions does not apply to other phases.
    """
    if kind.in_turns:
        return exclusive_mapping(members, width, analysis, options, traits)
    if is_exclusive(SCHEDULES.get(options.schedule)):
        options = dataclasses.replace(options, schedule="auto", of_schedule=())
    return choose_mapping(kind, members, analysis, width, options, traits)


def _kept(members: Sequence[Analysed], incremental: frozenset[str]) -> tuple[str, ...]:
    return tuple(str(f.into) for f in members if f.into in incremental)


def _with_edges(phases: Sequence[Phase], analysis: Analysis) -> list[Phase]:
    """Return phases with the edge properties that they access, and use of twins."""
    types, finished = analysis.signature, []
    for phase in phases:
        members = [analysis.functions[i] for i in phase.functions]
        names = sorted({a.name for f in members for a in f.accesses} & types.keys())
        of_edges = (n for n in names if types[n].kind is PropertyKind.EDGE)
        reverses = any("reverse" in f.twin_operations for f in members)
        finished.append(
            dataclasses.replace(phase, of_edges=tuple(of_edges), reverses=reverses)
        )
    return finished


def _numbered(
    phases: list[Phase], analysis: Analysis, options: Options, traits: GraphTraits
) -> list[Phase]:
    """Return phases that number edges by slot, if all edge values are columns.

    A column of a graph has an array of values by slot for rows along one direction.
    Phases along different directions, and phases that use edge ids otherwise, number
    all edges by id.
    """
    types = analysis.signature
    finding = [p for p in phases if p.finds_edges]
    fits = len({p.rows_along for p in finding}) == 1 and all(
        not (p.kind.sweeps_edges or p.kind.intersects or p.kind.in_turns)
        and all(types[name].column for name in p.of_edges)
        and not any(analysis.functions[i].twin_operations for i in p.functions)
        for p in finding
    )
    # On the CPU the same module has the loop over few vertices, which pushes.
    pushes = options.target == "cpu" and not why_not_queued(analysis, phases, options)
    fits = fits and (traits.undirected or not pushes)
    if not fits or any(p.kind.sweeps_edges or p.kind.intersects for p in phases):
        return phases
    return [dataclasses.replace(p, by_slot=p.finds_edges) for p in phases]


def _restores(
    kind: PhaseKind,
    members: Sequence[Analysed],
    written: Sequence[str],
    copies: Collection[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the properties that a False verdict restores, in the kernel and behind it.

    A property is restored unless its entries are copies that no function has written
    by the time it returns False. It is restored behind the kernel if functions of the
    kernel read ``_next`` entries at computed vertices, or at twins: the vertex or edge
    that drops an entry cannot see whether others have read it. Reads at neighbors need
    no such care, since `drop_conflict` puts these functions into different kernels.
    """
    dropped = {
        name
        for side in ("vertex", "edge")
        for name in next_dropped([f.body for f in members if f.kind.writes == side])
    }
    changed = [n for n in written if n in dropped or n not in copies]
    where = "foreign" if kind.pulls else "twin" if kind.sweeps_edges else ""
    read = {
        a.name
        for f in members
        for a in f.accesses
        if (a.mode, a.version, a.where) == ("read", "next", where)
    }
    here = tuple(n for n in changed if n not in read)
    return here, tuple(n for n in changed if n in read)


def _touches_next(
    members: Sequence[Analysed], written: Sequence[str], writes: Collection[str]
) -> tuple[tuple[str, bool], ...]:
    """Return the properties whose ``_next`` entries a phase accesses.

    Each has a flag: whether the phase may read an entry that it has not written before.
    """
    touched = dict.fromkeys(written, False)
    for access in (a for f in members for a in f.accesses if a.version == "next"):
        is_others = access.where != "own" or access.name not in writes
        known = touched.get(access.name, False)
        touched[access.name] = known or (access.mode == "read" and is_others)
    return tuple(touched.items())


def _start_at_edges(
    phases: list[Phase], analysis: Analysis, options: Options, traits: GraphTraits
) -> list[Phase]:
    """Let triangle phases behind edge functions sweep the edges that passed only.

    On several ranks a rank sweeps a list of passed edges, since ranks exchange these.
    """
    finished: list[Phase] = []
    for phase in phases:
        if phase.kind.intersects and any(p.kind.sweeps_edges for p in finished):
            mapping = passed_edges_intersected(
                options.target == "cuda", traits.renumbered
            )
            phase = dataclasses.replace(phase, from_edges=True, mapping=mapping)
        finished.append(phase)
    return sweep_changed(finished, analysis, options, traits)


def _spreads(members: Sequence[Analysed], options: Options) -> bool:
    """Return whether a committed vertex makes gathering neighbors due in the sweep."""
    alongs = {declared_along(f) for f in members if f.kind.gathers}
    is_sweep = options.asynchronous and options.target == "cpu"
    return is_sweep and not alongs.isdisjoint({"in", "both"})


def _sum_in_trees(
    phases: list[Phase], functions: Sequence[Analysed], options: Options
) -> list[Phase]:
    """Let reduces that round sum in trees, for ``deterministic=True``.

    The bits of a tree do not depend on the number of threads and ranks. Combines of the
    user's have no tree, since the compiler may contract them with the contribution.
    Matrices are not summed in tiles for the same reason.
    """
    if not options.deterministic:
        return phases
    finished: list[Phase] = []
    for phase in phases:
        own = [functions[i] for i in phase.functions]
        sums = all(rounds(f) and combine_of(f).rules.tree is not None for f in own)
        if phase.kind.reduces and sums:
            # Leaves and branches of the tree have 32 terms: no further blocks.
            mapping = dataclasses.replace(phase.mapping, block=0)
            if options.target == "cuda":
                mapping = map_words(mapping, phase.width, any(map(is_matrix, own)))
            phase = dataclasses.replace(
                phase, in_a_tree=True, tiles=(), mapping=mapping
            )
        finished.append(phase)
    return finished


def _with_any_width(
    phases: list[Phase], analysis: Analysis, options: Options
) -> list[Phase]:
    """Let kernels of many features serve any K, where bits stay the same (CPU).

    A new K then needs no compilation. Such phases are reduces, and vertex functions
    without gathers and branches. Phases without features in the same module must serve
    any K, too.
    """
    if options.target != "cpu" or options.checked:
        return phases
    if not any(phase.mapping.is_looped for phase in phases):
        return phases

    def width_text(phase: Phase) -> str:
        own = [analysis.functions[i] for i in phase.functions]
        sweeps = {f.kind.writes_vertices for f in own} == {True} and not phase.loads
        if not (phase.kind.reduces or sweeps) or phase.tiles or options.asynchronous:
            return ""
        if not all(has_one_rounding(f, analysis, divides=sweeps) for f in own):
            return ""
        if phase.width == 1:
            return "1"
        if not phase.mapping.is_looped:
            return ""
        if sweeps:
            return _row_length(analysis, phase.width, own)
        return "partials.shape[1]"

    return [dataclasses.replace(p, any_width=width_text(p)) for p in phases]


def _row_length(analysis: Analysis, width: int, members: Sequence[Analysed]) -> str:
    """Return the text of K for vertex functions: the length of a row that they access.

    "" if they branch, or access a property that they write at another feature than f:
    vectors of features are processed one after the other.
    """
    wide = [f for f in members if not f.is_scalar]
    body = [s for f in wide for s in f.body]
    if not all(isinstance(s, ast.Assign | ast.Return) for s in body):
        return ""
    if any(f.returns_varying for f in members):
        return ""
    accesses = [n for n in every(body) if isinstance(n, Access)]
    written = {a.name for f in wide for a in f.accesses if a.mode != "read"}
    text = ""
    for one in accesses:
        own = name_of(one.indices[-1]) == "f"
        type_ = analysis.signature.get(one.name)
        if one.name in analysis.temporaries:
            return ""
        if one.name in written and not own:
            return ""
        if type_ is None or type_.kind is not PropertyKind.VERTEX:
            continue
        if own and type_.item_shape == (width,):
            text = f"d.{one.name}{'_next' * (one.version == 'next')}.shape[1]"
    return text


def _with_blocks(
    mapping: ThreadMapping,
    kind: PhaseKind,
    members: list[Analysed],
    traits: GraphTraits,
) -> ThreadMapping:
    """Return the mapping, with blocks for sums of real numbers of many terms."""
    many = kind.reduces or (kind.pulls and traits.long_rows)
    if not many or not any(map(in_blocks, members)):
        return mapping
    return dataclasses.replace(mapping, block=SUM_BLOCK)


def _solved(
    in_registers: tuple[str, ...], stores: set[str | None], members: list[Analysed]
) -> tuple[str, ...]:
    body = [s for f in members for s in f.body]
    return tuple(n for n in in_registers if n not in stores and is_only_solved(n, body))


def _tiles(
    kind: PhaseKind, members: list[Analysed], mapping: ThreadMapping, options: Options
) -> tuple[str, ...]:
    if kind.pushes or not (options.target == "cpu" or mapping.tile):
        return ()
    return tuple(sorted(f.accumulator for f in members if f.outer_product is not None))


def _in_registers(
    kind: PhaseKind,
    members: list[Analysed],
    mapping: ThreadMapping,
    width: int,
    analysis: Analysis,
) -> tuple[str, ...]:
    """Return the matrices that a thread sums in registers."""
    if not kind.pulls or width > SCHEDULES[mapping.schedule].most_held:
        return ()
    into = sorted(str(f.into) for f in members if f.kind.gathers)
    temporaries = [(n, analysis.temporaries[n]) for n in into]
    return tuple(
        n
        for n, t in temporaries
        if len(t.item_shape) == 2 and not t.combine.is_arg
        if not any(other.startswith(f"{n}_") for other in into)  # names of elements
    )


def _read_in_memory(
    members: list[Analysed], analysis: Analysis, here: set[str | None]
) -> tuple[set[str], set[str]]:
    """Return the temporaries that functions read from memory: rows, single entries.

    `here` are the temporaries that the phase fills itself.
    """
    read = {n for f in members for n in _temporaries_read(f, analysis)} - here
    given = {n for f in members for n in temporaries_of(f, analysis)}
    rows = read & {str(base_name(n, analysis.temporaries)) for n in given}
    return rows, read - rows


def _temporaries_read(function: Analysed, analysis: Analysis) -> set[str]:
    bases = (base_name(a.name, analysis.temporaries) for a in function.accesses)
    return {name for name in bases if name is not None}


def _definite(members: list[Analysed]) -> set[str]:
    """Return the next entries that the first function to access them always writes."""
    definite: set[str] = set()
    touched: set[str] = set()
    for function in members:
        definite |= function.next_definite - touched
        touched |= {a.name for a in function.accesses if a.version == "next"}
    return definite


def _check_deterministic(plan: FoldPlan) -> None:
    """Raise for pushes that round, and for atomics, with ``deterministic=True``."""
    if not plan.options.deterministic:
        return
    for phase in plan.phases:
        for function in plan.functions_of(phase):
            if phase.kind.pushes and rounds(function):
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
