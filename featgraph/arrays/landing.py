"""Arrays of the GPU on their way to the host, by way of page-locked memory.

To memory that is not page-locked the driver copies on one thread, by a detour of its
own, and that thread takes the fault of each new page: 3 to 4 GB a second where the bus
has 50. Here pieces land in memory that is page-locked, while several threads take
those before to where they belong.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cuda import cuda
from featgraph._cuda_arguments import layout_of
from featgraph._cuda_driver import Driver, address_of, device_of
from featgraph._cuda_memory import Strided

__all__ = ["LEAST", "read"]

Bytes = npt.NDArray[np.uint8]
#: Smaller arrays are left to the driver, but for those of a few bytes.
LEAST, FEW = 1 << 22, 1 << 16
#: Bytes of a piece; and how many pieces there are: half of them on their way from the
#: GPU, half on their way to where they belong.
PIECE, PIECES = 1 << 21, 16
#: Threads that take pieces on, where there are as many.
_MOST_THREADS = PIECES // 2


def read(
    array: Any, width: int | None = None, into: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Return a copy of an array of the dialect on the host; waits for the GPU.

    Rows may be apart, as those of a property are; rows of the copy are not. It has all
    of each row, or the first `width` elements. It is made in `into`, if that is given:
    an array of the shape and the type, in C order.
    """
    shape = tuple(array.shape) if width is None else (array.shape[0], width)
    made = np.empty(shape, array.dtype) if into is None else into
    rows = _rows_of(array, shape)
    if rows is not None and (rows.size >= LEAST or rows.size <= FEW):
        bytes_of = made.reshape(-1).view(np.uint8)
        if rows.size <= FEW:
            _places().read(rows, bytes_of)
        else:
            _landing_of(device_of(array)).read(rows, bytes_of)
    elif made.size:
        made[...] = _by_dialect(array)[:, :width] if width else _by_dialect(array)
    return made


def _by_dialect(array: Any) -> npt.NDArray[Any]:
    """Return a copy of an array with any strides."""
    known = array.in_dialect() if isinstance(array, Strided) else array
    return known.copy_to_host()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Rows:
    """Where bytes of an array are.

    Attributes
    ----------
    address, count : int
        Of the first row; how many there are.
    width, stride : int
        Bytes of a row, and from one to the next.
    """

    address: int
    count: int
    width: int
    stride: int

    @property
    def size(self) -> int:
        """How many bytes there are from the first one to the last."""
        return (self.count - 1) * self.stride + self.width


def _rows_of(array: Any, shape: tuple[int, ...]) -> _Rows | None:
    """Return where values are; None if there are none, or they are no rows."""
    item = array.dtype.itemsize
    if not array.size or 0 in shape:
        return None
    layout, _ = layout_of(tuple(array.shape), tuple(array.strides), item)
    if layout == "C" and shape == tuple(array.shape):
        return _Rows(address_of(array), array.size * item, 1, 1)
    if len(shape) != 2 or array.strides[1] != item or array.strides[0] > PIECE:
        return None
    width, stride = shape[1] * item, array.strides[0]
    return _Rows(address_of(array), shape[0], width, stride) if stride > 0 else None


class _FewBytes:
    """Page-locked memory for what is no more than a piece; one reader at a time."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._memory: Bytes = cuda.pinned_array(FEW, np.uint8)
        self._address = int(self._memory.ctypes.data)
        self._reading = threading.Lock()

    def read(self, rows: _Rows, into: Bytes) -> None:
        """Copy rows, without what is between them."""
        with self._reading:
            self._driver.read(self._address, rows.address, rows.size)
            _take(self._memory, into, rows.width, rows.stride)


class _Landing:
    """Pieces of page-locked memory of one device; one reader at a time has them."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._pieces: Bytes = cuda.pinned_array((PIECES, PIECE), np.uint8)
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), "featgraph-landing"
        )
        self._reading = threading.Lock()

    def read(self, rows: _Rows, into: Bytes) -> None:
        """Copy rows, without what is between them.

        An interrupt leaves copies on their way, which the stream has done before those
        of the next reader.
        """
        together = PIECE // rows.stride
        with self._reading:
            taken: list[Future[None] | None] = [None] * PIECES
            under_way: deque[tuple[int, Any, int, int]] = deque()

            def take_on() -> None:
                """Wait for the first piece that is under way, and have it taken on."""
                place, event, first, count = under_way.popleft()
                self._driver.wait_for(event)
                target = into[first * rows.width : (first + count) * rows.width]
                taken[place] = self._threads.submit(
                    _take, self._pieces[place], target, rows.width, rows.stride
                )

            for number, first in enumerate(range(0, rows.count, together)):
                place, count = number % PIECES, min(together, rows.count - first)
                if len(under_way) == PIECES // 2:
                    take_on()
                before = taken[place]
                if before is not None:
                    before.result()
                event = self._driver.start_read(
                    int(self._pieces[place].ctypes.data),
                    rows.address + first * rows.stride,
                    (count - 1) * rows.stride + rows.width,
                )
                under_way.append((place, event, first, count))
            while under_way:
                take_on()
            for before in taken:
                if before is not None:
                    before.result()


def _take(piece: Bytes, target: Bytes, width: int, stride: int) -> None:
    """Copy the rows of a piece; NumPy lets go of the interpreter."""
    if width == stride:
        target[:] = piece[: target.size]
        return
    count = target.size // width
    rows = piece[: count * stride].reshape(count, stride)
    target.reshape(count, width)[:] = rows[:, :width]


@cache
def _places() -> _FewBytes:
    """Return where few bytes land, of any device."""
    return _FewBytes()


_landings: dict[int, _Landing] = {}
_making = threading.Lock()


def _landing_of(device: int) -> _Landing:
    with _making:
        if device not in _landings:
            _landings[device] = _Landing()
        return _landings[device]
