"""Cuts of an order of vertices into ranges, one per rank, of about equal work.

`choose_cuts` cuts one order of all vertices, `cut_each_side` each side of a graph with
sides.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_real
from featgraph.base.errors import GraphInputError

__all__ = [
    "WORD",
    "Balance",
    "checked_balance",
    "choose_cuts",
    "cut_each_side",
    "even_cuts",
    "round_cuts",
    "side_bounds",
    "word_places",
]

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

#: Bits of a word of a bitvector. Chosen cuts are multiples, so that a word has one
#: owner.
WORD = 32

#: Relative width of the interval at which the bisection of `_fill_parts` ends.
TOLERANCE = 1 / 256


class Balance(NamedTuple):
    """Weights of the work that is balanced between ranks, in units of an in-edge.

    If only in-edges counted, one of 512 ranks would own up to 28 times the mean number
    of vertices of an R-MAT graph of 2**17 vertices in generated order. A vertex of
    PageRank or label propagation takes as long as three edges (R-MAT of scale 24, two
    NVIDIA H100s: 2.8 to 3.1).

    Attributes
    ----------
    edge, vertex, ghost : float
        Work of an in-edge, an own vertex, and a ghost.
    """

    edge: float = 1
    vertex: float = 3
    ghost: float = 0


def checked_balance(balance: object) -> Balance:
    """Return the checked weights of an in-edge, a vertex and a ghost."""
    numbers = tuple(balance) if isinstance(balance, list | tuple) else ()
    if len(numbers) == 3:
        weights = Balance(*(require_real("balance", value) for value in numbers))
        if min(weights) >= 0 and weights.edge + weights.vertex > 0:
            return weights
    raise GraphInputError(
        "not the weights of an in-edge, a vertex and a ghost",
        where="balance",
        got=f"{balance!r:.80}",
        expected="three numbers >= 0, at least one of the first two positive",
        fix=f"balance={tuple(Balance())}",
    )


def choose_cuts(
    graph: Structure, order: NDArray[np.int32] | None, parts: int, balance: Balance
) -> NDArray[np.int64]:
    """Cut an order of the vertices into ranges of about equal work.

    Parameters
    ----------
    graph : Graph
    order : ndarray of int32, shape (V,), or None
        The vertex at each place; None: by number.
    parts : int
    balance : Balance

    Returns
    -------
    ndarray of int64, shape (parts + 1,)
        Multiples of `WORD`, except for V.
    """
    if balance.ghost:
        return _fill_parts(graph, order, parts, balance)
    places = word_places(graph.vertex_count)
    edges = _edges_before(graph, order, places)
    return even_cuts(edges, graph.vertex_count, parts, balance)


def word_places(vertex_count: int) -> NDArray[np.int64]:
    """Return the first vertex of each word of a bitvector, and the end of the last."""
    return np.append(np.arange(0, vertex_count, WORD), vertex_count)


def even_cuts(
    edges_before: NDArray[np.float64], vertex_count: int, parts: int, balance: Balance
) -> NDArray[np.int64]:
    """Cut vertices into ranges of about equal work, not counting ghosts.

    Parameters
    ----------
    edges_before : ndarray of float64
        The number of in-edges of vertices before each of `word_places`.
    vertex_count, parts : int
    balance : Balance
    """
    places = word_places(vertex_count)
    before = balance.edge * edges_before
    before += balance.vertex * places
    goals = before[-1] * (np.arange(1, parts) / parts)
    # The place before which the work is nearest to the goal.
    at = np.searchsorted((before[:-1] + before[1:]) / 2, goals)
    return np.concatenate(([0], places[at], [vertex_count]))


def _edges_before(
    graph: Structure, order: NDArray[np.int32] | None, places: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the number of in-edges of vertices before each of some places."""
    degrees = np.asarray(graph.in_degree)
    if order is not None:
        degrees = degrees[order]
    words = np.add.reduceat(degrees, places[:-1], dtype=np.float64)
    return np.concatenate(([0.0], np.cumsum(words)))


def _fill_parts(
    graph: Structure, order: NDArray[np.int32] | None, parts: int, balance: Balance
) -> NDArray[np.int64]:
    """Find the least bound on the work of a part by bisection; fill parts up to it.

    The number of ghosts of a range is not a sum over its vertices, so prefix sums do
    not apply. O(E) for each bound that is tried.
    """
    from featgraph.graph.partition import kernels  # loads Numba

    rows, count = graph.in_edges, graph.vertex_count
    vertices = np.arange(count, dtype=np.int32) if order is None else order
    places = np.empty(count, np.int32)
    places[vertices] = np.arange(count, dtype=np.int32)
    mark = np.full(count, -1, np.int64)
    work = np.array([*balance, WORD], np.float64)
    # One part with everything has no ghosts, so its work is an upper bound.
    high = balance.edge * graph.edge_count + balance.vertex * count
    low = high / parts
    cuts = np.full(parts + 1, count, np.int64)
    cuts[0] = 0
    tried = cuts.copy()
    stamp = 0
    while high - low > TOLERANCE * low:
        bound = (low + high) / 2
        stamp += parts
        rows_of = rows.row_offsets, rows.column_indices, vertices, places
        if kernels.fill_parts(*rows_of, work, bound, mark, stamp, tried):
            high = bound
            cuts = tried.copy()
        else:
            low = bound
    return cuts


def round_cuts(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move all cuts but the first and last to the nearest multiples of `WORD`."""
    rounded: NDArray[np.int64] = (cuts + WORD // 2) // WORD * WORD
    rounded[-1] = cuts[-1]
    np.minimum(rounded, cuts[-1], out=rounded)
    return rounded


# -- graphs with sides


#: Total weight of a side's vertices, relative to the in-edges of one rank, at most. It
#: spreads vertices without edges over ranks, and keeps in-edges equal within 2 %.
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

    Cuts are at any vertex, since 32 vertices of high degree may be more than a share.
    Bitvectors are indexed by local numbers, so ranges need not begin at a word.

    Parameters
    ----------
    degrees : ndarray of integers, shape (V,)
        In-edges of each vertex.
    sides : tuple of int
    order : ndarray of int32, shape (V,), or None
        The order of the vertices of a side; None: by number.
    parts : int
    balance : Balance or None
        None: in-edges count 1, and vertices so little that in-edges are nearly equal.

    Returns
    -------
    cuts : ndarray of int64, shape (parts + 1,)
    order : ndarray of int32, shape (V,)
        The ranges of rank 0, one of each side, then those of rank 1, and so on.

    Raises
    ------
    GraphInputError
        If ghosts have a weight, since they belong to no side.
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
    """Return the work before each vertex of a side, and the total, from in-edges."""
    before = np.zeros(edges.size + 1, np.int64)
    np.cumsum(edges, out=before[1:])
    if balance is None:
        share = float(before[-1]) / parts
        vertex = min(Balance().vertex, _OF_A_SHARE * share / max(edges.size, 1))
        balance = Balance(1, vertex or 1)  # without edges, vertices count
    return balance.edge * before + balance.vertex * np.arange(before.size)


def _cuts(before: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return the cuts of a side, at the places nearest to equal work."""
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.minimum(np.searchsorted(before, wanted), before.size - 1)
    below = np.maximum(above - 1, 0)
    is_below = wanted - before[below] < before[above] - wanted
    cuts: NDArray[np.int64] = np.where(is_below, below, above).astype(np.int64)
    return cuts
