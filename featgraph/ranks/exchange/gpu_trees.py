"""Reduces of reals over ranks on GPUs, in a tree over blocks of 32 given vertex ids.

If the ranges of ranks begin at whole blocks of ids, a word of own vertices is a block.
Each rank then combines the subtrees that it owns; the roots of these, fewer than 64 a
level, are gathered as a sum of integers in which a rank has its own nodes and zeros.
Otherwise all ranks gather the contributions of all vertices, and combine all blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Protocol

from featgraph.base.cached import cached_property
from featgraph.cuda.values import DeviceValues
from featgraph.graph.partition.shard import Shard
from featgraph.program.combines import Combine
from featgraph.ranks.exchange.host_trees import are_words_blocks
from featgraph.runtime.devices.cuda_trees import JoinTables
from featgraph.runtime.devices.fixed_trees import BRANCHES, Joined, Subtree, join

__all__ = ["GpuBlocks"]

Array = Any
Entries = Callable[[str], list[Any]]


class Together(Protocol):
    """The combine of arrays over all ranks."""

    def own(self, everyone: Array) -> Array:
        """Return the vertices that this rank owns."""

    def combine(
        self, result: Array, combine: Combine, behind: Callable[[], None]
    ) -> None:
        """Combine an array over all ranks, in place, and then call `behind`."""


class GpuBlocks:
    """Combines of partial results of ranks in the tree of all vertices.

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
        #: Array -> a view of it as integers, whose sums are exact.
        self._bits: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )

    def turns(
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
        self, given: Mapping[str, Any], count: int, result: Array, pair: Any
    ) -> None:
        rows = Subtree(0, count, count).row_count
        every = given["memory"]("mirror", (rows, int(result.size)))
        contributed = self._contributions(given)
        own, whole = DeviceValues(contributed), DeviceValues(every)
        self._carrier.collect(own, whole, self._ranks.own(None))
        self._device.trees.combine(every, count, result, pair)

    def _add_up(self, own: Array, behind: Callable[[], None]) -> None:
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
        return JoinTables.of(self._joined, self._device)

    def _contributions(self, given: Mapping[str, Any]) -> Array:
        """Return memory for the contribution of each own vertex."""
        shape = max(self._shard.own, 1), int(given["reduced"].size)
        found: Array = given["memory"]("contributions", shape)
        return found
