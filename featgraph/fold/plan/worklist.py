"""Foldmaps whose supersteps run back to back in one compiled loop.

Supersteps of few vertices take less time than their launches. If a foldmap allows it
(`why_not_queued`), one function (CPU) or kernel (GPU) runs one superstep after the
other: its functions are vertex functions, gathers from active sources along the same
edges, and vertex functions behind them. Then the active set is all that the next
superstep needs, and edges are traversed from active vertices. A *stage* is another
foldmap that such a loop runs when no vertex is due (`why_not_staged`).

Commits normally go to a second buffer. `may_overwrite` finds the programs that need one
buffer only: no function reads an old entry after the new one may have been written.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import takewhile

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.access import next_dropped
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    combine_of,
    has_wide_key,
    is_matrix,
    rounds,
    takes_active,
)
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.plan import WORKLIST, FoldPlan, Phase
from featgraph.fold.schedules.mapping import MOST_COPIES, Mapping
from featgraph.fold.tree.statements import (
    Access,
    Helper,
    Whole,
    every,
    name_of,
    test_of,
)

__all__ = [
    "as_worklist",
    "combines_once",
    "first_settles",
    "is_free",
    "is_queued",
    "keys_of",
    "overwrites",
    "parts_of",
    "settles_at_once",
    "shares_domain",
    "why_not_queued",
    "why_not_staged",
]


def is_free(function: Analysed) -> bool:
    """Return whether a gather has the same result if it is pulled or pushed.

    It must combine over edges from active vertices only, and not round.
    """
    if not takes_active(function) or is_matrix(function):
        return False
    combine = combine_of(function)
    is_count = combine.rules.is_sum and function.returns != "real"
    return combine.rules.selects or is_count


def is_queued(plan: FoldPlan) -> bool:
    """Return whether a compiled loop over supersteps is printed for a plan."""
    is_requested = plan.target == "cpu" or plan.frontier_form == WORKLIST
    return is_requested and not plan.facts.not_queued


def as_worklist(plan: FoldPlan) -> FoldPlan:
    """Return the plan of the loop over supersteps, with a thread an edge (CUDA)."""
    [phase] = plan.phases
    width = phase.width
    mapping = Mapping(1, width, 1, False, "thread", stride=phase.mapping.stride)
    # The loop pushes along out-edges, which have other slots in a directed graph.
    by_slot = phase.by_slot and plan.traits.undirected
    phase = replace(phase, mapping=mapping, by_slot=by_slot)
    return replace(plan, phases=(phase,), frontier_form=WORKLIST)


def why_not_queued(
    analysis: Analysis, phases: Sequence[Phase], options: Options
) -> str:
    """Return why no compiled loop can run supersteps of a plan; "" if one can."""
    functions = analysis.functions
    accesses = [a for f in functions for a in f.accesses]
    gathers = [f for f in functions if f.kind.gathers]
    kind = phases[0].kind
    apart = len(phases) > 1 or not kind.pulls or kind.pulls_edges
    on_gpu = options.target == "cuda"
    # The loop of a GPU has a thread for each edge, with a copy of each feature.
    is_looped = phases[0].width > MOST_COPIES if on_gpu else phases[0].mapping.is_looped
    filled = [analysis.temporaries[str(f.into)] for f in gathers]
    whys = (
        (options.direction != "auto", f"direction={options.direction!r}"),
        (options.checked, "indices are checked"),
        (options.asynchronous, "asynchronous=True"),
        (options.incremental is not None, "aggregates are kept"),
        (not options.folding, "folding=False"),
        (any(p.kind.in_turns for p in phases), "an exclusive function takes turns"),
        (apart, "it takes more than one kernel of gathers and vertex functions"),
        (is_looped, "features are too many for named copies"),
        (any("superstep" in f.scalars for f in functions), "d.superstep is read"),
        (any(a.where == "foreign" for a in accesses), "foreign vertices are read"),
        (not is_in_order(functions), "gathers do not share one pass over edges"),
        (
            not all(is_free(f) and not f.collective for f in gathers),
            'a gather rounds, calls collaborative functions or is without "active"',
        ),
        (
            on_gpu and any(f.operations & {"inverse", "solve"} for f in functions),
            "systems of equations are solved",
        ),
        (
            on_gpu and any(has_wide_key(t, analysis.real) for t in filled),
            "a key of 64 bits shares no word with its source, as atomics need",
        ),
    )
    return next((why for holds, why in whys if holds), "")


def is_in_order(functions: Sequence[Analysed]) -> bool:
    """Return whether all gathers share one walk over edges, then vertex functions run.

    No gather may read the result of another.
    """
    if not all(f.kind.gathers or f.kind.writes_vertices for f in functions):
        return False
    _, stage, behind = parts_of(functions)
    filled = {f.into for f in stage}
    read = {a.name.removesuffix("_source") for f in stage for a in f.accesses}
    is_one = bool(stage and behind) and not any(f.kind.gathers for f in behind)
    return is_one and not filled & read


def keys_of(analysis: Analysis, phases: Sequence[Phase]) -> tuple[str, ...]:
    """Return the properties by which a loop separates near vertices from far ones.

    They are written by the foldmap, and gathered from neighbors by "min" or "max".
    """
    writes = phases[0].writes_next
    found = {
        a.name
        for f in analysis.functions
        if f.kind.gathers and combine_of(f).rules.order
        for a in f.accesses
        if a.where == "neighbor" and a.name in writes
    }
    signature = analysis.signature
    return tuple(sorted(n for n in found if signature[n].dtype != "bool"))


def parts_of(
    functions: Sequence[Analysed],
) -> tuple[list[Analysed], list[Analysed], list[Analysed]]:
    """Return the vertex functions before the gathers, the gathers, and those behind."""
    left = list(functions)
    before = list(takewhile(lambda f: not f.kind.gathers, left))
    gathers = list(takewhile(lambda f: f.kind.gathers, left[len(before) :]))
    return before, gathers, left[len(before) + len(gathers) :]


def overwrites(plan: FoldPlan) -> bool:
    """Return whether the loop of one thread stores next entries over current ones.

    In this loop, all edges of a superstep are traversed before a vertex writes.
    """
    [phase] = plan.phases
    before, _, behind = parts_of(plan.functions_of(phase))
    return may_overwrite(before, behind, phase.width)


def settles_at_once(plan: FoldPlan) -> bool:
    """Return whether the loop of one thread *settles* a vertex by its first edge.

    If the contribution of one edge is final for all gathers (`Phase.stops`), the loop
    runs the functions behind them at once, before the other edges of the superstep.
    Further edges skip the vertex, mostly since the functions before the gathers return
    False from then on; these only read, so that they may run again. No other vertex
    reads the new entries in the same superstep, unless the vertex is a source. So a
    source for which the functions before the gathers return True waits for all edges.
    """
    [phase] = plan.phases
    return _settles(plan.functions_of(phase), phase)


def _settles(functions: Sequence[Analysed], phase: Phase) -> bool:
    """Return the same for the functions of a phase."""
    before, gathers, behind = parts_of(functions)
    changes = [a for f in (*before, *behind) for a in f.accesses if a.mode != "read"]
    return (
        bool(before)
        and phase.width == 1
        and all(f.into in phase.stops for f in gathers)
        and all(a.version == "next" for a in changes)
        and may_overwrite(before, behind, phase.width)
    )


def first_settles(
    functions: Sequence[Analysed], phases: Sequence[Phase], options: Options
) -> bool:
    """Return whether the loop of a GPU settles a vertex by its first edge.

    That loop ends at a source for which the functions before the gathers return True,
    since it would have to wait for all edges. So only programs settle whose gathers all
    have ``first=True``: they rarely have such sources.
    """
    if options.target != "cuda" or [p.kind.pulls for p in phases] != [True]:
        return False
    if not is_in_order(functions) or not _settles(functions, phases[0]):
        return False
    return all(getattr(f.declared, "first", True) for f in functions)


def why_not_staged(plan: FoldPlan) -> str:
    """Return why no compiled loop can run a foldmap as a stage; "" if one can (0098).

    A stage has one buffer for current and next entries.
    """
    functions = plan.analysis.functions
    accesses = [a for f in functions for a in f.accesses]
    of_vertices = [f for f in functions if not f.kind.reduces]
    others = [p for p in plan.phases if not p.kind.reduces]
    if len(others) != 1 or not others[0].kind.pulls:
        return "it takes other than one kernel of vertex functions, and reduces"
    whys = (
        (
            any(f.kind.gathers or f.kind.writes_edges for f in functions),
            "it goes along edges",
        ),
        (any(p.in_a_tree for p in plan.phases), "a reduce combines in a tree"),
        (plan.options.checked, "indices are checked"),
        (any("superstep" in f.scalars for f in functions), "d.superstep is read"),
        (
            any(a.where not in {"own", "global"} for a in accesses),
            "other vertices are accessed",
        ),
        (
            any(a.version == "next" for f in functions[:-1] for a in f.accesses)
            or not may_overwrite([], of_vertices, others[0].width),
            "what it commits is dropped, or read while it stands elsewhere",
        ),
        (
            plan.target == "cuda" and not all(map(_is_plain, functions)),
            "features, results but integers, or next entries on a GPU",
        ),
    )
    return next((why for holds, why in whys if holds), "")


def _is_plain(function: Analysed) -> bool:
    """Return whether the loop of a GPU can run a function of a stage.

    The function has no features and no iterated property. A reduce must combine
    integers, and must not read its own last result, which it overwrites.
    """
    in_place = not any(a.version == "next" for a in function.accesses)
    is_one = in_place and function.is_scalar and not function.collective
    if not function.kind.reduces:
        return is_one
    combine = combine_of(function)
    is_known = combine.rules.shuffle != "" and not combine.rules.is_arg
    reads_last = any(a.name == function.into for a in function.accesses)
    is_known = is_known and function.returns in {"int32", "int64"} and not reads_last
    return is_one and is_known


def shares_domain(plan: FoldPlan, stage: FoldPlan) -> bool:
    """Return whether a plan and its stage run on the same, shrinking, set of vertices.

    Both begin with the same functions, which read entries of their own vertex only.
    Only the functions behind them write such entries. So a vertex for which one of them
    returns False never runs any later function.
    """
    before, _, _ = parts_of(plan.analysis.functions)
    first = [f for f in stage.analysis.functions if not f.kind.reduces][: len(before)]
    return (
        bool(before)
        and all(map(_is_own_filter, before))
        and ([_code_key(f) for f in before] == [_code_key(f) for f in first])
    )


def combines_once(function: Analysed) -> bool:
    """Return whether a reduce may combine final contributions early, in any order.

    A vertex that no longer changes contributes once, not in each superstep.
    """
    rules = combine_of(function).rules
    in_any_order = not (rounds(function) or rules.is_arg or function.returns == "real")
    return in_any_order and _is_own_filter(function)


def _is_own_filter(function: Analysed) -> bool:
    """Return whether a function reads entries of its own vertex, and writes none."""
    return all(a.mode == "read" and a.where == "own" for a in function.accesses)


def _code_key(function: Analysed) -> tuple[object, ...]:
    """Return a key that is equal for functions with equal code, without helpers.

    The key of a function that calls helpers is unique.
    """
    if any(isinstance(n, Helper) for n in every(function.body)):
        return (object(),)
    return function.declared, *(ast.dump(s) for s in function.body)


def may_overwrite(
    before: Sequence[Analysed], behind: Sequence[Analysed], width: int
) -> bool:
    """Return whether next entries of a vertex may be stored over its current ones.

    The functions `before` the gathers have run for all vertices when those `behind`
    begin, which run for one vertex after the other. Overwriting then changes nothing
    if no entry is written and dropped, and no old entry is read behind its write.

    Parameters
    ----------
    before, behind : sequence of Analysed
        Vertex functions, in order.
    width : int
        Number of features for which the functions run, one after the other.
    """
    # Gathers read current entries, which functions before them must not overwrite.
    early = [a for f in before for a in f.accesses if a.mode != "read"]
    if any(a.version == "next" for a in early):
        return False
    if next_dropped([f.body for f in (*before, *behind)]):
        return False
    written: set[str] = set()
    return all(_reads_old_first(f.body, written, width) for f in behind)


def _reads_old_first(body: Sequence[ast.stmt], written: set[str], width: int) -> bool:
    """Return whether a function reads no old entry behind the write of the new one.

    Features run one after the other, so each must access entries of its own only.
    Properties that the function writes are added to `written`.
    """
    nodes = [n for n in every(body) if isinstance(n, Access | Whole)]
    own = {n.name for n in nodes if n.version == "next"}
    touched = [n for n in nodes if n.name in own]
    if not all(_is_of_one_feature(n, width) for n in touched):
        return False
    return _in_order(body, written)


def _is_of_one_feature(node: Access | Whole, width: int) -> bool:
    """Return whether the entry of an access belongs to the function's feature alone."""
    if not isinstance(node, Access):
        return False
    names = list(map(name_of, node.indices))
    return names == ["v", "f"] or (names == ["v"] and width == 1)


def _in_order(body: Sequence[ast.stmt], written: set[str]) -> bool:
    """Return whether no statement reads a current entry behind a write of the next one.

    Properties whose next entries are written are added to `written`.
    """
    for node in body:
        if isinstance(node, ast.If):
            other = set(written)
            if _reads(node.test, written) or not _in_order(node.body, written):
                return False
            if not _in_order(node.orelse, other):
                return False
            written |= other
        elif isinstance(node, ast.For | ast.While):
            head = test_of(node)
            for _ in range(2):  # a second iteration reads behind writes of the first
                if _reads(head, written) or not _in_order(node.body, written):
                    return False
        elif _reads(node, written):
            return False
        elif isinstance(node, ast.Assign):
            written |= {
                t.name
                for t in node.targets
                if isinstance(t, Access) and t.version == "next"
            }
    return True


def _reads(node: ast.AST, written: set[str]) -> bool:
    """Return whether a node reads a current entry of a property in `written`."""
    return any(
        isinstance(n, Access | Whole) and n.version == "now" and n.name in written
        for n in ast.walk(node)
    )
