"""What the matrices are that a phase sums along edges, for a schedule to ask."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import is_matrix
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.plan.options import Options
from featgraph.fold.schedules.mapping import Products
from featgraph.fold.tree.expressions import Operate

__all__ = ["products_of"]


def products_of(
    members: Sequence[Analysed], width: int, options: Options, piece: int
) -> Products | None:
    """Return the matrices that a phase sums, along edges or over all vertices.

    None where there are none. A matrix of one element is a number.
    """
    gathers = [f for f in members if f.kind.combines and is_matrix(f)]
    if not gathers or width == 1:
        return None
    parts = [f.outer_product for f in gathers]
    calls = [n for f in members for s in f.body for n in _systems(s)]
    solves = [n for n in calls if not primitive_of(n).is_matrix]
    definite = [n for n in solves if n.constant("spd")]
    inverses = len(calls) - len(solves)
    columns = (len(solves) - len(definite)) * (width + 1) + inverses * 2 * width
    return Products(
        count=len(gathers),
        symmetric=all(p is not None and p.symmetric for p in parts),
        arrays=sum(2 - (p is not None and p.is_square) for p in parts),
        refused=_refused(members, gathers, options),
        solutions=len(definite),
        area_columns=columns,
        piece=piece,
    )


def _refused(
    members: Sequence[Analysed], gathers: Sequence[Analysed], options: Options
) -> str:
    """Return what keeps matrices from being summed in tiles; "" where nothing does."""
    for function in gathers:
        if function.outer_product is None:
            return f"{function.name} contributes others"
        if function.collective:
            return f"{function.name} makes collaborative calls"
    if any(f.kind.writes_edges for f in members):
        return "edge functions run along the same edges"
    if options.incremental is not None:
        return "change_driven=True keeps what gathers have come to"
    looping = [f for f in members if any(map(_solves_in_loop, f.body))]
    if looping:
        return f"{looping[0].name} solves systems in a loop"
    return ""


def _solves_in_loop(statement: ast.stmt) -> bool:
    """Whether threads that do not write might go round less often than others."""
    loops = [n for n in ast.walk(statement) if isinstance(n, ast.For | ast.While)]
    return any(any(_systems(loop)) for loop in loops)


def _systems(node: ast.AST) -> list[Operate]:
    """Return what works in an area of memory somewhere in `node`."""
    calls = [n for n in ast.walk(node) if isinstance(n, Operate)]
    return [n for n in calls if primitive_of(n).takes_area]
