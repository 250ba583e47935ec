"""Cuts of an order of vertices into the ranges of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_real
from featgraph.base.errors import GraphInputError

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = [
    "WORD",
    "Balance",
    "checked_balance",
    "choose_cuts",
    "even_cuts",
    "round_cuts",
    "word_places",
]

#: Chosen cuts are at multiples of it: a word of an active bitvector has one owner.
WORD = 32

#: How far above the least bound, relative to it, the most work of a part may be if
#: ghosts have a weight.
TOLERANCE = 1 / 256


class Balance(NamedTuple):
    """Weights of the work that is balanced between ranks, in units of an in-edge.

    By in-edges alone a rank of 512 owns up to 28 times the mean number of vertices of
    an R-MAT graph of 2**17 vertices, numbered as it was generated. A vertex of PageRank
    and of label propagation takes as long as three edges (R-MAT of scale 24, two
    NVIDIA H100s: 2.8 to 3.1).

    Attributes
    ----------
    edge, vertex, ghost : float
        Work of an in-edge, of an own vertex, and of a ghost.
    """

    edge: float = 1
    vertex: float = 3
    ghost: float = 0


def checked_balance(balance: object) -> Balance:
    """Return the weights of an in-edge, a vertex and a ghost, checked."""
    given = tuple(balance) if isinstance(balance, list | tuple) else ()
    if len(given) == 3:
        weights = Balance(*(require_real("balance", value) for value in given))
        if min(weights) >= 0 and weights.edge + weights.vertex > 0:
            return weights
    raise GraphInputError(
        "not the weights of an in-edge, a vertex and a ghost",
        where="balance",
        got=f"{balance!r:.80}",
        expected="three numbers >= 0, of which one of the first two is positive",
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
        The vertex at each place; None: their numbers.
    parts : int
    balance : Balance

    Returns
    -------
    ndarray of int64, shape (parts + 1,)
        Multiples of `WORD`, but for V.
    """
    if balance.ghost:
        return _fill_parts(graph, order, parts, balance)
    places = word_places(graph.vertex_count)
    edges = _edges_before(graph, order, places)
    return even_cuts(edges, graph.vertex_count, parts, balance)


def word_places(vertex_count: int) -> NDArray[np.int64]:
    """Return the offsets of words of vertices, and the end of the last one."""
    return np.append(np.arange(0, vertex_count, WORD), vertex_count)


def even_cuts(
    edges_before: NDArray[np.float64], vertex_count: int, parts: int, balance: Balance
) -> NDArray[np.int64]:
    """Cut vertices into ranges of about equal work, without that of ghosts.

    Parameters
    ----------
    edges_before : ndarray of float64
        The number of in-edges of all vertices before each of `word_places`.
    vertex_count, parts : int
    balance : Balance
    """
    places = word_places(vertex_count)
    before = balance.edge * edges_before
    before += balance.vertex * places
    goals = before[-1] * (np.arange(1, parts) / parts)
    # The place whose work before it is nearest to the goal.
    at = np.searchsorted((before[:-1] + before[1:]) / 2, goals)
    return np.concatenate(([0], places[at], [vertex_count]))


def _edges_before(
    graph: Structure, order: NDArray[np.int32] | None, places: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the number of in-edges of all vertices before each of some places."""
    degrees = np.asarray(graph.in_degree)
    if order is not None:
        degrees = degrees[order]
    words = np.add.reduceat(degrees, places[:-1], dtype=np.float64)
    return np.concatenate(([0.0], np.cumsum(words)))


def _fill_parts(
    graph: Structure, order: NDArray[np.int32] | None, parts: int, balance: Balance
) -> NDArray[np.int64]:
    """Find the least bound on the work of a part, and fill parts up to it.

    The number of ghosts of a range is not a sum over its vertices, so that prefix sums
    of work do not apply. O(E) for each bound that is tried.
    """
    from featgraph.graph.partition import kernels  # loads Numba

    rows, count = graph.in_edges, graph.vertex_count
    vertices = np.arange(count, dtype=np.int32) if order is None else order
    places = np.empty(count, np.int32)
    places[vertices] = np.arange(count, dtype=np.int32)
    mark = np.full(count, -1, np.int64)
    work = np.array([*balance, WORD], np.float64)
    # One part has no ghosts, and so all of it fits.
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
