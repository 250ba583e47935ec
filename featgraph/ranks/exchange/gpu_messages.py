"""Messages of rows of several properties in the memory of a GPU, and their packing.

A message has the set of changed vertices, in words of 32 bits, followed by the rows of
each property, those with the widest entries first. Its form and number of rows are sent
beforehand; from these, both sides compute the offset of each part. `Packer` writes and
stores messages on one stream.

========= =====================================================
form      which vertices changed
========= =====================================================
none      none of them, and the message has no bytes
ms        all of them, without a list
vr        a bit for each vertex of the send list
vr-list   their positions in the send list
========= =====================================================

`GpuLinks` and `EdgeLinks` are the send and receive lists on the GPU: vertices or edges
by rank, with marks as bits. `gpu_sender_of` returns the engine that sends messages, or
`ThroughHost`, which sends them through memory of the host.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.config import config
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DistributedError
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of, uuid_of_current
from featgraph.cuda.values import DeviceValues
from featgraph.ranks.engines.protocol import (
    Beside,
    Engine,
    GpuArray,
    GpuEngine,
    GpuMessages,
    bytes_of,
)
from featgraph.ranks.exchange import gpu_kernels
from featgraph.ranks.exchange.remote_entries import identity
from featgraph.runtime.devices.protocol import Device

__all__ = [
    "BLOCK",
    "FORMS",
    "EdgeLinks",
    "Entries",
    "GpuLinks",
    "Listed",
    "Outline",
    "Packer",
    "Received",
    "ThroughHost",
    "as_rows",
    "blocks_for",
    "gpu_sender_of",
    "used_rows",
]


Array = Any
Words = Any
#: Threads of a block, and most blocks of a kernel over rows: threads go on with further
#: rows, a grid apart.
BLOCK, MOST_BLOCKS = 256, 1 << 13
_WARP = 32
#: Words of a chunk, at most: `take_bits` has a lane for each.
_CHUNK_WORDS = 32
Bytes = npt.NDArray[np.uint8]


def blocks_for(threads: int) -> int:
    """Return the number of blocks for so many threads: 1 to MOST_BLOCKS."""
    return max(1, min(-(-threads // BLOCK), MOST_BLOCKS))


class Listed:
    """Lists of vertices, one per rank, concatenated; each begins at a whole word.

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
    firsts : list of int
        The first word of each list, and the number of words.
    numbers : array of int32
        The lists themselves; -1 behind the end of a list in its last word.
    ends : ndarray of int32
        The first word of each chunk, and the end of the last one.
    links : list of int
        The first chunk of each list, and the number of chunks.
    """

    def __init__(
        self, lists: Sequence[npt.NDArray[np.integer]], device: Device, chunk_words: int
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
    """Lists of vertices, one per rank, of which some are marked.

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
    bits : array of uint32
        A bit for each position of the lists: whether it is marked.
    taken, positions : arrays of int32 and uint32
        From each list's begin on: the marked vertices, and their positions in the list.
    totals : array of int32
        Number of marked vertices of each list.
    """

    def __init__(
        self, lists: Sequence[npt.NDArray[np.integer]], device: Device, stream: Any = 0
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
        """Mark the vertices of a set; wait, and return their number in each list."""
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
        """Launch a kernel in which each warp takes a chunk."""
        stream = self._stream if stream is None else stream
        self._launch(kernel, -(-count * _WARP // BLOCK), BLOCK, given, stream)


class EdgeLinks(GpuLinks):
    """Lists of edges, marked by sets of positions in the lists, not of edge numbers."""

    def _mark(self, changed: Words, stream: Any) -> None:
        given = changed, self.chunks, 0, self.count, self.bits, self._before
        self._over_chunks(gpu_kernels.take_bits, self.count, given, stream)


#: Forms of messages; an announcement has the index of a form.
FORMS = ("none", "ms", "vr", "vr-list")


@dataclass(frozen=True, eq=False)
class Entries:
    """The values of a property as unsigned integers, for kernels that copy rows.

    Attributes
    ----------
    array : array of uint8 to uint64
        Shape (N, stride).
    width : int
        Entries of a row.
    item : int
        Bytes of an entry.
    dtype : dtype
        The dtype of the values.
    """

    array: Any
    width: int
    item: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, values: DeviceValues) -> Entries:
        """Return a view of values as entries."""
        found = _known.get(values.array)
        if found is None:
            item = values.array.dtype.itemsize
            matrix = as_rows(values.array.view(unit_of(item)))
            width = math.prod(values.shape[1:])
            made = cls(matrix, width, item, values.dtype)
            _known[values.array] = found = made
        return found


#: Array of a property -> its entries: making views takes as long as a launch.
_known: weakref.WeakKeyDictionary[Any, Entries] = weakref.WeakKeyDictionary()


def used_rows(device: Device, outbox: DeviceValues, operation: str) -> Words:
    """Return the set of the rows of an outbox that differ from the identity."""
    rows = as_rows(outbox.array)
    used = device.sets.empty(max(-(-rows.shape[0] // 32), 1))
    if rows.shape[0]:
        nothing = outbox.dtype.type(identity(operation, outbox.dtype))
        given = rows, math.prod(outbox.shape[1:]), nothing, used
        launch: Any = device.launches  # type: ignore[attr-defined]
        launch(gpu_kernels.mark_used, blocks_for(32 * int(used.size)), BLOCK, given)
    return used


def as_rows(array: Any) -> Any:
    """Return a view of an array as a matrix with the same rows."""
    rows = array.shape[0]
    return array.reshape((rows, array.size // max(rows, 1)))


def in_units(message: Any, item: int) -> Any:
    """Return a view of a message as unsigned integers of `item` bytes."""
    unit = unit_of(item)
    return message if message.dtype == unit else message.view(unit)


def unit_of(item: int) -> np.dtype[Any]:
    """Return the dtype of unsigned integers of `item` bytes."""
    return np.dtype(f"u{item}")


@dataclass(frozen=True)
class Outline:
    """The layout of a message.

    Attributes
    ----------
    form : str
        One of `FORMS`.
    count : int
        Number of rows of each property.
    words : int
        Number of words for the set of vertices.
    firsts : tuple of int
        The index of each property's first entry, in units of its entries.
    item : int
        Bytes of the narrowest entries.
    nbytes : int
        Bytes of the message: a multiple of 8.
    """

    form: str
    count: int
    words: int
    firsts: tuple[int, ...]
    item: int
    nbytes: int

    @classmethod
    def of(
        cls, form: str, count: int, words: int, entries: Sequence[Entries]
    ) -> Outline:
        """Return the outline of a message of `count` rows of a list."""
        words = {"vr": words, "vr-list": count}.get(form, 0)
        # Each part begins at a multiple of its entries: words are padded to 8 bytes,
        # and properties follow, the widest entries first.
        at, firsts = -(-4 * words // 8) * 8, [0] * len(entries)
        for which in sorted(range(len(entries)), key=lambda w: -entries[w].item):
            firsts[which] = at // entries[which].item
            at += count * entries[which].width * entries[which].item
        items = [*(one.item for one in entries), *[4] * bool(words)]
        item = min(items, default=8)
        return cls(form, count, words, tuple(firsts), item, -(-at // 8) * 8)

    @classmethod
    def choose(
        cls, count: int, size: int, entries: Sequence[Entries], form: str = "auto"
    ) -> Outline:
        """Return the outline of a message of `count` changed rows of a list.

        With form "auto" it has the fewest bytes; else it has this form, "vr" or
        "vr-list", unless all rows of the list changed, or none.
        """
        words = -(-size // 32)
        if form == "auto":
            form = "vr-list" if count < words else "vr"
        if count in (0, size):
            form = "ms" if count else "none"
        return cls.of(form, count, words, entries)

    @property
    def announcement(self) -> npt.NDArray[np.int64]:
        """The announcement for the receiver: form and count, int64, shape (2,)."""
        return np.array([FORMS.index(self.form), self.count], np.int64)

    @classmethod
    def read(
        cls, announcement: npt.NDArray[np.int64], size: int, entries: Sequence[Entries]
    ) -> Outline:
        """Return the outline of an announced message.

        Raises
        ------
        DistributedError
            If it does not fit a list of `size` vertices.
        """
        form, count = announcement.tolist()
        fits = 0 < count < size if form > 1 else count == (0, size)[max(form, 0)]
        if not (0 <= form < len(FORMS) and fits):
            raise DistributedError(
                "a message of rows cannot be read",
                got=f"form {form} with {count} rows",
                expected=f"rows of a list of {size} vertices",
                fix="one graph and one version of featgraph on all ranks",
            )
        return cls.of(FORMS[form], count, -(-size // 32), entries)


@dataclass(frozen=True, eq=False)
class Received:
    """A received message.

    Attributes
    ----------
    outline : Outline
    message : array or None
        None if it has no bytes.
    listed : (array, int)
        A list of vertices, and the index of the first one with a row in the message.
    """

    outline: Outline
    message: Any
    listed: tuple[Array, int]


class Packer:
    """Packing of rows into messages, and unpacking of received messages.

    Parameters
    ----------
    device : CudaDevice
    stream : stream of the dialect, optional
        The stream of launches. Default: the default stream.
    make : callable, optional
        ``make(nbytes, item)`` returns `nbytes` bytes of memory as unsigned integers of
        `item` bytes. Default: a new array.
    """

    def __init__(
        self,
        device: Device,
        stream: Any = 0,
        make: Callable[[int, int], Array] | None = None,
    ) -> None:
        self._device, self._stream = device, stream
        self._on: Any = device.launches  # type: ignore[attr-defined]
        self._make = make or self._new

    def _new(self, nbytes: int, item: int) -> Array:
        return self._device.empty((nbytes // item,), f"uint{8 * item}")

    def launch(self, kernel: Any, blocks: int, given: tuple[Any, ...]) -> None:
        """Launch a kernel over rows."""
        self._on(kernel, blocks, BLOCK, given, self._stream)

    def message(self, outline: Outline) -> Array | None:
        """Return memory for a message; None if it has no bytes."""
        return self._make(outline.nbytes, outline.item) if outline.nbytes else None

    def encode(
        self, links: GpuLinks, rank: int, outline: Outline, entries: Sequence[Entries]
    ) -> Array | None:
        """Return a message of marked rows for a rank; None if it has no bytes."""
        message = self.message(outline)
        if message is None:
            return None
        begin = links.begins[rank]
        if outline.words:
            is_list = outline.form == "vr-list"
            source = (links.positions, begin) if is_list else (links.bits, begin // 32)
            given = *source, outline.words, in_units(message, 4)
            self.launch(gpu_kernels.copy_words, blocks_for(outline.words), given)
        listed = links.taken if outline.words else links.numbers
        for own, first in zip(entries, outline.firsts, strict=True):
            rows = own.array, own.width, listed, begin, outline.count
            blocks, to = (
                blocks_for(outline.count * own.width),
                in_units(message, own.item),
            )
            self.launch(gpu_kernels.gather_rows, blocks, (*rows, to, first))
        return message

    def received(
        self, links: GpuLinks, rank: int, outline: Outline, message: Array | None
    ) -> Received:
        """Return a received message with the list of its vertices."""
        numbers = links.numbers
        if message is not None and outline.words:
            words, numbers = in_units(message, 4), links.taken
            if outline.form == "vr":
                links.take_bits(rank, words)
            else:
                links.take_positions(rank, words, outline.count)
        return Received(outline, message, (numbers, links.begins[rank]))

    def scatter(self, came: Received, which: int, target: Entries) -> None:
        """Store the rows of property `which` of a message as the listed rows."""
        count, first = came.outline.count, came.outline.firsts[which]
        rows = in_units(came.message, target.item), first, target.width
        given = *rows, *came.listed, count, target.array
        self.launch(gpu_kernels.scatter_rows, blocks_for(count * target.width), given)

    def store(self, came: Received, entries: Sequence[Entries], words: Words) -> None:
        """Store the rows of a message, and add their vertices to a set."""
        for which, own in enumerate(entries):
            self.scatter(came, which, own)
        self.add(came, words)

    def add(self, came: Received, words: Words) -> None:
        """Add the vertices of a message to a set."""
        count = came.outline.count
        given = *came.listed, count, words
        self.launch(gpu_kernels.add_vertices, blocks_for(count), given)


def gpu_sender_of(engine: Engine, device: Device) -> GpuEngine | ThroughHost:
    """Return the engine if it can send GPU arrays, else `ThroughHost`; all call it."""
    may_reach = isinstance(engine, GpuEngine) and config.gpu_links != "host"

    def make(size: int) -> GpuArray:
        return device.empty((size,), "uint8")

    if may_reach and engine.reach_gpus(uuid_of_current(), make):  # type: ignore[attr-defined]
        return engine  # type: ignore[return-value]
    return ThroughHost(engine, device)


class ThroughHost:
    """Exchange of GPU arrays through page-locked memory of the host.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._engine, self._device = engine, device
        self._driver: Any = device.driver  # type: ignore[attr-defined]
        #: Memory for sent and for received messages.
        self._out, self._into = _Landing(), _Landing()
        self._event: Any = None

    def hand_over(self, messages: GpuMessages) -> list[GpuArray | None]:
        """Send an array to each rank: see `GpuEngine`.

        Waits for the stream of `beside` (the default stream) only.
        """
        arrays, sizes, about, beside = messages
        own, (stream, make) = self._engine.rank, beside or Beside(0, self._make)
        leaving = [array if r != own else None for r, array in enumerate(arrays)]
        out = self._out.parts(list(map(bytes_of, leaving)))
        streams = self._driver.streams
        for array, landed in zip(leaving, out, strict=True):
            if landed.size:
                address = int(landed.ctypes.data)
                streams.start_read(address, address_of(array), landed.size, stream)
        if self._event is None:
            self._event = streams.make_event()
        # The last call's writes to the GPU, which read `into`, end with it, too.
        streams.mark(self._event, stream)
        streams.wait(self._event)
        coming = [size if rank != own else 0 for rank, size in enumerate(sizes)]
        into = self._into.parts(coming)

        def write(rank: int, message: Bytes) -> None:
            message[:] = out[rank]

        def read(rank: int, message: Bytes) -> None:
            into[rank][:] = message

        counts = [landed.size for landed in out]
        self._engine.hand_bytes(counts, write, read, about=about)
        made = [make(size) if size else None for size in coming]
        for array, landed in zip(made, into, strict=True):
            if array is not None:
                address = int(landed.ctypes.data)
                streams.start_write(address_of(array), address, landed.size, stream)
        made[own] = arrays[own]
        return made

    def _make(self, size: int) -> GpuArray:
        return self._device.empty((size,), "uint8")


class _Landing:
    """Page-locked memory for messages, which grows to the longest exchange."""

    def __init__(self) -> None:
        # The dialect makes no empty array.
        self._memory: Bytes = cuda.pinned_array(1, np.uint8)

    def parts(self, sizes: Sequence[int]) -> list[Bytes]:
        """Return memory for messages of these sizes, in bytes, aligned to 16 bytes."""
        ends = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
        if self._memory.size < ends[-1]:
            self._memory = cuda.pinned_array(ends[-1], np.uint8)
        begins = [0, *ends[:-1]]
        return [
            self._memory[begin : begin + size]
            for begin, size in zip(begins, sizes, strict=True)
        ]
