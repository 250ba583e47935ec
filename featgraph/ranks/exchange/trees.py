"""Reduces of reals over ranks, in a tree over blocks of 32 given vertex ids.

If the ranges of ranks begin at whole blocks of ids, a word of own vertices is a block,
and each rank combines the complete subtrees of its own blocks. `HostBlocks` gathers the
other nodes; otherwise each vertex is reduced by itself, and each rank assembles a range
of blocks. `GpuBlocks` gathers the roots, fewer than 64 a level, as a sum of integers in
which a rank has its own nodes and zeros; otherwise all ranks gather the contributions
of all vertices, and combine all blocks. The result does not depend on the partition.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.program.combines import Combine
from featgraph.ranks.engines.protocol import Engine
from featgraph.runtime.devices import fixed_trees
from featgraph.runtime.devices.fixed_trees import BRANCHES, Joined, Nodes, Subtree, join

if TYPE_CHECKING:
    from featgraph.runtime.devices.cuda_trees import JoinTables

__all__ = ["GpuBlocks", "HostBlocks", "are_words_blocks"]

Array = npt.NDArray[Any]
#: Bits of a node's index in its level, below those of the level in a key of 64 bits.
_PLACE_BITS = 40


def are_words_blocks(partition: Partition) -> bool:
    """Whether each word of a rank's vertices is a block of 32 given vertex ids."""
    cuts = partition.cuts
    ends = (cuts % BRANCHES == 0) | (cuts == partition.vertex_count)
    return partition.order is None and bool(ends.all())


class HostBlocks:
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

    def slices(
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
        own_keys = np.concatenate([np.empty(0, np.int64), *keys])
        rows = np.concatenate([like[:0], *(node.rows for node in own)])
        every = np.concatenate(self._engine.all_gather(own_keys, about=about))
        each = np.concatenate(self._engine.all_gather(rows, about=about))
        mask = (1 << _PLACE_BITS) - 1
        return [
            Nodes(int(key >> _PLACE_BITS), int(key & mask), each[n : n + 1])
            for n, key in enumerate(every)
        ]


GpuArray = Any
Entries = Callable[[str], list[Any]]


class Combines(Protocol):
    """The combine of arrays over all ranks."""

    def own(self, everyone: GpuArray) -> GpuArray:
        """Return the vertices that this rank owns."""

    def combine(
        self, result: GpuArray, combine: Combine, behind: Callable[[], None]
    ) -> None:
        """Combine an array over all ranks, in place, and then call `behind`."""


class GpuBlocks:
    """Combines of partial results of ranks in the tree of all vertices.

    Parameters
    ----------
    shard : Shard
    device : CudaDevice
    ranks : RankExchange
    transport : GpuTransport
    """

    def __init__(
        self, shard: Shard, device: Any, ranks: Combines, transport: Any
    ) -> None:
        self._shard, self._device = shard, device
        self._ranks, self._transport = ranks, transport
        self._are_words = are_words_blocks(shard.partition)
        #: GpuArray -> a view of it as integers, whose sums are exact.
        self._bits: weakref.WeakKeyDictionary[GpuArray, GpuArray] = (
            weakref.WeakKeyDictionary()
        )

    def slices(
        self, entries: Entries, given: dict[str, Any]
    ) -> Iterator[tuple[Entries, Mapping[str, Any]]]:
        """Yield the one slice of a reduce: over words, or over vertices."""
        own = self._shard.own
        parts = {"together": BRANCHES, "part_count": -(-own // BRANCHES)}
        if not self._are_words:
            contributed = self._contributions(given)
            parts = {"together": 1, "part_count": own, "partials": contributed}
        yield entries, {**given, **parts}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results over all ranks; all ranks call it.

        The combine is deferred to the next exchange, as those of other results.
        """
        if self._are_words:
            self._combine_words(given, combine.rules.tree)
        else:
            self._combine_vertices(given, combine.rules.tree)

    def _combine_words(self, given: Mapping[str, Any], pair: Any) -> None:
        """Combine the subtrees of this rank, then the nodes of all ranks."""
        joined, trees, rank = self._joined, self._device.trees, self._shard.rank
        partials, result = given["partials"], given["reduced"]
        width, first = int(result.size), joined.firsts[rank]
        nodes = given["memory"]("nodes", (joined.firsts[-1] * width,))
        work = given["memory"]("nodes above", (max(len(joined.children), 1), width))
        trees.climb(partials, self._subtrees[rank], first, nodes, pair)
        tables = self._tables
        self._add_up(nodes, lambda: trees.join(nodes, work, tables, result, pair))

    def _combine_vertices(self, given: Mapping[str, Any], pair: Any) -> None:
        """Gather the contributions of all vertices, and combine the whole tree."""
        partition, result = self._shard.partition, given["reduced"]
        count, copy = partition.vertex_count, self._device.copy
        if not partition.is_led:
            self._combine_all(given, count, result, pair)
            return
        # Rank 0 has all vertices, and sends the result to the others.
        found = given["memory"]("root", (int(result.size),))
        self._device.fill(found, 0)
        if self._shard.own:
            self._combine_all(given, count, found, pair)
        self._add_up(found, lambda: copy(result, found))

    def _combine_all(
        self, given: Mapping[str, Any], count: int, result: GpuArray, pair: Any
    ) -> None:
        rows = Subtree(0, count, count).row_count
        every = given["memory"]("mirror", (rows, int(result.size)))
        contributed = self._contributions(given)
        own, whole = DeviceValues(contributed), DeviceValues(every)
        self._transport.collect(own, whole, self._ranks.own(None))
        self._device.trees.combine(every, count, result, pair)

    def _add_up(self, own: GpuArray, behind: Callable[[], None]) -> None:
        """Gather an array by a sum of bits: each entry is nonzero on one rank only."""
        bits = self._bits.get(own)
        if bits is None:
            self._bits[own] = bits = own.view(f"i{own.dtype.itemsize}")
        self._ranks.combine(bits, Combine("sum"), behind)

    @cached_property
    def _subtrees(self) -> list[Subtree]:
        """The subtree of each rank."""
        ends = (-(-self._shard.partition.cuts // BRANCHES)).tolist()
        return [Subtree(begin, end, ends[-1]) for begin, end in pairwise(ends)]

    @cached_property
    def _joined(self) -> Joined:
        return join(self._subtrees)

    @cached_property
    def _tables(self) -> JoinTables:
        # The dialect is imported only if there is a GPU.
        from featgraph.runtime.devices.cuda_trees import JoinTables

        return JoinTables.of(self._joined, self._device)

    def _contributions(self, given: Mapping[str, Any]) -> GpuArray:
        """Return memory for the contribution of each own vertex."""
        shape = max(self._shard.own, 1), int(given["reduced"].size)
        found: GpuArray = given["memory"]("contributions", shape)
        return found
