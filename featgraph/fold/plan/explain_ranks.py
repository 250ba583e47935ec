"""Explains in words what the ranks of a run send each other for a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from featgraph.fold.plan.halos import Halo
from featgraph.fold.plan.plan import FoldPlan, Phase

__all__ = ["explain_ranks"]


#: What a message of rows has.
_FORMS = {
    "all": "the owner's whole range, with bits that say which rows changed",
    "ms": "all that the other rank has, with bits that say which rows changed",
    "vr": "those that changed, with a bit for each that the other rank has",
    "vr-list": "those that changed, with the gaps between them",
}


def explain_ranks(plan: FoldPlan) -> list[str]:
    """Return what is sent for each phase, as lines; or why nothing can be."""
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
        said = [*_explain_phase(plan, phase, halo)]
        lines += [f"  phase {number}: {one}" for one in said or ["nothing is sent"]]
    if plan.facts.sent_rows or plan.options.overlap is True:
        lines.append(f"  overlap: {_explain_split(plan)}")
    lines.append("  behind the superstep: which vertices were committed, and how many")
    return lines


def _explain_split(plan: FoldPlan) -> str:
    """Return whether rows go while others are swept."""
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
    """Give what is sent before a phase, and behind it."""
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
