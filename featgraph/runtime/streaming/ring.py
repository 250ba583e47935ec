"""Page-locked arrays of edges, and the GPU buffers that receive slices of them.

A `PinnedArray` is host memory that kernels can also read and write in place. A `Ring`
has several `Buffer` on the GPU, and a stream that fills them: the copy to one buffer
overlaps the sweeps of others. CUDA events order copies and sweeps.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceMemoryError
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import address_of
from featgraph.runtime.streaming import needs

__all__ = ["Buffer", "PinnedArray", "Ring", "array_at", "pinned_of"]

Array = Any


def array_at(
    address: int, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: Any
) -> Array:
    """Return an array of the dialect over memory that `owner` keeps alive."""
    described = {
        "data": (address, False),
        "shape": shape,
        "strides": None,
        "typestr": np.dtype(dtype).str,
        "version": 3,
    }
    return cuda.from_cuda_array_interface(described, owner=owner)


def pinned_of(array: Array) -> PinnedArray | None:
    """Return the `PinnedArray` of an array for kernels; None if it is on the GPU."""
    return getattr(array, "pinned", None)


class PinnedArray:
    """An array in page-locked host memory.

    The host writes it only while the GPU is idle: see `Placement`.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Attributes
    ----------
    address : int
        Address of its memory, for the host and the GPU.
    version : int
        Number of possible writes so far: slices in buffers have the version copied.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        #: Bytes of a row. The memory has one more row, for lanes without an edge.
        self.row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        self.byte_count = self.row_bytes * shape[0]
        whole = self.byte_count + max(self.row_bytes, 1)
        try:
            self._memory = cuda.mapped_array((whole,), np.uint8)
        except Exception as error:
            if "MEMORY" not in str(error).upper():
                raise
            raise DeviceMemoryError(
                "the host has not enough memory that can be page-locked",
                got=f"{whole / 1e9:.2f} GB for edges that do not fit the GPU",
                fix="raise the limit of locked memory (ulimit -l), or use ranks",
            ) from error
        self._memory[self.byte_count :] = np.zeros(whole - self.byte_count, np.uint8)
        self.address = address_of(self._memory)
        self.version = 0
        self._rows: dict[tuple[int, int], Array] = {}

    def whole(self) -> Array:
        """Return the array for kernels; `pinned_of` returns this object for it."""
        made = array_at(self.address, self.shape, self.dtype, self._memory)
        made.pinned = self
        return made

    def rows(self, begin: int, end: int) -> Array:
        """Return an array of rows `begin` to `end` for kernels, of at least one row."""
        found = self._rows.get((begin, end))
        if found is None:
            shape = (max(end - begin, 1), *self.shape[1:])
            place = self.address + begin * self.row_bytes
            found = array_at(place, shape, self.dtype, self._memory)
            self._rows[begin, end] = found
        return found

    @property
    def host(self) -> npt.NDArray[Any]:
        """A NumPy view of the memory."""
        raw: Any = (ctypes.c_uint8 * self.byte_count).from_address(self.address)
        raw.owner = self._memory
        return np.ndarray(self.shape, self.dtype, raw)

    def put(self, values: npt.NDArray[Any]) -> None:
        """Overwrite all values."""
        given = np.ascontiguousarray(values, self.dtype)
        self._memory[: self.byte_count] = given.reshape(-1).view(np.uint8)


class Buffer:
    """A buffer on the GPU, and the identity of the slice that it contains.

    Attributes
    ----------
    number : int
        Index of the buffer in the ring.
    content : tuple
        Identity of the slice in it, see `is_current`; empty if there is none.
    is_swept_once : bool
        Whether a slice in it has been swept, so that the event `swept` is recorded.
    is_awaited : bool
        Whether the next sweep has to wait for the event `filled`.
    """

    def __init__(self, number: int, memory: Array, driver: Any) -> None:
        self.number, self._memory = number, memory
        self._address = address_of(memory)
        self.content: tuple[Any, ...] = ()
        #: Events after the copies into the buffer, and after the last sweep of it.
        self.filled, self.swept = driver.make_event(), driver.make_event()
        self.is_swept_once = self.is_awaited = False
        self._parts: dict[Any, Array] = {}

    def place(self, at: int) -> int:
        """Return the address of byte `at` of the buffer."""
        return self._address + at

    def part(self, at: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array that begins at byte `at` of the buffer."""
        key = at, shape, dtype.str
        found = self._parts.get(key)
        if found is None:
            made = array_at(self.place(at), shape, dtype, self._memory)
            self._parts[key] = found = made
        return found


class Ring:
    """The buffers of a graph, and the stream that fills them.

    A copy waits for the last sweep of the slice that it overwrites, and a sweep waits
    for its copies. The host never waits.

    Parameters
    ----------
    driver : TracedDriver
    memories : sequence of arrays
        Memory of each buffer, of equal size; at least two. The first two buffers are
        filled in turns; each other one keeps the slice that it receives first, as long
        as the arrays on the host are unchanged.

    Attributes
    ----------
    size : int
        Bytes of a buffer.
    copied : int
        Number of bytes copied so far.
    """

    def __init__(self, driver: Any, memories: Sequence[Array]) -> None:
        self._driver = driver
        self._stream = driver.streams.make_stream()
        streams = driver.streams
        self._buffers = [Buffer(n, m, streams) for n, m in enumerate(memories)]
        self._began = streams.make_event()
        self.size = int(memories[0].size)
        self.copied = 0
        #: Arrays and `CutRows` that live as long as these buffers, by name.
        self.kept: dict[Any, Any] = {}
        #: Index, 0 or 1, of the buffer that is filled next in turn.
        self._next = 0
        self.begin(waits=True)  # the memory was allocated in the default stream's order

    def lay_out(self, row_bytes: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many edges fit a buffer, and the offset of each array in bytes.

        `row_bytes` are the bytes per edge of each array.
        """
        room = self.size - needs.ALIGNED * len(row_bytes)
        capacity = max(room // max(sum(row_bytes), 1), 1)
        places, at = [], 0
        for each in row_bytes:
            places.append(at)
            at += -(-capacity * each // needs.ALIGNED) * needs.ALIGNED
        return capacity, places

    def begin(self, *, waits: bool) -> None:
        """Begin the slices of a phase.

        With `waits`, copies wait for all earlier work of the default stream, which may
        have written the arrays that they copy.
        """
        if waits:
            streams = self._driver.streams
            streams.mark(self._began, 0)
            streams.hold(self._stream, self._began)

    def find(self, content: tuple[Any, ...]) -> Buffer | None:
        """Return the buffer that contains a slice, or None."""
        return next((b for b in self._buffers if b.content == content), None)

    def fill(
        self, content: tuple[Any, ...], copies: Sequence[tuple[int, PinnedArray]],
        rows: tuple[int, int], busy: Collection[Buffer],
    ) -> Buffer | None:  # fmt: skip
        """Start copying a slice to a buffer; return it, or None if none is free.

        Parameters
        ----------
        content : tuple
            Identity of the slice.
        copies : sequence of (int, PinnedArray)
            Each array with the byte of the buffer where its rows begin.
        rows : (int, int)
            The range of rows.
        busy : collection of Buffer
            Buffers with slices whose sweep has not been launched.
        """
        buffer, streams = self._choose(busy), self._driver.streams
        if buffer is None:
            return None
        buffer.content = ()  # after an error, the buffer has neither slice
        if buffer.is_swept_once:
            streams.hold(self._stream, buffer.swept)
        begin, end = rows
        for at, array in copies:
            size = (end - begin) * array.row_bytes
            if size:
                source = array.address + begin * array.row_bytes
                streams.start_write(buffer.place(at), source, size, self._stream)
                self.copied += size
        streams.mark(buffer.filled, self._stream)
        buffer.content, buffer.is_awaited = content, True
        return buffer

    def await_filled(self, buffer: Buffer) -> None:
        """Have later launches wait for the copies into a buffer."""
        if buffer.is_awaited:
            self._driver.streams.hold(0, buffer.filled)
            buffer.is_awaited = False

    def note_swept(self, buffer: Buffer) -> None:
        """Have copies into a buffer wait for all launches so far."""
        self._driver.streams.mark(buffer.swept, 0)
        buffer.is_swept_once = True

    def forget(self) -> None:
        """Mark all buffers as empty; the GPU must be idle."""
        for buffer in self._buffers:
            buffer.content, buffer.is_awaited = (), False

    def _choose(self, busy: Collection[Buffer]) -> Buffer | None:
        """Return a free buffer for another slice; None if all are busy.

        Buffers that will keep the slice come first, then those filled in turns.
        """
        for buffer in self._buffers[needs.MOVING :]:
            if buffer not in busy and not is_current(buffer.content):
                return buffer
        # Of the two moving buffers, the one that was filled first.
        moving = sorted(
            self._buffers[: needs.MOVING], key=lambda b: b.number != self._next
        )
        for buffer in moving:
            if buffer not in busy:
                self._next = (buffer.number + 1) % needs.MOVING
                return buffer
        return None


def is_current(content: tuple[Any, ...]) -> bool:
    """Whether the slice in a buffer equals the arrays on the host.

    `content` has a key of the slice, weak references to the arrays that it was copied
    from, and their versions at that time.
    """
    if not content:
        return False
    _, sources, versions = content
    return all(
        array is not None and array.version == version
        for array, version in zip((s() for s in sources), versions, strict=True)
    )
