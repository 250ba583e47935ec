"""Reduces of reals over ranks on CPUs, in a tree over blocks of 32 given vertex ids.

If the ranges of ranks begin at whole blocks of ids, a word of own vertices is a block.
Otherwise each vertex is reduced by itself, and each rank assembles a range of blocks.
Subtrees that are complete on a rank are combined there, and the other nodes gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.program.combines import Combine
from featgraph.ranks.engines.protocol import Engine
from featgraph.runtime.devices import fixed_trees
from featgraph.runtime.devices.fixed_trees import BRANCHES, Nodes

__all__ = ["BlocksOfUsers", "are_words_blocks"]

Array = npt.NDArray[Any]
#: Bits of a node's index in its level.
_PLACE_BITS = 40


def are_words_blocks(partition: Partition) -> bool:
    """Whether each word of a rank's vertices is a block of 32 given vertex ids."""
    cuts = partition.cuts
    ends = (cuts % BRANCHES == 0) | (cuts == partition.vertex_count)
    return partition.order is None and bool(ends.all())


class BlocksOfUsers:
    """Combines of partial results of ranks in the tree of all vertices.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    """

    def __init__(self, shard: Shard, engine: Engine) -> None:
        self._shard, self._engine = shard, engine
        partition = shard.partition
        self._count = -(-partition.vertex_count // BRANCHES)
        #: Whether a word of own vertices is a block of given vertex ids.
        self._are_words = are_words_blocks(partition)
        #: If not, the first block that each rank assembles.
        self._begins = np.arange(engine.size + 1) * self._count // engine.size
        self._of_vertices: Array = np.empty((0, 0, 0))
        self._due: Array = np.empty(0, np.uint32)

    def turns(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Yield the slices of a reduce: one, or one for each bit of a word."""
        if self._are_words:
            yield entries, given
            return
        self._due, partials = given["due"], given["partials"]
        shape = BRANCHES, *partials.shape
        if (
            self._of_vertices.shape != shape
            or self._of_vertices.dtype != partials.dtype
        ):
            self._of_vertices = np.empty(shape, partials.dtype)
        for bit, rows in enumerate(self._of_vertices):
            due = self._due & np.uint32(1 << bit)
            yield entries, {**given, "due": due, "partials": rows}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results over all ranks; all ranks call it."""
        partials, how = given["partials"], combine.rules.tree
        if self._are_words:
            first = int(self._shard.partition.cuts[self._engine.rank]) // BRANCHES
            blocks = partials[: -(-self._shard.own // BRANCHES)]
        else:
            first = int(self._begins[self._engine.rank])
            blocks = self._put_together(how)
        own = [*fixed_trees.nodes_of(first, blocks, how)]
        nodes = self._of_all_ranks(own, blocks)
        given["reduced"][...] = fixed_trees.combine_all(nodes, self._count, how)

    @cached_property
    def _homes(self) -> Array:
        """The rank that assembles the block of each own vertex."""
        blocks = self._shard.numbers[: self._shard.own] // BRANCHES
        return np.searchsorted(self._begins, blocks, "right") - 1

    def _put_together(self, how: Any) -> Array:
        """Return this rank's range of blocks, from the vertices of all ranks."""
        shard, engine, rows = self._shard, self._engine, self._of_vertices
        bits = self._due.astype("<u4", copy=False).view(np.uint8)
        due = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: shard.own])
        homes = self._homes[due]
        listed = [due[homes == rank] for rank in range(engine.size)]
        about = "a reduce by the users' numbers"
        places = engine.all_to_allv([shard.numbers[at] for at in listed], about=about)
        sent = [rows[at % BRANCHES, at // BRANCHES] for at in listed]
        received = engine.all_to_allv(sent, about=about)
        first, last = self._begins[engine.rank : engine.rank + 2].tolist()
        shape = (last - first) * BRANCHES, rows.shape[2]
        found = np.full(shape, how.identity, rows.dtype)
        found[np.concatenate(places) - first * BRANCHES] = np.concatenate(received)
        return fixed_trees.combine_groups(found, how)

    def _of_all_ranks(self, own: list[Nodes], like: Array) -> list[Nodes]:
        """Return the nodes of all ranks, gathered."""
        keys = [
            (node.level << _PLACE_BITS) + node.first + np.arange(len(node.rows))
            for node in own
        ]
        about = "nodes of a reduce"
        told = np.concatenate([np.empty(0, np.int64), *keys])
        rows = np.concatenate([like[:0], *(node.rows for node in own)])
        every = np.concatenate(self._engine.all_gather(told, about=about))
        each = np.concatenate(self._engine.all_gather(rows, about=about))
        mask = (1 << _PLACE_BITS) - 1
        return [
            Nodes(int(key >> _PLACE_BITS), int(key & mask), each[n : n + 1])
            for n, key in enumerate(every)
        ]
