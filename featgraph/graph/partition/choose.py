"""The choice of a partition from a caller's arguments."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.errors import GraphInputError
from featgraph.graph.building.check import MAX_VERTEX_COUNT
from featgraph.graph.partition.cuts import (
    Balance,
    checked_balance,
    choose_cuts,
    cut_each_side,
)
from featgraph.graph.partition.orders import choose_order
from featgraph.graph.partition.partition import Partition

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = ["checked_parts", "choose_partition"]


def choose_partition(
    graph: Structure,
    order: object = "given",
    parts: object = None,
    *,
    cuts: object = None,
    balance: object = None,
) -> Partition:
    """Choose the owners of vertices; see `Graph.partition`."""
    weights = Balance() if balance is None else checked_balance(balance)
    if cuts is None:
        count = checked_parts(parts)
        ordered = choose_order(graph, order, count, weights)
        is_cut_whole = isinstance(order, str) and order == "metis"
        if graph.sides is not None and not is_cut_whole:
            of_sides = None if balance is None else weights
            degrees, of = np.asarray(graph.in_degree), (graph.sides, ordered.order)
            return Partition(*cut_each_side(degrees, *of, count, of_sides))
        found = ordered.cuts
        if found is None:
            found = choose_cuts(graph, ordered.order, count, weights)
        return Partition(found, ordered.order)
    if parts is not None:
        raise GraphInputError(
            "cuts already define the number of parts",
            where="parts",
            got=f"parts={shown(parts)}, and cuts",
            expected="one of the two",
            fix="leave parts out",
        )
    given = Partition(cuts)  # type: ignore[arg-type]
    return Partition(given.cuts, choose_order(graph, order, given.parts, weights).order)


def checked_parts(parts: object, name: str = "parts") -> int:
    """Return a number of parts; raise GraphInputError if it is invalid."""
    try:
        if isinstance(parts, bool | np.bool_):
            raise TypeError
        count = operator.index(parts)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if 1 <= count <= MAX_VERTEX_COUNT:
        return count
    raise GraphInputError(
        f"not a number of {name}",
        where=name,
        got=shown(parts),
        expected="an integer, 1 or more; more than there are vertices leave some empty",
        fix="parts=4, or cuts=",
    )
