"""Explains a plan in words."""

from __future__ import annotations

import numpy as np

from featgraph.fold.analysis.change_driven import IncrementalGather, entry_bytes
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.plan.exclusive import explain_exclusive
from featgraph.fold.plan.explain_ranks import explain_ranks
from featgraph.fold.plan.layout import SAID
from featgraph.fold.plan.plan import FoldPlan

__all__ = ["explain_plan"]


def explain_plan(plan: FoldPlan) -> str:
    """Return boundaries, mappings, places of temporaries, and the access tables."""
    lines = [str(plan), ""]
    due = (
        "A and every vertex that gathers from it"
        if plan.expands
        else "A, and the targets of edges that returned True"
    )
    if plan.expands and plan.expands != ("in",):
        due += f", along {SAID['both' if len(plan.expands) > 1 else plan.expands[0]]}"
    if any(p.kind.in_turns for p in plan.phases):
        due = "A, and both ends of edges that returned True"
        lines += explain_exclusive(plan)
    lines.append(f"due vertices: {due}")
    accesses = [a for f in plan.analysis.functions for a in f.accesses]
    if any(a.where == "foreign" and a.mode == "read" for a in accesses):
        lines.append(
            "  everywhere while anything is active, because a function reads at "
            "foreign vertices"
        )
    if plan.options.asynchronous:
        names = sorted({n for p in plan.phases for n in p.commits})
        lines.append(
            f"asynchronous: {', '.join(names) or 'nothing'} committed in the kernel, "
            "where others see it in the same superstep; only the fixpoint is promised"
        )
    lines += _explain_incremental(plan)
    why, loop = plan.facts.not_queued, "compiled loop"
    if plan.target == "cuda":
        loop = 'kernel, in_form("worklist")'
    lines.append(
        f"supersteps of few vertices: one by one, for {why}"
        if why
        else f"supersteps of few vertices: many in one {loop}"
    )
    in_memory = {n for p in plan.phases for n in (*p.loads, *p.indexes, *p.stores)}
    stored = {n for p in plan.phases for n in p.incremental}
    from_active = {
        f.into
        for p in plan.phases
        if plan.takes_active(p)
        for f in plan.functions_of(p)
        if takes_active(f)
    }
    for name, temporary in plan.analysis.temporaries.items():
        place = "in registers or local arrays, never in global memory"
        if name in stored:
            place = "kept in memory"
        elif name in in_memory:
            place = "in memory"
        active = ", of active sources" * (name in from_active)
        lines.append(
            f"temporary {temporary.into} {temporary.item_shape or ''}: "
            f"{temporary.combine.name}{active}, {place}"
        )
    lines += _explain_rows(plan)
    lines.append("")
    lines.append("accesses:")
    for function in plan.analysis.functions:
        lines.append(f"  {function.name} ({function.kind}, K = {function.width})")
        for a in function.accesses:
            name = plan.analysis.as_given(a.name)
            name += "_next" if a.version == "next" else ""
            lines.append(f"    {a.mode:6} {name:20} {a.where}")
    if plan.traits.renumbered:  # of a graph in parts
        lines += ["", *explain_ranks(plan)]
    return "\n".join(lines)


def _explain_rows(plan: FoldPlan) -> list[str]:
    """Say how far apart rows of properties are."""
    lines = []
    for name, stride in plan.strides.items():
        type_ = plan.analysis.signature[name]
        [width] = type_.item_shape
        size = stride * np.dtype(type_.dtype).itemsize
        padding = f", {stride - width} of them padding" if stride > width else ""
        lines.append(
            f"property {name}: a row of K = {width} every {stride} elements{padding}: "
            f"{size} bytes"
        )
    return lines


def _explain_incremental(plan: FoldPlan) -> list[str]:
    """Say for each gather whether its aggregates are kept, or why not."""
    found = plan.incremental
    if not found.gathers and not found.recomputed:
        return []
    lines = ["aggregates between the supersteps of a run, change_driven=True:"]
    if plan.is_incremental:
        lines = ["aggregates between the supersteps of the run:"]
    for name, temporary in plan.analysis.temporaries.items():
        how = (
            f"recomputed: {found.recomputed[name]}"
            if name in found.recomputed
            else _describe_incremental(plan, found.gathers[name])
        )
        lines.append(f"  {temporary.into}: {how}")
    return lines


def _describe_incremental(plan: FoldPlan, gather: IncrementalGather) -> str:
    analysis = plan.analysis
    temporary = analysis.temporaries[gather.into]
    size = entry_bytes(temporary.item_shape, temporary.type, analysis.real)
    if gather.is_constant:
        return f"constant: computed once a vertex and kept, {size} bytes"
    copies = []
    for name in gather.reads:
        type_ = analysis.signature[name]
        stride = plan.strides.get(name)
        shape = type_.item_shape if stride is None else (stride,)
        of_copy = entry_bytes(shape, type_.dtype, analysis.real)
        copies.append(f"{of_copy} for what {name} was")
    return f"kept and patched: {size} bytes a vertex, and {', '.join(copies)}"
