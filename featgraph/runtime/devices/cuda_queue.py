"""Memory and parameters of a GPU loop over supersteps of few vertices (0042).

Marks and gathered entries have all vertices, and their initial values between loops, so
that all runs on the device can share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.cuda.driver import address_of
from featgraph.device import queue_cuda as words_of
from featgraph.fold.printing.module import Queue
from featgraph.program.active import word_count
from featgraph.runtime.recording.device_loop import WORDS

__all__ = ["LOGGED", "Keys", "LoopReport", "QueueMemory"]

Array = Any
Words = Any
#: Most supersteps in the log.
LOGGED = (WORDS - words_of.LOG) // words_of.OF_AN_ENTRY
#: Entries of the log that are read at first; most runs have no more.
_READ_AT_FIRST = 40
#: Prefix of the names of its memory.
_OWN = "queue"


@dataclass
class LoopReport:
    """The results of a loop.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep.
    seconds : list of float
        Seconds of each superstep.
    active, edges : int
        Active vertices after the loop (near ones, if some wait), and their out-edges.
    waiting : int
        Number of waiting vertices.
    limits : tuple of float
        The limit of each superstep, and of the next one, if vertices wait.
    stages : int
        How often a stage has run between them.
    has_ended : bool
        Whether the last one has committed nothing.
    """

    counts: list[int]
    seconds: list[float]
    active: int
    edges: int
    waiting: int = 0
    limits: tuple[float, ...] = ()
    stages: int = 0
    has_ended: bool = False


@dataclass
class Keys:
    """The keys that separate near vertices from far ones.

    Attributes
    ----------
    number : int
        Index of the property of keys; -1 if no vertices wait.
    sign, delta, limit : float
        Vertices with ``sign * key <= limit`` are near; `delta` is the step of the
        limit.
    """

    number: int = -1
    sign: float = 1.0
    delta: float = 0.0
    limit: float = 0.0


class QueueMemory:
    """The arrays of loops of one kernel on graphs of one size.

    Parameters
    ----------
    device : CudaDevice
    queue : Queue
    identities : sequence
        The initial value of each array of gathered entries.
    vertex_count : int
    most : int
        Most sources and edges of a superstep, together.
    is_staged : bool
        Whether a stage may leave more sources than that.
    """

    def __init__(
        self,
        device: Any,
        queue: Queue,
        identities: Sequence[Any],
        vertex_count: int,
        most: int,
        is_staged: bool = False,
    ) -> None:
        self._device, self._most, self._count = device, most, vertex_count
        # Each vertex occurs once in a list. Lists that are passed on are double
        # buffers: a superstep reads one and fills the other.
        self._size = size = max(min(most, vertex_count), 1)
        if is_staged:
            self._size = size = max(vertex_count, 1)
        sources, begins = (
            self._area(name, (2 * size,), "int32") for name in ("sources", "begins")
        )
        due = self._area("due", (size,), "int32")
        chunks = self._area("chunks", (2 * (most // 32 + 2),), "int32")
        marks = self._filled("marks", "int32", (), 0)
        self._lists = sources, begins, chunks, due, marks
        self._marks_steps = queue.marks_steps
        self._far: Any = self._far_lists() if "far_lists" in queue.arguments else None
        pairs = zip(queue.memory, identities, strict=True)
        self.entries = [
            self._filled(f"entries of {identity!r}", dtype, shape, identity)
            for (_, dtype, shape), identity in pairs
        ]

    def _area(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return memory that a loop writes before it reads."""
        make = self._device.working_memory
        return self._device.own.area(f"{_OWN} {name}", shape, dtype, make)

    def _filled(
        self, name: str, dtype: str, shape: tuple[int, ...], value: Any
    ) -> Array:
        """Return memory of all vertices that holds a value between loops."""

        def make(shape: tuple[int, ...], dtype: str) -> Array:
            made = self._device.empty(shape, dtype)
            self._device.fill(made, value)
            return made

        whole = (max(self._count, 1), *shape)
        return self._device.own.area(f"{_OWN} {name}", whole, dtype, make)

    def _far_lists(self) -> Any:
        """Return the lists of waiting vertices, each once, but for late entries."""
        room = self._count + 4 * self._size
        return words_of.Far(
            self._area("vertices", (2, room), "int32"),
            self._filled("waits", "int32", (), 0),
            self._area("limits", (words_of.LIMITS + LOGGED + 1,), "float64"),
        )

    def begin(
        self, active: Words, limit: int, seconds: float, keys: Keys
    ) -> tuple[Any, ...]:
        """Write the parameters and limits of a loop; return its lists."""
        loops, driver = self._device.own.loops, self._device.driver
        head = loops.landing[: words_of.LOG]
        head[:] = 0
        head[words_of.LIMIT] = min(limit, LOGGED)
        head[words_of.MOST] = self._most
        head[words_of.MOST_NS] = int(min(seconds * 1e9, 1 << 62))
        head[words_of.KEY] = keys.number
        size = 8 * words_of.LOG
        driver.write(loops.address, int(head.ctypes.data), size)
        left = self._device.sets.empty(word_count(self._count))
        lists = words_of.Lists(active, left, *self._lists, loops.words)
        if self._far is None:
            return (lists,)
        told = np.array([keys.limit, keys.sign, keys.delta, np.inf])
        driver.write(address_of(self._far.limits), int(told.ctypes.data), told.nbytes)
        return lists, self._far

    def read(self, keys: Keys) -> LoopReport:
        """Wait for the end of the loop; return its results."""
        if self._marks_steps:
            self._device.fill(self._lists[-1], 0)
        words = self._landed(_READ_AT_FIRST)
        number = int(words[words_of.DONE])
        if number > _READ_AT_FIRST:
            words = self._landed(number)
        log = words[words_of.LOG :][: words_of.OF_AN_ENTRY * number]
        log = log.reshape(number, words_of.OF_AN_ENTRY)
        turn = number % words_of.TURNS
        packed = int(words[words_of.ROWS + turn])
        active = packed >> words_of.EDGE_BITS
        active += int(words[words_of.LEAVES + turn])
        counts, seconds = log[:, 0].tolist(), (log[:, 1] * 1e-9).tolist()
        waiting, edges = int(words[words_of.WAITING]), packed & words_of.EDGES
        limits = () if keys.number < 0 else self._read_limits(number)
        stages, last = int(words[words_of.STAGES]), int(words[words_of.STAGED])
        has_ended = stages > 0 and active == 0 and last == number
        return LoopReport(
            counts, seconds, active, edges, waiting, limits, stages, has_ended
        )

    def _read_limits(self, number: int) -> tuple[float, ...]:
        """Return the limit of each superstep, and of the next one."""
        landing, count = self._device.own.loops.landing, words_of.LIMITS + number
        landed, array = int(landing.ctypes.data), self._far.limits
        self._device.driver.read(landed, address_of(array), 8 * count)
        told = landing[:count].view(np.float64)
        return *told[words_of.LIMITS :].tolist(), float(told[words_of.NEAR])

    def _landed(self, entries: int) -> Any:
        """Return words of the device, with some entries of the log."""
        loops = self._device.own.loops
        size = words_of.LOG + words_of.OF_AN_ENTRY * entries
        landed = int(loops.landing.ctypes.data)
        self._device.driver.read(landed, loops.address, 8 * size)
        return np.asarray(loops.landing)

    def forget(self) -> None:
        """Drop the memory after a failed loop, which has not restored it."""
        scratch = self._device.own.scratch
        for key in [key for key in scratch if key.startswith(_OWN)]:
            del scratch[key]
