"""Active sets of the user's, in parts: each rank has its own bits, and ghosts'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.graph.partition.shard import Shard
from featgraph.program.active import WORD_BITS, word_count
from featgraph.ranks.joined import join_rows
from featgraph.runtime.devices.protocol import Device

__all__ = ["Members", "packed", "unpacked"]

Words = Any
Mask = npt.NDArray[np.bool_]


def packed(mask: Mask) -> npt.NDArray[np.uint32]:
    """Return a mask as a bitvector."""
    padded = np.zeros(word_count(mask.size) * WORD_BITS, np.bool_)
    padded[: mask.size] = mask
    words = np.packbits(padded, bitorder="little").view("<u4")
    return words.astype(np.uint32)


def unpacked(words: npt.NDArray[np.uint32]) -> Mask:
    """Return a bitvector as a mask; behind the last vertex it is False."""
    bytes_ = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    return np.unpackbits(bytes_, bitorder="little").astype(np.bool_)


class Counter(Protocol):
    """What counts sets."""

    def count(self, words: Words) -> int:
        """Return how many vertices a set has on all ranks."""
        ...

    def catch_up(self) -> None:
        """Have all ranks know it."""


class Members:
    """Holds active sets of a graph in parts: a `Holder`, and the sets of it.

    Words are of the part: own vertices, then ghosts. All ranks call the same methods in
    the same order.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : Device
    counter : Counter
        Counts sets on all ranks.
    """

    is_scarce = False  # where a set goes to the host, all ranks take part

    def __init__(
        self, shard: Shard, engine: Engine, device: Device, counter: Counter
    ) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._counter = counter

    @property
    def sets(self) -> Members:
        """What is done with them."""
        return self

    def snapshot(self, words: Words) -> Words:
        """Return a set that stays as it is, whatever runs next."""
        return self._device.sets.snapshot(words)

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return the part of a set of the whole graph."""
        return self._device.sets.upload(packed(unpacked(words)[self._shard.numbers]))

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return the part of a set of the whole graph, by its words with bits."""
        given = apart or {}
        numbers = np.fromiter(given, np.int64, len(given))
        bits = unpacked(np.fromiter(given.values(), np.uint32, len(given)))
        which = np.flatnonzero(bits)
        wanted = numbers[which // WORD_BITS] * WORD_BITS + which % WORD_BITS
        here: dict[int, int] = {}
        for local in self._shard.locals_of(wanted).tolist():
            if local >= 0:
                number, bit = divmod(local, WORD_BITS)
                here[number] = here.get(number, 0) | 1 << bit
        return self._device.sets.empty(word_count(self._shard.numbers.size), here)

    def download(self, words: Words) -> npt.NDArray[np.uint32]:
        """Return a set of the whole graph."""
        own = unpacked(self._device.download(words))[: self._shard.own]
        partition = self._shard.partition
        mask = np.empty(partition.vertex_count, np.bool_)
        join_rows(self._engine, partition, own, mask, "an active set")
        return packed(mask)

    def count(self, words: Words) -> int:
        """Return how many vertices a set has on all ranks."""
        number = self._counter.count(words)
        self._counter.catch_up()
        return number
