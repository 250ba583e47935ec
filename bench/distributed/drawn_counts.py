"""Counts of ranks on a graph that is drawn: no edge of it is kept (0077)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.store import jit
from featgraph.graph.partition.cuts import WORD, Balance, even_cuts, word_places
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.forecast import Counts

if TYPE_CHECKING:
    from featgraph.graph.building.drawn import Drawing

_Array: TypeAlias = NDArray[Any]

#: Edges that are drawn at a time.
_PIECE = 1 << 22
#: Bytes of marks that are kept at a time, unless one word of vertices has more.
MARK_BYTES = 3 << 30


def count_drawn(
    drawing: Drawing,
    ranks: Sequence[int],
    *,
    directed: bool,
    balance: Balance | None = None,
    mark_bytes: int = MARK_BYTES,
) -> list[tuple[Counts, Partition]]:
    """Count exactly the edges and ghosts of ranges, for several numbers of ranks.

    Counts are those of `count_traffic`, without the graph: edges are drawn once for
    in-degrees, by which vertices are cut, and once for each slice of the sources. Of a
    source a bit is kept for each *cell*, a range between two neighboring cuts of any
    number of ranks, that an edge leads to. So a pass counts for all numbers of ranks,
    and nothing is sorted.

    Parameters
    ----------
    drawing : Drawing
    ranks : sequence of int
    directed : bool
        Otherwise edges lead both ways; one from a vertex to itself does once.
    balance : Balance, optional
        Of which ghosts weigh nothing.
    mark_bytes : int
        About how much memory marks may take: the less, the more slices.

    Returns
    -------
    list of (Counts, Partition)
        For each number of ranks.
    """
    count = drawing.vertex_count
    into = np.zeros(-(-count // WORD), np.int64)
    for _, v in _pieces(drawing, directed):
        into += np.bincount(v >> 5, minlength=into.size)
    before = np.concatenate(([0], np.cumsum(into)))
    weights = Balance() if balance is None else balance
    cuts = [even_cuts(before.astype(float), count, n, weights) for n in ranks]
    bounds = np.unique(np.concatenate(cuts))
    bounds = bounds[bounds < count]
    words = np.minimum(word_places(count)[:-1], count)
    cells = (np.searchsorted(bounds, words, "right") - 1).astype(np.int32)
    # Of each number of ranks, the rank that owns a cell.
    owners = np.array([np.searchsorted(c, bounds, "right") - 1 for c in cuts], np.int32)
    ghosts, elsewhere = np.zeros((2, len(ranks), max(ranks)), np.int64)
    wide = -(-bounds.size // 64)
    size = max(mark_bytes // (8 * wide), WORD) // WORD * WORD
    for first in range(0, count, size):
        marks = np.zeros((min(size, count - first), wide), np.uint64)
        for u, v in _pieces(drawing, directed):
            mark_cells(u, v, first, cells, marks)
        count_marks(marks, first, cells, owners, ghosts, elsewhere)
    found = []
    for number, (parts, one) in enumerate(zip(ranks, cuts, strict=True)):
        edges = np.array([before[-(-b // WORD)] for b in one])
        none = np.zeros(parts, np.int64)
        counts = Counts(
            vertex_count=count,
            columns=1,
            edges=np.diff(edges),
            own=np.array([end - begin for begin, end in pairwise(one.tolist())]),
            ghosts=ghosts[number, :parts],
            partials=none,
            ghosts_elsewhere=elsewhere[number, :parts],
            partials_elsewhere=none.copy(),
        )
        found.append((counts, Partition(one)))
    return found


def _pieces(drawing: Drawing, directed: bool) -> Iterator[tuple[_Array, _Array]]:
    """Draw all edges, some at a time; undirected ones both ways."""
    for first in range(0, drawing.count, _PIECE):
        u, v = drawing.on_host(first, min(first + _PIECE, drawing.count))[:2]
        yield u, v
        if not directed:
            is_edge = u != v
            yield v[is_edge], u[is_edge]


@jit
def mark_cells(u: _Array, v: _Array, first: int, cells: _Array, marks: _Array) -> None:
    """Mark, of sources from `first` on, the cells that their edges lead to."""
    for e in range(u.size):
        place = u[e] - first
        if 0 <= place < marks.shape[0]:
            cell = cells[v[e] >> 5]
            marks[place, cell >> 6] |= np.uint64(1) << np.uint64(cell & 63)


@jit
def count_marks(
    marks: _Array,
    first: int,
    cells: _Array,
    owners: _Array,
    ghosts: _Array,
    elsewhere: _Array,
) -> None:
    """Count of each number of ranks the ghosts of each, and own ones elsewhere.

    `owners` has the owner of each cell, by number of ranks: cells ascend, and so do
    ranks.
    """
    last = np.empty(owners.shape[0], np.int32)
    for place in range(marks.shape[0]):
        own = cells[(first + place) >> 5]
        last[:] = -1
        for word in range(marks.shape[1]):
            rest = marks[place, word]
            while rest:
                low = rest & (~rest + np.uint64(1))
                rest ^= low
                bit, at = 0, low
                for step in (32, 16, 8, 4, 2, 1):
                    if at >> np.uint64(step):
                        at >>= np.uint64(step)
                        bit += step
                cell = word * 64 + bit
                for number in range(owners.shape[0]):
                    rank = owners[number, cell]
                    if rank != last[number]:
                        last[number] = rank
                        if rank != owners[number, own]:
                            ghosts[number, rank] += 1
                            elsewhere[number, owners[number, own]] += 1
