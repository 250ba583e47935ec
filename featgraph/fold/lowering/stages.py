"""From a phase of the plan to its nest: what it does, and nothing of where it runs."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import (
    AddUp,
    Begin,
    Comment,
    Contribute,
    Copy,
    FindDue,
    Finish,
    ForEdges,
    FromMemory,
    Gathers,
    Intersect,
    Mark,
    Meet,
    Only,
    Ordered,
    Pull,
    Push,
    PutBy,
    Restore,
    Run,
    Settle,
    Start,
    Sweep,
    Then,
    ToMemory,
    Triangle,
)
from featgraph.fold.tree.statements import Body, code, expression

__all__ = ["along_edge", "nest_of"]


def nest_of(facts: Facts) -> Body:
    """Return the nest of the phase."""
    if facts.nest is not None:
        return facts.nest()
    kinds = {
        "edge": _edges,
        "push": _pushed,
        "reduce": _reduced,
        "triangle": _triangles,
        "vertex": _vertices,
    }
    return kinds[facts.phase.kind](facts)


def _pushed(facts: Facts) -> Body:
    """Return a push: one gather into memory, along the edges from each source."""
    [function] = facts.functions
    due = expression(f"{facts.intrinsics}.test_bit(due, v)")
    edges = ForEdges("u", [Only(due, [*_loads(facts), Push(function)])])
    words = "active_sources" if facts.plan.takes_active(facts.phase) else ""
    return [Sweep("u", words, "is_source", [edges])]


def _edges(facts: Facts) -> Body:
    """Return a sweep of edges: those from each source, but for those that stopped."""
    if facts.phase.changed_only:
        return _changed_edges(facts)
    if not facts.plan.has_edge_state:
        mark = Mark(code(f"{facts.intrinsics}.set_bit(targets, v)"))
        edges = ForEdges("u", along_edge(facts, [mark]))
        return [Sweep("u", "sources", "is_source", [edges])]
    # Where several phases sweep edges, targets are found behind the last one.
    mark = Mark(code("edge_state[e] = 2"), code("edge_state[e] = 1"))
    only = Only(expression("edge_state[e] != 1"), along_edge(facts, [mark]))
    return [Sweep("u", "sources", "is_source", [ForEdges("u", [only])])]


def _changed_edges(facts: Facts) -> Body:
    """Return a sweep of edges of which something has changed, by their numbers.

    What was committed at one of them has changed, too: so no others have next entries
    that differ. One stays in the set if it passes, and if its source is not active.
    """
    names = facts.of_edges(facts.phase.writes_next)
    twin = facts.number("edge_twin[e]")
    each = code(
        f"u = in_sources[e]\nv = in_sources[{twin}]\nedge_state[e] = 1\nstays = True"
    )
    target = code(f"edge_state[e] = 2\n{facts.intrinsics}.set_bit(targets, v)")
    mark = Mark(target, code("stays = False"))
    is_source = expression(f"{facts.intrinsics}.test_bit(sources, u)")
    each += [Copy(names, "e")] if names else []
    each += [Only(is_source, along_edge(facts, [mark]))]
    words = "changed_edges"
    return [Sweep("e", words, "is_changed", each, marks=(("stays", words),))]


def along_edge(facts: Facts, behind: Body) -> Body:
    """Return what edge functions do along an edge; `behind` is for their verdict."""
    phase = facts.phase
    groups = [[f] for f in facts.functions.values() if f.kind.writes_edges]
    out: Body = [Begin(facts.of_edges(phase.copies), "e")]
    out += [*_nested(facts, groups, [], []), *behind]
    return out + _restored(facts.of_edges(phase.restores), "e")


def _restored(names: tuple[str, ...], entity: str) -> Body:
    """Return what puts entries back; nothing where there are none."""
    return [Restore(names, entity)] if names else []


def _reduced(facts: Facts) -> Body:
    """Return a reduce: what all due vertices contribute, a part of them at a time."""
    [function] = facts.functions
    name = facts.filled(function).name
    summed = tuple(facts.summed) if facts.binding.block else ()
    between: Body = [PutBy(summed), Start(name)] if summed else []
    due = Sweep("v", "due", "is_due", [Contribute(function)], [Settle(name)], between)
    behind: Body = [AddUp(summed)] if summed else []
    behind += [Finish(name), Meet("collect", "partial", (name,))]
    return [Start(name), due, *behind]


def _triangles(facts: Facts) -> Body:
    """Return what is done for each triangle."""
    [function] = facts.functions.values()
    within = str(getattr(function.declared, "within", None) or "")
    may_wait = tuple(dict.fromkeys(each.role for each in facts.sums))
    run = Triangle(function.name)
    return [Intersect([run], may_wait, within, facts.phase.from_edges)]


def _loads(facts: Facts) -> Body:
    """Return what the phase reads of earlier ones, single entries last."""
    entries = [n for n in facts.read_entries if not facts.is_filled_here(n)]
    return [FromMemory(name) for name in (*facts.phase.loads, *entries)]


def _vertices(facts: Facts) -> Body:
    """Return a sweep of vertices: gathers and vertex functions, in order.

    Where edges are pulled, all vertices that one of them may lead to are swept.
    """
    phase = facts.phase
    body = [*_loads(facts), Begin(facts.of_vertices(phase.copies))]
    stores: Body = [ToMemory(name) for name in phase.stores]
    groups, marks = _grouped(facts), [("alive", "passed")]
    words, wanted, spread = "due", "is_due", list[ast.stmt]()
    if phase.spreads:
        spread = [Then([Only(expression("spreads"), [_spread(facts)])])]
    if phase.pulls_edges:
        words, wanted = "swept", "is_swept"
        marks.append(("is_target", "targets"))
        body += _pulled(facts, groups, stores)
    else:
        body += _nested(facts, groups, [], stores)
    if phase.commits:
        body.append(Then([Copy(phase.commits, "v", commits=True)]))
    if facts.plan.widens_active(phase):
        marks.append(("alive", "active_sources"))
    body += _restored(facts.of_vertices(phase.restores), "v") + spread
    return [Sweep("v", words, wanted, body, marks=tuple(marks))]


def _spread(facts: Facts) -> ForEdges:
    """Have those run that gather from `v`: later words, and the rest of this one."""
    intrinsics = facts.intrinsics
    found = f"{intrinsics}.test_bit(allowed, u) and not {intrinsics}.test_bit(due, u)"
    due = code(f"{intrinsics}.set_bit(due, u)")
    return ForEdges("v", [Only(expression(found), due)], along="out")


def _pulled(facts: Facts, groups: Sequence[list[Analysed]], last: Body) -> Body:
    """Return functions in order, edge functions in the pass over edges behind them."""
    first, *rest = groups
    edges = [f for f in facts.functions.values() if f.kind.writes_edges]
    behind = _nested(facts, rest, [*edges, *first], last)
    pull = Pull(tuple(f.name for f in edges), _reads_what(facts, edges, first))
    names = tuple(f.name for f in first)
    along = ForEdges("v", [pull, *(Contribute(name) for name in names)])
    return [Gathers(names, along), FindDue(), *([Then(behind)] if rest else behind)]


def _grouped(facts: Facts) -> list[list[Analysed]]:
    """Group gathers that share a pass over the edges; vertex functions are alone."""
    groups: list[list[Analysed]] = []
    for function in facts.functions.values():
        if function.kind.writes_edges:
            continue
        share = bool(groups) and function.kind.gathers and groups[-1][0].kind.gathers
        share = share and takes_active(function) == takes_active(groups[-1][0])
        reads = {facts.base(t) for t in facts.callees[function.name].temporaries}
        if share and not reads & {f.into for f in groups[-1]}:
            groups[-1].append(function)
        else:
            groups.append([function])
    return groups


def _nested(
    facts: Facts, groups: Sequence[list[Analysed]], ran: list[Analysed], last: Body
) -> Body:
    """Return functions in order: what stands behind a verdict runs if that is True.

    `last` stands behind all of them.
    """
    if not groups:
        return last
    group, *rest = groups
    behind = _nested(facts, rest, [*ran, *group], last)
    entity = "e" if group[0].kind.writes_edges else "v"
    out: Body = [Ordered(entity)] if _reads_what(facts, ran, group) else []
    if group[0].kind.gathers:
        names = tuple(f.name for f in group)
        edges = ForEdges("v", [Contribute(name) for name in names])
        out.append(Gathers(names, edges))
        # Whether the vertex is due is known behind its edges then.
        return [*out, *([Then(behind)] if facts.finds_due else behind)]
    [function] = group
    out.append(Comment(f"{function.kind} function {function.declared.name}"))
    return [*out, Run(function.name), *([Then(behind)] if rest else behind)]


def _reads_what(facts: Facts, ran: list[Analysed], group: list[Analysed]) -> bool:
    """Whether functions read what earlier ones wrote, in other lanes as well."""
    wrote = {(a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"}
    wrote -= {(name, "next") for name in facts.context.forwarded}
    return bool(wrote & {(a.name, a.version) for f in group for a in f.accesses})
