"""Functions grouped into kernels, pulled edge functions, and edges that are skipped.

`group_functions`: consecutive functions share a kernel, unless there is a reason
against it.

`pull_edges`: a vertex phase that gathers walks the in-edges of its vertices. Edge
functions directly before it can run there, on the same edge, in place of a kernel of
their own over the out-edges of active vertices. Their writes are then contiguous for
each vertex, no set is marked with atomics, and the gathers find the values in registers
or cache. docs/design/0004-pulled-edges.md has the rules.

`find_stops`: a combine with ``any`` stops at the first True, and a gather with
``first=True`` at its first contribution, unless ``deterministic=True``.

`have_due_found`: a kernel whose gathers combine over edges from active vertices only
(``sources="active"``) can find the due vertices itself.

`sweep_changed`: an edge function whose inputs belong to its edge, or are the same for
all edges, returns False again until one of its inputs has changed (0069). A set of
edges holds the changed edges: the function removes an edge on which it returns False,
and a triangle function behind it inserts the edges to whose entries it adds.

`combine_in_sweeps`: a reduce of entries that a vertex phase has just written needs no
pass of its own; each vertex contributes behind its functions. In a sum of reals each
addition waits for the one before, which takes longer than a pass over memory; in a
sweep over edges, other instructions fill that time.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from collections.abc import Mapping as Dict
from itertools import takewhile
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    added_by,
    combine_of,
    in_blocks,
    is_matrix,
    order_of_reduces,
    temporaries_of,
)
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.kinds.table import kind_of
from featgraph.fold.kinds.vertex import COMBINING, PULLED, VERTEX
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.plan import Phase, PlanFacts
from featgraph.fold.plan.traits import EDGES_ALONG, GraphTraits, other_along
from featgraph.fold.plan.worklist import is_in_order
from featgraph.fold.schedules.intersect_edges import WARPS_AN_EDGE
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.statements import Atomic, Cast, every, name_of
from featgraph.program.signature import PropertyKind, Signature

__all__ = [
    "Group", "combine_in_sweeps", "conflict", "drop_conflict", "find_stops",
    "group_functions", "have_due_found", "pull_edges", "sweep_changed",
]  # fmt: skip


def group_functions(
    functions: Sequence[Analysed],
    options: Options,
    incremental: frozenset[str],
    alongs: Dict[str, str],
) -> list[Group]:
    """Return the phases: kind, functions, and the reason why each begins.

    A gather whose aggregates are incremental is never pushed.
    """
    groups: list[Group] = []
    # Reduces whose results due vertices read are moved to the front.
    order = order_of_reduces(functions)
    for number, place in enumerate(order):
        function, before = functions[place], [functions[i] for i in order[:number]]
        pushes = options.direction == "push" and function.into not in incremental
        kind = kind_of(function, pushes=pushes)
        previous = [functions[i] for i in groups[-1][1]] if groups else []
        reason = _boundary(
            kind, function, groups[-1][0] if groups else None, previous, options, alongs
        )
        if reason is None:
            reason = drop_conflict(previous, function, before)
        if reason is None:
            groups[-1][1].append(place)
        else:
            groups.append((kind, [place], reason))
    return groups


def _boundary(
    kind: PhaseKind,
    function: Analysed,
    open_kind: PhaseKind | None,
    previous: list[Analysed],
    options: Options,
    alongs: Dict[str, str],
) -> str | None:
    """Return the reason why `function` cannot join the last phase; None if it can.

    `previous` are the functions of that phase, and `open_kind` is its kind.
    """
    if open_kind is None:
        return "it is the first"
    if kind.intersects:
        return f"{function.name} sweeps triangles"
    if open_kind.intersects:
        return f"{previous[-1].name} sweeps triangles"
    if kind is not open_kind:
        if kind.reduces or open_kind.reduces:
            return "a reduce runs over all vertices before anything reads it"
        if kind.pushes or open_kind.pushes:
            return (
                f"{function.name if kind.pushes else previous[-1].name} is pushed: "
                "its sums are complete only when all sources are done"
            )
        return (
            f"{previous[-1].name} sweeps "
            f"{'vertices' if open_kind.pulls else 'edges'}, {function.name} "
            f"{'vertices' if kind.pulls else 'edges'}"
        )
    if kind.fills:
        return f"a {kind} phase holds one function"
    if not options.folding:
        return "folding is off"
    filled = {f.into for f in previous if f.kind.gathers}
    indexed = sorted(n for n in function.indexed if n in filled)
    if indexed:
        return (
            f"{function.name} reads {', '.join(indexed)} at features that it computes, "
            "so they are in memory"
        )
    elsewhere = other_along(previous, function, alongs)
    if elsewhere is not None:
        return elsewhere
    widths = {f.width for f in [*previous, function] if not f.is_scalar}
    if len(widths) > 1:
        return f"{function.name} has another width ({function.width} features)"
    for earlier in previous:
        found = conflict(earlier, function)
        if found:
            return found
    return None


#: Most features with which sweeps combine reduces. Sums of more features are
#: independent, so a pass of their own does not wait: with 8 a combined sweep took 5 %
#: longer (label propagation, coAuthorsDBLP, Intel Xeon, 2026-11-29).
MOST_COMBINED = 4
#: A phase to be: its kind, positions of its functions in the foldmap, and the reason
#: why it begins.
Group = tuple[PhaseKind, list[int], str]


def pull_edges(
    groups: list[Group],
    analysis: Analysis,
    options: Options,
    alongs: Dict[str, str],
) -> list[Group]:
    """Join the edge phase with the vertex phase behind it, if that is legal.

    If it is not, the reason is added to that of the vertex phase.
    """
    place = next(
        (
            n
            for n, (kind, _, _) in enumerate(groups[:-1])
            if kind.sweeps_edges and groups[n + 1][0].pulls
        ),
        None,
    )
    if place is None:
        return groups
    (_, edges, begins), (kind, rest, boundary) = groups[place : place + 2]
    against = _obstacle(groups, edges, rest, analysis, options, alongs)
    before, after = groups[:place], groups[place + 2 :]
    if against is None:
        return [*before, (PULLED, [*edges, *rest], begins), *after]
    reason = f"{boundary}, and is not folded with it: {against}"
    return [*before, groups[place], (kind, rest, reason), *after]


def _obstacle(
    groups: list[Group],
    edges: list[int],
    rest: list[int],
    analysis: Analysis,
    options: Options,
    alongs: Dict[str, str],
) -> str | None:
    """Return why edge functions cannot run along the in-edges of a vertex phase.

    None if they can. `edges` and `rest` are positions of the functions of both phases.
    """
    functions = analysis.functions
    sending, receiving = [functions[i] for i in edges], [functions[i] for i in rest]
    if not options.folding:
        return "folding is off"
    if options.direction == "push":
        return "direction is push"
    if not receiving[0].kind.gathers:
        return "no gather sweeps the in-edges behind it"
    name = receiving[0].name
    if alongs[name] != "in":
        return f"{name} gathers along {EDGES_ALONG[alongs[name]]}"
    if sum(kind.sweeps_edges for kind, _, _ in groups) > 1:
        return "several phases sweep edges"
    if any(kind.intersects for kind, _, _ in groups):
        return "a triangle function asks which edges passed"
    widths = {f.width for f in [*sending, *receiving] if not f.is_scalar}
    if len(widths) > 1:
        return f"widths differ ({', '.join(map(str, sorted(widths)))})"
    for function in sending:
        if any(a.mode == "atomic" for a in function.accesses):
            return f"{function.name} uses atomics"
        if temporaries_of(function, analysis):
            return f"{function.name} reads what a gather has left"
    found = _first_conflict(sending, receiving)
    for place, function in zip(rest, receiving, strict=True):
        if found is None and function.kind.writes_vertices:
            found = drop_conflict(sending, function, functions[:place])
    return found


def combine_in_sweeps(
    phases: Sequence[Phase], analysis: Analysis, options: Options, traits: GraphTraits
) -> list[Phase]:
    """Let sweeps of vertex phases combine the reduces behind them (CPU).

    Chunks of such a sweep are whole blocks of `SUM_BLOCK` vertices, in which sums of
    reals are added up. If vertices have many edges (`GraphTraits.is_dense`), these
    chunks would be too large to balance.
    """
    combined, swept = list(phases), -1
    fits = options.target == "cpu" and options.folding and not options.asynchronous
    fits = fits and traits.layout == "csr"
    fits = fits and not (traits.renumbered or traits.is_dense)
    for number, phase in enumerate(phases if fits else ()):
        if not phase.kind.reduces:
            swept = number
        elif swept >= 0 and _is_combined(phase, combined[swept:number], analysis):
            earlier = combined[swept]
            combines = (*earlier.combines, number)
            combined[swept] = replace(earlier, kind=COMBINING, combines=combines)
            combined[number] = replace(phase, combined_in=swept)
    return combined


def _is_combined(phase: Phase, before: Sequence[Phase], analysis: Analysis) -> bool:
    """Return whether the sweep of a vertex phase can combine a reduce.

    `before` has that phase and the phases between. Results of the reduces among these
    do not exist yet during the sweep, so the reduce must not read them.
    """
    earlier, *between = before
    [reducing] = [analysis.functions[i] for i in phase.functions]
    members = [analysis.functions[i] for i in earlier.functions]
    kinds = [f.kind for f in members]
    if earlier.kind not in (VERTEX, COMBINING) or earlier.restores_behind:
        return False
    if not any(k.gathers for k in kinds) or not any(k.writes_vertices for k in kinds):
        return False
    same = reducing.is_scalar or phase.width == earlier.width
    same = same and earlier.width <= MOST_COMBINED
    rules = combine_of(reducing).rules
    exact = rules.rows and (reducing.returns != "real" or rules.selects)
    adds = in_blocks(reducing) and rules.tree is not None and not phase.in_a_tree
    known = dict(earlier.touches_next)
    # Next entries that the reduce reads must be those that the sweep writes.
    fresh = all(a.name in known for a in reducing.accesses if a.version == "next")
    # Results of reduces between are complete behind the sweep only.
    late = {p.into for p in between} & {a.name for a in reducing.accesses}
    is_known = same and fresh and not (late or phase.loads or phase.indexes)
    return bool(
        is_known
        and (exact or adds)
        and not is_matrix(reducing)
        and not any(conflict(f, reducing) for f in members)
    )


def _first_conflict(
    sending: Sequence[Analysed], receiving: Sequence[Analysed]
) -> str | None:
    """Return the first conflict of an edge function with a function behind it."""
    for earlier in sending:
        for later in receiving:
            found = conflict(earlier, later)
            if found:
                return found
    return None


def conflict(earlier: Analysed, later: Analysed) -> str | None:
    """Return why all of `earlier` must be complete before `later` begins, or None.

    Both access a property, one of them writes, and not both at their own vertex or
    edge.
    """
    for a in earlier.accesses:
        for b in later.accesses:
            if (a.name, a.version) != (b.name, b.version):
                continue
            a_changes, b_changes = a.mode != "read", b.mode != "read"
            if not (a_changes or b_changes):
                continue
            if a.mode == b.mode == "atomic" and _commute(earlier, later, a.name):
                continue
            # Lanes of one vertex, or edge, run both functions in order.
            if a.where == b.where == "own":
                continue
            verb = "writes" if a_changes else "reads"
            name = a.name + ("_next" if a.version == "next" else "")
            return (
                f"{earlier.name} {verb} {name} ({a.where}), which {later.name} "
                f"{'writes' if b_changes else 'reads'} ({b.where})"
            )
    return None


def drop_conflict(
    earlier: Sequence[Analysed], later: Analysed, before: Sequence[Analysed]
) -> str | None:
    """Return why dropped ``_next`` entries forbid one kernel, or None.

    A kernel restores ``_next`` entries of a vertex or edge right behind its functions,
    if one of them returned False. Functions that read such an entry at another vertex
    or edge could find it before or after that. `before` has all functions that may have
    written entries.
    """
    written = {name for f in before for name in f.writes("next")}
    for function in earlier:
        found = None
        if later.kind.writes_vertices:
            found = _dropped(later, function, ("neighbor",), written)
        if function.kind.writes:
            at_vertices = function.kind.writes_vertices
            places = ("neighbor", "foreign") if at_vertices else ("twin",)
            found = found or _dropped(function, later, places, written)
        if found is not None:
            return found
    return None


def _dropped(
    dropping: Analysed, reading: Analysed, places: Sequence[str], written: set[str]
) -> str | None:
    """Return an entry that `dropping` may drop and `reading` reads at `places`."""
    if all(_is_true(node.value) for node in _returns(dropping)):
        return None
    for a in reading.accesses:
        if a.version == "next" and a.where in places and a.name in written:
            return (
                f"{dropping.name} may drop {a.name}_next, which {reading.name} reads "
                f"({a.where})"
            )
    return None


def _returns(function: Analysed) -> list[ast.Return]:
    return [node for node in every(function.body) if isinstance(node, ast.Return)]


def _is_true(value: ast.expr | None) -> bool:
    inner = value.value if isinstance(value, Cast) else value
    return isinstance(inner, ast.Constant) and inner.value is True


def _commute(earlier: Analysed, later: Analysed, name: str) -> bool:
    """Return whether atomics of two functions on a property are one operation.

    Their order does not matter then, even between the functions.
    """
    return len(earlier.updates(name) | later.updates(name)) == 1


def find_stops(
    members: Sequence[Analysed],
    mapping: Mapping,
    options: Options,
    incremental: Collection[str],
) -> tuple[str, ...]:
    """Return the temporaries of a vertex phase whose gathers may stop early.

    If features are loops over arrays, or results are matrices, a test of all features
    at each edge is slow: only gathers with ``first=True`` stop then.
    """
    stops = []
    for function in members:
        if not function.kind.gathers or function.into in incremental:
            continue
        declared: Any = function.declared
        combine = combine_of(function)
        ends = combine.rules.final is not None
        ends = ends and not (mapping.is_looped or is_matrix(function))
        if ends or (declared.first and not options.deterministic):
            stops.append(str(function.into))
    return tuple(stops)


def have_due_found(
    phases: Sequence[Phase],
    functions: Sequence[Analysed],
    options: Options,
    facts: PlanFacts,
) -> tuple[Phase, ...]:
    """Let the kernel of a foldmap of one phase find the due vertices, if it can.

    It may then sweep vertices that are not due. The functions before its gathers run on
    these, too, so they must not write, nor fail for an index.
    """
    before = takewhile(lambda f: not f.kind.gathers, functions)
    finds_due = (
        options.target == "cuda"
        and not options.checked
        and facts.may_push
        and [p.kind.pulls for p in phases] == [True]
        and phases[0].schedule.finds_due
        and is_in_order(functions)
        and all(a.mode == "read" for f in before for a in f.accesses)
    )
    return tuple(replace(p, finds_due=finds_due) for p in phases)


def sweep_changed(
    phases: list[Phase], analysis: Analysis, options: Options, traits: GraphTraits
) -> list[Phase]:
    """Let the first phase sweep changed edges only, where results stay the same.

    It does if all edge functions depend on their edge alone (`_is_of_its_edge`), and if
    the phases behind change edges only by additions that mark the edge (`_only_adds`).
    """
    first, *others = phases
    edges = [analysis.functions[i] for i in first.functions]
    behind = [analysis.functions[i] for p in others for i in p.functions]
    fits = first.kind.sweeps_edges and bool(others) and first.width == 1
    fits = fits and all(p.from_edges for p in others)
    on_gpu = options.target == "cuda"
    fits = fits and not traits.wide_offsets and (on_gpu or not traits.renumbered)
    if not fits or options.checked or options.asynchronous:
        return phases
    signature = analysis.signature
    read = {a.name for f in edges for a in f.accesses if a.mode == "read"}
    if not all(_is_of_its_edge(f, read, signature) for f in edges):
        return phases
    if not all(_only_adds(f, read, signature) for f in behind):
        return phases
    # Additions to these properties change an edge, so they insert it in the set.
    marks = tuple(sorted(read))
    mapping = Mapping(1, 1, 1, False, "edge_words") if on_gpu else first.mapping
    rows = Mapping(
        1, 1, 32 * WARPS_AN_EDGE if on_gpu else 1, False,
        "listed_edges" if on_gpu else "changed_words",
    )  # fmt: skip
    return [
        replace(first, mapping=mapping, changed_only=True),
        *(replace(p, mapping=rows, marks=marks, changed_only=True) for p in others),
    ]


def _is_of_its_edge(function: Analysed, read: set[str], signature: Signature) -> bool:
    """Return whether an edge function depends on entries of its edge and scalars only.

    A function that returns False must have written no entry in place that an edge
    function reads, and an entry that it commits must not be read at the twin.
    """
    if function.collective or "superstep" in function.scalars:
        return False
    if any(name_of(node) in {"u", "v"} for node in every(function.body)):
        return False
    twins = {a.name for a in function.accesses if a.where == "twin"}
    for access in function.accesses:
        type_ = signature.get(access.name)
        of_edge = type_ is not None and type_.kind is PropertyKind.EDGE
        if access.mode == "atomic" or not (of_edge or access.where == "global"):
            return False
        is_next = access.version == "next"
        if access.mode == "write" and access.name in (twins if is_next else read):
            return False
        if is_next and access.where == "twin":
            return False
    return True


def _only_adds(function: Analysed, read: set[str], signature: Signature) -> bool:
    """Return whether a function changes names in `read` only by sums at its edges."""
    nodes = list(every(function.body))
    sums = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and added_by(node, signature) is not None
    }
    changed = (n for n in nodes if isinstance(n, Atomic) and n.name in read)
    return all(id(node) in sums for node in changed)
