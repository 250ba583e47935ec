"""PlanFacts of a plan that the runtime needs besides its phases.

`find_split` finds the phase that may be swept in pieces, so that rows of a finished
piece are sent while the next one is swept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.changes import changes_of, is_announced, tells_targets
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    has_wide_key,
    late_reduces,
    partial_dtype,
    read_where_due,
    rounds,
    takes_active,
)
from featgraph.fold.plan.halos import Halo, Split, find_halo, why_not_shared
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import GatherReads, Phase, PlanFacts, Reduction
from featgraph.fold.plan.worklist import first_settles, is_free, keys_of, why_not_queued
from featgraph.program.signature import PropertyKind

__all__ = ["find_facts", "find_split", "sent_rows"]


def find_facts(
    analysis: Analysis, phases: Sequence[Phase], options: Options
) -> PlanFacts:
    """Return the facts of a plan with these phases."""
    functions = analysis.functions
    gathers = [f for f in functions if f.kind.gathers]
    accesses = [a for f in functions for a in f.accesses]
    pushed = [functions[i] for p in phases if p.kind.pushes for i in p.functions]
    incremental = {into for p in phases for into in p.incremental}
    found = _scalars(functions) - set(analysis.reductions)
    writes_next = tuple(sorted({n for p in phases for n in p.writes_next}))
    halos = tuple(
        find_halo([functions[i] for i in p.functions], analysis) for p in phases
    )
    sent = sent_rows(writes_next, halos, analysis)
    return PlanFacts(
        names=tuple(f.declared.name for f in functions),
        direction="push" if pushed else "pull" if gathers else "-",
        may_push=_may_push(analysis, options),
        # Pushed values arrive in any order, and their sums may round otherwise.
        is_announced=all(map(is_announced, functions)) and not any(map(rounds, pushed)),
        # An atomic there reads nothing that a superstep could still change (S6).
        reads_foreign=any(a.where == "foreign" and a.mode == "read" for a in accesses),
        tells_targets=tells_targets(functions),
        has_late_reduce=bool(late_reduces(functions)),
        from_active=tuple(f.declared.name for f in gathers if takes_active(f)),
        gathers=tuple(map(_reads, gathers)),
        changes=changes_of(analysis),
        writes=tuple(sorted({a.name for a in accesses if a.mode != "read"})),
        writes_next=writes_next,
        seen_elsewhere=tuple(
            sorted({a.name for a in accesses if a.where not in {"own", "global"}})
        ),
        read_here=_read(functions, {"own"}),
        read_elsewhere=_read(functions, {"neighbor", "twin", "foreign"}),
        along_edges=any(f.kind.writes_edges or f.kind.intersects for f in functions),
        scalars=tuple(sorted(found)),
        incremental_scalars=tuple(
            sorted(_scalars([f for f in gathers if f.into in incremental]))
        ),
        reductions=_reductions(analysis),
        not_queued=why_not_queued(analysis, phases, options),
        # A vertex that is settled by one edge has its key by then, and does not wait.
        queue_keys=(
            ()
            if first_settles(functions, phases, options)
            else keys_of(analysis, phases)
        ),
        triangles_at=next(
            (f.declared.source.where() for f in functions if f.kind.intersects), ""
        ),
        twins_at=next(
            (
                (f.twin_operations[0], f.declared.source.where())
                for f in functions
                if f.twin_operations
            ),
            ("", ""),
        ),
        halos=halos,
        sent_rows=sent,
        split=find_split(analysis, phases, sent, options),
        not_shared=why_not_shared(functions, analysis, in_order=options.deterministic),
        edges_at=_edges_at(analysis),
        out_edges_at=next(
            (
                functions[p.functions[0]].declared.source.where()
                for p in phases
                if p.along != "in"
            ),
            "",
        ),
    )


def _edges_at(analysis: Analysis) -> str:
    """Return the place of a function that writes edges or reads their next entries."""
    of_edges = {n for n, t in analysis.signature.items() if t.kind is PropertyKind.EDGE}
    for function in analysis.functions:
        asks = (a.version == "next" for a in function.accesses if a.name in of_edges)
        if function.kind.writes_edges or any(asks):
            return function.declared.source.where()
    return ""


def _scalars(functions: Sequence[Analysed]) -> set[str]:
    """Return the scalars and vectors that functions read."""
    names = {name for f in functions for name in f.scalars}
    return names | {
        a.name for f in functions for a in f.accesses if a.where == "global"
    }


def _read(functions: Sequence[Analysed], where: set[str]) -> frozenset[str]:
    """Return the properties and degrees that are read at entries of some classes."""
    found = (a for f in functions for a in (*f.accesses, *f.degrees))
    return frozenset(a.name for a in found if a.mode == "read" and a.where in where)


def _reads(gather: Analysed) -> GatherReads:
    of_neighbors = {a.name for a in gather.accesses if a.where == "neighbor"}
    anywhere = {a.name for a in gather.accesses}
    return GatherReads(
        gather.declared.name,
        combine_of(gather),
        tuple(sorted(of_neighbors)),
        tuple(sorted(anywhere)),
        declared_along(gather),
        takes_active(gather),
    )


def _reductions(analysis: Analysis) -> dict[str, Reduction]:
    read = read_where_due(analysis.functions)
    found = {}
    for function in analysis.functions:
        if function.kind.reduces:
            into, partial = str(function.into), partial_dtype(function, analysis.real)
            dtype = "bool" if function.returns == "bool" else partial
            shape = analysis.reductions[into]
            combine = combine_of(function)
            found[into] = Reduction(shape, dtype, partial, into in read, combine)
    return found


def _may_push(analysis: Analysis, options: Options) -> bool:
    """Whether supersteps that are pulled may as well be pushed."""
    functions = analysis.functions
    if (
        options.direction != "auto"
        or options.asynchronous
        or options.incremental is not None
    ):
        return False
    gathers = [f for f in functions if f.kind.gathers]
    others = [f for f in functions if not f.kind.gathers]
    if not gathers or not all(f.kind.writes_vertices for f in others):
        return False
    if any(a.where == "foreign" for f in functions for a in f.accesses):
        return False
    return all(
        is_free(f)
        and declared_along(f) == "in"
        and not has_wide_key(analysis.temporaries[str(f.into)], analysis.real)
        for f in gathers
    )


def sent_rows(
    writes_next: Sequence[str], halos: Sequence[Halo], analysis: Analysis
) -> tuple[str, ...]:
    """Return the properties whose committed rows are sent with the set of vertices."""
    read = {name for halo in halos for name in halo.reads}
    ahead = {name for halo in halos for name in halo.reads_next}
    signature = analysis.signature
    return tuple(
        name
        for name in writes_next
        if signature[name].kind is PropertyKind.VERTEX
        and name in read
        and name not in ahead
    )


def find_split(
    analysis: Analysis, phases: Sequence[Phase], sent: Sequence[str], options: Options
) -> Split:
    """Return which phase of a plan may be swept in pieces, if any.

    Parameters
    ----------
    sent : sequence of str
        What `sent_rows` returns.
    """
    why = next(_reasons(analysis, phases, sent, options), "")
    if why:
        return Split(-1, why)
    sweeps = [n for n, phase in enumerate(phases) if not phase.kind.reduces]
    return Split(sweeps[-1], "")


def _reasons(
    analysis: Analysis, phases: Sequence[Phase], sent: Sequence[str], options: Options
) -> Iterator[str]:
    """Yield the reasons against sweeping the last phase in pieces."""
    # Behind reduces, the rows that a superstep commits stay what they are.
    sweeps = [phase for phase in phases if not phase.kind.reduces]
    if not sweeps or not sweeps[-1].kind.pulls or sweeps[-1].kind.pulls_edges:
        yield "which vertices were committed is known behind all edges"
        return
    last = sweeps[-1]
    kinds = [phase.kind for phase in sweeps]
    if any(k.sweeps_edges or k.intersects or k.pulls_edges for k in kinds):
        yield "edges tell which vertices are active"
    if options.asynchronous or last.spreads or last.commits:
        yield f"vertices see what others commit ({IN_PLACE})"
    functions = [analysis.functions[i] for i in last.functions]
    if any(a.mode == "atomic" for f in functions for a in f.accesses):
        yield "atomic operations would come in another order"
    if not sent:
        yield "no row goes with the bits that say what was committed"
    if options.checked:
        yield "checks tell which fault came first"
    if options.exchange == "all":
        yield "an owner's whole range is one message (exchange='all')"
