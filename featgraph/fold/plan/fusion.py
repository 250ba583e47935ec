"""Which neighboring functions of a foldmap share a kernel, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.reduce_order import order_of_reduces
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.kinds.table import kind_of
from featgraph.fold.plan.layout import other_along
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.pulled_edges import Group, conflict, drop_conflict

__all__ = ["Group", "group_functions"]


def group_functions(
    functions: Sequence[Analysed],
    options: Options,
    incremental: frozenset[str],
    alongs: Mapping[str, str],
) -> list[Group]:
    """Return (kind, functions, reason) of each phase."""
    groups: list[Group] = []
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
    alongs: Mapping[str, str],
) -> str | None:
    """Return why `function` cannot join the open phase, None if it can."""
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
