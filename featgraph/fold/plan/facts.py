"""Facts of a whole plan that the runtime needs, and checks of options against it.

`find_facts` makes the `PlanFacts` of a plan. `find_split` finds the phase that may be
swept in pieces, so that rows of a finished piece are sent to other ranks while the next
piece is swept.

`check_in_place` raises for programs that cannot commit in their kernel
(``asynchronous=True``), where other vertices read the new values in the same superstep.
`check_wire_dtype` raises for programs that cannot read rounded rows at ghosts
(``wire_dtype=``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.changes import (
    changes_of,
    is_announced,
    place_of,
    tells_targets,
)
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
from featgraph.fold.plan.plan import FoldPlan, GatherReads, Phase, PlanFacts, Reduction
from featgraph.fold.plan.worklist import first_settles, is_free, keys_of, why_not_queued
from featgraph.fold.tree.statements import Access, Whole, entity_of, every, name_of
from featgraph.program.signature import PropertyKind

__all__ = [
    "check_in_place", "check_wire_dtype", "find_facts", "sent_rows",
]  # fmt: skip


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
        # Pushed values arrive in any order, so a vertex that is not due could change:
        # its sum may round otherwise.
        is_announced=all(map(is_announced, functions)) and not any(map(rounds, pushed)),
        # Atomics do not count: they read nothing that the superstep may change (S6).
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
        # A vertex that one edge settles has its final key then, and need not wait.
        queue_keys=(
            ()
            if first_settles(functions, phases, options)
            else keys_of(analysis, phases)
        ),
        triangles_at=_at(f for f in functions if f.kind.intersects),
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
        edges_at=_at(f for f in functions if _uses_next_edges(f, analysis)),
        out_edges_at=_at(functions[p.functions[0]] for p in phases if p.along != "in"),
    )


def _at(found: Iterable[Analysed]) -> str:
    """Return the place of the first of some functions; "" if there is none."""
    return next((function.declared.source.where() for function in found), "")


def _uses_next_edges(function: Analysed, analysis: Analysis) -> bool:
    """Return whether a function writes edges or reads their next entries."""
    of_edges = {n for n, t in analysis.signature.items() if t.kind is PropertyKind.EDGE}
    read = {a.name for a in function.accesses if a.version == "next"}
    return function.kind.writes_edges or not read.isdisjoint(of_edges)


def _scalars(functions: Sequence[Analysed]) -> set[str]:
    """Return the scalars and vectors that functions read."""
    names = {name for f in functions for name in f.scalars}
    return names | {
        a.name for f in functions for a in f.accesses if a.where == "global"
    }


def _read(functions: Sequence[Analysed], where: set[str]) -> frozenset[str]:
    """Return the properties and degrees that are read at access classes `where`."""
    found = (a for f in functions for a in (*f.accesses, *f.degrees))
    return frozenset(a.name for a in found if a.mode == "read" and a.where in where)


def _reads(gather: Analysed) -> GatherReads:
    """Return the properties that a gather reads."""
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
    """Return the results of reduces, by name."""
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
    """Return whether pulled supersteps may be pushed instead, with the same bits."""
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
    # Next entries that a phase reads at ghosts have been sent before the commit.
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
    """Return the phase of a plan that may be swept in pieces, if any.

    Parameters
    ----------
    sent : sequence of str
        Result of `sent_rows`.
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
    # Reduces behind the last sweep do not change the committed rows.
    sweeps = [phase for phase in phases if not phase.kind.reduces]
    if not sweeps or not sweeps[-1].kind.pulls or sweeps[-1].kind.pulls_edges:
        yield "the committed vertices are known behind all edges only"
        return
    last = sweeps[-1]
    kinds = [phase.kind for phase in sweeps]
    if any(k.sweeps_edges or k.intersects or k.pulls_edges for k in kinds):
        yield "the targets of edges that pass are active"
    if options.asynchronous or last.spreads or last.commits:
        yield f"vertices read values that others commit ({IN_PLACE})"
    functions = [analysis.functions[i] for i in last.functions]
    if any(a.mode == "atomic" for f in functions for a in f.accesses):
        yield "atomic operations would come in another order"
    if not sent:
        yield "no row is sent with the bits of committed vertices"
    if options.checked:
        yield "the first failed check is reported"
    if options.exchange == "all":
        yield "an owner's whole range is one message (exchange='all')"


def check_in_place(
    analysis: Analysis, phases: Sequence[Phase], options: Options
) -> None:
    """Raise for foldmaps that cannot commit in their kernel.

    Raises
    ------
    PlanError
        With the option or function, the reason, and a fix.
    """
    if options.deterministic:
        raise PlanError(
            "values that a vertex sees of its superstep are not repeatable",
            where=IN_PLACE,
            got="deterministic=True",
            fix="drop one of the two",
        )
    if options.incremental is not None:
        raise PlanError(
            "kept aggregates account for what sources were when a superstep began",
            where=IN_PLACE,
            got="change_driven=True",
            fix="use change_driven='auto', which keeps nothing here",
        )
    own = [p for p in phases if not p.kind.reduces]
    first = own[0].functions[0] if own else 0
    pushed = next((p for p in own if p.kind.pushes), None)
    if pushed is not None:
        function = analysis.functions[pushed.functions[0]]
        raise PlanError(
            f"{place_of(function)} is pushed: it is complete only when all sources are "
            "done",
            where=IN_PLACE,
            fix="use direction='pull'",
        )
    if len(own) > 1:
        function = analysis.functions[own[1].functions[0]]
        raise PlanError(
            f"{place_of(function)} needs a kernel of its own behind "
            f"{analysis.functions[first].declared.name}: {own[1].reason}",
            where=IN_PLACE,
            fix="write a foldmap that folds into one kernel, or drop the option",
        )
    _check_torn(analysis)


def _check_torn(analysis: Analysis) -> None:
    """Raise for functions that could read a vertex while it is half committed.

    They read two properties, or two features, of other vertices. One of the two values
    may be new and the other old.
    """
    changes = changes_of(analysis).announced
    seen: tuple[str, str] | None = None
    for function in analysis.functions:
        elsewhere = {
            a.name
            for a in function.accesses
            if a.mode == "read" and a.where in {"neighbor", "foreign"}
        }
        for name in sorted(elsewhere.intersection(changes)):
            if seen is not None and seen[0] != name:
                raise PlanError(
                    f"{place_of(function)} reads {name} at other vertices, and "
                    f"{seen[1]} reads {seen[0]} there: of a vertex that is committing, "
                    "one may be new and the other old",
                    where=IN_PLACE,
                    fix="read one property elsewhere, or drop the option",
                )
            seen = seen or (name, function.declared.name)
            _check_feature(function, name)


def _check_feature(function: Analysed, name: str) -> None:
    """Raise if a function reads several features of `name` at another vertex."""
    for node in every(function.body):
        if not isinstance(node, Access | Whole) or node.name != name:
            continue
        if entity_of(node) == "v":
            continue
        features = node.indices[1:]
        is_own = all(name_of(index) == "f" for index in features)
        if isinstance(node, Whole) or node.is_row or not is_own or len(features) > 1:
            raise PlanError(
                f"{place_of(function)} reads other features of {name} at another "
                "vertex than its own: of one that is committing, some may be new and "
                "others old",
                where=IN_PLACE,
                fix=f"index {name} with f there, or drop the option",
            )
    if function.collective and function.kind.gathers:
        raise PlanError(
            f"{place_of(function)} makes a collaborative call of {name} at another "
            "vertex, of which some features may be new and others old",
            where=IN_PLACE,
            fix="make no collaborative call in the gather, or drop the option",
        )


def check_wire_dtype(plan: FoldPlan) -> None:
    """Raise for programs whose result would be another one, not a rounded one.

    Raises
    ------
    PlanError
        For ``deterministic=True``, integers or booleans at neighbors, argmin and
        argmax, and edge operations at the reverse of an edge.
    """
    wire_dtype = plan.options.wire_dtype
    if wire_dtype is None:
        return
    if plan.options.deterministic:
        raise _refusal(
            wire_dtype,
            "rounded rows give other bits on each number of ranks",
            got="deterministic=True",
        )
    operation, where = plan.facts.twins_at
    if operation:
        raise _refusal(
            wire_dtype, f"fg.{operation} reads edges as other ranks have them", where
        )
    for function in plan.analysis.functions:
        _check_function(plan, function, wire_dtype)


def _check_function(plan: FoldPlan, function: Analysed, wire_dtype: str) -> None:
    """Raise if a function selects by, or reads as an integer, a rounded value."""
    where = function.declared.source.where()
    if function.kind.gathers and combine_of(function).is_arg:
        best = "least" if combine_of(function).rules.order == "min" else "largest"
        raise _refusal(
            wire_dtype,
            f"{function.declared.name} asks which neighbor is the {best}, and rounded "
            "rows tie",
            where,
        )
    types = plan.analysis.signature
    for access in function.accesses:
        type_ = types.get(access.name)
        if type_ is None or (access.mode, access.where) != ("read", "neighbor"):
            continue
        if type_.kind is PropertyKind.VERTEX and not type_.is_real:
            raise _refusal(
                wire_dtype,
                f"{function.declared.name} reads {access.name} at a neighbor, which is "
                "not real",
                where,
                got=f"{access.name} of {type_.dtype}",
                expected="float32 or float64",
            )


def _refusal(wire_dtype: str, why: str, where: str = "", **more: str) -> PlanError:
    """Return the error that `wire_dtype` cannot be used."""
    at = f"wire_dtype={wire_dtype!r}" + (f", {where}" if where else "")
    return PlanError(why, where=at, **more, fix="no wire_dtype")
