"""Buffers of the GPU that slices of rows come to while others are swept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from featgraph.cuda.driver import address_of
from featgraph.runtime.streaming import sizes
from featgraph.runtime.streaming.pinned import PinnedArray, array_at

__all__ = ["Buffer", "Ring"]

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
        room = self.size - sizes.ALIGNED * len(row_bytes)
        capacity = max(room // max(sum(row_bytes), 1), 1)
        places, at = [], 0
        for each in row_bytes:
            places.append(at)
            at += -(-capacity * each // sizes.ALIGNED) * sizes.ALIGNED
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
        for buffer in self._buffers[sizes.MOVING :]:
            if buffer not in busy and not is_current(buffer.content):
                return buffer
        # Of two, that which was filled first.
        moving = sorted(
            self._buffers[: sizes.MOVING], key=lambda b: b.number != self._turn
        )
        for buffer in moving:
            if buffer not in busy:
                self._turn = (buffer.number + 1) % sizes.MOVING
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
