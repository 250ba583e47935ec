"""Streams of an emulated GPU, and page-locked memory of its host."""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.simt.streams import HOST

__all__ = ["EmulatedStreams", "Streams", "pinned"]


#: Page-locked memory of the host that is alive.
PINNED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def pinned(shape: Any, dtype: Any) -> Any:
    """Return page-locked memory of the host."""
    made = np.empty(shape, dtype)
    PINNED[id(made)] = made
    return made


def lies_in(memory: Any, address: int) -> bool:
    """Whether an address is within an array."""
    first = int(memory.ctypes.data)
    return first <= address < first + int(memory.nbytes)


class Event:
    """The operations of a stream at the time of the record."""

    seen: Any = None


class Streams:
    """Stands for the driver's calls on other streams; see `tests.simt.streams`."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = weakref.proxy(gpu)
        #: Those that wait for nothing that they are not told to.
        self.made: set[int] = set()
        #: Copies to the host that nothing has waited for: operation, target, bytes.
        self._landing: list[tuple[tuple[int, int], int, Any]] = []

    def make_stream(self, *, is_urgent: bool = False) -> int:
        made = next(self._gpu.numbers)
        self.made.add(made)
        return made

    def make_event(self) -> Event:
        return Event()

    def mark(self, event: Event, stream: int) -> None:
        event.seen = self._gpu.order.seen(stream)

    def hold(self, stream: int, event: Event) -> None:
        self._gpu.order.hold(stream, event.seen)

    def start_write(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy at once; record it as a write, so that missing waits are found."""
        if self._gpu.alive.at(source, size) is None:
            self._take(target, source, size, stream)
            return
        assert stream
        of, first = self._gpu._place(source, size)
        assert all(of.bytes[first : first + size])
        to, place = self._gpu._place(target, size)
        self._gpu.order.begin(stream)
        of.touches.copy_from(first, size, stream)
        to.touches.copy_to(place, size, stream)
        self._gpu._memory(target, size)[:] = self._gpu._memory(source, size)
        to.bytes[place : place + size] = b"\1" * size
        self._gpu.streamed.append(size)

    def _take(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy from page-locked memory that no kernel sees."""
        self._gpu.uploads.append(size)
        to, place = self._gpu._place(target, size)
        self._gpu.order.begin(stream)
        to.touches.copy_to(place, size, stream)
        memory = self._gpu._memory(target, size)
        ctypes.memmove(memory.ctypes.data, source, size)
        to.bytes[place : place + size] = b"\1" * size

    def start_read(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy to page-locked memory, where it is when the host has waited for it."""
        self._gpu.downloads.append(size)
        of, place = self._gpu._place(source, size)
        self._gpu.order.begin(stream)
        of.touches.copy_from(place, size, stream)
        copied = self._gpu._memory(source, size).copy()
        self._landing.append((self._gpu.order.current, target, copied))
        ctypes.memset(target, 0xAB, size)

    def wait(self, event: Any) -> None:
        order = self._gpu.order
        order.hold(HOST, event.seen)
        done = [one for one in self._landing if order.is_before(one[0], HOST)]
        self._landing = [one for one in self._landing if one not in done]
        for _, target, copied in done:
            if any(lies_in(memory, target) for memory in PINNED.values()):
                ctypes.memmove(target, copied.ctypes.data, copied.size)

    def copy_any(self, target: int, source: int, size: int) -> None:
        self._gpu.copy(target, source, size)


class EmulatedStreams:
    """Stands for the dialect where streams of the driver are lent to it."""

    @staticmethod
    def external_stream(handle: int) -> SimpleNamespace:
        return SimpleNamespace(handle=handle)

    @staticmethod
    def pinned_array(shape: Any, dtype: Any) -> Any:
        return pinned(shape, dtype)
