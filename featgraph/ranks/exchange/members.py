"""Active sets of distributed graphs: each rank has bits of own vertices and ghosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.graph.partition.shard import Shard
from featgraph.program.active import WORD_BITS, word_count
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.gather_rows import join_rows
from featgraph.runtime.devices.protocol import Device

__all__ = ["Members", "packed", "unpacked"]

Words = Any
Mask = npt.NDArray[np.bool_]


def packed(mask: Mask) -> npt.NDArray[np.uint32]:
    """Return a mask as words of 32 bits, padded with zeros."""
    padded = np.zeros(word_count(mask.size) * WORD_BITS, np.bool_)
    padded[: mask.size] = mask
    words = np.packbits(padded, bitorder="little").view("<u4")
    return words.astype(np.uint32)


def unpacked(words: npt.NDArray[np.uint32]) -> Mask:
    """Return words of 32 bits as a mask; its size is a multiple of 32."""
    bytes_ = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    return np.unpackbits(bytes_, bitorder="little").astype(np.bool_)


class Counter(Protocol):
    """The count of sets over all ranks."""

    def count(self, words: Words) -> int:
        """Return the number of vertices of a set on all ranks."""
        ...

    def catch_up(self) -> None:
        """Broadcast the results of rank 0 if the other ranks follow it."""


class Members:
    """Active sets of a distributed graph: a `Holder` that is its own `sets`.

    Words are those of the part: own vertices, then ghosts. All ranks call the same
    methods in the same order.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : Device
    counter : Counter
        Counts sets on all ranks.
    """

    is_scarce = False  # a download is collective

    def __init__(
        self, shard: Shard, engine: Engine, device: Device, counter: Counter
    ) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._counter = counter

    @property
    def sets(self) -> Members:
        """The object itself: it implements the operations on sets, too."""
        return self

    def snapshot(self, words: Words) -> Words:
        """Return a copy of a set that later runs do not change."""
        return self._device.sets.snapshot(words)

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return this rank's part of a set of the whole graph, on the device."""
        return self._device.sets.upload(packed(unpacked(words)[self._shard.numbers]))

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return this rank's part of a set, given by its nonzero words in `apart`."""
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
        """Return the set of the whole graph on the host; all ranks call it."""
        own = unpacked(self._device.download(words))[: self._shard.own]
        partition = self._shard.partition
        mask = np.empty(partition.vertex_count, np.bool_)
        join_rows(self._engine, partition, own, mask, "an active set")
        return packed(mask)

    def count(self, words: Words) -> int:
        """Return the number of vertices of a set on all ranks."""
        number = self._counter.count(words)
        self._counter.catch_up()
        return number
