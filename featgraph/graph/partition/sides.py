"""Cuts of a graph with sides: each side by itself, so that ranks share each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import GraphInputError
from featgraph.graph.partition.cuts import Balance, even_cuts, word_places

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["cut_each_side"]


def cut_each_side(
    graph: Structure, order: NDArray[np.int32] | None, parts: int, balance: Balance
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Cut every side into ranges of about equal work; a rank gets one of each.

    Parameters
    ----------
    graph : Graph
        With sides.
    order : ndarray of int32, shape (V,), or None
        The order in which the vertices of a side stand; None: their numbers.
    parts : int
    balance : Balance

    Returns
    -------
    order : ndarray of int32, shape (V,)
        The ranges of rank 0, one of each side, then those of rank 1, and so on.
    cuts : ndarray of int64, shape (parts + 1,)

    Raises
    ------
    GraphInputError
        If ghosts weigh something: these belong to no side.
    """
    if balance.ghost:
        raise GraphInputError(
            "sides are cut by the work of their own vertices",
            where="balance",
            got=f"{balance.ghost:g} for a ghost",
            expected="0",
            fix="cuts= and an order of your own",
        )
    vertices = np.arange(graph.vertex_count, dtype=np.int32) if order is None else order
    ends = np.cumsum(np.array(graph.sides))
    side_of = np.searchsorted(ends, vertices, "right")
    pieces: list[list[NDArray[np.int32]]] = []
    for side in range(ends.size):
        members = vertices[side_of == side]
        degrees = graph.in_degree[members]
        words = word_places(members.size)[:-1]
        before = np.cumsum(np.add.reduceat(degrees, words, dtype=np.float64))
        cuts = even_cuts(np.append(0.0, before), members.size, parts, balance)
        pieces.append(np.split(members, cuts[1:-1]))
    dealt = [piece for of_rank in zip(*pieces, strict=True) for piece in of_rank]
    sizes = [sum(map(len, of_rank)) for of_rank in zip(*pieces, strict=True)]
    return np.concatenate(dealt), np.concatenate(([0], np.cumsum(sizes)))
