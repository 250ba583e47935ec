"""The choice of a schedule and a mapping for each phase.

`choose_mapping` is the entry. It collects the facts of a phase in a `Work`, takes the
requested schedule, or the one with the least `Schedule.cost`, and lets the schedule
choose the numbers of its mapping. `map_lanes`, `map_threads`, `map_chunks` and
`map_matrices` are in the files of schedules, with the constants that tune them.

`exclusive_mapping` does the same for an exclusive function, which has schedules of its
own: it takes the schedule with the least predicted time of those that the conflicts of
the function allow. `check_exclusive` checks its options.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.base.padding import row_stride
from featgraph.fold.analysis.access import AccessRecord, conflict_ends, touched_ends
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    is_matrix,
    takes_active,
    temporaries_of,
)
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.operations.table import OPERATIONS, primitive_of
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import SUM_BLOCK, GraphTraits
from featgraph.fold.schedules.block import map_matrices
from featgraph.fold.schedules.cpu import map_chunks
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import CARDS, SWEEPS, EdgeSweep
from featgraph.fold.schedules.intersect_rows import rows_intersected
from featgraph.fold.schedules.lanes import leaves_matrices, map_lanes
from featgraph.fold.schedules.mapping import (
    BLOCK_THREADS,
    MOST_COPIES,
    PIECE_BYTES,
    WARP,
    Mapping,
    Products,
    Work,
    piece_of,
    share_features,
    whole_piece,
)
from featgraph.fold.schedules.table import SCHEDULES, names_for
from featgraph.fold.schedules.thread import map_threads
from featgraph.fold.tree.statements import Access, Operate, every, name_of
from featgraph.program.signature import PropertyKind, PropertyType

__all__ = [
    "check_exclusive", "choose_mapping", "exclusive_mapping", "explain_exclusive",
    "in_order", "sweep_of", "with_record",
]  # fmt: skip


def choose_mapping(
    kind: PhaseKind,
    members: Sequence[Analysed],
    analysis: Analysis,
    width: int,
    options: Options,
    traits: GraphTraits,
) -> Mapping:
    """Choose the schedule of a phase, and the numbers of its mapping.

    Raises
    ------
    PlanError
        If the schedule of the option cannot run these functions.
    """
    if kind.intersects:
        on_gpu = options.target == "cuda"
        of_graph = traits.typical_degree, traits.has_hubs
        return rows_intersected(options.schedule, on_gpu, *of_graph)
    requested, given = SCHEDULES.get(options.schedule), dict(options.of_schedule)
    if options.target == "cpu":
        mapping = map_chunks(width, in_loops=all(map(_chooses, members)))
        # With target="auto" the option may name a schedule of the GPU.
        if requested is None or options.target not in requested.targets:
            return mapping
        work = Work(kind.from_sources, width, _sweeps_edges(kind, members))
        return requested.choose(mapping, work, given)
    work = _work_of(kind, members, analysis, width, options, traits)
    # A reduce of matrices has one schedule, whatever the option.
    if work.reduces and work.sums_matrices:
        return map_matrices(work)
    if requested is None:
        free = (schedule for schedule in SCHEDULES.values() if schedule.is_selectable)
        requested = min(free, key=lambda schedule: schedule.cost(work))
    if options.feature_parallel and requested.shares_features is not False:
        mapping = requested.choose(map_lanes(work), work, given)
    else:
        mapping = map_threads(work)
        if not requested.shares_features:  # else it needs lanes that share features
            mapping = requested.choose(mapping, work, given)
    if not mapping.is_looped:
        mapping = SCHEDULES[mapping.schedule].tune(mapping, work)
        mapping = _forced(mapping, width, options)
    _require_shuffles(mapping, work)
    return mapping


def _work_of(
    kind: PhaseKind,
    members: Sequence[Analysed],
    analysis: Analysis,
    width: int,
    options: Options,
    traits: GraphTraits,
) -> Work:
    """Return the facts of a phase from which schedules compute costs (CUDA)."""
    gathers = [f for f in members if f.kind.gathers]
    size, items = analysis.real.itemsize, _items_of(members, analysis)
    whole = whole_piece(width, PIECE_BYTES // size)
    rows = [f for f in gathers if not f.is_scalar]
    return Work(
        kind.from_sources, width, _sweeps_edges(kind, members), traits.has_hubs,
        joins=kind.pulls and _joins(members, analysis, options),
        gather_without_shuffle=next(
            (f.name for f in gathers if not combine_of(f).rules.shuffle), ""
        ),
        size=size,
        products=None if kind.pushes else products_of(members, width, options, whole),
        matrices=_needs_matrices(members), sums_matrices=any(map(is_matrix, members)),
        reads_matrices=any(len(shape) == 2 for _, shape in items),
        pulls=kind.pulls, reduces=kind.reduces,
        rows=sum(1 + (declared_along(f) == "both") for f in rows),
        reads_edge_rows=(PropertyKind.EDGE, (width,)) in _items_of(gathers, analysis),
        writes_edges=any(f.kind.writes_edges for f in members),
        is_plain=_is_plain(members),
        has_keys=any(combine_of(f).is_arg for f in gathers),
        ends_early=any(map(_ends_early, gathers)),
        operates=any(f.operations for f in members),
        meets_at_edges=any(f.collective and f.kind.along_edges for f in members),
        multiplies=any(f.kind.along_edges and f.multiplies for f in members),
        keeps_state=options.asynchronous or options.incremental is not None,
        forced=frozenset(name for name, _ in options.mapping),
        long_row=SUM_BLOCK if traits.long_rows else 0, has_giant=traits.has_giant,
        typical_degree=traits.typical_degree, rows_of_longest=traits.rows_of_longest,
    )  # fmt: skip


def _is_plain(members: Sequence[Analysed]) -> bool:
    """Return whether the only gather yields numbers, or keys with sources.

    It must not end early, nor fill a matrix.
    """
    gathers = [f for f in members if f.kind.gathers]
    if len(gathers) != 1 or any(f.kind.writes_edges for f in members):
        return False
    [gather] = gathers
    rules = combine_of(gather).rules
    special = not rules.shuffle or rules.final is not None
    return not (special or _ends_early(gather) or _needs_matrices(members))


def _joins(members: Sequence[Analysed], analysis: Analysis, options: Options) -> bool:
    """Return whether blocks can gather parts of a row, whose results are then combined.

    They can if all gathers come first and share one walk over the row, and if an edge
    has no other effect than its contribution.
    """
    gathers = [f for f in members if f.kind.gathers]
    if options.asynchronous or options.incremental is not None or not gathers:
        return False
    if not all(f.kind.gathers for f in members[: len(gathers)]):
        return False
    if any(f.kind.writes_edges for f in members):
        return False
    filled = {f.into for f in gathers}
    for function in gathers:
        rules = combine_of(function).rules
        special = not rules.shuffle or rules.is_arg
        if special or rules.final is not None or rules.gives == "bool":
            return False
        if _ends_early(function) or takes_active(function):
            return False
        if filled & set(temporaries_of(function, analysis)):
            return False
    return True


def _forced(mapping: Mapping, width: int, options: Options) -> Mapping:
    """Return the mapping with the fields that a benchmark sets."""
    forced: dict[str, Any] = dict(options.mapping)
    if not forced:
        return mapping
    mapping = replace(mapping, **forced)
    shares = SCHEDULES[mapping.schedule].shares_features
    fits = (
        mapping.lanes_per_edge * mapping.features_per_lane >= width
        and mapping.stride % mapping.vector_width == 0
        and (
            mapping.lanes_per_edge == 1
            or mapping.features_per_lane % mapping.vector_width == 0
        )
        and mapping.lanes_per_vertex % mapping.lanes_per_edge == 0
        and WARP % mapping.lanes_per_vertex == 0
        and (mapping.lanes_per_vertex == 1 or shares is not False)
    )
    if not fits:
        raise PlanError(
            "a mapping that does not fit", where="_mapping=", got=str(forced)
        )
    return mapping


def _require_shuffles(mapping: Mapping, work: Work) -> None:
    """Raise if lanes share the edges of a vertex, and no shuffle combines results."""
    why = work.gather_without_shuffle if work.pulls else ""
    if leaves_matrices(mapping, work):
        why = "matrices in memory"
    # The threads of a block with tiles combine in shared memory.
    if why and mapping.edges_at_a_time > 1 and not mapping.tile:
        raise PlanError(
            "lanes cannot share the edges of a vertex here: no shuffle combines their "
            "results",
            where=why,
            got=f"lanes_per_vertex={mapping.lanes_per_vertex}",
            expected=f"the lanes that share {work.width} features: "
            f"{mapping.lanes_per_edge}",
            fix="use schedule='lanes'",
        )


def _items_of(
    members: Sequence[Analysed], analysis: Analysis
) -> set[tuple[PropertyKind, tuple[int, ...]]]:
    """Return kinds and item shapes of the vertex and edge properties in use."""
    names = {a.name for f in members for a in f.accesses}
    types = [t for name, t in analysis.signature.items() if name in names]
    of = (PropertyKind.VERTEX, PropertyKind.EDGE)
    return {(t.kind, t.item_shape) for t in types if t.kind in of}


def _chooses(function: Analysed) -> bool:
    """Return whether a vertex function compares features, and rounds nothing in order.

    Such a function is a loop over features on the CPU: named copies compile slowly, and
    its bits do not depend on the form.
    """
    operations = [OPERATIONS[name] for name in function.operations]
    is_exact = all(operation.is_exact for operation in operations)
    compares = any(operation.compares for operation in operations)
    return function.kind.writes_vertices and compares and is_exact


def _sweeps_edges(kind: PhaseKind, members: Sequence[Analysed]) -> bool:
    return kind.from_sources or any(f.kind.gathers for f in members)


def _ends_early(function: Analysed) -> bool:
    """Return whether a gather is likely to end long before its last edge."""
    declared: Any = function.declared
    return bool(declared.first)


def _needs_matrices(members: Sequence[Analysed]) -> int:
    """Return the number of K x K areas that the functions of a phase need."""
    count = sum(is_matrix(f) for f in members)
    for function in members:
        count += sum(OPERATIONS[name].takes_area for name in function.operations)
    return count


def products_of(
    members: Sequence[Analysed], width: int, options: Options, piece: int
) -> Products | None:
    """Return facts of the matrices that a phase sums, over edges or over vertices.

    None if there are none; a 1 x 1 matrix is a number.
    """
    gathers = [f for f in members if f.kind.combines and is_matrix(f)]
    if not gathers or width == 1:
        return None
    parts = [f.outer_product for f in gathers]
    calls = [n for f in members for s in f.body for n in _systems(s)]
    solves = [n for n in calls if not primitive_of(n).is_matrix]
    definite = [n for n in solves if n.constant("spd")]
    inverses = len(calls) - len(solves)
    columns = (len(solves) - len(definite)) * (width + 1) + inverses * 2 * width
    return Products(
        count=len(gathers),
        symmetric=all(p is not None and p.symmetric for p in parts),
        arrays=sum(2 - (p is not None and p.is_square) for p in parts),
        refused=_refused(members, gathers, options),
        solutions=len(definite),
        area_columns=columns,
        piece=piece,
    )


def _refused(
    members: Sequence[Analysed], gathers: Sequence[Analysed], options: Options
) -> str:
    """Return the reason against summing matrices in tiles; "" if there is none."""
    for function in gathers:
        if function.outer_product is None:
            return f"{function.name} contributes others"
        if function.collective:
            return f"{function.name} makes collaborative calls"
    if any(f.kind.writes_edges for f in members):
        return "edge functions run along the same edges"
    if options.incremental is not None:
        return "change_driven=True keeps what gathers have come to"
    looping = [f for f in members if any(map(_solves_in_loop, f.body))]
    if looping:
        return f"{looping[0].name} solves systems in a loop"
    return ""


def _solves_in_loop(statement: ast.stmt) -> bool:
    """Return whether a loop solves a system: threads might leave it at different times.

    All threads of a block with one vertex must take part in the solution.
    """
    loops = (n for n in every([statement]) if isinstance(n, ast.For | ast.While))
    return any(map(_systems, loops))


def _systems(node: ast.AST) -> list[Operate]:
    """Return the calls in `node` that need a work area: of `solve` and `inverse`."""
    calls = (n for n in every([node]) if isinstance(n, Operate))
    return [call for call in calls if primitive_of(call).takes_area]


#: Least number of features with which rows of real numbers are SIMD vectors (CPU).
LEAST_VECTOR = 4
#: Factor by which a schedule that is not repeatable must be faster for "auto".
GAIN = 1.3
#: Dtypes of values that lanes of a warp can shuffle.
_SHUFFLED = frozenset({"int32", "int64", "float32", "float64"})
#: The option that records the order of edges, in messages.
_RECORD = "record_order="


def conflicts_of(members: Sequence[Analysed], traits: GraphTraits) -> str:
    """Return the ends at which edges conflict: "uv", "u", "v" or ""."""
    [function] = members
    return conflict_ends(function.body, traits.two_sides)


def in_order(
    phase: Phase, analysis: Analysis, options: Options, traits: GraphTraits
) -> Phase:
    """Return an exclusive phase with its facts about the order of edges."""
    if not phase.kind.in_turns:
        return phase
    members = [analysis.functions[i] for i in phase.functions]
    return replace(
        phase,
        conflicts=conflicts_of(members, traits),
        record=options.record_order,
        ordered=_ordered(members, analysis, options),
        passes_all=_is_true(members[0]),
    )


def _is_true(function: Analysed) -> bool:
    """Return whether a function returns the constant True on all paths."""
    values = [n.value for n in every(function.body) if isinstance(n, ast.Return)]
    ends = isinstance(function.body[-1], ast.Return)
    return ends and all(isinstance(v, ast.Constant) and v.value is True for v in values)


def _ordered(
    members: Sequence[Analysed], analysis: Analysis, options: Options
) -> tuple[str, ...]:
    """Return the edge properties whose values are passed to an exclusive function.

    () if the function needs the edge id: it writes an edge property, uses the edge
    otherwise, or reads values that lanes cannot shuffle.
    """
    [function] = members
    types = analysis.signature
    names = {a.name for a in function.accesses} - {options.record_order}
    found = sorted(n for n in names if types[n].kind is PropertyKind.EDGE)
    nodes = list(every(function.body))
    read = [n for n in nodes if isinstance(n, Access) and n.name in found]
    edges = [n for n in nodes if name_of(n) == "e"]
    writes = any(a.name in found and a.mode != "read" for a in function.accesses)
    fits = all(types[n].item_shape == () and types[n].dtype in _SHUFFLED for n in found)
    if options.checked or writes or len(read) != len(edges) or not fits:
        return ()
    return tuple(found)


def check_exclusive(functions: Sequence[Analysed], options: Options) -> None:
    """Raise for options that exclusive functions, or others, do not allow (S8, S11).

    Raises
    ------
    PlanError
        With the option, and a fix.
    """
    is_one = any(f.kind.exclusive for f in functions)
    schedule = SCHEDULES.get(options.schedule)
    runs = isinstance(schedule, ExclusiveSchedule)
    if is_one and options.asynchronous:
        raise PlanError(
            "an exclusive function runs once on each edge, in one order",
            where=IN_PLACE,
            fix="drop the option",
        )
    if is_one and options.schedule != "auto" and not runs:
        raise PlanError(
            "this schedule does not run exclusive functions",
            where="schedule=",
            got=repr(options.schedule),
            expected=names_for(options.target, functions),
        )
    requested = {
        f"schedule={options.schedule!r}": runs,
        "racy=True": options.racy,
        f"record_order={options.record_order!r}": bool(options.record_order),
        "shuffle=": options.is_shuffled,
    }
    for name, is_requested in requested.items():
        if is_requested and not is_one:
            raise PlanError(
                "the foldmap has no exclusive function",
                where="options",
                got=name,
                expected="a function declared with @fg.edge(exclusive=True)",
                fix="drop the option",
            )


def with_record(analysis: Analysis, options: Options) -> Analysis:
    """Return the analysis, with the write of `record_order=` in its access table.

    Raises
    ------
    PlanError
        If the property cannot hold the turns of edges.
    """
    name = options.record_order
    if not name:
        return analysis
    of_edges = PropertyKind.EDGE
    wanted = PropertyType(of_edges, "int32", (2,))
    type_ = analysis.signature.get(name)
    used = any(a.name == name for f in analysis.functions for a in f.accesses)
    # Two turns an edge, at u and at v, written in place and by the kernel only.
    fits = type_ is not None and not (type_.iterated or type_.shared or used)
    if type_ is None or not fits or (type_.kind, type_.dtype, type_.item_shape) != (
        of_edges, wanted.dtype, wanted.item_shape,
    ):  # fmt: skip
        found = type_.describe() if type_ else "which the State does not have"
        raise PlanError(
            "the order is recorded in an edge property of its own",
            where=_RECORD,
            got=f"{name!r}, {'which a function uses' if used else found}",
            expected="int32 of shape (2,), not iterated, and with per_direction=True "
            "on an undirected graph",
            fix=f"declare {name}=fg.edge_property(np.zeros((E, 2), np.int32))",
        )
    record = AccessRecord(name, "now", "write", "own")
    made = [
        replace(f, accesses=(*f.accesses, record)) if f.kind.exclusive else f
        for f in analysis.functions
    ]
    return replace(analysis, functions=made)


def sweep_of(
    members: Sequence[Analysed], width: int, analysis: Analysis, traits: GraphTraits
) -> EdgeSweep | None:
    """Return the facts that predict the time of a sweep; None without sizes."""
    if traits.sizes is None:
        return None
    [function], size = members, 0
    for name, ends in touched_ends(function.body).items():
        type_ = analysis.signature.get(name)
        if type_ is not None and type_.kind in (PropertyKind.VERTEX, PropertyKind.EDGE):
            item = math.prod(type_.item_shape) * np.dtype(type_.dtype).itemsize
            size += ends * item
    lanes, _ = share_features(width, piece_of(width, analysis.real.itemsize))
    conflicts = conflicts_of(members, traits)
    return EdgeSweep(traits.sizes, conflicts, traits.two_sides, width, lanes, size)


def _predicted(sweep: EdgeSweep | None, options: Options) -> dict[str, float]:
    """Return the predicted cost, in ms, of each possible schedule, best first.

    Without sizes of the graph there are none. To rank schedules, the cost of one that
    is not repeatable is multiplied by `GAIN`.
    """
    if sweep is None:
        return {}
    work = Work(from_sources=True, width=sweep.width, sweep=sweep)
    costs, ranked = {}, {}
    for name, schedule in SCHEDULES.items():
        if not isinstance(schedule, ExclusiveSchedule) or not schedule.is_selectable:
            continue
        if schedule.is_repeatable or not options.deterministic:
            costs[name] = cost = schedule.cost(work)
            ranked[name] = cost if schedule.is_repeatable else GAIN * cost
    order = sorted((n for n in costs if costs[n] < math.inf), key=ranked.__getitem__)
    return {name: costs[name] for name in order}


def _chosen(
    sweep: EdgeSweep | None, options: Options, conflicts: str, traits: GraphTraits
) -> tuple[str, str]:
    """Return the name of the chosen schedule, and the reason."""
    if options.racy:
        return "racy", "asked for, by racy=True"
    if options.schedule != "auto":
        return options.schedule, "asked for"
    for name in _predicted(sweep, options):
        return name, "it has the least predicted time"
    if len(conflicts) == 1:
        return "rows", "edges conflict at one end alone"
    if traits.two_sides:
        return "blocks", "the graph has two sides"
    return (
        "levels",
        "the graph has no two sides, from the first of which all edges lead",
    )


def explain_exclusive(plan: FoldPlan) -> list[str]:
    """Return lines on the schedules of exclusive functions and their guarantees."""
    lines = []
    for number, phase in enumerate(plan.phases):
        if phase.kind.in_turns:
            members, options = plan.functions_of(phase), plan.options
            sweep = sweep_of(members, phase.width, plan.analysis, plan.traits)
            name, why = _chosen(sweep, options, phase.conflicts, plan.traits)
            schedule = SCHEDULES[name]
            repeats = isinstance(schedule, ExclusiveSchedule) and schedule.is_repeatable
            lines.append(
                f"schedule of kernel {number}: {name}: {why}; its order of edges is "
                + ("repeatable" if repeats else "another one in each run")
            )
            costs = _predicted(sweep, options)
            best = next((other for other in costs if other != name), "")
            shown = [f"{n} {costs[n]:.3g} ms" for n in (name, best) if n in costs]
            if shown:
                lines.append(
                    f"  predicted for a sweep and 1/{SWEEPS} of what it prepares "
                    f"({', '.join(CARDS)}): {', next best '.join(shown)}"
                )
    return lines


def _suits_vectors(members: Sequence[Analysed], width: int, analysis: Analysis) -> bool:
    """Return whether rows should be SIMD vectors, not a copy of each feature (CPU).

    Edges of a learner over 16 features took 9 M a second as copies, and 132 as vectors
    (ml-1m, shuffled, Intel Xeon, 2026-11-28).
    """
    names = {a.name for f in members for a in f.accesses}
    types = [t for n, t in analysis.signature.items() if n in names]
    rows = [t.dtype for t in types if t.item_shape == (width,)]
    return width >= LEAST_VECTOR and all(dtype == analysis.real for dtype in rows)


def exclusive_mapping(
    members: Sequence[Analysed], width: int, analysis: Analysis, options: Options,
    traits: GraphTraits,
) -> Mapping:  # fmt: skip
    """Choose the schedule of an exclusive function, and how lanes share its features.

    Raises
    ------
    PlanError
        If the schedule of the option cannot run it.
    """
    conflicts = conflicts_of(members, traits)
    sweep = sweep_of(members, width, analysis, traits)
    name, _ = _chosen(sweep, options, conflicts, traits)
    if name == "rows" and len(conflicts) != 1:
        where = " and ".join(conflicts) or "no end"
        raise PlanError(
            "this schedule shares out the rows of one end",
            where="schedule='rows'",
            got=f"{members[0].declared.name}, by which edges conflict at {where}",
            expected="a function that writes at one end alone"
            + ", or a graph of two sides" * (conflicts == "uv"),
            fix="use schedule='auto'",
        )
    schedule = SCHEDULES[name]
    if not isinstance(schedule, ExclusiveSchedule):
        raise TypeError(f"{name} runs no exclusive functions")
    if options.deterministic and not schedule.is_repeatable:
        raise PlanError(
            "the order of edges is not repeatable",
            where="deterministic=True",
            got=f"schedule={name!r}",
            fix="use schedule='auto'",
        )
    if options.target == "cpu":
        loops = width > MOST_COPIES or _suits_vectors(members, width, analysis)
        return Mapping(1, 1 if loops else width, 1, loops, name)
    piece = piece_of(width, analysis.real.itemsize)
    lanes, copies = share_features(width, piece)
    return Mapping(
        lanes, copies, lanes, False, name, vector_width=piece, threads=BLOCK_THREADS,
        stride=row_stride(width), resident=schedule.blocks(sweep),
    )  # fmt: skip
