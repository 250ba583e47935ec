"""Plans of exclusive functions: conflicts, schedules, and checks of options."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

import numpy as np

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.base.padding import row_stride
from featgraph.fold.analysis.access import AccessRecord, conflict_ends, touched_ends
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules.exclusive import ExclusiveSchedule
from featgraph.fold.schedules.exclusive_costs import CARDS, SWEEPS, EdgeSweep
from featgraph.fold.schedules.mapping import (
    BLOCK_THREADS,
    MOST_COPIES,
    Mapping,
    Work,
    piece_of,
    share_features,
)
from featgraph.fold.schedules.table import SCHEDULES, names_for
from featgraph.fold.tree.expressions import Access
from featgraph.program.signature import PropertyKind, PropertyType

__all__ = [
    "check_exclusive", "exclusive_mapping", "explain_exclusive", "in_order",
    "sweep_of", "with_record",
]  # fmt: skip

#: Features from which on rows of real numbers are vectors (CPU).
LEAST_VECTOR = 4
#: How many times faster a schedule is that is not repeatable, to be taken by "auto".
GAIN = 1.3
#: Types of values that lanes of a warp can shuffle.
_TOLD = frozenset({"int32", "int64", "float32", "float64"})
#: The option of the order of edges, as messages show it.
_RECORD = "record_order="


def conflicts_of(members: Sequence[Analysed], traits: GraphTraits) -> str:
    """Return the ends at which edges conflict: "uv", "u", "v" or ""."""
    [function] = members
    return conflict_ends(function.body, traits.two_sides)


def in_order(
    phase: Phase, analysis: Analysis, options: Options, traits: GraphTraits
) -> Phase:
    """Return a phase with the ends of conflicts and the record of turns."""
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
    """Whether a function returns True for every edge."""
    nodes = [node for part in function.body for node in ast.walk(part)]
    values = [n.value for n in nodes if isinstance(n, ast.Return)]
    ends = isinstance(function.body[-1], ast.Return)
    return ends and all(isinstance(v, ast.Constant) and v.value is True for v in values)


def _ordered(
    members: Sequence[Analysed], analysis: Analysis, options: Options
) -> tuple[str, ...]:
    """Return the properties of edges that are given by value; () unless all may be.

    An edge is passed by its id where the function uses more than values of numbers, and
    where lanes cannot shuffle these.
    """
    [function] = members
    types = analysis.signature
    names = {a.name for a in function.accesses} - {options.record_order}
    found = sorted(n for n in names if types[n].kind is PropertyKind.EDGE)
    nodes = [node for part in function.body for node in ast.walk(part)]
    read = [n for n in nodes if isinstance(n, Access) and n.name in found]
    edges = [n for n in nodes if isinstance(n, ast.Name) and n.id == "e"]
    writes = any(a.name in found and a.mode != "read" for a in function.accesses)
    fits = all(types[n].item_shape == () and types[n].dtype in _TOLD for n in found)
    if options.checked or writes or len(read) != len(edges) or not fits:
        return ()
    return tuple(found)


def check_exclusive(functions: Sequence[Analysed], options: Options) -> None:
    """Refuse options that do not fit functions, exclusive ones or others (S8, S11).

    Raises
    ------
    PlanError
        Names the option, and a fix.
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
    asked = {
        f"schedule={options.schedule!r}": runs,
        "racy=True": options.racy,
        f"record_order={options.record_order!r}": bool(options.record_order),
        "shuffle=": options.is_shuffled,
    }
    for name, is_asked in asked.items():
        if is_asked and not is_one:
            raise PlanError(
                "the foldmap has no exclusive function",
                where="options",
                got=name,
                expected="a function declared with @fg.edge(exclusive=True)",
                fix="drop the option",
            )


def with_record(analysis: Analysis, options: Options) -> Analysis:
    """Return an analysis whose exclusive function writes the turns of its edges.

    Raises
    ------
    PlanError
        If the property cannot hold them.
    """
    name = options.record_order
    if not name:
        return analysis
    of_edges = PropertyKind.EDGE
    wanted = PropertyType(of_edges, "int32", (2,))
    type_ = analysis.signature.get(name)
    used = any(a.name == name for f in analysis.functions for a in f.accesses)
    fits = type_ is not None and not (type_.iterated or type_.shared or used)
    if type_ is None or not fits or (type_.kind, type_.dtype, type_.item_shape) != (
        of_edges, wanted.dtype, wanted.item_shape,
    ):  # fmt: skip
        raise PlanError(
            "the order is recorded in an edge property of its own",
            where=_RECORD,
            got=f"{name!r}, "
            + ("which a function uses" if used else type_.describe() if type_ else "?"),
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
    """Return a sweep, to predict its time; None for a graph of unknown sizes."""
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
    """Return the cost of each schedule that may be taken, in ms; the least is first.

    It is empty where sizes are not known. A schedule that is not repeatable is behind
    the best one that is, unless it is `GAIN` times faster.
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
    """Return the name of a schedule, and why it is chosen."""
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
    """Whether rows are better vectors than copies of each feature (CPU).

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
        lanes, copies, lanes, False, name, vector_width=piece,
        stride=row_stride(width), resident=schedule.resident, threads=BLOCK_THREADS,
    )  # fmt: skip
