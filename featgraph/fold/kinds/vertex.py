"""Vertex phases: pulled gathers, and vertex functions, on the due vertices.

`VERTEX` is the plain kind. In a `PULLED` phase, edge functions also run along the rows
(docs/design/0004-pulled-edges.md). In a `COMBINING` phase, all vertices also contribute
to reduces (CPU).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.kinds.base import (
    Names,
    NestFacts,
    PhaseKind,
    loads,
    nested,
    reads_what,
    restored,
)
from featgraph.fold.tree import nodes
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import Body, code, expression

__all__ = ["COMBINING", "PULLED", "VERTEX"]

#: Arguments of a kernel that pulls edges, in place of ``due``. Sets of vertices, as
#: words: the swept vertices; vertices that are due already; vertices that an edge that
#: passes may make due; sources, on whose out-edges edge functions run. A flag: whether
#: all vertices are sources. The result: vertices with an edge that passed.
_SETS = ("swept", "due", "allowed", "sources", "all_sources", "targets")


def _title(facts: NestFacts) -> str:
    of = " of a chunk" if facts.target is Target.CPU else ""
    return f"Sweep the due vertices{of}; `passed` gets those that end with True."


def _title_combining(facts: NestFacts) -> str:
    of = ", ".join(f"`partials_{n}`" for n in facts.phase.combines)
    return (
        "Sweep the due vertices of a chunk; `passed` gets those that end with True, "
        f"and a row of {of} what each block of vertices contributes."
    )


def _title_pulled(facts: NestFacts) -> str:
    on_cpu = facts.target is Target.CPU
    of, new = (" of a chunk", "") if on_cpu else ("", "not due before ")
    return (
        f"Sweep vertices{of}, and run the edge functions on their in-edges from "
        f"sources; `targets` gets those {new}with an edge that returned True, `passed` "
        "the due ones that end with True."
    )


def _arguments(facts: NestFacts, places: Names, more: Names) -> list[str]:
    """Return the names of the arguments, by which the runtime binds arrays."""
    phase = facts.phase
    sets = _SETS if phase.kind.pulls_edges else ("due",)
    changed = ["changed_sources", "stale"] if phase.incremental else []
    active = ["active_sources"] * facts.plan.takes_active(phase)
    gathers = any(f.kind.gathers for f in facts.functions.values())
    edges = facts.layout.arrays if gathers else ()
    if facts.target is Target.CUDA:
        some = ["some_due"] * phase.finds_due
        kept = ["d", *sets, "passed", *some, *changed, *places]
        return [*kept, *edges, *more, *active]
    out = facts.layout_along("out").arrays if phase.spreads else ()
    spread = ["spreads", "allowed", *out] if phase.spreads else []
    swept = ["swept_words"]
    if phase.combines:
        swept = ["swept", "vertex_blocks", *(f"partials_{n}" for n in phase.combines)]
    kept = ["d", *sets, "passed", *places, *swept, *changed]
    return [*kept, *active, *edges, *spread]


def _sweep(facts: NestFacts) -> nodes.Sweep:
    """Return a sweep of vertices: gathers and vertex functions, in order.

    If edges are pulled, the sweep also has the vertices that these edges may make due.
    """
    phase = facts.phase
    body = [*loads(facts), nodes.Begin(facts.of_vertices(phase.copies))]
    stores: Body = [nodes.ToMemory(name) for name in phase.stores]
    groups, marks = _grouped(facts), [("alive", "passed")]
    words, wanted, spread = "due", "is_due", list[ast.stmt]()
    if phase.spreads:
        spread = [nodes.Then([nodes.Only(expression("spreads"), [_spread(facts)])])]
    if phase.kind.pulls_edges:
        words, wanted = "swept", "is_swept"
        marks.append(("is_target", "targets"))
        body += _pulled(facts, groups, stores)
    else:
        body += nested(facts, groups, [], stores)
    if phase.commits:
        body.append(nodes.Then([nodes.Copy(phase.commits, "v", commits=True)]))
    if facts.plan.widens_active(phase):
        marks.append(("alive", "active_sources"))
    body += restored(facts.of_vertices(phase.restores), "v") + spread
    return nodes.Sweep("v", words, wanted, body, marks=tuple(marks))


def _combining(facts: NestFacts) -> Body:
    """Return a sweep of all vertices: due ones run functions, and all contribute.

    Each block of vertices stores a row of partial results.
    """
    sweep = _sweep(facts)
    reduces = {n: f for n, f in facts.functions.items() if f.kind.reduces}
    names = [f.accumulator for f in reduces.values()]
    is_due = code("alive = due_bits >> uint32(bit) & uint32(1) != 0")
    added: Body = [nodes.Contribute(name) for name in reduces]
    body = [*is_due, nodes.Then(sweep.body), *added]
    rows: Body = [nodes.Settle(name) for name in names]
    for name in names:
        rows += [nodes.Finish(name), nodes.Meet("collect", "partial", (name,))]
    starts: Body = [nodes.Start(name) for name in names]
    return [
        nodes.Sweep("v", "swept", "is_swept", body, rows, starts, marks=sweep.marks)
    ]


def _spread(facts: NestFacts) -> nodes.ForEdges:
    """Make the vertices due that gather from `v`, if they are `allowed` to run."""
    intrinsics = facts.intrinsics
    found = f"{intrinsics}.test_bit(allowed, u) and not {intrinsics}.test_bit(due, u)"
    due = code(f"{intrinsics}.set_bit(due, u)")
    return nodes.ForEdges("v", [nodes.Only(expression(found), due)], along="out")


def _pulled(facts: NestFacts, groups: Sequence[list[Analysed]], last: Body) -> Body:
    """Return all functions, with edge functions in the walk of the first gathers."""
    first, *rest = groups
    edges = [f for f in facts.functions.values() if f.kind.writes_edges]
    behind = nested(facts, rest, [*edges, *first], last)
    pull = nodes.Pull(tuple(f.name for f in edges), reads_what(facts, edges, first))
    names = tuple(f.name for f in first)
    along = nodes.ForEdges("v", [pull, *(nodes.Contribute(name) for name in names)])
    return [
        nodes.Gathers(names, along),
        nodes.FindDue(),
        *([nodes.Then(behind)] if rest else behind),
    ]


def _grouped(facts: NestFacts) -> list[list[Analysed]]:
    """Return groups of gathers that share a walk over edges, and single functions.

    A gather that reads the result of another, or that takes other sources, begins a new
    group.
    """
    groups: list[list[Analysed]] = []
    for function in facts.functions.values():
        if function.kind.writes_edges or function.kind.reduces:
            continue
        share = bool(groups) and function.kind.gathers and groups[-1][0].kind.gathers
        share = share and takes_active(function) == takes_active(groups[-1][0])
        reads = {facts.base(t) for t in facts.callees[function.name].temporaries}
        if share and not reads & {f.into for f in groups[-1]}:
            groups[-1].append(function)
        else:
            groups.append([function])
    return groups


VERTEX = PhaseKind(
    "vertex",
    lambda f, pushes: f.kind.writes_vertices or (f.kind.gathers and not pushes), _title,
    _arguments, lambda facts: [_sweep(facts)], "prepare_vertices", "finish_vertices",
    ends=frozenset({"passed"}), pulls=True,
)  # fmt: skip
PULLED = replace(
    VERTEX, title=_title_pulled, prepare="prepare_pulled", finish="finish_pulled",
    pulls_edges=True,
)  # fmt: skip
COMBINING = replace(
    VERTEX, title=_title_combining, nest=_combining, prepare="prepare_combining",
    chunk=("first_row", "last_row"), sweeps_blocks=True,
)  # fmt: skip
