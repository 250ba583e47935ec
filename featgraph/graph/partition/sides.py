"""Cuts of a graph with sides: each side is divided among all ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import GraphInputError
from featgraph.graph.partition.cuts import Balance

__all__ = ["cut_each_side", "side_bounds"]

#: The most that all vertices of a side weigh, relative to the mean share of a rank:
#: vertices without edges are spread over ranks, and edges stay equal within 2 %.
_OF_A_SHARE = 0.02


def side_bounds(sides: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the offsets of the sides, and the end of the last one."""
    return np.concatenate(([0], np.cumsum(sides, dtype=np.int64)))


def cut_each_side(
    degrees: NDArray[Any],
    sides: tuple[int, ...],
    order: NDArray[np.int32] | None,
    parts: int,
    balance: Balance | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Cut every side into ranges of about equal work; a rank gets one of each.

    Cuts are at any vertex: 32 vertices of high degree may have more than a share, and
    words of bitvectors hold local numbers, so that ranges need not begin at a word.

    Parameters
    ----------
    degrees : ndarray of integers, shape (V,)
        In-edges of each vertex.
    sides : tuple of int
    order : ndarray of int32, shape (V,), or None
        The order of the vertices of a side; None: by number.
    parts : int
    balance : Balance or None
        None: in-edges, and vertices as far as in-edges stay nearly equal.

    Returns
    -------
    cuts : ndarray of int64, shape (parts + 1,)
    order : ndarray of int32, shape (V,)
        The ranges of rank 0, one of each side, then those of rank 1, and so on.

    Raises
    ------
    GraphInputError
        If ghosts have a weight: these belong to no side.
    """
    if balance is not None and balance.ghost:
        raise GraphInputError(
            "sides are cut by the work of their own vertices",
            where="balance",
            got=f"{balance.ghost:g} for a ghost",
            expected="0",
            fix="cuts= and an order of your own",
        )
    bounds = side_bounds(sides)
    pieces: list[list[NDArray[np.int32]]] = []
    for begin, end in pairwise(bounds.tolist()):
        if order is None:
            members = np.arange(begin, end, dtype=np.int32)
        else:
            members = order[(order >= begin) & (order < end)]
        work = _work_before(degrees[members], parts, balance)
        pieces.append(np.split(members, _cuts(work, parts)))
    dealt = [piece for of_rank in zip(*pieces, strict=True) for piece in of_rank]
    sizes = [sum(map(len, of_rank)) for of_rank in zip(*pieces, strict=True)]
    return np.concatenate(([0], np.cumsum(sizes))), np.concatenate(dealt)


def _work_before(
    edges: NDArray[Any], parts: int, balance: Balance | None
) -> NDArray[np.float64]:
    """Return the work before each vertex of a side, and all of it, by in-edges."""
    before = np.zeros(edges.size + 1, np.int64)
    np.cumsum(edges, out=before[1:])
    if balance is None:
        share = float(before[-1]) / parts
        vertex = min(Balance().vertex, _OF_A_SHARE * share / max(edges.size, 1))
        balance = Balance(1, vertex or 1)  # a side without edges is cut by vertices
    return balance.edge * before + balance.vertex * np.arange(before.size)


def _cuts(before: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return the cuts of a side: the places nearest to equal work."""
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.minimum(np.searchsorted(before, wanted), before.size - 1)
    below = np.maximum(above - 1, 0)
    is_below = wanted - before[below] < before[above] - wanted
    cuts: NDArray[np.int64] = np.where(is_below, below, above).astype(np.int64)
    return cuts
