"""Gathers that need not look at all edges of a vertex.

One with ``sources="active"`` combines over the edges from active vertices only. A
combine with ``any`` is done at the first True. So is one with ``first=True`` at its
first contribution: any one will do. ``deterministic=True`` looks at all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import combine_of, is_matrix
from featgraph.fold.plan.options import Options
from featgraph.fold.schedules.mapping import Mapping

__all__ = ["find_stops"]


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
        if function.kind != "gather" or function.into in incremental:
            continue
        declared: Any = function.declared
        combine = combine_of(function)
        ends = combine.rules.final is not None
        ends = ends and not (mapping.is_looped or is_matrix(function))
        if ends or (declared.first and not options.deterministic):
            stops.append(str(function.into))
    return tuple(stops)
