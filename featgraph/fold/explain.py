"""Explains a plan in words."""

from __future__ import annotations

from featgraph.fold.plan import FoldPlan

__all__ = ["explain_plan"]


def explain_plan(plan: FoldPlan) -> str:
    """Return boundaries, mappings, places of temporaries, and the access tables."""
    lines = [str(plan), ""]
    due = (
        "A and every vertex that gathers from it"
        if plan.expands
        else "A, and the targets of edges that returned True"
    )
    lines.append(f"due vertices: {due}")
    if any(a.where == "foreign" for f in plan.analysis.functions for a in f.accesses):
        lines.append(
            "  everywhere while anything is active, because a function reads at "
            "foreign vertices"
        )
    lines.append(
        "aggregates are recomputed for due vertices; the change-driven form is not "
        "derived yet"
    )
    in_memory = {n for p in plan.phases for n in (*p.loads, *p.stores)}
    for name, temporary in plan.analysis.temporaries.items():
        place = (
            "in memory"
            if name in in_memory
            else "in registers or local arrays, never in global memory"
        )
        lines.append(
            f"temporary {name} {temporary.item_shape or ''}: {temporary.combine}, "
            f"{place}"
        )
    lines.append("")
    lines.append("accesses:")
    for function in plan.analysis.functions:
        lines.append(f"  {function.name} ({function.kind}, K = {function.width})")
        for a in function.accesses:
            name = a.name + ("_next" if a.version == "next" else "")
            lines.append(f"    {a.mode:6} {name:20} {a.where}")
    return "\n".join(lines)
