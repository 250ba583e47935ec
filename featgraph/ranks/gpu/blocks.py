"""Reduces of reals over blocks of 32 of the users' numbers, on ranks of GPUs.

Where ranges of ranks begin with whole blocks of numbers, a word of a rank's vertices is
a block. A rank combines what is whole there; of the nodes that are left, fewer than 64
a level, all ranks get all, as one sum of integers in which each has its own and zeros.
Elsewhere what each vertex contributes goes to all ranks, and each makes the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues, name_of
from featgraph.graph.partition.shard import Shard
from featgraph.program.combine import Combine
from featgraph.ranks.blocks import are_words_blocks
from featgraph.runtime.devices.cuda_trees import JoinedNodes
from featgraph.runtime.trees.fixed import BRANCHES, Joined, Subtree, join

__all__ = ["GpuBlocks"]

Array = Any
Entries = Callable[[str], list[Any]]


class Together(Protocol):
    """What combines arrays of all ranks."""

    def combine(self, result: Array, combine: Combine) -> None:
        """Make an array that of all ranks, in place."""

    def settle(self) -> None:
        """See that it is."""


class _Bits(NamedTuple):
    """Numbers, and the same memory as integers, which sums do not round."""

    values: Array
    bits: Array


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
        self._memory: dict[Any, Any] = {}

    def turns(
        self, entries: Entries, given: dict[str, Any]
    ) -> Iterator[tuple[Entries, Mapping[str, Any]]]:
        """Give what runs a reduce: over words, or over vertices."""
        own = self._shard.own
        parts = {"together": BRANCHES, "part_count": -(-own // BRANCHES)}
        if not self._are_words:
            contributed = self._contributions(given["partials"])
            parts = {"together": 1, "part_count": own, "partials": contributed}
        yield entries, {**given, **parts}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results of all ranks; all of them call it."""
        partials, result = given["partials"], given["reduced"]
        if self._are_words:
            self._combine_words(partials, result, combine.name)
        else:
            self._combine_vertices(partials, result, combine.name)

    def _combine_words(self, partials: Array, result: Array, name: str) -> None:
        """Combine blocks as far as they go, then the nodes of all ranks."""
        joined, trees = self._joined, self._device.trees
        rank = self._shard.rank
        nodes = self._of_bits("nodes", joined.firsts[-1] * result.size, result.dtype)
        first = joined.firsts[rank]
        trees.climb(partials, self._subtrees[rank], first, nodes.values, name)
        self._add_up(nodes)
        trees.join(nodes.values, self._joined_nodes, result, name)

    def _combine_vertices(self, partials: Array, result: Array, name: str) -> None:
        """Give all ranks what vertices contribute, by the users' numbers."""
        partition, size = self._shard.partition, int(result.size)
        count = partition.vertex_count
        rows = Subtree(0, count, count).row_count
        every = self._of("mirror", (rows, size), result.dtype)
        contributed = self._contributions(partials)
        if not partition.is_led:
            self._carrier.collect(DeviceValues(contributed), DeviceValues(every))
            self._device.trees.combine(every, count, result, name)
            return
        # Rank 0 has all vertices, and tells the others what they come to.
        found = self._of_bits("root", size, result.dtype)
        self._device.fill(found.values, 0)
        if self._shard.own:
            self._carrier.collect(DeviceValues(contributed), DeviceValues(every))
            self._device.trees.combine(every, count, found.values, name)
        self._add_up(found)
        self._device.copy(result, found.values)

    def _add_up(self, own: _Bits) -> None:
        """Have all ranks have what one of them has, and the others zeros for."""
        self._ranks.combine(own.bits, Combine("sum"))
        self._ranks.settle()

    @cached_property
    def _subtrees(self) -> list[Subtree]:
        """What each rank can combine."""
        partition = self._shard.partition
        ends = (-(-partition.cuts // BRANCHES)).tolist()
        return [Subtree(begin, end, ends[-1]) for begin, end in pairwise(ends)]

    @cached_property
    def _joined(self) -> Joined:
        return join(self._subtrees)

    @cached_property
    def _joined_nodes(self) -> JoinedNodes:
        return JoinedNodes(self._device, self._joined)

    def _contributions(self, partials: Array) -> Array:
        """Return memory for what each own vertex contributes."""
        shape = max(self._shard.own, 1), int(partials.shape[1])
        return self._of("contributions", shape, partials.dtype)

    def _of_bits(self, name: str, size: int, dtype: np.dtype[Any]) -> _Bits:
        key = name, size, dtype.name
        if key not in self._memory:
            values = self._of(name, (size,), dtype)
            self._memory[key] = _Bits(values, values.view(f"i{dtype.itemsize}"))
        found: _Bits = self._memory[key]
        return found

    def _of(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        key = name, shape, dtype.name
        if key not in self._memory:
            self._memory[key] = self._device.empty(shape, name_of(dtype))
        return self._memory[key]
