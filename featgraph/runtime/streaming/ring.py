"""Buffers of the GPU that slices of rows come to while others are swept."""

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
    """Return an array of the dialect over memory that somebody else has."""
    described = {
        "data": (address, False),
        "shape": shape,
        "strides": None,
        "typestr": np.dtype(dtype).str,
        "version": 3,
    }
    return cuda.from_cuda_array_interface(described, owner=owner)


def pinned_of(array: Array) -> PinnedArray | None:
    """Return the memory of the host that an array is; None for those of a GPU."""
    return getattr(array, "pinned", None)


class PinnedArray:
    """An array in page-locked memory.

    The host writes it only while the GPU does nothing: see `Placement`.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Attributes
    ----------
    address : int
        Of its memory, for the host and the GPU.
    version : int
        How often kernels may have written it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        #: Bytes of a row; the array has one more, which lanes without an edge may read.
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
        """Return it as kernels get it; `pinned_of` finds this by what it returns."""
        made = array_at(self.address, self.shape, self.dtype, self._memory)
        made.pinned = self
        return made

    def rows(self, begin: int, end: int) -> Array:
        """Return some rows as kernels get them; of none, there is one all the same."""
        found = self._rows.get((begin, end))
        if found is None:
            shape = (max(end - begin, 1), *self.shape[1:])
            place = self.address + begin * self.row_bytes
            found = array_at(place, shape, self.dtype, self._memory)
            self._rows[begin, end] = found
        return found

    @property
    def host(self) -> npt.NDArray[Any]:
        """The array, as the host has it."""
        raw: Any = (ctypes.c_uint8 * self.byte_count).from_address(self.address)
        raw.owner = self._memory
        return np.ndarray(self.shape, self.dtype, raw)

    def put(self, values: npt.NDArray[Any]) -> None:
        """Overwrite it."""
        given = np.ascontiguousarray(values, self.dtype)
        self._memory[: self.byte_count] = given.reshape(-1).view(np.uint8)


Array = Any


class Buffer:
    """A buffer, and what is in it.

    Attributes
    ----------
    number : int
        Which one of its ring.
    content : tuple
        What tells the slice in it from all others; empty if there is none.
    """

    def __init__(self, number: int, memory: Array, driver: Any) -> None:
        self.number, self._memory = number, memory
        self._address = address_of(memory)
        self.content: tuple[Any, ...] = ()
        #: Behind the copies into it, and behind the last sweep of what is in it.
        self.filled, self.swept = driver.make_event(), driver.make_event()
        self.is_swept_once = self.is_awaited = False
        self._parts: dict[Any, Array] = {}

    def place(self, at: int) -> int:
        """Return an address in it."""
        return self._address + at

    def part(self, at: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array that begins at a byte of it."""
        key = at, shape, dtype.str
        found = self._parts.get(key)
        if found is None:
            made = array_at(self.place(at), shape, dtype, self._memory)
            self._parts[key] = found = made
        return found


class Ring:
    """Buffers, the stream that fills them, and who waits for whom.

    A copy waits for the last sweep of what it overwrites, and a sweep for its copies.
    Nothing waits on the host.

    Parameters
    ----------
    driver : TracedDriver
    memories : sequence of arrays
        As many bytes each; two at least. Slices pass through two of them, and each
        other one keeps what comes to it first.

    Attributes
    ----------
    size : int
        Bytes of a buffer.
    copied : int
        Bytes that were copied so far.
    """

    def __init__(self, driver: Any, memories: Sequence[Array]) -> None:
        self._driver = driver
        self._stream = driver.aside.make_stream()
        aside = driver.aside
        self._buffers = [Buffer(n, m, aside) for n, m in enumerate(memories)]
        self._began = aside.make_event()
        self.size = int(memories[0].size)
        self.copied = 0
        #: What goes with these buffers, by its name.
        self.kept: dict[Any, Any] = {}
        #: Which of the moving buffers is filled next.
        self._turn = 0
        self.begin(waits=True)  # memory is given out in the order of that stream

    def lay_out(self, row_bytes: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many rows of some arrays a buffer takes, and where each begins."""
        room = self.size - needs.ALIGNED * len(row_bytes)
        capacity = max(room // max(sum(row_bytes), 1), 1)
        places, at = [], 0
        for each in row_bytes:
            places.append(at)
            at += -(-capacity * each // needs.ALIGNED) * needs.ALIGNED
        return capacity, places

    def begin(self, *, waits: bool) -> None:
        """Begin with the slices of a phase.

        Copies wait for all that the default stream was given, if that may have written
        what they copy.
        """
        if waits:
            aside = self._driver.aside
            aside.mark(self._began, 0)
            aside.hold(self._stream, self._began)

    def find(self, content: tuple[Any, ...]) -> Buffer | None:
        """Return the buffer that has a slice already."""
        return next((b for b in self._buffers if b.content == content), None)

    def fill(
        self, content: tuple[Any, ...], copies: Sequence[tuple[int, PinnedArray]],
        rows: tuple[int, int], busy: Collection[Buffer],
    ) -> Buffer | None:  # fmt: skip
        """Have a slice copied to a buffer; return it, or None where none is free.

        Parameters
        ----------
        content : tuple
            What tells the slice from all others.
        copies : sequence of (int, PinnedArray)
            The byte of the buffer where rows of each array begin.
        rows : (int, int)
            Which rows, without the last.
        busy : collection of Buffer
            Those with slices whose sweep has not been launched.
        """
        buffer, aside = self._choose(busy), self._driver.aside
        if buffer is None:
            return None
        buffer.content = ()
        if buffer.is_swept_once:
            aside.hold(self._stream, buffer.swept)
        begin, end = rows
        for at, array in copies:
            size = (end - begin) * array.row_bytes
            if size:
                source = array.address + begin * array.row_bytes
                aside.start_write(buffer.place(at), source, size, self._stream)
                self.copied += size
        aside.mark(buffer.filled, self._stream)
        buffer.content, buffer.is_awaited = content, True
        return buffer

    def await_filled(self, buffer: Buffer) -> None:
        """Have what is launched from now on wait for the copies into a buffer."""
        if buffer.is_awaited:
            self._driver.aside.hold(0, buffer.filled)
            buffer.is_awaited = False

    def note_swept(self, buffer: Buffer) -> None:
        """Have copies into a buffer wait for what has been launched."""
        self._driver.aside.mark(buffer.swept, 0)
        buffer.is_swept_once = True

    def forget(self) -> None:
        """Take nothing for granted that is in a buffer; the GPU does nothing by now."""
        for buffer in self._buffers:
            buffer.content, buffer.is_awaited = (), False

    def _choose(self, busy: Collection[Buffer]) -> Buffer | None:
        """Return the buffer for another slice: one that keeps it, or the next."""
        for buffer in self._buffers[needs.MOVING :]:
            if buffer not in busy and not is_current(buffer.content):
                return buffer
        # Of two, that which was filled first.
        moving = sorted(
            self._buffers[: needs.MOVING], key=lambda b: b.number != self._turn
        )
        for buffer in moving:
            if buffer not in busy:
                self._turn = (buffer.number + 1) % needs.MOVING
                return buffer
        return None


def is_current(content: tuple[Any, ...]) -> bool:
    """Whether what a buffer has is still what the host has."""
    if not content:
        return False
    _, sources, versions = content
    return all(
        array is not None and array.version == version
        for array, version in zip((s() for s in sources), versions, strict=True)
    )
