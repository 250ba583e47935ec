"""Sums of reals in one fixed order: a tree of 32 branches.

The leaves are blocks of 32 consecutive vertices in the user's numbering, each summed in
ascending order. An inner node is the sum of 32 nodes below it, from first to last. So a
sum has the same bits for any number of threads and ranks, and for any partition.

A rank with a range of the leaves combines them as far as whole nodes go; the *top
nodes* that remain are exchanged and combined to the root. On the host, `nodes_of`
returns these nodes and `combine_all` the root. For a GPU, `Subtree` has the places of a
range's nodes in memory, and `join` makes the tree over the top nodes of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass

__all__ = [
    "BRANCHES",
    "HostTrees",
    "Joined",
    "Level",
    "Nodes",
    "Subtree",
    "combine_all",
    "combine_groups",
    "join",
    "nodes_of",
]

#: Children of an inner node, and vertices of a leaf: the bits of a word of a set.
BRANCHES = 32
Rows = npt.NDArray[Any]


class Nodes(NamedTuple):
    """Neighboring nodes of one level.

    Attributes
    ----------
    level : int
        0: blocks of vertices.
    first : int
        Index of the first node in its level.
    rows : array, shape (N, size)
    """

    level: int
    first: int
    rows: Rows


def combine_groups(rows: Rows, pair: np.ufunc) -> Rows:
    """Combine rows 32 at a time: return the parents of neighboring nodes.

    The first row begins a group; the last group may be partial.
    """
    groups = -(-len(rows) // BRANCHES)
    padded = np.full((groups * BRANCHES, *rows.shape[1:]), pair.identity, rows.dtype)
    padded[: len(rows)] = rows
    each = padded.reshape(groups, BRANCHES, *rows.shape[1:])
    found = each[:, 0].copy()
    for branch in range(1, BRANCHES):
        pair(found, each[:, branch], out=found)
    return found


def nodes_of(first: int, blocks: Rows, pair: np.ufunc) -> Iterator[Nodes]:
    """Generate the top nodes of a range of leaves: the fewest that cover it exactly.

    Parameters
    ----------
    first : int
        Index of the first leaf.
    blocks : array, shape (N, size)
        The leaves.
    pair : numpy.ufunc
        Combines two nodes; it has an identity.
    """
    level, rows = 0, blocks
    while len(rows):
        head = min(-first % BRANCHES, len(rows))
        whole = (len(rows) - head) // BRANCHES * BRANCHES
        for begin, end in ((0, head), (head + whole, len(rows))):
            if end > begin:
                yield Nodes(level, first + begin, rows[begin:end])
        first = (first + head) // BRANCHES
        rows = combine_groups(rows[head : head + whole], pair)
        level += 1


def combine_all(nodes: Sequence[Nodes], blocks: int, pair: np.ufunc) -> Rows:
    """Return the root of a tree with `blocks` leaves.

    `nodes` cover each leaf exactly once.
    """
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
        padded = np.full(shape, pair.identity, rows.dtype)
        padded[group * BRANCHES + places % BRANCHES] = rows
        places, rows = above, combine_groups(padded, pair)
        blocks, level = -(-blocks // BRANCHES), level + 1


class HostTrees:
    """Reduces in a fixed tree in host memory: see `Trees`."""

    def given(self, words: int) -> dict[str, int]:
        """Return no arguments: kernels of the CPU store a row for each word anyway."""
        return {}

    def combine(self, rows: Rows, words: int, result: Rows, pair: np.ufunc) -> None:
        """Combine the rows of all words into `result`."""
        nodes = [*nodes_of(0, rows, pair)]
        result[...] = combine_all(nodes, len(rows), pair)


# -- layout of nodes in the memory of a GPU


class Level(NamedTuple):
    """The nodes of one level of a subtree, and their places in memory.

    Attributes
    ----------
    first : int
        Index of the first node in its level of the whole tree.
    row : int
        Row of the first node in memory.
    size : int
        Number of nodes.
    head : int
        Number of nodes before the first whole group.
    whole : int
        Number of nodes in whole groups, which make the nodes of the level above.
    """

    first: int
    row: int
    size: int
    head: int
    whole: int


@dataclass(frozen=True)
class Subtree:
    """The nodes that can be combined from the leaves `begin` to `end` of a tree.

    The tree has `leaves` leaves. In memory, the levels of the subtree follow each
    other, leaves first. The last group of a level of the tree counts as whole, though
    it may have fewer than 32 nodes.
    """

    begin: int
    end: int
    leaves: int

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, from the leaves up."""
        found, row = list[Level](), 0
        begin, end, total = self.begin, self.end, self.leaves
        while begin < end:
            count = end - begin
            head = min(-begin % BRANCHES, count)
            whole = count - head
            if end < total:
                whole -= whole % BRANCHES
            if total == 1:
                whole = 0
            found.append(Level(begin, row, count, head, whole))
            row, begin = row + count, (begin + head) // BRANCHES
            end, total = begin + -(-whole // BRANCHES), -(-total // BRANCHES)
        return tuple(found)

    @cached_property
    def row_count(self) -> int:
        """Number of rows of all levels."""
        return sum(level.size for level in self.levels)

    @cached_property
    def steps(self) -> tuple[tuple[int, int, int], ...]:
        """The combine of each level: first row, row count, row of the first parent."""
        return tuple(
            (below.row + below.head, below.whole, above.row)
            for below, above in zip(self.levels, self.levels[1:], strict=False)
        )

    @cached_property
    def tops(self) -> tuple[tuple[int, int, int], ...]:
        """The nodes without a parent in the subtree: level, index and row in memory."""
        return tuple(
            (number, level.first + node, level.row + node)
            for number, level in enumerate(self.levels)
            for node in range(level.size)
            if not level.head <= node < level.head + level.whole
        )


class Joined(NamedTuple):
    """The tree over the top nodes of all ranks.

    Attributes
    ----------
    firsts : list of int
        Number of the first top node of each rank; and the number of all top nodes.
    children : array of int32, shape (N, 32)
        Numbers of the children of each inner node; -1 for none. Inner nodes are
        numbered after the top nodes.
    begins : list of int
        Row of `children` with the first inner node of each level; and N.
    root : int
        Number of the root.
    """

    firsts: list[int]
    children: npt.NDArray[np.int32]
    begins: list[int]
    root: int


def join(parts: Sequence[Subtree]) -> Joined:
    """Return the tree over the top nodes of `parts`, one a rank.

    The parts cover each leaf exactly once.
    """
    firsts, known = [0], dict[tuple[int, int], int]()
    for part in parts:
        for level, place, _ in part.tops:
            known[level, place] = len(known)
        firsts.append(len(known))
    children, begins, here = list[list[int]](), [0], dict[int, int]()
    level, total = 0, parts[0].leaves
    while True:
        here |= {place: node for (at, place), node in known.items() if at == level}
        if total == 1:
            made = np.array(children, np.int32).reshape(-1, BRANCHES)
            return Joined(firsts, made, begins, here[0])
        above: dict[int, list[int]] = {}
        for place, node in here.items():
            group = above.setdefault(place // BRANCHES, [-1] * BRANCHES)
            group[place % BRANCHES] = node
        first = len(known) + len(children)
        here = {group: first + number for number, group in enumerate(above)}
        children += above.values()
        begins.append(len(children))
        level, total = level + 1, -(-total // BRANCHES)
