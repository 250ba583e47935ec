"""Cuts of a graph with sides: each side by itself, so that ranks share each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import GraphInputError
from featgraph.graph.partition.cuts import Balance

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["cut_each_side"]

#: What all vertices of a side weigh at most, of the mean share of a rank: enough that
#: vertices without edges are not all one rank's, and edges within so much of equal.
_OF_A_SHARE = 0.02


def cut_each_side(
    graph: Structure,
    order: NDArray[np.int32] | None,
    parts: int,
    balance: Balance | None,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Cut every side into ranges of about equal work; a rank gets one of each.

    Cuts are at any vertex: 32 popular ones may have more than a share, and words of
    local numbers are a rank's own wherever its range begins.

    Parameters
    ----------
    graph : Graph
        With sides.
    order : ndarray of int32, shape (V,), or None
        The order in which the vertices of a side stand; None: their numbers.
    parts : int
    balance : Balance or None
        None: in-edges, and vertices as far as these stay near equal.

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
    if balance is not None and balance.ghost:
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
        work = _work(graph.in_degree[members].astype(np.float64), parts, balance)
        pieces.append(np.split(members, _cuts(work, parts)))
    dealt = [piece for of_rank in zip(*pieces, strict=True) for piece in of_rank]
    sizes = [sum(map(len, of_rank)) for of_rank in zip(*pieces, strict=True)]
    return np.concatenate(dealt), np.concatenate(([0], np.cumsum(sizes)))


def _work(
    edges: NDArray[np.float64], parts: int, balance: Balance | None
) -> NDArray[np.float64]:
    """Return the work of each vertex of a side, by its in-edges."""
    if balance is None:
        share = float(edges.sum()) / parts
        vertex = min(Balance().vertex, _OF_A_SHARE * share / max(edges.size, 1))
        balance = Balance(1, vertex or 1)  # a side without edges is cut by vertices
    return balance.edge * edges + balance.vertex


def _cuts(work: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return where a side is cut: at the places nearest to equal work."""
    before = np.concatenate(([0.0], np.cumsum(work)))
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.minimum(np.searchsorted(before, wanted), work.size)
    below = np.maximum(above - 1, 0)
    is_below = wanted - before[below] < before[above] - wanted
    cuts: NDArray[np.int64] = np.where(is_below, below, above).astype(np.int64)
    return cuts
