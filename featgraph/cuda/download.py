"""Copies of GPU arrays to the host through page-locked memory.

For pageable memory, the driver copies on one thread through its own buffer, and that
thread takes all page faults: 3 to 4 GB/s on a bus of 50 GB/s. `read` copies large
arrays piece by piece to page-locked memory, while several threads copy earlier pieces
to their destination. Small arrays are copied through one page-locked buffer.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda.arguments import layout_of
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import Driver, address_of, device_of
from featgraph.cuda.memory import Strided

__all__ = ["LEAST", "read"]

Bytes = npt.NDArray[np.uint8]
#: Arrays of `LEAST` bytes or more are copied in pieces, those of `FEW` bytes or less
#: through one small buffer. The dialect copies the others.
LEAST, FEW = 1 << 22, 1 << 17
#: Bytes of a piece, and number of pieces: half of them are in flight from the GPU, half
#: are being copied to their destination.
PIECE, PIECES = 1 << 21, 16
#: Most threads that copy pieces.
_MOST_THREADS = PIECES // 2


def read(
    array: Any, width: int | None = None, into: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Return a copy of a GPU array on the host; waits for the GPU.

    Parameters
    ----------
    array : array on the GPU
        Its rows may be padded, like the rows of a property.
    width : int, optional
        Copy only the first `width` elements of each row.
    into : ndarray, optional
        Destination of the shape and dtype of the result, in C order.

    Returns
    -------
    ndarray
        The values without padding; `into` if given.
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
    """Return a host copy of an array with any strides, by the dialect."""
    known = array.in_dialect() if isinstance(array, Strided) else array
    return known.copy_to_host()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Rows:
    """The layout of an array's rows in memory.

    Attributes
    ----------
    address, count : int
        Address of the first row, and number of rows.
    width, stride : int
        Bytes of a row, and from one row to the next.
    """

    address: int
    count: int
    width: int
    stride: int

    @property
    def size(self) -> int:
        """Bytes from the begin of the first row to the end of the last one."""
        return (self.count - 1) * self.stride + self.width


def _rows_of(array: Any, shape: tuple[int, ...]) -> _Rows | None:
    """Return the layout of rows; None if the array is empty, or has other strides."""
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
    """Page-locked memory for at most `FEW` bytes; one reader at a time."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._memory: Bytes = cuda.pinned_array(FEW, np.uint8)
        self._address = int(self._memory.ctypes.data)
        self._reading = threading.Lock()

    def read(self, rows: _Rows, into: Bytes) -> None:
        """Copy rows, without their padding."""
        with self._reading:
            self._driver.read(self._address, rows.address, rows.size)
            _take(self._memory, into, rows.width, rows.stride)


class _Landing:
    """Pieces of page-locked memory of one device; one reader at a time."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._pieces: Bytes = cuda.pinned_array((PIECES, PIECE), np.uint8)
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), "featgraph-landing"
        )
        self._reading = threading.Lock()

    def read(self, rows: _Rows, into: Bytes) -> None:
        """Copy rows, without their padding.

        After an interrupt, copies to the pieces may still be in flight. Those of the
        next reader follow them, since all run on the default stream.
        """
        together = PIECE // rows.stride
        with self._reading:
            taken: list[Future[None] | None] = [None] * PIECES
            in_flight: deque[tuple[int, Any, int, int]] = deque()

            def start_copy() -> None:
                """Wait for the first piece in flight, and copy it on a thread."""
                place, event, first, count = in_flight.popleft()
                self._driver.wait_for(event)
                target = into[first * rows.width : (first + count) * rows.width]
                taken[place] = self._threads.submit(
                    _take, self._pieces[place], target, rows.width, rows.stride
                )

            for number, first in enumerate(range(0, rows.count, together)):
                place, count = number % PIECES, min(together, rows.count - first)
                if len(in_flight) == PIECES // 2:
                    start_copy()
                before = taken[place]
                if before is not None:  # a thread may still read the piece
                    before.result()
                event = self._driver.start_read(
                    int(self._pieces[place].ctypes.data),
                    rows.address + first * rows.stride,
                    (count - 1) * rows.stride + rows.width,
                )
                in_flight.append((place, event, first, count))
            while in_flight:
                start_copy()
            for before in taken:
                if before is not None:
                    before.result()


def _take(piece: Bytes, target: Bytes, width: int, stride: int) -> None:
    """Copy the rows of a piece; NumPy releases the GIL."""
    if width == stride:
        target[:] = piece[: target.size]
        return
    count = target.size // width
    rows = piece[: count * stride].reshape(count, stride)
    target.reshape(count, width)[:] = rows[:, :width]


@cache
def _places() -> _FewBytes:
    """Return the memory for few bytes, of any device."""
    return _FewBytes()


#: Ordinal of a GPU -> its pieces of page-locked memory.
_landings: dict[int, _Landing] = {}
_making = threading.Lock()


def _landing_of(device: int) -> _Landing:
    """Return the page-locked pieces of a device, allocated at the first use."""
    with _making:
        if device not in _landings:
            _landings[device] = _Landing()
        return _landings[device]
