"""Edges go to the owners of their ends, so many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import offset_dtype
from featgraph.distributed.engines.protocol import Engine
from featgraph.ranks.loading.given import Chunk, Given

__all__ = ["ROUND_EDGES", "Arrived", "count_sources", "exchange_edges"]

Array = npt.NDArray[Any]
Cuts = npt.NDArray[np.int64]

#: Edges that a rank sends in a round: messages take up to 24 bytes of each, twice.
ROUND_EDGES = 1 << 18
_ABOUT = "edges of a graph"


@dataclass(frozen=True, eq=False)
class Arrived:
    """The edges at a rank's own vertices, in given order; all arrays are its own.

    Attributes
    ----------
    sources, targets : ndarray of int32
        In the graph's numbers.
    weights : ndarray or None
    rows : ndarray of int32 or int64
        Row in given order of each.
    """

    sources: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    weights: Array | None
    rows: Array

    def reorder(self, index: Array) -> None:
        """Put them into another order, an array at a time."""
        for array in (self.sources, self.targets, self.weights, self.rows):
            if array is not None:
                array[:] = array[index]


def exchange_edges(
    engine: Engine, given: Given, cuts: Cuts, given_count: int, both_ends: bool
) -> Arrived:
    """Hand each edge to the owner of its target, and to that of its source.

    All ranks call it. What each has been given is let go of on the way.

    Parameters
    ----------
    engine : Engine
    given : Given
    cuts : ndarray of int64, shape (P + 1,)
        Of ranges of vertices.
    given_count : int
        How many edges all ranks have.
    both_ends : bool
        Whether the owners of sources get edges, too.
    """
    counts = np.zeros(engine.size, np.int64)
    for chunk in given.parts(ROUND_EDGES):
        to, _ = _receivers(chunk, cuts, both_ends)
        counts += np.bincount(to, minlength=engine.size)
    coming = np.concatenate(
        engine.all_to_allv(
            [counts[r : r + 1] for r in range(engine.size)], about=_ABOUT
        )
    )
    rounds = _rounds(engine, given)
    total, dtype = int(coming.sum()), given.weights_dtype
    arrived = Arrived(
        np.empty(total, np.int32),
        np.empty(total, np.int32),
        None if dtype is None else np.empty(total, dtype),
        np.empty(total, offset_dtype(2 * given_count)),
    )
    at = np.concatenate(([0], np.cumsum(coming)))[:-1]
    parts = given.take(ROUND_EDGES)
    for _ in range(rounds):
        _one_round(engine, next(parts, None), cuts, both_ends, (arrived, at))
    return _in_given_order(arrived)


def count_sources(engine: Engine, given: Given, cuts: Cuts) -> Array:
    """Return how many edges lead out of each vertex that this rank owns."""
    from featgraph.graph.partition import part_kernels  # loads Numba

    first, last = map(int, cuts[engine.rank : engine.rank + 2])
    counts = np.zeros(last - first, np.int64)
    parts, none = given.parts(ROUND_EDGES), np.empty(0, np.int32)
    for _ in range(_rounds(engine, given)):
        chunk = next(parts, None)
        sources = none if chunk is None else chunk.sources.astype(np.int32, copy=False)
        to = _owners(sources, cuts)
        order = np.argsort(to, kind="stable")
        bounds = np.searchsorted(to[order], np.arange(engine.size + 1))
        sent = [sources[order[begin:end]] for begin, end in pairwise(bounds)]
        for part in engine.all_to_allv(sent, about="sources of edges"):
            part_kernels.count_own(part - np.int32(first), counts)
    return counts


def _rounds(engine: Engine, given: Given) -> int:
    """Return how many rounds the rank takes that has most edges."""
    own = sum(-(-chunk.size // ROUND_EDGES) for chunk in given.chunks)
    found = engine.all_reduce(np.array([own]), "max", about="rounds of edges")
    return int(found[0])


def _one_round(
    engine: Engine,
    chunk: Chunk | None,
    cuts: Cuts,
    both_ends: bool,
    into: tuple[Arrived, Array],
) -> None:
    """Send some edges, and store what comes where the sender's stand."""
    arrived, at = into
    if chunk is None:
        none = np.empty(0, np.int64)
        weights = None if arrived.weights is None else none
        chunk = Chunk(none, none, weights, none)
    to, which = _receivers(chunk, cuts, both_ends)
    bounds = np.searchsorted(to, np.arange(engine.size + 1))
    first = chunk.rows
    rows = first[which] if isinstance(first, np.ndarray) else which + first
    columns = [
        (chunk.sources[which], arrived.sources),
        (chunk.targets[which], arrived.targets),
        (rows, arrived.rows),
    ]
    if chunk.weights is not None and arrived.weights is not None:
        columns.append((chunk.weights[which], arrived.weights))
    begin = at.copy()
    for column, store in columns:
        sent = column.astype(store.dtype, copy=False)
        parts = [sent[b:e] for b, e in pairwise(bounds)]
        for rank, part in enumerate(engine.all_to_allv(parts, about=_ABOUT)):
            store[begin[rank] : begin[rank] + part.size] = part
            at[rank] = begin[rank] + part.size


def _receivers(chunk: Chunk, cuts: Cuts, both_ends: bool) -> tuple[Array, Array]:
    """Return which ranks get which edges: ascending ranks, and edges of each."""
    to = _owners(chunk.targets, cuts)
    which = np.arange(chunk.size)
    if both_ends:
        other = _owners(chunk.sources, cuts)
        cut = np.flatnonzero(other != to)
        to, which = np.concatenate((to, other[cut])), np.concatenate((which, cut))
    order = np.lexsort((which, to))
    return to[order], which[order]


def _owners(vertices: Array, cuts: Cuts) -> Array:
    return np.searchsorted(cuts, vertices, "right") - 1


def _in_given_order(arrived: Arrived) -> Arrived:
    """Sort edges by row, unless they are: those of senders are, one by one."""
    rows = arrived.rows
    if rows.size > 1 and not bool((rows[1:] > rows[:-1]).all()):
        arrived.reorder(np.argsort(rows, kind="stable"))
    return arrived
