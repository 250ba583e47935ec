"""Arrays of the CUDA target, and the control kernel of loops on the device.

`CudaArrays` allocates, copies and fills arrays, all in order on the default stream, and
owns the traced driver. `Own` is the working memory of a thread. `control` runs after
each superstep of a loop on the device (0039): it logs the superstep, updates the counts
of pending vertices, and sets the conditions of the CUDA graph.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import DeviceError
from featgraph.cuda import download as landing
from featgraph.cuda import elements
from featgraph.cuda.arrays import (
    empty,
    has_exposed,
    is_exposed,
    memory_bytes,
    on_shortage,
)
from featgraph.cuda.dialect import (
    clock_ns,
    cuda,
    device_function,
    int64,
    kernel,
    set_condition,
    uint32,
    uint64,
)
from featgraph.cuda.driver import Driver, address_of
from featgraph.cuda.foreign import Foreign, strided
from featgraph.cuda.launch import Launches
from featgraph.cuda.values import DeviceValues, Entries, Filled, Reordered, name_of
from featgraph.fold.printing.module import ALIGNMENT
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.devices.protocol import Values
from featgraph.runtime.devices.spare import SpareMemory, release_spare_memory
from featgraph.runtime.recording.control import (
    BEGUN,
    BELOW,
    BOUND,
    DONE,
    ENDS,
    EVERYTHING,
    HEADER,
    LARGEST,
    LAST,
    LATE,
    LEAST,
    LIMIT,
    MOST,
    MOST_LATE,
    NODE,
    OF_A_STEP,
    OF_AN_ENTRY,
    SIDE,
    TESTED,
    TURN,
    VERTICES,
    WORDS,
    At,
    DeviceLoop,
    LoopMemory,
    Shape,
)
from featgraph.runtime.recording.cuda_record import (
    ConditionalLoop,
    Recording,
    Repetition,
    Superstep,
)
from featgraph.runtime.recording.cuda_trace import (
    LANDED,
    OPAQUE,
    TracedDriver,
    read_landed,
)

__all__ = ["BLOCK", "CudaArrays", "block_count"]

Array = Any
Words = Any
#: Threads of a block of the runtime's kernels.
BLOCK = 256
#: Most bytes of an array that is read through the device's own page-locked memory;
#: larger ones are copied by `cuda.download`.
_LANDING_BYTES = 1 << 16
_WARP = 32
#: Supersteps in the body of a loop, after which its condition is tested. The test takes
#: 4.6 us, and the next superstep waits for the count of the last one (NVIDIA H200,
#: 2026-11-23).
_TOGETHER = 8
#: The same for a loop that can end after any superstep, each in an if node of its own.
_GATED_TOGETHER = 2
#: Up to this many single entries are set by memset calls of the driver; more by a
#: kernel, which needs two copies from the host.
_FEW_ENTRIES = 4
#: Most recordings at a time: rows of page-locked memory for their results.
_COUNTS = 256
#: Most memory that is kept of one deleted State, as a fraction of the device's memory:
#: half of the unused memory that the memory pool keeps (0044).
_KEPT_OF_ONE = 1 / 16

on_shortage(release_spare_memory)


def block_count(threads: int, block: int | None = None) -> int:
    """Return the number of blocks for some threads, at least one."""
    return max(1, -(-threads // (block or BLOCK)))


@lru_cache(1 << 10)
def _repeated(item: bytes) -> tuple[int, int]:
    """Return the period of an element's bytes, and its first four bytes as a word.

    The driver can set an array to the element if the period is 1 or 4; 0 for any other.
    """
    word = int.from_bytes((item * 4)[:4], sys.byteorder)
    if item == item[:1] * len(item):
        return 1, word
    return (4, word) if item == item[:4] * (len(item) // 4) else (0, 0)


def _aligned(array: Array) -> Array:
    """Return a new array after a check of its alignment for vector loads.

    The driver aligns allocations to 256 bytes; a user's memory manager may not.
    """
    if array.size and address_of(array) % ALIGNMENT:
        raise DeviceError(
            "memory of the device is not aligned",
            expected=f"addresses that are multiples of {ALIGNMENT}",
            fix="use the memory manager that numba-cuda comes with",
        )
    return array


class Own(threading.local):
    """Working memory of one thread's kernels on the GPU; replays write it, too."""

    def __init__(self) -> None:
        self.scratch: dict[str, Array] = {}

    def area(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        make: Callable[..., Array],
    ) -> Array:
        """Return memory with at least ``shape[0]`` rows, reused in later calls.

        `make` allocates it.
        """
        key = f"{name} {shape[1:]} {dtype}"
        area = self.scratch.get(key)
        if area is None or area.shape[0] < shape[0]:
            self.scratch[key] = area = make(shape, dtype)
        return area

    @cached_property
    def total(self) -> Array:
        """A count of vertices, then extremes of results: int64, shape (LANDED,)."""
        return cuda.to_device(np.zeros(LANDED, np.int64))

    @cached_property
    def extremes(self) -> Array:
        """A view of `total` as float64: extremes from index 1 on."""
        return self.total.view(np.float64)

    @cached_property
    def edges(self) -> Array:
        """The number of edges out of a set: int64, shape (1,), on the GPU."""
        return cuda.to_device(np.zeros(1, np.int64))

    @cached_property
    def flag(self) -> Array:
        """A flag set by kernels: int32, shape (1,), on the GPU."""
        return cuda.to_device(np.zeros(1, np.int32))

    @cached_property
    def total_address(self) -> int:
        """The address of `total`."""
        return address_of(self.total)

    @cached_property
    def loops(self) -> LoopMemory:
        """Parameters and results of a loop on the device."""
        words = cuda.to_device(np.zeros(WORDS, np.int64))
        landing = cuda.pinned_array(WORDS, np.int64)
        stop = cuda.mapped_array(1, np.int64)
        stop[0] = 0
        reals = words.view(np.float64)
        return LoopMemory(words, reals, landing, stop, address_of(words))


class CudaArrays:
    """Arrays of numba-cuda; all work runs in order on the default stream."""

    def __init__(self) -> None:
        counts = cuda.pinned_array((_COUNTS, LANDED), np.int64)
        self.driver = self.recorder = TracedDriver(
            Driver(), counts, Repetition, Recording, self._make_loop
        )
        self.launches = Launches(self.driver)
        # Page-locked, so that the driver copies directly. One reader at a time.
        self._landing = cuda.pinned_array(_LANDING_BYTES, np.uint8)
        self._landing_address = int(self._landing.ctypes.data)
        self._landed = self._landing[: 8 * LANDED].view(np.int64)
        self._reading = threading.Lock()
        self.own = Own()

    # -- arrays

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Copy values to the device, into `memory` if that has their shape and dtype.

        Without such memory, values that are on the device already are not copied.
        """
        if memory is not None:
            is_alike = (memory.shape, memory.dtype) == (values.shape, values.dtype)
            memory = memory if is_alike and memory.size else None
        if isinstance(values, Filled):
            made = (
                self.empty(values.shape, name_of(values.dtype))
                if memory is None
                else memory
            )
            self.fill(made, values.value)
            if values.apart is not None:
                self.place(made, values.apart)
            return made
        if isinstance(values, Reordered):
            values = self.reordered(values)
        if isinstance(values, DeviceValues):
            if memory is None:
                return _aligned(values.array)
            self.copy(memory, values.array)
            return memory
        given = np.ascontiguousarray(values)
        if memory is None:
            memory = self.empty(given.shape, name_of(given.dtype))
        if given.size:
            source = int(given.ctypes.data)
            self.driver.write(address_of(memory), source, given.nbytes)
        return memory

    def reordered(self, values: Reordered) -> DeviceValues:
        """Upload a host array, and reorder its rows on the device."""
        rows = Foreign(self.upload(values.array))
        return rows.copied(values.dtype, values.rows)

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a device array to the host; waits for the device."""
        size = array.size * array.dtype.itemsize
        if not 0 < size <= _LANDING_BYTES:
            self.driver.note(*OPAQUE)
            return landing.read(array)
        with self._reading:
            address = self.launches.address_of(array)
            self.driver.read(self._landing_address, address, size)
            landed = np.array(self._landing[:size])
        return np.ndarray(array.shape, array.dtype, landed)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array."""
        return _aligned(empty(shape, dtype))

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of zeros, for values that kernels compute.

        Lanes without a vertex load entries that they drop: these are initialized, too.
        """
        made = self.empty(shape, dtype)
        self.fill(made, 0)
        return made

    def make_spare_memory(self) -> SpareMemory:
        """Return a cache of memory of a graph's States for later ones."""
        address = self.launches.address_of
        return SpareMemory(
            self.recorder.lend_pools,
            lambda array: has_exposed() and is_exposed(address(array)),
            int(_KEPT_OF_ONE * memory_bytes()),
        )

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        size = array.size * array.dtype.itemsize
        if size == 0:
            return
        address = self.launches.address_of(array)
        if type(value) is int and value == 0 and size % 4 == 0:
            self.driver.set_words(address, 0, size // 4)
            return
        kind = array.dtype.type
        typed = value if type(value) is kind else kind(value)
        repeats, word = _repeated(typed.tobytes())
        if repeats == 1 and size % 4:
            self.driver.set_bytes(address, word & 0xFF, size)
        elif repeats:
            self.driver.set_words(address, word, size // 4)
        else:
            flat = array.reshape(array.size) if array.ndim > 1 else array
            blocks = min(block_count(flat.size), 1 << 12)
            self.launches(elements.fill, blocks, BLOCK, (flat, typed))

    def add_one(self, array: Array) -> None:
        """Add one to the first element."""
        self.launches(elements.add_one, 1, _WARP, (array,))

    def place(self, array: Array, entries: Entries) -> None:
        """Set single entries of an array, at flat indices, to values of the host."""
        count = entries.places.size
        if count <= _FEW_ENTRIES:
            self._place_few(address_of(array), entries)
            return
        given = self.upload(entries.places), self.upload(entries.values)
        blocks = min(block_count(count), 1 << 12)
        flat = strided(array, (array.size,), (array.dtype.itemsize,))
        self.launches(cuda_loops.place, blocks, BLOCK, (flat, *given))

    def _place_few(self, address: int, entries: Entries) -> None:
        """Set entries of the array at `address` by memset calls of words or bytes."""
        values = np.ascontiguousarray(entries.values)
        item, raw = values.dtype.itemsize, values.tobytes()
        size, put = 4, self.driver.set_words
        if item % 4:
            size, put = 1, self.driver.set_bytes
        for number, place in enumerate(entries.places.tolist()):
            for first in range(0, item, size):
                begin = item * number + first
                piece = int.from_bytes(raw[begin : begin + size], sys.byteorder)
                put(address + item * place + first, piece, 1)

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one of the same type and shape."""
        size = source.size * source.dtype.itemsize
        if size:
            address = self.launches.address_of
            self.driver.copy(address(target), address(source), size)

    def read_counts(
        self, extremes: int, others: int
    ) -> tuple[int, list[float], list[int]]:
        """Return the count, the extremes, and other counts after them, from `total`.

        Waits once for the device.
        """
        with self._reading:
            behind = 1 + extremes
            size = 8 * (behind + others)
            self.driver.read(self._landing_address, self.own.total_address, size)
            counts: list[int] = self._landed[behind : behind + others].tolist()
            return *read_landed(self._landed, extremes), counts

    def _make_loop(
        self, driver: Driver, cycle: Sequence[Superstep], shape: Shape
    ) -> DeviceLoop:
        """Return a loop of a cycle, with the control kernel after each superstep.

        The body of the loop has the cycle several times: see `_TOGETHER`.
        """
        memory = self.own.loops
        most = _GATED_TOGETHER if shape.is_exact else _TOGETHER
        together = list(cycle) * max(1, most // len(cycle))
        shape = replace(shape, together=len(together))
        # `control` is executed, too, when its launch is recorded. The header of zeros
        # has no handle of a node, so that no condition is set then.
        self.driver.set_words(memory.address, 0, 2 * HEADER)
        controlled: list[Superstep] = []
        for number, (work, counts) in enumerate(together):
            at = At._make(map(np.int64, shape.at(number)))
            given = self.own.total, self.own.extremes, memory.stop, memory.words
            arguments = at, *given, memory.reals
            launch = partial(self.launches, control, 1, _WARP, arguments)
            operations = self.driver.operations_of(launch)
            if OPAQUE in operations:
                raise DeviceError("a kernel that only the dialect can launch")
            if shape.is_exact or shape.seen:  # before the next superstep
                controlled.append(((*work, *counts, *operations), ()))
            else:
                controlled.append((work, (*counts, *operations)))
        graph = ConditionalLoop(driver, controlled, shape.is_exact)
        return DeviceLoop(self.driver, graph, memory, shape)


@device_function
def is_met(side, value, bound):  # type: ignore[no-untyped-def]
    """Whether a value is on a side of a bound; NaN is on none."""
    return value < bound if side == BELOW else value > bound


@device_function
def announce(words, at, turn, next_turn, number):  # type: ignore[no-untyped-def]
    """Update the pending counts of all foldmaps after a superstep of foldmap `turn`.

    `number` vertices were committed. Returns the count of foldmap `next_turn`.
    """
    vertices, count = words[VERTICES], int64(0)
    for other in range(at.turns):
        pending = words[uint32(HEADER + other)]
        if number == vertices:
            pending = int64(EVERYTHING)
        elif other == turn:
            pending = number
        elif pending != EVERYTHING:
            pending += number
        words[uint32(HEADER + other)] = pending
        if other == next_turn:
            count = pending
    return count


@device_function
def close_gates(words, at, gates):  # type: ignore[no-untyped-def]
    """Clear the conditions of the later supersteps in the body of the loop."""
    for other in range(at.number + 1, at.gates):
        set_condition(uint64(words[uint32(gates + other)]), uint32(0))


@kernel(cache=True)
def control(at, total, extremes, stop, words, reals):  # type: ignore[no-untyped-def]
    """Log a superstep that has committed ``total[0]`` vertices; one thread.

    A negative number is an error code of ranks, and ends the loop. Without gates, the
    condition of the while node is set after the last superstep of the body. With gates,
    it is cleared after the superstep at which the loop ends, and so are the conditions
    of the later supersteps. `at` is the position of the superstep: see `At`.
    """
    if cuda.grid(1) != 0:
        return
    # All loads are issued together: each takes half a microsecond.
    place = uint32(at.number) % uint32(at.length)
    first = uint32(HEADER + at.turns)
    gates = uint32(first + OF_A_STEP * at.length)
    own = uint32(first + OF_A_STEP * place)
    is_whole = place + 1 == at.length
    following = uint32(first if is_whole else own + OF_A_STEP)
    is_last = at.number + 1 == at.together
    number, now = total[0], clock_ns()
    done, limit, ended = words[DONE], words[LIMIT], words[ENDS]
    begun, last, late = words[BEGUN], words[LAST], words[LATE]
    most_late, most, node = words[MOST_LATE], words[MOST], words[NODE]
    turn, next_turn = words[own + TURN], words[following + TURN]
    least, largest = words[following + LEAST], words[following + LARGEST]
    side, tested, bound = words[SIDE], words[own + TESTED], reals[BOUND]
    # `stop` is in host memory, and its load is slow. It is not loaded in the last
    # superstep of the body, which the next repetition waits for.
    stopped = int64(0) if is_last else int64(cuda.ldcv(stop, 0))
    if done == 0:
        words[BEGUN] = begun = last = now
    count = announce(words, at, turn, next_turn, number)
    late = int64(0) if least <= count <= largest else late + now - last
    ends = count == 0 or late > most_late or done + 1 >= limit or number < 0
    if tested != 0:
        ends = ends or is_met(side, extremes[uint32(tested)], bound)
    ended = ended != 0 or stopped != 0 or now - begun > most
    entry = uint32(gates + at.gates + (OF_AN_ENTRY + at.seen) * done)
    words[entry], words[entry + uint32(1)] = number, now - last
    for other in range(at.seen):
        words[uint32(entry + OF_AN_ENTRY + other)] = total[uint32(1 + other)]
    words[DONE], words[LAST], words[LATE] = done + 1, now, late
    words[ENDS] = 1 if ends or ended else 0
    # With gates, an end by `stop` or the time limit waits for the end of a cycle.
    # Without gates, the rest of the body runs in any case.
    ends = ends or (ended and (is_whole or at.gates == 0))
    sets_condition = ends if at.gates > 0 else is_last
    if sets_condition and node != 0:
        close_gates(words, at, gates)
        set_condition(uint64(node), uint32(0 if ends else 1))
