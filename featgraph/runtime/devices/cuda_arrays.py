"""Arrays and bitvectors of the CUDA target."""

from __future__ import annotations

import sys
import threading
import weakref
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cuda import cuda
from featgraph._cuda_driver import Driver, address_of
from featgraph.errors import DeviceError, DeviceMemoryError
from featgraph.fold.codegen.module import ALIGNMENT
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.devices.cuda_launch import Launches
from featgraph.runtime.devices.cuda_record import Recording, Repetition
from featgraph.runtime.devices.cuda_trace import OPAQUE, TracedDriver

__all__ = ["BLOCK", "CudaArrays", "block_count"]

Array = Any
Words = Any
BLOCK = 256
#: Up to here arrays are read through page-locked memory.
_LANDING_BYTES = 1 << 16
#: Up to here one block counts a set: without atomics there is nothing to clear first.
_ONE_BLOCK_WORDS = 4096
#: Recorded supersteps that may be held at a time.
_COUNTS = 256


def block_count(threads: int, block: int | None = None) -> int:
    """Return how many blocks have that many threads, at least one."""
    return max(1, -(-threads // (block or BLOCK)))


def _aligned(array: Array) -> Array:
    """Return a new array, which kernels load pieces of rows from.

    The driver aligns what it allocates to 256 bytes; a memory manager that the user
    has put in its place might not.
    """
    if array.size and address_of(array) % ALIGNMENT:
        raise DeviceError(
            "memory of the device is not aligned",
            expected=f"addresses that are multiples of {ALIGNMENT}",
            fix="use the memory manager that numba-cuda comes with",
        )
    return array


class Own(threading.local):
    """What kernels of one thread work in; a replay writes to it while others run."""

    def __init__(self) -> None:
        self.scratch: dict[str, Array] = {}

    @cached_property
    def total(self) -> Array:
        """The place of a count."""
        return cuda.to_device(np.zeros(1, np.int64))

    @cached_property
    def total_address(self) -> int:
        """Where that is."""
        return address_of(self.total)


def _count_references(pool: list[Any]) -> int:
    """Return how many references to its first entry there are, seen by a loop."""
    for entry in pool:
        return sys.getrefcount(entry)
    return 0


#: The same of a set that only its pool holds.
_UNHELD = _count_references([object()])


class CudaArrays:
    """Device arrays of numba-cuda; all work on the default stream, in order."""

    def __init__(self) -> None:
        counts = cuda.pinned_array(_COUNTS, np.int64)
        self._driver = self.recorder = TracedDriver(
            Driver(), counts, Repetition, Recording
        )
        self._launch = Launches(self._driver)
        # Page-locked: the driver copies there without a detour. One reader at a time.
        self._landing = cuda.pinned_array(_LANDING_BYTES, np.uint8)
        self._landing_address = int(self._landing.ctypes.data)
        self._landed_total = self._landing[:8].view(np.int64)
        self._reading = threading.Lock()
        self._views: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )
        self._own = Own()
        self.full_sets: dict[int, Words] = {}

    # -- arrays

    def upload(self, array: npt.NDArray[Any], memory: Array | None = None) -> Array:
        """Copy a host array to the device, into some memory if it is of its type."""
        given = np.ascontiguousarray(array)
        wanted = given.shape, given.dtype
        if memory is not None and (memory.shape, memory.dtype) == wanted and given.size:
            source = int(given.ctypes.data)
            self._driver.write(address_of(memory), source, given.nbytes)
            return memory
        self._driver.note(*OPAQUE)
        try:
            made = cuda.to_device(given)
        except Exception as error:
            raise self._memory_error(array.nbytes, error) from error
        return _aligned(made)

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a device array to the host; waits for the device."""
        size = array.size * array.dtype.itemsize
        if not 0 < size <= _LANDING_BYTES:
            self._driver.note(*OPAQUE)
            return array.copy_to_host()  # type: ignore[no-any-return]
        with self._reading:
            self._driver.read(self._landing_address, address_of(array), size)
            landed = np.array(self._landing[:size])
        return np.ndarray(array.shape, array.dtype, landed)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""
        try:
            return _aligned(cuda.device_array(shape, dtype))
        except Exception as error:
            raise self._memory_error(
                int(np.prod(shape)) * np.dtype(dtype).itemsize, error
            ) from error

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array that kernels write before they use it.

        Lanes without a vertex of their own load entries there that they drop, so it
        begins as zeros: nothing is ever read that was never written.
        """
        made = self.empty(shape, dtype)
        self.fill(made, 0)
        return made

    def _memory_error(self, wanted: int, error: Exception) -> Exception:
        if "MEMORY" not in str(error).upper():
            return error
        free, total = cuda.current_context().get_memory_info()
        return DeviceMemoryError(
            "the device has not enough memory",
            got=f"{wanted / 1e9:.2f} GB asked for",
            expected=f"at most {free / 1e9:.2f} GB, of {total / 1e9:.0f} GB",
            fix="use a narrower dtype, fewer features, or target='cpu'",
        )

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        typed = np.dtype(array.dtype).type(value)
        item, size = typed.tobytes(), array.size * array.dtype.itemsize
        if size == 0:
            return
        if item == item[:1] * len(item) and size % 4:
            self._driver.set_bytes(address_of(array), item[0], size)
        elif item[:4] * (len(item) // 4) == item or item == item[:1] * len(item):
            word = int.from_bytes((item * 4)[:4], sys.byteorder)
            self._driver.set_words(address_of(array), word, size // 4)
        else:
            flat = array.reshape(array.size) if array.ndim > 1 else array
            blocks = min(block_count(flat.size), 1 << 12)
            self._launch(cuda_loops.fill, blocks, BLOCK, (flat, typed))

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one of the same type and shape."""
        size = source.size * source.dtype.itemsize
        if size:
            self._driver.copy(address_of(target), address_of(source), size)

    # -- bitvectors

    def _words(self, count: int) -> Words:
        """Return a bitvector without another reference.

        Freeing device memory waits for the device, so bitvectors are kept. A State has
        its own, and those of a superstep are those of the one before the last, so that
        supersteps repeat, in whatever run.
        """
        pool = self.recorder.pools.setdefault(count, [])
        for words in pool:
            if sys.getrefcount(words) == _UNHELD:
                return words
        pool.append(cuda.device_array(count, np.uint32))
        return pool[-1]

    def upload_words(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector with what `words` of the host has."""
        given = np.ascontiguousarray(words, np.uint32)
        uploaded = self._words(given.size)
        size = 4 * given.size
        self._driver.write(address_of(uploaded), int(given.ctypes.data), size)
        return uploaded

    def hold(self, words: Words | None) -> Words | None:
        """Return a set that stays as it is: itself, for none that is held is reused."""
        return words

    def empty_words(self, count: int) -> Words:
        """Return a bitvector of no vertices."""
        words = self._words(count)
        self._driver.set_words(address_of(words), 0, count)
        return words

    def _combine(self, function: Any, a: Words, b: Words) -> Words:
        out = self._words(a.size)
        self._launch(function, block_count(a.size), BLOCK, (a, b, out))
        return out

    def words_or(self, a: Words, b: Words) -> Words:
        """Return the union of two sets."""
        return self._combine(cuda_loops.words_or, a, b)

    def words_and(self, a: Words, b: Words) -> Words:
        """Return the intersection of two sets."""
        return self._combine(cuda_loops.words_and, a, b)

    def words_without(self, a: Words, b: Words) -> Words:
        """Return `a` without `b`."""
        return self._combine(cuda_loops.words_without, a, b)

    def leave_out(self, due: Words, on: Words, left: Words) -> Words:
        """Return what of `due` is in `on`, and add the rest to `left`."""
        out = self._words(due.size)
        arguments = due, on, left, out
        self._launch(cuda_loops.leave_out, block_count(due.size), BLOCK, arguments)
        return out

    def settle(self, due: Words, stale: Words, patched: Words) -> None:
        """Note that due vertices have been patched or, where stale, recomputed."""
        blocks = block_count(due.size)
        self._launch(cuda_loops.settle, blocks, BLOCK, (due, stale, patched))

    def count(self, words: Words) -> int:
        """Return the number of set bits; waits for the device."""
        arguments = (words, self._own.total)
        if words.size <= _ONE_BLOCK_WORDS:
            self._launch(cuda_loops.count_in_one_block, 1, BLOCK, arguments)
        else:
            self._driver.set_words(self._own.total_address, 0, 2)
            blocks = block_count(words.size)
            self._launch(cuda_loops.count_bits, blocks, BLOCK, arguments)
        with self._reading:
            self._driver.read(self._landing_address, self._own.total_address, 8)
            return int(self._landed_total[0])

    def edges_of(self, words: Words, offsets: Array) -> int:
        """Return how many edges a set has, by row offsets; waits for the device."""
        self._driver.set_words(self._own.total_address, 0, 2)
        blocks = min(block_count(words.size * 32), 1 << 12)
        arguments = (words, offsets, self._own.total)
        self._launch(cuda_loops.count_edges, blocks, BLOCK, arguments)
        with self._reading:
            self._driver.read(self._landing_address, self._own.total_address, 8)
            return int(self._landed_total[0])

    def near(self, words: Words, keys: Array, sign: float, limit: float) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""
        out = self._words(words.size)
        blocks = min(block_count(words.size * 32), 1 << 16)
        numbers = np.float64(sign), np.float64(limit)
        arguments = (words, self._rows(keys), *numbers, out)
        self._launch(cuda_loops.near, blocks, BLOCK, arguments)
        return out

    def first_key(self, words: Words, keys: Array, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; waits for the device."""
        out = self.upload(np.full(1, np.inf))
        blocks = min(block_count(keys.shape[0]), 1 << 12)
        arguments = (words, self._rows(keys), np.float64(sign), out)
        self._launch(cuda_loops.first_key, blocks, BLOCK, arguments)
        return float(self.download(out)[0])

    def _rows(self, array: Array) -> Array:
        """Return an array as one of shape (V, N), the same object each time."""
        if array.ndim == 2:
            return array
        view = self._views.get(array)
        if view is None:
            shape = (array.shape[0], array.size // max(array.shape[0], 1))
            self._views[array] = view = array.reshape(shape)
        return view
