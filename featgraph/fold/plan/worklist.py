"""Foldmaps whose supersteps can run one after the other in one compiled loop.

Vertex functions, gathers from active sources that go along the same edges, and vertex
functions behind them: then what one superstep announces is all that the next one needs,
and its edges are gone along from those that are active.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import combine_of, is_matrix, takes_active

if TYPE_CHECKING:
    from featgraph.fold.plan.plan import FoldPlan

__all__ = ["EXACT", "is_free", "is_queued", "keys_of"]

#: Combines that do not round, in any order.
EXACT = {"min", "max", "any", "argmin", "argmax"}
#: Those of them that take the first of some keys.
_ORDERED = {"min", "max", "argmin", "argmax"}


def is_free(function: Analysed) -> bool:
    """Whether the result of a gather does not depend on the direction it runs in.

    It combines over the edges from active vertices only, and does not round.
    """
    if not takes_active(function) or is_matrix(function):
        return False
    combine = combine_of(function)
    is_count = combine.name == "sum" and function.returns != "real"
    return not combine.is_custom and (combine.name in EXACT or is_count)


def is_queued(plan: FoldPlan) -> bool:
    """Whether a compiled loop over supersteps is printed for a plan."""
    options, functions = plan.options, plan.analysis.functions
    if options.target != "cpu" or options.direction != "auto" or options.checked:
        return False
    if options.asynchronous or plan.keeps or not options.folding:
        return False
    if len(plan.phases) != 1 or plan.phases[0].kind != "vertex":
        return False
    if plan.phases[0].mapping.loops or plan.phases[0].pulls_edges:
        return False
    if any("superstep" in f.scalars for f in functions):
        return False
    if any(a.where == "foreign" for f in functions for a in f.accesses):
        return False
    return _is_in_order(functions) and all(
        is_free(f) and not f.collective for f in functions if f.kind == "gather"
    )


def _is_in_order(functions: Sequence[Analysed]) -> bool:
    """Whether all gathers share one pass over edges, and a vertex function follows."""
    kinds = [f.kind for f in functions]
    if set(kinds) != {"vertex", "gather"} or kinds[-1] != "vertex":
        return False
    first = kinds.index("gather")
    gathers = kinds[first:].index("vertex")
    stage = functions[first : first + gathers]
    filled = {f.into for f in stage}
    read = {a.name.removesuffix("_source") for f in stage for a in f.accesses}
    return "gather" not in kinds[first + gathers :] and not filled & read


def keys_of(plan: FoldPlan) -> tuple[str, ...]:
    """Return the properties by which a loop can tell near vertices from far ones."""
    writes = plan.phases[0].writes_next
    found = {
        a.name
        for f in plan.analysis.functions
        if f.kind == "gather" and combine_of(f).name in _ORDERED
        for a in f.accesses
        if a.where == "neighbor" and a.name in writes
    }
    signature = plan.analysis.signature
    return tuple(sorted(n for n in found if signature[n].dtype != "bool"))
