"""What a rank sends to each other, or takes from it, as lists on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.ranks import gpu_kernels as kernels
from featgraph.runtime.devices.protocol import Device

__all__ = ["BLOCK", "GpuLinks", "blocks_for"]

Array = Any
Words = Any
#: Threads of a block, and most blocks of a kernel that goes over rows.
BLOCK, MOST_BLOCKS = 256, 1 << 13
_WARP = 32
#: Words of a chunk, at most.
_CHUNK_WORDS = 32


def blocks_for(threads: int) -> int:
    """Return how many blocks go over so many entries, at least one."""
    return max(1, min(-(-threads // BLOCK), MOST_BLOCKS))


class GpuLinks:
    """Lists of vertices, one a rank, of which some are marked.

    Parameters
    ----------
    lists : sequence of array of int
        Numbers of vertices here, by rank.
    device : CudaDevice

    Attributes
    ----------
    sizes : list of int
        Vertices of each list.
    begins : list of int
        Where each begins in `numbers` and `taken`.
    words : list of int
        How many words of bits each has.
    numbers : array of int32
        The lists themselves.
    taken, positions : arrays of int32 and uint32
        From each list's begin on: marked vertices, and where they stand in the list.
    """

    def __init__(
        self, lists: Sequence[npt.NDArray[np.integer]], device: Device
    ) -> None:
        self._device = device
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self.sizes = [int(numbers.size) for numbers in lists]
        self.words = [-(-size // 32) for size in self.sizes]
        firsts = np.cumsum([0, *self.words])
        self.begins = (32 * firsts[:-1]).tolist()
        padded = np.full(32 * int(firsts[-1]), -1, np.int32)
        for begin, numbers in zip(self.begins, lists, strict=True):
            padded[begin : begin + numbers.size] = numbers
        chunks, links, begin_of_chunk = [0], [0], []
        for first, count in zip(firsts, self.words, strict=False):
            ends = [*range(_CHUNK_WORDS, count, _CHUNK_WORDS), *[count] * bool(count)]
            chunks += [int(first) + end for end in ends]
            begin_of_chunk += [int(first)] * len(ends)
            links.append(len(chunks) - 1)
        self._links, self._count = links, len(begin_of_chunk)
        self.numbers = device.upload(padded)
        self._chunks = device.upload(np.array(chunks, np.int32))
        self._begins = device.upload(np.array(begin_of_chunk, np.int32))
        self._on_device = device.upload(np.array(links, np.int32))
        #: Of each list, as `add_up_links` takes a single one.
        self._pairs = [
            device.upload(np.array(pair, np.int32)) for pair in pairwise(links)
        ]
        self.bits = device.empty((padded.size // 32,), "uint32")
        self._before = device.empty((self._count,), "int32")
        self._totals = device.empty((max(len(lists), 1),), "int32")
        self.taken = device.empty((padded.size,), "int32")
        self.positions = device.empty((padded.size,), "uint32")

    def mark(self, changed: Words) -> list[int]:
        """Mark the vertices of a set; return how many of each list; waits for that."""
        if self._count == 0:
            return [0] * len(self.sizes)
        given = changed, self.numbers, self._chunks, self.bits, self._before
        self._over_chunks(kernels.mark_changed, self._count, given)
        sums = self._on_device, self._before, self._totals
        self._launch(kernels.add_up_links, len(self.sizes), _WARP, sums)
        return self._device.download(self._totals).tolist()  # type: ignore[no-any-return]

    def list_all(self) -> None:
        """List what is marked in all lists."""
        self._list(0, self._count)

    def take_bits(self, rank: int, message: Words) -> None:
        """Mark and list what the bits of a message say, in one list."""
        first, last = self._links[rank : rank + 2]
        given = message, self._chunks, first, last, self.bits, self._before
        self._over_chunks(kernels.take_bits, last - first, given)
        pair = self._pairs[rank], self._before, self._totals
        self._launch(kernels.add_up_links, 1, _WARP, pair)
        self._list(first, last)

    def take_positions(self, rank: int, message: Words, count: int) -> None:
        """List the vertices at the positions that a message has, of one list."""
        given = self.numbers, self.begins[rank], message, count, self.taken
        self._launch(kernels.pick_listed, blocks_for(count), BLOCK, given)

    def _list(self, first: int, last: int) -> None:
        given = (
            self.bits, self.numbers, self._chunks, self._begins, self._before, first,
            last, self.taken, self.positions,
        )  # fmt: skip
        self._over_chunks(kernels.list_marked, last - first, given)

    def _over_chunks(self, kernel: Any, count: int, given: tuple[Any, ...]) -> None:
        """Launch a kernel of which a warp takes a chunk."""
        self._launch(kernel, -(-count * _WARP // BLOCK), BLOCK, given)
