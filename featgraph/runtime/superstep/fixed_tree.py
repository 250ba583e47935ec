"""Sums of reals in one order, whatever has been summed where: a tree of 32 branches.

The leaves are blocks of 32 of the user's vertices, each summed in the order of numbers.
An inner node is the sum of 32 nodes below it, from first to last. So a sum has the same
bits on any number of threads and ranks, and whoever owns a vertex.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "BRANCHES",
    "COMBINES",
    "Combine",
    "Nodes",
    "combine_all",
    "combine_groups",
    "nodes_of",
]

BRANCHES = 32
Rows = npt.NDArray[Any]


class Combine(NamedTuple):
    """How two nodes are combined, and what changes nothing."""

    pair: np.ufunc
    identity: float


class Nodes(NamedTuple):
    """Neighboring nodes of one level, by their places in it.

    Attributes
    ----------
    level : int
        0: blocks of vertices.
    first : int
        The place of the first one.
    rows : array, shape (N, size)
    """

    level: int
    first: int
    rows: Rows


#: By the name of a combine.
COMBINES = {"sum": Combine(np.add, 0.0), "product": Combine(np.multiply, 1.0)}


def combine_groups(rows: Rows, combine: Combine) -> Rows:
    """Return the nodes above some that begin with a whole group; the last may lack."""
    groups = -(-len(rows) // BRANCHES)
    padded = np.full((groups * BRANCHES, *rows.shape[1:]), combine.identity, rows.dtype)
    padded[: len(rows)] = rows
    each = padded.reshape(groups, BRANCHES, *rows.shape[1:])
    found = each[:, 0].copy()
    for branch in range(1, BRANCHES):
        combine.pair(found, each[:, branch], out=found)
    return found


def nodes_of(first: int, blocks: Rows, combine: Combine) -> Iterator[Nodes]:
    """Give the fewest nodes that have some neighboring blocks, and no others.

    Parameters
    ----------
    first : int
        The place of the first block.
    blocks : array, shape (N, size)
    combine : Combine
    """
    level, rows = 0, blocks
    while len(rows):
        head = min(-first % BRANCHES, len(rows))
        whole = (len(rows) - head) // BRANCHES * BRANCHES
        for begin, end in ((0, head), (head + whole, len(rows))):
            if end > begin:
                yield Nodes(level, first + begin, rows[begin:end])
        first = (first + head) // BRANCHES
        rows = combine_groups(rows[head : head + whole], combine)
        level += 1


def combine_all(nodes: Sequence[Nodes], blocks: int, combine: Combine) -> Rows:
    """Return the root of a tree of so many blocks, of nodes that have each of them."""
    places, rows = np.empty(0, np.int64), nodes[0].rows[:0]
    level = 0
    while True:
        here = [node for node in nodes if node.level == level]
        spans = [np.arange(n.first, n.first + len(n.rows)) for n in here]
        places = np.concatenate([places, *spans])
        rows = np.concatenate([rows, *(node.rows for node in here)])
        if blocks == 1:
            return rows[0]  # type: ignore[no-any-return]
        above, group = np.unique(places // BRANCHES, return_inverse=True)
        shape = above.size * BRANCHES, *rows.shape[1:]
        padded = np.full(shape, combine.identity, rows.dtype)
        padded[group * BRANCHES + places % BRANCHES] = rows
        places, rows = above, combine_groups(padded, combine)
        blocks, level = -(-blocks // BRANCHES), level + 1
