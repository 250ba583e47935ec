"""GPU arrays of the package: allocation, copies, and launches of kernels over them.

All work runs in order on the default stream. `empty` allocates, `upload`, `write` and
`read` copy between host and GPU, and `launch` and `launch_over` launch kernels.
`write_pieces` copies data that threads of the host produce piece by piece, through
page-locked memory: the reverse of `featgraph.cuda.download`.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceMemoryError
from featgraph.cuda import download, elements
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import Driver, Streams, address_of
from featgraph.cuda.launch import Launches, PlainDriver
from featgraph.cuda.memory import (
    Strided,
    array_of,
    has_exposed,
    is_exposed,
    unused_bytes,
)

__all__ = [
    "BLOCK",
    "Mirror",
    "copy",
    "copy_of",
    "current_gpu",
    "empty",
    "filled",
    "has_exposed",
    "is_exposed",
    "launch",
    "launch_over",
    "memory_bytes",
    "memory_error",
    "multiprocessors",
    "on_shortage",
    "piece_of",
    "pinned",
    "place_found",
    "read",
    "read_found",
    "streams",
    "synchronize",
    "upload",
    "wait_for_stream",
    "write",
    "write_pieces",
]

#: Number of threads of a block, and most blocks of a grid-stride kernel over elements.
BLOCK, MOST_BLOCKS = 256, 1 << 14


#: Functions that release cached memory; each returns whether it released any.
_releases: list[Callable[[], bool]] = []


def on_shortage(release: Callable[[], bool]) -> None:
    """Register a function that releases cached memory after a failed allocation."""
    _releases.append(release)


@cache
def _driver() -> Driver:
    """Return the driver, made at the first use."""
    return Driver()


@cache
def _launches() -> Launches:
    """Return the launcher of this package's kernels."""
    return Launches(PlainDriver(_driver()))


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialized GPU array; DeviceMemoryError if it does not fit.

    After a first failure, cached memory is released (`on_shortage`).
    """
    try:
        return array_of(shape, dtype)
    except Exception as error:
        wanted = math.prod(shape) * np.dtype(dtype).itemsize
        failure = memory_error(wanted, error)
        is_short = isinstance(failure, DeviceMemoryError)
        released = [release() for release in _releases] if is_short else []
        if not any(released):
            raise failure from error
    try:
        return array_of(shape, dtype)
    except Exception as error:
        raise memory_error(wanted, error) from error


def piece_of(array: Any, begin: int, nbytes: int, item: int) -> Strided:
    """Return a view of some bytes of an array as unsigned integers of `item` bytes."""
    dtype, address = np.dtype(f"u{item}"), address_of(array) + begin
    return Strided(array, address, (nbytes // item,), (item,), dtype)


def filled(shape: tuple[int, ...], value: int, dtype: Any) -> Any:
    """Return an array filled with 0, or a vector with another integer; asynchronous."""
    made = empty(shape, dtype)
    item = np.dtype(dtype).type(value).tobytes()
    if item != item[:1] * len(item):
        launch_over(elements.fill, made.size, made, value)
    elif made.size:  # equal bytes: the driver fills them, without a kernel to compile
        _driver().set_bytes(address_of(made), item[0], made.size * len(item))
    return made


def copy_of(array: Any) -> Any:
    """Return a copy of a GPU array; asynchronous."""
    made = empty(tuple(array.shape), array.dtype)
    copy(made, array)
    return made


def copy(target: Any, source: Any) -> None:
    """Copy an array to another of the same dtype and shape; asynchronous."""
    size = source.size * source.dtype.itemsize
    if size:
        _driver().copy(address_of(target), address_of(source), size)


def upload(values: npt.NDArray[Any]) -> Any:
    """Return a copy of a host array on the GPU."""
    source = np.ascontiguousarray(values)
    made = empty(source.shape, source.dtype)
    write(made, source)
    return made


def write(target: Any, values: npt.NDArray[Any]) -> None:
    """Copy a host array to the first elements of a GPU array, in C order."""
    source = np.ascontiguousarray(values)
    if source.size:
        _driver().write(address_of(target), int(source.ctypes.data), source.nbytes)


def read(array: Any) -> npt.NDArray[Any]:
    """Return a copy of a GPU array on the host; waits for the GPU."""
    return download.read(array)


class _Found(threading.local):
    """An int64 on the GPU for the result of a kernel, one for each host thread."""

    def __init__(self) -> None:
        self.place = empty((1,), np.int64)


@cache
def _found() -> _Found:
    return _Found()


def place_found() -> Any:
    """Return the calling thread's int64 on the GPU, set to `NONE_LOST`.

    A kernel lowers it to an index; the thread must call `read_found` before it calls
    this function again.
    """
    place = _found().place
    _driver().set_words(address_of(place), elements.NONE_LOST & 0xFFFFFFFF, 2)
    return place


def read_found() -> int:
    """Return the int64 of the last `place_found`; waits for the GPU."""
    return int(download.read(_found().place)[0])


def pinned(size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes of page-locked host memory; at least one."""
    made: npt.NDArray[np.uint8] = cuda.pinned_array(size, np.uint8)
    return made


#: Number of bytes -> page-locked memory of mirrors that are gone.
_unused: dict[int, list[npt.NDArray[np.uint8]]] = {}


class Mirror:
    """Page-locked memory beside the first bytes of a GPU array; one user at a time.

    Later mirrors of the same size use the memory, which takes up to 3 ms to make.

    Parameters
    ----------
    array : array on the GPU
    size : int
        The number of bytes.

    Attributes
    ----------
    bytes : ndarray of uint8, (size,)
        Written only while no copy from it is pending: after `read`, none is.
    """

    def __init__(self, array: Any, size: int) -> None:
        unused = _unused.setdefault(size, [])
        try:
            self.bytes = unused.pop()
        except IndexError:
            self.bytes = pinned(size)
        ending = weakref.finalize(self, unused.append, self.bytes)
        ending.atexit = False
        self._own, self._there = int(self.bytes.ctypes.data), address_of(array)

    def write(self, stop: int) -> None:
        """Copy the bytes before `stop` to the GPU; asynchronous."""
        _driver().streams.start_write(self._there, self._own, stop, 0)

    def read(self, begin: int, stop: int) -> None:
        """Copy some bytes from the GPU, and wait for all work."""
        _driver().read(self._own + begin, self._there + begin, stop - begin)


def streams() -> Streams:
    """Return the driver's stream operations: copies, events and waits."""
    return _driver().streams


def synchronize() -> None:
    """Wait for all work on the default stream."""
    _driver().wait_for_stream(0)


def wait_for_stream(stream: int) -> None:
    """Wait for a stream of another library, by its handle."""
    _driver().wait_for_stream(stream)


def current_gpu() -> int:
    """Return the ordinal of the GPU on which kernels run."""
    return _driver().current_gpu()


def memory_bytes() -> int:
    """Return the bytes of memory of the context's GPU."""
    return _driver().memory_bytes()


def multiprocessors() -> int:
    """Return the number of multiprocessors of the GPU."""
    return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def launch(kernel: Any, blocks: int, *arguments: Any, threads: int = 0) -> None:
    """Launch a kernel with `threads` per block, default `BLOCK`; asynchronous."""
    _launches()(kernel, blocks, threads or BLOCK, arguments)


def launch_over(kernel: Any, count: int, *arguments: Any) -> None:
    """Launch a kernel with a grid-stride loop over `count` elements."""
    if count:
        launch(kernel, min(-(-count // BLOCK), MOST_BLOCKS), *arguments)


def memory_error(wanted: int, error: Exception) -> Exception:
    """Return the error to raise after an allocation of `wanted` bytes has failed."""
    if "MEMORY" not in str(error).upper():
        return error
    free, total = cuda.current_context().get_memory_info()
    free += unused_bytes()
    return DeviceMemoryError(
        "the device has not enough memory",
        got=f"{wanted / 1e9:.2f} GB requested",
        expected=f"at most {free / 1e9:.2f} GB, of {total / 1e9:.0f} GB",
        fix="use a narrower dtype, fewer features, or target='cpu'",
    )


# -- pieces that threads of the host fill

Bytes = npt.NDArray[np.uint8]
#: ``fill(number, piece)`` fills a piece, and returns the byte range to copy.
Fill = Callable[[int, Bytes], tuple[int, int]]
#: Most threads that fill pieces: a dozen read and check files at the speed of the bus.
_MOST_THREADS = 16


class _Staging:
    """Pieces of page-locked memory of one GPU; one writer at a time."""

    def __init__(self) -> None:
        self._pieces: list[Bytes] = []
        self._events: list[Any] = []
        self._writing = threading.Lock()

    def write(
        self, count: int, room: int, threads: int, fill: Fill, address: int
    ) -> None:
        """Copy `count` pieces, each filled by a thread, to an address of the GPU.

        See `write_pieces`.
        """
        with self._writing:
            threads = min(threads, _MOST_THREADS)
            self._make(min(2 * threads, max(count, 1)), room)
            driver, slots = streams(), len(self._pieces)
            # Half of the slots are being filled, half are in flight to the GPU.
            ahead, written = -(-slots // 2), 0
            filled: deque[Future[tuple[int, int]]] = deque()
            try:
                with ThreadPoolExecutor(threads, "featgraph-staging") as pool:
                    for number in range(count + ahead):
                        if number < count:
                            slot = number % slots
                            if number >= slots:  # its last copy must have ended
                                driver.wait(self._events[slot])
                            filled.append(pool.submit(fill, number, self._pieces[slot]))
                        if number >= ahead and filled:
                            begin, end = filled.popleft().result()
                            slot, size = (number - ahead) % slots, end - begin
                            first = int(self._pieces[slot].ctypes.data) + begin
                            driver.start_write(address + written, first, size, 0)
                            driver.mark(self._events[slot], 0)
                            written += size
            finally:  # also after an error, copies must end before slots are reused
                synchronize()

    def _make(self, count: int, room: int) -> None:
        """Allocate up to `count` pieces of `room` bytes or more."""
        if self._pieces and self._pieces[0].size < room:
            self._pieces, self._events = [], []
        missing = count - len(self._pieces)
        if missing > 0:
            made = pinned(missing * room).reshape(missing, room)
            self._pieces += list(made)
            self._events += [streams().make_event() for _ in range(missing)]


#: Ordinal of a GPU -> its pieces of page-locked memory.
_stagings: dict[int, _Staging] = {}
_making = threading.Lock()


def write_pieces(
    count: int, room: int, threads: int, fill: Fill, target: Any, begin: int = 0
) -> None:
    """Copy pieces one after another to a GPU array; wait for all copies.

    Parameters
    ----------
    count : int
        Number of pieces.
    room : int
        Most bytes of a piece.
    threads : int
        Most threads that fill pieces.
    fill : callable
        ``fill(number, piece)`` fills a piece, and returns the byte range to copy;
        called once for each piece, on any thread.
    target : array
        The array on the GPU.
    begin : int
        Byte offset in the array of the first piece.

    Raises
    ------
    Exception
        The error of the first piece whose `fill` failed, after all threads have ended.
    """
    with _making:
        staging = _stagings.setdefault(current_gpu(), _Staging())
    staging.write(count, room, threads, fill, address_of(target) + begin)
