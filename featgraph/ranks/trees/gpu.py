"""Reduces of reals over blocks of 32 of the users' numbers, on ranks of GPUs.

Where ranges of ranks begin with whole blocks of numbers, a word of a rank's vertices is
a block. A rank combines what is whole there; of the nodes that are left, fewer than 64
a level, all ranks get all, as one sum of integers in which each has its own and zeros.
Elsewhere what each vertex contributes goes to all ranks, and each makes the whole tree.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Protocol

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.program.combine import Combine
from featgraph.ranks.trees.host import are_words_blocks
from featgraph.runtime.devices.cuda_trees import JoinTables
from featgraph.runtime.trees.fixed import BRANCHES, Joined, Subtree, join

__all__ = ["GpuBlocks"]

Array = Any
Entries = Callable[[str], list[Any]]


class Together(Protocol):
    """What combines arrays of all ranks."""

    def own(self, everyone: Array) -> Array:
        """Return the vertices that this rank owns."""

    def combine(
        self, result: Array, combine: Combine, behind: Callable[[], None]
    ) -> None:
        """Make an array that of all ranks, in place, and launch what comes behind."""


class GpuBlocks:
    """Combines what reduces leave of a rank's vertices in the tree of all vertices.

    Parameters
    ----------
    shard : Shard
    device : CudaDevice
    ranks : RankExchange
    carrier : GpuCarrier
    """

    def __init__(
        self, shard: Shard, device: Any, ranks: Together, carrier: Any
    ) -> None:
        self._shard, self._device = shard, device
        self._ranks, self._carrier = ranks, carrier
        self._are_words = are_words_blocks(shard.partition)
        #: Numbers -> the same memory as integers, of which sums round nothing.
        self._bits: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )

    def turns(
        self, entries: Entries, given: dict[str, Any]
    ) -> Iterator[tuple[Entries, Mapping[str, Any]]]:
        """Give what runs a reduce: over words, or over vertices."""
        own = self._shard.own
        parts = {"together": BRANCHES, "part_count": -(-own // BRANCHES)}
        if not self._are_words:
            contributed = self._contributions(given)
            parts = {"together": 1, "part_count": own, "partials": contributed}
        yield entries, {**given, **parts}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results of all ranks; all of them call it.

        That waits for the next exchange, as other results do.
        """
        if self._are_words:
            self._combine_words(given, combine.rules.tree)
        else:
            self._combine_vertices(given, combine.rules.tree)

    def _combine_words(self, given: Mapping[str, Any], pair: Any) -> None:
        """Combine blocks as far as they go, then the nodes of all ranks."""
        joined, trees, rank = self._joined, self._device.trees, self._shard.rank
        partials, result = given["partials"], given["reduced"]
        width, first = int(result.size), joined.firsts[rank]
        nodes = given["memory"]("nodes", (joined.firsts[-1] * width,))
        work = given["memory"]("nodes above", (max(len(joined.children), 1), width))
        trees.climb(partials, self._subtrees[rank], first, nodes, pair)
        tables = self._tables
        self._add_up(nodes, lambda: trees.join(nodes, work, tables, result, pair))

    def _combine_vertices(self, given: Mapping[str, Any], pair: Any) -> None:
        """Give all ranks what vertices contribute, by the users' numbers."""
        partition, result = self._shard.partition, given["reduced"]
        count, copy = partition.vertex_count, self._device.copy
        if not partition.is_led:
            self._combine_all(given, count, result, pair)
            return
        # Rank 0 has all vertices, and tells the others what they come to.
        found = given["memory"]("root", (int(result.size),))
        self._device.fill(found, 0)
        if self._shard.own:
            self._combine_all(given, count, found, pair)
        self._add_up(found, lambda: copy(result, found))

    def _combine_all(
        self, given: Mapping[str, Any], count: int, result: Array, pair: Any
    ) -> None:
        rows = Subtree(0, count, count).row_count
        every = given["memory"]("mirror", (rows, int(result.size)))
        contributed = self._contributions(given)
        own, whole = DeviceValues(contributed), DeviceValues(every)
        self._carrier.collect(own, whole, self._ranks.own(None))
        self._device.trees.combine(every, count, result, pair)

    def _add_up(self, own: Array, behind: Callable[[], None]) -> None:
        """Have all ranks have what one of them has, and the others zeros for."""
        bits = self._bits.get(own)
        if bits is None:
            self._bits[own] = bits = own.view(f"i{own.dtype.itemsize}")
        self._ranks.combine(bits, Combine("sum"), behind)

    @cached_property
    def _subtrees(self) -> list[Subtree]:
        """What each rank can combine."""
        ends = (-(-self._shard.partition.cuts // BRANCHES)).tolist()
        return [Subtree(begin, end, ends[-1]) for begin, end in pairwise(ends)]

    @cached_property
    def _joined(self) -> Joined:
        return join(self._subtrees)

    @cached_property
    def _tables(self) -> JoinTables:
        return JoinTables.of(self._joined, self._device)

    def _contributions(self, given: Mapping[str, Any]) -> Array:
        """Return memory for what each own vertex contributes."""
        shape = max(self._shard.own, 1), int(given["reduced"].size)
        found: Array = given["memory"]("contributions", shape)
        return found
