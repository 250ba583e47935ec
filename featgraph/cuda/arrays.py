"""GPU arrays of the package: allocation, copies, and launches of kernels over them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DeviceMemoryError
from featgraph.cuda import download, elements
from featgraph.cuda.dialect import cuda
from featgraph.cuda.driver import Driver, Streams, address_of
from featgraph.cuda.launch import Launches, PlainDriver
from featgraph.cuda.memory import Strided, array_of, has_lent, is_lent, unused_bytes

__all__ = [
    "BLOCK",
    "copy",
    "copy_of",
    "current_gpu",
    "empty",
    "filled",
    "has_lent",
    "is_lent",
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
]

#: Threads of a block, and most blocks of a kernel that goes over elements.
BLOCK, MOST_BLOCKS = 256, 1 << 14


#: Functions that release cached memory; each returns whether it has released any.
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
    """Return an uninitialized GPU array; DeviceMemoryError if it does not fit."""
    try:
        return array_of(shape, dtype)
    except Exception as error:
        wanted = math.prod(shape) * np.dtype(dtype).itemsize
        told = memory_error(wanted, error)
        is_short = isinstance(told, DeviceMemoryError)
        released = [release() for release in _releases] if is_short else []
        if not any(released):
            raise told from error
    try:
        return array_of(shape, dtype)
    except Exception as error:
        raise memory_error(wanted, error) from error


def piece_of(array: Any, begin: int, nbytes: int, item: int) -> Strided:
    """Return a view of some bytes of an array as unsigned integers of `item` bytes."""
    dtype, address = np.dtype(f"u{item}"), address_of(array) + begin
    return Strided(array, address, (nbytes // item,), (item,), dtype)


def filled(shape: tuple[int], value: int, dtype: Any) -> Any:
    """Return an array with one integer everywhere."""
    made = empty(shape, dtype)
    item = np.dtype(dtype).type(value).tobytes()
    if item != item[:1] * len(item):
        launch_over(elements.fill, made.size, made, value)
    elif made.size:  # by the driver, without a kernel to compile
        _driver().set_bytes(address_of(made), item[0], made.size * len(item))
    return made


def copy_of(array: Any) -> Any:
    """Return a copy of a GPU array; asynchronous."""
    made = empty(tuple(array.shape), array.dtype)
    copy(made, array)
    return made


def copy(target: Any, source: Any) -> None:
    """Copy an array to another one of the same dtype and shape; asynchronous."""
    size = source.size * source.dtype.itemsize
    if size:
        _driver().copy(address_of(target), address_of(source), size)


def upload(values: npt.NDArray[Any]) -> Any:
    """Return a copy of a host array on the GPU."""
    given = np.ascontiguousarray(values)
    made = empty(given.shape, given.dtype)
    write(made, given)
    return made


def write(target: Any, values: npt.NDArray[Any]) -> None:
    """Copy an array of the host to the first elements of one on the GPU."""
    given = np.ascontiguousarray(values)
    if given.size:
        _driver().write(address_of(target), int(given.ctypes.data), given.nbytes)


def read(array: Any) -> npt.NDArray[Any]:
    """Return a copy on the host; waits for the GPU."""
    return download.read(array)


class _Found(threading.local):
    """An int64 on the GPU for the result of a kernel, one a thread."""

    def __init__(self) -> None:
        self.place = empty((1,), np.int64)


@cache
def _found() -> _Found:
    return _Found()


def place_found() -> Any:
    """Return the thread's int64 on the GPU, set to `NONE_LOST`.

    A kernel lowers it; the thread must call `read_found` before the next call.
    """
    place = _found().place
    _driver().set_words(address_of(place), elements.NONE_LOST & 0xFFFFFFFF, 2)
    return place


def read_found() -> int:
    """Return the value of `place_found`; waits for the GPU."""
    return int(download.read(_found().place)[0])


def pinned(size: int) -> npt.NDArray[np.uint8]:
    """Return page-locked memory of the host, of `size` bytes, 1 or more."""
    made: npt.NDArray[np.uint8] = cuda.pinned_array(size, np.uint8)
    return made


def streams() -> Streams:
    """Return the driver's operations on streams: copies, events and waits."""
    return _driver().streams


def synchronize() -> None:
    """Wait for all work of the default stream."""
    _driver().wait_for_stream(0)


def wait_for_stream(stream: int) -> None:
    """Wait for a stream of another library, by its handle."""
    _driver().wait_for_stream(stream)


def current_gpu() -> int:
    """Return the number of the GPU that kernels run on."""
    return _driver().current_gpu()


def memory_bytes() -> int:
    """Return the bytes of memory of the context's GPU."""
    return _driver().memory_bytes()


def multiprocessors() -> int:
    """Return how many blocks run at a time where one fits a multiprocessor."""
    return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def launch(kernel: Any, blocks: int, *arguments: Any, threads: int = 0) -> None:
    """Launch a kernel with blocks of some threads, or of `BLOCK`; asynchronous."""
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
        got=f"{wanted / 1e9:.2f} GB asked for",
        expected=f"at most {free / 1e9:.2f} GB, of {total / 1e9:.0f} GB",
        fix="use a narrower dtype, fewer features, or target='cpu'",
    )
