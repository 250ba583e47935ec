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

BRANCHES = 32
Rows = npt.NDArray[Any]


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


def combine_groups(rows: Rows, pair: np.ufunc) -> Rows:
    """Return the nodes above some that begin with a whole group; the last may lack."""
    groups = -(-len(rows) // BRANCHES)
    padded = np.full((groups * BRANCHES, *rows.shape[1:]), pair.identity, rows.dtype)
    padded[: len(rows)] = rows
    each = padded.reshape(groups, BRANCHES, *rows.shape[1:])
    found = each[:, 0].copy()
    for branch in range(1, BRANCHES):
        pair(found, each[:, branch], out=found)
    return found


def nodes_of(first: int, blocks: Rows, pair: np.ufunc) -> Iterator[Nodes]:
    """Give the fewest nodes that have some neighboring blocks, and no others.

    Parameters
    ----------
    first : int
        The place of the first block.
    blocks : array, shape (N, size)
    pair : numpy.ufunc
        What combines two nodes; it has an identity.
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
        padded = np.full(shape, pair.identity, rows.dtype)
        padded[group * BRANCHES + places % BRANCHES] = rows
        places, rows = above, combine_groups(padded, pair)
        blocks, level = -(-blocks // BRANCHES), level + 1


class HostTrees:
    """Combines blocks that one rank has all of, in memory of the host."""

    def given(self, words: int) -> dict[str, int]:
        """Return what a kernel that leaves the blocks is given beside: nothing."""
        return {}

    def combine(self, rows: Rows, words: int, result: Rows, pair: np.ufunc) -> None:
        """Leave what all blocks come to, of so many words."""
        nodes = [*nodes_of(0, rows, pair)]
        result[...] = combine_all(nodes, len(rows), pair)


# -- where nodes stand in the memory of a GPU


class Level(NamedTuple):
    """Neighboring nodes of one level that have been found from those below.

    Attributes
    ----------
    first : int
        The place of the first one.
    row : int
        Where that stands in memory.
    size : int
        How many they are.
    head : int
        Those before the first whole group.
    whole : int
        Those of whole groups, which are nodes of the level above.
    """

    first: int
    row: int
    size: int
    head: int
    whole: int


@dataclass(frozen=True)
class Subtree:
    """What can be combined of the leaves from `begin` to `end`, of so many in all.

    Levels stand one behind the other in memory, leaves first. The last group of a level
    is whole, though it lacks what there is not.
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
        """Rows of memory that all levels take."""
        return sum(level.size for level in self.levels)

    @cached_property
    def steps(self) -> tuple[tuple[int, int, int], ...]:
        """How levels follow from those below: what is combined, and where it goes.

        The first row, how many, and the row of the first node that they come to.
        """
        return tuple(
            (below.row + below.head, below.whole, above.row)
            for below, above in zip(self.levels, self.levels[1:], strict=False)
        )

    @cached_property
    def tops(self) -> tuple[tuple[int, int, int], ...]:
        """Nodes that are in no other one: level, place, and row in memory."""
        return tuple(
            (number, level.first + node, level.row + node)
            for number, level in enumerate(self.levels)
            for node in range(level.size)
            if not level.head <= node < level.head + level.whole
        )


class Joined(NamedTuple):
    """How the top nodes of all ranks make one tree.

    Attributes
    ----------
    firsts : list of int
        Where the nodes of each rank begin, of all; and how many all are.
    children : array of int32, shape (N, 32)
        Of each node above them, those that it is made of; -1 for none. Numbers count
        these nodes behind the others.
    begins : list of int
        Where each level of them begins; and N.
    root : int
        The number of the node that is made of all.
    """

    firsts: list[int]
    children: npt.NDArray[np.int32]
    begins: list[int]
    root: int


def join(parts: Sequence[Subtree]) -> Joined:
    """Return how top nodes make a tree; `parts` have each leaf once."""
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
