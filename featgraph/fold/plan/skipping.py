"""Edges that a phase may skip: early exit of gathers, and unchanged edges (0069).

A gather with ``sources="active"`` combines over edges from active vertices only. A
combine with ``any`` stops at the first True. A gather with ``first=True`` stops at its
first contribution. ``deterministic=True`` visits all edges. Where all gathers of a
foldmap stop early, its kernel finds the due vertices by itself.

An edge function whose inputs belong to its edge, or are the same for all edges, returns
False again until one of its inputs has changed. A set of edges holds the changed ones:
the function removes edges on which it returns False, and a triangle function behind it
inserts the edges whose entries it adds to.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import added_by, combine_of, is_matrix
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.plan import Phase, PlanFacts
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.plan.worklist import is_in_order
from featgraph.fold.schedules.intersect_edges import WARPS_AN_EDGE
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.expressions import Atomic
from featgraph.program.signature import PropertyKind, Signature

__all__ = ["find_stops", "have_due_found", "sweep_changed"]


def find_stops(
    members: Sequence[Analysed],
    mapping: Mapping,
    options: Options,
    incremental: Collection[str],
) -> tuple[str, ...]:
    """Return the results of the gathers of a vertex phase that may stop early.

    Where features are loops over arrays, or there is one for each pair of features, a
    test of all features at each edge is slow: only gathers with ``first=True`` stop.
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
    """Return phases of which the only one finds the due vertices itself if it can.

    It may sweep others, too, then, on which the functions before its gathers run, but
    no later one. So those must not write, nor fail for an index.
    """
    before = takewhile(lambda f: not f.kind.gathers, functions)
    asks = (
        options.target == "cuda"
        and not options.checked
        and facts.may_push
        and [p.kind.pulls for p in phases] == [True]
        and phases[0].schedule.finds_due
        and is_in_order(functions)
        and all(a.mode == "read" for f in before for a in f.accesses)
    )
    return tuple(replace(p, finds_due=asks) for p in phases)


def sweep_changed(
    phases: list[Phase], analysis: Analysis, options: Options, traits: GraphTraits
) -> list[Phase]:
    """Sweep only changed edges in the first phase, where the result is the same."""
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
    """Whether the verdict follows from entries of an edge, and from what all share.

    What it leaves behind False must be nothing that it, or another one, reads. What it
    commits changes its own edge, not the reverse.
    """
    if function.collective or "superstep" in function.scalars:
        return False
    body = (node for statement in function.body for node in ast.walk(statement))
    if any(isinstance(node, ast.Name) and node.id in {"u", "v"} for node in body):
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
    """Whether all that it changes of what edge functions read are sums at its edges."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    sums = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and added_by(node, signature) is not None
    }
    changed = (n for n in nodes if isinstance(n, Atomic) and n.name in read)
    return all(id(node) in sums for node in changed)
