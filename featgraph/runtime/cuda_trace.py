"""What a superstep asks of the CUDA driver, remembered so as to be asked again."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from featgraph.errors import DeviceError
from featgraph.runtime.arguments import PackedArguments
from featgraph.runtime.cuda_record import mentions

__all__ = ["OPAQUE", "RecordedSuperstep", "TracedDriver"]

#: Stands for what no recording can do again: memory that comes from the host, a kernel
#: that has to be compiled first.
OPAQUE = ("opaque",)
Operations = list[tuple[Any, ...]]
#: Recordings that are kept.
_MOST_KEPT = 32
#: Bytes of the count of committed vertices.
_COUNT_BYTES = 8


class RecordedSuperstep:
    """The operations of a superstep as one launch, and another that counts.

    Parameters
    ----------
    work, count : object
        The driver's recordings; `count` reads to `landed`.
    landed : ndarray of int64, shape (1,)
        Page-locked.
    """

    def __init__(self, work: Any, count: Any, landed: npt.NDArray[Any]) -> None:
        self._work = work
        self._count = count
        self._landed = landed

    def launch(self) -> None:
        """Have the device run the superstep behind what it was given before.

        What it is given next need not wait until the committed vertices are counted.
        """
        self._work.launch()
        self._count.launch_behind(self._work)

    def wait(self) -> int:
        """Wait for the launch; return how many vertices it committed."""
        self._count.wait()
        return int(self._landed[0])


class _Traces(threading.local):
    """What a thread traces."""

    operations: Operations | None = None
    is_odd = False


class TracedDriver:
    """Passes calls on to the driver, and remembers those of a thread while it traces.

    Parameters
    ----------
    driver : Driver
    landing : ndarray of int64
        Page-locked memory: a place for the count of each recording.
    record : callable
        ``record(driver, operations)`` makes a `Recording`.
    """

    def __init__(
        self, driver: Any, landing: npt.NDArray[Any], record: Callable[..., Any]
    ) -> None:
        self._driver = driver
        self._record = record
        self._landing = landing
        self._free = list(range(landing.size))
        self._own = _Traces()
        self._recorded: deque[tuple[Operations, RecordedSuperstep]] = deque(
            maxlen=_MOST_KEPT
        )

    # -- tracing

    def begin(self) -> None:
        """Begin to remember what this thread asks for."""
        self._own.operations = []
        self._own.is_odd = not self._own.is_odd

    @property
    def is_odd(self) -> bool:
        """Whether this thread has traced an odd number of supersteps."""
        return self._own.is_odd

    def end(self) -> Operations | None:
        """Return what was asked for since; None if that cannot be recorded.

        It can if all of it stays on the device but for one count.
        """
        operations = self._own.operations
        self._own.operations = None
        if not operations or OPAQUE in operations:
            return None
        sizes = [o[3] for o in operations if o[0] == "read"]
        return operations if sizes == [_COUNT_BYTES] else None

    def record(self, operations: Operations) -> RecordedSuperstep | None:
        """Return a traced superstep as one launch; None if too many are held.

        Those of late are kept: a run that is repeated finds its own again.
        """
        for known, made in self._recorded:
            if known == operations:
                return made
        try:
            place = self._free.pop()
        except IndexError:
            return None
        try:
            made = self._make(operations, place)
        except DeviceError:  # the host goes on as before
            self._free.append(place)
            return None
        weakref.finalize(made, self._free.append, place)
        self._recorded.append((operations, made))
        return made

    def _make(self, operations: Operations, place: int) -> RecordedSuperstep:
        landed = self._landing[place : place + 1]
        total = next(o[2] for o in operations if o[0] == "read")
        work: Operations = []
        count: Operations = []
        for o in operations:
            (count if mentions(o, total, _COUNT_BYTES) else work).append(o)
        own = [("read", int(landed.ctypes.data), *o[2:]) if o[0] == "read" else o
               for o in count]  # fmt: skip
        counting = self._record(self._driver, own)
        return RecordedSuperstep(self._record(self._driver, work), counting, landed)

    def note(self, *operation: Any) -> None:
        """Remember an operation if this thread traces."""
        operations = self._own.operations
        if operations is not None:
            operations.append(operation)

    # -- the driver's calls

    def launch(
        self,
        handle: Any,
        blocks: int,
        threads: int,
        stream: Any,
        packed: PackedArguments,
    ) -> None:
        """Launch a kernel with packed arguments."""
        self._driver.launch(handle, blocks, threads, stream, packed.address)
        operations = self._own.operations
        if operations is not None:
            operation = "launch", handle, blocks, threads, stream, packed.copy_words()
            operations.append(operation)

    def set_words(self, address: int, value: int, count: int) -> None:
        """Set `count` words of 32 bits."""
        self._driver.set_words(address, value, count)
        self.note("set_words", address, value, count)

    def set_bytes(self, address: int, value: int, count: int) -> None:
        """Set `count` bytes."""
        self._driver.set_bytes(address, value, count)
        self.note("set_bytes", address, value, count)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes within the device."""
        self._driver.copy(target, source, size)
        self.note("copy", target, source, size)

    def write(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes from the host, which may then write there again."""
        self._driver.write(target, source, size)
        self.note(*OPAQUE)

    def read(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes to page-locked memory, and wait for all work."""
        self._driver.read(target, source, size)
        self.note("read", target, source, size)
