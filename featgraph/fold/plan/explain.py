"""Explain a plan in words, with the messages that ranks exchange for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from featgraph.fold.analysis.changes import IncrementalGather, entry_bytes
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.plan.exclusive import explain_exclusive
from featgraph.fold.plan.halos import Halo
from featgraph.fold.plan.layout import SAID
from featgraph.fold.plan.plan import FoldPlan, Phase

__all__ = ["explain_plan", "explain_ranks"]


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
    """Describe the strides of rows of properties."""
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
    """Describe which gathers keep their aggregates, and why others do not."""
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


#: Forms of a message of rows -> its contents.
_FORMS = {
    "all": "the owner's whole range, with bits that say which rows changed",
    "ms": "all that the other rank has, with bits that say which rows changed",
    "vr": "those that changed, with a bit for each that the other rank has",
    "vr-list": "those that changed, with the gaps between them",
}


def explain_ranks(plan: FoldPlan) -> list[str]:
    """Return lines about the messages of each phase, or the reason against ranks."""
    refusal = plan.facts.not_shared
    if refusal is not None:
        return [
            f"on several ranks: refused ({refusal.where}): {refusal.why}; {refusal.fix}"
        ]
    lines = ["on several ranks:"]
    asked = plan.options.exchange
    if asked != "auto":
        lines.append(f"  rows of ghosts: {_FORMS[asked]} (exchange={asked!r})")
    wire = plan.options.wire_dtype
    if wire is not None:
        lines.append(f"  rows of ghosts: reals are rounded to {wire}, once")
    for number, (phase, halo) in enumerate(
        zip(plan.phases, plan.facts.halos, strict=True)
    ):
        messages = [*_explain_phase(plan, phase, halo)]
        lines += [f"  phase {number}: {one}" for one in messages or ["nothing is sent"]]
    if plan.facts.sent_rows or plan.options.overlap is True:
        lines.append(f"  overlap: {_explain_split(plan)}")
    lines.append("  behind the superstep: which vertices were committed, and how many")
    return lines


def _explain_split(plan: FoldPlan) -> str:
    """Return which rows are sent while others are swept, in words."""
    split = plan.facts.split
    if split.why_not:
        return f"none: {split.why_not}"
    if plan.options.overlap is False:
        return "none (overlap=False)"
    asked = "" if plan.options.overlap is True else ", if that is measured to be faster"
    rows = ", ".join(plan.facts.sent_rows)
    return (
        f"rows of {rows} go piece by piece while phase {split.phase} sweeps others"
        f"{asked}"
    )


def _explain_phase(plan: FoldPlan, phase: Phase, halo: Halo) -> Iterator[str]:
    """Yield lines about the messages before and after a phase."""
    ahead = {name for one in plan.facts.halos for name in one.reads_next}
    in_place = {name for one in plan.facts.halos for name in one.writes}
    committed = set(plan.facts.writes_next) - ahead
    with_bits = [n for n in halo.reads if n in committed and n not in in_place]
    waiting = [n for n in halo.reads if n in in_place or n in ahead]
    constant = [n for n in halo.reads if n not in {*with_bits, *waiting}]
    edges = halo.edges
    yield from _said(
        (with_bits, "rows that were committed go with the bits that say which"),
        (waiting, "rows that changed go before the phase"),
        (constant, "never written here: rows go when they are first read, and if they "
                   "are written from outside"),
        (_next(halo.reads_next), "rows of all ghosts go before the phase"),
        ((of for _, of in halo.mirrors), "rows of all vertices, on each rank"),
        (_next(of for _, of in halo.mirrors_next), "rows of all vertices, on each "
                                                   "rank"),
        ((of for _, of, _ in halo.outboxes), "combined on each rank, then at the "
                                             "owners behind the phase"),
        (edges.reads, "entries of cut edges that changed go before the phase"),
        (_next(edges.reads_next), "entries of all cut edges go before the phase"),
        ((of for _, of, _ in edges.outboxes), "combined on each rank, then at the "
                                              "owners of edges behind the phase"),
    )  # fmt: skip
    triangles = halo.triangles
    if triangles is not None:
        yield "rows of neighbors that others own: fetched once, a batch at a time"
        read = *triangles.reads, *_next(triangles.reads_next)
        names = (name for name, _ in triangles.updates)
        yield from _said(
            (read, "entries of edges that changed go before each"),
            (names, "combined on each rank, then at the owners behind the phase"),
        )
    if phase.kind.reduces:
        names = (f.into for f in plan.functions_of(phase) if f.into)
        yield from _said((names, "combined over the ranks behind the phase"))


def _said(*found: tuple[Iterable[str], str]) -> Iterator[str]:
    for names, what in found:
        joined = ", ".join(dict.fromkeys(names))
        if joined:
            yield f"{joined}: {what}"


def _next(names: Iterable[str]) -> Iterator[str]:
    return (f"{name}_next" for name in names)
