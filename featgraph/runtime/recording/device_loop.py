"""A cycle of supersteps that runs on the device until something ends it (0039)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field
from featgraph.runtime.recording import control
from featgraph.runtime.recording.control import Nodes, Orders, Report, Shape

__all__ = ["WORDS", "DeviceLoop", "LoopMemory"]

#: Words that loops of a thread share: the log of some sixteen thousand supersteps.
WORDS = 1 << 15


@dataclass(frozen=True, eq=False)
class LoopMemory:
    """What loops of one thread, which never run at a time, tell and are told.

    Attributes
    ----------
    words : array of int64
        On the device; see `featgraph.runtime.recording.control`.
    reals : array of float64
        The same memory.
    landing : ndarray of int64
        As many, page-locked.
    stop : array of int64, shape (1,)
        Memory of the host that the device reads: not 0 ends a loop.
    address : int
        Where `words` are.
    """

    words: Any
    reals: Any
    landing: npt.NDArray[np.int64]
    stop: Any
    address: int


class _Graph(Protocol):
    """What a loop is launched by."""

    nodes: Nodes

    def launch(self) -> None: ...

    def is_done(self) -> bool: ...


@dataclass(eq=False)
class DeviceLoop:
    """A cycle of supersteps that the device runs by itself.

    Attributes
    ----------
    driver : object
        Has `write` and `read`.
    graph : object
        The cycle in a conditional node.
    memory : LoopMemory
    shape : Shape
    decided : dict
        For the caller: what was found out of this cycle in earlier runs.
    """

    driver: Any
    graph: _Graph
    memory: LoopMemory
    shape: Shape
    decided: dict[Any, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Behind how many supersteps it may end, and behind multiples of that."""
        return 1 if self.shape.is_exact else self.shape.together

    @property
    def most(self) -> int:
        """How many supersteps the log has place for, at its full length."""
        place = (self.memory.landing.size - self.shape.log_begins) // self.shape.entry
        return place - place % self.step

    def launch(self, orders: Orders) -> None:
        """Have the device begin; the first `step` supersteps run in any case."""
        memory, self._limit = self.memory, orders.limit
        memory.stop[0] = 0
        size = 8 * control.pack(orders, self.graph.nodes, memory.landing)
        self.driver.write(memory.address, int(memory.landing.ctypes.data), size)
        self.graph.launch()

    def stop(self) -> None:
        """Have the device end when it may."""
        self.memory.stop[0] = 1

    def is_done(self) -> bool:
        """Whether the device has ended."""
        return self.graph.is_done()

    def read(self) -> Report:
        """Wait for the end; return what has run."""
        memory = self.memory
        size = 8 * (self.shape.log_begins + self.shape.entry * self._limit)
        self.driver.read(int(memory.landing.ctypes.data), memory.address, size)
        return control.unpack(memory.landing, self.shape)
