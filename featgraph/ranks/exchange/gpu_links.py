"""Send and receive lists on the GPU: vertices or edges by rank, with marks as bits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.ranks.exchange import gpu_kernels
from featgraph.runtime.devices.protocol import Device

__all__ = ["BLOCK", "EdgeLinks", "GpuLinks", "Listed", "blocks_for"]

Array = Any
Words = Any
#: Threads of a block, and most blocks of a kernel that goes over rows.
BLOCK, MOST_BLOCKS = 256, 1 << 13
_WARP = 32
#: Words of a chunk, at most.
_CHUNK_WORDS = 32


def blocks_for(threads: int) -> int:
    """Return the number of blocks for so many threads: 1 to MOST_BLOCKS."""
    return max(1, min(-(-threads // BLOCK), MOST_BLOCKS))


class Listed:
    """Lists of vertices, one a rank, concatenated; each begins at a whole word.

    Parameters
    ----------
    lists : sequence of array of int
        Row numbers of vertices on this rank, by rank.
    device : CudaDevice
    chunk_words : int
        Words of a chunk, at most.

    Attributes
    ----------
    sizes : list of int
        Vertices of each list.
    begins : list of int
        Where each list begins in `numbers`.
    words : list of int
        Number of words of bits of each list.
    numbers : array of int32
        The lists themselves; -1 behind the end of a list in its last word.
    ends : ndarray of int32
        The first word of each chunk, and the end of the last one.
    links : list of int
        The first chunk of each list, and the number of chunks.
    """

    def __init__(
        self,
        lists: Sequence[npt.NDArray[np.integer]],
        device: Device,
        chunk_words: int,
    ) -> None:
        self.sizes = [int(numbers.size) for numbers in lists]
        self.words = [-(-size // 32) for size in self.sizes]
        firsts = np.cumsum([0, *self.words])
        self.firsts: list[int] = firsts.tolist()
        self.begins = (32 * firsts[:-1]).tolist()
        chunks, links = [0], [0]
        for first, count in zip(firsts, self.words, strict=False):
            ends = [*range(chunk_words, count, chunk_words), *[count] * bool(count)]
            chunks += [int(first) + end for end in ends]
            links.append(len(chunks) - 1)
        self.links, self.count = links, links[-1]
        self._device = device
        self.numbers = self.along(lists)
        self.ends = np.array(chunks, np.int32)

    def along(self, lists: Sequence[npt.NDArray[np.integer]]) -> Array:
        """Upload a number per entry of the lists, padded with -1 to whole words."""
        # Kernels take no empty array.
        padded = np.full(32 * max(sum(self.words), 1), -1, np.int32)
        for begin, numbers in zip(self.begins, lists, strict=True):
            padded[begin : begin + numbers.size] = numbers
        return self._device.upload(padded)


class GpuLinks(Listed):
    """Lists of vertices, one a rank, of which some are marked.

    Parameters
    ----------
    lists : sequence of array of int
        Row numbers of vertices on this rank, by rank.
    device : CudaDevice
    stream : stream of the dialect, optional
        The stream of launches. Default: the default stream.

    Attributes
    ----------
    chunks : array of int32
        `ends`, on the GPU.
    taken, positions : arrays of int32 and uint32
        From each list's begin on: the marked vertices, and their positions in the list.
    totals : array of int32
        Number of marked vertices of each list.
    """

    def __init__(
        self,
        lists: Sequence[npt.NDArray[np.integer]],
        device: Device,
        stream: Any = 0,
    ) -> None:
        super().__init__(lists, device, _CHUNK_WORDS)
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self._stream = stream
        self.chunks = device.upload(self.ends)
        begin_of_chunk = np.repeat(self.firsts[:-1], np.diff(self.links))
        self._begins = device.upload(begin_of_chunk.astype(np.int32))
        self._on_device = device.upload(np.array(self.links, np.int32))
        #: The range of chunks of each list, as `add_up_links` takes a single list.
        self._pairs = [
            device.upload(np.array(pair, np.int32)) for pair in pairwise(self.links)
        ]
        positions = int(self.numbers.size)
        self.bits = device.empty((positions // 32,), "uint32")
        self._before = device.empty((self.count,), "int32")
        self.totals = device.upload(np.zeros(max(len(lists), 1), np.int32))
        self.taken = device.empty((positions,), "int32")
        self.positions = device.empty((positions,), "uint32")

    def mark(self, changed: Words) -> list[int]:
        """Mark the vertices of a set; wait, and return the marked ones of each list."""
        if self.count == 0:
            return [0] * len(self.sizes)
        self.leave_marks(changed, self._stream)
        return self._device.download(self.totals).tolist()  # type: ignore[no-any-return]

    def leave_marks(self, changed: Words, stream: Any) -> None:
        """Mark the vertices of a set on a stream, and update `totals` on the GPU."""
        if self.count:
            self._mark(changed, stream)
            sums = self._on_device, self._before, self.totals
            self._launch(gpu_kernels.add_up_links, len(self.sizes), _WARP, sums, stream)

    def _mark(self, changed: Words, stream: Any) -> None:
        given = changed, self.numbers, self.chunks, self.bits, self._before
        self._over_chunks(gpu_kernels.mark_changed, self.count, given, stream)

    def list_all(self) -> None:
        """Fill `taken` and `positions` for all lists."""
        self._list(0, self.count)

    def take_bits(self, rank: int, message: Words) -> None:
        """Mark and list the vertices of one list by the bits of a message."""
        first, last = self.links[rank : rank + 2]
        given = message, self.chunks, first, last, self.bits, self._before
        self._over_chunks(gpu_kernels.take_bits, last - first, given)
        pair = self._pairs[rank], self._before, self.totals
        self._launch(gpu_kernels.add_up_links, 1, _WARP, pair, self._stream)
        self._list(first, last)

    def take_positions(self, rank: int, message: Words, count: int) -> None:
        """List the vertices of one list at the positions stored in a message."""
        given = self.numbers, self.begins[rank], message, count, self.taken
        blocks = blocks_for(count)
        self._launch(gpu_kernels.pick_listed, blocks, BLOCK, given, self._stream)

    def _list(self, first: int, last: int) -> None:
        given = (
            self.bits, self.numbers, self.chunks, self._begins, self._before, first,
            last, self.taken, self.positions,
        )  # fmt: skip
        self._over_chunks(gpu_kernels.list_marked, last - first, given)

    def _over_chunks(
        self, kernel: Any, count: int, given: tuple[Any, ...], stream: Any = None
    ) -> None:
        """Launch a kernel of which a warp takes a chunk."""
        stream = self._stream if stream is None else stream
        self._launch(kernel, -(-count * _WARP // BLOCK), BLOCK, given, stream)


class EdgeLinks(GpuLinks):
    """Lists of edges, marked by sets of positions in the lists, not of edge numbers."""

    def _mark(self, changed: Words, stream: Any) -> None:
        given = changed, self.chunks, 0, self.count, self.bits, self._before
        self._over_chunks(gpu_kernels.take_bits, self.count, given, stream)
