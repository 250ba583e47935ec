"""Gathers that need not look at all edges of a vertex.

One with ``sources="active"`` combines over the edges from active vertices only. A
combine with ``any`` is done at the first True. So is one with ``first=True`` at its
first contribution: any one will do. ``deterministic=True`` looks at all of them.

Where all gathers of a foldmap do so, its kernel comes to know which vertices are due.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import combine_of, is_matrix
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.plan import Facts, Phase
from featgraph.fold.plan.worklist import is_in_order
from featgraph.fold.schedules.mapping import Mapping

__all__ = ["find_stops", "have_due_found"]


def find_stops(
    members: Sequence[Analysed],
    mapping: Mapping,
    options: Options,
    incremental: Collection[str],
) -> tuple[str, ...]:
    """Return what the gathers of a vertex phase fill that may stop early.

    Where features are loops over arrays, or there is one for each pair of features,
    asking all of them at every edge is dear: only what says ``first=True`` does.
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
    facts: Facts,
) -> tuple[Phase, ...]:
    """Return phases of which one that can finds out which vertices are due.

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
